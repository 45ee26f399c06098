"""The convolution that stands in for g: what it finds, where it is left out, and what it saves."""

import torch
import torch.nn.functional as F

from idensenet.lipschitz import Pieces, dense_block
from idensenet.solve import Anderson, solve, stencil


def kernel(channels, gain):
    """A random 3 x 3 kernel whose operator has about this norm."""
    weight = torch.randn(channels, channels, 3, 3, dtype=torch.float64)
    return gain * weight / weight.abs().sum((1, 2, 3)).max()


def dense(weight, size):
    """The zero-padded convolution as a matrix."""
    basis = torch.eye(weight.shape[1] * size * size, dtype=weight.dtype).view(-1, weight.shape[1], size, size)
    return F.conv2d(basis, weight, padding=1).flatten(1).T


def test_a_convolution_with_a_bias_is_found_again():
    weights = torch.stack([kernel(2, 0.8), kernel(2, 0.5)])
    x = torch.randn(2, 2, 12, 12, dtype=torch.float64)
    value = torch.cat([F.conv2d(x[i : i + 1], weights[i], padding=1) + 0.3 for i in range(2)])
    found = stencil.fit(x, value)
    assert found is not None
    assert (found - weights).abs().max() < 5e-3  # the ridge


def test_it_is_undone_as_the_dense_inverse_does():
    weight, size = kernel(2, 0.6), 7
    r = torch.randn(3, 2, size, size, dtype=torch.float64)
    want = torch.linalg.solve(torch.eye(2 * size * size, dtype=torch.float64) + dense(weight, size), r.flatten(1).T).T
    found = stencil.undo(weight.expand(3, 2, 2, 3, 3), r).flatten(1)
    error = (found - want).norm(dim=1) / want.norm(dim=1)
    assert (error < 0.6 ** (stencil.TERMS + 1)).all()


def test_what_is_no_convolution_gets_none():
    x = torch.randn(4, 1, 10, 10, dtype=torch.float64)
    somewhere = torch.randn(1, 1, 10, 10, dtype=torch.float64)  # another slope at every pixel
    found = stencil.fit(x, 0.5 * somewhere.sign() * x)
    assert found is not None
    assert not found.any()


def test_what_is_no_contraction_gets_none():
    x = torch.randn(4, 1, 10, 10, dtype=torch.float64)
    found = stencil.fit(x, 1.5 * x)
    assert found is not None
    assert not found.any()


def test_vectors_and_small_maps_have_no_room():
    assert stencil.fit(torch.randn(2, 9), torch.randn(2, 9)) is None
    assert stencil.fit(torch.randn(2, 8, 8, 8), torch.randn(2, 8, 8, 8)) is None
    zero = stencil.fit(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8))
    assert zero is not None
    assert torch.isfinite(zero).all()


def young(dtype=torch.float64):
    """A dense block as it is at the start: far from its bound, and nearly linear."""
    torch.manual_seed(0)
    g = dense_block([3, 16, 16], depth=3, growth=12, pieces=Pieces()).to(dtype)
    with torch.no_grad():
        for p in g.parameters():
            if p.ndim == 4:
                p.mul_(1.5)
    return g


def test_it_saves_evaluations_and_changes_no_solution():
    g, y = young(), torch.randn(5, 3, 16, 16, dtype=torch.float64)
    with_it, without = solve(g, y, Anderson(1e-8)), solve(g, y, Anderson(1e-8, stencil=False))
    assert with_it.converged.all()
    assert (with_it.steps < without.steps).all()
    assert (with_it.value - without.value).flatten(1).norm(dim=1).max() < 1e-6
    residual = with_it.value + g(with_it.value).detach() - y
    assert (residual.flatten(1).norm(dim=1) <= 1e-8 * (3 * 16 * 16) ** 0.5).all()


def test_a_sample_is_solved_the_same_in_every_batch():
    g, y = young(), torch.randn(6, 3, 16, 16, dtype=torch.float64)
    whole = solve(g, y, Anderson(1e-6)).value
    for i in range(6):
        torch.testing.assert_close(solve(g, y[i : i + 1], Anderson(1e-6)).value, whole[i : i + 1], rtol=0, atol=1e-12)


def test_a_wrong_stencil_costs_steps_and_not_the_solution(monkeypatch):
    """The control: a stencil of the wrong sign is refused its proposals, and the loop falls back to the plain step."""
    g, y = young(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    right = solve(g, y, Anderson(1e-8))
    real = stencil.fit
    monkeypatch.setattr(stencil, "fit", lambda x, value: -real(x, value))
    wrong = solve(g, y, Anderson(1e-8))
    assert wrong.converged.all()
    assert (wrong.steps > right.steps).all()
    assert (wrong.value - right.value).flatten(1).norm(dim=1).max() < 1e-6
