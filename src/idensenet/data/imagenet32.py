"""ImageNet32: ImageNet shrunk to 32 x 32 pixels. Two different data sets go by this name, and papers mix them up.

Numbers on one are not comparable with numbers on the other. Their counts differ, and every report names
the one that was used. A copy is converted once, chunk by chunk, and read through a memory map from then on. Neither has a
published checksum of its content, so counts and shapes are all that can be verified, which is said too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from idensenet.data.imagenet32_layouts import Part, find_layout
from idensenet.data.source import Source
from idensenet.data.store import ArrayWriter, load_splits, missing, new_folder
from idensenet.errors import DataError

NAME = "imagenet32"
CLASSES = 1000


@dataclass(frozen=True)
class Variant:
    """One of the data sets called ImageNet32."""

    title: str
    train: int
    test: int

    def __str__(self) -> str:
        return f"{self.title}: {self.train:,} + {self.test:,} images"


VARIANTS = {
    "downsampled": Variant("Downsampled ImageNet (Chrabaszcz, Loshchilov and Hutter, 2017)", 1_281_167, 50_000),
    "small": Variant("Small ImageNet (van den Oord, Kalchbrenner and Kavukcuoglu, 2016)", 1_281_149, 49_999),
}


def open_imagenet32(root: Path) -> Source:
    """ImageNet32 as it was imported into the data root, memory-mapped."""
    if not (root / NAME / "train_x.npy").exists():
        raise missing(NAME, root)
    train, test = load_splits(root / NAME)
    variant = variant_of(len(train), len(test), root / NAME)
    for split in (train, test):
        if split.x.shape[1:] != (3, 32, 32):
            raise DataError(f"{root / NAME} holds samples of shape {split.x.shape[1:]}; ImageNet32 has (3, 32, 32).")
    return Source(
        NAME,
        train,
        test,
        (3, 32, 32),
        levels=256,
        classes=CLASSES if train.y is not None else None,
        notes=(
            f"This ImageNet32 is {variant}.",
            "No checksum of ImageNet32 is known: its counts and shapes were verified, its content was not.",
        ),
    )


def variant_of(train: int, test: int, where: Path) -> Variant:
    """The data set that has these counts."""
    for variant in VARIANTS.values():
        if (variant.train, variant.test) == (train, test):
            return variant
    known = " or ".join(f"{v.train:,} + {v.test:,}" for v in VARIANTS.values())
    raise DataError(f"{where} has {train:,} + {test:,} images; ImageNet32 has {known}, so this copy is not complete.")


def import_imagenet32(path: Path, root: Path) -> Path:
    """Convert a copy, whichever layout it has, into memory-mapped arrays under the data root."""
    from rich.console import Console
    from rich.progress import Progress

    layout, whole = find_layout(path), VARIANTS["downsampled"]
    with new_folder(root / NAME) as work, Progress(console=Console(stderr=True)) as progress:
        task, counts = progress.add_task("importing images", total=whole.train + whole.test), [0, 0]
        for i, (name, part) in enumerate((("train", layout.train), ("test", layout.test))):
            for counts[i] in _convert(part, work, name):
                progress.update(task, completed=sum(counts))
        variant_of(counts[0], counts[1], path)
    return root / NAME


def _convert(part: Part, work: Path, name: str) -> Iterator[int]:
    """Store one part; yields the number of images so far."""
    labelled = False
    with ArrayWriter(work / f"{name}_x.npy", (3, 32, 32)) as x, ArrayWriter(work / f"{name}_y.npy", (), "int16") as y:
        for rows, labels in part():
            x.append(rows)
            if labels is not None:
                if labels.min() < 1 or labels.max() > CLASSES:
                    raise DataError(
                        f"Labels of ImageNet32 run from 1 to {CLASSES}; these from {labels.min()} to {labels.max()}."
                    )
                labelled = True
                y.append(labels - 1)
            yield x.rows
    if not labelled:
        (work / f"{name}_y.npy").unlink()
