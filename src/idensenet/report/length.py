"""Whether a run was long enough, in words."""

from __future__ import annotations

import math

from idensenet.report.story import Story

EVALUATIONS = 4  # that it takes to see a trend
QUARTER = 0.75  # where the last quarter of a run begins
GAINING = 0.05  # share of the whole gain that the last quarter of a finished run may still have
SHORT = 0.5  # share of the recipe's length below which a run is short


def _scores(story: Story) -> tuple[str, list[tuple[int, float]], float]:
    """The unit, steps with their held-out scores, lower is better, and the standard error of the last one."""
    evaluated = [entry for entry in story.entries if entry.get("kind") == "eval"]
    name, unit = ("bits_per_dim", "bits per dimension") if story.flow.levels else ("nats", "nats")
    found = [(int(entry["step"]), float(entry.get(name, math.nan))) for entry in evaluated]
    error = float(evaluated[-1].get(f"{name}_error", 0.0)) if evaluated else 0.0
    return unit, [(step, score) for step, score in found if math.isfinite(score)], error if math.isfinite(error) else 0.0


def last_gain(scores: list[tuple[int, float]], error: float = 0.0) -> tuple[float, bool] | None:
    """What the last quarter of a run gained, and whether that is much.

    Args:
        scores: Steps with held-out scores, in order; lower is better.
        error: The standard error of a score.

    Returns:
        The gain, and whether the last score is the best one and the gain more than a twentieth of the whole; None if there are
        too few scores to tell, or if they have changed by less than their standard error.
    """
    if len(scores) < EVALUATIONS:
        return None
    last, best = scores[-1][1], min(score for _, score in scores)
    early = [score for step, score in scores[:-1] if step <= QUARTER * scores[-1][0]] or [scores[0][1]]
    gain, whole = early[-1] - last, scores[0][1] - last
    if abs(whole) < error:
        return None
    return gain, last <= best and gain > GAINING * whole > 0


def _share(story: Story) -> tuple[float, str] | None:
    """How much of the recipe's training there was, and in words; None if its length says nothing about this data."""
    recipe, t, d = story.recipe, story.config.train, story.config.data
    if recipe is None or d.table or d.folder:
        return None
    theirs = recipe.config.train
    if theirs.max_steps is not None:
        seen = story.step * t.batch_size * t.accumulate * t.devices
        whole = theirs.max_steps * theirs.batch_size * theirs.accumulate * theirs.devices
        return seen / whole, f"{theirs.max_steps:,} steps of {theirs.batch_size * theirs.accumulate * theirs.devices} samples"
    epoch = (story.last("train") or {}).get("epoch")
    return None if epoch is None else (float(epoch) / theirs.epochs, f"{theirs.epochs:g} epochs")


def undertrained(story: Story) -> list[str]:
    """Why more training is likely to help.

    Args:
        story: What is known about a run.

    Returns:
        Sentences; none if nothing speaks for more training.
    """
    found, planned = [], story.config.train.max_steps
    if planned is not None and story.step < planned:
        found.append(f"The run is not finished: this is step {story.step:,} of {planned:,}.")
    unit, scores, error = _scores(story)
    gain = last_gain(scores, error)
    if gain is not None and gain[1]:
        found.append(f"The held-out score still fell by {gain[0]:.3g} {unit} in the last quarter of the run.")
    share = _share(story)
    if share is not None and share[0] < SHORT and (gain is None or gain[1]):
        found.append(
            f"The recipe {story.recipe_name} trains for {share[1]}; this model has seen {100 * share[0]:.2g} % of that."
        )
    return found
