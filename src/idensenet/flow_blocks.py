"""The blocks of a flow: their names, how they compute, and what is guaranteed about them."""

from __future__ import annotations

import torch
from torch import Tensor

from idensenet.bijections import Bijection, Call, Chain, ContractionStack, Split
from idensenet.flow_input import FlowInput
from idensenet.guarantees import certificate, inverse_error
from idensenet.lipschitz import Certificate, DenseLayer, refresh_norms
from idensenet.precision import EXACT


def _scales(body: Bijection) -> list[Bijection]:
    """The parts of a body in order, also those behind a split."""
    parts = list(body) if isinstance(body, Chain) else [body]
    if parts and isinstance(parts[-1], Split):
        return [*parts[:-1], *_scales(parts[-1].rest)]
    return parts


class FlowBlocks(FlowInput):
    """The part of a `Flow` that knows its blocks."""

    def stacks(self) -> list[ContractionStack]:
        """The stacks of residual or monotone blocks, in order.

        Returns:
            The stacks.
        """
        return [module for module in self.body.modules() if isinstance(module, ContractionStack)]

    def named_blocks(self) -> list[tuple[str, ContractionStack, int]]:
        """The residual or monotone blocks in order, as (`scale.block`, stack, index in the stack).

        Returns:
            One triple for each block.
        """
        found = []
        for i, part in enumerate(_scales(self.body), 1):
            stacks = [m for m in part.modules() if isinstance(m, ContractionStack)]
            blocks = [(stack, k) for stack in stacks for k in range(stack.blocks)]
            found += [(f"{i}.{j}", stack, k) for j, (stack, k) in enumerate(blocks, 1)]
        return found

    def compile_blocks(self, on: bool = True) -> None:
        """Compile the residual blocks for training, or stop using compiled code; worth it for long runs.

        With exact log-determinants each stack becomes one compiled function; with the others the function of a block does.
        Results stay the same up to rounding. It needs a C++ compiler, and the first step takes a minute or two.

        Args:
            on: Whether to use compiled code.
        """
        for stack in self.stacks():
            stack.compile_blocks(on)

    def save_memory(self, on: bool = True) -> None:
        """Rebuild blocks in the backward pass instead of keeping them, or keep them. No number changes.

        Args:
            on: Whether to rebuild blocks.
        """
        for stack in self.stacks():
            stack.save = on

    def learn_concatenation(self, on: bool = True) -> None:
        """Switch the learning of all concatenation weights on or off; off means no gradient at all.

        Args:
            on: Whether the weights learn.
        """
        for module in self.modules():
            if isinstance(module, DenseLayer):
                module.learn(on)

    # Guarantees

    def certify(self) -> Certificate:
        """Guaranteed bounds: Lip(g) of every block, and the bi-Lipschitz constants of the flow after the preprocessing.

        Returns:
            The certificate; printing it shows one line for each block.
        """
        self._check_dtype()
        with torch.no_grad(), EXACT.products(self.device):
            refresh_norms(self.body)
            return certificate(self.named_blocks(), self.body)

    def inverse_error(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """How far the computed inverse of each z can be from the true one, in the certificate's norm, after the preprocessing.

        The bound follows from the residuals of the solvers and the certificate; the rounding of closed forms is not in it.

        Args:
            z: Latent codes [batch, *latent_shape].
            context: A vector for each sample, or one for all, for a conditional flow.

        Returns:
            Bounds [batch]; infinite where nothing bounds the error.
        """
        self._check(z, self.latent_shape, "z")
        self._check_float(z, "z")
        with torch.no_grad(), EXACT.products(self.device):
            call = Call(self._draws(z, None), self.prepare().body, self._given(context, len(z)), log_det=False)
            return inverse_error(self.named_blocks(), self.body, z, call)
