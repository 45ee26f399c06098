"""Slow exact answers to test against."""

import torch
from torch import Tensor


def jacobians(f, x: Tensor) -> Tensor:
    """The Jacobian of a batched map at every sample, [batch, D, D], by autograd, one sample at a time."""
    rows = []
    for i in range(len(x)):
        matrix = torch.autograd.functional.jacobian(lambda a: f(a[None])[0].flatten(), x[i])
        rows.append(matrix.reshape(matrix.shape[0], -1))
    return torch.stack(rows)


def log_abs_det(f, x: Tensor) -> Tensor:
    """log|det| of the Jacobian of a batched map at every sample."""
    return torch.linalg.slogdet(jacobians(f, x)).logabsdet


def operator_matrix(f, shape) -> Tensor:
    """The matrix of a linear map of float64 tensors of `shape`, column by column."""
    dims = int(torch.tensor(shape).prod())
    units = torch.eye(dims, dtype=torch.float64).view(dims, *shape)
    return f(units).flatten(1).T
