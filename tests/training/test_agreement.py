"""Processes that do not mean the same run are found before the first step; others are played by what they would send."""

from dataclasses import replace

import numpy as np
import pytest
from tiny import finite_source, image_source, toy_config

from idensenet.data.source import Source, Split
from idensenet.errors import CheckpointError, DataError, OptionError
from idensenet.training import agreement
from idensenet.training.agreement import check_agreement, check_step


class Others:
    """Rank 0 and two more; the last one sends other numbers."""

    world = 3

    def __init__(self, last):
        self.last = [*last]

    def numbers(self, mine):
        mine = [*mine]
        return [mine, mine, self.last]


def facts(config, source):
    return agreement._facts(config, source).values()


def rows(x, held_out=20, name="table"):
    return Source(name, Split(x[held_out:]), Split(x[:held_out]), (2,))


X = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("config", "source", "error", "says"),
    [
        (toy_config(), rows(X[:-1]), DataError, "Rank 2 reads other data than rank 0: 99 rows, where rank 0 has 100;"),
        (toy_config(), rows(X + 1), DataError, "Rank 2 reads other data than rank 0: as many rows, but others; give"),
        (toy_config(), rows(X, 30), DataError, "Rank 2 holds out other rows than rank 0;"),
        (toy_config(), rows(np.roll(X, 3, 0)), DataError, "Rank 2 holds out other rows than rank 0;"),
        (toy_config(), rows(np.concatenate([X[:20], X[:19:-1]])), DataError, "Rank 2 has the rows of rank 0 in another order;"),
        (
            toy_config(lr=0.5),
            rows(X),
            OptionError,
            "Rank 2 has other options than rank 0; start all nodes with the same command",
        ),
    ],
)
def test_a_difference_is_one_sentence_that_names_the_rank(config, source, error, says):
    with pytest.raises(error, match=says):
        check_agreement(Others(facts(config, source)), toy_config(), rows(X))


def test_another_version_is_named(monkeypatch):
    theirs = [*facts(toy_config(), rows(X))]
    monkeypatch.setattr(agreement, "version", lambda name: "0.0")
    with pytest.raises(OptionError, match="Rank 2 runs another version of idensenet or torch"):
        check_agreement(Others(theirs), toy_config(), rows(X))


def test_what_belongs_to_a_node_may_differ():
    ours, theirs = toy_config(), toy_config(threads=7, accelerator="cpu").replace(data={"root": "elsewhere"})
    for source in (rows(X), finite_source(), image_source()):
        check_agreement(Others(facts(theirs, source)), ours, source)


def test_of_verified_data_a_sample_is_compared():
    many = np.zeros((5000, 2), np.float32) + np.arange(5000, dtype=np.float32)[:, None]
    source = rows(many, name="cifar10")
    check_agreement(Others(facts(toy_config(), source)), toy_config(), source)
    for other in (rows(many[:-1], name="cifar10"), rows(many + 1, name="cifar10")):
        with pytest.raises(DataError, match="Rank 2 reads other data"):
            check_agreement(Others(facts(toy_config(), other)), toy_config(), source)


def test_one_process_agrees_with_itself_and_hashes_nothing(monkeypatch):
    monkeypatch.setattr(agreement, "_facts", None)
    alone = Others([])
    alone.world = 1
    check_agreement(alone, toy_config(), replace(rows(X)))


def test_nodes_that_see_different_checkpoints_do_not_start():
    check_step(Others([30]), 30)
    with pytest.raises(CheckpointError, match="Rank 2 would resume from step 20 and rank 0 from step 30;"):
        check_step(Others([20]), 30)
