"""Tables in several Parquet files: the same data set as in one file in memory, with a few row groups in memory."""

import weakref

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, strategies
from pyarrow import parquet

from idensenet.columns.distinct import Distinct
from idensenet.columns.grids import grid_of, has_no_grid
from idensenet.data import shuffle, streamed
from idensenet.data.catalog import open_source
from idensenet.data.density import check_source
from idensenet.data.fingerprint import Fingerprint, changes, key_blocks
from idensenet.data.source import Split
from idensenet.errors import DataError, MissingDataError, NonFiniteError, OptionError
from idensenet.moments import Moments
from idensenet.training.batches import Batches
from streams import ROWS, columns, some, write

PLAIN = some("x", "y")
TABLES = {
    "real": (PLAIN, {}),
    "discrete": (some("x", "y", "k"), {"bounds": {"k": (0, None)}}),
    "nominal": (some("x", "k", "city"), {}),
    "nominal, weighted": (some("x", "y", "city", "counts"), {"weight": "counts"}),
    "context": (some("x", "y", "given"), {"context": ("given",)}),
    "float32": ({name: values.astype(np.float32) for name, values in PLAIN.items()}, {}),
    "equal rows": ({name: values.round(0) for name, values in PLAIN.items()}, {"seed": 3}),
}


def both(folder, table, **options):
    options = {"discrete": "auto", "categorical": "auto", **options}
    return [open_source("table", table=str(path), **options) for path in write(folder, table)]


def all_of(samples):
    return samples.batch(np.arange(len(samples)))


@pytest.mark.parametrize("name", TABLES)
def test_a_stream_is_the_same_data_set_as_the_table_in_memory(tmp_path, name):
    table, options = TABLES[name]
    stream, memory = both(tmp_path, table, **options)
    assert not isinstance(stream.train, Split)
    assert isinstance(memory.train, Split)
    assert (stream.split_at, stream.bounds, stream.columns, stream.context) == (
        memory.split_at,
        memory.bounds,
        memory.columns,
        memory.context,
    )
    assert stream.table.columns == memory.table.columns
    if memory.table.categories is not None:
        assert stream.table.categories.rows == memory.table.categories.rows
        assert stream.table.categories.counts == pytest.approx(memory.table.categories.counts, rel=1e-12)
    for part in ("train", "test"):
        a, b = (all_of(getattr(source, part)) for source in (stream, memory))
        for left, right in zip(a, b, strict=True):
            assert (left is None) == (right is None)
            assert left is None or (torch.equal(left, right) and left.dtype == right.dtype)
    assert stream.train.mean_weight == pytest.approx(memory.train.mean_weight)
    assert Fingerprint.of(stream) == Fingerprint.of(memory)
    assert changes(Fingerprint.of(memory), stream) == ()
    keys = [np.concatenate(list(key_blocks(source.test))) for source in (stream, memory)]
    assert np.array_equal(*keys)


def test_neither_order_nor_new_files_move_a_row(tmp_path):
    source, _ = both(tmp_path, PLAIN)
    before = {tuple(row) for row in all_of(source.test).x.tolist()}
    (tmp_path / "rows" / "part0.parquet").rename(tmp_path / "rows" / "z.parquet")
    parquet.write_table(pa.table(some("x", "y", seed=9)), tmp_path / "rows" / "a.parquet")
    after = open_source("table", table=tmp_path / "rows", split_at=source.split_at)
    assert before < {tuple(row) for row in all_of(after.test).x.tolist()}
    assert "No held-out row was trained on" in changes(Fingerprint.of(source), after)[1]


@pytest.mark.parametrize("rows", [ROWS, 90])
def test_every_row_is_seen_once_an_epoch_and_ranks_take_different_ones(tmp_path, rows):
    source, _ = both(tmp_path, some("x", "y", n=rows))
    size = next(size for size in range(9, 99) if len(source.train) % size == 0)
    alone = Batches(source, size, seed=5)
    epochs = [[alone(e * alone.per_epoch + i).x for i in range(alone.per_epoch)] for e in range(2)]
    everything = sorted(all_of(source.train).x.tolist())
    for epoch in epochs:
        assert sorted(torch.cat(epoch).tolist()) == everything
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))
    ranks = [Batches(source, size, 5, rank, 2) for rank in range(2)]
    for number in range(alone.per_epoch // 2):
        for rank, batches in enumerate(ranks):
            assert torch.equal(batches(number).x, epochs[0][2 * number + rank])


def test_the_order_is_a_function_of_the_seed_and_shuffles_rows_of_several_groups(tmp_path):
    source, _ = both(tmp_path, PLAIN)
    order, again = source.train.order([1, 2, 3]), source.train.order([1, 2, 3])
    whole = again[0 : len(source.train)]
    assert np.array_equal(np.concatenate([order[i : i + 7] for i in range(0, len(whole), 7)]), whole)
    assert np.array_equal(order[500:520], whole[500:520])  # also backwards, as after a resume
    assert not np.array_equal(source.train.order([1, 2, 4])[0:50], whole[:50])
    groups = np.searchsorted(source.train.ends, whole[:100], side="right")
    assert len(set(groups.tolist())) == streamed.BUFFER
    assert (np.diff(groups) != 0).mean() > 0.7  # seven of eight, if groups are mixed


@pytest.mark.parametrize(("limit", "value"), [("BUFFER", 3), ("ROWS", 300), ("BYTES", 300)])
def test_only_a_few_row_groups_are_in_memory(tmp_path, monkeypatch, limit, value):
    source, _ = both(tmp_path, PLAIN)
    monkeypatch.setattr(streamed, limit, value * 16 if limit == "BYTES" else value)
    made, read, real = [], [], streamed.Division.part

    def part(self, i, held_out):
        split = real(self, i, held_out)
        read.append(i)
        made.append(weakref.ref(split))
        return split

    monkeypatch.setattr(streamed.Division, "part", part)
    batches = Batches(source, 25, seed=0)
    for number in range(batches.per_epoch):
        batches(number)
        held = [len(split) for each in made if (split := each()) is not None]
        assert 1 <= (len(held) if limit == "BUFFER" else sum(held)) <= value
    assert len(read) == len(source.train.counts)  # each is read once in an epoch
    read.clear()
    for _ in source.train.blocks():
        assert sum(each() is not None for each in made) <= len(held) + 2
    assert read == list(range(len(source.train.counts)))


def test_large_tables_are_divided_at_the_share_itself_in_memory_and_in_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(shuffle, "MANY", 1000)
    monkeypatch.setattr("idensenet.data.stream_source.MANY", 1000)
    stream, memory = both(tmp_path, PLAIN)
    assert stream.split_at == memory.split_at == 0.1
    assert torch.equal(all_of(stream.test).x, all_of(memory.test).x)
    assert len(stream.test) == pytest.approx(ROWS / 10, abs=3 * (ROWS * 0.09) ** 0.5)


@pytest.mark.parametrize("bound", [1e-12, 1 - 1e-12])
def test_both_parts_have_a_row_wherever_the_bound_is(tmp_path, bound):
    stream, memory = both(tmp_path, PLAIN, split_at=bound)
    assert torch.equal(all_of(stream.test).x, all_of(memory.test).x)
    assert 1 in (len(stream.test), len(stream.train))


def test_the_same_tables_have_no_density(tmp_path):
    table = {**PLAIN, "z": PLAIN["x"] * 2 - PLAIN["y"]}
    for source in both(tmp_path, table, discrete=None):
        with pytest.raises(DataError, match="Columns 'x', 'y', 'z' determine each other"):
            check_source(source, "float32")


# Errors, each in one sentence


def change(folder, name, table, **options):
    parquet.write_table(pa.table(table), folder / "rows" / name, **options)


def replaced(name, values):
    return {**PLAIN, name: values}


WRONG = {
    "no file": (lambda f: [p.unlink() for p in (f / "rows").iterdir()], MissingDataError, "There is no Parquet file in"),
    "other columns": (
        lambda f: change(f, "part2.parquet", {"x": PLAIN["x"], "b": PLAIN["y"]}),
        DataError,
        r"part2.parquet has a column 'b' and .*part0.parquet has none|part0.parquet has a column 'y' and .*part2",
    ),
    "other types": (
        lambda f: change(f, "part2.parquet", replaced("y", PLAIN["y"].astype(np.float32))),
        DataError,
        "Column 'y' is double in .*part0.parquet and float in .*part2.parquet; write all files with one type",
    ),
    "empty": (lambda f: change(f, "part2.parquet", {n: v[:0] for n, v in PLAIN.items()}), DataError, "has no rows; remove it"),
    "cut": (
        lambda f: (f / "rows" / "part1.parquet").write_bytes((f / "rows" / "part1.parquet").read_bytes()[:-9]),
        DataError,
        "part1.parquet cannot be read as Parquet, it is damaged or cut short",
    ),
    "no bytes": (lambda f: (f / "rows" / "part1.parquet").write_bytes(b""), DataError, "part1.parquet cannot be read as Parq"),
    "missing": (
        lambda f: change(f, "part1.parquet", replaced("y", np.where(np.arange(ROWS) == 700, np.nan, 1.0)), row_group_size=100),
        NonFiniteError,
        "Row 701 of .*part1.parquet is empty or not a number .* in column 'y'",
    ),
    "too large a row group": (
        lambda f: None,
        DataError,
        "part0.parquet has a row group of 100 rows, .*write it with smaller ones",
    ),
    "text": (
        lambda f: [change(f, f"part{i}.parquet", replaced("y", np.array(["a"] * ROWS))) for i in range(4)],
        DataError,
        "columns that are not numeric: 'y' ",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_files_is_said(tmp_path, monkeypatch, name):
    rows, _ = write(tmp_path, PLAIN)
    if name.startswith("too"):
        monkeypatch.setattr("idensenet.data.row_groups.LARGEST", 1000)
    spoil, error, text = WRONG[name]
    spoil(tmp_path)
    with pytest.raises(error, match=text) as raised:
        open_source("table", table=rows)
    assert "\n" not in str(raised.value)


def test_globs(tmp_path):
    rows, _ = write(tmp_path, PLAIN)
    assert len(open_source("table", table=str(rows / "part[01].parquet")).train.counts) == 8
    assert len(open_source("table", table=str(tmp_path / "**" / "part*")).train.counts) == 16
    with pytest.raises(MissingDataError, match=r"No file matches .*none\*.parquet"):
        open_source("table", table=str(rows / "none*.parquet"))
    (rows / "part9.csv").write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match=r"part9.csv matches .* and is no Parquet file"):
        open_source("table", table=str(rows / "part*"))
    (rows / "_SUCCESS").write_text("")
    assert len(open_source("table", table=rows).train.counts) == 16  # of a folder only Parquet files count


@pytest.mark.parametrize(
    ("table", "options", "text"),
    [
        (PLAIN, {"split": "position"}, "--data.split position needs all rows in memory"),
        (PLAIN, {"bounds": {"x": (0, 100)}}, r"Column 'x' has 10\d.* which is not strictly between its bounds \(0, 100\)"),
        (PLAIN, {"columns": ["x", "z"]}, "has no column 'z'"),
        (PLAIN, {"weight": "y"}, "Column 'y' of .* has weights that are negative"),
        ({**PLAIN, "w": np.zeros(ROWS)}, {"weight": "w"}, "Column 'w' of .* all zero"),
        ({"x": np.ones(ROWS)}, {}, "All rows of .* are the same"),
        ({**PLAIN, "name": [f"n{i}" for i in range(ROWS)]}, {"categorical": "auto"}, "Column 'name' has 1250 different values"),
        (PLAIN, {"discrete": ["x"]}, "Column 'x' cannot be discrete"),
        (some("city"), {"categorical": "auto"}, "All columns of .* are nominal"),
    ],
)
def test_what_cannot_be_streamed_is_said(tmp_path, table, options, text):
    rows, _ = write(tmp_path, table)
    with pytest.raises((DataError, OptionError, ValueError), match=text):
        open_source("table", table=rows, **options)


def test_many_categories_are_refused(tmp_path, monkeypatch):
    rows, _ = write(tmp_path, columns())
    monkeypatch.setattr("idensenet.data.stream_source.CATEGORIES", 2)
    with pytest.raises(DataError, match=r"Column 'city' of .* has more than 2 different values"):
        open_source("table", table=rows, categorical="auto")


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path, monkeypatch):
    source, _ = both(tmp_path, PLAIN)
    monkeypatch.setattr("idensenet.data.row_groups.OPEN", 1)
    source.train.division.groups._open.clear()
    change(tmp_path, "part3.parquet", some("x", "y", seed=8))
    with pytest.raises(DataError, match=r"part3.parquet was changed while it was being read"):
        all_of(source.train)


# What is found block by block


@given(strategies.lists(strategies.integers(1, 40), min_size=1, max_size=5), strategies.integers(0, 9), strategies.booleans())
def test_moments_of_blocks_are_moments_of_all_rows(sizes, seed, weighted):
    random = np.random.default_rng(seed)
    x = random.normal([1e6, -2.0], [3.0, 0.1], (sum(sizes), 2))
    weight = random.random(len(x)) if weighted else None
    found, ends = Moments(), np.cumsum(sizes)
    for start, stop in zip([0, *ends], ends, strict=False):
        found.add(x[start:stop], None if weight is None else weight[start:stop])
    assert found.mean == pytest.approx(np.average(x, axis=0, weights=weight), rel=1e-12)
    expected = np.cov(x.T, aweights=weight, ddof=0)
    assert found.covariance == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert found.constant.tolist() == [len(x) == 1] * 2


NUMBERS = [strategies.integers(-500, 500), strategies.integers(0, 1 << 24), strategies.floats(-5, 5, width=32)]


@given(
    strategies.one_of([strategies.lists(each, min_size=2, max_size=6) for each in NUMBERS]),
    strategies.lists(strategies.integers(-(10**6), 10**6), max_size=9),
)
@example([0, 1, 100], [])
@example([0, 1, 1 << 24], [7])
def test_a_column_that_is_dropped_has_no_grid_whatever_comes(values, more):
    found = np.unique(np.array(values, np.float64))
    if has_no_grid(found):
        assert grid_of(np.concatenate([found, np.array(more, np.float64)])) is None


def test_different_values_are_gathered_and_dropped():
    random, found, ids = np.random.default_rng(0), Distinct(), Distinct()
    for _ in range(3):
        found.add(random.normal(size=5000))
        ids.add(random.integers(0, 1000, 5000) / 10)
    assert found.values is None
    assert (found.rows, found.low < -3, found.high > 3) == (15000, True, True)
    assert len(ids.values) == 1000
