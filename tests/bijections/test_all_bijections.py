"""What holds for every bijection, against brute force in float64."""

import inspect
from dataclasses import replace

import pytest
import torch
from bijection_registry import (
    CASES,
    Case,
    conditional,
    dense,
    forward_reference,
    inverse_reference,
    jacobian,
    log_abs_det,
    monotone_reference,
)

from idensenet.bijections import (
    ActNorm,
    Affine,
    Bijection,
    Chain,
    ConditionalAffine,
    Invert,
    Logit,
    MonotoneBlock,
    ResidualBlock,
    Split,
    monotone,
)
from idensenet.lipschitz import OperatorNorms, refresh_norms
from idensenet.logdet import ExactLogDet

every = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def close(a, b, tolerance):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def check_log_det(bijection, x):
    """Value of the log-determinant, both ways, against the Jacobian by autograd."""
    y, log_det = bijection(x)
    assert log_det.shape == (len(x),)
    close(log_det, log_abs_det(bijection.encode, x), 1e-8)
    _, inverse_log_det = bijection.inverse(y.detach())
    assert inverse_log_det.shape == (len(x),)
    close(inverse_log_det, log_abs_det(bijection.decode, y.detach()), 1e-8)


def gradients(bijection, at, value, log_det):
    """Of a loss that weighs samples and numbers differently, with respect to the input and every parameter."""
    torch.manual_seed(3)
    weights = [torch.randn(t.shape, dtype=t.dtype) for t in (value, log_det)]  # whatever the strides
    loss = (weights[0] * value).sum() + (weights[1] * log_det).sum()
    targets = [at, *bijection.parameters()]
    found, again = (torch.autograd.grad(loss, targets, allow_unused=True, retain_graph=True) for _ in range(2))
    for a, b in zip(found, again, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)  # a second backward pass
    return [torch.zeros_like(t) if g is None else g for t, g in zip(targets, found, strict=True)]


def check_gradients(bijection, x):
    def same(found, wanted):
        for a, b in zip(found, wanted, strict=True):
            close(a, b, 1e-8)

    x = x.clone().requires_grad_()
    y = bijection.encode(x).detach().requires_grad_()
    if any(isinstance(part, MonotoneBlock) for part in bijection.modules()):  # whose w has first derivatives only
        there, back = monotone_reference(bijection, x), monotone_reference(bijection, y, back=True)
    elif isinstance(bijection, Invert):  # of which brute force can differentiate the inner one only
        there, back = inverse_reference(bijection.inner.encode, x, y), forward_reference(bijection.inner.encode, y)
    else:
        there, back = forward_reference(bijection.encode, x), inverse_reference(bijection.encode, y, x)
    same(gradients(bijection, x, *bijection(x)), gradients(bijection, x, *there))
    same(gradients(bijection, y, *bijection.inverse(y)), gradients(bijection, y, *back))


@every
def test_log_det_is_that_of_the_jacobian_both_ways(case: Case):
    check_log_det(case.bijection(), case.inputs())


@every
def test_gradients_of_value_and_log_det_are_those_of_brute_force_both_ways(case: Case):
    check_gradients(case.bijection(), case.inputs())


@every
def test_round_trips_return_to_the_start(case: Case):
    bijection, x = case.bijection(), case.inputs(5)
    with torch.no_grad():
        y, log_det = bijection(x)
        back, inverse_log_det = bijection.inverse(y)
        close(back, x, 1e-10)
        close(inverse_log_det, -log_det, 1e-9)
        z = y + 0.1 * torch.rand_like(y)
        close(bijection.encode(bijection.decode(z)), z, 1e-10)


@every
def test_encode_and_decode_are_the_values_of_forward_and_inverse(case: Case):
    bijection, x = case.bijection(), case.inputs()
    y = bijection.encode(x)
    torch.testing.assert_close(y, bijection(x)[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(bijection.decode(y), bijection.inverse(y)[0], rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize("batch", [0, 1])
def test_log_det_has_one_number_per_sample_for_tiny_batches(case: Case, batch):
    bijection, x = case.bijection(), case.inputs(batch)
    y, log_det = bijection(x)
    assert len(y) == batch
    assert log_det.shape == (batch,)
    back, log_det = bijection.inverse(y)
    assert back.shape == x.shape
    assert log_det.shape == (batch,)


@every
def test_a_sample_does_not_depend_on_its_batch(case: Case):
    bijection, x = case.bijection(), case.inputs(4)
    y, log_det = bijection(x)
    alone = [bijection(x[i : i + 1]) for i in range(4)]
    close(y, torch.cat([a[0] for a in alone]), 1e-11)
    close(log_det, torch.cat([a[1] for a in alone]), 1e-11)


@every
def test_inputs_that_are_not_contiguous_are_taken(case: Case):
    bijection, x = case.bijection(), case.inputs(4)
    y = bijection.encode(x).detach()
    strided = x.flatten(1).T.contiguous().T.unflatten(1, case.shape) if x.ndim == 2 else x.mT.contiguous().mT
    assert not strided.is_contiguous() or x.shape[-1] == 1
    close(bijection(strided)[0], y, 1e-12)
    strided = y.T.contiguous().T if y.ndim == 2 else y.mT.contiguous().mT
    close(bijection.inverse(strided)[0], x, 1e-9)


def stretches(bijection, x, norm):
    """The largest and the smallest factor by which the Jacobian stretches a vector, over the samples."""
    matrices = jacobian(bijection.encode, x, graph=False)
    upper = torch.linalg.matrix_norm(matrices, norm).max()
    return float(1 / torch.linalg.matrix_norm(torch.linalg.inv(matrices), norm).max()), float(upper)


@every
def test_bi_lipschitz_constants_bound_what_is_measured(case: Case):
    bijection = case.bijection()
    refresh_norms(bijection)
    lower, upper = bijection.bi_lipschitz(OperatorNorms(case.norm))
    smallest, largest = stretches(bijection, case.inputs(8), case.norm)
    assert 0 <= lower <= smallest * (1 + 1e-9)
    assert largest <= upper * (1 + 1e-9)
    if case.tight:
        assert lower == pytest.approx(smallest, rel=1e-6)
        assert upper == pytest.approx(largest, rel=1e-6)
    with torch.no_grad():  # finite distances, near and far
        x, other = case.inputs(64), case.inputs(64).flip(0)
        for far in (1.0, 0.01):
            apart = far * (other - x)
            moved = (bijection.encode(x + apart) - bijection.encode(x)).flatten(1)
            ratio = torch.linalg.vector_norm(moved, case.norm, 1) / torch.linalg.vector_norm(apart.flatten(1), case.norm, 1)
            assert lower * (1 - 1e-9) <= float(ratio.min())
            assert float(ratio.max()) <= upper * (1 + 1e-9)


@every
def test_state_dict_carries_the_whole_bijection(case: Case):
    bijection, x = case.bijection(), case.inputs()
    torch.manual_seed(9)
    other = case.make().double().eval()
    other.load_state_dict(bijection.state_dict())
    if not isinstance(bijection, Logit):  # which has no state
        y, log_det = other(x)
        torch.testing.assert_close(y, bijection(x)[0], rtol=1e-12, atol=1e-12)
        assert torch.equal(log_det, bijection(x)[1])


@every
def test_a_context_that_nobody_uses_changes_no_bit(case: Case):
    """Every bijection takes one; the conditional ones of the table are at a context of their own."""
    bijection, x = case.bijection(), case.inputs()
    context = torch.randn(3, 2, dtype=torch.float64)
    with torch.no_grad():
        (y, log_det), (found, its_log_det) = bijection(x), bijection(x, context=context)
        assert torch.equal(found, y)
        assert torch.equal(its_log_det, log_det)
        assert torch.equal(bijection.encode(x, context), bijection.encode(x))
        (back, log_det), (found, its_log_det) = bijection.inverse(y), bijection.inverse(y, context=context)
        assert torch.equal(found, back)
        assert torch.equal(its_log_det, log_det)
        assert torch.equal(bijection.decode(y, context), bijection.decode(y))
        assert torch.equal(bijection.initialize(x, context), bijection.initialize(x))


BEHIND = {
    "blocks": lambda: conditional(3, 2, norm=True),
    "affine": lambda: ConditionalAffine(3, 2, 5),
    "chain": lambda: Chain([ActNorm(3), ConditionalAffine(3, 2, 5), conditional(3)]),
    "inverse": lambda: Invert(ConditionalAffine(3, 2, 5)),
}


@pytest.mark.parametrize("make", BEHIND.values(), ids=BEHIND)
def test_a_split_hands_the_context_to_what_is_behind_it(make):
    rest = make().double().eval()
    rest.initialize(torch.randn(32, 3, dtype=torch.float64), torch.randn(32, 2, dtype=torch.float64))
    with torch.no_grad():
        for p in rest.parameters():
            p.add_(0.3 * torch.randn_like(p))
    split, x, c = Split((5,), rest), torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 2, dtype=torch.float64)
    y, log_det = split(x, context=c)
    close(y, torch.cat([x[:, :2], rest.encode(x[:, 2:], c)], 1), 1e-12)
    close(log_det, rest(x[:, 2:], context=c)[1], 1e-12)
    close(split.encode(x, c), y, 1e-12)
    fresh = Split((5,), rest)  # which has to find out the shape behind it first
    back, inverse_log_det = fresh.inverse(y, context=c)
    close(back, x, 1e-9)
    close(inverse_log_det, -log_det, 1e-8)
    close(fresh.decode(y, c), x, 1e-9)
    close(split.initialize(x, c), y, 1e-12)
    assert float((split.encode(x, c + 1) - y).detach().abs().max()) > 0.01  # the context matters


class ForgotPixels(ActNorm):
    def log_det(self, x, log_scale):
        return log_scale.sum().expand(len(x))


class ForgotSign(Logit):
    def pull(self, y, call):
        x, log_det = super().pull(y, call)
        return x, -log_det


class ForgotGradient(ResidualBlock):
    def push(self, x, call):
        y, log_det = super().push(x, call)
        return y, log_det.detach()


class ForgotImplicitGradient(ResidualBlock):
    def solve(self, y, call, raises=True):
        found = super().solve(y, call, raises)
        return [replace(found[0], value=found[0].value.detach() + (y - y.detach())), *found[1:]]


class ForgotNorm(ResidualBlock):
    def push(self, x, call):
        y, log_det = super().push(x, call)
        return y, log_det - self.norm.log_det(x, self.norm.log_scale)


class ForgotLastBlock(ResidualBlock):
    """Its log-determinant is of all blocks but one."""

    def push(self, x, call):
        last, self.eval_log_det = self.eval_log_det, AllButOne()
        y, log_det = super().push(x, call)
        self.eval_log_det = last
        return y, log_det


class AllButOne(ExactLogDet):
    def total(self, found, f):
        return super().total(found[:-1], f)


class ForgotTurn(MonotoneBlock):
    """Returns the log-determinant of w + g(w) instead of its own."""

    series = ResidualBlock.series


class ForgotThatWMoves(MonotoneBlock):
    """Its log-determinant has no gradient through w."""

    def forward_block(self, g, x, method, draws):
        y, _ = super().forward_block(g, x, method, draws)
        w = ((x + y) / 2**0.5).detach()
        return y, None if method is None else method.measure(g, w, draws, self.series, self.save)[1]


class ForgotToNegate(MonotoneBlock):
    """Its inverse is the forward map."""

    def inverse_block(self, g, y):
        return super().inverse_block(monotone.negative(g), y)


class ForgotScale(Affine):
    def bi_lipschitz(self, norms):
        return 1.0, 1.0


@pytest.mark.parametrize(
    ("make", "shape", "unit", "check"),
    [
        (lambda: ForgotPixels(2), (2, 2, 2), False, check_log_det),
        (lambda: ForgotSign(), (3,), True, check_log_det),
        (lambda: ForgotGradient(dense((3,)).g), (3,), False, check_gradients),
        (lambda: ForgotImplicitGradient(dense((3,)).g), (3,), False, check_gradients),
        (lambda: ForgotGradient(dense((3,), blocks=3).g), (3,), False, check_gradients),
        (lambda: ForgotImplicitGradient(dense((3,), blocks=3).g), (3,), False, check_gradients),
        (lambda: ForgotNorm(dense((3,), blocks=3).g, norm=ActNorm(3, 3)), (3,), False, check_log_det),
        (lambda: ForgotLastBlock(dense((3,), blocks=3).g), (3,), False, check_log_det),
        (lambda: ForgotTurn(dense((3,), blocks=2).g), (3,), False, check_log_det),
        (lambda: ForgotThatWMoves(dense((3,), blocks=2).g), (3,), False, check_gradients),
        (lambda: ForgotToNegate(dense((3,), blocks=2).g), (3,), False, check_log_det),
    ],
)
def test_a_wrong_bijection_is_found_out(make, shape, unit, check):
    case = Case(make, shape, unit)
    bijection = case.bijection()
    with pytest.raises(AssertionError):
        check(bijection, case.inputs())


def test_wrong_bi_lipschitz_constants_are_found_out():
    case = Case(lambda: ForgotScale(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])), (3,))
    with pytest.raises(AssertionError):
        test_bi_lipschitz_constants_bound_what_is_measured(case)


def test_every_kind_of_bijection_is_in_the_registry():
    import idensenet.bijections as package

    found = [value for name in package.__all__ if isinstance(value := getattr(package, name), type)]
    kinds = {kind for kind in found if issubclass(kind, Bijection) and not inspect.isabstract(kind)}
    assert len(kinds) > 10
    seen = {type(m) for case in CASES.values() for m in case.make().modules()}
    assert kinds <= seen


def test_the_log_determinants_of_a_chain_add_up():
    parts = [CASES["dense block, vectors"].bijection(), CASES["ActNorm, vectors"].bijection()]
    x = torch.randn(3, 5, dtype=torch.float64)
    y, first = parts[0](x)
    close(Chain(parts)(x)[1], first + parts[1](y)[1], 1e-14)
    assert len(Chain(parts)) == 2
