"""What the library does with its four dependencies alone; run by test_core.py in a process of its own."""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import idensenet as idn
from idensenet.cli import COMMANDS, main
from idensenet.errors import MissingExtraError


def sentence(what):
    """What is said where a package is missing."""
    try:
        what()
    except MissingExtraError as error:
        return str(error)
    raise AssertionError("nothing was missing")


def run(*words):
    """The exit code of a command, and what it says."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        return main(list(words)), said.getvalue()


# Every public name, and flows from constructors, recipes and the package

assert all(getattr(idn, name) is not None for name in idn.__all__)
x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
for flow in (idn.IDenseNet(features=2, blocks=2, growth=8), idn.build("toy-idensenet"), idn.load("moons")):
    flow.initialize(x)
    assert torch.isfinite(flow.log_prob(x)).all()
    assert flow.sample(3).shape == (3, 2)
    assert flow.certify().contractive
digits = idn.load("digits")
image = digits.sample(1)
assert digits.bits_per_dim(image).shape == (1,)
assert len(idn.recipes()) > 40

# Fitting, saving, serving

found = idn.fit(flow, x.numpy(), steps=2)
assert found.history
with tempfile.TemporaryDirectory() as folder:
    again = idn.load(idn.save(flow, folder))
assert torch.equal(again.log_prob(x), flow.log_prob(x))
assert np.isfinite(flow.frozen().log_prob(x).detach().numpy()).all()

# What needs more says so

from idensenet.data.catalog import open_source  # noqa: E402
from idensenet.data.table import read_table  # noqa: E402
from idensenet.training.loop import Trainer  # noqa: E402

for module, package in (("sklearn", "sklearn"), ("pyro", "pyro"), ("zuko", "zuko")):
    text = sentence(lambda module=module: __import__(f"idensenet.{module}"))
    assert text == f"idensenet.{module} needs {package}, which is not installed; type: pip install 'idensenet[{module}]'", text
assert "'idensenet[sklearn]'" in sentence(lambda: open_source("digits"))
assert "'idensenet[train]'" in sentence(lambda: Trainer(idn.build("toy-idensenet").config, open_source("moons"), None))
with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
    assert "'idensenet[parquet]'" in sentence(lambda: read_table(Path(file.name)))

# The command line

assert run("--version") == (0, f"{idn.__version__}\n")
assert run("--help")[0] == 0
for command in COMMANDS:
    want = (
        f"idensenet: 'idensenet {command}' needs jsonargparse, which is not installed; type: pip install 'idensenet[train]'\n"
    )
    assert run(command, "--help") == (2, want), (command, run(command, "--help"))

print("done", *sorted({name.partition(".")[0] for name in sys.modules}))
