"""i-DenseNets as conditional density estimators of the `sbi` package (`pip install 'idensenet[sbi]'`)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from idensenet.config import Config
from idensenet.constructors import log_det_options
from idensenet.extras import needs
from idensenet.flow import Flow
from idensenet.models import build_config

with needs("idensenet.sbi"):
    from sbi.neural_nets.estimators.base import ConditionalDensityEstimator


class FlowEstimator(ConditionalDensityEstimator):  # type: ignore[misc]
    """A conditional flow with the interface that `sbi` trains, samples and evaluates.

    Args:
        net: A flow on vectors with a context.
        condition_shape: Shape of one condition, before the embedding.
        embedding_net: Maps conditions to the contexts of the flow.

    `net` stays a flow of this library: `net.certify()` returns its certified Lipschitz bounds.
    """

    def __init__(self, net: Flow, condition_shape: torch.Size, embedding_net: nn.Module) -> None:
        super().__init__(net=net, input_shape=torch.Size(net.shape), condition_shape=condition_shape)
        self._embedding_net = embedding_net

    @property
    def embedding_net(self) -> nn.Module:
        """The network that maps conditions to contexts."""
        return self._embedding_net

    def _embedded(self, condition: Tensor) -> Tensor:
        """Contexts [n, features] of conditions [n, *condition_shape]."""
        found: Tensor = self._embedding_net(condition)
        return found.flatten(1)

    def log_prob(self, input: Tensor, condition: Tensor) -> Tensor:
        """The log-density of every input given its condition.

        Args:
            input: Inputs [samples, batch, *shape] or [batch, *shape].
            condition: Conditions [batch, *condition_shape] or [samples, batch, *condition_shape]; batches broadcast.

        Returns:
            Log-densities [samples, batch] in nats.
        """
        condition_batch = condition.shape[-len(self.condition_shape) - 1]
        one_each = condition.dim() == len(self.condition_shape) + 1
        rows, conditions, batch = self._broadcast_and_align(input, condition)
        if one_each:  # a condition is embedded once, not once for each sample
            contexts = self._embedded(condition).expand(batch, -1) if condition_batch == 1 else self._embedded(condition)
            contexts = contexts.expand(len(rows), *contexts.shape).flatten(0, 1)
        else:
            contexts = self._embedded(conditions.flatten(0, 1))
        found: Tensor = self.net.log_prob(rows.flatten(0, 1), context=contexts)
        return found.view(len(rows), batch)

    def loss(self, input: Tensor, condition: Tensor) -> Tensor:
        """The negative log-density, which training minimises.

        Args:
            input: Inputs [batch, *shape].
            condition: Conditions [batch, *condition_shape].

        Returns:
            Losses [batch].
        """
        return -self.log_prob(input[None], condition)[0]

    def sample(self, sample_shape: torch.Size, condition: Tensor) -> Tensor:
        """Samples given each condition.

        Args:
            sample_shape: Shape of the samples for one condition.
            condition: Conditions [batch, *condition_shape].

        Returns:
            Samples [*sample_shape, batch, *shape].

        Raises:
            ConvergenceError: The solver did not reach its tolerance.
        """
        return self._draws(sample_shape, condition, with_density=False)[0]

    def sample_and_log_prob(self, sample_shape: torch.Size, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Samples given each condition, with their log-densities.

        Args:
            sample_shape: Shape of the samples for one condition.
            condition: Conditions [batch, *condition_shape].

        Returns:
            Samples [*sample_shape, batch, *shape] and log-densities [*sample_shape, batch].

        Raises:
            ConvergenceError: The solver did not reach its tolerance.
        """
        return self._draws(sample_shape, condition, with_density=True)

    def _draws(self, sample_shape: torch.Size, condition: Tensor, with_density: bool) -> tuple[Tensor, Tensor]:
        self._check_condition_shape(condition)
        contexts = self._embedded(condition.reshape(-1, *self.condition_shape))
        n, batch = math.prod(sample_shape), len(contexts)
        contexts = contexts.expand(n, *contexts.shape).flatten(0, 1)
        if with_density:
            x, log_prob = self.net.sample_and_log_prob(n * batch, context=contexts)
        else:
            x, log_prob = self.net.sample(n * batch, context=contexts), contexts[:, 0]
        return x.view(*sample_shape, batch, *self.input_shape), log_prob.view(*sample_shape, batch)


def density_estimator(
    *,
    blocks: int = 8,
    depth: int = 2,
    growth: int = 48,
    activation: str = "clipswish",
    beta: float = 10.0,
    lipschitz: float = 0.99,
    log_det: str | None = None,
    embedding_net: nn.Module | None = None,
) -> Callable[[Tensor, Tensor], FlowEstimator]:
    """Returns what `sbi` calls with the first simulations to build its network: `NPE(prior, density_estimator(...))`.

    The flow standardises parameters and contexts by these simulations and starts as a Gaussian.

    Args:
        blocks: Number of residual blocks.
        depth: Number of dense layers in a block.
        growth: Number of features that a dense layer adds.
        activation: Name of the activation.
        beta: Initial sharpness of the swish activations.
        lipschitz: Bound on the norm of each linear map, between 0 and 1.
        log_det: Estimator of log-determinants in training; by default exact up to 12 parameters, roulette beyond.
        embedding_net: Maps observations to a shorter vector; a copy is trained with the flow. None takes them as they are.

    Returns:
        A function of parameters [n, D] and observations [n, ...].

    Raises:
        InputError: If an option has a value that cannot be used; raised when the network is built.
    """

    def build(theta: Tensor, x: Tensor) -> FlowEstimator:
        embedding = nn.Identity() if embedding_net is None else copy.deepcopy(embedding_net)
        with torch.no_grad():
            contexts: Tensor = embedding(x.float()).flatten(1)
        features = theta[0].numel()
        flow = build_config(
            Config().replace(
                shape=(features,),
                context=contexts.shape[1],
                preprocess="whiten",
                block="dense",
                blocks=(blocks,),
                depth=depth,
                growth=growth,
                activation=activation,
                beta=beta,
                coeff=lipschitz,
                lip=1 - 0.1 * (1 - lipschitz),
                actnorm=False,
                start="identity",
                logdet=log_det_options(log_det, features),
            )
        ).to(theta.device)
        flow.standardize(theta.float().flatten(1), contexts)
        return FlowEstimator(flow, x[0].shape, embedding)

    return build
