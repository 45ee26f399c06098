"""Reading pickles that hold data, and nothing but data.

A pickle is a program: loading one from a stranger runs what the stranger wrote. This reader admits arrays of numbers and
the plain values that the pickle language has itself (dict, list, tuple, str, bytes, int, ...). Arrays are not built by
numpy's own functions, since a forged element type could make those read memory that is not theirs. Stand-ins collect what
the pickle says about an array, check it, and only then make one.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

from idensenet.errors import DataError

_ELEMENTS = {"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"}


class _Dtype:
    """The type of an array's elements: a number of fixed size."""

    def __init__(self, code: Any, *_: Any) -> None:
        text = code.decode("ascii") if isinstance(code, bytes) else str(code)
        if text not in _ELEMENTS:
            raise DataError(f"an array of {text!r} is refused: only numbers are admitted")
        self.value = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else str(state[1])
        if order in "<>":
            self.value = self.value.newbyteorder(order)  # type: ignore[arg-type]


class _Array:
    """An array in the making."""

    value: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: Any) -> None:
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
            raise DataError("an array that is not made of plain bytes is refused")
        if order not in ("C", "F"):
            raise DataError(f"an array stored in the order {order!r} is refused")
        self.value = np.frombuffer(data, dtype.value).reshape([int(n) for n in shape], order=order)


class _Call:
    """A function that a pickle may call, wrapped so that the pickle cannot change it."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __setstate__(self, state: Any) -> None:
        raise DataError("a pickle that changes functions is refused")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> _Array:
    array = _Array()
    array.fill(data, dtype, shape, order)
    return array


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes in the old protocols of Python 3."""
    if encoding not in ("latin1", b"latin1"):
        raise DataError(f"text in the encoding {encoding!r} is refused")
    return text.encode("latin1") if isinstance(text, str) else bytes(text)


def _bytes(*args: Any) -> bytes:
    """Empty bytes in the old protocols of Python 3, which write them as a call."""
    if args:
        raise DataError("bytes made by a call are refused")
    return b""


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "ndarray",  # only ever an argument of _reconstruct
    ("numpy", "dtype"): _Call(_Dtype),
    ("_codecs", "encode"): _Call(_encode),
    ("builtins", "bytes"): _Call(_bytes),
    ("__builtin__", "bytes"): _Call(_bytes),
}
for _core in ("numpy.core", "numpy._core"):
    _ADMITTED[f"{_core}.multiarray", "_reconstruct"] = _Call(_reconstruct)
    _ADMITTED[f"{_core}.numeric", "_frombuffer"] = _Call(_frombuffer)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise DataError(f"it asks for {module}.{name}, and only arrays and plain values are admitted")
        return _ADMITTED[module, name]


def _finished(value: Any, seen: dict[int, Any]) -> Any:
    """The value with arrays in place of their stand-ins; shared parts are visited once, circles are refused."""
    if isinstance(value, _Array):
        if value.value is None:
            raise DataError("an array without content is refused")
        return value.value
    if isinstance(value, _Dtype | _Call):
        raise DataError("a type or a function is not data")
    if not isinstance(value, dict | list | tuple):
        return value
    if id(value) in seen:
        if seen[id(value)] is None:
            raise DataError("a container that holds itself is refused")
        return seen[id(value)]
    seen[id(value)] = None
    done: Any
    if isinstance(value, dict):
        done = {key: _finished(item, seen) for key, item in value.items()}
    else:
        done = type(value)(_finished(item, seen) for item in value)
    seen[id(value)] = done
    return done


def _check_memo(data: bytes) -> None:
    """Refuse places of the memo beyond the length of the pickle: room for all places below is made at once."""
    for opcode, argument, _ in pickletools.genops(data):
        if "PUT" in opcode.name and int(argument or 0) > len(data):
            raise DataError(f"it asks for the place {argument} of a memo, and it has {len(data)} bytes")


def load_pickle(data: bytes, where: str) -> Any:
    """What a pickle holds. Text of Python 2 comes out as bytes. `where` names the file in errors.

    >>> load_pickle(pickle.dumps({"labels": [1, 2]}), "a file")
    {'labels': [1, 2]}
    """
    try:
        _check_memo(data)
        return _finished(_Unpickler(io.BytesIO(data), encoding="bytes").load(), {})
    except DataError as error:
        raise DataError(f"{where} is not admitted as data: {error}.") from error
    except Exception as error:  # a damaged pickle fails in every way there is
        raise DataError(f"{where} is not a complete pickle, it is damaged or cut short ({type(error).__name__}).") from error
