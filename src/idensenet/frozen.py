"""A flow prepared for serving: weights normalised once, and nothing checked again."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from idensenet.bijections import ActNorm, Call
from idensenet.draws import GeneratorDraws
from idensenet.errors import OptionError
from idensenet.flow import Flow
from idensenet.logdet import ExactLogDet
from idensenet.precision import EXACT


class FrozenFlow(nn.Module):
    """The density, the samples and the maps of a flow, with weights that were normalised when it was made.

    It does not follow later changes of the flow, records no gradients and compares no fingerprints. It returns the same numbers
    as the flow.

    Args:
        flow: The flow, which stays as it is.
        compile: Compile `log_prob`, for vectors with an exact log-determinant: several times faster on single rows, and a
            minute once for the first batch. Numbers stay the same up to rounding.

    >>> import idensenet as idn
    >>> flow = idn.load("moons")
    >>> x = torch.zeros(3, 2)
    >>> bool(torch.equal(flow.frozen().log_prob(x), flow.log_prob(x)))
    True
    """

    def __init__(self, flow: Flow, compile: bool = False) -> None:
        super().__init__()
        self.flow = copy.deepcopy(flow).eval().requires_grad_(False)
        for module in self.flow.modules():
            if isinstance(module, ActNorm):
                module.check_ready()
        with torch.no_grad():
            self.prepared = self.flow.prepare()
        self.compiled: Callable[[Tensor], Tensor] | None = None
        if compile:
            self._check_exportable("log_prob")
            self.compiled = torch.compile(_Exported(self, "log_prob"), dynamic=None)

    @torch.no_grad()
    def log_prob(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """log p(x) per sample in nats, as `Flow.log_prob`.

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            Log-densities [batch].
        """
        if self.compiled is None:
            return self.flow.log_prob(x, context=context, prepared=self.prepared)
        self.flow._check_data(x, False)
        return self.compiled(x)

    @torch.no_grad()
    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """z = F(x) and log|det J_F(x)|, as `Flow.forward`.

        Args:
            x: Samples [batch, *shape]; integer levels as uint8 where the flow has levels.
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            The latent codes [batch, *latent_shape], and the log-determinants [batch].
        """
        return self.flow.forward(x, context=context, prepared=self.prepared)

    @torch.no_grad()
    def inverse(self, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x with F(x) = z and the log-determinant of the inverse map, as `Flow.inverse`.

        Args:
            z: Latent codes [batch, *latent_shape].
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            Samples as floats, and the log-determinants of the inverse map [batch].

        Raises:
            ConvergenceError: The solver did not reach its tolerance.
        """
        return self.flow.inverse(z, context=context, prepared=self.prepared)

    @torch.no_grad()
    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """z = F(x) alone, with no log-determinant; for images x holds levels plus noise.

        Args:
            x: Samples [batch, *shape] as floats.
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            The latent codes [batch, *latent_shape].
        """
        given = None if context is None else self.flow._given(context, len(x))
        draws = GeneratorDraws()
        rows, _ = self.flow.preprocess.push(x, Call(draws, self.prepared.preprocess, given, log_det=False))
        return self.flow.body.push(rows, Call(draws, self.prepared.body, given, log_det=False))[0]

    @torch.no_grad()
    def decode(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """x with F(x) = z alone, with no log-determinant.

        Args:
            z: Latent codes [batch, *latent_shape].
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            Samples [batch, *shape] as floats.
        """
        return self.flow._decode(z, context, self.prepared)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        context: Tensor | None = None,
    ) -> Tensor:
        """n draws from the model, as `Flow.sample`.

        Args:
            n: Number of samples.
            generator: Source of the latent codes.
            temperature: Factor on the latent codes.
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            Samples [n, *shape].
        """
        return self.flow.sample(n, generator, temperature, context, self.prepared)

    def export(self, what: str = "log_prob", batch: int | None = None) -> torch.export.ExportedProgram:
        """A program for `torch.export.save` that computes log p(x), or z = F(x), of float samples [batch, *shape].

        Args:
            what: "log_prob", for vectors with an exact log-determinant, or "encode", for vectors and images.
            batch: The size of a batch; any size by default.

        Returns:
            The exported program.

        Raises:
            OptionError: The flow cannot be exported: the sentence says why.
        """
        self._check_exportable(what)
        rows = torch.zeros(batch or 3, *self.flow.shape, dtype=self.flow.dtype, device=self.flow.device)
        shapes = None if batch is not None else {"x": {0: torch.export.Dim("batch", min=2)}}
        return torch.export.export(_Exported(self, what), (rows,), dynamic_shapes=shapes)

    def _check_exportable(self, what: str) -> None:
        if what not in ("log_prob", "encode"):
            raise OptionError(f"what={what!r} cannot be exported; use 'log_prob' or 'encode'.")
        if self.flow.context:
            raise OptionError("A conditional flow cannot be exported; serve it with frozen().log_prob(x, context).")
        if any(not stack.explicit for stack in self.flow.stacks()):
            raise OptionError(
                "Monotone blocks solve an equation in each pass, which cannot be exported; serve frozen().log_prob."
            )
        if what == "log_prob":
            if self.flow.levels is not None or len(self.flow.shape) != 1:
                raise OptionError(
                    "log_prob of images cannot be exported: its noise depends on the content of a sample, and its series stop "
                    "per sample; export 'encode', or serve frozen().log_prob."
                )
            if self.flow.integers:
                raise OptionError(
                    "log_prob of whole numbers cannot be exported: its noise depends on the content of a sample; export "
                    "'encode', or serve frozen().log_prob."
                )
            if any(not isinstance(stack.eval_log_det, ExactLogDet) for stack in self.flow.stacks()):
                raise OptionError(
                    "Only an exact log-determinant can be exported: series stop per sample; build the flow with "
                    "logdet={'eval_method': 'exact'}."
                )


class _Exported(nn.Module):
    """One method of a frozen flow as a module, without the checks of its input."""

    def __init__(self, frozen: FrozenFlow, what: str) -> None:
        super().__init__()
        self.frozen, self.what = frozen, what

    def forward(self, x: Tensor) -> Tensor:
        frozen, flow = self.frozen, self.frozen.flow
        if self.what == "encode":
            return frozen.encode(x)
        with EXACT.products(flow.device), torch.no_grad():
            draws = GeneratorDraws()
            rows, before = flow.preprocess.push(x, Call(draws, frozen.prepared.preprocess))
            z, after = flow.body.push(rows, Call(draws, frozen.prepared.body))
        return flow.base_log_prob(z) + before + after
