"""Scores of a part of a table, as clusters ask for them."""

import pickle
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import idensenet as idn
from idensenet.cli import main
from idensenet.errors import DataError, NonFiniteError, OptionError, UnknownNameError
from idensenet.scoring import score_partition
from streams import columns, some, write

FAST = ["--model.blocks", "[1]", "--train.max_steps", "2", "--train.compile", "off", "--output.display", "quiet"]
FAST += ["--output.report", "false", "--output.pictures", "false", "--train.eval_samples", "50"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model of real, discrete and nominal columns, and its scores on the command line."""
    folder = tmp_path_factory.mktemp("scoring")
    write(folder, columns())
    words = ["--data.table", str(folder / "rows"), "--data.columns", "[x,y,k,city]"]
    assert main(["train", "toy-idensenet", *words, *FAST, "--output.dir", str(folder / "run")]) == 0
    assert main(["score", str(folder / "run"), "--data.table", str(folder / "rows"), "--out", str(folder / "scores")]) == 0
    return folder / "run"


def test_it_can_be_pickled_and_gives_the_scores_of_the_command(run):
    expected = pd.read_parquet(run.parent / "scores")
    frame = pd.DataFrame(columns()).set_index(np.arange(len(expected)) + 10_000)
    function = pickle.loads(pickle.dumps(partial(score_partition, str(run))))
    found = pd.concat([function(frame[i : i + 400]) for i in range(0, len(frame), 400)])
    assert found.columns.tolist() == ["log_density", "log_density_error"]
    assert found.index.equals(frame.index)
    assert found["log_density"].to_numpy() == pytest.approx(expected["log_density"].to_numpy(), rel=1e-5)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = pool.submit(function, frame[:100]).result()
    assert there["log_density"].tolist() == function(frame[:100])["log_density"].tolist()


def test_other_frames_come_back_as_what_they_were(run):
    table = {name: values[:50] for name, values in columns().items()}
    frame = score_partition(run, pd.DataFrame(table))
    arrays, arrow = score_partition(run, table), score_partition(run, pa.table(table))
    assert isinstance(arrays, dict)
    assert isinstance(arrow, pa.Table)
    assert arrays["log_density"].tolist() == arrow["log_density"].to_pylist() == frame["log_density"].tolist()
    shuffled = score_partition(run, pd.DataFrame(table)[["city", "k", "counts", "y", "x"]])  # columns are found by name
    assert shuffled["log_density"].tolist() == frame["log_density"].tolist()
    empty = score_partition(run, pd.DataFrame(table)[:0])  # as Dask asks, to see what comes back
    assert (len(empty), empty.dtypes.tolist()) == (0, frame.dtypes.tolist())
    categorical = pd.DataFrame(table).astype({"city": "category", "k": "int8"})
    assert score_partition(run, categorical)["log_density"].tolist() == frame["log_density"].tolist()


def test_a_reference_adds_typicality_and_quantile(run):
    frame = pd.DataFrame(columns())
    reference = score_partition(run, frame[200:])["log_density"]
    found = score_partition(run, frame[:200], reference=reference)
    score = found["log_density"].to_numpy()
    assert found["quantile"].tolist() == [(reference <= value).mean() for value in score]
    assert found["typicality"].to_numpy() == pytest.approx(np.abs(score - reference.mean()) / reference.std())


def test_threads_do_not_disturb_each_other_nor_the_flow():
    flow = idn.build("toy-idensenet", logdet={"eval_method": "roulette"}).eval()
    table = some("x", "y", n=500)
    before = flow.log_prob(torch.from_numpy(np.stack(list(table.values()), 1)).float())
    alone = score_partition(flow, table)["log_density"].tolist()
    with ThreadPoolExecutor(4) as pool:
        exact = [pool.submit(score_partition, flow, table) for _ in range(4)]
        drawn = [pool.submit(score_partition, flow, table, probes=9) for _ in range(4)]
    assert all(each.result()["log_density"].tolist() == alone for each in exact)
    assert all(each.result()["log_density_error"].max() > 0 for each in drawn)
    assert score_partition(flow, table)["log_density_error"].max() == 0
    assert torch.equal(before, flow.log_prob(torch.from_numpy(np.stack(list(table.values()), 1)).float()))
    assert score_partition(flow, table, error=0.05)["log_density_error"].max() <= 0.05


GOOD = {name: values[:9] for name, values in columns().items()}
BAD = [
    ({"y": None}, UnknownNameError, "The frame has no column 'y'"),
    ({"y": np.array(["a"] * 9)}, DataError, "Column 'y' of the frame is not numeric"),
    ({"y": np.where(np.arange(9) == 4, np.nan, 1.0)}, NonFiniteError, "Row 5 of the frame is empty .* in column 'y'"),
    ({"city": np.array(["Oslo"] * 8 + [None], object)}, NonFiniteError, "Row 9 of the frame is empty in column 'city'"),
    ({"y": np.full(9, "2020-01-01", "M8[s]")}, DataError, r"Column 'y' of the frame is not numeric \(datetime64"),
    ({"x": np.full(9, 2**53 + 1)}, DataError, r"Column 'x' of the frame has whole numbers of 2\^53"),
]


@pytest.mark.parametrize(("changed", "error", "text"), BAD)
def test_what_is_wrong_with_a_frame_is_one_sentence(run, changed, error, text):
    table = {name: values for name, values in {**GOOD, **changed}.items() if values is not None}
    for frame in (table, pd.DataFrame(table)):
        with pytest.raises(error, match=text) as raised:
            score_partition(run, frame)
        assert "\n" not in str(raised.value)


def test_other_models_and_options_are_refused(run):
    with pytest.raises(OptionError, match="The model takes images of shape"):
        score_partition("digits", GOOD)
    with pytest.raises(OptionError, match="The model takes 2 columns, but 6 are given"):
        score_partition("moons", GOOD)
    with pytest.raises(OptionError, match=r"probes=2 and error=0.5 are both given"):
        score_partition(run, GOOD, probes=2, error=0.5)
    with pytest.raises(OptionError, match="int cannot be scored; give a data frame"):
        score_partition(run, 5)


def test_a_model_that_changes_is_read_again(run, tmp_path):
    flow = idn.load(run)
    idn.save(flow, tmp_path / "model")
    before = score_partition(tmp_path / "model", GOOD)["log_density"]
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(0.5)
    idn.save(flow, tmp_path / "model")
    after = score_partition(tmp_path / "model", GOOD)["log_density"]
    assert not np.allclose(before, after)
    assert after == pytest.approx(score_partition(flow, GOOD)["log_density"], rel=1e-6)
