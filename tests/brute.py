"""Slow exact answers to test against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from idensenet.lipschitz import DenseLayer, LipschitzMap, refresh_norms


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


def convolve(x: Tensor, weight: Tensor) -> Tensor:
    """The zero-padded convolution that keeps the size of its maps."""
    return F.conv2d(x, weight, padding=weight.shape[-1] // 2)


def _swish(x: Tensor, beta: Tensor) -> Tensor:
    return x * torch.sigmoid(F.softplus(beta) * x) / 1.1


def _clipswish(a, x: Tensor, k: int) -> Tensor:
    return torch.cat([_swish(x, a.beta[k]), _swish(-x, a.beta[k])], 1) / a.divisors[a.norm]


def _leaky(a, x: Tensor, k: int) -> Tensor:
    share = torch.sigmoid(a.alpha[k])
    return share * x + (1 - share) * _swish(x, a.beta[k])


def _pila(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, (12.5 * x**3 - 5 * x**2 + x) * torch.exp(5 * x))


def _cpila(a, x: Tensor, k: int) -> Tensor:
    return torch.cat([_pila(x - 0.2), _pila(-x - 0.2)], 1) / a.divisors[a.norm]


def _sine(a, x: Tensor, k: int) -> Tensor:
    b = F.softplus(a.beta[k]).clamp(min=0.01)
    return torch.cat([torch.sin(b * x), torch.cos(b * x)], 1) / b * (0.5**0.5 if a.norm == 1 else 1)


FORMULAS = {  # activation: its definition, as a function of the module, x and the block
    "lipswish": lambda a, x, k: _swish(x, a.beta[k]),
    "leakylipswish": _leaky,
    "clipswish": _clipswish,
    "cpila": _cpila,
    "sine": _sine,
    "crelu": lambda a, x, k: torch.cat([F.relu(x), F.relu(-x)], 1),
    "relu": lambda a, x, k: F.relu(x),
    "elu": lambda a, x, k: F.elu(x),
    "tanh": lambda a, x, k: torch.tanh(x),
    "sigmoid": lambda a, x, k: torch.sigmoid(x),
    "identity": lambda a, x, k: x,
}


def plain_activation(act, x: Tensor, block: int = 0) -> Tensor:
    """An activation from its definition; one that is not in FORMULAS is asked itself."""
    name = type(act).__name__.lower()
    return FORMULAS[name](act, x, block) if name in FORMULAS else act(x, block)


def plain_map(layer, x: Tensor, block: int = 0) -> Tensor:
    """W x + b of one block, with the weight in use."""
    weight, bias = layer.normalized()[block], layer.bias[block]
    if weight.ndim == 2:
        return x @ weight.T + bias
    return convolve(x, weight) + bias[:, None, None] if weight.ndim == 4 else layer(x, block)


def plain_layer(layer, x: Tensor, block: int = 0) -> Tensor:
    """The weighted concatenation as the paper writes it: lip * [eta1 x ; eta2 phi(W x + b)] / |(eta1, eta2)|_p."""
    eta = F.softplus(layer.k[block]) + 0.1
    eta = layer.lip * eta / torch.linalg.vector_norm(eta, layer.linear.norm)
    moved = plain_activation(layer.activation, plain_map(layer.linear, x, block), block)
    return torch.cat([eta[0] * x, eta[1] * moved], 1)


def plain_network(net, x: Tensor, block: int = 0, refresh: bool = True) -> Tensor:
    """g(x) of one block, layer by layer, nothing folded. With `refresh`, for the weights as they are now."""
    if refresh:
        refresh_norms(net)
    for layer in net.layers:
        if isinstance(layer, DenseLayer):
            x = plain_layer(layer, x, block)
        elif isinstance(layer, LipschitzMap):
            x = plain_map(layer, x, block)
        else:
            x = plain_activation(layer, x, block)
    return x


def scrambled(module, gain: float = 4.0):
    """The module with weights well above their bounds, and with other parameters for every block."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn_like(p))
            if p.ndim > 2:
                p.mul_(gain)
    return module
