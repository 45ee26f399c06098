"""A new bijection needs one file (sinh_arcsinh.py) and one line of the table (bijection_registry.py)."""

import copy
import math

import pytest
import torch
from bijection_registry import CASES, Case, dense, jacobian, jitter
from sinh_arcsinh import SinhArcsinh
from test_all_bijections import check_log_det

from idensenet.bijections import Chain, Split
from idensenet.distributions import BijectionTransform
from idensenet.flow import Flow


def flow() -> Flow:
    """Put together by hand."""
    body = Chain([SinhArcsinh(2), dense((2,), blocks=3, norm=True), SinhArcsinh(2)]).double()
    body.initialize(torch.randn(64, 2, dtype=torch.float64))
    return Flow(jitter(body, 0.2), (2,)).double().eval()


def test_it_is_in_the_table_that_all_tests_run_over():
    assert any(isinstance(module, SinhArcsinh) for case in CASES.values() for module in case.make().modules())


def test_a_mistake_in_it_is_found_by_the_checks_of_the_table():
    class ForgotTail(SinhArcsinh):
        def push(self, x, call):
            y, log_det = super().push(x, call)
            return y, log_det - self.tail.sum()

    case = Case(lambda: ForgotTail(3), (3,))
    with pytest.raises(AssertionError):
        check_log_det(case.bijection(), case.inputs())


def test_a_flow_made_with_it_has_the_density_of_the_whole_jacobian():
    made, x = flow(), torch.randn(5, 2, dtype=torch.float64)
    z = made.body.encode(x)
    right = -0.5 * (z.square().sum(1) + 2 * math.log(2 * math.pi)) + torch.linalg.slogdet(jacobian(made.body.encode, x))[1]
    torch.testing.assert_close(made.log_prob(x), right, rtol=0, atol=1e-10)
    torch.testing.assert_close(made.inverse(made(x)[0])[0], x, rtol=0, atol=1e-9)
    drawn, log_prob = made.sample_and_log_prob(4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(made.log_prob(drawn), log_prob, rtol=0, atol=1e-8)


def test_a_flow_made_with_it_is_certified_trained_copied_and_a_transform():
    made, x = flow(), torch.randn(64, 2, dtype=torch.float64)
    assert [row.name for row in made.certify().blocks] == ["2.1", "2.2", "2.3"]
    assert (made.certify().lower, made.certify().upper) == (0, math.inf)
    optimizer = torch.optim.Adam(made.parameters(), 1e-2)
    before = made.log_prob(x).mean().item()
    for _ in range(10):
        optimizer.zero_grad()
        (-made.train().log_prob(x).mean()).backward()
        optimizer.step()
    made.eval()
    assert made.log_prob(x).mean().item() > before
    assert float(made.body.parts[0].tail.grad.abs().min()) > 0
    assert torch.equal(copy.deepcopy(made).log_prob(x), made.log_prob(x))
    transform = BijectionTransform(made.body, (2,))
    torch.testing.assert_close(transform.log_abs_det_jacobian(x, transform(x)), made.body(x)[1])


def test_it_stands_behind_a_split():
    case = Case(lambda: Split((5,), Chain([SinhArcsinh(3)])), (5,))
    check_log_det(case.bijection(), case.inputs())
