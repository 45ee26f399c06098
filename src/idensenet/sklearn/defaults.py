"""Options that follow the table: what None stands for, by the numbers of rows and columns."""

from __future__ import annotations

from dataclasses import dataclass

FOLDED = 400  # rows below which a fifth of them says too little, and all are held out in turn
EXACT = 12  # columns up to which training computes whole Jacobians; beyond, an estimate of the log-determinant is cheaper
SCORED = 128  # columns up to which scores are exact
SMALL = 2000  # rows below which flows are small, and start from a mixture of Gaussians that held-out rows choose
RICH = 150  # rows for each column from which sines pay: they learn fastest, and learn a smaller table by heart
HELD_OUT = 0.15, 5000  # share of the rows that is held out, and the most rows


@dataclass(frozen=True)
class Settings:
    """The options of a fit with nothing left open.

    Args:
        blocks: Number of residual blocks.
        depth: Dense layers in each block.
        growth: Features that a dense layer adds.
        activation: Name of the activation.
        beta: Where the activations start: the factor inside of the swish or the sine, up to a softplus.
        log_det: "exact" or "estimate".
        learning_rate: The highest learning rate of the schedule.
        max_iter: Most steps of the optimiser.
        batch_size: Rows in a step.
        folds: Number of parts that are held out in turn; one holds out a single part.
        components: Gaussians in the mixture that a density starts from; None leaves the number to held-out rows.
    """

    blocks: int
    depth: int
    growth: int
    activation: str
    beta: float
    log_det: str
    learning_rate: float
    max_iter: int
    batch_size: int
    folds: int
    components: int | None = None


def settings_for(rows: int, columns: int) -> Settings:
    """Settings for a table of this size.

    >>> settings_for(20_000, 8).activation, settings_for(150, 4).activation
    ('sine', 'clipswish')
    """
    small, rich, exact = rows < SMALL, rows >= max(SMALL, RICH * columns), columns <= EXACT
    return Settings(
        blocks=3 if rows < FOLDED else 6 if small else 12 if rich else 8,
        depth=1 if rich else 2,
        growth=32 if small else min(256, 16 * ((4 if rich else 3) + columns // 12)),
        activation="sine" if rich else "clipswish",
        beta=3.0 if rich else 10.0,
        log_det="exact" if exact else "estimate",
        learning_rate=(2 if rich else 1) * (2e-2 if exact else 1e-2),
        max_iter=600 if small else 2600 if exact else 1200,
        batch_size=min(128, max(50, rows // 8)),
        folds=3 if rows < FOLDED else 1,
        components=None if small else 1,
    )


def held_out_rows(rows: int, fraction: float | None) -> int:
    """How many rows a single split holds out."""
    wanted = min(round(HELD_OUT[0] * rows), HELD_OUT[1]) if fraction is None else round(fraction * rows)
    return min(max(2, wanted), rows - 2)
