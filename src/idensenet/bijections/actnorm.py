"""Scale and shift per channel or per dimension, first set so that a batch comes out standardised."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from idensenet.bijections.base import Bijection, Call, constant_log_det
from idensenet.errors import ShapeError, UninitializedError
from idensenet.lipschitz.certificate import OperatorNorms


class ActNorm(Bijection):
    """y = exp(log_scale) * (x + shift), per channel of [batch, channels, ...] (Kingma and Dhariwal, 2018).

    The state says whether it has been initialised, so one that was loaded is never initialised again.

    Args:
        channels: Number of channels, or of dimensions of vectors.
        blocks: K, where it stands behind each block of a stack. On its own it applies the first.
    """

    initialized: Tensor

    def __init__(self, channels: int, blocks: int = 1) -> None:
        super().__init__()
        self.channels, self.blocks = channels, blocks
        self.log_scale = nn.Parameter(torch.zeros(blocks, channels))
        self.shift = nn.Parameter(torch.zeros(blocks, channels))
        self.register_buffer("initialized", torch.zeros(blocks, dtype=torch.bool))
        self._ready = False  # remembers a yes, which never turns into a no, so that no call waits for the device

    def check_ready(self) -> None:
        """Raises an UninitializedError before `initialize`."""
        if not (self._ready or bool(self.initialized.all())):
            raise UninitializedError(
                "An ActNorm has seen no data yet: call flow.initialize(batch) with a batch of training data first."
            )
        self._ready = True

    def rows(self) -> list[tuple[Tensor, Tensor]]:
        """log_scale and shift of each block.

        Returns:
            A pair of tensors [channels] for each block.
        """
        return list(zip(self.log_scale.unbind(), self.shift.unbind(), strict=True))

    def affine(self, x: Tensor, log_scale: Tensor, shift: Tensor) -> Tensor:
        """One block's scale and shift.

        Args:
            x: Samples [batch, channels, ...].
            log_scale: Logarithm of the scale, [channels].
            shift: The shift, [channels].

        Returns:
            exp(log_scale) * (x + shift).
        """
        self._check(x)
        shape = (1, -1, *[1] * (x.ndim - 2))
        scale = torch.exp(log_scale.view(shape))
        return torch.addcmul(scale * shift.view(shape), scale, x)  # one pass

    def affine_inverse(self, y: Tensor, log_scale: Tensor, shift: Tensor) -> Tensor:
        """The inverse of `affine`.

        Args:
            y: Outputs of `affine`.
            log_scale: Logarithm of the scale, [channels].
            shift: The shift, [channels].

        Returns:
            x.
        """
        self._check(y)
        shape = (1, -1, *[1] * (y.ndim - 2))
        return y * torch.exp(-log_scale.view(shape)) - shift.view(shape)

    def log_det(self, x: Tensor, log_scale: Tensor) -> Tensor:
        """The log-determinant for samples like x, of one block or of all of them.

        Args:
            x: Samples [batch, channels, ...].
            log_scale: Logarithms of the scale, [channels] or [K, channels].

        Returns:
            Log-determinants [batch].
        """
        return constant_log_det(x, log_scale.sum() * (math.prod(x.shape[1:]) // self.channels))

    @torch.no_grad()
    def learn(self, x: Tensor, block: int = 0) -> None:
        """Set the scale and shift of one block so that x comes out standardised, once.

        Args:
            x: Samples [batch, channels, ...].
            block: Which block.

        Raises:
            ShapeError: The batch is empty or has another number of channels.
        """
        if bool(self.initialized[block]):
            return
        self._check(x)
        if x.numel() == 0:
            raise ShapeError(f"An ActNorm learns nothing from an empty batch, {tuple(x.shape)}; initialize with data.")
        rows = x.transpose(0, 1).flatten(1)
        std = rows.std(1, unbiased=False)
        # a channel that is constant in the batch keeps its scale
        self.log_scale[block] = -torch.log(torch.where(std > 1e-6, std, torch.ones_like(std)))
        self.shift[block] = -rows.mean(1)
        self.initialized[block] = True

    def _check(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.channels:
            raise ShapeError(f"This ActNorm takes {self.channels} channels, not a tensor of shape {tuple(x.shape)}.")

    def push(self, x: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        if call.learn:
            self.learn(x)
        self.check_ready()
        return self.affine(x, self.log_scale[0], self.shift[0]), self.log_det(x, self.log_scale[0])

    def pull(self, y: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        self.check_ready()
        return self.affine_inverse(y, self.log_scale[0], self.shift[0]), -self.log_det(y, self.log_scale[0])

    def bi_lipschitz(self, norms: OperatorNorms) -> tuple[float, float]:
        scale = torch.exp(self.log_scale.detach().double())
        return float(scale.amin(1).prod()), float(scale.amax(1).prod())

    def _load_from_state_dict(self, *args: object) -> None:
        self._ready = False
        super()._load_from_state_dict(*args)
