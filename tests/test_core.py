"""A light core: torch, numpy, safetensors and PyYAML are enough for the library, and what needs more says what to type."""

import subprocess
import sys
from pathlib import Path

import pytest

from idensenet.errors import InputError, MissingExtraError
from idensenet.extras import EXTRAS, needs

HERE = Path(__file__).parent


def only_core(script):
    words = [sys.executable, str(HERE / "only_core.py"), str(script)]
    return subprocess.run(words, capture_output=True, text=True, timeout=600)


def test_the_library_works_with_its_four_dependencies_alone():
    found = only_core(HERE / "core_library.py")
    assert found.returncode == 0, found.stderr
    done, *modules = found.stdout.split()
    assert done == "done"
    assert not set(modules) & set(EXTRAS)


def test_the_process_of_this_test_can_import_nothing_else(tmp_path):
    (tmp_path / "script.py").write_text("import yaml\nimport rich\n")
    found = only_core(tmp_path / "script.py")
    assert found.returncode == 1
    assert "No module named 'rich'" in found.stderr


def test_a_missing_package_is_one_sentence_and_both_kinds_of_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with (
        pytest.raises(MissingExtraError, match=r"^This needs rich, .*; type: pip install 'idensenet\[train\]'$") as found,
        needs("This"),
    ):
        import rich.console  # noqa: F401
    assert found.value.name == "rich"
    assert isinstance(found.value, InputError)
    assert isinstance(found.value, ImportError)


def test_a_missing_package_that_is_no_extra_is_left_alone():
    with pytest.raises(ModuleNotFoundError, match="no_such_package"), needs("This"):
        import no_such_package  # noqa: F401
