"""The numbers of the paper (Perugachi-Diaz, Tomczak and Bhulai, Invertible DenseNets with Concatenated LipSwish, 2021)."""

from __future__ import annotations

# Nats on test data: circles, checkerboard, moons
TOY: dict[str, dict[str, float]] = {
    "Residual Flow": {"circles": 3.44, "checkerboard": 3.81, "moons": 2.60},
    "Residual Flow, extended": {"circles": 3.36, "checkerboard": 3.78, "moons": 2.52},
    "i-DenseNet": {"circles": 3.32, "checkerboard": 3.68, "moons": 2.39},
    "i-DenseNet + LC": {"circles": 3.30, "checkerboard": 3.66, "moons": 2.39},
}

# Millions of parameters
PARAMETERS: dict[str, tuple[float | None, float | None, float | None]] = {  # CIFAR10, CIFAR10 small, ImageNet32
    "Residual Flow": (25.2, 8.7, 47.1),
    "i-DenseNet": (24.9, 8.7, 47.0),
}

# Bits per dimension on CIFAR10 and ImageNet32, uniform dequantisation; the first six are quoted there from others
QUOTED: dict[str, tuple[float, float | None]] = {
    "Real NVP": (3.49, 4.28),
    "Glow": (3.35, 4.09),
    "FFJORD": (3.40, None),
    "Flow++": (3.29, None),
    "ConvSNF": (3.29, None),
    "i-ResNet": (3.45, None),
}
DENSITY: dict[str, dict[str, float]] = {
    "Residual Flow": {"cifar10": 3.28, "cifar10-small": 3.42, "imagenet32": 4.01},
    "i-DenseNet": {"cifar10": 3.25, "cifar10-small": 3.37, "imagenet32": 3.98},
}

# Bits per dimension of the smaller models
ACTIVATIONS: dict[str, dict[str, float]] = {
    "Residual Flow": {"LipSwish": 3.42, "LeakyLipSwish": 3.42, "CLipSwish": 3.38},
    "i-DenseNet": {"LipSwish": 3.39, "LeakyLipSwish": 3.39, "CLipSwish": 3.37},
}
MATCHING: dict[str, float] = {"Residual Flow": 3.42, "Residual Flow, extended": 7.02, "i-DenseNet + LC": 3.39}
DEPTH: dict[int, float | None] = {2: None, 3: 3.37, 4: None, 5: 3.42}

# (mean, max) of the ratio of distances after and before an activation, for D = 1, 128, 1024
Ratios = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
SIGNAL: dict[str, Ratios] = {  # N(0, 1)
    "sigmoid": ((0.22, 0.25), (0.21, 0.22), (0.21, 0.21)),
    "LipSwish": ((0.46, 1.0), (0.51, 0.64), (0.51, 0.55)),
    "CLipSwish": ((0.72, 1.0), (0.71, 0.77), (0.71, 0.73)),
    "identity": ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0)),
}
SIGNAL_WIDE: dict[str, Ratios] = {  # N(0, 5), where 5 is the deviation
    "sigmoid": ((0.09, 0.25), (0.08, 0.10), (0.08, 0.09)),
    "LipSwish": ((0.47, 1.0), (0.54, 0.69), (0.54, 0.59)),
    "CLipSwish": ((0.83, 1.0), (0.76, 0.83), (0.76, 0.78)),
    "identity": ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0)),
}
CLIPSWISH_CONSTANT = 1.004

# Accuracy in percent at lambda 0; (accuracy, bits per dimension) at 1/D and at 1
HYBRID: dict[str, tuple[float, tuple[float, float], tuple[float, float]]] = {
    "coupling": (89.77, (87.58, 4.30), (67.62, 3.54)),
    "coupling + 1x1 convolution": (90.82, (87.96, 4.09), (67.38, 3.47)),
    "residual blocks": (91.78, (90.47, 3.62), (70.32, 3.39)),
    "dense blocks": (92.40, (90.79, 3.49), (75.67, 3.31)),
}

# Percent by which the i-DenseNet is faster (+) or slower (-) than the Residual Flow: forward, training, sampling
RUNTIME: dict[str, tuple[float, float, float]] = {
    "LipSwish": (1.3, -43.0, 8.8),
    "LeakyLipSwish": (1.3, -28.0, 231.9),
    "CLipSwish": (0.6, -145.0, 11.0),
}
