"""Every bijection, once, ready for the same tests; and the slow exact answers they are compared with."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from idensenet.bijections import (
    ActNorm,
    Affine,
    Bijection,
    Chain,
    ConditionalAffine,
    Coupling,
    Flatten,
    Invert,
    InvertibleConv1x1,
    Logit,
    ResidualBlock,
    Split,
    Squeeze,
    Whiten,
    channel_mask,
    checkerboard_mask,
    coupling_net,
)
from idensenet.lipschitz import LipschitzMap, Pieces, dense_block, residual_net
from idensenet.lipschitz.conditional import ConditionalNetwork, embedding
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


def dense(shape: tuple[int, ...], pieces: Pieces | None = None, **options) -> ResidualBlock:
    return ResidualBlock(dense_block(shape, 2, 4, pieces or Pieces(), **options))


def residual(shape: tuple[int, ...], pieces: Pieces | None = None, activate_first: bool = True) -> ResidualBlock:
    kernels = [1, 1, 1] if len(shape) == 1 else [3, 1, 3]
    return ResidualBlock(residual_net(shape, [6, 6], kernels, pieces or Pieces("lipswish"), activate_first))


class AtContext(Bijection):
    """A conditional bijection at one context: a bijection like any other."""

    def __init__(self, inner: Bijection) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("c", torch.tensor([[0.4, -1.3]]))

    def at(self, x: Tensor) -> Tensor:
        return self.c.expand(len(x), -1)

    def forward(self, x, draws=None):
        return self.inner(x, draws, context=self.at(x))

    def inverse(self, y, draws=None):
        return self.inner.inverse(y, draws, context=self.at(y))

    def encode(self, x):
        return self.inner.encode(x, context=self.at(x))

    def decode(self, y):
        return self.inner.decode(y, context=self.at(y))

    def initialize(self, x):
        return self.inner.initialize(x, context=self.at(x))

    def bi_lipschitz(self, norms):
        return self.inner.bi_lipschitz(norms)


def conditional(dims: int) -> ResidualBlock:
    inner = dense_block([dims + 3], 2, 4, Pieces(), outputs=dims)
    return ResidualBlock(ConditionalNetwork(inner, embedding(2, 5, 3), dims, 3))


def whitening() -> Whiten:
    made = Whiten(4)
    made.fit(torch.randn(50, 4) @ torch.randn(4, 4) + 3)
    return made


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
    "residual block, recomputed": Case(lambda: ResidualBlock(dense_block((3,), 2, 4, Pieces()), recompute=True), (3,)),
    "ActNorm, vectors": Case(lambda: ActNorm(5), (5,), tight=True),
    "ActNorm, images": Case(lambda: ActNorm(3), (3, 2, 4), tight=True),
    "squeeze": Case(Squeeze, (2, 2, 4), tight=True),
    "flatten": Case(lambda: Flatten((2, 3, 2)), (2, 3, 2), tight=True),
    "split, nothing behind": Case(lambda: Split((5,), Chain([])), (5,), tight=True),
    "split, flow behind": Case(lambda: Split((4, 2, 4), inner_flow()), (4, 2, 4)),
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
    "1x1 convolution, vectors": Case(lambda: InvertibleConv1x1(4), (4,), tight=True),
    "conditional affine": Case(lambda: AtContext(ConditionalAffine(3, 2, 5)), (3,)),
    "conditional block": Case(lambda: AtContext(conditional(4)), (4,)),
    "conditional chain": Case(
        lambda: AtContext(Chain([ActNorm(3), ConditionalAffine(3, 2, 5), Chain([conditional(3), ActNorm(3)])])), (3,)
    ),
    "inverted conditional block": Case(lambda: Invert(AtContext(conditional(3))), (3,)),
    "empty chain": Case(lambda: Chain([]), (3,), tight=True),
    "chain": Case(
        lambda: Chain([Logit(), ActNorm(2), dense((2, 2, 4)), Squeeze(), InvertibleConv1x1(8)]), (2, 2, 4), unit=True
    ),
    "inverted block": Case(lambda: Invert(dense((4,))), (4,)),
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


def jacobian(f, x: Tensor) -> Tensor:
    """[batch, D, D] by autograd, differentiable; f must treat samples on their own."""
    y = f(x).flatten(1)
    rows = [torch.autograd.grad(y[:, i].sum(), x, create_graph=True, allow_unused=True)[0] for i in range(y.shape[1])]
    return torch.stack([torch.zeros_like(x) if row is None else row for row in rows], 1).flatten(2)


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
