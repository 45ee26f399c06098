"""Log-determinants and solvers by name, as a configuration asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from idensenet.config import LogDetConfig, SolverConfig
from idensenet.errors import OptionError, nearest
from idensenet.logdet import (
    LOG_DETS,
    AdaptiveLogDet,
    ExactLogDet,
    Geometric,
    KrylovLogDet,
    Law,
    LogDet,
    Poisson,
    RouletteLogDet,
    SeriesLogDet,
)
from idensenet.logdet.series import Probe
from idensenet.registry import Registry
from idensenet.solve import Anderson, Newton, Picard, Solver

Made = TypeVar("Made")


def chosen(option: str, name: str, known: Registry[Made] | dict[str, Callable[..., Made]]) -> Callable[..., Made]:
    """What an option names, or an error with the nearest name."""
    if name not in known:
        raise OptionError(f"{option}={name!r} is not known; {nearest(name, sorted(known))}")
    return known[name]


def _law(config: LogDetConfig) -> Law:
    laws: dict[str, Callable[..., Law]] = {"poisson": Poisson, "geometric": Geometric}
    return chosen("logdet.law", config.law, laws)(config.law_parameter)


def _probes(config: LogDetConfig, evaluation: bool) -> tuple[int, Probe]:
    kinds: dict[str, Callable[..., Probe]] = {"rademacher": lambda: "rademacher", "gaussian": lambda: "gaussian"}
    return config.eval_probes if evaluation else config.probes, chosen("logdet.probe", config.probe, kinds)()


def _series(config: LogDetConfig, evaluation: bool) -> LogDet:
    return SeriesLogDet(config.eval_terms if evaluation else config.terms, *_probes(config, evaluation))


def _roulette(config: LogDetConfig, evaluation: bool) -> LogDet:
    terms = config.eval_terms if evaluation else config.exact_terms
    return RouletteLogDet(_law(config), terms, *_probes(config, evaluation))


def _adaptive(config: LogDetConfig, evaluation: bool) -> LogDet:
    probes, probe = _probes(config, evaluation)
    return AdaptiveLogDet(config.tolerance, probes=probes, probe=probe)


def _krylov(config: LogDetConfig, evaluation: bool) -> LogDet:
    probes, probe = _probes(config, evaluation)
    return KrylovLogDet(config.tolerance, 30 if evaluation else config.terms, probes=probes, probe=probe)


LOG_DETS.register("exact", lambda config, evaluation: ExactLogDet())
LOG_DETS.register("series", _series)
LOG_DETS.register("roulette", _roulette)
LOG_DETS.register("adaptive", _adaptive)
LOG_DETS.register("krylov", _krylov)


MOST = {  # what nobody needs more of, and what would never end
    **dict.fromkeys(("terms", "exact_terms", "eval_terms", "law_parameter"), 10_000),
    **dict.fromkeys(("probes", "eval_probes"), 1000),
    "max_steps": 1_000_000,
}


def _check_most(group: str, config: LogDetConfig | SolverConfig) -> None:
    for name, most in MOST.items():
        if not getattr(config, name, 0) <= most:
            raise OptionError(f"{group}.{name}={getattr(config, name)} must be at most {most:,}.")


def make_log_det(config: LogDetConfig, evaluation: bool = False) -> LogDet:
    """The estimator that a configuration asks for, in training or in evaluation."""
    _check_most("logdet", config)
    _law(config), _probes(config, evaluation)  # wrong names are errors whether they are used or not
    option, name = ("eval_method", config.eval_method) if evaluation else ("method", config.method)
    return chosen(f"logdet.{option}", name, LOG_DETS)(config, evaluation)


def make_solver(config: SolverConfig) -> Solver:
    """The solver that a configuration asks for."""
    _check_most("solver", config)
    kinds: dict[str, Callable[..., Solver]] = {"picard": Picard, "anderson": Anderson, "newton": Newton}
    return chosen("solver.method", config.method, kinds)(config.tol, config.max_steps)
