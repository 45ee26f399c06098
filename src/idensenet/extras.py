"""Optional packages: the extra that installs each of them, and what to type where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from idensenet.errors import MissingExtraError

EXTRAS = {  # by the name that is imported
    "PIL": "train",
    "jsonargparse": "train",
    "lightning_fabric": "train",
    "matplotlib": "train",
    "pooch": "train",
    "rich": "train",
    "sklearn": "sklearn",
    "pyarrow": "parquet",
    "distributed": "dask",
    "tensorboard": "tensorboard",
    "pyro": "pyro",
    "zuko": "zuko",
    "sbi": "sbi",
}


@contextmanager
def needs(what: str) -> Iterator[None]:
    """Report a missing optional package in one sentence, with the command that installs it.

    Args:
        what: The subject of the sentence: what the package is needed for.

    Raises:
        MissingExtraError: An import inside the block did not find a package that an extra installs.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name not in EXTRAS:
            raise
        raise MissingExtraError(
            f"{what} needs {name}, which is not installed; type: pip install 'idensenet[{EXTRAS[name]}]'", name=name
        ) from None
