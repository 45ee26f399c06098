"""All processes of a run must mean the same run: the same program, options and data, divided in the same way."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from idensenet.config import Config
from idensenet.data.fingerprint import OWN, Digest, Part
from idensenet.data.source import Samples, Source, Split
from idensenet.errors import CheckpointError, DataError, OptionError
from idensenet.training.ranks import Ranks

SAMPLED = 1024  # rows of each part of a data set that was verified, or drawn from a seed
LOCAL = ("accelerator", "threads", "memory", "requeue")  # options that may differ between nodes


def _hash(value: Any) -> int:
    """63 bits of some plain values."""
    text = json.dumps(value, sort_keys=True, default=str).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def _part(source: Source, split: Samples) -> tuple[int, Part]:
    """The number of rows, and what is known of all of them, or of a sample of data that cannot change."""
    if source.name in OWN or len(split) <= SAMPLED:
        return len(split), Digest.of_samples(split).part
    drawn = split.batch(np.linspace(0, len(split) - 1, SAMPLED).astype(np.int64))
    some = Split(drawn.x.numpy(), context=None if drawn.context is None else drawn.context.numpy())
    return len(split), Digest.of_samples(some).part


def _facts(config: Config, source: Source) -> dict[str, int]:
    options = config.as_dict()
    shared = {name: options[name] for name in ("model", "logdet", "train")}
    shared["train"] = {name: value for name, value in shared["train"].items() if name not in LOCAL}
    shared["augmentation"] = [config.data.flip, config.data.crop]
    (rows, train), (held, test) = _part(source, source.train), _part(source, source.test)
    both = (int(train.content, 16) + int(test.content, 16)) % (1 << 64)  # whatever the split
    return {
        "version": _hash([version("idensenet"), torch.__version__.split("+")[0]]),
        "rows": rows,
        "held_out": held,
        "content": both >> 1,
        "split": _hash([train.content, test.content]),
        "order": _hash([train.order, test.order]),
        "options": _hash(shared),
    }


def check_agreement(ranks: Ranks, config: Config, source: Source) -> None:
    """Compare program, options and data over all processes, before the first step.

    Args:
        ranks: The processes.
        config: The options of this process.
        source: The data of this process.

    Raises:
        DataError: A process reads other rows, or has them in another order or part.
        OptionError: A process has other options, or runs another version.
    """
    if ranks.world == 1:
        return
    facts = _facts(config, source)
    first, *others = (dict(zip(facts, numbers, strict=True)) for numbers in ranks.numbers(facts.values()))
    for rank, other in enumerate(others, 1):
        different = [name for name in first if first[name] != other[name]]
        if "version" in different:
            raise OptionError(
                f"Rank {rank} runs another version of idensenet or torch than rank 0; install the same on all nodes."
            )
        a, b = (each["rows"] + each["held_out"] for each in (first, other))
        if a != b or "content" in different:
            found = f"{b:,} rows, where rank 0 has {a:,}" if a != b else "as many rows, but others"
            raise DataError(f"Rank {rank} reads other data than rank 0: {found}; give all nodes the same files.")
        if {"rows", "split"} & {*different}:
            raise DataError(f"Rank {rank} holds out other rows than rank 0; give all nodes the same --data.split options.")
        if "order" in different:
            raise DataError(f"Rank {rank} has the rows of rank 0 in another order; give all nodes the same files.")
        if "options" in different:
            raise OptionError(f"Rank {rank} has other options than rank 0; start all nodes with the same command.")


def check_step(ranks: Ranks, step: int) -> None:
    """Compare the checkpoint that each process would resume from, since a shared folder may reach nodes late.

    Args:
        ranks: The processes.
        step: The checkpoint that this process sees.

    Raises:
        CheckpointError: Another process sees another one.
    """
    steps = [numbers[0] for numbers in ranks.numbers([step])]
    for rank, other in enumerate(steps):
        if other != steps[0]:
            raise CheckpointError(
                f"Rank {rank} would resume from step {other} and rank 0 from step {steps[0]}; see that all nodes "
                "share the folder of the run, or give the --step."
            )
