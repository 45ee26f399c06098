"""What has a known Lipschitz constant: linear maps, activations, the weighted concatenation, networks, certificates."""

from idensenet.lipschitz.activations import ACTIVATIONS, Activation, activation
from idensenet.lipschitz.builders import Pieces, dense_block, residual_net
from idensenet.lipschitz.certificate import BlockCertificate, Certificate, OperatorNorms, operator_bound
from idensenet.lipschitz.dense import DenseLayer
from idensenet.lipschitz.linear import LipschitzConv2d, LipschitzLinear, LipschitzMap, fresh_norms, refresh_norms
from idensenet.lipschitz.linearmap import LinearMap
from idensenet.lipschitz.networks import DenseBlock, Network, ResidualNet

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "BlockCertificate",
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
    "activation",
    "dense_block",
    "fresh_norms",
    "operator_bound",
    "refresh_norms",
    "residual_net",
]
