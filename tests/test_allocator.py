"""The C library keeps freed memory: counted in the interruptions that fresh pages cost."""

import os
import subprocess
import sys

import pytest

from idensenet.allocator import SETTINGS, give_back_freed_memory, keep_freed_memory

FAULTS = """
import resource, torch
from idensenet.allocator import give_back_freed_memory, keep_freed_memory
for tell in {told}:
    assert tell()
def work():
    for _ in range(5):
        torch.ones(1 << 24)  # 64 MB
for _ in range(4):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(told: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run([sys.executable, "-c", FAULTS.format(told=told)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_memory_that_was_freed_is_there_for_the_next_step_or_gone():
    kept, given_back = faults("[keep_freed_memory]"), faults("[keep_freed_memory, give_back_freed_memory]")
    assert kept * 20 < given_back


@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_environment_says_counts(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    assert keep_freed_memory() is give_back_freed_memory() is False


def test_another_c_library_is_left_alone(monkeypatch):
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_freed_memory() is give_back_freed_memory() is False
