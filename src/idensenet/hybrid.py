"""A flow that also classifies: p(x, y) = p(x) p(y | features of x)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from idensenet.bijections import ActNorm, Bijection, Chain
from idensenet.flow import Flow
from idensenet.lipschitz import fresh_norms


class Head(nn.Module):
    """3x3 convolution, ActNorm, ReLU, global average: [channels, h, w] -> [width]."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = ActNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x))[0]).mean((2, 3))


class Classifier(nn.Module):
    """A linear softmax classifier on the heads of some scales: `heads` maps the number of a scale to its head."""

    def __init__(self, heads: Mapping[int, Head], classes: int) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({str(scale): head for scale, head in heads.items()})
        self.linear = nn.Linear(sum(head.conv.out_channels for head in heads.values()), classes)

    def wants(self, scale: int) -> bool:
        return str(scale) in self.heads

    def initialize(self, scale: int, x: Tensor) -> None:
        head = self.heads[str(scale)]
        assert isinstance(head, Head)
        head.norm.initialize(head.conv(x))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits from the features of the scales that have a head, in order."""
        pooled = [head(x) for head, x in zip(self.heads.values(), features, strict=True)]
        logits: Tensor = self.linear(torch.cat(pooled, 1))
        return logits


class HybridFlow(Flow):
    """A flow with a classifier on the features after each scale (after its squeeze); `body` is the chain of scales."""

    def __init__(
        self,
        body: Chain,
        classifier: Classifier,
        shape: Sequence[int],
        latent_shape: Sequence[int],
        preprocess: Bijection,
        levels: int,
    ) -> None:
        super().__init__(body, shape, latent_shape, preprocess, levels)
        self.classifier = classifier

    @property
    def scales(self) -> Chain:
        assert isinstance(self.body, Chain)
        return self.body

    def _initialize_body(self, x: Tensor, **given: Tensor) -> None:
        for i, scale in enumerate(self.scales):
            x = scale.initialize(x)
            if self.classifier.wants(i):
                self.classifier.initialize(i, x)

    def classify(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Class logits, [batch, classes]; no log-determinant is computed."""
        with fresh_norms(self):
            x, _, _ = self._prepare(x, generator, False)
            features = []
            for i, scale in enumerate(self.scales):
                x = scale.encode(x)
                if self.classifier.wants(i):
                    features.append(x)
            logits: Tensor = self.classifier(features)
        return logits

    def log_prob_and_logits(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """log p(x) and the class logits, from one pass."""
        with fresh_norms(self):
            x, total, draws = self._prepare(x, generator, False)
            features = []
            for i, scale in enumerate(self.scales):
                x, log_det = scale(x, draws.fold(i))
                total = total + log_det
                if self.classifier.wants(i):
                    features.append(x)
            logits: Tensor = self.classifier(features)
        return self.base_log_prob(x) + total, logits
