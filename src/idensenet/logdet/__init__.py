"""log|det(I + J_g(x))|: exact, truncated, by roulette, adaptive, from a Krylov space."""

from idensenet.logdet.adaptive import AdaptiveLogDet
from idensenet.logdet.base import Estimate, LogDet
from idensenet.logdet.exact import ExactLogDet
from idensenet.logdet.krylov import KrylovLogDet
from idensenet.logdet.matrices import jacobian
from idensenet.logdet.roulette import Geometric, Law, Poisson, RouletteLogDet
from idensenet.logdet.series import SeriesLogDet, series_log_det

__all__ = [
    "AdaptiveLogDet",
    "Estimate",
    "ExactLogDet",
    "Geometric",
    "KrylovLogDet",
    "Law",
    "LogDet",
    "Poisson",
    "RouletteLogDet",
    "SeriesLogDet",
    "jacobian",
    "series_log_det",
]
