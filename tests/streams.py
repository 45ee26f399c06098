"""Tables in several Parquet files, for tests."""

import numpy as np
import pyarrow as pa
from pyarrow import parquet

ROWS = 1250


def columns(n=ROWS, seed=0):
    """Rows of two real columns, one of whole numbers, one of names, a context and a weight."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2)) @ [[1.0, 0.5], [0.0, 2.0]] + [100.0, -3.0]
    return {
        "x": x[:, 0],
        "y": x[:, 1],
        "k": random.poisson(3, n),
        "city": random.choice(["Oslo", "Bergen", "Vadsø"], n, p=[0.6, 0.3, 0.1]),
        "given": random.normal(size=n),
        "counts": random.integers(1, 4, n).astype(float),
    }


def write(folder, table, files=4, group=100):
    """The same rows in several files of a folder, and in one file; their places."""
    whole = pa.table(table)
    (folder / "rows").mkdir(parents=True)
    size = -(-len(whole) // files)
    for i in range(files):
        parquet.write_table(whole.slice(i * size, size), folder / "rows" / f"part{i}.parquet", row_group_size=group)
    parquet.write_table(whole, folder / "whole.parquet")
    return folder / "rows", folder / "whole.parquet"


def some(*names, n=ROWS, seed=0):
    return {name: values for name, values in columns(n, seed).items() if name in names}
