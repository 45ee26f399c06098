"""Flows in Pyro (`pip install 'idensenet[pyro]'`): the distribution with what Pyro adds to torch's.

The transform of `idensenet.distributions` works in `pyro.distributions.TransformedDistribution` as it is. Where weights are to
be learned, register the flow with `pyro.module("flow", flow)`.
"""

from __future__ import annotations

from typing import Any

from idensenet import distributions
from idensenet.extras import needs

with needs("idensenet.pyro"):
    from pyro.distributions.torch_distribution import TorchDistributionMixin


class FlowDistribution(distributions.FlowDistribution, TorchDistributionMixin):
    """A flow as a distribution that `pyro.sample` takes."""

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlowDistribution:
        new = self._get_checked_instance(FlowDistribution, _instance)  # type: ignore[no-untyped-call]
        expanded = super().expand(batch_shape, new)
        assert isinstance(expanded, FlowDistribution)
        return expanded
