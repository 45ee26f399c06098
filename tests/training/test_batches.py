import numpy as np
import pytest
import torch
from tiny import finite_source, toy_source

from idensenet.config import DataConfig
from idensenet.data.source import Source, Split
from idensenet.errors import OptionError
from idensenet.training.batches import Batches, augment, seed_of


def numbered(rows: int) -> Source:
    x = np.arange(rows, dtype=np.float32)[:, None].repeat(2, 1)
    return Source("numbered", Split(x, np.arange(rows)), Split(x[:1]), (2,))


def test_an_epoch_is_a_permutation_and_the_next_one_another():
    batches = Batches(numbered(20), 4, seed=0)
    epochs = [torch.cat([batches(5 * e + i)[0][:, 0] for i in range(5)]).tolist() for e in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]


def test_two_ranks_share_an_epoch_without_overlap():
    ranks = [Batches(numbered(24), 4, seed=0, rank=r, world=2) for r in range(2)]
    seen = [torch.cat([b(i)[0][:, 0] for i in range(3)]).tolist() for b in ranks]
    assert sorted(seen[0] + seen[1]) == list(range(24))


def test_a_batch_depends_on_its_number_only():
    fresh, used = Batches(finite_source(), 8, seed=3), Batches(finite_source(), 8, seed=3)
    for i in range(7):
        used(i)
    assert torch.equal(fresh(7)[0], used(7)[0])
    assert not torch.equal(fresh(7)[0], Batches(finite_source(), 8, seed=4)(7)[0])


def test_labels_stay_with_their_rows():
    x, y, *_ = Batches(numbered(20), 5, seed=1)(2)
    assert torch.equal(x[:, 0].long(), y)


def test_a_stream_gives_every_rank_and_step_its_own_points():
    a, b = Batches(toy_source(), 8, 0, rank=0, world=2), Batches(toy_source(), 8, 0, rank=1, world=2)
    assert torch.equal(a(3)[0], a(3)[0])
    assert not torch.equal(a(3)[0], a(4)[0])
    assert not torch.equal(a(3)[0], b(3)[0])


@pytest.mark.parametrize("source", [numbered(24), toy_source()])
def test_one_process_that_accumulates_has_the_batches_of_two(source):
    one = Batches(source, 4, seed=0)
    for rank in (0, 1):
        two = Batches(source, 4, seed=0, rank=rank, world=2)
        for number in range(5):
            assert two.among_all(number) == 2 * number + rank
            assert torch.equal(two(number).x, one(2 * number + rank).x)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(OptionError, match="101 is more than the 100"):
        Batches(finite_source(), 101, 0)
    with pytest.raises(OptionError, match="at least 1"):
        Batches(finite_source(), 0, 0)


def test_seeds_differ_in_every_part():
    assert len({seed_of(a, b, c) for a in range(4) for b in range(4) for c in range(4)}) == 64


def test_augmentation_flips_and_shifts_with_reflection():
    x = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8)
    same = augment(x, DataConfig(), torch.Generator())
    assert torch.equal(same, x)
    flipped = augment(x, DataConfig(flip=True), torch.Generator().manual_seed(0))
    how = [torch.equal(f, a) or 2 * torch.equal(f, a.flip(2)) for f, a in zip(flipped, x, strict=True)]
    assert all(how)
    assert 10 < sum(h == 2 for h in how) < 54  # 32 +- 4 expected
    moved = augment(x, DataConfig(crop=True), torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(x.float(), (4, 4, 4, 4), mode="reflect").to(torch.uint8)
    for m, p in zip(moved, padded, strict=True):
        windows = [p[:, i : i + 8, j : j + 8] for i in range(9) for j in range(9)]
        assert any(torch.equal(m, window) for window in windows)
    assert not torch.equal(moved, x)
