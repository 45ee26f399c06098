import builtins
import os
import pickle

import numpy as np
import pytest

from idensenet.data.unpickler import load_pickle
from idensenet.errors import DataError


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_values_pass_in_every_protocol(protocol):
    value = {
        "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "labels": [1, 2, 300, -5, 2**70],
        b"bytes": (b"abc\xff", b"", "text", None, True, 1.5),
        "nested": [{"f": np.linspace(0, 1, 5)}],
    }
    found = load_pickle(pickle.dumps(value, protocol=protocol), "made up")
    np.testing.assert_array_equal(found["data"], value["data"])
    assert found["data"].dtype == np.uint8
    np.testing.assert_array_equal(found["nested"][0]["f"], value["nested"][0]["f"])
    assert found["labels"] == value["labels"]
    assert found[b"bytes"] == value[b"bytes"]


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0, dtype=np.float32).reshape(2, 3)),
        np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2],
        np.array([True, False]),
        np.zeros((0, 3)),
        np.array(3.5),
    ],
)
def test_byte_order_memory_order_and_types_are_kept(array, protocol):
    found = load_pickle(pickle.dumps(array, protocol=protocol), "made up")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_a_pickle_of_python_2_comes_out_as_bytes():
    data = np.arange(4, dtype=np.uint8)
    python2 = (
        b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x01K\x02eU\x04dataq\x04cnumpy.core.multiarray\n_reconstruct\nq\x05"
        b"cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x04" + data.tobytes() + b"tbu."
    )
    found = load_pickle(python2, "made up")
    assert found[b"labels"] == [1, 2]
    np.testing.assert_array_equal(found[b"data"], data.reshape(2, 2))


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "args", "named"),
    [
        (os.system, ("touch {marker}",), r"(posix|nt)\.system"),
        (builtins.eval, ("open('{marker}', 'w')",), r"builtin.*\.eval"),
        (builtins.getattr, (1, "real"), r"builtin.*\.getattr"),
        (np.load, ("{marker}",), r"numpy.*\.load"),
        (np.arange, (3,), r"numpy.*\.arange"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_anything_else_is_refused_by_name_and_not_run(tmp_path, function, args, named, protocol):
    marker = tmp_path / "ran"
    data = pickle.dumps({"data": Evil(function, *[str(a).replace("{marker}", str(marker)) for a in args])}, protocol)
    with pytest.raises(DataError, match=named):
        load_pickle(data, "made up")
    assert not marker.exists()


@pytest.mark.parametrize(
    "array",
    [np.array([{"a": 1}], dtype=object), np.array(["text"]), np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])],
)
def test_arrays_of_other_things_than_numbers_are_refused(array):
    with pytest.raises(DataError, match="only numbers"):
        load_pickle(pickle.dumps(array, protocol=2), "made up")


def test_a_forged_element_type_does_not_reach_memory():
    """The state of a type is forged to let bytes pass for object pointers; numpy's own reader would follow them."""
    forged = pickle.dumps(np.arange(2, dtype=np.uint64), protocol=2).replace(b"u8", b"O8")
    with pytest.raises(DataError, match="only numbers"):
        load_pickle(forged, "made up")


@pytest.mark.parametrize(
    ("pickled", "match"),
    [
        (b"cnumpy\ndtype\n.", "not data"),
        (b"cnumpy\ndtype\n}b.", "changes functions"),
        (b"cnumpy.core.multiarray\n_reconstruct\n)R.", "without content"),
        (b"]q\x00h\x00a.", "holds itself"),
        (b"c_codecs\nencode\n(Vabc\nVrot13\ntR.", "encoding"),
        (b"cbuiltins\nbytes\n(I999999999999\ntR.", "made by a call"),
        (b"cnumpy.core.multiarray\n_reconstruct\n)R(I1\n(I2\ntI5\nI00\nVabc\ntb.", "plain bytes"),
    ],
)
def test_oddities_are_refused(pickled, match):
    with pytest.raises(DataError, match=match):
        load_pickle(pickled, "made up")


def test_every_cut_is_an_error_in_one_sentence():
    whole = pickle.dumps({"data": np.arange(50, dtype=np.uint8)}, protocol=2)
    for end in range(len(whole)):
        with pytest.raises(DataError, match=r"^batch is not"):
            load_pickle(whole[:end], "batch")


def test_shared_parts_are_visited_once():
    value = [0]
    for _ in range(60):
        value = [value, value]
    load_pickle(pickle.dumps(value), "made up")
