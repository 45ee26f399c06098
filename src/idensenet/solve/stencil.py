"""Small convolutions that stand in for g on images.

A network on maps does much the same to the neighbourhood of every pixel, so the best small convolution with a bias, by least
squares over the pixels of an evaluation, can say most of what g does: more than 99 % of the variance on a CIFAR-10 model of a
few hundred steps, 60 to 94 % on digits trained to the end. Two are used together, each where it says enough:

- one of 5 x 5 for all samples, of what g does to noise. Solving x + S x + b = y in place of x + g(x) = y is a start about as
  good as a step, and it costs an evaluation of g for a few images only;
- one of 3 x 3 for each sample, of what the first leaves of g at that start.

With S their sum, x - (I + S)^-1 r is then a much better step than x - r, for a few convolutions with the channels of x, where g
has hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.lipschitz.norms import sizes
from idensenet.solve.solver import Function

SHARED, OWN = 5, 3  # sides of the kernels
TERMS = 4  # of the series for (I + S)^-1
RIDGE = 1e-5
ROOM = 2  # pixels for each coefficient of an output channel
ENOUGH = 0.95  # of the variance of g(x), for a stencil to be used
SHARE = 4  # a shared one is made where its noise is a fourth of the batch or less,
PIXELS = 4096  # and the batch has so many: a few images of a small network take as long as many
SCALE = 0.7  # of the noise: maps between blocks are near one


@dataclass
class Stencil:
    """S, in two parts: [channels, channels, 5, 5] for all samples, and [batch, channels, channels, 3, 3] of their own."""

    shared: Tensor | None = None
    bias: Tensor | float = 0.0
    own: Tensor | None = None

    def apply(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x) if self.shared is None else F.conv2d(x, self.shared, padding=SHARED // 2)
        if self.own is not None:
            n, c = x.shape[:2]
            rows = x.reshape(1, n * c, *x.shape[2:])
            y = y + F.conv2d(rows, self.own.flatten(0, 1), padding=OWN // 2, groups=n).view_as(x)
        return y

    def undo(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """(I + S)^-1 r, nearly: the sum of (-S)^i r; and its last term."""
        total = term = r
        for _ in range(TERMS):
            term = -self.apply(term)
            total = total + term
        return total, term

    def contracts(self, r: Tensor) -> Tensor:
        return sizes(self.undo(r)[1]) <= 0.3 * sizes(r)

    def take(self, index: Tensor) -> Stencil:
        return Stencil(self.shared, self.bias, None if self.own is None else self.own[index])


def _least_squares(patches: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From [n, coefficients, pixels] and [n, channels, pixels]: coefficients, biases, and the size of what is left over."""
    rows = torch.cat([patches, torch.ones_like(patches[:, :1])], 1)
    gram = (rows @ rows.mT).double()
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=torch.finfo(torch.float64).tiny)
    gram = gram + ridge[:, None, None] * torch.eye(rows.shape[1], dtype=gram.dtype, device=gram.device)
    found = torch.linalg.solve(gram, (rows @ target.mT).double()).to(target.dtype).mT
    return found[:, :, :-1], found[:, :, -1], sizes(found @ rows - target)


def _images_needed(x: Tensor, kernel: int) -> int:
    """As many as have room for the coefficients."""
    return -(-ROOM * (x.shape[1] * kernel**2 + 1) // (x.shape[2] * x.shape[3]))


def _spread(x: Tensor) -> Tensor:
    return sizes(x.flatten(2) - x.flatten(2).mean(2, keepdim=True))


def shared(g: Function, y: Tensor) -> Stencil | None:
    """From what g does to noise; None where that says too little, or costs too much."""
    if y.ndim != 4 or SHARE * _images_needed(y, SHARED) > len(y) or y[:, 0].numel() < PIXELS:
        return None
    generator = torch.Generator().manual_seed(0)
    noise = SCALE * torch.randn(_images_needed(y, SHARED), *y.shape[1:], generator=generator, dtype=y.dtype).to(y.device)
    patches = F.unfold(noise, SHARED, padding=SHARED // 2)
    rows, target = (part.transpose(0, 1).flatten(1)[None] for part in (patches, g(noise).flatten(2)))
    found, bias, left = _least_squares(rows, target)
    stencil = Stencil(found.view(*found.shape[1:2], *y.shape[1:2], SHARED, SHARED), bias[0, :, None, None])
    usable = (left <= (1 - ENOUGH) ** 0.5 * _spread(target)) & stencil.contracts(noise).all()
    return stencil if bool(usable) else None


def with_own(stencil: Stencil | None, x: Tensor, gx: Tensor) -> Stencil | None:
    """And one for each sample of what is left of gx = g(x), zero where it does not help; None where there is none at all."""
    if x.ndim != 4 or len(x) == 0 or _images_needed(x, OWN) > 1:
        return stencil
    base = stencil or Stencil()
    rest = gx if stencil is None else gx - stencil.apply(x) - stencil.bias
    found, _, left = _least_squares(F.unfold(x, OWN, padding=OWN // 2), rest.flatten(2))
    n, c = x.shape[:2]
    enough = left <= (1 - ENOUGH) ** 0.5 * _spread(gx)
    own = torch.where(enough[:, None, None, None, None], found.view(n, c, c, OWN, OWN), 0.0)
    contracts = Stencil(base.shared, base.bias, own).contracts(gx)
    own = torch.where(contracts[:, None, None, None, None], own, 0.0)
    return Stencil(base.shared, base.bias, own) if bool(own.any()) else stencil
