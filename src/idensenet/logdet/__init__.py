"""tr f(J) of residual branches: exact, truncated, by roulette, adaptive, from a Krylov space."""

from idensenet.logdet.adaptive import AdaptiveLogDet
from idensenet.logdet.base import LOG_DETS, LOG_ONE_PLUS, Estimate, LogDet, PowerSeries, register_log_det
from idensenet.logdet.exact import ExactLogDet, jacobian
from idensenet.logdet.krylov import KrylovLogDet
from idensenet.logdet.roulette import Geometric, Law, Poisson, RouletteLogDet
from idensenet.logdet.series import SeriesLogDet

__all__ = [
    "LOG_DETS",
    "LOG_ONE_PLUS",
    "AdaptiveLogDet",
    "Estimate",
    "ExactLogDet",
    "Geometric",
    "KrylovLogDet",
    "Law",
    "LogDet",
    "Poisson",
    "PowerSeries",
    "RouletteLogDet",
    "SeriesLogDet",
    "jacobian",
    "register_log_det",
]
