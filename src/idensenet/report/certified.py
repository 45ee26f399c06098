"""The certificate of a run, kept in its folder, because a large model takes a while to certify."""

from __future__ import annotations

import json
from typing import Any

import idensenet
from idensenet.files import read_json, write_atomically
from idensenet.flow import Flow
from idensenet.lipschitz import BlockCertificate, Certificate
from idensenet.training.run import RunFolder


def _key(run: RunFolder, step: int) -> dict[str, Any]:
    """Which weights, certified by which version."""
    manifest = read_json(run.checkpoints.path(step) / "manifest.json")
    return {"step": step, "weights": manifest.get("model/model.safetensors"), "version": idensenet.__version__}


def _read(run: RunFolder, key: dict[str, Any]) -> Certificate | None:
    """The one that was kept, if it is for these weights and whole."""
    try:
        kept = read_json(run.path / "certificate.json")
        if kept["key"] != key:
            return None
        blocks = tuple(BlockCertificate(b["name"], b["L"], tuple((n, v) for n, v in b["layers"])) for b in kept["blocks"])
        return Certificate(kept["norm"], blocks, kept["lower"], kept["upper"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def certificate_of(run: RunFolder, flow: Flow, step: int) -> Certificate:
    """The certificate of the model of a checkpoint, from RUN/certificate.json if that is for the very same weights."""
    key = _key(run, step)
    found = _read(run, key)
    if found is None:
        found = flow.certify()
        rows = [{"name": b.name, "L": b.L, "layers": [list(pair) for pair in b.layers]} for b in found.blocks]
        values = {"key": key, "norm": found.norm, "lower": found.lower, "upper": found.upper, "blocks": rows}
        write_atomically(run.path / "certificate.json", json.dumps(values) + "\n")
    return found
