"""The recipe for 64 x 64 images: a folder is trained on, evaluated and sampled from; memory grows as the pixels do."""

import numpy as np
import pytest
import torch
from PIL import Image

import idensenet as idn
from flows import coarse_norms, images
from idensenet.cli import main
from logdet.oracles import saved_bytes

SMALL = {"blocks": (1, 1, 1, 1), "growth": 8, "depth": 1}


def test_a_folder_of_images_is_trained_on_evaluated_and_sampled_from(tmp_path, capsys):
    folder, generator = tmp_path / "images", np.random.default_rng(0)
    folder.mkdir()
    for i in range(12):
        ramp = np.linspace(0, 200, 72)[:, None, None] + generator.integers(0, 50, (72, 80, 3))
        Image.fromarray(ramp.astype(np.uint8)).save(folder / f"{i}.png")
    words = ["train", "images64-idensenet", "--data.folder", str(folder), "--model.blocks", "[1,1,1,1]", "--model.growth", "8"]
    words += ["--model.depth", "1", "--train.max_steps", "2", "--train.batch_size", "4", "--train.eval_samples", "2"]
    assert main([*words, "--output.dir", str(tmp_path / "run"), "--output.display", "quiet", "--output.report", "false"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--samples", "2", "--importance", "2"]) == 0
    said = capsys.readouterr().out
    assert "importance-weighted, 2 samples" in said
    assert main(["sample", str(tmp_path / "run"), "-n", "2", "--out", str(tmp_path / "samples.npy")]) == 0
    assert np.load(tmp_path / "samples.npy").shape == (2, 3, 64, 64)
    flow = idn.load(tmp_path / "run")
    assert flow.certify().contractive
    x = images(flow, 2)
    with torch.no_grad():
        z, _ = flow(x)
        back, _ = flow.inverse(z)
        assert z.shape == (2, 3 * 64 * 64)
        assert float((back - flow.dequantize(x)).abs().max()) < 0.05  # of 256 levels


@pytest.mark.parametrize("save", [False, True])
def test_memory_grows_as_the_pixels_do(save):
    kept = {}
    for side in (32, 64):
        flow = coarse_norms(idn.build("images64-idensenet", **SMALL, shape=(3, side, side)))
        flow.save_memory(save)
        x = images(flow, 2)
        flow.initialize(x)
        flow.train()
        generator = torch.Generator().manual_seed(0)
        prepared = flow.prepare()
        kept[side] = saved_bytes(lambda: flow.log_prob(x, generator, prepared=prepared), flow.parameters())  # noqa: B023
    assert 3 < kept[64] / kept[32] < 4.4


def test_a_standard_prior_is_an_option_and_unknown_ones_are_errors():
    conditional, standard = (
        idn.build("images64-idensenet", **SMALL, factor_prior=name) for name in ("conditional", "standard")
    )
    assert conditional.num_parameters > standard.num_parameters
    with pytest.raises(idn.errors.OptionError, match="factor_prior='other'"):
        idn.build("images64-idensenet", factor_prior="other")
