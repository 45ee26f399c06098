"""Ten million rows of eight columns are trained on and scored in half of the memory that a hundred million may take."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

ROWS, FILES, COLUMNS = 10_000_000, 100, 8
PEAK = "import resource, sys; from idensenet.cli import main; code = main(sys.argv[1:]); "
PEAK += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
FAST = ["--model.blocks", "[1]", "--train.max_steps", "20", "--train.compile", "off", "--output.display", "quiet"]
FAST += ["--output.report", "false", "--output.pictures", "false"]


def peak(*words):
    """Memory in bytes of a command."""
    done = subprocess.run([sys.executable, "-c", PEAK, *words], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss counts in kilobytes on Linux")
def test_memory_is_bounded_and_flat(tmp_path):
    rows, run = tmp_path / "rows", tmp_path / "run"
    rows.mkdir()
    mixing = np.random.default_rng(0).normal(size=(COLUMNS, COLUMNS))
    for number in range(FILES):
        x = np.random.default_rng([1, number]).normal(size=(ROWS // FILES, COLUMNS)) @ mixing
        parquet.write_table(pa.table({f"x{i}": x[:, i] for i in range(COLUMNS)}), rows / f"part{number:03d}.parquet")
    assert ROWS * COLUMNS * 8 > 600 << 20
    train = ["train", "toy-idensenet", "--data.table", str(rows), *FAST, "--output.dir", str(run)]
    assert peak(*train) < 1 << 30
    scoring = [
        peak("score", str(run), "--data.table", str(rows / pattern), "--out", str(tmp_path / f"scores{i}"))
        for i, pattern in enumerate(("part00[0-4].parquet", "part01*.parquet"))
    ]
    assert max(scoring) < 1 << 30
    assert abs(scoring[1] - scoring[0]) < 100 << 20  # of a million rows as of half a million
