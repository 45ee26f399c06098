"""Posterior estimation: parameters given what a simulator made of them. Usage: python ... [picture.png] [steps]"""

import sys

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import multivariate_normal

from idensenet.report.drawing import themed
from idensenet.sklearn import FlowDensity

out = sys.argv[1] if len(sys.argv) > 1 else "posterior_of_a_simulator.png"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 2500
random = np.random.default_rng(0)

# A linear Gaussian simulator: the posterior is a Gaussian.
A, noise = np.array([[1.0, 0.5], [0.0, 1.0]]), 0.5
theta = random.normal(size=(3000, 2))
x = theta @ A.T + noise * random.normal(size=(3000, 2))
linear = FlowDensity(max_iter=steps, random_state=0).fit(theta[:2000], context=x[:2000])
cov = np.linalg.inv(np.eye(2) + A.T @ A / noise**2)
means = x[2000:] @ (cov @ A.T / noise**2).T
truth = multivariate_normal(cov=cov).logpdf(theta[2000:] - means)
found = linear.score_samples(theta[2000:], context=x[2000:])
print(f"linear Gaussian: mean log-posterior of the true parameters {found.mean():.3f}, exact {truth.mean():.3f}")


# Two moons: a crescent, and its mirror image that the simulator cannot tell from it.
def moons(theta: np.ndarray) -> np.ndarray:
    angle, radius = random.uniform(-np.pi / 2, np.pi / 2, len(theta)), random.normal(0.1, 0.01, len(theta))
    crescent = np.column_stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)])
    return crescent + np.column_stack([-np.abs(theta.sum(1)), theta[:, 1] - theta[:, 0]]) / np.sqrt(2)


def exact(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The posterior's density up to a factor; the prior is uniform on [-1, 1]^2."""
    p = x - np.column_stack([-np.abs(theta.sum(1)), theta[:, 1] - theta[:, 0]]) / np.sqrt(2) - [0.25, 0]
    radius = np.hypot(*p.T)
    return np.where(p[:, 0] > 0, np.exp(-0.5 * ((radius - 0.1) / 0.01) ** 2) / radius, 0.0) * (np.abs(theta).max(1) < 1)


theta = random.uniform(-1, 1, (4000, 2))
posterior = FlowDensity(blocks=8, growth=32, max_iter=steps, n_iter_no_change=30, random_state=0).fit(
    theta, context=moons(theta)
)
side = np.linspace(-0.5, 0.5, 300)
grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
with themed():
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    learned = np.exp(posterior.score_samples(grid, context=np.zeros((len(grid), 2))))
    for axis, values, title in zip(axes, (exact(grid, np.zeros(2)), learned), ("exact posterior", "learned posterior")):
        axis.pcolormesh(side, side, values.reshape(300, 300), rasterized=True)
        axis.set_title(f"{title} at x = (0, 0)")
    axes[2].scatter(*posterior.sample(1000, random_state=0, context=[0, 0]).T, s=3)
    axes[2].set(title="samples", xlim=(-0.5, 0.5), ylim=(-0.5, 0.5))
    figure.savefig(out)
print(f"picture: {out}")
