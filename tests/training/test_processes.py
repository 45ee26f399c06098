"""Processes of a run part in order: nobody ends while another is at work."""

import pytest
import torch

from idensenet.training.processes import ending_together


class Recorder:
    def __init__(self, done):
        self.done = done

    def barrier(self):
        self.done.append(("waits", torch.distributed.is_initialized()))


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_others_are_waited_for_before_the_group_is_left(group):
    done = []
    with ending_together(Recorder(done)):
        done.append("works")
    assert done == ["works", ("waits", True)]
    assert not torch.distributed.is_initialized()


def test_after_an_error_nobody_is_waited_for(group):
    done = []
    with pytest.raises(KeyError), ending_together(Recorder(done)):
        raise KeyError
    assert done == []
    assert not torch.distributed.is_initialized()


def test_one_process_has_no_group_to_leave():
    done = []
    with ending_together(Recorder(done)):
        pass
    assert done == [("waits", False)]
