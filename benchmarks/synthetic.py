"""Tables of eight columns with nonlinear structure, whose densities are known: for choosing settings and for comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

Array = np.ndarray[Any, Any]
Drawn = tuple[Array, Array]  # rows, and the log-density of each


def waves(n: int, seed: int) -> Drawn:
    """Two clusters, a sine, heavy tails, a product, a ring, a product on the ring and a skewed column."""
    random = np.random.default_rng(seed)
    left = random.random(n) < 0.4
    a = np.where(left, -1.5, 1.0) + np.where(left, 0.4, 0.7) * random.normal(size=n)
    log_p = np.logaddexp(np.log(0.4) + stats.norm(-1.5, 0.4).logpdf(a), np.log(0.6) + stats.norm(1.0, 0.7).logpdf(a))
    columns = [a]

    def add(x: Array, law: Any) -> Array:
        nonlocal log_p
        columns.append(x)
        log_p = log_p + law.logpdf(x)
        return x

    b = add(np.sin(3 * a) + 0.2 * random.normal(size=n), stats.norm(np.sin(3 * a), 0.2))
    spread = 0.3 + 0.3 * np.abs(b)
    c = add(spread * random.standard_t(3, n), stats.t(3, 0, spread))
    add(a * np.tanh(c) + 0.25 * random.normal(size=n), stats.norm(a * np.tanh(c), 0.25))
    angle, radius = random.uniform(0, 2 * np.pi, n), 2 + 0.15 * random.normal(size=n)
    e, f = radius * np.cos(angle), radius * np.sin(angle)
    columns += [e, f]
    r = np.hypot(e, f)
    log_p = log_p + np.logaddexp(stats.norm(2, 0.15).logpdf(r), stats.norm(2, 0.15).logpdf(-r)) - np.log(2 * np.pi * r)
    add(0.5 * e * f + 0.3 * random.normal(size=n), stats.norm(0.5 * e * f, 0.3))
    scale = np.exp(0.5 * b)
    add(scale * random.gamma(2, 1, n), stats.gamma(2, 0, scale))
    return np.stack(columns, 1), log_p


def bends(n: int, seed: int) -> Drawn:
    """A parabola, noise that depends on other columns, Laplace tails, three clusters whose place turns with another column."""
    random = np.random.default_rng(seed)
    a = random.normal(size=n)
    log_p = stats.norm().logpdf(a)
    columns = [a]

    def add(x: Array, law: Any) -> Array:
        nonlocal log_p
        columns.append(x)
        log_p = log_p + law.logpdf(x)
        return x

    b = add(a**2 + 0.3 * random.normal(size=n), stats.norm(a**2, 0.3))
    width = 0.1 + 0.4 / (1 + np.exp(-2 * a))
    c = add(np.sin(2 * b) + width * random.normal(size=n), stats.norm(np.sin(2 * b), width))
    d = add(random.laplace(0, 1, n), stats.laplace())
    add(a * d + 0.2 * random.normal(size=n), stats.norm(a * d, 0.2))
    turn, which = 0.7 * c, random.integers(0, 3, n)
    centres = [(2 * np.cos(turn + 2 * np.pi * k / 3), 2 * np.sin(turn + 2 * np.pi * k / 3)) for k in range(3)]
    e, f = (np.choose(which, [centre[i] for centre in centres]) + 0.35 * random.normal(size=n) for i in range(2))
    columns += [e, f]
    parts = [stats.norm(x, 0.35).logpdf(e) + stats.norm(y, 0.35).logpdf(f) for x, y in centres]
    log_p = log_p + np.logaddexp.reduce(parts) - np.log(3)
    add(np.abs(e) * np.cos(2 * d) + 0.25 * random.normal(size=n), stats.norm(np.abs(e) * np.cos(2 * d), 0.25))
    return np.stack(columns, 1), log_p


SYNTHETIC: dict[str, Callable[[int, int], Drawn]] = {"waves": waves, "bends": bends}
