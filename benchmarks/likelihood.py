"""When a likelihood fails as a score of oddness: MNIST against digits and itself upside down, CIFAR-10 against smooth images.

    python benchmarks/likelihood.py --data data --out runs/likelihood --cifar RUN        # continued where it stopped

Trains a small flow on MNIST, and a background model on the same images with a fifth of their pixels replaced by noise (Ren et
al., 2019), scores both sets with `idensenet score`, and draws the histograms. With a run on CIFAR-10, also its test images
against copies of them without detail: smooth, as photographs of house numbers are.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from idensenet.data.catalog import open_source
from idensenet.report.drawing import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = ["--model.blocks", "[2,2,2]", "--model.growth", "32", "--model.fc_blocks", "0", "--logdet.law_parameter", "1"]
TRAINING = ["--train.batch_size", "64", "--train.warmup_steps", "100", "--train.compile", "on", "--train.save_every", "100"]
EVALUATION = ["--logdet.eval_method", "krylov", "--train.eval_every", "1000", "--train.eval_samples", "500"]
NOISE, IMAGES = 0.2, 20_000
BLUR = 4  # pixels whose mean replaces them, along each side


@dataclass(frozen=True)
class Comparison:
    name: str  # of its files
    run: Path
    own: str  # title
    other: str
    against: str | Path
    background: Path | None = None


def idensenet(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "idensenet.cli", *map(str, words)], check=True)


def train(run: Path, steps: int, *words: str | Path) -> None:
    if (run / "config.yaml").is_file():
        idensenet("train", "--resume", run, "--train.max_steps", str(steps))
    else:
        options = [*SMALL, *TRAINING, *EVALUATION, "--train.max_steps", str(steps)]
        idensenet("train", "mnist-idensenet", *options, *words, "--output.dir", run)


def as_files(images: np.ndarray[Any, Any], folder: Path) -> None:
    """Images [n, height, width] or [n, height, width, 3], all or none."""
    unfinished = folder.with_suffix(".part")
    unfinished.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(unfinished / f"{i:05d}.png")
    unfinished.rename(folder)


def perturb(data: str, folder: Path) -> None:
    """Training images of MNIST with noise in place of some pixels."""
    random = np.random.default_rng(0)
    images = np.array(open_source("mnist", root=data).train.x[:IMAGES, 0])
    noise = random.integers(0, 256, images.shape, np.uint8)
    as_files(np.where(random.uniform(size=images.shape) < NOISE, noise, images), folder)


def smooth(data: str, folder: Path, samples: int) -> None:
    """Test images of CIFAR-10 without detail."""
    images = np.moveaxis(np.array(open_source("cifar10", root=data).test.x[:samples]), 1, -1)
    small = [Image.fromarray(image).reduce(BLUR).resize(image.shape[:2], Image.Resampling.BICUBIC) for image in images]
    as_files(np.stack([np.asarray(image) for image in small]), folder)


def log_densities(out: Path, name: str) -> dict[str, list[float]]:
    """Of the images of both sets, as `idensenet score` wrote them."""
    with (out / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {part: [float(row["log_density"]) for row in rows if row["set"] == part] for part in ("own", "other")}


def histograms(out: Path, comparisons: list[Comparison]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(comparisons), 2.8))
    axes = figure.subplots(1, len(comparisons))
    for axis, each in zip(axes, comparisons, strict=True):
        both = log_densities(out, each.name)
        area = json.loads((out / f"{each.name}.json").read_text())["log_density"]["value"]
        low, high = np.percentile(both["own"] + both["other"], [0.5, 99.5])
        bins = np.linspace(low, high, 50)
        for part, label in (("own", f"{each.own}, held out"), ("other", each.other)):
            axis.hist(both[part], bins, alpha=0.6, label=label)
        axis.set(title=f"AUROC {area:.3f}", xlabel="log-density, nats", yticks=[])
        axis.locator_params(axis="x", nbins=5)
        axis.spines[["top", "left", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data", help="where MNIST and CIFAR-10 are kept")
    parser.add_argument("--cifar", type=Path, default=None, help="a run on CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("runs/likelihood"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000)
    given = parser.parse_args()
    mnist, background, perturbed = given.out / "mnist", given.out / "background", given.out / "perturbed"
    if not perturbed.is_dir():
        perturb(given.data, perturbed)
    train(mnist, given.steps, "--data.root", given.data)
    own: list[str | Path] = ["--data.folder", perturbed, "--data.size", "28", "--data.channels", "1", "--data.root", given.out]
    train(background, given.steps, *own)
    comparisons = [
        Comparison("digits", mnist, "MNIST", "digits", "digits", background),
        Comparison("flipped", mnist, "MNIST", "MNIST upside down", "mnist:flipped", background),
    ]
    if given.cifar is not None:
        if not (given.out / "smooth").is_dir():
            smooth(given.data, given.out / "smooth", given.samples)
        comparisons.append(Comparison("smooth", given.cifar, "CIFAR-10", "CIFAR-10, smooth", given.out / "smooth"))
    for each in comparisons:
        behind: list[str | Path] = [] if each.background is None else ["--background", each.background]
        sizes = ["--samples", str(given.samples), "--reference", str(2 * given.samples)]
        idensenet("score", each.run, "--against", each.against, *behind, *sizes, "--out", given.out / f"{each.name}.csv")
        for title, found in zip((each.own, each.other), log_densities(given.out, each.name).values(), strict=True):
            print(f"{title}: mean log-density {np.mean(found):.1f} nats, deviation {np.std(found):.1f}, {len(found)} images")
    save_figure(lambda: histograms(given.out, comparisons), given.out / "likelihood.png")
    print(f"histograms: {given.out / 'likelihood.png'}")


if __name__ == "__main__":
    main()
