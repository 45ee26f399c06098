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
    """A bound L on Lip(g) of one residual block, and the bounds it is made of."""

    name: str
    L: float
    layers: tuple[tuple[str, float], ...]

    @property
    def contractive(self) -> bool:
        return self.L < 1


@dataclass(frozen=True)
class Certificate:
    """What is guaranteed about a flow. `lower |x - y| <= |F(x) - F(y)| <= upper |x - y|` after the preprocessing."""

    norm: float
    blocks: tuple[BlockCertificate, ...]
    lower: float
    upper: float

    @property
    def L(self) -> float:
        """The largest bound of any block; 0 when there is no residual block."""
        return max((block.L for block in self.blocks), default=0.0)

    @property
    def contractive(self) -> bool:
        """Whether every residual block is certified to be invertible."""
        return all(block.contractive for block in self.blocks)

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        table = Table(title=f"Lipschitz certificate, {'inf' if math.isinf(self.norm) else int(self.norm)}-norm")
        for column in ("block", "L", "layers", "invertible"):
            table.add_column(column, justify="left" if column == "block" else "right")
        for block in self.blocks:
            layers = " ".join(f"{bound:.3f}" for _, bound in block.layers)
            table.add_row(block.name, f"{block.L:.4f}", layers, "yes" if block.contractive else "NOT CERTIFIED")
        console = Console(width=100, record=False, force_terminal=False)
        with console.capture() as capture:
            console.print(table)
        bad = [block.name for block in self.blocks if not block.contractive]
        verdict = f"not contractive: {', '.join(bad)}" if bad else "every residual block is contractive"
        return f"{capture.get()}bi-Lipschitz constants {self.lower:.3g} and {self.upper:.3g}; largest L {self.L:.4f}; {verdict}"
