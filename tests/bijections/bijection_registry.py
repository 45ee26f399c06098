"""Every bijection, once, ready for the same tests; and the slow exact answers they are compared with."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from sinh_arcsinh import SinhArcsinh
from torch import Tensor

from idensenet.bijections import (
    ActNorm,
    Affine,
    Bijection,
    Bounded,
    Call,
    Chain,
    ConditionalAffine,
    Coupling,
    Flatten,
    Invert,
    InvertibleConv1x1,
    Logit,
    MonotoneBlock,
    ResidualBlock,
    Split,
    Squeeze,
    Whiten,
    channel_mask,
    checkerboard_mask,
    coupling_net,
)
from idensenet.lipschitz import LipschitzMap, Pieces, dense_block, residual_net
from idensenet.lipschitz.conditional import ConditionalNetwork, Embedding
from idensenet.solve import Newton, Picard


def jitter(bijection: Bijection, size: float = 0.1) -> Bijection:
    """Move every parameter away from where it starts, and make linear maps so large that their norm is in force."""
    with torch.no_grad():
        for module in bijection.modules():
            if isinstance(module, LipschitzMap):
                module.weight.mul_(4)
        for parameter in bijection.parameters():
            parameter.add_(size * torch.randn_like(parameter))
    return bijection


def inputs(shape: tuple[int, ...], batch: int, unit: bool = False) -> Tensor:
    x = torch.randn(batch, *shape, dtype=torch.float64)
    return torch.sigmoid(x) * 0.98 + 0.01 if unit else x


def ready(bijection: Bijection, shape: tuple[int, ...], unit: bool = False) -> Bijection:
    """In float64, initialised, jittered, in evaluation mode."""
    bijection = bijection.double().eval()
    bijection.initialize(inputs(shape, 32, unit))
    return jitter(bijection)


def actnorms(shape: tuple[int, ...], blocks: int, wanted: bool) -> ActNorm | None:
    return ActNorm(shape[0], blocks) if wanted else None


def dense(
    shape: tuple[int, ...], pieces: Pieces | None = None, blocks: int = 1, norm: bool = False, **options
) -> ResidualBlock:
    """A stack of dense blocks, with an ActNorm behind each if it is wanted."""
    g = dense_block(shape, 2, 4, pieces or Pieces(), blocks=blocks, **options)
    return ResidualBlock(g, norm=actnorms(shape, blocks, norm))


def residual(
    shape: tuple[int, ...], pieces: Pieces | None = None, activate_first: bool = True, blocks: int = 1, norm: bool = False
) -> ResidualBlock:
    kernels = [1, 1, 1] if len(shape) == 1 else [3, 1, 3]
    g = residual_net(shape, [6, 6], kernels, pieces or Pieces("lipswish"), activate_first, blocks=blocks)
    return ResidualBlock(g, norm=actnorms(shape, blocks, norm))


def saving(blocks: int = 1, norm: bool = False) -> ResidualBlock:
    """Blocks that are rebuilt in the backward pass."""
    return ResidualBlock(dense_block((3,), 2, 4, Pieces(), blocks=blocks), norm=actnorms((3,), blocks, norm), save=True)


def monotone(shape: tuple[int, ...], blocks: int = 1, norm: bool = False, pieces: Pieces | None = None, save: bool = False):
    """A stack of monotone blocks, with an ActNorm behind each if it is wanted."""
    g = dense_block(shape, 2, 4, pieces or Pieces(), blocks=blocks)
    return MonotoneBlock(g, norm=actnorms(shape, blocks, norm), save=save)


class AtContext(Bijection):
    """A conditional bijection at one context: a bijection like any other, which ignores the context of a call."""

    def __init__(self, inner: Bijection) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("c", torch.tensor([[0.4, -1.3]]))

    def at(self, x: Tensor, call: Call) -> Call:
        return replace(call, context=self.c.expand(len(x), -1))

    def prepared(self, precision):
        return self.inner.prepared(precision)

    def push(self, x, call):
        return self.inner.push(x, self.at(x, call))

    def pull(self, y, call):
        return self.inner.pull(y, self.at(y, call))

    def bi_lipschitz(self, norms):
        return self.inner.bi_lipschitz(norms)


def conditional(dims: int, blocks: int = 1, norm: bool = False, kind=ResidualBlock):
    inner = dense_block([dims + 3], 2, 4, Pieces(), outputs=dims, blocks=blocks)
    return kind(ConditionalNetwork(inner, Embedding(2, 5, 3, blocks), dims), norm=actnorms((dims,), blocks, norm))


def whitening() -> Whiten:
    made = Whiten(4)
    made.fit(torch.randn(50, 4) @ torch.randn(4, 4) + 3)
    return made


def bounded() -> Bounded:
    """A column of each kind; inputs lie in (0, 1)."""
    return Bounded([(-0.5, 1.25), (0.0, None), (None, 2.0), (None, None)])


def inner_flow() -> Chain:
    """A small flow on (2, 2, 4), as it stands behind a split."""
    return Chain([ActNorm(2), dense((2, 2, 4)), ActNorm(2), Squeeze(), residual((8, 1, 2)), ActNorm(8)])


def prepared(bijection: Bijection, shape: tuple[int, ...]) -> Bijection:
    """A bijection that has seen data already, for places that no data reaches in its own direction."""
    bijection.initialize(torch.randn(32, *shape))
    return bijection


@dataclass(frozen=True)
class Case:
    make: Callable[[], Bijection]
    shape: tuple[int, ...]
    unit: bool = False  # inputs lie in (0, 1)
    norm: float = 2.0  # in which its bi-Lipschitz constants are
    tight: bool = False  # linear, so that its constants are reached

    def bijection(self) -> Bijection:
        torch.manual_seed(1)
        return ready(self.make(), self.shape, self.unit)

    def inputs(self, batch: int = 3) -> Tensor:
        torch.manual_seed(2)
        return inputs(self.shape, batch, self.unit)


CASES = {
    "bounded columns": Case(bounded, (4,), unit=True),
    "dense block, vectors": Case(lambda: dense((5,)), (5,)),
    "dense block, two dimensions": Case(lambda: dense((2,), Pieces("lipswish", 0.9)), (2,)),
    "dense block, first map": Case(lambda: dense((6,), Pieces("leakylipswish"), first=4), (6,)),
    "dense block, fixed concatenation": Case(lambda: dense((4,), Pieces("tanh", learnable=False)), (4,)),
    "dense block, images": Case(lambda: dense((2, 4, 4)), (2, 4, 4)),
    "dense block, 1-norm": Case(lambda: dense((5,), Pieces(norm=1)), (5,), norm=1.0),
    "dense block, inf-norm, images": Case(lambda: dense((2, 3, 3), Pieces(norm=float("inf"))), (2, 3, 3), norm=float("inf")),
    "residual block, vectors": Case(lambda: residual((5,)), (5,)),
    "residual block, images": Case(lambda: residual((2, 4, 3), activate_first=False), (2, 4, 3)),
    "residual block, ELU": Case(lambda: residual((2, 3, 3), Pieces("elu")), (2, 3, 3)),
    "residual block, Picard": Case(lambda: ResidualBlock(dense_block((3,), 1, 4, Pieces()), solver=Picard()), (3,)),
    "residual block, Newton": Case(lambda: ResidualBlock(dense_block((3,), 1, 4, Pieces()), solver=Newton()), (3,)),
    "residual block, saving memory": Case(saving, (3,)),
    "one block and its ActNorm": Case(lambda: dense((4,), norm=True), (4,)),
    "three dense blocks": Case(lambda: dense((4,), blocks=3), (4,)),
    "three dense blocks, ActNorm": Case(lambda: dense((4,), blocks=3, norm=True), (4,)),
    "three dense blocks, two dimensions": Case(lambda: dense((2,), Pieces("lipswish", 0.9), blocks=3), (2,)),
    "three dense blocks, two dimensions, ActNorm": Case(lambda: dense((2,), blocks=3, norm=True), (2,)),
    "three dense blocks, first map": Case(lambda: dense((6,), Pieces("leakylipswish"), blocks=3, first=4), (6,)),
    "three dense blocks, fixed concatenation": Case(lambda: dense((4,), Pieces("tanh", learnable=False), blocks=3), (4,)),
    "three dense blocks, images": Case(lambda: dense((2, 3, 3), blocks=3), (2, 3, 3)),
    "three dense blocks, images, ActNorm": Case(lambda: dense((2, 3, 2), blocks=3, norm=True), (2, 3, 2)),
    "three dense blocks, 1-norm, ActNorm": Case(lambda: dense((4,), Pieces(norm=1), blocks=3, norm=True), (4,), norm=1.0),
    "three dense blocks, inf-norm, images": Case(
        lambda: dense((2, 3, 2), Pieces(norm=float("inf")), blocks=3), (2, 3, 2), norm=float("inf")
    ),
    "three residual blocks": Case(lambda: residual((4,), blocks=3), (4,)),
    "three residual blocks, ActNorm": Case(lambda: residual((4,), Pieces("leakylipswish"), blocks=3, norm=True), (4,)),
    "three residual blocks, images, ActNorm": Case(lambda: residual((2, 3, 2), Pieces("elu"), False, 3, True), (2, 3, 2)),
    "three blocks, saving memory": Case(lambda: saving(3), (3,)),
    "three blocks, saving memory, ActNorm": Case(lambda: saving(3, True), (3,)),
    "monotone block": Case(lambda: monotone((5,)), (5,)),
    "monotone block, two dimensions": Case(lambda: monotone((2,), pieces=Pieces("lipswish", 0.9)), (2,)),
    "monotone block, more dimensions": Case(lambda: monotone((10,)), (10,)),
    "monotone block, images": Case(lambda: monotone((2, 3, 3), pieces=Pieces("leakylipswish")), (2, 3, 3)),
    "monotone block, inf-norm": Case(lambda: monotone((4,), pieces=Pieces(norm=float("inf"))), (4,), norm=float("inf")),
    "monotone block, residual net": Case(lambda: MonotoneBlock(residual((4,)).g), (4,)),
    "monotone block, Newton": Case(lambda: MonotoneBlock(dense((10,)).g, solver=Newton()), (10,)),
    "three monotone blocks": Case(lambda: monotone((2,), 3), (2,)),
    "three monotone blocks, ActNorm": Case(lambda: monotone((4,), 3, norm=True), (4,)),
    "three monotone blocks, images, ActNorm": Case(lambda: monotone((2, 3, 2), 3, norm=True), (2, 3, 2)),
    "monotone blocks, saving memory": Case(lambda: monotone((3,), 2, norm=True, save=True), (3,)),
    "monotone blocks, images, saving memory": Case(lambda: monotone((2, 3, 3), 2, save=True), (2, 3, 3)),
    "conditional monotone blocks": Case(lambda: AtContext(conditional(3, 2, norm=True, kind=MonotoneBlock)), (3,)),
    "conditional monotone block, more dimensions": Case(lambda: AtContext(conditional(9, kind=MonotoneBlock)), (9,)),
    "ActNorm, vectors": Case(lambda: ActNorm(5), (5,), tight=True),
    "ActNorm, images": Case(lambda: ActNorm(3), (3, 2, 4), tight=True),
    "squeeze": Case(Squeeze, (2, 2, 4), tight=True),
    "flatten": Case(lambda: Flatten((2, 3, 2)), (2, 3, 2), tight=True),
    "split, nothing behind": Case(lambda: Split((5,), Chain([])), (5,), tight=True),
    "split, flow behind": Case(lambda: Split((4, 2, 4), inner_flow()), (4, 2, 4)),
    "conditional split": Case(lambda: Split((4, 2, 4), inner_flow(), conditional=True), (4, 2, 4)),
    "conditional split, vectors": Case(lambda: Split((5,), ActNorm(3), conditional=True), (5,)),
    "split in a split": Case(
        lambda: Chain([ActNorm(4), Split((4, 2, 2), Chain([Squeeze(), dense((8, 1, 1)), Split((8, 1, 1), ActNorm(4))]))]),
        (4, 2, 2),
    ),
    "logit": Case(Logit, (2, 2, 2), unit=True),
    "logit, alpha 1e-6": Case(lambda: Logit(1e-6), (4,), unit=True),
    "logit, alpha 0": Case(lambda: Logit(0.0), (3,), unit=True),
    "normalize": Case(lambda: Affine.normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.1]), (3, 2, 2), tight=True),
    "standardize": Case(lambda: Affine.standardize(torch.randn(50, 4) * torch.tensor([1.0, 2, 3, 4])), (4,), tight=True),
    "whiten": Case(whitening, (4,), tight=True),
    "whiten, 1-norm": Case(whitening, (4,), norm=1.0),
    "one scale for all": Case(lambda: Affine(torch.tensor(1.0), torch.tensor(256.0)), (2, 2, 2), tight=True),
    "coupling, vectors": Case(lambda: Coupling(coupling_net([5], 8), channel_mask([5], False)), (5,)),
    "coupling, channels": Case(lambda: Coupling(coupling_net([3, 2, 4], 6), channel_mask([3, 2, 4], True)), (3, 2, 4)),
    "coupling, checkerboard": Case(lambda: Coupling(coupling_net([2, 3, 4], 6), checkerboard_mask([2, 3, 4], True)), (2, 3, 4)),
    "1x1 convolution": Case(lambda: InvertibleConv1x1(3), (3, 2, 4), tight=True),
    "whitening 1x1 convolution": Case(lambda: prepared(InvertibleConv1x1(3, whiten=True), (3, 2, 4)), (3, 2, 4), tight=True),
    "1x1 convolution, vectors": Case(lambda: InvertibleConv1x1(4), (4,), tight=True),
    "conditional affine": Case(lambda: AtContext(ConditionalAffine(3, 2, 5)), (3,)),
    "conditional block": Case(lambda: AtContext(conditional(4)), (4,)),
    "conditional chain": Case(
        lambda: AtContext(Chain([ActNorm(3), ConditionalAffine(3, 2, 5), Chain([conditional(3), ActNorm(3)])])), (3,)
    ),
    "three conditional blocks": Case(lambda: AtContext(conditional(3, 3)), (3,)),
    "three conditional blocks, ActNorm": Case(lambda: AtContext(conditional(3, 3, norm=True)), (3,)),
    "conditional blocks behind a split": Case(lambda: AtContext(Split((5,), conditional(3, 2, norm=True))), (5,)),
    "inverted conditional block": Case(lambda: Invert(AtContext(conditional(3))), (3,)),
    "sinh-arcsinh": Case(lambda: SinhArcsinh(4), (4,)),
    "empty chain": Case(lambda: Chain([]), (3,), tight=True),
    "chain": Case(
        lambda: Chain([Logit(), ActNorm(2), dense((2, 2, 4)), Squeeze(), InvertibleConv1x1(8)]), (2, 2, 4), unit=True
    ),
    "inverted block": Case(lambda: Invert(dense((4,))), (4,)),
    "three inverted blocks": Case(lambda: Invert(prepared(dense((3,), blocks=3, norm=True), (3,))), (3,)),
    "inverted logit": Case(lambda: Invert(Logit()), (4,)),
    "inverted ActNorm": Case(lambda: Invert(prepared(ActNorm(4), (4,))), (4,), tight=True),
    "nested": Case(
        lambda: Chain(
            [
                ActNorm(2),
                Chain([Squeeze(), Invert(Invert(residual((8, 1, 2))))]),
                Flatten((8, 1, 2)),
                Invert(prepared(Chain([InvertibleConv1x1(16), ActNorm(16)]), (16,))),
                dense((16,), first=4),
                Invert(Flatten((8, 1, 2))),
            ]
        ),
        (2, 2, 4),
    ),
}


def jacobian(f, x: Tensor, graph: bool = True) -> Tensor:
    """[batch, D, D] by autograd, row by row, differentiable if a graph is wanted; f must treat samples on their own."""
    x = x if x.requires_grad else x.detach().requires_grad_()
    y = f(x).flatten(1)
    options = {"create_graph": graph, "retain_graph": True, "allow_unused": True}
    rows = [torch.autograd.grad(y[:, i].sum(), x, **options)[0] for i in range(y.shape[1])]
    return torch.stack([torch.zeros_like(x) if row is None else row for row in rows], 1).flatten(2)


def log_abs_det(f, x: Tensor) -> Tensor:
    """log|det| of the whole Jacobian at every sample."""
    return torch.linalg.slogdet(jacobian(f, x, graph=False)).logabsdet


def forward_reference(f, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and log|det|, both differentiable by brute force."""
    x = x if x.requires_grad else x.detach().requires_grad_()
    return f(x), torch.linalg.slogdet(jacobian(f, x)).logabsdet


def inverse_reference(f, y: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
    """x with f(x) = y from a guess, and the log|det| of the inverse, both differentiable.

    One Newton step from the solution does not move it, but gives it the right derivatives.
    """
    x = guess.detach().requires_grad_()
    for _ in range(3):
        start = x.detach().requires_grad_()
        matrix = jacobian(f, start).detach()
        x = start.detach() - torch.linalg.solve(matrix, (f(start.detach()) - y).flatten(1)).view_as(start)
    return x, -torch.linalg.slogdet(jacobian(f, x)).logabsdet


def monotone_reference(bijection: Bijection, x: Tensor, back: bool = False) -> tuple[Tensor, Tensor]:
    """Value and log|det| of monotone blocks by brute force, either way, both with first derivatives.

    w comes from Newton steps with autograd's Jacobian, and the log-determinant from the Jacobian of g at w.
    """
    stack, context = (bijection.inner, bijection.c) if isinstance(bijection, AtContext) else (bijection, None)
    given = None if context is None else context.expand(len(x), -1)
    gs = stack.branches(stack.call(x, None, given))
    total, root = torch.zeros(len(x), dtype=x.dtype), 2**0.5
    for k, g in reversed(list(enumerate(gs))) if back else enumerate(gs):
        norm = None if stack.norm is None else (stack.norm.log_scale[k], stack.norm.shift[k])
        if norm and back:
            x, total = stack.norm.affine_inverse(x, *norm), total - stack.norm.log_det(x, norm[0])
        sign = -1 if back else 1
        w, _ = inverse_reference(lambda w, g=g, sign=sign: (w + sign * g(w)) / root, x, x.detach())
        for _ in range(3):
            w, _ = inverse_reference(lambda w, g=g, sign=sign: (w + sign * g(w)) / root, x, w)
        J = jacobian(g, w)
        logs = [torch.linalg.slogdet(torch.eye(J.shape[1], dtype=J.dtype) + s * J).logabsdet for s in (-sign, sign)]
        x, total = (w - sign * g(w)) / root, total + logs[0] - logs[1]
        if norm and not back:
            total = total + stack.norm.log_det(x, norm[0])
            x = stack.norm.affine(x, *norm)
    return x, total
