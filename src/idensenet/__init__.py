"""Invertible DenseNets with Concatenated LipSwish: density models you can invert, certify and trust.

Names are imported when they are first used, so that commands which need no torch do not wait for it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idensenet.config import recipes
    from idensenet.flow import Flow, bits_per_dim
    from idensenet.frozen import FrozenFlow
    from idensenet.lipschitz import register_activation
    from idensenet.logdet import register_log_det
    from idensenet.models import build, register_block
    from idensenet.storage import load, save
    from idensenet.structure import register_class

__version__ = "0.2.0"
__all__ = [
    "Flow",
    "FrozenFlow",
    "bits_per_dim",
    "build",
    "load",
    "recipes",
    "register_activation",
    "register_block",
    "register_class",
    "register_log_det",
    "save",
]
_WHERE = {
    "config": ("recipes",),
    "flow": ("Flow", "bits_per_dim"),
    "frozen": ("FrozenFlow",),
    "lipschitz": ("register_activation",),
    "logdet": ("register_log_det",),
    "models": ("build", "register_block"),
    "storage": ("load", "save"),
    "structure": ("register_class",),
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
    return sorted({*globals(), *__all__})
