"""Other libraries doing the same work, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def normflows_toy_step(sample: Callable[[], Tensor], blocks: int = 10, width: int = 128) -> Callable[[], None] | None:
    """A training step of normflows' residual flow with the paper's baseline network, four hidden layers of 128."""
    if find_spec("normflows") is None:
        return None
    nf: Any = import_module("normflows")
    flows = [
        nf.flows.Residual(nf.nets.LipschitzMLP([2, *[width] * 4, 2], init_zeros=True, lipschitz_const=0.9), reduce_memory=True)
        for _ in range(blocks)
    ]
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(2, trainable=False), flows)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        model.forward_kld(sample()).backward()
        optimizer.step()
        nf.utils.update_lipschitz(model, 5)

    return step


def flowcon_toy_step(sample: Callable[[], Tensor], blocks: int = 10) -> Callable[[], None] | None:
    """A training step of flowcon's i-DenseNet: depth 3, growth 16, CLipSwish, the exact log-determinant."""
    if find_spec("flowcon") is None:
        return None
    block: Any = import_module("flowcon.transforms.lipschitz.iresblock").iResBlock
    net: Any = import_module("flowcon.nn.nets.invertible_densenet").DenseNet
    model = torch.nn.ModuleList(
        [block(net(dimension=2, densenet_depth=3, densenet_growth=16), brute_force=True) for _ in range(blocks)]
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        z, total = sample(), torch.zeros(())
        for each in model:
            z, log_det = each(z)
            total = total + log_det.flatten()
        (z.square().sum(1) / 2 - total).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
