"""How much a benchmark does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """How much is done. SMALL is for tests of the benchmark itself."""

    batch: int = 8
    repeats: int = 5
    recipe: str = "cifar10-idensenet-small"
    blocks: tuple[int, ...] | None = None
    growth: int | None = None
    toy_blocks: int = 10
    toy_repeats: int = 60
    draws: int = 40
    digits: int = 16
    compile: bool = True

    @property
    def overrides(self) -> dict[str, object]:
        wanted = {"blocks": self.blocks, "growth": self.growth}
        return {name: value for name, value in wanted.items() if value is not None}


SMALL = Size(2, 2, "digits-idensenet", (1,), 8, 2, 3, 4, 2, False)
