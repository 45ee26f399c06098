"""The eight toy densities: each generator against its density, each stated entropy against quadrature.

The densities are written down here from the definitions, independently of the generators: mixtures along a curve by
quadrature over its parameter, which converges faster than any power for smooth noise. The entropy is then the integral of
-p log p on a grid, and the mean of -log p over draws must agree with it within its standard error.
"""

import math

import numpy as np
import pytest
import torch
from scipy.special import erf, ive

from idensenet.data.toy import TOY_SETS, toy_set
from idensenet.errors import UnknownNameError

ROUNDING = 1e-4  # of four digits, and of the quadrature


def nodes(n):
    """Gauss-Legendre nodes and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(n)
    return (x + 1) / 2, w / 2


def gaussian_mixture(centres, weights, scale):
    def density(points):
        result = np.zeros(len(points))
        for start in range(0, len(points), 2000):
            part = points[start : start + 2000]
            squares = ((part[:, None] - centres[None]) ** 2).sum(2)
            result[start : start + 2000] = np.exp(-squares / (2 * scale**2)) @ weights
        return result / (2 * math.pi * scale**2)

    return density


def on_circles(radii, noise):
    """The angle is integrated out: a Bessel function, here scaled so that it does not overflow."""

    def density(points):
        r = np.hypot(*points.T)
        rings = [np.exp(-((r - a) ** 2) / (2 * noise**2)) * ive(0, r * a / noise**2) for a in radii]
        return sum(rings) / (2 * math.pi * noise**2 * len(radii))

    return density


def moons_density():
    u, w = nodes(80)
    t = math.pi * u
    upper = np.stack([np.cos(t), np.sin(t)], 1)
    lower = np.stack([1 - np.cos(t), 0.5 - np.sin(t)], 1)
    centres = 2 * np.concatenate([upper, lower]) + [-1, -0.2]
    return gaussian_mixture(centres, np.concatenate([w, w]) / 2, 0.2)


def gaussians_density():
    angle = np.arange(8) * math.pi / 4
    return gaussian_mixture(4 * np.stack([np.cos(angle), np.sin(angle)], 1) / 1.414, np.full(8, 1 / 8), 0.5 / 1.414)


def swissroll_density():
    u, w = nodes(250)
    t = 1.5 * math.pi * (1 + 2 * u)
    return gaussian_mixture(np.stack([t * np.cos(t), t * np.sin(t)], 1) / 5, w, 0.2)


def spirals_density():
    """Gaussian noise on a uniform square of side 1/6, along the spiral: a product of differences of error functions."""
    u, w = nodes(350)
    t = 3 * math.pi * u
    w = w * 2 * u  # t / (3 pi) is the root of a uniform number
    corner = np.stack([-t * np.cos(t), t * np.sin(t)], 1) / 3
    scale = 0.1 * math.sqrt(2)

    def one_arm(points):
        sides = [
            erf((points[:, k, None] - corner[:, k]) / scale) - erf((points[:, k, None] - corner[:, k] - 1 / 6) / scale)
            for k in (0, 1)
        ]
        return (sides[0] * sides[1]) @ w * 9  # (6 / 2)^2

    def density(points):
        parts = [points[i : i + 4000] for i in range(0, len(points), 4000)]
        return np.concatenate([(one_arm(p) + one_arm(-p)) / 2 for p in parts])

    return density


def checkerboard_density(points):
    cell = np.floor(points / 2).astype(int)
    return np.where((cell.sum(1) % 2 == 0) & (np.abs(points).max(1) < 4), 1 / 32, 0.0)


def grid(extent, step):
    side = np.arange(-extent, extent + step / 2, step)
    return np.stack(np.meshgrid(side, side), -1).reshape(-1, 2), step**2


def entropy_on_grid(density, extent, step):
    points, area = grid(extent, step)
    p = density(points)
    assert p.sum() * area == pytest.approx(1, abs=1e-5)
    return -(p * np.log(np.maximum(p, 1e-300))).sum() * area


def entropy_of_rings(density, extent):
    u, w = nodes(600)
    r = extent * u
    p = density(np.stack([r, 0 * r], 1))
    mass = 2 * math.pi * r * w * extent
    assert (p * mass).sum() == pytest.approx(1, abs=1e-9)
    return -(p * np.log(np.maximum(p, 1e-300)) * mass).sum()


def pinwheel_in_polar():
    """The density over radius and angle, on a grid.

    Turning keeps the radius, and takes the angle a of the features to a - exp(r cos a) / 4, less the angle of the arm. For
    each radius this is a change of one variable with the derivative 1 + exp(r cos a) / 4 * r sin a, which is positive
    wherever there is any mass to speak of. The five arms are the same function, turned.
    """
    fine = np.linspace(-math.pi, math.pi, 4001)[:-1]
    angles = np.arange(2000) * (2 * math.pi / 2000)
    radii = (np.arange(700) + 0.5) * (2.8 / 700)
    p = np.zeros((len(radii), len(angles)))
    for i, r in enumerate(radii):
        x, y = r * np.cos(fine), r * np.sin(fine)
        features = np.exp(-((x - 1) ** 2) / (2 * 0.3**2) - y**2 / (2 * 0.1**2)) / (2 * math.pi * 0.03)
        slope = 1 + np.exp(x) / 4 * y
        kept = (slope > 0.05) & (features > 1e-12)
        middle = int(np.argmin(np.where(kept, np.abs(fine), np.inf)))
        if not kept[middle]:
            continue
        first, last = middle, middle  # the stretch around the axis on which the map is rising
        while first > 0 and kept[first - 1]:
            first -= 1
        while last < len(fine) - 1 and kept[last + 1]:
            last += 1
        part = slice(first, last + 1)
        turned = fine[part] - np.exp(x[part]) / 4
        lifted = angles + 2 * math.pi * np.arange(-2, 3)[:, None]
        arm = np.interp(lifted, turned, features[part] / slope[part], left=0, right=0).sum(0)
        p[i] = sum(np.roll(arm, k * len(angles) // 5) for k in range(5)) / 5
    return radii, angles, p / 4  # everything times two


def entropy_of_pinwheel():
    radii, angles, p = pinwheel_in_polar()
    mass = (4 * radii * (2.8 / 700) * (2 * math.pi / len(angles)))[:, None]
    assert (p * mass).sum() == pytest.approx(1, abs=1e-3)
    return -(p * np.log(np.maximum(p, 1e-300)) * mass).sum()


def pinwheel_density(points):
    radii, angles, p = pinwheel_in_polar()
    i = np.clip(np.round(np.hypot(*points.T) / 2 / (2.8 / 700) - 0.5).astype(int), 0, len(radii) - 1)
    j = np.round(np.arctan2(points[:, 1], points[:, 0]) / (2 * math.pi / len(angles))).astype(int) % len(angles)
    return p[i, j]


DENSITIES = {
    "circles": on_circles([3.0, 1.5], 0.24),
    "rings": on_circles([3.0, 2.25, 1.5, 0.75], 0.08),
    "moons": moons_density(),
    "8gaussians": gaussians_density(),
    "swissroll": swissroll_density(),
    "2spirals": spirals_density(),
    "checkerboard": checkerboard_density,
    "pinwheel": pinwheel_density,
}
ENTROPIES = {
    "circles": lambda: entropy_of_rings(DENSITIES["circles"], 5),
    "rings": lambda: entropy_of_rings(DENSITIES["rings"], 4),
    "moons": lambda: entropy_on_grid(DENSITIES["moons"], 4.5, 0.08),
    "8gaussians": lambda: entropy_on_grid(DENSITIES["8gaussians"], 5, 0.1),
    "swissroll": lambda: entropy_on_grid(DENSITIES["swissroll"], 4.2, 0.07),
    "2spirals": lambda: entropy_on_grid(DENSITIES["2spirals"], 3.9, 0.06),
    "checkerboard": lambda: math.log(8 * 2 * 2),
    "pinwheel": entropy_of_pinwheel,
}


@pytest.mark.parametrize("name", TOY_SETS)
def test_the_stated_entropy_is_that_of_the_density(name):
    assert TOY_SETS[name].entropy == pytest.approx(ENTROPIES[name](), abs=ROUNDING)


@pytest.mark.parametrize("name", TOY_SETS)
def test_the_draws_come_from_the_density(name):
    points = TOY_SETS[name].sample(4000, torch.Generator().manual_seed(0), torch.float64).numpy()
    scores = -np.log(DENSITIES[name](points))
    error = scores.std() / math.sqrt(len(scores))
    assert abs(scores.mean() - TOY_SETS[name].entropy) <= 3 * error + ROUNDING


@pytest.mark.parametrize(
    ("name", "extent", "mean"),
    [
        ("circles", 4.5, (0, 0)),
        ("rings", 3.5, (0, 0)),
        ("moons", 4.2, (0, 0.3)),
        ("checkerboard", 4.0, (0, 0)),
        ("8gaussians", 4.7, (0, 0)),
        ("swissroll", 4.0, None),
        ("2spirals", 4.0, (0, 0)),
        ("pinwheel", 5.0, (0, 0)),
    ],
)
def test_shapes_and_ranges(name, extent, mean):
    points = TOY_SETS[name].sample(5000, torch.Generator().manual_seed(1))
    assert points.shape == (5000, 2)
    assert points.dtype == torch.float32
    assert points.abs().max() <= extent
    if mean is not None:
        error = points.std(0) / math.sqrt(5000)
        assert ((points.mean(0) - torch.tensor(mean)).abs() < 4 * error).all()


@pytest.mark.parametrize("name", TOY_SETS)
def test_the_same_generator_gives_the_same_points(name):
    a, b, c = (TOY_SETS[name].sample(10, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    torch.manual_seed(0)
    assert TOY_SETS[name].sample(3, dtype=torch.float64).dtype == torch.float64


def test_an_unknown_set_is_answered_with_the_nearest():
    assert toy_set("moons") is TOY_SETS["moons"]
    with pytest.raises(UnknownNameError, match="'moon'; did you mean 'moons'"):
        toy_set("moon")
