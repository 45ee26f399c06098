"""The whole Jacobian, against autograd's."""

import pytest
import torch
from oracles import MatrixNet, autograd_jacobians, close, exact, gradient, inputs, network, saved_bytes

import brute
from idensenet.draws import GeneratorDraws
from idensenet.errors import NonInvertibleError
from idensenet.lipschitz import Pieces, dense_block
from idensenet.logdet import ExactLogDet, jacobian
from idensenet.logdet.exact import log_abs_det

NETWORKS = [
    "dense-2",
    "dense-3",
    "dense-7",  # from here on more dimensions than the activations have inputs
    "dense-16",
    "dense-40",
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
    gx, estimate = ExactLogDet()(g, x, DRAWS)
    close(gx, g(x), 1e-12)
    close(estimate.value, brute.log_abs_det(lambda a: a + g(a), x.detach()), 1e-10)
    assert estimate.standard_error is None
    weight = torch.randn(len(x), dtype=torch.float64)
    mine, right = gradient((weight * estimate.value).sum(), g, x), gradient((weight * exact(g, x)).sum(), g, x)
    close(mine, right, 1e-9)
    assert right.abs().max() > 1e-2  # something is compared
    assert (gradient((weight[0] * exact(g, x)).sum(), g, x) - right).abs().max() > 1e-4  # and per sample


@pytest.mark.parametrize("name", ["dense-2", "dense-3", "dense-16", "residual-conv"])
def test_second_derivatives_are_those_of_slogdet(name: str):
    g, x = network(name), inputs(name, 2)
    found = []
    for value in (ExactLogDet()(g, x, DRAWS)[1].value, exact(g, x)):
        (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        found.append(gradient(first.square().sum(), g, x))
    close(found[0], found[1], 1e-8)
    assert found[1].abs().max() > 1e-3


@pytest.mark.parametrize("name", ["dense-2", "dense-4", "dense-16", "dense-conv"])
def test_recomputation_changes_no_number_and_keeps_less(name: str):
    g, x = network(name), inputs(name)
    weight = torch.randn(len(x), dtype=torch.float64)
    values, gradients, kept = [], [], []
    for recompute in (False, True):
        kept.append(saved_bytes(lambda r=recompute: ExactLogDet()(g, x, DRAWS, recompute=r), g.parameters()))
        gx, estimate = ExactLogDet()(g, x, DRAWS, recompute=recompute)
        values.append(estimate.value)
        gradients.append(gradient((weight * estimate.value).sum() + gx.sin().sum(), g, x))
    assert torch.equal(values[0], values[1])
    assert torch.equal(gradients[0], gradients[1])
    assert kept[1] < kept[0] / 2  # the weights in use are kept either way


@pytest.mark.parametrize("dims", [7, 40])
def test_with_narrow_layers_no_matrix_is_as_large_as_the_jacobians(dims: int, monkeypatch):
    sizes = []
    slogdet = torch.linalg.slogdet
    monkeypatch.setattr(torch.linalg, "slogdet", lambda matrix: sizes.append(matrix.shape) or slogdet(matrix))
    ExactLogDet()(network(f"dense-{dims}"), inputs(f"dense-{dims}"), DRAWS)
    assert sizes == [(3, 6, 6), (dims, dims)]


@pytest.mark.parametrize(
    ("dims", "growth", "activation"), [(2, 1, "lipswish"), (3, 1, "lipswish"), (5, 2, "lipswish"), (3, 2, "clipswish")]
)
def test_the_narrowest_layers(dims: int, growth: int, activation: str):
    g = dense_block([dims], depth=1, growth=growth, pieces=Pieces(activation)).double()
    x = torch.randn(4, dims, dtype=torch.float64, requires_grad=True)
    value = ExactLogDet()(g, x, DRAWS)[1].value
    close(value, exact(g, x), 1e-10)
    close(gradient(value.sum(), g, x), gradient(exact(g, x).sum(), g, x), 1e-9)


def test_a_common_matrix_counts_for_every_determinant():
    """With its sign: two negative determinants make a positive one."""
    flip = torch.diag(torch.tensor([-3.0, 0.0, 0.0]))
    both = torch.stack([flip, 2 * flip / 3 - 0.1 * torch.eye(3)])
    close(log_abs_det(both, flip), torch.log(torch.tensor([4.0, 2 * 1.1 * 0.9 * 0.9])), 1e-6)
    with pytest.raises(NonInvertibleError, match="sample 0"):
        log_abs_det(torch.zeros(2, 3, 3), flip)


def test_the_jacobian_does_not_depend_on_the_chunk():
    g, x = network("residual-conv"), inputs("residual-conv").detach()
    J = g.linearize(x)[1]
    close(jacobian(J, x, chunk=5), jacobian(J, x), 1e-14)
    close(jacobian(J, x), brute.jacobians(g, x), 1e-12)


def test_the_jacobian_carries_a_graph_to_the_parameters():
    g, x = network("dense-3"), inputs("dense-3")
    mine = gradient(jacobian(g.linearize(x)[1], x).sin().sum(), g, x)
    close(mine, gradient(autograd_jacobians(g, x).sin().sum(), g, x), 1e-10)


@pytest.mark.parametrize("dims", [1, 3, 5])
def test_a_negative_determinant_is_an_error(dims: int):
    g = MatrixNet(-2 * torch.eye(dims, dtype=torch.float64))
    with pytest.raises(NonInvertibleError, match=r"sample 0 \(4 of 4\).*certify"):
        ExactLogDet()(g, torch.zeros(4, dims, dtype=torch.float64), DRAWS)


@pytest.mark.parametrize("dims", [2, 4])
def test_a_negative_determinant_is_an_error_in_even_dimensions(dims: int):
    A = torch.zeros(dims, dims, dtype=torch.float64)
    A[0, 0] = -2
    with pytest.raises(NonInvertibleError), torch.no_grad():
        ExactLogDet()(MatrixNet(A), torch.zeros(2, dims, dtype=torch.float64), DRAWS)
    A[0, 0] = -0.5  # the control: det(I + A) = 1/2
    close(
        ExactLogDet()(MatrixNet(A), torch.zeros(1, dims, dtype=torch.float64), DRAWS)[1].value.exp(),
        torch.tensor([0.5]).double(),
        1e-14,
    )


def test_a_singular_block_is_an_error_that_names_the_sample():
    matrix = torch.zeros(3, 2, 2)
    matrix[1] = -torch.eye(2)
    with pytest.raises(NonInvertibleError, match=r"sample 1 \(1 of 3\)"):
        log_abs_det(matrix)


def test_a_network_that_escapes_its_normalisation_is_caught():
    g, x = network("residual-1"), torch.ones(2, 1, dtype=torch.float64)
    slope, last = float(jacobian(g.linearize(x)[1], x)[0].detach()), g.layers[-1]
    weight = last.normalized_weight().detach()
    ExactLogDet()(g, x, DRAWS)
    last.normalized_weight = lambda: weight * -2 / slope
    with pytest.raises(NonInvertibleError):
        ExactLogDet()(g, x, DRAWS)


def test_an_empty_batch_has_no_values():
    for name in ("dense-2", "dense-4"):
        gx, estimate = ExactLogDet()(network(name), inputs(name, 0), DRAWS)
        assert gx.shape == inputs(name, 0).shape
        assert estimate.value.shape == (0,)
