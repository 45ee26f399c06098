"""Variational dequantisation: all images of four levels and two by two pixels, summed; and what a flow makes of it."""

import math

import pytest
import torch

import idensenet as idn
from idensenet.bijections import Affine, Chain, Logit
from idensenet.dequantizer import Dequantizer
from idensenet.draws import GeneratorDraws, KeyedDraws
from idensenet.errors import OptionError
from idensenet.flow import Flow

LEVELS, SHAPE = 4, (1, 2, 2)


def flow(**options):
    small = {"shape": SHAPE, "levels": LEVELS, "alpha": 1e-4, "blocks": (2,), "growth": 8, "depth": 1, "fc_blocks": 0}
    logdet = {"method": "exact", "eval_method": "exact"}
    return idn.build(
        "digits-idensenet", **{**small, "dequantization": "variational", "dequantization_width": 8, "logdet": logdet, **options}
    )


def every_image():
    grid = torch.cartesian_prod(*[torch.arange(LEVELS)] * math.prod(SHAPE))
    return grid.view(-1, *SHAPE).to(torch.uint8)


@pytest.fixture(scope="module")
def trained():
    """A flow that has learned to expect dark images with noise near the middle of a level."""
    torch.manual_seed(0)
    made = flow().double()
    generator = torch.Generator().manual_seed(1)
    data = (torch.rand(512, *SHAPE, generator=generator).square() * LEVELS).to(torch.uint8)
    made.initialize(data)
    made.train()
    optimizer = torch.optim.Adam(made.parameters(), 2e-2)
    for step in range(60):
        optimizer.zero_grad()
        (-made.log_prob(data[64 * (step % 8) :][:64], generator).mean()).backward()
        optimizer.step()
    return made.eval()


@torch.no_grad()
def total(made, importance, draws=60):
    """Sum over all images of exp(mean of the bound), and its standard error over draws of the noise."""
    images = every_image()
    prepared = made.prepare()
    found = torch.stack(
        [
            made.log_prob(images, torch.Generator().manual_seed(i), prepared=prepared, importance=importance)
            for i in range(draws)
        ]
    )
    mean = found.mean(0).exp()
    error = (mean * found.std(0) / draws**0.5).square().sum().sqrt()
    return float(mean.sum()), float(error)


def test_the_bound_sums_to_less_than_one_and_more_samples_come_closer(trained):
    sums = {k: total(trained, k, draws) for k, draws in ((1, 60), (4, 30), (32, 8))}
    for value, error in sums.values():
        assert value < 1 + 3 * error
    assert sums[1][0] + 3 * sums[1][1] < sums[4][0] < sums[32][0] + 3 * sums[32][1]
    assert sums[32][0] == pytest.approx(1, abs=0.02 + 3 * sums[32][1])


def test_without_log_q_the_sum_would_be_above_one(trained):
    class Forgetful(Dequantizer):
        def forward(self, x, draws, dtype):
            u, log_q = super().forward(x, draws, dtype)
            return u, torch.zeros_like(log_q)

    kind, trained.dequantizer.__class__ = type(trained.dequantizer), Forgetful
    try:
        value, error = total(trained, 1)
    finally:
        trained.dequantizer.__class__ = kind
    assert value > 1 + 5 * error


def test_log_q_is_the_density_of_the_noise(trained):
    """Against the Jacobian of v -> u by autograd: v is uniform."""
    noise, image = trained.dequantizer, every_image()[37:38]

    class Given(GeneratorDraws):
        def uniform(self, like, copies=1):
            return self.v.view(1, *like.shape)

    def u_of(v):
        draws = Given()
        draws.v = v
        return noise(image, draws, torch.float64)

    v = torch.rand(4, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda a: u_of(a)[0].flatten(), v)
    torch.testing.assert_close(u_of(v)[1][0], -torch.linalg.slogdet(jacobian).logabsdet, rtol=1e-9, atol=1e-9)
    assert abs(float(u_of(v)[1])) > 0.01  # it has learned something


def test_it_starts_as_uniform_noise():
    images, noise = every_image()[::7], Dequantizer(SHAPE, LEVELS, 4)
    u, log_q = noise(images, KeyedDraws.of(images), torch.float32)
    right = KeyedDraws.of(images).uniform(images.float())[0]
    torch.testing.assert_close(u, right, rtol=0, atol=1e-6)
    torch.testing.assert_close(log_q, torch.zeros(len(images)), rtol=0, atol=1e-5)


def test_the_terms_add_up_and_evaluation_is_a_function_of_the_data(trained):
    images = every_image()[::5]
    with torch.no_grad():
        terms = trained.log_prob_terms(images)
        assert set(terms) == {"base", "log_det", "preprocess", "levels", "noise"}
        torch.testing.assert_close(sum(terms.values()), trained.log_prob(images), rtol=1e-12, atol=1e-12)
        for importance in (1, 3):
            together = trained.log_prob(images, importance=importance)
            assert torch.equal(together, trained.log_prob(images, importance=importance))
            alone = torch.cat([trained.log_prob(x[None], importance=importance) for x in images[:4]])
            torch.testing.assert_close(alone, together[:4], rtol=1e-10, atol=1e-10)
        noise = trained.dequantize(images) - images
        assert float(noise.min()) > 0
        assert float(noise.max()) < 1
        assert trained.sample(3, torch.Generator().manual_seed(0)).dtype == torch.uint8


def test_importance_helps_uniform_noise_too():
    made = Flow(Chain([]), SHAPE, preprocess=Chain([Affine(torch.zeros(()), torch.tensor(4.0)), Logit(0.05)]), levels=LEVELS)
    images = every_image()[::16]
    with torch.no_grad():
        one, many = made.eval().log_prob(images).mean(), made.log_prob(images, importance=64).mean()
    assert float(many) > float(one)
    with pytest.raises(OptionError, match="importance=0"):
        made.log_prob(images, importance=0)


def test_it_is_saved_and_certified(tmp_path, trained):
    idn.save(trained, tmp_path / "model")
    again = idn.load(tmp_path / "model")
    images = every_image()[::31]
    with torch.no_grad():
        assert torch.equal(again.log_prob(images), trained.log_prob(images))
    assert trained.certify().contractive


def test_what_cannot_be_built_is_an_error():
    with pytest.raises(OptionError, match="dequantization='gauss' is not known"):
        flow(dequantization="gauss")
    with pytest.raises(OptionError, match="needs images with levels"):
        idn.build("toy-idensenet", dequantization="variational")
