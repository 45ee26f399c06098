"""The whole Jacobian, against autograd's."""

import pytest
import torch
from oracles import (
    MONOTONE,
    MatrixNet,
    autograd_jacobians,
    close,
    exact,
    exact_stack,
    gradient,
    inputs,
    network,
    run,
    run_stack,
    saved_bytes,
)

import brute
from idensenet.draws import GeneratorDraws
from idensenet.errors import NonInvertibleError
from idensenet.lipschitz import Pieces, dense_block
from idensenet.logdet import LOG_ONE_PLUS, ExactLogDet, jacobian
from idensenet.logdet.exact import determinants, value_and_jacobian

NETWORKS = [
    "dense-2",
    "dense-3",
    "dense-7",
    "dense-16",
    "dense-40",  # more than travel together with the value
    "residual-2",
    "residual-5",
    "residual-16",
    "residual-40",
    "dense-conv",
    "residual-conv",
]
DRAWS = GeneratorDraws()


@pytest.mark.parametrize("name", NETWORKS)
def test_value_and_gradient_are_those_of_slogdet(name: str):
    g, x = network(name), inputs(name)
    gx, estimate = run(ExactLogDet(), g, x, DRAWS)
    close(gx, brute.plain_network(g, x), 1e-12)
    close(estimate.value, brute.log_abs_det(lambda a: a + brute.plain_network(g, a), x.detach()), 1e-10)
    assert estimate.standard_error is None
    weight = torch.randn(len(x), dtype=torch.float64)
    mine, right = gradient((weight * estimate.value).sum(), g, x), gradient((weight * exact(g, x)).sum(), g, x)
    close(mine, right, 1e-9)
    assert right.abs().max() > 1e-2  # something is compared
    assert (gradient((weight[0] * exact(g, x)).sum(), g, x) - right).abs().max() > 1e-4  # and per sample


STACKS = pytest.mark.parametrize(("name", "blocks"), [("dense-2", 3), ("dense-3", 1), ("dense-16", 2), ("residual-conv", 2)])


@STACKS
def test_second_derivatives_are_those_of_slogdet(name: str, blocks: int):
    g, x = network(name, blocks), inputs(name, 2)
    found = []
    for value in (run_stack(ExactLogDet(), g, x, DRAWS)[1].value, exact_stack(g, x)[1]):
        (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        found.append(gradient(first.square().sum(), g, x))
    close(found[0], found[1], 1e-8)
    assert found[1].abs().max() > 1e-3


@STACKS
def test_saving_memory_changes_no_number_and_keeps_less(name: str, blocks: int):
    g, x = network(name, blocks), inputs(name, 16)
    weight = torch.randn(len(x), dtype=torch.float64)
    values, gradients, kept = [], [], []
    for save in (False, True):
        prepared = g.prepare()
        weights = [*g.parameters(), *[tensor for branch in prepared.branches for tensor in branch.tensors()]]
        kept.append(saved_bytes(lambda s=save, p=prepared: _measured(g, x, p, s), weights))
        y, estimate = run_stack(ExactLogDet(), g, x, DRAWS, save=save)
        values.append(estimate.value)
        gradients.append(gradient((weight * estimate.value).sum() + y.sin().sum(), g, x))
    assert torch.equal(values[0], values[1])
    assert torch.equal(gradients[0], gradients[1])
    assert kept[1] < kept[0] / 2


def _measured(g, x, prepared, save):
    """The blocks alone, without the determinants of them all, which are kept either way."""
    found = []
    for branch in prepared.branches:
        gx, each = ExactLogDet().measure(branch, x, DRAWS, LOG_ONE_PLUS, save)
        x = x + gx
        found.append(each)
    return x, found


@pytest.mark.parametrize("dims", [2, 5])
def test_values_and_jacobians_together_are_those_apart(dims):
    g, x = network(f"dense-{dims}", 2).prepare()[1], torch.randn(3, dims, dtype=torch.float64)
    gx, matrix = value_and_jacobian(g, x)
    value, J = g.linearize(x)
    close(gx, value, 1e-13)
    close(matrix, jacobian(J, x), 1e-13)


def test_determinants_of_two_by_two_are_those_of_every_logarithm():
    J = torch.randn(5, 2, 2, dtype=torch.float64)
    unit = torch.eye(2, dtype=torch.float64)
    close(determinants(J, MONOTONE), torch.stack([torch.linalg.det(unit - J), torch.linalg.det(unit + J)]), 1e-13)


@pytest.mark.parametrize(
    ("dims", "growth", "activation"), [(2, 1, "lipswish"), (3, 1, "lipswish"), (5, 2, "lipswish"), (3, 2, "clipswish")]
)
def test_the_narrowest_layers(dims: int, growth: int, activation: str):
    g = dense_block([dims], depth=1, growth=growth, pieces=Pieces(activation)).double()
    x = torch.randn(4, dims, dtype=torch.float64, requires_grad=True)
    value = run(ExactLogDet(), g, x, DRAWS)[1].value
    close(value, exact(g, x), 1e-10)
    close(gradient(value.sum(), g, x), gradient(exact(g, x).sum(), g, x), 1e-9)


def test_the_jacobian_does_not_depend_on_the_chunk():
    g, x = network("residual-conv"), inputs("residual-conv").detach()
    J = g.prepare()[0].linearize(x)[1]
    close(jacobian(J, x, chunk=5), jacobian(J, x), 1e-14)
    close(jacobian(J, x), brute.jacobians(lambda a: brute.plain_network(g, a), x), 1e-12)


def test_the_jacobian_carries_a_graph_to_the_parameters():
    g, x = network("dense-3"), inputs("dense-3")
    mine = gradient(jacobian(g.prepare()[0].linearize(x)[1], x).sin().sum(), g, x)
    close(mine, gradient(autograd_jacobians(g, x).sin().sum(), g, x), 1e-10)


@pytest.mark.parametrize("dims", [1, 3, 5])
def test_a_negative_determinant_is_an_error(dims: int):
    g = MatrixNet(-2 * torch.eye(dims, dtype=torch.float64))
    with pytest.raises(NonInvertibleError, match=r"sample 0 \(4 of 4\).*certify"):
        run(ExactLogDet(), g, torch.zeros(4, dims, dtype=torch.float64), DRAWS)


@pytest.mark.parametrize("dims", [2, 4])
def test_a_negative_determinant_is_an_error_in_even_dimensions(dims: int):
    A = torch.zeros(dims, dims, dtype=torch.float64)
    A[0, 0] = -2
    with pytest.raises(NonInvertibleError), torch.no_grad():
        run(ExactLogDet(), MatrixNet(A), torch.zeros(2, dims, dtype=torch.float64), DRAWS)
    A[0, 0] = -0.5  # the control: det(I + A) = 1/2
    close(
        run(ExactLogDet(), MatrixNet(A), torch.zeros(1, dims, dtype=torch.float64), DRAWS)[1].value.exp(),
        torch.tensor([0.5]).double(),
        1e-14,
    )


@pytest.mark.parametrize("dims", [2, 3])
def test_a_singular_block_is_an_error_that_names_the_sample(dims: int):
    """In one block of two."""
    fine, lost = torch.zeros(2, 3, dims, dims)
    lost[1] = -torch.eye(dims)
    found = torch.stack([determinants(each, LOG_ONE_PLUS) if dims == 2 else each for each in (fine, lost)])
    with pytest.raises(NonInvertibleError, match=r"sample 1 \(1 of 3\)"):
        ExactLogDet().total(found, LOG_ONE_PLUS)
    close(ExactLogDet().total(found[:1], LOG_ONE_PLUS).value, torch.zeros(3), 1e-12)


@pytest.mark.parametrize("dims", [2, 3])
def test_two_lost_blocks_do_not_make_up_for_each_other(dims: int):
    """Each has a negative determinant, so the product of the two is positive."""
    flip = torch.zeros(4, dims, dims)
    flip[:, 0, 0] = -3
    each = determinants(flip, LOG_ONE_PLUS) if dims == 2 else flip
    with pytest.raises(NonInvertibleError, match=r"sample 0 \(4 of 4\)"):
        ExactLogDet().total(torch.stack([each, each]), LOG_ONE_PLUS)


@pytest.mark.parametrize("dims", [2, 3])
def test_a_lost_inverse_in_compiled_code_is_not_a_number_and_neither_is_its_gradient(dims: int, monkeypatch):
    matrix = torch.diag_embed(torch.tensor([[0.1, 0.2, 0.0], [-1.5, 0.2, 0.0], [0.3, 0.1, 0.0]])[:, :dims]).requires_grad_()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    value = ExactLogDet().total((determinants(matrix, LOG_ONE_PLUS) if dims == 2 else matrix)[None], LOG_ONE_PLUS).value
    assert value.isnan().tolist() == [False, True, False]
    value.sum().backward()
    assert matrix.grad.isnan().flatten(1).any(1).tolist() == [False, True, False]


def test_a_network_that_escapes_its_normalisation_is_caught():
    g, x = network("residual-1"), torch.ones(2, 1, dtype=torch.float64)
    slope, last = float(jacobian(g.prepare()[0].linearize(x)[1], x)[0].detach()), g.layers[-1]
    run(ExactLogDet(), g, x, DRAWS)
    last.normalized = lambda *factors: type(last).normalized(last, *factors) * -2 / slope
    with pytest.raises(NonInvertibleError):
        run(ExactLogDet(), g, x, DRAWS)


def test_an_empty_batch_has_no_values():
    for name in ("dense-2", "dense-4"):
        gx, estimate = run(ExactLogDet(), network(name), inputs(name, 0), DRAWS)
        assert gx.shape == inputs(name, 0).shape
        assert estimate.value.shape == (0,)
