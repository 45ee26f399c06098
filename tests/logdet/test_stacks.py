"""Every estimator, of two functions of the Jacobian, for stacks of one and of several blocks, against slogdet."""

import copy

import new_estimator
import pytest
import torch
from oracles import (
    MONOTONE,
    SERIES,
    GivenDraws,
    actnorm,
    basis,
    close,
    exact_stack,
    gradient,
    inputs,
    network,
    run_stack,
    uniforms_for,
)

import idensenet as idn
from flows import points
from idensenet.draws import GeneratorDraws, KeyedDraws
from idensenet.logdet import (
    LOG_ONE_PLUS,
    AdaptiveLogDet,
    ExactLogDet,
    Geometric,
    KrylovLogDet,
    Poisson,
    RouletteLogDet,
    SeriesLogDet,
)

ESTIMATORS = {  # with probes for a basis of D dimensions; the law of the number of further terms, if there is one
    "exact": (lambda D: ExactLogDet(), None),
    "series": (lambda D: SeriesLogDet(200, D), None),
    "roulette, geometric": (lambda D: RouletteLogDet(Geometric(0.5), 2, D), Geometric(0.5)),
    "roulette, poisson": (lambda D: RouletteLogDet(Poisson(2.0), 1, D), Poisson(2.0)),
    "adaptive": (lambda D: AdaptiveLogDet(1e-2, 1, 20, Geometric(0.5), D), Geometric(0.5)),
    "krylov": (lambda D: KrylovLogDet(1e-13, probes=D), None),
    "krylov, two steps": (lambda D: KrylovLogDet(1e-13, 2, Geometric(0.5), D), Geometric(0.5)),
    "a new estimator": (lambda D: new_estimator.UnitVectorLogDet(), None),
}
estimators = pytest.mark.parametrize("estimator", ESTIMATORS)
functions = pytest.mark.parametrize("f", SERIES.values(), ids=SERIES)
STACKS = [("dense-2", 1), ("dense-2", 3), ("residual-3", 3), ("dense-conv", 2)]
CASES = [(each, *stack) for each in ESTIMATORS for stack in STACKS if "conv" not in stack[0] or ESTIMATORS[each][1] is None]
CASES += [("roulette, geometric", "dense-conv", 1)]  # a basis of probes and every length make a large batch


def expectation(name, g, x, f, save, norm=None):
    """What comes out and E of the estimate for one sample: a basis of probes, and every length once, as a batch.

    All blocks get the same length: the sum over blocks is linear in each of them.
    """
    make, law = ESTIMATORS[name]
    estimator = make(x[0].numel())
    chances = torch.ones(1, dtype=torch.float64)
    uniforms = torch.full((x[0].numel(), 1), 0.5, dtype=torch.float64)
    if law is not None:
        survival = law.survival(torch.arange(law.limit + 2))
        chances = survival[:-1] - survival[1:]
        uniforms = uniforms_for(law.survival, torch.arange(law.limit + 1)).expand(x[0].numel(), -1)
    many = x.expand(len(chances), *x.shape[1:])
    probes = BasisDraws(basis(many), uniforms)
    y, estimate = run_stack(estimator, g, many, probes, f, save, norm)
    return y[0], (chances * estimate.value).sum()


class BasisDraws(GivenDraws):
    """The same probes for every block."""

    def rademacher(self, like, copies=1):
        return self.probe[:copies]


@pytest.mark.parametrize(("estimator", "name", "blocks"), CASES)
@functions
def test_value_and_gradient_are_those_of_slogdet(estimator, f, name, blocks):
    g, x = network(name, blocks), inputs(name, 1)
    norm = actnorm(g, x.shape[1]) if blocks == 3 else None
    y, value = expectation(estimator, g, x, f, save=False, norm=norm)
    right_y, right = exact_stack(g, x, f, norm)
    parameters = [x, *g.parameters(), *([] if norm is None else norm.parameters())]
    close(y, right_y[0], 1e-11)
    if "two steps" not in estimator or name == "dense-2":  # its value has the error of the space
        close(value, right[0], 1e-7)
    weight = torch.randn_like(y)
    mine = torch.autograd.grad(value + (weight * y).sum(), parameters)
    theirs = torch.autograd.grad(right[0] + (weight * right_y[0]).sum(), parameters)
    for a, b in zip(mine, theirs, strict=True):
        close(a, b, 1e-6)
    assert all(float(part.abs().max()) > 1e-6 for part in theirs)  # nothing is right because it is zero


@estimators
def test_the_same_check_tells_the_functions_apart(estimator):
    g, x = network("dense-2", 3), inputs("dense-2", 1)
    _, value = expectation(estimator, g, x, MONOTONE, save=False)
    _, right = exact_stack(g, x)
    assert (value - right[0]).abs() > 1e-2
    assert (gradient(value, g, x) - gradient(right[0], g, x)).abs().max() > 1e-3


@estimators
@pytest.mark.parametrize(
    ("name", "blocks", "f"), [("dense-2", 3, MONOTONE), ("residual-3", 1, LOG_ONE_PLUS), ("dense-conv", 2, LOG_ONE_PLUS)]
)
def test_saving_memory_changes_no_number(estimator, name, blocks, f):
    g, x = network(name, blocks), inputs(name)
    weight = torch.randn(3, dtype=torch.float64)
    found = []
    for save in (False, True):
        method = ESTIMATORS[estimator][0](2)
        y, estimate = run_stack(method, g, x, KeyedDraws.of(x), f, save)
        loss = (weight * estimate.value).sum() + y.sin().sum()
        grads = gradient(loss, g, x, retain_graph=True)
        assert torch.equal(grads, gradient(loss, g, x))  # a second backward
        found.append((y.detach(), estimate.value.detach(), grads))
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-11)


@estimators
def test_blocks_have_draws_of_their_own(estimator):
    """Two blocks with the same weights at the same place would otherwise have the same error."""
    g, x = network("dense-3", 2), inputs("dense-3", 200).detach()
    with torch.no_grad():
        for p in g.parameters():
            p[1] = p[0]
    found = []

    class Kept(type(ESTIMATORS[estimator][0](1))):
        def total(self, values, f):
            found.extend(values)
            return super().total(values, f)

    method = ESTIMATORS[estimator][0](1)
    method.__class__ = Kept
    with torch.no_grad():
        run_stack(method, g, x, KeyedDraws.of(x))
    if "probe" in method.__dict__:
        errors = torch.stack([each[0] - each[0].mean() for each in found])
        assert abs(float(torch.corrcoef(errors)[0, 1])) < 0.9
        assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("estimator", ["series", "roulette, geometric", "adaptive", "krylov"])
def test_the_standard_error_of_a_stack_covers_the_truth(estimator):
    g, x = network("dense-3", 3), inputs("dense-3", 5)
    _, right = exact_stack(g, x)
    with torch.no_grad():
        draws = GeneratorDraws(torch.Generator().manual_seed(1))
        estimate = run_stack(ESTIMATORS[estimator][0](1000), g, x, draws)[1]
    assert ((estimate.value - right).abs() < 4 * estimate.standard_error).all()
    assert (estimate.standard_error < 0.2).all()
    assert ((estimate.value - right).abs() > 0).all()


def test_a_new_estimator_is_used_by_name():
    torch.manual_seed(0)
    options = {"blocks": (3,), "depth": 1, "growth": 4}
    flow = idn.build("toy-idensenet", **options, logdet={"method": new_estimator.NAME, "eval_method": "exact"}).double()
    x = points(6).double()
    other = copy.deepcopy(flow).eval()
    assert isinstance(flow.train().stacks()[0].log_det, new_estimator.UnitVectorLogDet)
    close(flow.log_prob(x), other.log_prob(x), 1e-9)
    for each in (flow, other):
        each.log_prob(x).sum().backward()
    for p, q in zip(flow.parameters(), other.parameters(), strict=True):
        close(p.grad, q.grad, 1e-8)
