"""A run knows its data again: another order, new rows and rows that were trained on are noticed."""

import json
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from idensenet.cli import main
from idensenet.data.fingerprint import KEPT, Fingerprint, changes, row_keys
from idensenet.data.source import Source, Split
from idensenet.data.table_source import Reading, Roles, open_table
from idensenet.training.checkpoint import seal
from idensenet.training.run import RunFolder

FAST = ["--model.blocks", "[1]", "--train.max_steps", "2", "--train.batch_size", "16", "--output.display", "quiet"]
FAST += ["--output.report", "false", "--output.pictures", "false"]
ROWS = np.random.default_rng(0).normal([100.0, -3.0], [20.0, 0.1], (60, 2))


def write(path, rows, header="a,b"):
    np.savetxt(path, rows, delimiter=",", header=header, comments="", fmt="%.17g")
    return path


def parts(path, **options):
    source = open_table(path, Reading(**options))
    return [{tuple(row) for row in part.x} for part in (source.train, source.test)]


@pytest.mark.parametrize("seed", range(4))
def test_neither_order_nor_new_rows_nor_other_columns_move_a_row(tmp_path, seed):
    train, test = parts(write(tmp_path / "t.csv", ROWS), seed=seed)
    at = open_table(tmp_path / "t.csv", Reading(seed=seed)).split_at
    assert (len(train), len(test)) == (54, 6)
    assert parts(write(tmp_path / "t.csv", ROWS[::-1]), seed=seed) == [train, test]
    more = np.vstack([ROWS[:30] + 1, ROWS, ROWS[30:] - 1])
    after = parts(write(tmp_path / "t.csv", more), seed=seed, split_at=at)
    assert train < after[0]
    assert test <= after[1]
    wide = write(tmp_path / "t.csv", np.hstack([np.arange(60.0)[:, None], ROWS]), "id,a,b")
    assert parts(wide, seed=seed, roles=Roles(["a", "b"])) == [train, test]


def test_the_share_of_held_out_rows_is_right_and_equal_rows_stay_together(tmp_path):
    rows = np.random.default_rng(1).normal(size=(4000, 2)).round(2)
    np.save(tmp_path / "t.npy", np.vstack([rows, rows[::2]]))
    train, test = parts(tmp_path / "t.npy")
    assert not train & test
    assert len(test) == round(0.1 * len(train | test))
    at = open_table(tmp_path / "t.npy").split_at
    assert at == pytest.approx(0.1, abs=3 * (0.1 * 0.9 / 4000) ** 0.5)  # keys are uniform: three standard errors
    np.save(tmp_path / "same.npy", np.ones((5, 2)))
    assert len(open_table(tmp_path / "same.npy").test) == 1
    np.save(tmp_path / "two.npy", np.array([[1.0], [2.0]]))
    assert [len(part) for part in parts(tmp_path / "two.npy")] == [1, 1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write(folder / "mine.csv", ROWS)
    assert (
        main(["train", "toy-idensenet", "--data.table", str(folder / "mine.csv"), *FAST, "--output.dir", str(folder / "run")])
        == 0
    )
    return folder


@pytest.fixture
def mine(run, tmp_path):
    """A copy of the run, and the table, which tests change."""
    shutil.copytree(run / "run", tmp_path / "run")
    yield tmp_path / "run", run / "mine.csv"
    write(run / "mine.csv", ROWS)


def evaluation(path, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(path)]) == 0
    return json.loads((path / "evaluation.json").read_text()), " ".join(capsys.readouterr().out.split())


def test_the_same_rows_say_nothing_and_in_another_order_score_the_same(mine, capsys):
    path, table = mine
    first, said = evaluation(path, capsys)
    assert "trained" not in said
    write(table, ROWS[::-1])
    again, said = evaluation(path, capsys)
    assert again["nats"] == pytest.approx(first["nats"], rel=1e-12)
    assert "another order" in said
    assert any("another order" in note for note in again["notes"])


def test_new_rows_are_told_with_what_they_mean(mine, capsys, tmp_path):
    path, table = mine
    write(table, np.vstack([ROWS[:20] + 0.5, ROWS]))
    _, said = evaluation(path, capsys)
    assert "54 + 6 rows then" in said
    assert "No held-out row was trained on" in said
    for words in (
        ["reconstruct", str(path), "--out", str(tmp_path / "r.png")],
        ["score", str(path), "--data.table", str(table), "--out", str(tmp_path / "s.csv")],
        ["train", "--resume", str(path), "--train.max_steps", "3"],
    ):
        assert main(words) == 0
        assert "No held-out row was trained on" in " ".join(capsys.readouterr().out.split()), words
    assert main(["evaluate", str(path)]) == 0  # the run has been trained on the new rows, and knows
    assert "held-out row" not in capsys.readouterr().out


def test_rows_that_were_trained_on_and_are_held_out_now_are_counted(mine, capsys):
    path, table = mine
    was, _ = parts(table)
    _, test = parts(table, seed=7, split_at=RunFolder(path).config().data.split_at)
    capsys.readouterr()
    assert main(["evaluate", str(path), "--data.table", str(table), "--data.split_seed", "7"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{len(was & test)} of {len(test)} held-out rows were trained on, so the score is too good" in said
    # and training goes on from both: what is held out now was trained on before
    assert main(["train", "--resume", str(path), "--train.max_steps", "3", "--data.split_seed", "7"]) == 0
    assert "too good" in " ".join(capsys.readouterr().out.split())
    assert RunFolder(path).fingerprint().trained_on(
        [row_keys(open_table(table, Reading(seed=7, split_at=RunFolder(path).config().data.split_at)).test)]
    ) == len(was & test)


def test_a_run_without_a_fingerprint_keeps_its_split_and_says_so_once(mine, capsys):
    """As runs of earlier versions are: rows were divided by their position."""
    path, _ = mine
    described = yaml.safe_load((path / "config.yaml").read_text())
    del described["config"]["data"]["split"], described["config"]["data"]["split_at"]
    (path / "config.yaml").write_text(yaml.safe_dump(described))
    (path / "data.json").unlink()
    for model in path.glob("checkpoints/*/model/model.json"):
        values = json.loads(model.read_text())
        del values["config"]["data"]["split"], values["config"]["data"]["split_at"]
        model.write_text(json.dumps(values))
        (model.parents[1] / "manifest.json").unlink()
        seal(model.parents[1])
    found, said = evaluation(path, capsys)
    assert said.count("keeps no fingerprint") == 1
    assert found["samples"] == 6
    assert RunFolder(path).config().data.split == "position"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', "\xff", '{"train": 1, "test": 2, "trained": [], "all_kept": 1}']
)
def test_a_damaged_fingerprint_is_none(mine, capsys, text):
    path, _ = mine
    (path / "data.json").write_bytes(text.encode("latin1"))
    assert RunFolder(path).fingerprint() is None
    assert "keeps no fingerprint" in evaluation(path, capsys)[1]


def test_of_many_rows_the_share_is_estimated():
    rows = np.random.default_rng(2).normal(size=(40_000, 1))
    then = Fingerprint.of(Source("table", Split(rows[:30_000]), Split(rows[30_000:]), (1,)))
    assert (len(then.trained), then.all_kept) == (KEPT, False)
    assert Fingerprint.from_dict(json.loads(json.dumps(then.as_dict()))) == then
    assert then.trained_on([row_keys(Split(rows[30_000:]))]) == 0
    # half of these were trained on; the keys below the largest kept one are a sample of about 20,000 * 1024 / 30,000 rows
    found = then.trained_on([row_keys(Split(rows[20_000:]))])
    assert found == pytest.approx(10_000, abs=3 * 20_000 * 0.5 / (20_000 * KEPT / 30_000) ** 0.5)
    moved = Source("table", Split(rows[10_000:]), Split(rows[:10_000]), (1,))
    assert "About" in changes(then, moved)[1]


def test_an_image_at_the_front_of_a_folder_is_noticed(tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    for i in range(30):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8), np.uint8)
        Image.fromarray(pixels).save(images / f"{i:02d}.png")
    options = ["--data.folder", str(images), "--data.root", str(tmp_path), "--data.size", "8", "--data.channels", "1"]
    model = ["--model.growth", "4", "--model.fc_blocks", "0", "--train.max_steps", "1", "--train.eval_samples", "2"]
    quiet = [*FAST[4:], "--model.blocks", "[1,1]"]
    assert main(["train", "digits-idensenet", *options, *model, *quiet, "--output.dir", str(tmp_path / "run")]) == 0
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(images / "0.png")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--samples", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The data is not what the run was trained on" in said
    assert "No held-out row was trained on" in said


def test_a_packed_run_keeps_the_fingerprint(mine, tmp_path):
    path, _ = mine
    assert main(["pack", str(path), "--out", str(tmp_path / "p.safetensors")]) == 0
    assert main(["unpack", str(tmp_path / "p.safetensors"), "--out", str(tmp_path / "again")]) == 0
    assert RunFolder(tmp_path / "again").fingerprint() == RunFolder(path).fingerprint() is not None
