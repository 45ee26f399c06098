"""Invertible DenseNets with Concatenated LipSwish: density models you can invert, certify and trust."""

from idensenet.config import recipes
from idensenet.flow import Flow, bits_per_dim
from idensenet.models import build
from idensenet.storage import load, save

__version__ = "0.1.0"
__all__ = ["Flow", "bits_per_dim", "build", "load", "recipes", "save"]
