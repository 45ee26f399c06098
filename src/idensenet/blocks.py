"""Blocks by name: the bijections that `--model.block` can ask for at each scale of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from idensenet.bijections import (
    ActNorm,
    Bijection,
    Coupling,
    Invert,
    InvertibleConv1x1,
    MonotoneBlock,
    channel_mask,
    checkerboard_mask,
    coupling_net,
)
from idensenet.lipschitz import Network, dense_block, residual_net
from idensenet.lipschitz.conditional import ConditionalNetwork
from idensenet.registry import Registry

if TYPE_CHECKING:
    from idensenet.models import Builder

BlockMaker = Callable[["Builder", Sequence[int], int, int], list[Bijection]]
BLOCKS: Registry[list[Bijection]] = Registry("block")
CONDITIONAL = ("dense", "residual", "monotone", "monotone-residual", "implicit")  # blocks that take a context


def register_block(name: str, make: BlockMaker) -> None:
    """Make a kind of block usable by name in `--model.block`.

    Args:
        name: The name.
        make: Called with the builder, the shape, the number of blocks and the scale (-1 for fully connected blocks after
            images); returns the bijections of that scale.
    """
    BLOCKS.register(name, make)


def _dense_net(builder: Builder, shape: Sequence[int], count: int, scale: int) -> Network | ConditionalNetwork:
    m, growth = builder.model, builder.growth(scale)
    if m.context:
        inner = dense_block([shape[0] + m.context_features], m.depth, growth, builder.pieces, outputs=shape[0], blocks=count)
        return builder.conditional(inner, shape[0])
    return dense_block(shape, m.depth, growth, builder.pieces, m.fc_first if scale < 0 else None, blocks=count)


def _dense(builder: Builder, shape: Sequence[int], count: int, scale: int) -> list[Bijection]:
    return [builder.stack(_dense_net(builder, shape, count, scale), shape[0])]


def _implicit(builder: Builder, shape: Sequence[int], count: int, scale: int) -> list[Bijection]:
    """z + g_z(z) = x + g_x(x): a residual block, and one backwards (Lu et al., 2021)."""
    parts: list[Bijection] = []
    for _ in range(count):
        there, back = (_dense_net(builder, shape, 1, scale) for _ in range(2))
        parts += [builder.stack(there, shape[0]), Invert(builder.stack(back, shape[0], norm=False))]
    return parts


def _residual(builder: Builder, shape: Sequence[int], count: int, scale: int) -> list[Bijection]:
    m, pieces = builder.model, builder.pieces
    if m.context:
        inputs, widths = [shape[0] + m.context_features], [m.width] * m.depth
        kernels = [1] * (m.depth + 1)
        inner = residual_net(inputs, widths, kernels, pieces, small_last=True, outputs=shape[0], blocks=count)
        return [builder.stack(builder.conditional(inner, shape[0]), shape[0])]
    if scale < 0:
        return _nets(builder, shape, count, [m.fc_width] * 2, [1, 1, 1])
    if len(shape) == 3:
        return _nets(builder, shape, count, [m.width] * 2, [3, 1, 3])
    return _nets(builder, shape, count, [m.width] * m.depth, [1] * (m.depth + 1), small_last=True)


def _extended(builder: Builder, shape: Sequence[int], count: int, scale: int) -> list[Bijection]:
    """Residual networks as deep and as wide as the features of a dense block."""
    m, growth = builder.model, builder.growth(scale)
    if scale < 0:
        widths = [m.fc_first + growth * i for i in range(m.depth + 1)]
        return _nets(builder, shape, count, widths, [1] * (len(widths) + 1))
    widths = [shape[0] + growth * (i + 1) for i in range(m.depth)]
    return _nets(builder, shape, count, widths, [*[3] * m.depth, 1], small_last=len(shape) == 1)


def _nets(
    builder: Builder,
    shape: Sequence[int],
    count: int,
    widths: Sequence[int],
    kernels: Sequence[int],
    small_last: bool = False,
) -> list[Bijection]:
    """Stacks of residual networks. The very first block of an image model begins without an activation."""
    alone = 1 if builder.built == 0 and len(shape) == 3 else 0
    return [
        builder.stack(residual_net(shape, widths, kernels, builder.pieces, active, small_last, blocks=k), shape[0])
        for k, active in ((alone, False), (count - alone, True))
        if k
    ]


def _monotone(make: BlockMaker) -> BlockMaker:
    """The same networks in monotone blocks."""

    def made(builder: Builder, shape: Sequence[int], count: int, scale: int) -> list[Bijection]:
        builder.kind = MonotoneBlock
        return make(builder, shape, count, scale)

    return made


def _coupling(builder: Builder, shape: Sequence[int], count: int, scale: int, mixed: bool = False) -> list[Bijection]:
    m, parts = builder.model, list[Bijection]()
    width = m.fc_width if scale < 0 else m.width
    for i in range(count):
        if mixed and scale >= 0:
            parts.append(InvertibleConv1x1(shape[0]))
        swap = (i if scale < 0 else builder.built + i) % 2 == 1
        mask = (checkerboard_mask if scale == 0 and len(shape) == 3 else channel_mask)(shape, swap)
        parts.append(Coupling(coupling_net(shape, width), mask))
        if m.actnorm:
            parts.append(ActNorm(shape[0]))
    return parts


def _glow(builder: Builder, shape: Sequence[int], count: int, scale: int) -> list[Bijection]:
    return _coupling(builder, shape, count, scale, mixed=True)


for _name, _make in {
    "dense": _dense,
    "residual": _residual,
    "extended": _extended,
    "monotone": _monotone(_dense),
    "monotone-residual": _monotone(_residual),
    "monotone-extended": _monotone(_extended),
    "implicit": _implicit,
    "coupling": _coupling,
    "glow": _glow,
}.items():
    BLOCKS.register(_name, _make)
