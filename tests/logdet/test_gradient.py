"""What holds for every stochastic estimator: true values, right gradients, and little memory."""

import pytest
import torch
from oracles import (
    MatrixNet,
    TanhNet,
    close,
    gradient,
    inputs,
    matrix,
    network,
    run,
    run_stack,
    saved_bytes,
    series_log_det,
)

from idensenet.draws import KeyedDraws
from idensenet.logdet import LOG_ONE_PLUS, AdaptiveLogDet, Geometric, KrylovLogDet, RouletteLogDet, SeriesLogDet
from idensenet.logdet.gradient import attach, dot, neumann
from idensenet.logdet.series import weighted_series

ESTIMATORS = {
    "series": SeriesLogDet(5),
    "series, gaussian, 3 probes": SeriesLogDet(4, probes=3, probe="gaussian"),
    "roulette": RouletteLogDet(),
    "roulette, geometric, 2 probes": RouletteLogDet(Geometric(0.4), exact_terms=1, probes=2),
    "adaptive": AdaptiveLogDet(1e-3),
    "adaptive, 2 probes": AdaptiveLogDet(1e-2, max_terms=4, probes=2),
    "krylov": KrylovLogDet(1e-4),
}
SAME_SPACE = [name for name in ESTIMATORS if name != "krylov"]  # without gradients that one works in the space of J, not of J'
estimators = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
networks = pytest.mark.parametrize(("name", "blocks"), [("dense-3", 1), ("residual-3", 3), ("dense-conv", 2)])
modes = pytest.mark.parametrize("save", [False, True], ids=["kept", "saved"])


@pytest.mark.parametrize("estimator", [ESTIMATORS[each] for each in SAME_SPACE], ids=SAME_SPACE)
@networks
@modes
def test_the_value_in_training_is_the_estimate(estimator, name: str, blocks: int, save: bool):
    g, x = network(name, blocks), inputs(name)
    gx, trained = run_stack(estimator, g, x, KeyedDraws.of(x), save=save)
    assert trained.value.requires_grad
    with torch.no_grad():
        gx_too, plain = run_stack(estimator, g, x, KeyedDraws.of(x), save=save)
    assert not plain.value.requires_grad
    assert torch.equal(gx, gx_too)
    assert torch.equal(trained.value, plain.value)


@networks
def test_the_value_is_not_that_of_the_surrogate(name: str, blocks: int):
    g, x = network(name, blocks).prepare()[blocks - 1], inputs(name)
    probe = torch.randn(1, *x.shape, dtype=torch.float64)
    _, value = series_log_det(g, x, probe, torch.ones(6, 1))
    with torch.no_grad():
        _, J = g.linearize(x)
        product = J.matvec(probe)
        right, u = weighted_series(torch.ones(6, 1), LOG_ONE_PLUS, J, probe, product)
        torch.testing.assert_close(value, right[0], rtol=1e-12, atol=1e-14)
        assert (dot(u, product)[0] - value).abs().max() > 1e-3


@estimators
@networks
@modes
def test_the_gradient_of_a_weighted_loss_is_the_weighted_sum_of_gradients(estimator, name: str, blocks: int, save: bool):
    g, x = network(name, blocks), inputs(name, 4)
    weight = torch.randn(4, dtype=torch.float64)
    gx, estimate = run_stack(estimator, g, x, KeyedDraws.of(x), save=save)
    mine = gradient((weight * estimate.value).sum() + gx.sin().sum(), g, x)
    right = torch.zeros_like(mine)
    for i in range(4):
        alone = x[i : i + 1]
        gx, estimate = run_stack(estimator, g, alone, KeyedDraws.of(alone))
        right += gradient((weight[i] * estimate.value).sum() + gx.sin().sum(), g, x)
    close(mine, right, 1e-11)
    gx, estimate = run_stack(estimator, g, x, KeyedDraws.of(x), save=save)
    first_for_all = gradient((weight[0] * estimate.value).sum() + gx.sin().sum(), g, x)
    assert (first_for_all - right).abs().max() > 1e-4  # the control


@estimators
@networks
@modes
def test_a_second_backward_equals_the_first(estimator, name: str, blocks: int, save: bool):
    g, x = network(name, blocks), inputs(name)
    gx, estimate = run_stack(estimator, g, x, KeyedDraws.of(x), save=save)
    loss = (estimate.value * torch.arange(3)).sum() + gx.square().sum()
    first = gradient(loss, g, x, retain_graph=True)
    assert torch.equal(first, gradient(loss, g, x, retain_graph=True))
    assert torch.equal(first, gradient(loss, g, x))
    assert first.abs().max() > 1e-3


@estimators
@modes
def test_a_graph_of_the_gradient_is_refused(estimator, save: bool):
    g, x = network("dense-3"), inputs("dense-3")
    _, estimate = run_stack(estimator, g, x, KeyedDraws.of(x), save=save)
    with pytest.raises(RuntimeError, match=r"create_graph=True.*ExactLogDet"):
        torch.autograd.grad(estimate.value.sum(), x, create_graph=True)


@estimators
@networks
def test_recomputation_changes_no_number(estimator, name: str, blocks: int):
    g, x = network(name, blocks), inputs(name)
    weight = torch.randn(3, dtype=torch.float64)
    values, outputs, gradients = [], [], []
    for save in (False, True):
        gx, estimate = run_stack(estimator, g, x, KeyedDraws.of(x), save=save)
        values.append(estimate.value)
        outputs.append(gx)
        gradients.append(gradient((weight * estimate.value).sum() + gx.sin().sum(), g, x))
    assert torch.equal(values[0], values[1])
    assert torch.equal(outputs[0], outputs[1])
    close(gradients[0], gradients[1], 1e-12)


@pytest.mark.parametrize(("name", "blocks"), [("dense-3", 3), ("dense-conv", 1), ("residual-conv", 2)])
@pytest.mark.parametrize(
    "estimator", [SeriesLogDet(8), RouletteLogDet(), AdaptiveLogDet()], ids=["series", "roulette", "adaptive"]
)
def test_saving_keeps_the_input_the_signs_of_the_probe_and_u(estimator, name: str, blocks: int):
    g, x = network(name, blocks), inputs(name, 64)
    one, prepared = x.numel() * x.element_size(), g.prepare()
    weights = [tensor for branch in prepared.branches for tensor in branch.tensors()]

    def run_once(save):
        return run_stack(estimator, g, x, KeyedDraws.of(x), save=save, prepared=prepared)

    kept = {save: saved_bytes(lambda save=save: run_once(save), [*g.parameters(), *weights]) for save in (False, True)}
    assert kept[True] <= blocks * (2 * one + x.numel() + 1024)  # a byte for each sign
    assert kept[False] > blocks * 6 * one  # the control: there is something to save


@modes
def test_parts_without_a_gradient_get_none(save: bool):
    g, x = network("dense-3"), inputs("dense-3").detach()
    for p in g.parameters():
        p.requires_grad_(False)
    _, estimate = run(SeriesLogDet(), g, x, KeyedDraws.of(x), save=save)
    assert not estimate.value.requires_grad
    g.layers[0].linear.weight.requires_grad_()
    _, estimate = run(SeriesLogDet(), g, x, KeyedDraws.of(x), save=save)
    estimate.value.sum().backward()
    assert [name for name, p in g.named_parameters() if p.grad is not None] == ["layers.0.linear.weight"]
    assert g.layers[0].linear.weight.grad.abs().max() > 1e-3


@modes
def test_a_branch_need_not_be_a_module(save: bool):
    A, x = matrix(3, 0.8), inputs("dense-3")
    probe = torch.randn(2, 3, 3, dtype=torch.float64)
    _, value = series_log_det(TanhNet(A), x, probe, torch.ones(5, 1), save=save)
    (mine,) = torch.autograd.grad((value * torch.arange(3)).sum(), x)
    _, value = series_log_det(TanhNet(A), x, probe, torch.ones(5, 1))
    (right,) = torch.autograd.grad((value * torch.arange(3)).sum(), x)
    close(mine, right, 1e-14)
    assert right.abs().max() > 1e-3


def test_a_value_that_depends_on_nothing_has_no_graph():
    x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    gx, value = neumann(
        MatrixNet(matrix(3, 0.5)),
        x,
        torch.randn(1, 2, 3, dtype=torch.float64),
        lambda J, v, p: weighted_series(torch.ones(2, 1), LOG_ONE_PLUS, J, v, p),
    )
    assert gx.requires_grad
    assert not value.requires_grad  # J is constant


def test_attaching_has_one_value_and_one_gradient():
    value, a = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64, requires_grad=True)
    attached = attach(value, a.square())
    assert torch.equal(attached, value)
    (found,) = torch.autograd.grad((attached * torch.arange(4)).sum(), a)
    close(found, 2 * a.detach() * torch.arange(4), 1e-15)
