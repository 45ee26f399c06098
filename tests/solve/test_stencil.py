"""The convolution that stands in for g: what it finds, where it is left out, and what it saves."""

import pytest
import torch
import torch.nn.functional as F

from idensenet.lipschitz import Pieces, dense_block
from idensenet.solve import Anderson, anderson, solve
from idensenet.solve.stencil import TERMS, Stencil, shared, with_own


def kernel(channels, gain):
    """A random 3 x 3 kernel whose operator has about this norm."""
    weight = torch.randn(channels, channels, 3, 3, dtype=torch.float64)
    return gain * weight / weight.abs().sum((1, 2, 3)).max()


def dense(weight, size):
    """The zero-padded convolution as a matrix."""
    basis = torch.eye(weight.shape[1] * size * size, dtype=weight.dtype).view(-1, weight.shape[1], size, size)
    return F.conv2d(basis, weight, padding=weight.shape[-1] // 2).flatten(1).T


def test_a_convolution_with_a_bias_is_found_again():
    weights = torch.stack([kernel(2, 0.8), kernel(2, 0.5)])
    x = torch.randn(2, 2, 12, 12, dtype=torch.float64)
    value = torch.cat([F.conv2d(x[i : i + 1], weights[i], padding=1) + 0.3 for i in range(2)])
    found = with_own(None, x, value)
    assert found is not None
    assert (found.own - weights).abs().max() < 5e-3  # the ridge


def test_one_for_all_is_found_from_noise_and_solves_a_linear_block():
    weight = 0.6 * F.normalize(torch.randn(2, 2, 5, 5, dtype=torch.float64).flatten(1), p=1).view(2, 2, 5, 5)
    y = torch.randn(21, 2, 14, 14, dtype=torch.float64)
    found = shared(lambda x: F.conv2d(x, weight, padding=2) + 0.3, y)
    assert found is not None
    assert (found.shared - weight).abs().max() < 1e-3
    torch.testing.assert_close(found.bias, torch.full((2, 1, 1), 0.3, dtype=torch.float64), rtol=0, atol=1e-3)
    start, memory = Anderson().start(lambda x: F.conv2d(x, weight, padding=2) + 0.3, y)
    residual = start + F.conv2d(start, weight, padding=2) + 0.3 - y
    assert residual.norm() < 2 * 0.6**TERMS * y.norm()
    assert isinstance(memory.stencil, Stencil)


def test_the_two_parts_are_undone_as_the_dense_inverse_does():
    wide, small, size = F.pad(kernel(2, 0.3), (1, 1, 1, 1)), kernel(2, 0.3), 7
    r = torch.randn(3, 2, size, size, dtype=torch.float64)
    both = dense(wide, size) + dense(small, size)
    want = torch.linalg.solve(torch.eye(2 * size * size, dtype=torch.float64) + both, r.flatten(1).T).T
    for stencil in (
        Stencil(wide, own=small.expand(3, 2, 2, 3, 3)),
        Stencil(F.pad(small, (1, 1, 1, 1)) + wide),
        Stencil(own=(small + wide[:, :, 1:-1, 1:-1]).expand(3, 2, 2, 3, 3)),
    ):
        found, last = stencil.undo(r)
        assert ((found.flatten(1) - want).norm(dim=1) < 0.6 ** (TERMS + 1) * want.norm(dim=1)).all()
        assert (last.flatten(1).norm(dim=1) <= 0.6**TERMS * r.flatten(1).norm(dim=1)).all()


def test_each_sample_has_what_the_shared_part_leaves():
    common, weights = kernel(2, 0.4), torch.stack([kernel(2, 0.2), kernel(2, 0.1)])
    x = torch.randn(2, 2, 12, 12, dtype=torch.float64)
    value = F.conv2d(x, common, padding=1) + torch.cat([F.conv2d(x[i : i + 1], weights[i], padding=1) for i in range(2)])
    found = with_own(Stencil(F.pad(common, (1, 1, 1, 1))), x, value)
    assert found is not None
    assert (found.own - weights).abs().max() < 5e-3


@pytest.mark.parametrize("gain", ["another slope at every pixel", 1.5])
def test_what_is_no_convolution_or_no_contraction_gets_none(gain):
    somewhere = 0.5 * torch.randn(1, 1, 16, 16, dtype=torch.float64).sign() if isinstance(gain, str) else gain
    x = torch.randn(16, 1, 16, 16, dtype=torch.float64)
    assert with_own(None, x, somewhere * x) is None
    assert shared(lambda x: somewhere * x, x) is None


def test_vectors_small_maps_and_small_batches_have_no_room():
    assert with_own(None, torch.randn(2, 9), torch.randn(2, 9)) is None
    assert with_own(None, torch.randn(2, 8, 8, 8), torch.randn(2, 8, 8, 8)) is None
    assert with_own(None, torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)) is None
    assert shared(torch.zeros_like, torch.randn(50, 9)) is None
    assert shared(lambda x: 0.1 * x, torch.randn(3, 1, 64, 64)) is None
    assert shared(lambda x: 0.1 * x, torch.randn(4, 1, 64, 64)) is not None
    assert shared(lambda x: 0.1 * x, torch.randn(15, 1, 16, 16)) is None
    assert shared(lambda x: 0.1 * x, torch.randn(16, 1, 16, 16)) is not None


def young(dtype=torch.float64):
    """A dense block as it is at the start: far from its bound, and nearly linear."""
    torch.manual_seed(0)
    g = dense_block([3, 16, 16], depth=3, growth=12, pieces=Pieces()).to(dtype)
    with torch.no_grad():
        for p in g.parameters():
            if p.ndim == 5:  # a stack of kernels
                p.mul_(1.5)
        return g.prepare()[0]


@pytest.mark.parametrize("batch", [5, 16])
def test_it_saves_evaluations_and_changes_no_solution(batch):
    g, y = young(), torch.randn(batch, 3, 16, 16, dtype=torch.float64)
    with_it, without = solve(g, y, Anderson(1e-8)), solve(g, y, Anderson(1e-8, stencil=False))
    assert with_it.converged.all()
    assert (with_it.steps < without.steps).all()
    assert (with_it.value - without.value).flatten(1).norm(dim=1).max() < 1e-6
    residual = with_it.value + g(with_it.value) - y
    assert (residual.flatten(1).norm(dim=1) <= 1e-8 * (3 * 16 * 16) ** 0.5).all()


def test_a_sample_is_solved_the_same_in_every_batch():
    """Bit for bit nearly, where both batches are large enough for a start from noise; to the tolerance otherwise."""
    g, y = young(), torch.randn(18, 3, 16, 16, dtype=torch.float64)
    whole = solve(g, y, Anderson(1e-6)).value
    torch.testing.assert_close(solve(g, y[1:17], Anderson(1e-6)).value, whole[1:17], rtol=0, atol=1e-12)
    for i in range(6):
        alone = solve(g, y[i : i + 1], Anderson(1e-6)).value
        assert (alone - whole[i]).norm() < 1e-5 * (3 * 16 * 16) ** 0.5
        torch.testing.assert_close(alone, solve(g, y[[i, 0]], Anderson(1e-6)).value[:1], rtol=0, atol=1e-12)


def test_a_wrong_stencil_costs_steps_and_not_the_solution(monkeypatch):
    """The control: a stencil of the wrong sign is refused its proposals, and the loop falls back to the plain step."""
    g, y = young(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    right = solve(g, y, Anderson(1e-8))
    monkeypatch.setattr(anderson, "with_own", lambda known, x, gx: Stencil(own=-with_own(known, x, gx).own))
    wrong = solve(g, y, Anderson(1e-8))
    assert wrong.converged.all()
    assert (wrong.steps > right.steps).all()
    assert (wrong.value - right.value).flatten(1).norm(dim=1).max() < 1e-6


def test_a_wrong_start_costs_steps_and_not_the_solution(monkeypatch):
    g, y = young(), torch.randn(16, 3, 16, 16, dtype=torch.float64)
    right = solve(g, y, Anderson(1e-8))
    monkeypatch.setattr(anderson, "shared", lambda g, y: Stencil(-shared(g, y).shared, 10.0))
    wrong = solve(g, y, Anderson(1e-8))
    assert wrong.converged.all()
    assert (wrong.steps > right.steps).all()
    assert (wrong.value - right.value).flatten(1).norm(dim=1).max() < 1e-6
