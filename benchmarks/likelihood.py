"""When a likelihood fails as a score of oddness: MNIST against digits and against itself upside down.

    python benchmarks/likelihood.py --data data --out runs/likelihood        # continued where it stopped

Trains a small flow on MNIST, and a background model on the same images with a fifth of their pixels replaced by noise (Ren et
al., 2019), scores both sets with `idensenet score`, and draws the histograms.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from idensenet.data.catalog import open_source
from idensenet.report.drawing import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = ["--model.blocks", "[2,2,2]", "--model.growth", "32", "--model.fc_blocks", "0", "--logdet.law_parameter", "1"]
TRAINING = ["--train.batch_size", "64", "--train.warmup_steps", "100", "--train.compile", "on", "--train.save_every", "100"]
EVALUATION = ["--logdet.eval_method", "krylov", "--train.eval_every", "1000", "--train.eval_samples", "500"]
OTHERS = {"digits": "digits", "flipped": "mnist:flipped"}
NOISE, IMAGES = 0.2, 20_000


def idensenet(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "idensenet.cli", *map(str, words)], check=True)


def train(run: Path, steps: int, *words: str | Path) -> None:
    if (run / "config.yaml").is_file():
        idensenet("train", "--resume", run, "--train.max_steps", str(steps))
    else:
        options = [*SMALL, *TRAINING, *EVALUATION, "--train.max_steps", str(steps)]
        idensenet("train", "mnist-idensenet", *options, *words, "--output.dir", run)


def perturb(data: str, folder: Path) -> None:
    """Training images with noise in place of some pixels, as files."""
    if folder.is_dir():
        return
    unfinished = folder.with_suffix(".part")
    unfinished.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    images = np.array(open_source("mnist", root=data).train.x[:IMAGES, 0])
    noise = random.integers(0, 256, images.shape, np.uint8)
    images = np.where(random.uniform(size=images.shape) < NOISE, noise, images)
    for i, image in enumerate(images):
        Image.fromarray(image).save(unfinished / f"{i:05d}.png")
    unfinished.rename(folder)


def histograms(out: Path) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3))
    axes = figure.subplots(1, 2)
    for axis, (name, title) in zip(axes, {"digits": "digits", "flipped": "MNIST upside down"}.items(), strict=True):
        with (out / f"{name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        area = json.loads((out / f"{name}.json").read_text())["log_density"]["value"]
        both = {part: [float(row["log_density"]) for row in rows if row["set"] == part] for part in ("own", "other")}
        bins = np.linspace(*np.percentile(both["own"] + both["other"], [0.5, 99.5]), 50)
        for part, label in (("own", "MNIST, held out"), ("other", title)):
            axis.hist(both[part], bins, alpha=0.6, label=label)
        axis.set(title=f"AUROC {area:.3f}", xlabel="log-density, nats", yticks=[])
        axis.spines[["top", "left", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="where MNIST is kept")
    parser.add_argument("--out", type=Path, default=Path("runs/likelihood"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--samples", type=int, default=1000)
    given = parser.parse_args()
    perturb(given.data, given.out / "perturbed")
    train(given.out / "mnist", given.steps, "--data.root", given.data)
    own = ["--data.folder", given.out / "perturbed", "--data.size", "28", "--data.channels", "1", "--data.root", given.out]
    train(given.out / "background", given.steps, *own)
    for name, other in OTHERS.items():
        idensenet(
            *("score", given.out / "mnist", "--against", other, "--background", given.out / "background"),
            *("--samples", str(given.samples), "--reference", "2000", "--out", given.out / f"{name}.csv"),
        )
    save_figure(lambda: histograms(given.out), given.out / "likelihood.png")
    print(f"histograms: {given.out / 'likelihood.png'}")


if __name__ == "__main__":
    main()
