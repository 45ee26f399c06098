"""The end of a run in several processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@contextmanager
def ending_together(fabric: Fabric) -> Iterator[None]:
    """Wait for the others and part from them in order.

    A process that ends on its own may fall over threads of the group it still belongs to, and whoever launched it then kills
    those that are still at work, such as writing the report. After an error nobody is waited for.
    """
    try:
        yield
        fabric.barrier()
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
