"""The page of a run: what it says, and that it carries everything with it."""

import json
import re
from html import unescape

import pytest
import torch
from report_outline import Outline, has_number, text_of, values_of

import idensenet as idn
from idensenet.checkpoints import Progress
from idensenet.errors import CheckpointError, MissingDataError
from idensenet.lipschitz.dense import DenseLayer
from idensenet.report import story
from idensenet.report.concatenation import block_titles, concatenation_weights
from idensenet.report.page import write_report
from idensenet.training.averaging import Average
from idensenet.training.run import RunFolder
from report_runs import HYBRID_OPTIONS, expanding_flow, fake_run, image_flow, image_source, table_source, toy_flow, toy_source


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs and their pages: 2-D, images, hybrid."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs")
    hybrid = image_flow(**HYBRID_OPTIONS)
    chosen = {
        "toy": (toy_flow(), toy_source(), "toy-idensenet-clipswish"),
        "image": ((flow := image_flow()), image_source(flow), "digits-idensenet"),
        "hybrid": (hybrid, image_source(hybrid, 3), "digits-idensenet"),
    }
    found = {}
    for name, (flow, source, recipe) in chosen.items():
        run = fake_run(folder / name, flow, source, recipe, skipped=3 if name == "hybrid" else 0)
        found[name] = (run, write_report(run, source).read_text())
    return found


@pytest.fixture
def bare(monkeypatch):
    """Without drawing curves and heat maps, for pages on which they do not matter."""
    from idensenet.report import concatenation, curves
    from idensenet.report.drawing import Drawing
    from idensenet.report.pictures import image_png

    blank = Drawing(image_png(torch.zeros(2, 2, 3, dtype=torch.uint8)))
    for module in (concatenation, curves):
        monkeypatch.setattr(module, "draw", lambda make: blank)


KINDS = ["toy", "image", "hybrid"]


@pytest.mark.parametrize("kind", KINDS)
def test_parses_and_needs_nothing_else(runs, kind):
    run, page = runs[kind]
    outline = Outline(page)
    assert outline.addresses
    assert all(address.startswith("data:image/png;base64,") for address in outline.addresses)
    assert not re.search(r"(src|href|srcset)\s*=\s*['\"]?(https?:)?//", page)
    assert "http" not in re.sub(r'"data:[^"]*"', "", page).replace("http-equiv", "")
    assert "<script" not in page
    assert "url(" not in page
    assert page.isascii()
    assert all(len(alt) > 10 for alt in outline.alts)
    assert len(set(outline.ids)) == len(outline.ids)
    assert not list(run.path.glob("*.part"))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_last_evaluation(runs, kind):
    run, page = runs[kind]
    last = [entry for entry in run.metrics() if entry["kind"] == "eval"][-1]
    assert has_number(page, last["nats"], 6)
    assert has_number(page, last["nats_error"], 6)
    for value in last["terms"].values():
        assert has_number(page, -value or 0.0, 6)
    headline = "nats" if kind == "toy" else "bits_per_dim"
    assert has_number(page, last[headline], 4)
    assert has_number(page, last[f"{headline}_error"], 4)
    older = [entry for entry in run.metrics() if entry["kind"] == "eval"][-2]
    assert not any(value == older["nats"] for value, _ in values_of(page))
    if kind == "hybrid":
        assert has_number(page, last["accuracy"], 6)
        assert has_number(page, last["calibration_error"], 6)
        assert "Classification" in page
    else:
        assert "accuracy" not in text_of(page)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("step", [30, 40])
def test_the_page_of_a_checkpoint_has_the_numbers_of_its_step(tmp_path, step):
    flow, source = toy_flow(), toy_source()
    run = fake_run(tmp_path / "run", flow, source, "toy-idensenet-clipswish")
    run.log({"kind": "train", "step": 60, "epoch": 77, "samples/s": 4321.0})
    run.checkpoints.write(flow, Average(flow, 0.0), torch.optim.Adam(flow.parameters()), Progress(step))
    page = write_report(run, source, step=step).read_text()
    scores = {entry["step"]: entry["nats"] for entry in run.metrics() if entry["kind"] == "eval"}
    assert has_number(page, scores[30], 4)
    assert has_number(page, scores[30], 6)
    assert not any(value in (scores[45], scores[60]) for value, _ in values_of(page))
    text = text_of(page)
    assert "1,234.5 samples per second" in text
    assert "77 epochs" not in text
    assert ("nats, held out at step 30" in text) == (step == 40)


def test_toy_page_has_the_entropy_and_the_gap(runs):
    run, page = runs["toy"]
    last = run.metrics()[-1]
    entropy = toy_source().stream.entropy
    assert has_number(page, entropy, 4)
    assert has_number(page, last["nats"] - entropy, 4)
    assert [alt for alt in Outline(page).alts if "density that the model has learned" in alt]


@pytest.mark.parametrize("kind", KINDS)
def test_says_what_was_trained_and_how_to_repeat_it(runs, kind):
    run, page = runs[kind]
    text, flow = text_of(page), idn.load(run.path)
    assert f"{flow.num_parameters:,} parameters" in text
    assert torch.__version__ in text
    assert run.description()["command"] in text
    for command in ("evaluate", "sample", "certify", "reconstruct", "report", "explore"):
        assert f"idensenet {command} {run.path}" in text
    assert "60 of 60 steps" in text or "60 steps" in text
    assert "learnable_concatenation: true" in text
    assert ("3 of them skipped" in text) == (kind == "hybrid")
    assert ("Steps skipped" in " ".join(Outline(page).alts)) == (kind == "hybrid")
    if kind != "toy":
        assert "No checksum of this set is <known>." in text
        assert "gradients & noise" in text


@pytest.mark.parametrize(("kind", "rows"), [("toy", 1), ("image", 3), ("hybrid", 3)])
def test_heat_maps_have_every_scale_and_the_true_range(runs, kind, rows):
    run, page = runs[kind]
    maps = [alt for alt in Outline(page).alts if alt.startswith("Heat map")]
    assert len(maps) == 2 * rows
    assert any("fully connected" in alt for alt in maps) == (kind != "toy")
    flow = idn.load(run.path)
    for which, name in enumerate(("eta1", "eta2")):
        shown = [float(n) for alt in maps if name in alt for n in re.findall(r"\d\.\d{3}", alt)]
        true = [float(eta) for m in flow.modules() if isinstance(m, DenseLayer) for eta in m.eta().detach()[:, which]]
        assert min(shown) == pytest.approx(min(true), abs=6e-4)
        assert max(shown) == pytest.approx(max(true), abs=6e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_certificate_is_that_of_the_model_and_is_kept(runs, kind, monkeypatch):
    run, page = runs[kind]
    flow = idn.load(run.path)
    certificate = flow.certify()
    for block in certificate.blocks:
        assert has_number(page, block.L, 4)
        assert has_number(page, 1 + block.L, 4)
        for _, bound in block.layers:
            assert f"{bound:.3f}" in page
    assert f"{certificate.upper:.3g} |x − y|" in unescape(page)
    assert "NOT CERTIFIED" not in page
    monkeypatch.setattr(idn.Flow, "certify", lambda self: pytest.fail("the certificate was kept"))
    from idensenet.report.certified import certificate_of

    assert certificate_of(run, flow, 60) == certificate
    monkeypatch.undo()
    kept = run.path / "certificate.json"
    values = json.loads(kept.read_text())
    values["key"]["weights"] = "of another model"
    values["lower"] = 123.0
    for damaged in (json.dumps(values), "{", "[]"):
        kept.write_text(damaged)
        assert certificate_of(run, flow, 60) == certificate


@pytest.mark.usefixtures("bare")
def test_block_that_is_not_contractive_is_loud(tmp_path):
    flow, source = expanding_flow(), toy_source()
    run = fake_run(tmp_path / "run", flow, source, "toy-idensenet-clipswish")
    page = write_report(run, source).read_text()
    bad = [block for block in flow.certify().blocks if not block.contractive]
    assert bad
    assert page.count("NOT CERTIFIED") == len(bad) + 2  # the banner, the tile and every row
    assert page.count('<tr class="bad">') == len(bad)
    assert page.index('class="alarm"') < page.index('class="tiles"')
    for block in bad:
        assert f"block {block.name.split('.')[1]} (L = {block.L:.4f})" in text_of(page)


@pytest.mark.usefixtures("bare")
def test_model_that_cannot_be_sampled_still_has_a_page(tmp_path, monkeypatch):
    from idensenet.errors import ConvergenceError, NonFiniteError

    def sample(self, *arguments):
        raise ConvergenceError("The solver <stopped> short.")

    def certify(self):
        raise NonFiniteError("A weight is NaN.")

    flow, source = image_flow(), image_source(image_flow())
    run = fake_run(tmp_path / "run", flow, source, "digits-idensenet")
    monkeypatch.setattr(idn.Flow, "sample", sample)
    monkeypatch.setattr(idn.Flow, "certify", certify)
    text = text_of(write_report(run, source).read_text())
    assert "Samples cannot be drawn: The solver <stopped> short." in text
    assert "NOT CERTIFIED. A weight is NaN." in text


@pytest.mark.usefixtures("bare")
def test_missing_data_is_said(runs, monkeypatch):
    def missing(config, known=None):
        raise MissingDataError("digits is not in <data>; fetch it.")

    monkeypatch.setattr(story, "source_of", missing)
    for kind in ("toy", "image"):
        run, _ = runs[kind]
        page = write_report(run).read_text()
        text = text_of(page)
        assert "not there any more" in text
        assert "digits is not in <data>; fetch it." in text
        assert "Real data" not in text
        assert any("from the model" in alt for alt in Outline(page).alts)


@pytest.mark.usefixtures("bare")
def test_data_of_another_shape_is_not_shown(runs, monkeypatch):
    monkeypatch.setattr(story, "source_of", lambda config, known=None: table_source(3))
    assert "people now has samples of shape (3,), and the model takes (2,)." in text_of(
        write_report(runs["toy"][0]).read_text()
    )


@pytest.mark.usefixtures("bare")
def test_data_is_opened_by_name(runs):
    text = text_of(write_report(runs["toy"][0]).read_text())
    assert "moons: drawn without end, 100,000 held out" in text


@pytest.mark.parametrize("dims", [1, 5])
@pytest.mark.usefixtures("bare")
def test_table(tmp_path, dims):
    flow = toy_flow(shape=(dims,), preprocess="standardize", logdet={"eval_method": "exact"}, initialized=False)
    source = table_source(dims)
    run = fake_run(tmp_path / "run", flow, source, "toy-idensenet-clipswish")
    page = write_report(run, source).read_text()
    assert any("data below, samples above" in alt for alt in Outline(page).alts)
    assert ("The first 4 of 5 columns are shown." in page) == (dims == 5)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("own", [False, True])
def test_the_paper_is_not_quoted_for_data_of_ones_own(tmp_path, own):
    flow = toy_flow()
    if own:
        flow.config = flow.config.replace(data={"table": "mine.csv"})
    run = fake_run(tmp_path / "run", flow, toy_source(), "toy-idensenet")
    assert ("The paper reports" in text_of(write_report(run, toy_source()).read_text())) != own


def test_no_dense_layers_no_evaluation_no_metrics(tmp_path):
    flow = image_flow(block="glow", fc_blocks=0, width=8)
    run = fake_run(tmp_path / "run", flow, image_source(flow), "digits-idensenet")
    (run.path / "metrics.jsonl").unlink()
    text = text_of(write_report(run, image_source(flow)).read_text())
    assert "Weights of the concatenation" not in text
    assert "no residual block" in text
    assert "has not been evaluated yet" in text
    assert "no metrics" in text


@pytest.mark.usefixtures("bare")
def test_kept_picture_of_samples_is_used(runs, tmp_path):
    import base64
    import shutil

    run, _ = runs["image"]
    copy = RunFolder(shutil.copytree(run.path, tmp_path / "copy"))
    copy.pictures.mkdir(exist_ok=True)
    from idensenet.report.pictures import image_grid, save_image

    drawn = copy.pictures / "step-00000060.png"
    save_image(image_grid(torch.zeros(64, 1, 8, 8), 17), drawn)
    page = write_report(copy, image_source(image_flow())).read_text()
    assert base64.b64encode(drawn.read_bytes()).decode() in page


def test_run_without_checkpoint_is_said(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.create(toy_flow().config, None, "idensenet train")
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        write_report(run)


def test_heat_maps_show_each_block_of_a_stack_by_its_own_weights():
    flow = toy_flow()
    (scale,) = concatenation_weights(flow)
    assert scale.title == "scale 1"
    assert block_titles(flow) == {f"1.{i}": f"scale 1, block {i}" for i in (1, 2, 3)}
    layers = [m.eta().detach().double() for m in flow.modules() if isinstance(m, DenseLayer)]
    for which in range(2):
        assert scale.values[which] == [[float(eta[block, which]) for eta in layers] for block in range(3)]
    assert len({value for row in scale.values[0] for value in row}) == 6
