import sys

import numpy as np
import pytest

from idensenet.data.csv_rows import TextFormat
from idensenet.data.table import read_table
from idensenet.data.table_source import Reading, Roles, open_table
from idensenet.errors import DataError, MissingDataError, MissingExtraError, NonFiniteError, OptionError, UnknownNameError


@pytest.fixture
def write(tmp_path):
    def write(text, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize("separator", [",", ";", "\t", ", "])
def test_csv_with_a_header(write, separator):
    table = read_table(write(f"a{separator}b c\n1{separator}2.5\n-3e2{separator}+4\n"))
    assert table.columns == ("a", "b c")
    assert table.values.dtype == np.float64
    assert table.values.tolist() == [[1, 2.5], [-300, 4]]


def test_csv_without_a_header(write):
    table = read_table(write("1,2.0\n3,4\n"))
    assert table.columns == ("x0", "x1")
    assert table.values.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("text", ['"a, b",c\r\n1,2\r\n\r\n3,4\r\n', '\ufeff"a, b",c\n1,2\n3,4', '"a, b",c\n"1","2"\n3,4\n\n'])
def test_quotes_empty_lines_and_windows(write, text):
    table = read_table(write(text))
    assert table.columns == ("a, b", "c")
    assert table.values.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("2019,2020\n1.5,2.5\n0.25,3.5\n", "header"),
        ("2019,2020,2021\n15,25,11\n12,35,12\n17,31,13\n", "header"),
        ("0,1,2\n0.5,1.5,2.5\n", "header"),
        ("1,5\n2,25\n-3,75\n", "decimal"),
        ("1,5\n2,7\n", "decimal"),
    ],
)
def test_numbers_that_may_mean_two_things_are_asked_about(write, text, option):
    with pytest.raises(DataError, match=rf"line 1 of .*--data\.{option} (?i:\S+) or --data\.{option}|Line 1 of .*{option}"):
        read_table(write(text))


def test_the_options_for_text_say_which(write):
    years = write("2019,2020\n1.5,2.5\n0.25,3.5\n")
    named = read_table(years, text=TextFormat(header=True))
    assert (named.columns, named.values.tolist()) == (("2019", "2020"), [[1.5, 2.5], [0.25, 3.5]])
    plain = read_table(years, text=TextFormat(header=False))
    assert (plain.columns, plain.values[0].tolist()) == (("x0", "x1"), [2019, 2020])
    assert read_table(write("1,5\n2,25\n"), text=TextFormat(decimal=",")).values.tolist() == [[1.5], [2.25]]
    assert read_table(write("1,5\n2,25\n"), text=TextFormat(decimal=".")).values.tolist() == [[1, 5], [2, 25]]
    both = read_table(write("a;b\n1,5;-2\n,25;1e-3\n"), text=TextFormat(decimal=","))
    assert (both.columns, both.values.tolist()) == (("a", "b"), [[1.5, -2], [0.25, 1e-3]])
    with pytest.raises(DataError, match=r"1\.234,5"):
        read_table(write("a;b\n1.234,5;2\n"), text=TextFormat(decimal=","))
    with pytest.raises(OptionError, match=r"data\.decimal='x'"):
        read_table(write("a\n1\n"), text=TextFormat(decimal="x"))


@pytest.mark.parametrize("text", ["a;b\n1,5;2\n", "a\tb\n1,5\t2\n", "1,5;2,5\n3,5;4,5\n"])
def test_decimal_commas_are_an_error_that_names_the_option(write, text):
    with pytest.raises(DataError, match=r"not numeric.*--data\.decimal ','"):
        read_table(write(text))


@pytest.mark.parametrize("sign", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_ends_of_lines_end_a_row(write, sign):
    with pytest.raises(DataError, match=r"not numeric.*line 2"):
        read_table(write(f"a\n1{sign}2\n"))


@pytest.mark.parametrize("rows", ["0,1\n1,0.5\n", "2.5,1\n3,4\n", "1,2,3\n4,5,6\n2,2,1\n", "7\n8\n5\n", "1,-2\n3,4\n"])
def test_rows_of_numbers_are_rows(write, rows):
    assert len(read_table(write(rows)).values) == rows.count("\n")


def test_columns_are_chosen_in_the_order_asked_for(write):
    table = read_table(write("a,name,b\n1,x,2\n3,y,4\n"), ["b", "a"])
    assert table.columns == ("b", "a")
    assert table.values.tolist() == [[2, 1], [4, 3]]


def test_columns_that_are_not_numeric_are_named(write):
    with pytest.raises(DataError, match=r"'name' \('x' in line 2\), 'city' \('Ulm' in line 3\)"):
        read_table(write("a,name,city\n1,x,2\n3,y,Ulm\n"))


def test_a_column_that_nobody_has_is_answered_with_the_nearest(write):
    with pytest.raises(UnknownNameError, match="'weigth'; did you mean 'weight'"):
        read_table(write("height,weight\n1,2\n"), ["weigth"])


@pytest.mark.parametrize(("cell", "what"), [("nan", "not a number"), ("", "empty"), ("inf", "infinite"), ("-inf", "infinite")])
def test_what_is_not_finite_is_named_by_row_and_column(write, cell, what):
    with pytest.raises(NonFiniteError, match=rf"Row 2 of .* {what}.* in column 'b'"):
        read_table(write(f"a,b\n1,2\n3,{cell}\n5,6\n"))


def test_a_column_that_is_not_used_may_have_holes(write):
    assert len(read_table(write("a,b\n1,\n3,nan\n"), ["a"]).values) == 2


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a,b\n1,2\n3\n", "Line 3 of .* has 1 cells"),
        ("a,b\n1,2,3\n", "Line 2"),
        ("", "is empty"),
        ("a,b\n", "nothing in it"),
        ("a,a\n1,2\n", "two columns named 'a'"),
        (b"a,b\n\xff\xfe,2\n", "UTF-8"),
        ("a\n1_000\n", "not numeric"),
        ("a\n1\x00\n", "not numeric|cannot be read"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(write, text, match):
    with pytest.raises(DataError, match=match):
        read_table(write(text))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.uint8, bool])
def test_npy_keeps_its_precision(tmp_path, dtype):
    values = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    np.save(tmp_path / "t.npy", values)
    table = read_table(tmp_path / "t.npy", ["x2", "x0"])
    assert table.values.dtype == (np.float32 if dtype in (np.float32, np.float16) else np.float64)
    np.testing.assert_array_equal(table.values, values[:, [2, 0]])


def test_a_vector_is_one_column(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(4.0))
    assert read_table(tmp_path / "t.npy").values.shape == (4, 1)


@pytest.mark.parametrize("array", [np.zeros((2, 2, 2)), np.zeros((2, 2), complex), np.array(["a"]), np.array([None])])
def test_npy_of_something_else_is_refused(tmp_path, array):
    np.save(tmp_path / "t.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=r"t\.npy"):
        read_table(tmp_path / "t.npy")


def test_cut_npy_is_refused(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros((100, 3)))
    data = (tmp_path / "t.npy").read_bytes()
    for end in (0, 5, 60, 1000):
        (tmp_path / "t.npy").write_bytes(data[:end])
        with pytest.raises(DataError, match="cut short"):
            read_table(tmp_path / "t.npy")


def test_nan_in_npy_is_named(tmp_path):
    values = np.zeros((5, 3), np.float32)
    values[3, 1] = values[4, 0] = np.nan
    np.save(tmp_path / "t.npy", values)
    with pytest.raises(NonFiniteError, match=r"Row 4 of .* column 'x1', as are 1 more"):
        read_table(tmp_path / "t.npy")


def test_the_split_is_seeded_and_complete(tmp_path):
    np.save(tmp_path / "t.npy", np.arange(50.0).reshape(50, 1))
    source = open_table(tmp_path / "t.npy", Reading(seed=1, test_fraction=0.2, split="position"))
    assert (source.name, source.shape, source.levels, source.columns) == ("table", (1,), None, ("x0",))
    assert len(source.test) == 10
    assert sorted([*source.train.x[:, 0], *source.test.x[:, 0]]) == list(range(50))
    for how in ("position", "content"):
        found = [
            open_table(tmp_path / "t.npy", Reading(seed=seed, test_fraction=0.2, split=how)).test.x.tolist()
            for seed in (1, 1, 2)
        ]
        assert found[0] == found[1] != found[2]
    assert "50 rows of 1 columns" in source.notes[0]


def test_no_file_and_another_kind_of_file(tmp_path):
    with pytest.raises(MissingDataError, match="no table"):
        read_table(tmp_path / "absent.csv")
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(OptionError, match=r"\.xlsx"):
        read_table(tmp_path / "t.xlsx")


def test_without_pyarrow_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").touch()
    with pytest.raises(MissingExtraError, match=r"needs pyarrow, .* pip install 'idensenet\[parquet\]'"):
        read_table(tmp_path / "t.parquet")


@pytest.fixture
def parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(**columns):
        parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    return write


def test_parquet(parquet):
    table = read_table(parquet(a=[1, 2], b=[0.5, -1.5], c=[True, False]))
    assert table.columns == ("a", "b", "c")
    assert table.values.tolist() == [[1, 0.5, 1], [2, -1.5, 0]]
    small = read_table(parquet(a=np.zeros(3, np.float32), b=["x", "y", "z"]), ["a"])
    assert small.values.dtype == np.float32


def test_parquet_refusals(parquet):
    with pytest.raises(DataError, match=r"'b' \((large_)?string"):
        read_table(parquet(a=[1, 2], b=["x", "y"]))
    with pytest.raises(NonFiniteError, match=r"Row 2 .* column 'a'"):
        read_table(parquet(a=[1, None]))
    path = parquet(a=[1, 2])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="cut short"):
        read_table(path)


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_whole_numbers_that_float64_would_round_are_refused(tmp_path, parquet, kind):
    values = np.array([1, 2**53 + 1], kind)
    np.save(tmp_path / "t.npy", np.stack([values, values * 0], 1))
    for path in (parquet(id=values, b=[0.5, 1.5]), tmp_path / "t.npy"):
        with pytest.raises(DataError, match=r"Column '(id|x0)' of .* 2\^53 and more.*--data\.columns"):
            read_table(path)
    assert read_table(parquet(id=values, b=[0.5, 1.5]), ["b"]).values.tolist() == [[0.5], [1.5]]
    assert read_table(parquet(id=np.array([1, 2**53 - 1], kind))).values[1, 0] == 2**53 - 1


# Columns that are not numeric


def test_nominal_columns_are_read_as_they_are(write):
    path = write('a,zip,city\n1,007,"New York, NY"\n3,100,Ulm\n')
    table = read_table(path, nominal="auto")
    assert list(table.text) == ["city"]
    assert table.column("city").tolist() == ["New York, NY", "Ulm"]
    assert table.column("zip").tolist() == [7, 100]
    named = read_table(path, ["city", "zip"], nominal=["zip", "city"])
    assert named.column("zip").tolist() == ["007", "100"]
    with pytest.raises(NonFiniteError, match=r"Row 2 of .* is empty in column 'city'"):
        read_table(write("a,city\n1,Ulm\n3,\n"), nominal="auto")
    with pytest.raises(DataError, match=r"'city' \('Ulm' in line 2\); .* name these as nominal"):
        read_table(write("a,city\n1,Ulm\n"), nominal=["a"])


def test_what_columns_are_for_is_said_once(write):
    path = write("a,b,w\n" + "\n".join(f"{i},{i % 3},{i % 2 + 1}" for i in range(40)))
    source = open_table(path, Reading(roles=Roles(None, (), "w"), discrete="auto", bounds={"b": (0, 2)}))
    assert (source.columns, source.table.integers, source.bounds) == (("a", "b"), (1,), ((None, None), (0.0, 3.0)))
    assert source.train.batch(np.arange(4)).weight.tolist() == (source.train.x[:4, 0] % 2 + 1).tolist()
    assert open_table(path).table.plain  # a library call finds nothing unasked
    for roles, text in (
        (Roles(["a", "w"], (), "w"), "Column 'w' is to be modelled and to be given"),
        (Roles(None, ("w",), "w"), "named twice"),
        (Roles(None, (), "v"), "has no column 'v'"),
    ):
        with pytest.raises((OptionError, UnknownNameError), match=text):
            open_table(path, Reading(roles=roles))
    with pytest.raises(OptionError, match="weights that are negative"):
        open_table(write("a,w\n1,-1\n2,3\n"), Reading(roles=Roles(None, (), "w")))
