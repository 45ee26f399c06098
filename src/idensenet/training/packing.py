"""A finished run as one file, to be passed on: configuration, metrics, and the weights of one checkpoint.

The file is safetensors: the averaged and the last weights by name, the metrics as compressed bytes, and the rest as JSON in
its header. Unpacked, it is a run like any other, except that it cannot be continued: the state of the optimiser stays behind.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from idensenet.checkpoints import Progress
from idensenet.errors import CheckpointError, OptionError
from idensenet.storage import compacted, load
from idensenet.training.checkpoint import seal
from idensenet.training.run import RunFolder

FORMAT = "idensenet run 1"
LIMIT = 1 << 28  # bytes of metrics, unpacked
FILES = {"average": "model/model.safetensors", "last": "weights.safetensors"}  # where the weights of a checkpoint are


def pack(run: RunFolder, file: Path, step: int | str = "last", compact: bool = False) -> Path:
    """Write one checkpoint of a run, with its configuration and its metrics, to a file.

    Args:
        run: The run.
        file: Where to write.
        step: Which checkpoint: a number, "last" or "best".
        compact: Write the averaged weights alone, in half precision and without norms.

    Returns:
        The file.
    """
    from safetensors.torch import save

    from idensenet.files import load_tensors, read_small, write_atomically

    number = run.checkpoints.find(step)
    folder = run.checkpoints.check(number)
    try:
        states = {kind: load_tensors(folder / where) for kind, where in FILES.items()}
        model = read_small(folder / "model" / "model.json").decode()
    except ValueError as error:
        raise CheckpointError(f"The checkpoint of step {number} in {run.path} is damaged: {error}") from error
    if compact:
        states = {"average": compacted(load(folder / "model"), states["average"])}
    tensors = {f"{kind}/{name}": value for kind, state in states.items() for name, value in state.items()}
    lines = "".join(json.dumps(entry) + "\n" for entry in run.metrics() if entry["step"] <= number)
    tensors["metrics"] = torch.from_numpy(np.frombuffer(zlib.compress(lines.encode(), 9), np.uint8).copy())
    about = {
        "format": FORMAT,
        "run": json.dumps(run.description()),
        "progress": json.dumps(asdict(run.checkpoints.progress(number))),
        "model": model,
    }
    if (data := run.fingerprint()) is not None:
        about["data"] = json.dumps(data.as_dict())
    write_atomically(file, save(tensors, about))
    return file


def unpack(file: Path, folder: Path) -> RunFolder:
    """The run of a file that `pack` wrote, as a folder. It appears whole or not at all.

    Args:
        file: The file.
        folder: Where the run goes; it must not exist, or be empty.

    Returns:
        The run.
    """
    import yaml
    from safetensors import SafetensorError, safe_open

    from idensenet.files import parse_json, save_tensors

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(f"{folder} exists already; choose another place to unpack {file} to.")
    if not file.is_file():
        raise OptionError(f"There is no file {file} to unpack.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with safe_open(file, "pt") as opened:
            about = opened.metadata() or {}
            if about.get("format") != FORMAT:
                raise CheckpointError(f"{file} is not a packed run of this version ('idensenet pack' writes one).")
            tensors: dict[str, Tensor] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        progress = Progress.from_dict(parse_json(about["progress"]))
        run = RunFolder(part)
        checkpoint = run.checkpoints.path(progress.step)
        (checkpoint / "model").mkdir(parents=True)
        for kind, where in FILES.items():
            found = {name.removeprefix(f"{kind}/"): value for name, value in tensors.items() if name.startswith(f"{kind}/")}
            if found:
                save_tensors(found, checkpoint / where)
        (checkpoint / "model" / "model.json").write_text(about["model"])
        (checkpoint / "state.json").write_text(json.dumps(asdict(progress)) + "\n")
        seal(checkpoint)
        (part / "config.yaml").write_text(yaml.safe_dump(parse_json(about["run"]), sort_keys=False))
        if "data" in about:
            (part / "data.json").write_text(about["data"])
        unzip = zlib.decompressobj()
        (part / "metrics.jsonl").write_bytes(unzip.decompress(tensors["metrics"].numpy().tobytes(), LIMIT))
        if not unzip.eof:
            raise ValueError("its metrics are cut short or too long")
        run.config()
        load(part)
        part.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        part.replace(folder)
    except (SafetensorError, ValueError, LookupError, TypeError, zlib.error) as error:
        raise CheckpointError(f"{file} is damaged or not a packed run: {str(error).splitlines()[0]}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return RunFolder(folder)
