"""The wheel and the source distribution: what is in them, and what a new user does with the wheel."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import idensenet as idn
from idensenet.config import recipes
from idensenet.storage import pretrained
from page_blocks import blocks

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "idensenet"
NAME = f"idensenet-{idn.__version__}"


def run(*words, **options):
    """What a program prints; what it says on its way is shown if it fails."""
    found = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=1800, **options)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def build(folder, *targets):
    """Builds without an environment of its own, so that nothing is downloaded."""
    out = folder / "dist"
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        *[word for target in targets for word in ("-t", target)],
        "-d",
        out,
        cwd=ROOT,
    )
    return out


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    return build(tmp_path_factory.mktemp("packages"), "sdist", "wheel")


@pytest.fixture(scope="module")
def wheel(dist):
    return dist / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def sdist(dist):
    return dist / f"{NAME}.tar.gz"


def test_the_wheel_has_all_code_recipes_and_weights_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if f"{NAME}.dist-info" not in name}
        metadata = archive.read(f"{NAME}.dist-info/METADATA").decode()
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert names == {f"idensenet/{path.relative_to(PACKAGE).as_posix()}" for path in files}
    assert {f"idensenet/recipes/{name}.yaml" for name in recipes()} <= names
    weights = {f"idensenet/pretrained/{name}/model.{kind}" for name in pretrained() for kind in ("json", "safetensors")}
    assert len(weights) >= 8
    assert weights <= names
    needed = [
        line.split(": ")[1] for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line
    ]
    assert {line.split(">=")[0].lower() for line in needed} == {"torch", "numpy", "safetensors", "pyyaml"}


def test_the_source_distribution_has_what_tests_need_and_no_pictures_of_results(sdist, wheel, tmp_path):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    wanted = {
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "hatch_build.py",
        "results/table-toy.md",
        "tests/test_packages.py",
    }
    assert wanted <= names
    results = {Path(name).suffix for name in names if name.startswith("results/")}
    assert results <= {".md", ".json", ".jsonl"}
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist", cwd=tmp_path / NAME)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(tmp_path / "dist" / wheel.name) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def test_on_a_package_index_pictures_and_links_have_full_addresses(wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("IDENSENET_ADDRESS", "https://files.example/idensenet/")
    there = {}
    for name, built in (("plain", wheel), ("full", build(tmp_path, "wheel") / wheel.name)):
        with zipfile.ZipFile(built) as archive:
            text = archive.read(f"{NAME}.dist-info/METADATA").decode().partition("\n\n")[2]
        there[name] = re.findall(r"\]\(([^)\s]+)\)", text)
    assert "docs/checkerboard.png" in there["plain"]
    assert "https://files.example/idensenet/docs/checkerboard.png" in there["full"]
    assert len(there["full"]) == len(there["plain"]) > 10
    assert all(target.startswith(("https://", "#")) for target in there["full"])


@pytest.mark.slow
def test_a_new_user_installs_the_wheel_and_runs_the_readme(wheel, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)  # the wheel, and not the sources
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    install = [programs / "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    run(*install, wheel)
    there = run(programs / "pip", "list", "--disable-pip-version-check").lower()
    assert not any(f"\n{name} " in there for name in ("rich", "scikit-learn", "matplotlib", "lightning-fabric", "pillow"))
    readme = [block.code for block in blocks(ROOT / "README.md")]
    core = [code for code in readme if "idensenet.sklearn" not in code]
    assert len(core) == len(readme) - 1
    tail = "\nimport idensenet\nassert 'site-packages' in idensenet.__file__, idensenet.__file__\n"

    def python(code):
        return [programs / "python", "-I", "-c", code + tail]

    said = run(*python("\n".join(core)), cwd=tmp_path)
    assert "every block is contractive" in said
    missing = subprocess.run(python(*set(readme) - set(core)), capture_output=True, text=True)
    assert missing.stderr.rstrip().endswith("type: pip install 'idensenet[sklearn]'")
    missing = subprocess.run([programs / "idensenet", "demo"], capture_output=True, text=True)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert missing.stderr.rstrip().endswith("type: pip install 'idensenet[train]'")
    assert "toy-idensenet" in run(programs / "idensenet", "recipes")

    run(*install, f"{wheel}[sklearn,train]")
    run(*python(*set(readme) - set(core)), cwd=tmp_path)
    run(programs / "idensenet", "demo", "--steps", "20", "--out", tmp_path / "demo")
    assert (tmp_path / "demo" / "report.html").is_file()
