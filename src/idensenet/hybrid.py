"""A flow that also classifies: p(x, y) = p(x) p(y | features of x)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from idensenet.bijections import ActNorm, Bijection, Call, Chain
from idensenet.dequantizer import Dequantizer
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
    """Concatenates a vector with a linear map and a ReLU of it: [dims] -> [dims + hidden]."""

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
    """A linear softmax classifier on the heads of some scales: `heads` maps the number of a scale to its head.

    With `inputs`, a linear map of so many preprocessed inputs is added to the logits, and all else starts at zero: a classifier
    that is given the weights of a logistic regression starts as this regression.
    """

    def __init__(self, heads: Mapping[int | str, Head | VectorHead], classes: int, inputs: int = 0) -> None:
        super().__init__()
        self.classes, self.inputs = classes, inputs
        self.heads = nn.ModuleDict({str(scale): head for scale, head in heads.items()})
        self.linear = nn.Linear(sum(head.width for head in heads.values()), classes)
        self.direct = nn.Linear(inputs, classes) if inputs else None
        if self.direct is not None:
            for layer in (self.linear, self.direct):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def wants(self, scale: int) -> bool:
        return str(scale) in self.heads

    def initialize(self, scale: int, x: Tensor) -> None:
        head = self.heads[str(scale)]
        assert isinstance(head, Head | VectorHead)
        head.initialize(x)

    def forward(self, features: Sequence[Tensor], inputs: Tensor | None = None) -> Tensor:
        """Logits from the features of the scales that have a head, in order, and from the preprocessed inputs."""
        pooled = [head(x) for head, x in zip(self.heads.values(), features, strict=True)]
        logits: Tensor = self.linear(torch.cat(pooled, 1))
        return logits if self.direct is None else logits + self.direct(inputs)


def _beside(x: Tensor, context: Tensor | None) -> Tensor:
    return x if context is None else torch.cat([x, context], 1)


class HybridFlow(Flow):
    """A flow with a classifier on the features after each scale (for images behind its squeeze); `body` is their chain.

    Args:
        body: The chain of scales.
        shape: Shape of a sample.
        latent_shape: Shape of a latent code; by default the shape of a sample.
        preprocess: A fixed bijection in front of the body, such as a logit or a standardisation.
        levels: Number of integer levels of a pixel; None for real numbers.
        context: Length of the context vector; 0 for an unconditional density.
        integers: Positions of columns that hold whole numbers.
        dequantizer: Learned noise of integer levels; None for uniform noise.
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
        integers: Sequence[int] = (),
        dequantizer: Dequantizer | None = None,
    ) -> None:
        super().__init__(body, shape, latent_shape, preprocess, levels, context, integers, dequantizer)
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
        dequantized: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """z, the log-determinant if it is wanted, and the class logits."""
        prepared = prepared or self.prepare()
        with prepared.precision.products(self.device):
            x, before, call = self._before(x, generator, dequantized, context, prepared, log_det)
            inputs, features, total = _beside(x, call.context), [], before.total
            for i, scale in enumerate(self.scales):
                x, more = scale.push(x, call.part(i))
                total = total + more
                if self.classifier.wants(i):
                    features.append(_beside(x, call.context))
            return x, total, self.classifier(features, inputs)

    def inputs(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """What the classifier reads besides the features: the preprocessed samples, next to the contexts if there are any.

        Args:
            x: Samples [batch, *shape].
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            A tensor [batch, inputs].
        """
        return _beside(self.preprocess.encode(self.dequantize(x)), self._given(context, len(x)))

    def classify(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
    ) -> Tensor:
        """Class logits, [batch, classes]; no log-determinant is computed, unless columns hold whole numbers.

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            generator: Source of random numbers. Without one, evaluation is a function of the data, and training uses the
                global generator.
            context: A vector for each sample, or one for all, for a conditional flow.
            prepared: What `prepare()` returned, if the caller has it.

        Returns:
            Logits [batch, classes].
        """
        if self.averages:
            return self.log_prob_and_logits(x, generator, context, prepared)[1]
        return self._encode_and_classify(x, generator, context, prepared, log_det=False)[2]

    def log_prob_and_logits(
        self,
        x: Tensor,
        generator: torch.Generator | None = None,
        context: Tensor | None = None,
        prepared: Prepared | None = None,
    ) -> tuple[Tensor, Tensor]:
        """log p(x) and the class logits, from one pass.

        For whole numbers, p(y | x) is the average of p(y | x + u) over the cell, weighted by the density p(x + u).

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            generator: Source of random numbers. Without one, evaluation is a function of the data, and training uses the
                global generator.
            context: A vector for each sample, or one for all, for a conditional flow.
            prepared: What `prepare()` returned, if the caller has it.

        Returns:
            Log-densities [batch] in nats, and logits [batch, classes].
        """
        if self.averages:
            log_prob, (base, after, before, logits) = self._over_cells(x, generator, context, prepared)
            weight = (base + after + before).log_softmax(0).nan_to_num(nan=0.0)  # far from all data, all count the same
            return log_prob, torch.logsumexp(weight[..., None] + logits.log_softmax(-1), 0)
        z, total, logits = self._encode_and_classify(x, generator, context, prepared)
        base = self.base_log_prob(z)
        self._check_computed(x, "log p(x)", base, logits)
        return base + total, logits

    def _terms(
        self, x: Tensor, generator: torch.Generator | None, context: Tensor | None, prepared: Prepared
    ) -> tuple[Tensor, ...]:
        z, total, logits = self._encode_and_classify(x, generator, context, prepared, dequantized=True)
        return self.base_log_prob(z), total, torch.zeros_like(total), logits
