"""A new Lipschitz map in one file: what a user would write. Tests put it into the same tables as the built-in ones."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.errors import ShapeError
from idensenet.lipschitz import LipschitzMap


class CircularConv1d(LipschitzMap):
    """A circular convolution of signals [batch, channels, length] with an odd kernel.

    The Fourier transform of the kernel has one matrix for each frequency, with the same singular values, so its norm is exact.
    The derivative of the norm is left to autograd, so no singular vectors are kept.
    """

    channels, samples, event = 1, 0, 2

    def __init__(
        self, inputs: int, outputs: int, kernel: int, length: int, coeff: float = 0.98, norm: float = 2.0, blocks: int = 1
    ) -> None:
        nothing = torch.zeros(blocks, 0)
        super().__init__(torch.empty(blocks, outputs, inputs, kernel), coeff, norm, nothing, nothing.clone())
        self.length = length

    @staticmethod
    def laid_out(x: Tensor) -> Tensor:
        return x.contiguous()

    @staticmethod
    def enter(x: Tensor) -> Tensor:
        return x.flatten(0, -3)

    @staticmethod
    def leave(rows: Tensor, lead: Sequence[int]) -> Tensor:
        return rows.view(*lead, *rows.shape[1:])

    @staticmethod
    def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        side = weight.shape[-1] // 2
        return F.conv1d(F.pad(rows, (side, side), mode="circular"), weight, bias)

    @staticmethod
    def product_back(rows: Tensor, weight: Tensor) -> Tensor:
        return CircularConv1d.product(rows, weight.transpose(0, 1).flip(2))

    def check(self, x: Tensor, expansion: int = 1) -> None:
        want = (self.inputs // expansion, self.length)
        if x.shape[-2:] != want:
            raise ShapeError(f"This map takes signals of shape {want}, not a tensor of shape {tuple(x.shape)}.")

    def norm_product(self) -> Tensor:
        if self.norm != 2:
            return self.weight.abs().sum((1 if self.norm == 1 else 2, 3)).amax(1)
        spectrum = torch.fft.rfft(self.weight, self.length).movedim(-1, 1)  # [K, frequencies, outputs, inputs]
        return torch.linalg.matrix_norm(spectrum, 2).amax(1)

    def compute_norms(self, back: bool) -> None:
        self.sigma.copy_(self.norm_product())

    def bounds(self) -> list[float]:
        factor = torch.clamp(self.sigma.double() / self.coeff, min=1)
        return (self.norm_product().double() / factor * (1 + 1e-5)).tolist()


def dense_matrix(weight: Tensor, length: int) -> Tensor:
    """The operator entry by entry, [outputs length, inputs length]."""
    outputs, inputs, kernel = weight.shape
    rows = [
        sum(F.one_hot(torch.tensor((t + j - kernel // 2) % length), length) * weight[o, i, j] for j in range(kernel))
        for o in range(outputs)
        for t in range(length)
        for i in range(inputs)
    ]
    return torch.stack(rows).view(outputs * length, inputs * length)
