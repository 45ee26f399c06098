"""The bound on the error of an inverse, where the error is known and where it is not."""

import math

import pytest
import torch

import idensenet as idn
from idensenet.bijections import ActNorm, Chain, ResidualBlock
from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.lipschitz import LipschitzLinear, ResidualNet
from idensenet.solve import Picard


def shrinking(factors, tol, scales=None):
    """x -> (1 - factor) x for each factor, with a scale behind it; the inverse multiplies residuals by 1 / (1 - factor)."""
    linear = LipschitzLinear(2, 2, 0.98, blocks=len(factors)).double()
    with torch.no_grad():
        linear.weight.copy_(-torch.tensor(factors, dtype=torch.float64)[:, None, None] * torch.eye(2))
        linear.bias.zero_()
    norm = None
    if scales is not None:
        norm = ActNorm(2, len(factors)).double()
        norm.log_scale.data.copy_(torch.tensor(scales, dtype=torch.float64).log()[:, None].expand(-1, 2))
        norm.initialized.fill_(True)
    return ResidualBlock(ResidualNet([linear]), solver=Picard(tol), norm=norm)


def test_where_residuals_are_amplified_in_full_the_bound_is_the_error():
    flow = Flow(Chain([shrinking([0.9], 1e-9), Chain([shrinking([0.8], 1e-2)])]), (2,)).double().eval()
    z = torch.randn(6, 2).double()
    with torch.no_grad():
        error = (flow.inverse(z)[0] - z / (0.1 * 0.2)).norm(dim=1)
    bound = flow.inverse_error(z)
    assert bool((bound >= error - 1e-9).all())
    torch.testing.assert_close(bound, error, rtol=1e-3, atol=1e-6)
    assert float(error.max()) > 0.05  # ten times what the last block alone would be off by


@pytest.mark.parametrize("scales", [None, (0.5, 2.0, 0.7)])
def test_in_a_stack_every_block_adds_what_it_was_off_by(scales):
    """All residuals are amplified in full and point the same way, so the bound is the error again."""
    factors = (0.9, 0.5, 0.8)
    flow = Flow(shrinking(factors, 1e-2, scales), (2,)).double().eval()
    z = torch.randn(6, 2).double()
    way = math.prod((1 - f) * s for f, s in zip(factors, scales or (1, 1, 1), strict=True))
    with torch.no_grad():
        error = (flow.inverse(z)[0] - z / way).norm(dim=1)
    bound = flow.inverse_error(z)
    assert bool((bound >= error - 1e-9).all())
    torch.testing.assert_close(bound, error, rtol=1e-3, atol=1e-6)
    assert float(error.max()) > 0.05


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_it_holds_for_sloppy_solvers_in_every_norm(norm):
    flow = idn.build("toy-idensenet", shape=(3,), blocks=(3,), norm=norm, actnorm=True, activation="clipswish").double().eval()
    flow.initialize(torch.randn(50, 3).double())
    z = torch.randn(40, 3).double()
    with torch.no_grad():
        right = flow.inverse(z)[0]
        for stack in flow.stacks():
            stack.solver = Picard(1e-2)
        error = torch.linalg.vector_norm(flow.inverse(z)[0] - right, norm, 1)
    assert float(error.max()) > 1e-4
    assert bool((flow.inverse_error(z) >= error - 1e-9).all())


def test_blocks_inside_of_other_parts_are_refused():
    flow = idn.build("digits-idensenet", factor_out=True)
    flow.initialize(torch.randint(0, 17, (8, 1, 8, 8)).to(torch.uint8))
    with pytest.raises(OptionError, match="chains of blocks"):
        flow.inverse_error(torch.zeros(1, *flow.latent_shape))
    assert float(Flow(Chain([]), (2,)).inverse_error(torch.ones(3, 2)).sum()) == 0  # nothing is solved


def test_where_a_block_may_not_contract_the_bound_is_infinite():
    linear = LipschitzLinear(2, 2, 0.98)
    block = ResidualBlock(ResidualNet([linear]))
    with torch.no_grad():
        linear.weight.copy_(torch.eye(2)[None])
    flow = Flow(Chain([block, idn.build("toy-idensenet", block="coupling", blocks=(1,)).body]), (2,)).eval()
    bound = flow.inverse_error(torch.randn(3, 2))
    assert bool(torch.isinf(bound).all())


def test_blocks_of_several_norms_have_no_certificate():
    blocks = [ResidualBlock(ResidualNet([LipschitzLinear(2, 2, 0.9, norm)])) for norm in (1.0, 2.0)]
    with pytest.raises(OptionError, match=r"1.0, 2.0.*one norm"):
        Flow(Chain(blocks), (2,)).certify()
