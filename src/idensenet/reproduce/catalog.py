"""All experiments, by name."""

from __future__ import annotations

from idensenet.errors import UnknownNameError, nearest
from idensenet.reproduce import beyond, density, eta, figures, hybrids, matching, parameters, runtime, signal, toy, variants
from idensenet.reproduce.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for part in (parameters, signal, figures, toy, matching, density, variants, hybrids, runtime, eta, beyond)
    for experiment in part.EXPERIMENTS
}


def experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise UnknownNameError(f"There is no experiment {name!r}; {nearest(name, [*EXPERIMENTS, 'all'])}")
    return EXPERIMENTS[name]
