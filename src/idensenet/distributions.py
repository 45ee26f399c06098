"""Bijections and flows for torch.distributions: a transform, and a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.transforms import Transform

from idensenet.bijections import Bijection
from idensenet.errors import OptionError, ShapeError
from idensenet.flow import Flow


def _real(dims: int) -> constraints.Constraint:
    """Real tensors of so many dimensions as events."""
    return constraints.independent(constraints.real, dims)  # type: ignore[no-untyped-call]


class BijectionTransform(Transform):
    """x -> F(x) for a bijection of events of a shape, at a context if there is one: [*batch, *event], any batch.

    With `cache_size=1` the last value and its log-determinant, which are computed together, are kept and returned for the same
    tensors: half the work where weights stay as they are. Where they are trained leave it at 0, as in torch.

    Args:
        bijection: The bijection.
        event_shape: Shape of an event.
        context: A context [*batch, context], or None.
        cache_size: 1 to keep the last value, 0 for none.

    >>> from torch.distributions import Independent, Normal, TransformedDistribution
    >>> import idensenet as idn
    >>> flow = idn.build("toy-idensenet", blocks=(2,))
    >>> base = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    >>> TransformedDistribution(base, BijectionTransform(flow.body, flow.shape).inv).log_prob(torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    bijective = True

    def __init__(
        self, bijection: Bijection, event_shape: Sequence[int], context: Tensor | None = None, cache_size: int = 0
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.bijection, self.event_shape, self.context = bijection, tuple(event_shape), context
        self.domain = self.codomain = _real(len(self.event_shape))
        self._last: tuple[Tensor, Tensor, Tensor] | None = None  # x, F(x), log-determinant

    @property
    def sign(self) -> int:
        """Residual blocks keep the orientation; torch knows it in one dimension only."""
        return 1 if self.event_shape in ((), (1,)) else super().sign

    def with_cache(self, cache_size: int = 1) -> BijectionTransform:
        """Returns the same transform with a cache of this size.

        Args:
            cache_size: 1 to keep the last value, 0 for none.

        Returns:
            This transform, or a copy.
        """
        if cache_size == self._cache_size:
            return self
        return BijectionTransform(self.bijection, self.event_shape, self.context, cache_size)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BijectionTransform)
            and other.bijection is self.bijection
            and other.event_shape == self.event_shape
            and other.context is self.context
        )

    __hash__ = Transform.__hash__

    def _flat(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor], torch.Size]:
        """[rows, *event], the context of each row, and the batch shape."""
        split = x.ndim - len(self.event_shape)
        if split < 0 or tuple(x.shape[split:]) != self.event_shape:
            raise ShapeError(f"A transform of events of shape {self.event_shape} got a tensor of shape {tuple(x.shape)}.")
        batch = x.shape[:split]
        given = {}
        if self.context is not None:
            given["context"] = self.context.expand(*batch, self.context.shape[-1]).reshape(-1, self.context.shape[-1])
        return x.reshape(-1, *self.event_shape), given, batch

    def _pair(self, x: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        rows, given, batch = self._flat(x)
        run: Callable[..., tuple[Tensor, Tensor]] = self.bijection.inverse if inverse else self.bijection
        y, log_det = run(rows, **given)
        return y.reshape(x.shape), log_det.reshape(batch)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """F(x) and its log-determinant, from one pass.

        Args:
            x: Events [*batch, *event].

        Returns:
            y [*batch, *event] and log-determinants [*batch].
        """
        y, log_det = self._pair(x, False)
        return y, log_det

    def _call(self, x: Tensor) -> Tensor:
        y, log_det = self._pair(x, False)
        self._last = (x, y, log_det) if self._cache_size else None
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        x, log_det = self._pair(y, True)
        self._last = (x, y, -log_det) if self._cache_size else None
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns log|det J_F(x)|.

        Args:
            x: Events [*batch, *event].
            y: F(x).

        Returns:
            Log-determinants [*batch].
        """
        if self._last is not None and self._last[0] is x and self._last[1] is y:
            return self._last[2]
        return self._pair(x, False)[1]

    def forward_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """Returns the shape of F(x), which is the shape of x.

        Args:
            shape: Shape of x.

        Returns:
            Shape of y.
        """
        return shape

    def inverse_shape(self, shape: Sequence[int]) -> Sequence[int]:
        """Returns the shape of x, which is the shape of F(x).

        Args:
            shape: Shape of y.

        Returns:
            Shape of x.
        """
        return shape

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_last": None}  # type: ignore[no-untyped-call]


class FlowDistribution(Distribution):
    """A flow on real numbers as a distribution; at contexts [*batch, context], a batch of distributions.

    `rsample` is differentiable in the weights and the context, by the implicit function theorem.

    Args:
        flow: The flow, on real numbers.
        context: Contexts [*batch, context], for a conditional flow.
        validate_args: As in torch.distributions.

    Raises:
        OptionError: The flow is of integer levels, or a context is missing or not taken.
        ShapeError: The context has another length.

    >>> import idensenet as idn
    >>> p = FlowDistribution(idn.load("moons"))
    >>> p.log_prob(p.sample((3, 4))).shape
    torch.Size([3, 4])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    has_rsample = True

    def __init__(self, flow: Flow, context: Tensor | None = None, validate_args: bool | None = None) -> None:
        if flow.levels is not None or flow.integers:
            raise OptionError(
                "This flow is of integer levels or whole numbers; only flows of real numbers fit torch.distributions."
            )
        if (context is None) != (flow.context == 0):
            needed = (
                f"takes a context of {flow.context} numbers; give it one" if flow.context else "takes no context; leave it out"
            )
            raise OptionError(f"This flow {needed}.")
        if context is not None and (context.ndim < 1 or context.shape[-1] != flow.context):
            raise ShapeError(f"The context must have {flow.context} numbers in its last dimension, not {tuple(context.shape)}.")
        self.flow, self.context = flow, context
        batch = torch.Size() if context is None else context.shape[:-1]
        super().__init__(batch, torch.Size(flow.shape), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """All real events."""
        return _real(len(self.event_shape))

    def expand(self, batch_shape: Any, _instance: Any = None) -> FlowDistribution:
        """Returns the same distribution with a larger batch shape.

        Args:
            batch_shape: The new batch shape.
            _instance: As in torch.distributions.

        Returns:
            The expanded distribution.
        """
        new: FlowDistribution = self._get_checked_instance(FlowDistribution, _instance)  # type: ignore[no-untyped-call]
        batch = torch.Size(batch_shape)
        new.flow = self.flow
        new.context = None if self.context is None else self.context.expand(*batch, self.context.shape[-1])
        super(FlowDistribution, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _given(self, shape: torch.Size) -> Tensor | None:
        """A context for each row of a batch of this shape."""
        if self.context is None:
            return None
        return self.context.expand(*shape, self.context.shape[-1]).reshape(-1, self.context.shape[-1])

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Returns samples that are differentiable in the weights and the context.

        Args:
            sample_shape: Shape of the draws.

        Returns:
            Samples [*sample, *batch, *event].

        Raises:
            ConvergenceError: The solver of the inverse did not reach its tolerance.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        batch = shape[: len(shape) - len(self.event_shape)]
        z = self.flow._latent(math.prod(batch), None, 1.0)
        x, _ = self.flow.inverse(z, context=self._given(batch))
        return x.reshape(shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Returns samples without a gradient.

        Args:
            sample_shape: Shape of the draws.

        Returns:
            Samples [*sample, *batch, *event].
        """
        with torch.no_grad():
            return self.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Returns the log-density of each event.

        Args:
            value: Events [*sample, *batch, *event].

        Returns:
            Log-densities, in nats.
        """
        if self._validate_args:
            self._validate_sample(value)
        events = len(self.event_shape)
        shapes = (value.shape[: value.ndim - events], self.batch_shape)
        batch: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        rows = value.expand(*batch, *self.event_shape).reshape(-1, *self.event_shape)
        return self.flow.log_prob(rows, context=self._given(batch)).reshape(batch)
