"""Public names, and what their docstrings leave out."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import idensenet as idn
from idensenet import distributions, scoring, testing

SECTION = re.compile(r"^(Args|Returns|Raises|Examples):$", re.M)


def own(thing: Any) -> bool:
    """Whether a thing is defined in this package."""
    return str(getattr(thing, "__module__", "")).startswith("idensenet")


def members(name: str, kind: type) -> Iterator[tuple[str, Any, str | None]]:
    """The public methods and properties of a class that this package defines, with their docstrings, inherited ones too."""
    for attribute in sorted(vars(object).keys() ^ {key for base in kind.__mro__ if own(base) for key in vars(base)}):
        if attribute.startswith("_"):
            continue
        home = next((base for base in kind.__mro__ if attribute in vars(base)), None)
        if home is None or not own(home):
            continue
        value = inspect.getattr_static(kind, attribute)
        if isinstance(value, property):
            yield f"{name}.{attribute}", value, inspect.getdoc(value) or inherited(kind, attribute)
        elif inspect.isfunction(function := getattr(value, "__func__", value)) and own(inspect.unwrap(function)):
            yield f"{name}.{attribute}", inspect.unwrap(function), inherited(kind, attribute)


def inherited(kind: type, attribute: str) -> str | None:
    """The docstring of an attribute, of the nearest class that has one."""
    for base in kind.__mro__:
        value = vars(base).get(attribute)
        found = getattr(getattr(value, "__func__", value), "__doc__", None)
        if found:
            return inspect.cleandoc(found)
    return None


MORE = {  # public names that are imported from elsewhere
    distributions: ["BijectionTransform", "FlowDistribution"],
    scoring: ["score_partition"],
    testing: ["brute_jacobian", "check_activation", "check_bijection", "check_linear_map", "check_log_det"],
}


def public() -> Iterator[tuple[str, Any, str | None]]:
    """Every public function, class, method and property: its name, the object, and its docstring."""
    names = [(name, getattr(idn, name)) for name in idn.__all__]
    names += [(name, getattr(module, name)) for module, more in MORE.items() for name in more]
    for name, thing in names:
        if inspect.isclass(thing):
            yield name, thing, inspect.cleandoc(thing.__doc__) if thing.__doc__ else None
            yield from members(name, thing)
        elif callable(thing):
            yield name, thing, inspect.getdoc(thing)


def left_out(thing: Any, doc: str | None) -> list[str]:
    """What a docstring does not say: the docstring itself, an argument, or the return value."""
    if not doc:
        return ["a docstring"]
    if isinstance(thing, property) or (inspect.isclass(thing) and not own(thing.__init__)):
        return []
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return []
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    missing = [f"argument {p.name}" for p in parameters if not re.search(rf"^    \*{{0,2}}{p.name}: ", doc, re.M)]
    returns = signature.return_annotation not in (None, "None", inspect.Signature.empty) and not inspect.isclass(thing)
    if returns and not re.search(r"^Returns:$", doc, re.M) and not re.search(r"^(Returns|Whether) ", doc):
        missing.append("what is returned")
    return missing


if __name__ == "__main__":
    counts: dict[str, int] = {}
    for name, thing, doc in public():
        for what in left_out(thing, doc):
            counts[what.split()[0]] = counts.get(what.split()[0], 0) + 1
            print(f"{name}: {what}")
    print(counts, sum(1 for _ in public()))
