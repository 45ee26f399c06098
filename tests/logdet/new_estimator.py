"""A new estimator in one file: what a user would write. Tests call it by name and put it into the table of all estimators."""

from functools import partial

import torch
from torch import Tensor

from idensenet.logdet import LogDet, register_log_det
from idensenet.logdet.gradient import neumann
from idensenet.logdet.series import weighted_series

NAME = "unit-vectors"


class UnitVectorLogDet(LogDet):
    """The first 200 terms of the series, with the unit vectors as probes: no random number, and no bias to speak of."""

    def measure(self, g, x, draws, f, save=False) -> tuple[Tensor, Tensor]:
        dims = x[0].numel()
        units = torch.eye(dims, dtype=x.dtype).view(dims, 1, *x.shape[1:]) * dims**0.5  # the mean over probes is the trace
        return neumann(g, x, units.expand(dims, *x.shape), partial(weighted_series, torch.ones(200, 1), f), save)


register_log_det(NAME, UnitVectorLogDet)
