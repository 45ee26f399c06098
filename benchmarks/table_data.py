"""The tables of the benchmark: scikit-learn's five, and the tables of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.model_selection import KFold

Array = np.ndarray[Any, Any]
Table = tuple[Array, Array | None]  # rows, and test rows where the publisher has parted them
Load = Callable[[], Table]
FOLDED = 2_000  # rows below which all are test rows in turn
FOLDS = 5
MOST = 100_000  # training rows that are used


def prepared(x: Array, seed: int = 0) -> Array:
    """Without constant columns and copies, and with noise in columns that have few values: a step of their grid."""
    x = np.asarray(x, np.float64)
    x = x[:, x.std(0) > 0]
    random = np.random.default_rng(seed)
    for j in range(x.shape[1]):
        values = np.unique(x[:, j])
        if len(values) < 0.5 * len(x):
            x[:, j] += random.uniform(0, np.diff(values).min(), len(x))
    return x[:, independent(x)]


def independent(x: Array) -> list[int]:
    """Columns none of which follows from those before it, up to a part in a million of its deviation."""
    scaled = (x - x.mean(0)) / x.std(0)
    kept, basis = list[int](), np.zeros((len(x), 0))
    for j in range(x.shape[1]):
        rest = scaled[:, j] - basis @ (basis.T @ scaled[:, j])
        rest -= basis @ (basis.T @ rest)
        size = np.linalg.norm(rest)
        if size > 1e-6 * np.linalg.norm(scaled[:, j]):
            kept.append(j)
            basis = np.column_stack([basis, rest / size])
    return kept


def _scikit_learn(load: Callable[[], Any]) -> Table:
    return prepared(load().data), None


SETS: dict[str, Load] = {
    name: partial(_scikit_learn, load)
    for name, load in {
        "iris": load_iris,
        "wine (178 rows)": load_wine,
        "diabetes": load_diabetes,
        "breast cancer": load_breast_cancer,
        "digits": load_digits,
    }.items()
}


def _single(path: Path) -> Table:
    rows = np.load(path) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", ndmin=2)
    return prepared(rows), None


def _pair(train: Path, test: Path) -> Table:
    """As published: these rows are on no grid."""
    return np.load(train).astype(np.float64), np.load(test).astype(np.float64)


def folder_tables(folder: Path) -> dict[str, Load]:
    """The tables of a folder by name: NAME.csv.gz, NAME.csv (without a header) and NAME.npy; NAME-train.npy or
    NAME-validation.npy with NAME-test.npy are a pair, and are fitted to the first where there are both."""
    found: dict[str, Load] = {}
    for path in sorted(folder.iterdir()):
        name = path.name.split(".")[0]
        if path.name.endswith("-test.npy"):
            name = name.removesuffix("-test")
            trains = [folder / f"{name}-{part}.npy" for part in ("train", "validation")]
            found[name] = partial(_pair, next(train for train in trains if train.is_file()), path)
        elif path.name.endswith((".csv.gz", ".csv")) or (
            path.suffix == ".npy" and not name.endswith(("-train", "-validation"))
        ):
            found[name] = partial(_single, path)
    return found


def folds_of(rows: Array, test: Array | None) -> int:
    """How many parts are test rows in turn."""
    return FOLDS if test is None and len(rows) < FOLDED else 1


def halves(rows: Array, test: Array | None, fold: int) -> tuple[Array, Array]:
    """Training and test rows of a fold, each column by the mean and deviation of the training rows."""
    if test is None:
        parts: Iterator[Any] = KFold(FOLDS if len(rows) < FOLDED else 10, shuffle=True, random_state=0).split(rows)
        train, left = list(parts)[fold]
        rows, test = rows[train], rows[left]
    rows = rows[np.random.default_rng(0).permutation(len(rows))[:MOST]]
    mean, deviation = rows.mean(0), rows.std(0)
    return (rows - mean) / deviation, (test - mean) / deviation
