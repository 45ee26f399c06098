"""Reading a 4 GB file in random batches does not fill the memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from idensenet.data.source import Split, release

READ = """
import sys
import numpy as np
from idensenet.data.source import Split
from idensenet.data.store import load_array

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

x = load_array(sys.argv[1])
split, rng, start, peak = Split(x[1000:]), np.random.default_rng(0), resident(), 0
for _ in range(200):
    batch, *_ = split.batch(rng.integers(0, len(split), 32))
    assert batch.shape == (32, 3, 32, 32)
    peak = max(peak, resident() - start)
print(peak)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_random_batches_of_a_large_file_stay_small(tmp_path):
    path, rows = tmp_path / "large.npy", (4 << 30) // 3072 + 1
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (rows, 3, 32, 32)})
        file.truncate(file.tell() + rows * 3072)  # all holes: it takes no room on the disk
    assert path.stat().st_size > 4 << 30
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, check=True)
    path.unlink()
    assert int(done.stdout) < 100 << 20  # 1 GB is allowed; without `release` these few batches hold 400 MB, an epoch all 4 GB


def test_a_batch_is_a_copy_in_the_order_asked_for(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20).reshape(10, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    x, y, *_ = Split(mapped, np.arange(10, dtype=np.uint8)).batch(np.array([7, 0, 7, 3]))
    assert x.tolist() == [[14, 15], [0, 1], [14, 15], [6, 7]]
    assert (y.tolist(), y.dtype) == ([7, 0, 7, 3], torch.int64)
    x += 1
    assert mapped[7].tolist() == [14, 15]


def test_letting_go_of_pages_changes_no_value(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    release(mapped)
    assert mapped.tolist() == list(range(20))
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[3] = 99
    release(private)  # would forget the change
    assert private[3] == 99
    release(np.arange(3))
