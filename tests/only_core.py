"""A process without the packages that are installed next to the four dependencies of this one and what they bring.

`python only_core.py SCRIPT` runs a script in it. The others look as if they were missing.
"""

import re
import runpy
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

CORE = ("torch", "numpy", "safetensors", "PyYAML")


def distributions():
    """The core dependencies and, one after the other, what they need themselves; optional requirements are left out."""
    found, waiting = set(), list(CORE)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name not in found:
            try:
                needed = requires(name) or []
            except PackageNotFoundError:  # of another platform
                continue
            found.add(name)
            waiting += [re.match(r"[\w.-]+", each)[0] for each in needed if "extra ==" not in each]
    return found


def others():
    """Names of the modules that are installed and that the core dependencies do not bring."""
    core = distributions() | {"idensenet"}
    brought = {name: {re.sub(r"[-_.]+", "-", each).lower() for each in of} for name, of in packages_distributions().items()}
    return {name for name, of in brought.items() if not of & core}


class Without:
    """A finder that does not find these modules; everything else is left to another one."""

    def __init__(self, names, finder):
        self.names, self.finder = names, finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, path, target)


if __name__ == "__main__":
    names = others()
    sys.meta_path[:] = [Without(names, finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
