"""What holds for every bijection, against brute force in float64."""

import pytest
import torch
from bijection_registry import CASES, Case, dense, forward_reference, inverse_reference

from brute import jacobians, log_abs_det
from idensenet.bijections import ActNorm, Affine, Chain, Invert, Logit, ResidualBlock
from idensenet.lipschitz import OperatorNorms

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
    found = torch.autograd.grad(loss, targets, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(targets, found, strict=True)]


def check_gradients(bijection, x):
    def same(found, wanted):
        for a, b in zip(found, wanted, strict=True):
            close(a, b, 1e-8)

    x = x.clone().requires_grad_()
    y = bijection.encode(x).detach().requires_grad_()
    if isinstance(bijection, Invert):  # of which brute force can differentiate the inner one only
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
    matrices = jacobians(bijection.encode, x)
    upper = torch.linalg.matrix_norm(matrices, norm).max()
    return float(1 / torch.linalg.matrix_norm(torch.linalg.inv(matrices), norm).max()), float(upper)


@every
def test_bi_lipschitz_constants_bound_what_is_measured(case: Case):
    bijection = case.bijection()
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


class ForgotPixels(ActNorm):
    def _log_det(self, x):
        return self.log_scale.sum().expand(len(x))


class ForgotSign(Logit):
    def inverse(self, y, draws=None):
        x, log_det = super().inverse(y)
        return x, -log_det


class ForgotGradient(ResidualBlock):
    def forward(self, x, draws=None):
        y, log_det = super().forward(x, draws)
        return y, log_det.detach()


class ForgotImplicitGradient(ResidualBlock):
    def decode(self, y, context=None):
        return self.solve(y).value + (y - y.detach())


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

    kinds = {value for name in package.__all__ if isinstance(value := getattr(package, name), type)} - {package.Bijection}
    seen = {type(m) for case in CASES.values() for m in case.make().modules()}
    assert kinds <= seen


def test_the_log_determinants_of_a_chain_add_up():
    parts = [CASES["dense block, vectors"].bijection(), CASES["ActNorm, vectors"].bijection()]
    x = torch.randn(3, 5, dtype=torch.float64)
    y, first = parts[0](x)
    close(Chain(parts)(x)[1], first + parts[1](y)[1], 1e-14)
    assert len(Chain(parts)) == 2
