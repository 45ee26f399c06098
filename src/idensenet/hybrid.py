"""A flow that also classifies: p(x, y) = p(x) p(y | features of x)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from idensenet.bijections import ActNorm, Bijection, Call, Chain
from idensenet.flow import Flow, Prepared


class Head(nn.Module):
    """3x3 convolution, ActNorm, ReLU, global average: [channels, h, w] -> [width]."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.channels = channels
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = ActNorm(width)

    @property
    def width(self) -> int:
        return self.conv.out_channels

    def initialize(self, x: Tensor) -> None:
        self.norm.learn(self.conv(x))

    def forward(self, x: Tensor) -> Tensor:
        self.norm.check_ready()
        return torch.relu(self.norm.affine(self.conv(x), self.norm.log_scale[0], self.norm.shift[0])).mean((2, 3))


class VectorHead(nn.Module):
    """A linear map and a ReLU beside the vector itself: [dims] -> [dims + hidden]."""

    def __init__(self, dims: int, hidden: int) -> None:
        super().__init__()
        self.dims, self.hidden = dims, hidden
        self.linear = nn.Linear(dims, hidden)
        self.width = dims + hidden

    def initialize(self, x: Tensor) -> None:
        """Nothing here is taken from data."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, torch.relu(self.linear(x))], 1)


class Classifier(nn.Module):
    """A linear softmax classifier on the heads of some scales: `heads` maps the number of a scale to its head."""

    def __init__(self, heads: Mapping[int | str, Head | VectorHead], classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.heads = nn.ModuleDict({str(scale): head for scale, head in heads.items()})
        self.linear = nn.Linear(sum(head.width for head in heads.values()), classes)

    def wants(self, scale: int) -> bool:
        return str(scale) in self.heads

    def initialize(self, scale: int, x: Tensor) -> None:
        head = self.heads[str(scale)]
        assert isinstance(head, Head | VectorHead)
        head.initialize(x)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Logits from the features of the scales that have a head, in order."""
        pooled = [head(x) for head, x in zip(self.heads.values(), features, strict=True)]
        logits: Tensor = self.linear(torch.cat(pooled, 1))
        return logits


class HybridFlow(Flow):
    """A flow with a classifier on the features after each scale (for images behind its squeeze); `body` is their chain.

    Args:
        body: The chain of scales.
        shape: Shape of a sample.
        latent_shape: Shape of a latent code; that of a sample by default.
        preprocess: A fixed bijection in front of the body, such as a logit or a standardisation.
        levels: Number of integer levels of a pixel; None for real numbers.
        context: Length of the context vector; 0 for an unconditional density.
        classifier: The heads and the linear classifier on them.
    """

    def __init__(
        self,
        body: Chain,
        classifier: Classifier,
        shape: Sequence[int],
        latent_shape: Sequence[int],
        preprocess: Bijection,
        levels: int | None,
        context: int = 0,
    ) -> None:
        super().__init__(body, shape, latent_shape, preprocess, levels, context)
        self.classifier = classifier

    @property
    def scales(self) -> Chain:
        """The scales, in order."""
        assert isinstance(self.body, Chain)
        return self.body

    def _initialize_body(self, x: Tensor, call: Call) -> None:
        for i, scale in enumerate(self.scales):
            x, _ = scale.push(x, call.part(i))
            if self.classifier.wants(i):
                self.classifier.initialize(i, x)

    def _encode_and_classify(
        self,
        x: Tensor,
        generator: torch.Generator | None,
        context: Tensor | None,
        prepared: Prepared | None,
        log_det: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """z, the log-determinant if it is wanted, and the class logits."""
        prepared = prepared or self.prepare()
        with prepared.precision.products(self.device):
            x, total, call = self._before(x, generator, False, context, prepared, log_det)
            features = []
            for i, scale in enumerate(self.scales):
                x, more = scale.push(x, call.part(i))
                total = total + more
                if self.classifier.wants(i):
                    features.append(x)
            return x, total, self.classifier(features)

    def classify(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
    ) -> Tensor:
        """Class logits, [batch, classes]; no log-determinant is computed.

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            generator: Source of random numbers. Without one, evaluation is a function of the data, and training uses the
                global generator.
            context: A vector for each sample, or one for all, for a conditional flow.
            prepared: What `prepare()` returned, if the caller has it.

        Returns:
            Logits [batch, classes].
        """
        return self._encode_and_classify(x, generator, context, prepared, log_det=False)[2]

    def log_prob_and_logits(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
    ) -> tuple[Tensor, Tensor]:
        """log p(x) and the class logits, from one pass.

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            generator: Source of random numbers. Without one, evaluation is a function of the data, and training uses the
                global generator.
            context: A vector for each sample, or one for all, for a conditional flow.
            prepared: What `prepare()` returned, if the caller has it.

        Returns:
            Log-densities [batch] in nats, and logits [batch, classes].
        """
        z, total, logits = self._encode_and_classify(x, generator, context, prepared)
        return self.base_log_prob(z) + total, logits
