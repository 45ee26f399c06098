"""A search for the pair of points that a map moves apart the most."""

import math

import torch


def largest_ratio(f, shape, norm=2.0, steps=150, pairs=16):
    """The largest |f(x) - f(y)| / |x - y| that gradient ascent finds, over the midpoint and the difference of x and y."""
    middle = torch.randn(pairs, *shape, dtype=torch.float64).mul_(2).requires_grad_()
    raw = torch.randn(pairs, *shape, dtype=torch.float64).requires_grad_()
    optimizer = torch.optim.Adam([middle, raw], lr=0.1)
    best = 0.0
    for _ in range(steps):
        apart = raw.tanh() if math.isinf(norm) else 0.5 * raw  # the worst difference in the maximum norm is all signs
        size = torch.linalg.vector_norm(apart.flatten(1), norm, dim=1)
        above, below = f(torch.cat([middle + apart / 2, middle - apart / 2])).chunk(2)
        change = torch.linalg.vector_norm((above - below).flatten(1), norm, dim=1)
        ratio = change / size
        best = max(best, float(ratio.detach().max()))
        optimizer.zero_grad()
        (-ratio.log().sum()).backward()
        optimizer.step()
    return best
