"""The weighted concatenation: h(x) = lip * [eta1_hat x ; eta2_hat phi(W x + b)]."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idensenet.errors import OptionError
from idensenet.lipschitz.activations import Activation
from idensenet.lipschitz.linear import LipschitzMap


def p_norm(pair: tuple[float, float], p: float) -> float:
    """The p-norm of two numbers."""
    return max(pair) if math.isinf(p) else (pair[0] ** p + pair[1] ** p) ** (1 / p)


def concatenation_weights(k: Tensor, p: float) -> Tensor:
    """The normalised weights of input and transformation, for pairs k along the last dimension."""
    eta = F.softplus(k) + 0.1
    size: Tensor = torch.linalg.vector_norm(eta, p, dim=-1, keepdim=True)
    return eta / size


class DenseLayer(nn.Module):
    """Concatenates its input with a transformation of it, weighted so that the whole is `lip`-Lipschitz, for each of K blocks.

    eta = softplus(k) + 0.1, divided by the p-norm of the pair (appendix B of the paper: the concatenation of a K1- and a
    K2-Lipschitz map is (K1^p + K2^p)^(1/p)-Lipschitz). A fixed concatenation has no parameter k; a learnable one can be
    frozen and switched on with `learn`.

    Args:
        linear: The linear maps.
        activation: The activation behind them.
        learnable: Whether the weights of the concatenation are parameters.
        lip: Bound on the Lipschitz constant of the layer.
    """

    def __init__(self, linear: LipschitzMap, activation: Activation, learnable: bool = True, lip: float = 0.98) -> None:
        super().__init__()
        if not 0 < lip < 1:
            raise OptionError(f"lip={lip} must lie strictly between 0 and 1, or the block may have no inverse.")
        self.linear, self.activation, self.learnable, self.lip = linear, activation, learnable, lip
        start = torch.ones(linear.blocks, 2)
        if learnable:
            self.k = nn.Parameter(start)
        else:
            self.register_buffer("k", start)

    def learn(self, on: bool = True) -> None:
        """Switch the learning of the concatenation on or off; a fixed one stays fixed.

        Args:
            on: Whether they learn.
        """
        if isinstance(self.k, nn.Parameter):
            self.k.requires_grad_(on)
            if not on:
                self.k.grad = None

    def eta(self) -> Tensor:
        """The two normalised weights of input and transformation, without `lip`: [K, 2].

        Returns:
            The normalised weights, [K, 2].
        """
        return concatenation_weights(self.k, self.linear.norm)

    def lipschitz(self, linear_norms: list[float]) -> list[float]:
        """A bound for the layer of each block, given one for its linear map.

        Args:
            linear_norms: A bound on the norm of the linear map of each block.

        Returns:
            One bound for each block.
        """
        slope = self.activation.lipschitz(self.linear.norm)
        pairs = (self.lip * self.eta().detach().double()).tolist()
        return [p_norm((a, b * norm * slope), self.linear.norm) for (a, b), norm in zip(pairs, linear_norms, strict=True)]
