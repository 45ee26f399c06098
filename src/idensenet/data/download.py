"""Getting published data sets onto the disk: downloaded from their publishers, or imported from a copy.

Either way the content is verified before it is stored, and what is stored is complete. Downloads go on where they were cut
off, within one call and from one call to the next.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from idensenet.data.catalog import IMAGE_SETS, NAMES
from idensenet.data.cifar10 import import_cifar10
from idensenet.data.imagenet32 import import_imagenet32
from idensenet.data.mnist import FASHION_MNIST, MNIST
from idensenet.data.resume import ResumingDownloader
from idensenet.data.source import Source
from idensenet.errors import DataError, MissingDataError, OptionError, UnknownNameError, nearest
from idensenet.extras import needs

URL_VARIABLE = "IDENSENET_DATA_URL"
IMPORTS = {
    "cifar10": import_cifar10,
    "mnist": MNIST.import_from,
    "fashion-mnist": FASHION_MNIST.import_from,
    "imagenet32": import_imagenet32,
}


@dataclass(frozen=True)
class Published:
    """Where a data set is published, the publisher first, and the MD5 of each of its files."""

    mirrors: tuple[str, ...]
    files: dict[str, str]


PUBLISHED = {
    "cifar10": Published(
        ("https://www.cs.toronto.edu/~kriz/",),
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    ),
    "mnist": Published(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion-mnist": Published(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
}


def fetch(name: str, root: Path | str, *, base_url: str | None = None, progress: bool = True) -> Source:
    """Download a data set into the data root, unless it is there, and open it.

    Files come from `base_url`, or from the address in the variable IDENSENET_DATA_URL, or from the publisher.
    """
    root = Path(root)
    _check_name(name)
    try:
        return IMAGE_SETS[name](root)
    except MissingDataError:
        pass
    if name not in PUBLISHED:
        raise DataError(
            f"{name} is handed out only to people with an account at https://www.image-net.org; download it there, unpack it "
            f"and import it with `idensenet data {name} --root {root} --from DIR`."
        )
    override = base_url or os.environ.get(URL_VARIABLE)
    mirrors = (override,) if override else PUBLISHED[name].mirrors
    folder = root / "downloads" / name
    for file, md5 in PUBLISHED[name].files.items():
        download(file, md5, mirrors, folder, progress=progress)
    import_from(name, folder, root)
    shutil.rmtree(folder)  # what was in it is stored now
    return IMAGE_SETS[name](root)


def import_from(name: str, path: Path | str, root: Path | str) -> Path:
    """Verify a copy of a data set, however it is packed, and store it in the data root; returns where."""
    path = Path(path)
    _check_name(name)
    if not path.exists():
        raise MissingDataError(f"There is no file or folder {path} to import {name} from.")
    return IMPORTS[name](path, Path(root))


def _check_name(name: str) -> None:
    if name in IMPORTS:
        return
    if name in NAMES:
        raise OptionError(f"The data set {name!r} needs no download; those that do are {', '.join(sorted(IMPORTS))}.")
    raise UnknownNameError(f"There is no data set {name!r}; {nearest(name, sorted(IMPORTS))}")


def download(file: str, md5: str, mirrors: tuple[str, ...], folder: Path, *, progress: bool = True) -> Path:
    """One file with a known MD5, from the first mirror that delivers it; nothing bears its name until it is complete."""
    import logging

    with needs("Downloading data"):
        import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://")):
            raise OptionError(f"Data cannot be downloaded from {mirror!r}; the address must start with https:// or http://.")
        url = f"{mirror.rstrip('/')}/{file}"
        part = folder / f"{file}.part"
        for resumed in (True, False) if part.exists() else (False,):
            downloader = ResumingDownloader(part, progress=progress)
            try:
                return Path(pooch.retrieve(url, f"md5:{md5}", fname=file, path=folder, downloader=downloader))
            except DataError as error:
                failures.append(str(error))
                break
            except ValueError:  # pooch's word for a wrong checksum; it has removed the file
                if not resumed:  # otherwise the part may have been to blame
                    failures.append(f"{url} delivers something else than the published file (its MD5 is not {md5})")
    raise DataError(f"{file} could not be downloaded: {'; '.join(failures)}.")
