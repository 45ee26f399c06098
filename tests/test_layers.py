"""Three layers import one way: what a flow is, what trains it, and what reproduces the paper."""

import ast
import sys
import tomllib
from pathlib import Path

import pytest

import idensenet
from idensenet.extras import EXTRAS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "idensenet"
RANKS = (  # a module imports from its own line and from those above it; every other module is part of the library, line 0
    ("data",),  # training
    ("training",),
    ("sklearn", "distributions", "pyro", "zuko", "sbi", "scoring"),
    ("report", "bench"),  # laboratory
    ("explore",),
    ("commands",),
    ("reproduce",),
    ("cli", "__main__"),
)
CORE = {"torch", "numpy", "safetensors", "yaml"}
BROUGHT = {"cycler": "matplotlib", "pandas": "a data frame that a user hands in"}  # by what is there already
PACKAGES = {"PyYAML": "yaml", "Pillow": "PIL", "scikit-learn": "sklearn", "pyro-ppl": "pyro"}  # with names of their own


def rank(module):
    """The line of RANKS that a module of the package belongs to, counted from 1; 0 for the library."""
    part = module.split(".")[1] if "." in module else ""
    return next((i for i, names in enumerate(RANKS, 1) if part in names), 0)


def imported(tree):
    """The modules that a tree imports anywhere, also inside functions, and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            if node.module != "idensenet":
                yield node.module, node.lineno
                continue
            for alias in node.names:  # a public name, or a module
                yield f"idensenet.{idensenet._MODULES.get(alias.name, alias.name)}", node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((arg.value, node.lineno) for arg in node.args if isinstance(arg, ast.Constant))


def upwards(module, text):
    """Imports of a module that go upwards, as 'line: module'."""
    own = rank(module)
    return [f"{line}: {name}" for name, line in imported(ast.parse(text)) if name.startswith("idensenet.") and rank(name) > own]


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def test_no_module_imports_upwards():
    found = {name: upwards(name, path.read_text()) for name, path in modules() if name != "idensenet"}  # its names are lazy
    assert len(found) > 150
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("idensenet.flow", "def f():\n    from idensenet.training.run import RunFolder"),
        ("idensenet.storage", "import idensenet.data.table"),
        ("idensenet.storage", "from idensenet import fit"),
        ("idensenet.storage", "from idensenet import training"),
        ("idensenet.training.loop", "if True:\n    from idensenet.report.pictures import run_picture"),
        ("idensenet.report.story", "from idensenet.commands.use import load"),
        ("idensenet.commands.train", "importlib.import_module('idensenet.reproduce.runs')"),
    ],
)
def test_an_import_upwards_is_found(module, line):
    assert len(upwards(module, line)) == 1


def test_the_library_needs_four_packages_and_every_other_one_is_an_extra():
    for module, path in modules():
        for name, line in imported(ast.parse(path.read_text())):
            root = name.partition(".")[0]
            if root == "idensenet" or root in sys.stdlib_module_names or root in CORE:
                continue
            assert rank(module) > 0, f"{path}:{line} imports {root}, and the library does without"
            known = root in EXTRAS or root in BROUGHT or module == "idensenet.bench.peers"
            assert known, f"{path}:{line} imports {root}, which extras.py does not know"


def test_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def packages(requirements):
        names = [each.split(">=")[0].partition("[")[0] for each in requirements]
        return {PACKAGES.get(name, name.replace("-", "_")) for name in names}

    assert packages(project["dependencies"]) == CORE
    extras = dict(project["optional-dependencies"])
    everything, _, _ = extras.pop("all"), extras.pop("dev"), extras.pop("docs")
    assert everything == [f"idensenet[{','.join(extras)}]"]
    del extras["bench"]  # others' libraries, which are measured where they are installed
    assert {name: extra for extra, needed in extras.items() for name in packages(needed)} == EXTRAS
