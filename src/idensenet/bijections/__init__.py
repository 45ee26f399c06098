"""Invertible maps with a log-determinant, both ways."""

from idensenet.bijections.actnorm import ActNorm
from idensenet.bijections.base import Bijection, Call
from idensenet.bijections.bounded import Bounded
from idensenet.bijections.chain import Chain, Invert
from idensenet.bijections.conditional import ConditionalAffine
from idensenet.bijections.conv1x1 import InvertibleConv1x1
from idensenet.bijections.coupling import Coupling, channel_mask, checkerboard_mask, coupling_net
from idensenet.bijections.elementwise import Affine, Logit
from idensenet.bijections.monotone import MonotoneBlock
from idensenet.bijections.residual import ContractionStack, ResidualBlock
from idensenet.bijections.split import Split
from idensenet.bijections.squeeze import Flatten, Squeeze
from idensenet.bijections.whiten import Whiten

__all__ = [
    "ActNorm",
    "Affine",
    "Bijection",
    "Bounded",
    "Call",
    "Chain",
    "ConditionalAffine",
    "ContractionStack",
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
    "channel_mask",
    "checkerboard_mask",
    "coupling_net",
]
