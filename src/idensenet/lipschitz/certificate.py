"""What is guaranteed: a bound on Lip(g) of every block, and the bi-Lipschitz constants of the flow as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

from idensenet.lipschitz.linear import LipschitzMap, refresh_norms


class OperatorNorms:
    """Certified norms of linear maps, one for each block, computed once."""

    def __init__(self, norm: float) -> None:
        self.norm = norm
        self._known: dict[LipschitzMap, list[float]] = {}

    def __call__(self, layer: LipschitzMap) -> list[float]:
        if layer not in self._known:
            refresh_norms(layer)  # the weights may have changed since
            self._known[layer] = layer.bounds()
        return self._known[layer]


@dataclass(frozen=True)
class BlockCertificate:
    """A bound L on Lip(g) of one block, and the bounds it is made of."""

    name: str
    L: float
    layers: tuple[tuple[str, float], ...]

    @property
    def contractive(self) -> bool:
        return self.L < 1


@dataclass(frozen=True)
class Certificate:
    """What is guaranteed about a flow. `lower |x - y| <= |F(x) - F(y)| <= upper |x - y|` after the preprocessing.

    Args:
        norm: The p-norm of all bounds.
        blocks: The certificate of each block.
        lower: Lower bi-Lipschitz constant.
        upper: Upper bi-Lipschitz constant.
    """

    norm: float
    blocks: tuple[BlockCertificate, ...]
    lower: float
    upper: float

    @property
    def L(self) -> float:
        """The largest bound of any block; 0 when there is no block with a g."""
        return max((block.L for block in self.blocks), default=0.0)

    @property
    def contractive(self) -> bool:
        """Whether every block is certified to be invertible."""
        return all(block.contractive for block in self.blocks)

    def __str__(self) -> str:
        lines = [f"Lipschitz certificate, {'inf' if math.isinf(self.norm) else int(self.norm)}-norm"]
        for block in self.blocks:
            layers = " ".join(f"{bound:.3f}" for _, bound in block.layers)
            invertible = "invertible" if block.contractive else "NOT CERTIFIED"
            lines.append(f"block {block.name:<6} L {block.L:.4f}  {invertible}  layers {layers}")
        bad = [block.name for block in self.blocks if not block.contractive]
        verdict = f"not contractive: {', '.join(bad)}" if bad else "every block is contractive"
        lines.append(f"bi-Lipschitz constants {self.lower:.3g} and {self.upper:.3g}; largest L {self.L:.4f}; {verdict}")
        return "\n".join(lines)
