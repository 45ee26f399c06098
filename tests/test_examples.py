"""The examples run, write their pictures, and stay short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {
    "density_of_a_table": r"flow (-?\d+\.\d+), Gaussian (-?\d+\.\d+)",
    "anomalies": r"log_density: AUROC (0\.[89]\d+)",
    "class_conditional_samples": r"flow (-?\d+\.\d+), exact (-?\d+\.\d+)",
    "posterior_of_a_simulator": r"parameters (-?\d+\.\d+), exact (-?\d+\.\d+)",
    "images_in_a_folder": r"100 rows in",
}
STEPS = {"images_in_a_folder": "5"}  # what it says depends on no training


def test_there_are_five_of_less_than_sixty_lines():
    assert {path.stem for path in EXAMPLES} == set(SAYS)
    assert max(len(path.read_text().splitlines()) for path in EXAMPLES) < 60


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_what_it_should_and_draws_a_picture(path, tmp_path):
    picture = tmp_path / "picture.png"
    run = subprocess.run(
        [sys.executable, str(path), str(picture), STEPS.get(path.stem, "40")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert re.search(SAYS[path.stem], run.stdout), run.stdout
    assert picture.stat().st_size > 10_000
    assert f"picture: {picture}" in run.stdout
