"""Settings for small budgets: lists of trials, one thread each, judged on images or points that are in no training or test set.

    python benchmarks/search.py --data data --out runs/search --model dense       # continued where it stopped
    python benchmarks/search.py --data data --out runs/search --model residual    # as many trials for the Residual Flow
    python benchmarks/search.py --data data --out runs/search --model dense2      # second lists, from what the first ones gave
    python benchmarks/search.py --data data --out runs/search --model residual2
    python benchmarks/search.py --data data --out runs/search --model dense3      # third lists: activations, averages, schedule
    python benchmarks/search.py --data data --out runs/search --model residual3
    python benchmarks/search.py --data data --out runs/search --model sizes --steps 900    # which size for a longer run
    python benchmarks/search.py --data data --out runs/search --model sizes2 --steps 225   # and which shape
    python benchmarks/search.py --data data --out runs/search --model mnist --steps 400   # MNIST
    python benchmarks/search.py --out runs/search --model toy --steps 5000        # toy data
    python benchmarks/search.py --data data --pace 'dense: start' --pace 'dense2: 12-6-2 blocks, depth 2'    # time of a step
    python benchmarks/search.py --table                                           # the record as a table

Each trial changes one thing of `START` and trains for 300 steps of 16 images (`--steps`, `--only`, `--seed` change that). Of
sizes, larger ones take fewer steps, so that all take about the same time. The last 5,000 training images are held out, and 300
of them decide; no trial sees a test image. Toy models are judged by 20,000 points with a seed of their own. Every
trial adds a line to the record (`--record`, results/search.jsonl), and trials that are in it are not run again. Several
processes may share a folder: each takes the next trial that nobody has begun.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import idensenet as idn
from idensenet.config import recipe
from idensenet.data.catalog import open_source
from idensenet.data.source import Source, Split
from idensenet.data.toy import toy_set
from idensenet.provenance import commit
from idensenet.training.evaluation import first_rows, score_rows
from idensenet.training.interrupt import StopRequest
from idensenet.training.loop import Trainer
from idensenet.training.run import RunFolder

HELD_OUT, JUDGED, POINTS = 5_000, 300, 20_000
TURNS = 20  # steps of each model whose pace is measured
SETTINGS = {"lr": 1e-2, "schedule": "cosine", "warmup": 0.02, "concatenation_from": 0.0, "average": 0.98, "compile": "off"}
START: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("cifar10-idensenet-tiny", {"growth": [32, 48, 62], "coeff": 0.99, "lip": 0.999, "beta": 8, "mix": "whiten"}),
    "residual": ("cifar10-resflow-tiny", {"width": 108, "growth": 48, "coeff": 0.99, "beta": 8, "mix": "whiten"}),
}
START["sizes"] = START["dense"]
START["sizes2"] = START["dense2"] = (
    "cifar10-idensenet-tiny",
    {**START["dense"][1], "beta": 16, "train": {"weight_decay": 1e-4}},
)
START["residual2"] = (
    "cifar10-resflow-tiny",
    {**START["residual"][1], "beta": 16, "train": {"lr": 5e-3, "weight_decay": 1e-4}},
)
START["dense3"] = (
    "cifar10-idensenet-tiny",
    {**START["dense2"][1], "blocks": [12, 6, 2], "depth": 2, "growth": [28, 40, 96]},
)
START["residual3"] = (
    "cifar10-resflow-tiny",
    {**START["residual2"][1], "blocks": [12, 6, 2], "width": 72, "activation": "clipswish"},
)
START["mnist"] = ("mnist-best", {"train": {"weight_decay": 1e-4, "batch_size": 32}})
START["toy"] = ("toy-best", {"activation": "clipswish", "beta": 10, "train": {"lr": 5e-3}})
SETS = "checkerboard", "rings", "2spirals"
TOY: dict[str, dict[str, Any]] = {
    "start": {},
    "beta 20": {"beta": 20},
    "beta 40": {"beta": 40},
    "rate 1e-2": {"train": {"lr": 1e-2}},
    "rate 2e-2": {"train": {"lr": 2e-2}},
    "rate 1e-2, beta 20": {"beta": 20, "train": {"lr": 1e-2}},
    "rate 1e-2, warm-up 10 %": {"train": {"lr": 1e-2, "warmup": 0.1}},
    "Adam's betas 0.9, 0.99": {"train": {"betas": [0.9, 0.99]}},
    "constants 0.999, 0.9999": {"coeff": 0.999, "lip": 0.9999},
    "ActNorm": {"actnorm": True},
    "1x1 convolution": {"mix": "whiten"},
    "near the identity": {"start": "identity"},
    "depth 2": {"depth": 2, "growth": 36},
    "depth 4": {"depth": 4, "growth": 16},
    "8 blocks": {"blocks": [8], "growth": 24},
    "5 blocks": {"blocks": [5], "growth": 32},
    # a second list, after tables had preferred sine
    "rate 2e-2, beta 20": {"beta": 20, "train": {"lr": 2e-2}},
    "sine, beta 3": {"activation": "sine", "beta": 3},
    "sine, beta 3, rate 2e-2": {"activation": "sine", "beta": 3, "train": {"lr": 2e-2}},
    "sine, beta 6, rate 2e-2": {"activation": "sine", "beta": 6, "train": {"lr": 2e-2}},
    "sine, beta 3, rate 4e-2": {"activation": "sine", "beta": 3, "train": {"lr": 4e-2}},
    "sine, beta 3, rate 2e-2, depth 2": {
        "activation": "sine",
        "beta": 3,
        "depth": 2,
        "growth": 36,
        "train": {"lr": 2e-2},
    },
    "sine, beta 3, rate 2e-2, constants 0.999, 0.9999": {
        "activation": "sine",
        "beta": 3,
        "coeff": 0.999,
        "lip": 0.9999,
        "train": {"lr": 2e-2},
    },
    "CPila, rate 2e-2": {"activation": "cpila", "train": {"lr": 2e-2}},
}
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
    # The second lists, written after the first: what was better there, together, and more blocks for each scale.
    "dense2": {
        "4-3-2 blocks": {"blocks": [4, 3, 2], "growth": [26, 34, 60]},
        "6-4-2 blocks": {"blocks": [6, 4, 2], "growth": [24, 30, 60]},
        "8-4-2 blocks": {"blocks": [8, 4, 2], "growth": [20, 28, 62]},
        "4-3-2 blocks, depth 2": {"blocks": [4, 3, 2], "depth": 2, "growth": [42, 58, 104]},
        "6-4-2 blocks, depth 2": {"blocks": [6, 4, 2], "depth": 2, "growth": [38, 50, 100]},
        "12-6-2 blocks, depth 2": {"blocks": [12, 6, 2], "depth": 2, "growth": [28, 40, 96]},
    },
    "residual2": {
        "4-3-2 blocks": {"blocks": [4, 3, 2], "width": 94},
        "6-4-2 blocks": {"blocks": [6, 4, 2], "width": 82},
        "12-6-2 blocks": {"blocks": [12, 6, 2], "width": 64},
        "4-3-2 blocks, CLipSwish": {"blocks": [4, 3, 2], "width": 106, "activation": "clipswish"},
        "6-4-2 blocks, CLipSwish": {"blocks": [6, 4, 2], "width": 94, "activation": "clipswish"},
        "12-6-2 blocks, CLipSwish": {"blocks": [12, 6, 2], "width": 72, "activation": "clipswish"},
    },
    "sizes": {
        "2-2-2 blocks": {},
        "4-4-4 blocks": {"blocks": [4, 4, 4]},
        "8-8-8 blocks": {"blocks": [8, 8, 8]},
        "2-2-2 blocks, twice as wide": {"growth": [64, 96, 124]},
        "4-4-4 blocks, twice as wide": {"blocks": [4, 4, 4], "growth": [64, 96, 124]},
    },
}
# The third lists, from the best of the second: what those had left out.
LATER: dict[str, dict[str, Any]] = {
    "sine, beta 3": {"activation": "sine", "beta": 3},
    "sine, beta 1": {"activation": "sine", "beta": 1},
    "CPila": {"activation": "cpila"},
    "average 0.95": {"train": {"average": 0.95}},
    "average 0.99": {"train": {"average": 0.99}},
    "constant rate 3e-3": {"train": {"schedule": "constant", "lr": 3e-3}},
}
OWN["dense3"] = OWN["residual3"] = LATER
# What to train for longer, after the second list; about a million parameters, and as many steps for each.
OWN["sizes2"] = {
    "8-8-8 blocks": {"blocks": [8, 8, 8]},
    "16-8-4 blocks": {"blocks": [16, 8, 4], "growth": [28, 44, 76]},
    "24-8-2 blocks": {"blocks": [24, 8, 2], "growth": [24, 44, 110]},
    "16-8-4 blocks, depth 2": {"blocks": [16, 8, 4], "depth": 2, "growth": [46, 70, 128]},
    "24-12-4 blocks, depth 2": {"blocks": [24, 12, 4], "depth": 2, "growth": [38, 58, 124]},
}
OWN["mnist"] = {
    "12-8 blocks after a squeeze": {},
    "and two fully connected": {"growth": [32, 64], "fc_blocks": 2},
    "6-8-6 blocks": {"squeezes": 0, "blocks": [6, 8, 6], "growth": [24, 40, 72]},
    "12-8 blocks after a squeeze, sine": {"activation": "sine", "beta": 3},
    "12-8 blocks after a squeeze, rate 5e-3": {"train": {"lr": 5e-3}},
}
FEWER = {"4-4-4 blocks": 2, "8-8-8 blocks": 4, "2-2-2 blocks, twice as wide": 3, "4-4-4 blocks, twice as wide": 6}


def steps_of(model: str, name: str, steps: int) -> int:
    """Steps of a trial: larger sizes take fewer."""
    return steps // (FEWER.get(name, 1) if model == "sizes" else 1)


def entries(record: Path) -> list[dict[str, Any]]:
    """What has been tried so far."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []


def source(name: str, root: str) -> Source:
    """A data set of images with the last training images in place of the test images."""
    opened = open_source(name, root=root)
    whole = opened.train
    parts = (slice(None, -HELD_OUT), slice(-HELD_OUT, None))
    train, held_out = (Split(whole.x[part], None if whole.y is None else whole.y[part]) for part in parts)
    return Source(name, train, held_out, opened.shape, levels=256, classes=10)


def trained(config: Any, data: Source, name: str, base: str, arguments: argparse.Namespace) -> tuple[idn.Flow, float]:
    """The trained model and the seconds it took, from a run in a folder of its own."""
    words = name.replace(" ", "-").replace("/", "-").replace(":", "")
    folder = RunFolder(arguments.out / f"{words}-{arguments.steps}-{arguments.seed}")
    torch.set_num_threads(1)
    trainer = Trainer(config, data, folder)
    folder.create(config, base, "python benchmarks/search.py")
    trainer.start()
    if trainer.train() or trainer.progress.step < config.train.max_steps:
        raise SystemExit(f"{folder.path} was interrupted; remove it, and the mark of the trial, to begin it again.")
    return idn.load(folder.path), trainer.progress.seconds


def trials_of(model: str) -> dict[str, dict[str, Any]]:
    """The list of a model: what each trial changes."""
    if model == "toy":
        return {f"{data}: {name}": changes for name, changes in TOY.items() for data in SETS}
    return {**BOTH, **OWN[model]} if model in ("dense", "residual") else OWN[model]


def config_of(model: str, name: str, changes: dict[str, Any], arguments: argparse.Namespace) -> Any:
    """The configuration of a trial."""
    base, overrides = START[model]
    toy = model == "toy"
    steps = steps_of(model, name, arguments.steps)
    train = {
        **({"compile": "on"} if toy else SETTINGS),
        **overrides.get("train", {}),
        **changes.get("train", {}),
        "max_steps": steps,
        "seed": arguments.seed,
        "threads": 1,
        "eval_every": steps,
        "eval_samples": JUDGED,
        "save_every": steps,
    }
    quiet = {"display": "quiet", "pictures": False, "report": False}
    where = {"data": {"name": name.split(":")[0]}} if toy else {}
    return recipe(base).config.replace(**{**overrides, **changes, "train": train, "output": quiet, **where})


def run(model: str, name: str, changes: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    base, overrides = START[model]
    config = config_of(model, name, changes, arguments)
    if model == "toy":
        which = config.data.name
        flow, seconds = trained(config, open_source(which), f"{model}-{name}", base, arguments)
        with torch.no_grad():
            scores = -flow.log_prob(toy_set(which).sample(POINTS, torch.Generator().manual_seed(1_000_003))).double()
    else:
        data = source(config.data.name, arguments.data)
        flow, seconds = trained(config, data, f"{model}-{name}", base, arguments)
        nats = -score_rows(flow, data.test, first_rows(data.test, JUDGED), 50)["log_prob"].double()
        scores = nats / (flow.dims * math.log(2))
    return {
        "model": model,
        "trial": name,
        "parameters": flow.num_parameters,
        "steps": config.train.max_steps,
        "seed": arguments.seed,
        "seconds": round(seconds, 1),
        "score": round(float(scores.mean()), 4),
        "error": round(float(scores.std()) / math.sqrt(len(scores)), 4),
        "commit": commit(),
        "options": {**overrides, **changes},
    }


def search(arguments: argparse.Namespace) -> None:
    trials = trials_of(arguments.model)
    if unknown := sorted(set(arguments.only) - set(trials)):
        raise SystemExit(f"There is no trial {unknown[0]!r}; known are {', '.join(trials)}.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    known = {(e["model"], e["trial"], e["steps"], e["seed"]) for e in entries(arguments.record)}
    for name in arguments.only or trials:
        if (arguments.model, name, steps_of(arguments.model, name, arguments.steps), arguments.seed) in known:
            continue
        taken = arguments.out / f".{arguments.model}-{name.replace('/', '-')}-{arguments.steps}-{arguments.seed}"
        try:
            taken.touch(exist_ok=False)
        except FileExistsError:
            continue
        found = run(arguments.model, name, trials[name], arguments)
        with arguments.record.open("a") as file:
            file.write(json.dumps(found) + "\n")
        unit = "nats" if arguments.model == "toy" else "bits per dimension"
        print(f"{name}: {found['score']:.4f} +- {found['error']:.4f} {unit} in {found['seconds']:.0f} s", flush=True)


def pace(arguments: argparse.Namespace) -> None:
    """Processor time of a training step of several trials, in turns on one thread, with norms and optimiser."""
    torch.set_num_threads(1)
    trainers = {}
    for words in arguments.pace:
        model, name = words.split(": ", 1)
        config = config_of(model, name, trials_of(model)[name], arguments)
        trainers[words] = Trainer(config, source(config.data.name, arguments.data), RunFolder(arguments.out / "pace"))
        trainers[words].start()
    times: dict[str, list[float]] = {words: [] for words in trainers}
    for number in range(TURNS):
        for words, trainer in trainers.items():
            began = time.process_time()
            trainer.step(number, StopRequest())
            times[words].append(time.process_time() - began)
    first = statistics.median(times[arguments.pace[0]][2:])
    for words, found in times.items():
        middle = statistics.median(found[2:])
        print(f"{words}: {middle:.3f} s a step, {middle / first:.2f} times the first")


def table(record: Path) -> None:
    found = entries(record)
    images = [entry for entry in found if entry["model"] != "toy"]
    print("| model | trial | parameters | steps | seed | seconds | bits per dimension |\n|---|---|---|---|---|---|---|")
    for entry in sorted(images, key=lambda e: (e["model"], e["steps"], e["score"])):
        words = [entry[key] for key in ("model", "trial")]
        numbers = [f"{entry['parameters']:,}", f"{entry['steps']:,}", str(entry["seed"]), f"{entry['seconds']:.0f}"]
        print(f"| {' | '.join([*words, *numbers])} | {entry['score']:.3f} +- {entry['error']:.3f} |")
    print(f"\n| toy trial | parameters | steps | seed | {' | '.join(SETS)} |\n|---|---|---|---|{'---|' * len(SETS)}")
    rows: dict[tuple[str, int, int, int], dict[str, float]] = {}
    for entry in found:
        if entry["model"] == "toy":
            data, trial = entry["trial"].split(": ", 1)
            rows.setdefault((trial, entry["parameters"], entry["steps"], entry["seed"]), {})[data] = entry["score"]
    for (trial, parameters, steps, seed), scores in rows.items():
        cells = [f"{scores[data]:.3f}" if data in scores else "" for data in SETS]
        print(f"| {trial} | {parameters:,} | {steps:,} | {seed} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--record", type=Path, default=Path("results/search.jsonl"))
    parser.add_argument("--model", choices=sorted(START), default="dense")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], metavar="TRIAL")
    parser.add_argument("--pace", action="append", default=[], metavar="MODEL: TRIAL")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        table(arguments.record)
    elif arguments.pace:
        pace(arguments)
    else:
        search(arguments)


if __name__ == "__main__":
    main()
