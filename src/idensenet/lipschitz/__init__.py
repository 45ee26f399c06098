"""Stacks of maps with a known Lipschitz constant: linear maps, activations, the weighted concatenation, networks."""

from idensenet.lipschitz.activations import ACTIVATIONS, Activation, activation, register_activation
from idensenet.lipschitz.branch import Branch, BranchMap
from idensenet.lipschitz.builders import Pieces, dense_block, residual_net
from idensenet.lipschitz.certificate import BlockCertificate, Certificate, OperatorNorms
from idensenet.lipschitz.convolution import LipschitzConv2d
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.linear import LipschitzLinear, LipschitzMap, refresh_norms
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.networks import DenseBlock, Network, ResidualNet, Stack

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "BlockCertificate",
    "Branch",
    "BranchMap",
    "Certificate",
    "DenseBlock",
    "DenseLayer",
    "LinearMap",
    "LipschitzConv2d",
    "LipschitzLinear",
    "LipschitzMap",
    "Network",
    "OperatorNorms",
    "Pieces",
    "ResidualNet",
    "Stack",
    "activation",
    "dense_block",
    "refresh_norms",
    "register_activation",
    "residual_net",
]
