"""Invertible DenseNets with Concatenated LipSwish: density models you can invert, certify and trust."""

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
