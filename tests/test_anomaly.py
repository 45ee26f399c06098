"""Scores of oddness and the AUROC, against their definitions and against resampling; and on the command line."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from idensenet.anomaly import auroc, oddness
from idensenet.cli import main
from idensenet.commands.score import fit_images
from idensenet.errors import OptionError


def test_the_auroc_is_that_of_scikit_learn_ties_and_all():
    random = np.random.default_rng(0)
    for shift, digits in ((0.0, 9), (1.0, 9), (0.7, 0)):
        own, other = random.normal(size=200).round(digits), (random.normal(size=150) + shift).round(digits)
        right = roc_auc_score(np.r_[np.zeros(200), np.ones(150)], np.r_[own, other])
        assert auroc(torch.from_numpy(own), torch.from_numpy(other)).value == pytest.approx(right, abs=1e-12)


def test_the_interval_covers_the_truth_nineteen_times_in_twenty():
    generator, truth, draws = torch.Generator().manual_seed(0), 0.7602, 600  # of two normal laws one deviation apart
    covered, narrow = 0, 0
    for _ in range(draws):
        own, other = torch.randn(60, generator=generator), 1 + torch.randn(40, generator=generator)
        found = auroc(own, other)
        covered += found.low <= truth <= found.high
        half = (found.high - found.low) / 4
        narrow += found.value - half <= truth <= found.value + half
    error = (0.95 * 0.05 / draws) ** 0.5
    assert abs(covered / draws - 0.95) < 4 * error + 0.01
    assert narrow / draws < 0.85  # half the width does not do


def test_sets_that_are_apart_keep_a_doubt_that_shrinks_with_their_size():
    found = auroc(torch.zeros(30), torch.ones(50))
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.9)
    assert auroc(torch.ones(50), torch.zeros(30)).value == 0.0
    assert str(found) == "1.000 (0.900 to 1.000)"
    with pytest.raises(OptionError, match="two samples of each"):
        auroc(torch.zeros(1), torch.ones(5))


def test_every_score_is_what_its_name_says():
    log_prob, reference = torch.tensor([-1.0, -5.0, 3.0]), torch.tensor([-1.0, 0.0, 1.0])
    probabilities = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.9, 0.1]])
    found = oddness(log_prob, reference, torch.tensor([-2.0, 0.0, 1.0]), probabilities)
    torch.testing.assert_close(found["log_density"], torch.tensor([1.0, 5.0, -3.0]))
    torch.testing.assert_close(found["typicality"], torch.tensor([1.0, 5.0, 3.0]))
    torch.testing.assert_close(found["ratio"], torch.tensor([-1.0, 5.0, -2.0]))
    torch.testing.assert_close(found["entropy"][:2], torch.tensor([0.6931, 0.0]), atol=1e-4, rtol=0)
    assert set(oddness(log_prob, reference)) == {"log_density", "typicality"}


def test_images_are_brought_to_the_form_of_the_model():
    images = torch.randint(0, 17, (4, 1, 8, 8)).to(torch.uint8)
    assert fit_images(images, 17, (1, 8, 8), 17) is images
    larger = fit_images(images, 17, (3, 16, 16), 256)
    assert larger.shape == (4, 3, 16, 16)
    assert larger.dtype == torch.uint8
    flat = fit_images(torch.full((1, 3, 4, 4), 16, dtype=torch.uint8), 17, (1, 8, 8), 256)
    assert (flat == 255).all()
    assert abs(float(larger.float().mean()) / 255 - float(images.float().mean()) / 16) < 0.02


# On the command line


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    run = tmp_path_factory.mktemp("digits") / "run"
    words = ["train", "digits-idensenet", "--model.blocks", "[1,1]", "--model.growth", "8", "--train.max_steps", "60"]
    words += ["--train.batch_size", "64", "--train.lr", "5e-3", "--train.eval_samples", "50", "--output.display", "quiet"]
    assert main([*words, "--output.pictures", "false", "--output.report", "false", "--output.dir", str(run)]) == 0
    return run


def test_two_sets_are_told_apart(digits, tmp_path, capsys):
    out = tmp_path / "scores.csv"
    words = ["score", str(digits), "--against", "digits:flipped", "--background", "digits", "--samples", "80"]
    assert main([*words, "--reference", "100", "--out", str(out)]) == 0
    with out.open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["set"] for row in rows] == ["own"] * 80 + ["other"] * 80
    found = json.loads(out.with_suffix(".json").read_text())
    assert set(found) == {"own", "against", "samples", "log_density", "typicality", "ratio"}
    for name, sign in (("log_density", -1), ("ratio", 1)):
        values = np.array([sign * float(row[name]) for row in rows])
        assert found[name]["value"] == pytest.approx(roc_auc_score(np.arange(160) >= 80, values), abs=1e-3)
    assert found["samples"] == {"own": 80, "other": 80}
    assert "telling digits:flipped from digits" in capsys.readouterr().out


def test_a_hybrid_model_has_an_entropy_for_a_set_without_labels_too(tmp_path):
    words = ["train", "digits-idensenet", "--model.blocks", "[1,1]", "--model.growth", "8", "--model.classes", "10"]
    words += ["--model.factor_out", "false", "--model.head_width", "4", "--train.objective", "hybrid", "--train.max_steps", "2"]
    words += [
        "--train.eval_samples",
        "20",
        "--output.display",
        "quiet",
        "--output.pictures",
        "false",
        "--output.report",
        "false",
    ]
    assert main([*words, "--output.dir", str(tmp_path / "run")]) == 0
    out, words = tmp_path / "s.csv", ["--against", "digits:flipped", "--samples", "20", "--reference", "20"]
    assert main(["score", str(tmp_path / "run"), *words, "--out", str(out)]) == 0
    assert 0 <= json.loads(out.with_suffix(".json").read_text())["entropy"]["value"] <= 1


def test_a_table_against_a_table(tmp_path, capsys):
    random = np.random.default_rng(0)
    for name, shift in (("mine", 0.0), ("other", 6.0)):
        np.savetxt(tmp_path / f"{name}.csv", random.normal(shift, 1, (300, 2)), delimiter=",", header="a,b", comments="")
    words = ["train", "toy-idensenet", "--data.table", str(tmp_path / "mine.csv"), "--model.blocks", "[1]"]
    words += ["--train.max_steps", "20", "--output.display", "quiet", "--output.dir", str(tmp_path / "run")]
    assert main([*words, "--output.report", "false"]) == 0
    out = tmp_path / "s.csv"
    assert main(["score", str(tmp_path / "run"), "--against", str(tmp_path / "other.csv"), "--out", str(out)]) == 0
    assert json.loads(out.with_suffix(".json").read_text())["log_density"]["value"] > 0.98
    capsys.readouterr()
    for words, text in (
        (["--against", "nowhere"], "nowhere is no file, no folder and no data set"),
        (["--against", str(tmp_path)], "folder of images"),
        (["--against", "digits"], "takes samples of shape"),
        (["--against", "moons:flipped"], "only images can be turned upside down"),
        (["--against", "moons", "--background", "digits"], "background model takes samples of shape"),
        ([], "What to score is missing"),
    ):
        assert main(["score", str(tmp_path / "run"), *words, "--out", str(tmp_path / "none.csv")]) == 2
        assert text in capsys.readouterr().err
    assert not (tmp_path / "none.csv").exists()
