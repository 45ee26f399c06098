"""Invertible DenseNets with Concatenated LipSwish: density models you can invert, certify and trust.

Names are imported when they are first used, so that commands which need no torch do not wait for it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idensenet.bijections import (
        ActNorm,
        Affine,
        Bijection,
        Bounded,
        Chain,
        Coupling,
        Flatten,
        Invert,
        InvertibleConv1x1,
        Logit,
        MonotoneBlock,
        ResidualBlock,
        Split,
        Squeeze,
        Whiten,
    )
    from idensenet.blocks import register_block
    from idensenet.config import recipes
    from idensenet.constructors import IDenseNet, ImageFlow, MonotoneFlow, ResidualFlow
    from idensenet.flow import Flow, bits_per_dim
    from idensenet.frozen import FrozenFlow
    from idensenet.hybrid import HybridFlow
    from idensenet.lipschitz import (
        Activation,
        Certificate,
        DenseBlock,
        DenseLayer,
        LipschitzConv2d,
        LipschitzLinear,
        LipschitzMap,
        ResidualNet,
        register_activation,
    )
    from idensenet.logdet import (
        AdaptiveLogDet,
        ExactLogDet,
        Geometric,
        KrylovLogDet,
        LogDet,
        Poisson,
        RouletteLogDet,
        SeriesLogDet,
        register_log_det,
    )
    from idensenet.models import build
    from idensenet.solve import Anderson, Newton, Picard, Solution
    from idensenet.storage import load, save
    from idensenet.structure import register_class
    from idensenet.training.fit import fit

__version__ = "0.2.0"
__all__ = [
    "ActNorm",
    "Activation",
    "AdaptiveLogDet",
    "Affine",
    "Anderson",
    "Bijection",
    "Bounded",
    "Certificate",
    "Chain",
    "Coupling",
    "DenseBlock",
    "DenseLayer",
    "ExactLogDet",
    "Flatten",
    "Flow",
    "FrozenFlow",
    "Geometric",
    "HybridFlow",
    "IDenseNet",
    "ImageFlow",
    "Invert",
    "InvertibleConv1x1",
    "KrylovLogDet",
    "LipschitzConv2d",
    "LipschitzLinear",
    "LipschitzMap",
    "LogDet",
    "Logit",
    "MonotoneBlock",
    "MonotoneFlow",
    "Newton",
    "Picard",
    "Poisson",
    "ResidualBlock",
    "ResidualFlow",
    "ResidualNet",
    "RouletteLogDet",
    "SeriesLogDet",
    "Solution",
    "Split",
    "Squeeze",
    "Whiten",
    "bits_per_dim",
    "build",
    "fit",
    "load",
    "recipes",
    "register_activation",
    "register_block",
    "register_class",
    "register_log_det",
    "save",
]
_WHERE = {
    "bijections": (
        "ActNorm",
        "Affine",
        "Bijection",
        "Bounded",
        "Chain",
        "Coupling",
        "Flatten",
        "Invert",
        "InvertibleConv1x1",
        "Logit",
        "MonotoneBlock",
        "ResidualBlock",
        "Split",
        "Squeeze",
        "Whiten",
    ),
    "config": ("recipes",),
    "constructors": ("IDenseNet", "ImageFlow", "MonotoneFlow", "ResidualFlow"),
    "flow": ("Flow", "bits_per_dim"),
    "frozen": ("FrozenFlow",),
    "hybrid": ("HybridFlow",),
    "lipschitz": (
        "Activation",
        "Certificate",
        "DenseBlock",
        "DenseLayer",
        "LipschitzConv2d",
        "LipschitzLinear",
        "LipschitzMap",
        "ResidualNet",
        "register_activation",
    ),
    "logdet": (
        "AdaptiveLogDet",
        "ExactLogDet",
        "Geometric",
        "KrylovLogDet",
        "LogDet",
        "Poisson",
        "RouletteLogDet",
        "SeriesLogDet",
        "register_log_det",
    ),
    "blocks": ("register_block",),
    "models": ("build",),
    "solve": ("Anderson", "Newton", "Picard", "Solution"),
    "storage": ("load", "save"),
    "structure": ("register_class",),
    "training.fit": ("fit",),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names; modules are internal."""
    return sorted([*__all__, "__version__"])
