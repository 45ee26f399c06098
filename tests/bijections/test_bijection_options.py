"""Shapes, sizes and options of every bijection, drawn by hypothesis."""

import math

import pytest
import torch
from bijection_registry import inputs, ready
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brute import log_abs_det
from idensenet.bijections import (
    ActNorm,
    Affine,
    Chain,
    Coupling,
    Flatten,
    Invert,
    InvertibleConv1x1,
    Logit,
    ResidualBlock,
    Split,
    Squeeze,
    channel_mask,
    checkerboard_mask,
    coupling_net,
)
from idensenet.lipschitz import ACTIVATIONS, Pieces, dense_block, residual_net
from idensenet.solve import Anderson, Newton, Picard

vectors = st.tuples(st.integers(1, 6))
images = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
shapes = st.one_of(vectors, images)


def prepared(norm):
    """With scales of its own already, as some places are reached by no data."""
    torch.nn.init.normal_(norm.log_scale, std=0.3)
    norm.initialized.fill_(True)
    return norm


@st.composite
def residual_blocks(draw):
    shape = draw(shapes)
    pieces = Pieces(
        draw(st.sampled_from(sorted(ACTIVATIONS))),
        coeff=draw(st.floats(0.1, 0.97)),
        lip=draw(st.floats(0.5, 0.98)),
        norm=draw(st.sampled_from([1.0, 2.0, math.inf])),
        learnable=draw(st.booleans()),
    )
    width, blocks = 2 * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        first = draw(st.one_of(st.none(), st.integers(1, 4)))
        kernel = draw(st.sampled_from([1, 3]))
        g = dense_block(shape, draw(st.integers(1, 3)), width, pieces, first, kernel, blocks=blocks)
    else:
        widths = [width] * draw(st.integers(1, 3))
        kernels = draw(st.lists(st.sampled_from([1, 3]), min_size=len(widths) + 1, max_size=len(widths) + 1))
        g = residual_net(shape, widths, kernels, pieces, draw(st.booleans()), draw(st.booleans()), blocks=blocks)
    solver = draw(st.sampled_from([Picard(), Anderson(depth=2), Anderson(), Newton()]))
    norm = prepared(ActNorm(shape[0], blocks)) if draw(st.booleans()) else None
    return ResidualBlock(g, solver=solver, norm=norm, save=draw(st.booleans())), shape, False


@st.composite
def actnorms(draw):
    shape = draw(shapes)
    return ActNorm(shape[0]), shape, False


@st.composite
def squeezes(draw):
    c, h, w = draw(images)
    return Squeeze(), (min(c, 2), 2 * min(h, 2), 2 * w), False


@st.composite
def flattenings(draw):
    shape = draw(st.one_of(shapes, st.tuples(st.integers(1, 3), st.integers(1, 4))))
    return Flatten(shape), shape, False


@st.composite
def splits(draw):
    shape = draw(shapes)
    shape = (shape[0] + 1, *shape[1:])
    rest = shape[0] - shape[0] // 2
    choices = [[], [ActNorm(rest)], [Invert(Invert(InvertibleConv1x1(rest)))], [Flatten((rest, *shape[1:]))]]
    behind = draw(st.sampled_from(choices))
    return Split(shape, Chain(behind)), shape, False


@st.composite
def logits(draw):
    return Logit(draw(st.floats(0, 0.45))), draw(shapes), True


@st.composite
def affines(draw):
    shape = draw(shapes)
    scale = draw(st.sampled_from([(), shape, (shape[0], *[1] * (len(shape) - 1))]))
    return Affine(torch.randn(scale), torch.rand(scale) + draw(st.floats(0.01, 100))), shape, False


@st.composite
def couplings(draw):
    shape = draw(shapes)
    swap, width = draw(st.booleans()), draw(st.integers(1, 6))
    if len(shape) == 3 and draw(st.booleans()):
        mask = checkerboard_mask(shape, swap)
    else:
        shape = (shape[0] + 1, *shape[1:])
        mask = channel_mask(shape, swap)
    return Coupling(coupling_net(shape, width), mask), shape, False


@st.composite
def convolutions(draw):
    shape = draw(shapes)
    return InvertibleConv1x1(shape[0]), shape, False


@st.composite
def chains(draw):
    shape = draw(images)
    whole = math.prod(shape)
    middle = [ActNorm(shape[0]), InvertibleConv1x1(shape[0]), ResidualBlock(dense_block(shape, 1, 2, Pieces()))]
    order = draw(st.permutations(middle))[: draw(st.integers(0, 3))]
    end = draw(st.sampled_from([[], [Flatten(shape), ActNorm(whole)], [Flatten(shape), Invert(Flatten(shape))]]))
    return Chain([Chain(order), *end]), shape, False


@st.composite
def inverses(draw):
    bijection, shape, _ = draw(st.one_of(affines(), convolutions(), residual_blocks()))
    return Invert(bijection), shape, False


KINDS = {
    "residual block": residual_blocks(),
    "ActNorm": actnorms(),
    "squeeze": squeezes(),
    "flatten": flattenings(),
    "split": splits(),
    "logit": logits(),
    "affine": affines(),
    "coupling": couplings(),
    "1x1 convolution": convolutions(),
    "chain": chains(),
    "invert": inverses(),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), seed=st.integers(0, 1000), batch=st.integers(0, 3))
def test_value_log_det_and_inverse_fit_together_for_all_options(kind, data, seed, batch):
    torch.manual_seed(seed)
    bijection, shape, unit = data.draw(KINDS[kind])
    bijection = ready(bijection, shape, unit)
    x = inputs(shape, batch, unit)
    with torch.no_grad():
        y, log_det = bijection(x)
        back, inverse_log_det = bijection.inverse(y)
    assert log_det.shape == inverse_log_det.shape == (batch,)
    assert y.dtype == log_det.dtype == torch.float64
    assert y.numel() == x.numel()
    torch.testing.assert_close(back, x, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(inverse_log_det, -log_det, rtol=1e-8, atol=1e-8)
    if batch:
        torch.testing.assert_close(log_det, log_abs_det(bijection.encode, x), rtol=1e-8, atol=1e-8)
