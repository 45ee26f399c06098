"""Small flows and data that several tests use."""

import math

import torch
from torch import Tensor

import idensenet as idn
from idensenet.flow import Flow
from idensenet.lipschitz import LipschitzConv2d


def images(flow: Flow, n: int, seed: int = 0) -> Tensor:
    """Smooth gradients plus noise, as uint8 levels of the flow's shape."""
    generator = torch.Generator().manual_seed(seed)
    c, h, w = flow.shape
    slopes = torch.rand(n, c, 2, generator=generator) * 2 - 1
    rows, columns = torch.linspace(-1, 1, h)[:, None], torch.linspace(-1, 1, w)
    smooth = slopes[:, :, 0, None, None] * rows + slopes[:, :, 1, None, None] * columns
    x = torch.sigmoid(2 * smooth + 0.3 * torch.randn(n, c, h, w, generator=generator))
    return (x * flow.levels).floor().clamp(0, flow.levels - 1).to(torch.uint8)


def points(n: int, seed: int = 0) -> Tensor:
    """A ring, for toy flows."""
    generator = torch.Generator().manual_seed(seed)
    angle = 2 * math.pi * torch.rand(n, generator=generator)
    return 2 * torch.stack([angle.cos(), angle.sin()], 1) + 0.2 * torch.randn(n, 2, generator=generator)


def data(flow: Flow, n: int, seed: int = 0) -> Tensor:
    if flow.levels is not None:
        return images(flow, n, seed)
    if flow.shape == (2,):
        return points(n, seed).to(flow.dtype)
    return torch.randn(n, *flow.shape, generator=torch.Generator().manual_seed(seed)).to(flow.dtype)


def small_images(**overrides) -> Flow:
    """A flow on 8 x 8 images with every kind of part, initialised."""
    torch.manual_seed(0)
    options = {"blocks": (1, 1), "growth": 8, "fc_blocks": 1, "fc_first": 8, "fc_growth": 4, **overrides}
    flow = idn.build("digits-idensenet", **options)
    flow.initialize(images(flow, 16))
    return flow


def small_toy(**overrides) -> Flow:
    torch.manual_seed(0)
    return idn.build("toy-idensenet", **{"blocks": (2,), "depth": 2, "growth": 4, **overrides})


def train(flow: Flow, steps: int, batch: int, lr: float = 1e-3, seed: int = 0, warmup: int = 1) -> None:
    """Adam on the negative log-likelihood."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(flow.parameters(), lr)
    flow.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / warmup)
        optimizer.zero_grad()
        (-flow.log_prob(data(flow, batch, seed + step), generator).mean() / flow.dims).backward()
        optimizer.step()
    flow.eval()


def coarse_norms(flow: Flow) -> Flow:
    """Power iteration stopped early: for tests in which a norm that is some percent off changes nothing."""
    for module in flow.modules():
        if isinstance(module, LipschitzConv2d):
            module.tolerance = 0.1
    return flow
