"""The determinant of the whole Jacobian."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from idensenet.draws import Draws
from idensenet.errors import NonInvertibleError
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.logdet.base import Estimate, Linearizable, LogDet, PowerSeries

TOGETHER = 32  # dimensions whose unit vectors travel with the value


def unit_vectors(x: Tensor) -> Tensor:
    """[D, batch, *event]: every unit vector for every sample."""
    dims = math.prod(x.shape[1:])
    return torch.eye(dims, dtype=x.dtype, device=x.device).view(dims, 1, *x.shape[1:]).expand(dims, *x.shape)


def jacobian(J: LinearMap, x: Tensor, chunk: int = 256) -> Tensor:
    """The matrices of J at every sample, [batch, D, D], by products with unit vectors, `chunk` at a time."""
    columns = [J.matvec(part).flatten(2) for part in torch.split(unit_vectors(x), chunk)]
    return torch.cat(columns).permute(1, 2, 0)


def value_and_jacobian(g: Linearizable, x: Tensor) -> tuple[Tensor, Tensor]:
    """g(x) and its Jacobians [batch, D, D]: the branch with unit vectors as tangents."""
    if math.prod(x.shape[1:]) > TOGETHER:
        gx, J = g.linearize(x)
        return gx, jacobian(J, x)
    gx, columns, _ = g.push(x, unit_vectors(x))
    return gx, columns.flatten(2).permute(1, 2, 0)


def determinants(matrix: Tensor, f: PowerSeries) -> Tensor:
    """det(I + s J) of 2 x 2 matrices [..., batch, 2, 2] for each pair (a, s) of f, in closed form: [..., pairs, batch]."""
    a, b, c, d = matrix.flatten(-2).unbind(-1)
    return torch.stack([torch.addcmul((1 + s * a) * (1 + s * d), b, c, value=-s * s) for _, s in f.pairs], -2)


def checked_sign(value: Tensor, sign: Tensor) -> Tensor:
    """Logarithms of determinants [..., batch], whose signs must be positive."""
    # Reading the sign makes the host wait, so on an accelerator it is not read where gradients are recorded, and never in
    # compiled code: there a lost inverse shows as NaN, and certify() finds the block.
    if torch.compiler.is_compiling() or (sign.device.type != "cpu" and torch.is_grad_enabled()):
        return value * torch.where(sign > 0, 1.0, torch.nan)  # in the gradient, too
    if bool((sign > 0).all()):
        return value
    gone = (sign <= 0) & ~value.isnan()  # NaN is for the flow to tell: its samples lead out of the range of numbers
    if bool(gone.any()):
        lost = gone.view(-1, sign.shape[-1]).any(0).nonzero().flatten().tolist()
        raise NonInvertibleError(
            f"det(I + J) is not positive at sample {lost[0]} ({len(lost)} of {sign.shape[-1]}): the block has lost its "
            "inverse; certify() names the layers to blame."
        )
    return value


def value_and_spectrum(g: Linearizable, x: Tensor, f: PowerSeries) -> tuple[Tensor, Tensor]:
    """g(x), and what tr f(J) follows from: in two dimensions determinants [pairs, batch], else matrices [batch, D, D].

    For compiled functions, which take the determinants in the same pass.
    """
    gx, matrix = value_and_jacobian(g, x)
    return gx, determinants(matrix, f) if matrix.shape[-1] == 2 else matrix


class ExactLogDet(LogDet):
    """tr f(J) from the whole Jacobian; for small dimensions, and the oracle in tests.

    The Jacobians of all blocks of a stack are factorised together; two by two they have a closed form.

    >>> from idensenet.lipschitz import Pieces, dense_block
    >>> from idensenet.bijections import ResidualBlock
    >>> ResidualBlock(dense_block([2], 3, 16, Pieces()), ExactLogDet())(torch.zeros(5, 2))[1].shape
    torch.Size([5])
    """

    def measure(self, g: Linearizable, x: Tensor, draws: Draws, f: PowerSeries, save: bool = False) -> tuple[Tensor, Tensor]:
        """g(x), and Jacobians.

        Args:
            g: The prepared branch.
            x: Samples [batch, *event].
            draws: Not used.
            f: The function of the Jacobian.
            save: Save memory: rebuild the block in the backward pass.

        Returns:
            g(x), and what `total` takes.
        """
        if save and torch.is_grad_enabled():
            gx, matrix = checkpoint(value_and_jacobian, g, x, use_reentrant=False, preserve_rng_state=False)
            return gx, matrix
        return value_and_jacobian(g, x)

    def total(self, found: Tensor, f: PowerSeries) -> Estimate:
        if found.shape[-2:] == (2, 2) and found.ndim == 4:
            found = determinants(found, f)
        if found.ndim == 3:  # [blocks, pairs, batch]
            logs = checked_sign(torch.log(found.abs()), found).sum(0).unbind()
        else:  # [blocks, batch, D, D]
            unit = torch.eye(found.shape[-1], dtype=found.dtype, device=found.device)
            pairs = [torch.linalg.slogdet(unit + (found if s == 1 else s * found)) for _, s in f.pairs]
            logs = tuple(checked_sign(value, sign).sum(0) for sign, value in pairs)
        values = [log if a == 1 else a * log for (a, _), log in zip(f.pairs, logs, strict=True)]
        return Estimate(sum(values[1:], values[0]))
