"""A disk that is really full, and a data file that becomes shorter while a run reads it."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from test_train_command import TINY, idensenet, losses

from idensenet.data.source import Split
from idensenet.data.store import load_array
from idensenet.errors import DataError

# In a mount namespace of its own: a file system of 2 MB, filled up once the first checkpoint is there.
FULL_DISK = """
set -u
mount -t tmpfs -o size=2m none disk
cd disk
"$@" --train.max_steps 2 > ../first.txt 2>&1 || exit 90
dd if=/dev/zero of=filler bs=1k count=4000 2> /dev/null
truncate -s -8k filler    # room for metrics, not for another checkpoint
python="$1"
"$python" -m idensenet.cli train --resume run --train.max_steps 4 --train.save_every 1 > ../full.txt 2>&1
echo $? > ../full.code
find run -name '*part*' > ../rests.txt
rm filler
"$python" -m idensenet.cli train --resume run --train.max_steps 4 > ../rest.txt 2>&1 || exit 91
cp -r run ../saved
"""


def _can_mount(folder):
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(folder)]
    return shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0


def test_a_full_disk_loses_nothing_that_was_saved_and_says_how_to_go_on(tmp_path):
    (tmp_path / "disk").mkdir()
    if not _can_mount(tmp_path / "disk"):
        pytest.skip("mounting a small file system is not allowed here")
    run = [*TINY, "--train.eval_every", "1000", "--train.concatenation_from", "0", "--output.report", "false"]
    train = [sys.executable, "-m", "idensenet.cli", "train", *run, "--output.dir", "run"]
    done = subprocess.run(["unshare", "-rm", "sh", "-c", FULL_DISK, "sh", *train], cwd=tmp_path)
    assert done.returncode == 0, "".join(p.read_text() for p in tmp_path.glob("*.txt"))
    said = (tmp_path / "full.txt").read_text()
    assert (tmp_path / "full.code").read_text().strip() == "1", said
    assert "Traceback" not in said
    assert "No space left on device" in said
    assert "the checkpoint of step 2 is whole" in said
    assert "continue with: idensenet train --resume run" in said
    assert (tmp_path / "rests.txt").read_text() == ""
    assert [step for step, _ in losses(tmp_path / "saved")] == [1, 2, 3, 4]
    whole = idensenet("train", *run, "--output.dir", "whole", "--train.max_steps", "4", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert losses(tmp_path / "whole") == losses(tmp_path / "saved")


READ = """
import os, sys
import numpy as np
from idensenet.data.source import Split
from idensenet.data.store import load_array
split = Split(load_array(sys.argv[1])[10:])
split.batch(np.arange(4))
os.truncate(sys.argv[1], 9000)
if "guarded" in sys.argv:
    split.batch(np.array([len(split) - 1]))
else:
    split.x[-1].sum()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about signals of memory maps")
@pytest.mark.parametrize("how", ["guarded", "not"])
def test_a_file_that_becomes_shorter_is_a_sentence_and_not_a_crash(tmp_path, how):
    np.save(tmp_path / "x.npy", np.zeros((1000, 3072), np.uint8))
    done = subprocess.run([sys.executable, "-c", READ, tmp_path / "x.npy", how], capture_output=True, text=True)
    if how == "guarded":
        assert "x.npy was cut from 3,072,128 to 9,000 bytes while it was being read" in done.stderr
        assert done.returncode == 1
    else:  # without the check the system ends the process
        assert done.returncode < 0


def test_a_file_that_grows_or_labels_that_shrink(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4000))
    np.save(tmp_path / "y.npy", np.arange(4000))
    split = Split(load_array(tmp_path / "x.npy"), load_array(tmp_path / "y.npy"))
    with (tmp_path / "x.npy").open("ab") as file:
        file.write(b"more")
    assert split.batch(np.array([3999]))[0].tolist() == [3999]
    with (tmp_path / "y.npy").open("ab") as file:
        file.truncate(200)
    with pytest.raises(DataError, match=r"y\.npy was cut"):
        split.batch(np.array([0]))
