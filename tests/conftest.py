"""What all tests share: seeds, threads, and hypothesis without a deadline."""

import pytest
import torch
from hypothesis import settings

collect_ignore = ["core_library.py"]  # a script: test_core.py runs it where the extras are missing
settings.register_profile("idensenet", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("idensenet")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
