"""Columns of Parquet files, as numbers and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from idensenet.columns import Names
from idensenet.data.store import Array
from idensenet.data.tabular import EXACT, Table, check_exact, choose, is_text, numeric_only
from idensenet.errors import DataError
from idensenet.extras import needs


@dataclass(frozen=True)
class Layout:
    """The columns that are read, their types in the file, and which of them are read as they are."""

    names: tuple[str, ...]
    kinds: dict[str, Any]
    text: frozenset[str]

    @classmethod
    def of(cls, schema: Any, path: Path, columns: Sequence[str] | None, nominal: Names) -> Layout:
        from pyarrow import types

        chosen = choose(schema.names, columns, path)
        kinds = {schema.names[c]: schema.field(schema.names[c]).type for c in chosen}
        checks = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
        other = {name: str(kind) for name, kind in kinds.items() if not any(check(kind) for check in checks)}
        named = {name for name, kind in kinds.items() if is_text(name, nominal)}
        if nominal == "auto":
            named = {name for name, kind in kinds.items() if types.is_boolean(kind) or _is_string(kind, types)}
        numeric_only(path, {name: why for name, why in other.items() if name not in named})
        for name in (name for name in kinds if name in named and not _has_categories(kinds[name], types)):
            raise DataError(f"Column {name!r} of {path} is {kinds[name]}, which cannot be nominal; write it as text.")
        return cls(tuple(kinds), kinds, frozenset(named))

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """float32 if that is what all columns are."""
        from pyarrow import types

        return np.float32 if all(types.is_float32(kind) for kind in self.kinds.values()) else np.float64

    def table(self, content: Any, path: Path) -> Table:
        """Some rows; what is missing becomes NaN."""
        from pyarrow import types

        text = {name: np.array(content[name].to_pylist(), object) for name in self.names if name in self.text}
        values = np.empty((content.num_rows, len(self.names)), self.dtype)
        for i, name in enumerate(self.names):
            if name in self.text:
                values[:, i] = np.nan
                continue
            numbers, kind = _numbers(content[name]), self.kinds[name]
            if types.is_integer(kind) and kind.bit_width == 64:
                check_exact(path, [name] if np.nanmax(np.abs(numbers), initial=0.0) >= EXACT else [])
            values[:, i] = numbers
        return Table(values, self.names, text)


@contextmanager
def parquet_of(path: Path) -> Iterator[Any]:
    """A module to read Parquet with; what goes wrong inside is one sentence about this file."""
    with needs(f"Reading {path}"):
        import pyarrow
        from pyarrow import parquet
    try:
        yield parquet
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet, it is damaged or cut short: {error}") from error


def read_parquet(path: Path, columns: Sequence[str] | None, nominal: Names) -> Table:
    """The columns of a whole file."""
    with parquet_of(path) as parquet, parquet.ParquetFile(path) as file:
        layout = Layout.of(file.schema_arrow, path, columns, nominal)
        content = file.read(columns=list(layout.names))
    return layout.table(content, path)


def _is_string(kind: Any, types: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return str(kind) in ("string", "large_string", "string_view")


def _has_categories(kind: Any, types: Any) -> bool:
    """Whether the values of a column can be categories: text, numbers or booleans."""
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return _is_string(kind, types) or any(
        check(kind) for check in (types.is_integer, types.is_floating, types.is_boolean, types.is_null)
    )


def _numbers(column: Any) -> Array:
    import pyarrow

    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.int8())
    return np.asarray(column.cast(pyarrow.float64(), safe=False).to_numpy(), np.float64)
