"""What a flow asks of the tensors it is given, each answered with a sentence that names what is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from idensenet.bijections import Bijection
from idensenet.errors import DataError, DeviceError, DtypeError, InputError, NonFiniteError, OptionError, ShapeError

ROUNDING = 2**-10  # how far rounding may move a row inside a model, where deviations are about one


def is_batched(x: object) -> bool:
    """Whether a tensor is one that torch.func.vmap hands to a function, whose values cannot be read."""
    asked = getattr(getattr(torch._C, "_functorch", None), "is_batchedtensor", None)
    return isinstance(x, Tensor) and asked is not None and bool(asked(x))


def check_tensor(x: Tensor, shape: tuple[int, ...], device: torch.device, what: str) -> None:
    """A batch of samples of this shape, on this device."""
    if is_batched(x):
        raise InputError(f"{what} comes from vmap, which a flow cannot be used with: it takes a batch of samples itself.")
    if not isinstance(x, Tensor):
        raise DtypeError(f"{what} must be a torch tensor, not {type(x).__name__}; use torch.as_tensor.")
    if tuple(x.shape[1:]) != shape or x.ndim == 0:
        raise ShapeError(f"{what} must have the shape (batch, {', '.join(map(str, shape))}), not {tuple(x.shape)}.")
    if x.device != device:
        raise DeviceError(f"{what} is on {x.device} but the flow is on {device}; move one of them with .to().")


def check_float(x: Tensor, dtype: torch.dtype, what: str, look: bool) -> None:
    """Numbers of this type, and all of them finite where one may look."""
    if x.dtype != dtype:
        raise DtypeError(f"{what} is {x.dtype} but the flow is {dtype}; convert one of them with .to().")
    if look and not bool(torch.isfinite(x).all()):
        bad = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
        raise NonFiniteError(f"{what} has NaN or infinity in {len(bad)} rows, the first is row {bad[0]}; drop or fill them.")


def check_computed(x: Tensor, what: str, *results: Tensor) -> None:
    """Results for each sample of x that are numbers."""
    finite = torch.stack([torch.isfinite(each).reshape(len(x), -1).all(1) for each in results]).all(0)
    if bool(finite.all()):
        return
    bad = (~finite).nonzero().flatten().tolist()
    dtype = str(results[0].dtype).removeprefix("torch.")
    largest = float(x[bad[0]].detach().double().abs().max())
    raise NonFiniteError(
        f"{what} cannot be computed in {dtype} for {len(bad)} of {len(x)} rows: row {bad[0]} (values up to {largest:.3g}) "
        f"leads out of its range; {'' if dtype == 'float64' else 'use a flow in float64, or '}drop such rows."
    )


def check_levels(x: Tensor, levels: int, look: bool) -> None:
    """Integers from 0 to levels - 1, as far as one may look."""
    if x.dtype != torch.uint8:
        raise DtypeError(
            f"x must hold integer levels 0 to {levels - 1} as torch.uint8, not {x.dtype}; "
            "levels plus noise are taken with dequantized=True."
        )
    if look and levels < 256 and len(x) and int(x.max()) >= levels:
        raise OptionError(f"x has the level {int(x.max())}, but this flow knows 0 to {levels - 1}; rescale the images.")


def check_range(x: Tensor, levels: int, alpha: float) -> None:
    """A logit ends a little outside of its range; a flow's own samples may lie in that margin."""
    low, high = float(x.min()), float(x.max())
    margin = levels * alpha / (1 - 2 * alpha)
    if low < -margin or high > levels + margin:
        raise OptionError(f"Dequantised pixels must lie in [0, {levels}], not in [{low:.4g}, {high:.4g}]; rescale them.")


def check_rounding(x: Tensor, before: Bijection, dtype: torch.dtype, what: str) -> None:
    """Rows that are the same to a model when they are rounded to its number type, which comes before its first map."""
    rounding_check(before, dtype, what)(x)


def rounding_check(before: Bijection, dtype: torch.dtype, what: str) -> Callable[[Tensor], None]:
    """The same for many batches of rows: the exact map is made once."""
    exact = copy.deepcopy(before).cpu().double()

    @torch.no_grad()
    def check(x: Tensor) -> None:
        if dtype in (x.dtype, torch.float64):
            return
        right, found = (exact.encode(rows.cpu().double()).flatten(1) for rows in (x, x.to(dtype)))
        off = (right - found).abs().amax(1) > ROUNDING * (1 + right.abs().amax(1))
        if bool(off.any()):
            raise DataError(
                f"{int(off.sum())} of {len(x)} rows of {what} lose digits that matter in {str(dtype).removeprefix('torch.')}; "
                "use a model in float64 (--train.precision 64-true, or dtype='float64'), or subtract an offset before training."
            )

    return check
