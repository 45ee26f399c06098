"""What can go wrong, by name. Every message names the value at fault and what to do about it."""

from __future__ import annotations


class InputError(ValueError):
    """Something handed to the library cannot be used as it is."""


class ShapeError(InputError):
    """A tensor or an image size does not fit."""


class DtypeError(InputError):
    """A tensor has a number type that is not accepted here."""


class DeviceError(InputError):
    """A tensor lives on another device than the model."""


class NonFiniteError(InputError):
    """NaN or infinity where numbers are needed."""


class OptionError(InputError):
    """An option has a value outside its range."""


class UnknownNameError(InputError):
    """There is no recipe, activation or other thing of this name."""


class UninitializedError(InputError):
    """A layer that takes its values from data has seen none."""


class CheckpointError(InputError):
    """A saved model cannot be read."""


class MissingExtraError(ImportError, InputError):
    """An optional package is not installed."""


class DataError(InputError):
    """A data set, a file of it or one value in it cannot be used."""


class StorageError(OSError):
    """A file cannot be read or written: the disk is full, or gone."""


class LostProcessError(ConnectionError):
    """Another process of a run has ended, or cannot be reached."""


class LostClusterError(LostProcessError, InputError):
    """A cluster has no workers, or was lost while it was at work."""


class MissingDataError(DataError):
    """A data set is not on disk."""


class NotContractiveError(InputError):
    """A residual branch has a Lipschitz constant of one or more, so x + g(x) may have no inverse."""


class NonInvertibleError(ArithmeticError):
    """A determinant that must be positive is not."""


class ConvergenceError(ArithmeticError):
    """A solver stopped short of its tolerance."""


MOST_NAMES = 24  # in one sentence


def nearest(name: str, known: list[str]) -> str:
    """The end of a sentence about an unknown name: what was probably meant, or what there is."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=3, cutoff=0.4)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    plain = set(sorted(known, key=len)[:MOST_NAMES])  # the shortest names are the plainest things
    rest = len(known) - len(plain)
    return f"known are {', '.join(repr(each) for each in known if each in plain)}{f' and {rest} more' if rest else ''}."
