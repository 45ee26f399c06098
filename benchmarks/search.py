"""Settings for small budgets on CIFAR-10: a list of trials, one thread each, judged on held-out training images.

    python benchmarks/search.py --data data --out runs/search --model dense       # continued where it stopped
    python benchmarks/search.py --data data --out runs/search --model residual    # as many trials for the Residual Flow
    python benchmarks/search.py --data data --out runs/search --model sizes --steps 1200   # which size for a longer run
    python benchmarks/search.py --out runs/search --table                         # the record as a table

Each trial changes one thing of `START` and trains for 300 steps of 16 images (`--steps`, `--only`, `--seed` change that). Of
sizes, larger ones take fewer steps, so that all take about the same time. The last 5,000 training images are held out, and 300
of them decide; nobody looks at the test images. Several processes may share a folder: each takes the next trial that nobody
has begun.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch

import idensenet as idn
from idensenet.config import recipe
from idensenet.data.catalog import open_source
from idensenet.data.source import Source, Split
from idensenet.provenance import commit
from idensenet.training.evaluation import first_rows, score_rows
from idensenet.training.loop import Trainer
from idensenet.training.run import RunFolder

HELD_OUT, JUDGED = 5_000, 300
SETTINGS = {"lr": 1e-2, "schedule": "cosine", "warmup": 0.02, "concatenation_from": 0.0, "average": 0.98, "compile": "off"}
START = {
    "dense": ("cifar10-idensenet-tiny", {"growth": [32, 48, 62], "coeff": 0.99, "lip": 0.999, "beta": 8, "mix": "whiten"}),
    "residual": ("cifar10-resflow-tiny", {"width": 108, "growth": 48, "coeff": 0.99, "beta": 8, "mix": "whiten"}),
}
START["sizes"] = START["dense"]
BOTH: dict[str, dict[str, Any]] = {
    "start": {},
    "no 1x1 convolution": {"mix": "none"},
    "near the identity": {"start": "identity"},
    "rate 5e-3": {"train": {"lr": 5e-3}},
    "rate 2e-2": {"train": {"lr": 2e-2}},
    "beta 4": {"beta": 4},
    "beta 16": {"beta": 16},
    "Adam's betas 0.9, 0.999": {"train": {"betas": [0.9, 0.999]}},
    "Adam's betas 0.9, 0.95": {"train": {"betas": [0.9, 0.95]}},
    "gradient clipped at 0.1": {"train": {"clip": 0.1}},
    "no warm-up": {"train": {"warmup": 0.0}},
    "weight decay 1e-4": {"train": {"weight_decay": 1e-4}},
    "series: one certain term": {"logdet": {"exact_terms": 1}},
    "series: the paper's length": {"logdet": {"law_parameter": 2.0}},
    "no ActNorm": {"actnorm": False},
    "constants 0.98": {"coeff": 0.98, "lip": 0.98},
}
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "dense": {
        "one squeeze before, 4-4 blocks": {"blocks": [4, 4], "growth": [32, 40], "squeezes": 1},
        "one squeeze before, 3-2 blocks": {"blocks": [3, 2], "growth": [48, 60], "squeezes": 1},
        "4-3-2 blocks": {"blocks": [4, 3, 2], "growth": [26, 34, 58]},
        "3-3-3 blocks": {"blocks": [3, 3, 3], "growth": [24, 38, 46]},
        "depth 2": {"depth": 2, "growth": [48, 76, 104]},
        "LipSwish": {"activation": "lipswish", "growth": [22, 32, 41]},
    },
    "residual": {
        "one squeeze before, 4-4 blocks": {"blocks": [4, 4], "width": 67, "squeezes": 1},
        "one squeeze before, 3-2 blocks": {"blocks": [3, 2], "width": 110, "squeezes": 1},
        "4-3-2 blocks": {"blocks": [4, 3, 2], "width": 94},
        "3-3-3 blocks": {"blocks": [3, 3, 3], "width": 79},
        "2-2-1 blocks": {"blocks": [2, 2, 1], "width": 146},
        "CLipSwish": {"activation": "clipswish", "width": 122},
    },
    "sizes": {
        "2-2-2 blocks": {},
        "4-4-4 blocks": {"blocks": [4, 4, 4]},
        "8-8-8 blocks": {"blocks": [8, 8, 8]},
        "2-2-2 blocks, twice as wide": {"growth": [64, 96, 124]},
        "4-4-4 blocks, twice as wide": {"blocks": [4, 4, 4], "growth": [64, 96, 124]},
    },
}
FEWER = {"4-4-4 blocks": 2, "8-8-8 blocks": 4, "2-2-2 blocks, twice as wide": 3, "4-4-4 blocks, twice as wide": 6}


def source(root: str) -> Source:
    """CIFAR-10 with the last training images in place of the test images."""
    whole = open_source("cifar10", root=root).train
    parts = (slice(None, -HELD_OUT), slice(-HELD_OUT, None))
    train, held_out = (Split(whole.x[part], None if whole.y is None else whole.y[part]) for part in parts)
    return Source("cifar10", train, held_out, (3, 32, 32), levels=256, classes=10)


def run(model: str, name: str, changes: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    base, overrides = START[model]
    steps = arguments.steps // (FEWER.get(name, 1) if model == "sizes" else 1)
    train = {
        **SETTINGS,
        **changes.get("train", {}),
        "max_steps": steps,
        "seed": arguments.seed,
        "threads": 1,
        "eval_every": steps,
        "eval_samples": JUDGED,
        "save_every": steps,
    }
    quiet = {"display": "quiet", "pictures": False, "report": False}
    config = recipe(base).config.replace(**{**overrides, **changes, "train": train, "output": quiet})
    parameters = idn.models.build_config(config).num_parameters
    folder = RunFolder(arguments.out / f"{model}-{name.replace(' ', '-').replace('/', '-')}-{arguments.steps}-{arguments.seed}")
    torch.set_num_threads(1)
    trainer = Trainer(config, source(arguments.data), folder)
    folder.create(config, base, "python benchmarks/search.py")
    trainer.start()
    if trainer.train() or trainer.progress.step < steps:
        raise SystemExit(f"{folder.path} was interrupted; remove it, and the mark of the trial, to begin it again.")
    flow = idn.load(folder.path)
    rows = first_rows(trainer.source.test, JUDGED)
    nats = -score_rows(flow, trainer.source.test, rows, 50)["log_prob"].double() / (3072 * math.log(2))
    return {
        "model": model,
        "trial": name,
        "parameters": parameters,
        "steps": steps,
        "seed": arguments.seed,
        "seconds": round(trainer.progress.seconds, 1),
        "bits": round(float(nats.mean()), 4),
        "error": round(float(nats.std()) / math.sqrt(len(nats)), 4),
        "commit": commit(),
        "options": {**overrides, **changes},
    }


def search(arguments: argparse.Namespace) -> None:
    trials = OWN[arguments.model] if arguments.model == "sizes" else {**BOTH, **OWN[arguments.model]}
    if unknown := sorted(set(arguments.only) - set(trials)):
        raise SystemExit(f"There is no trial {unknown[0]!r}; known are {', '.join(trials)}.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or trials:
        taken = arguments.out / f".{arguments.model}-{name.replace('/', '-')}-{arguments.steps}-{arguments.seed}"
        try:
            taken.touch(exist_ok=False)
        except FileExistsError:
            continue
        found = run(arguments.model, name, trials[name], arguments)
        with (arguments.out / "record.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{name}: {found['bits']:.4f} +- {found['error']:.4f} bits per dimension in {found['seconds']:.0f} s", flush=True)


def table(folder: Path) -> None:
    found = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    print("| model | trial | parameters | steps | seed | seconds | bits per dimension |\n|---|---|---|---|---|---|---|")
    for entry in sorted(found, key=lambda e: (e["model"], e["steps"], e["bits"])):
        words = [entry[key] for key in ("model", "trial")]
        numbers = [f"{entry['parameters']:,}", f"{entry['steps']:,}", str(entry["seed"]), f"{entry['seconds']:.0f}"]
        print(f"| {' | '.join([*words, *numbers])} | {entry['bits']:.3f} +- {entry['error']:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--model", choices=sorted(START), default="dense")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], metavar="TRIAL")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    table(arguments.out) if arguments.table else search(arguments)


if __name__ == "__main__":
    main()
