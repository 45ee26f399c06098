"""Any folder of images, cut to a square and resized, as a data set.

The images are converted once. The result stays in a cache under the data root and is read through a memory map; it is
made again when a file appears, vanishes or changes, or when other options are asked for.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from idensenet.data.shuffle import Index, split_keys, split_rows
from idensenet.data.source import Source
from idensenet.data.store import Array, ArrayWriter, load_splits, new_folder
from idensenet.errors import DataError, MissingDataError, OptionError
from idensenet.extras import needs

if TYPE_CHECKING:
    from PIL import Image

CACHE = "folder-cache"
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
MOST_PIXELS = 80_000_000  # of one image
FORMAT = 1  # of the cache; another number, and every folder is converted again


def open_folder(
    folder: Path,
    root: Path,
    *,
    size: int = 32,
    channels: int = 3,
    seed: int = 0,
    test_fraction: float = 0.1,
    split: str = "content",
    split_at: float | None = None,
) -> Source:
    """All images in a folder and below, at `size` x `size` pixels, grey (1 channel) or in colour (3).

    The name of a file decides whether it is held out, so that a new file moves no other; with split="position", as in versions
    before 0.2, its place in the order of names does.
    """
    if channels not in (1, 3):
        raise OptionError(f"channels is {channels}; it must be 1 (grey) or 3 (colour).")
    if size < 1:
        raise OptionError(f"size is {size}; it must be at least 1 pixel.")
    files = list_images(folder)
    train, test, at = _split(folder, files, test_fraction, seed, split, split_at)
    how = [] if at is None else [at]
    cache = root / CACHE / _key(folder, files, [size, channels, seed, test_fraction, *how])
    if not cache.is_dir():
        with new_folder(cache, replace=False) as work:
            for name, rows in (("train", train), ("test", test)):
                with ArrayWriter(work / f"{name}_x.npy", (channels, size, size)) as writer:
                    for row in rows:
                        writer.append(load_image(files[row], size, channels)[None])
    note = f"The images are {len(files):,} files from {folder}, cut to their central square and resized to {size} x {size}."
    places = np.concatenate([train, test])
    return Source("folder", *load_splits(cache), (channels, size, size), levels=256, notes=(note,), places=places, split_at=at)


def _split(
    folder: Path, files: list[Path], test_fraction: float, seed: int, split: str, split_at: float | None
) -> tuple[Index, Index, float | None]:
    if split == "position":
        return *split_rows(len(files), test_fraction, seed), None
    names = [f"{seed}/{file.relative_to(folder).as_posix()}".encode() for file in files]
    keys = b"".join(hashlib.blake2b(name, digest_size=8).digest() for name in names)
    return split_keys(np.frombuffer(keys, "<i8"), test_fraction, seed, split_at)


def list_images(folder: Path) -> list[Path]:
    """The image files of a folder and below, in the order of their names; hidden ones are left out."""
    if not folder.is_dir():
        raise MissingDataError(f"There is no folder {folder}; give one that has images in it.")
    files = [f for f in folder.rglob("*") if f.suffix.lower() in ENDINGS and not f.name.startswith(".") and f.is_file()]
    if len(files) < 2:
        raise DataError(f"{folder} has {len(files)} images ({', '.join(ENDINGS)}) in it; at least 2 are needed.")
    return sorted(files, key=lambda f: f.relative_to(folder).as_posix())


def _key(folder: Path, files: list[Path], options: list[float | str]) -> str:
    """A name for the cache that changes with the list of files, their sizes, their times and the options."""
    digest = hashlib.sha256(json.dumps([FORMAT, *options]).encode())
    for file in files:
        stat = file.stat()
        digest.update(json.dumps([file.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns]).encode())
    return digest.hexdigest()[:32]


def load_image(file: Path, size: int, channels: int) -> Array:
    """The central square of an image, upright, resized: uint8 [channels, size, size]."""
    with needs("Reading images"):
        from PIL import Image, ImageOps

    try:
        with Image.open(file) as opened:
            check_pixels(file, opened.size)
            image = ImageOps.exif_transpose(opened)
            image = _eight_bits(image).convert("L" if channels == 1 else "RGB")
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            square = (left, top, left + side, top + side)
            image = image.crop(square).resize((size, size), Image.Resampling.LANCZOS)
    except DataError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"The image {file} cannot be read, it is damaged or cut short: {error}") from error
    pixels: Array = np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1)
    return pixels


def check_pixels(file: Path, size: tuple[int, int]) -> None:
    """A small file can announce any number of pixels, so this is asked before they are decoded."""
    width, height = size
    if width * height > MOST_PIXELS:
        raise DataError(
            f"The image {file} has {width:,} x {height:,} pixels; at most {MOST_PIXELS / 1e6:.0f} million are read: shrink "
            "it, or take it out of the folder."
        )


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey images of 16 bits as 8, which a plain conversion would turn white."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.int64) // 256).clip(0, 255).astype(np.uint8))
