"""Every experiment at its smoke budget: what it writes, and something that would be false if the experiment were wrong."""

import json
import math

import numpy as np
import pytest
import torch

from idensenet.bench.timing import Times
from idensenet.cli import main
from idensenet.data.toy import toy_set
from idensenet.flow import Flow
from idensenet.lipschitz import activation
from idensenet.lipschitz.dense import DenseLayer
from idensenet.report.concatenation import concatenation_weights
from idensenet.reproduce import beyond, density, eta, figures, hybrids, images, matching, runtime, signal, toy, variants
from idensenet.reproduce.catalog import EXPERIMENTS
from idensenet.reproduce.experiment import Cell, Table
from idensenet.reproduce.runs import Pool

pytestmark = pytest.mark.xdist_group("experiments")  # they share runs, so one worker does them all


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduction")


@pytest.fixture
def made(folder):
    """Run an experiment; the JSON it wrote, and its runs."""

    def make(name):
        assert main(["reproduce", name, "--budget", "smoke", "--out", str(folder)]) == 0
        for ending in ("json", "md", "png", "svg"):
            assert (folder / f"{name}.{ending}").stat().st_size > 200
        assert f"[{name}]({name}.md)" in (folder / "README.md").read_text()
        found = json.loads((folder / f"{name}.json").read_text())
        assert found["budget"] == "smoke"
        assert {claim["verdict"] for claim in found["claims"]} <= {"not judged"}
        assert "| here | evidence |" not in (folder / f"{name}.md").read_text()
        assert found["what"] in (folder / f"{name}.md").read_text()
        pool = Pool(folder / "runs" / "smoke", 0, "data")
        return found, pool.train(EXPERIMENTS[name].plans("smoke"))

    return make


def cells(found, table=0):
    """Our numbers by row and column."""
    part = found["tables"][table]
    return {(row, column): cell for row, values in part["rows"] for column, cell in zip(part["columns"], values, strict=True)}


def verdicts(found):
    return {claim["text"]: claim["holds"] for claim in found["claims"]}


def test_seconds_of_training_say_nothing_about_the_paper(made, capsys):
    made("table-parameters")
    out = capsys.readouterr().out
    assert "parameters" in out
    assert "holds:" not in out
    assert "does not" not in out


def test_every_experiment_of_the_issue_is_there():
    assert set(EXPERIMENTS) == {
        "table-parameters",
        "table-signal",
        "table-signal-wide",
        "figure-clipswish",
        "figure-concatenation",
        "table-toy",
        "figure-densities",
        "table-matching",
        "table-density",
        "samples",
        "table-activations",
        "figure-depth",
        "table-hybrid",
        "samples-hybrid",
        "table-runtime",
        "figure-eta",
        "beyond-toy",
        "beyond-images",
    }


def test_parameters_are_those_of_the_paper(made):
    found, _ = made("table-parameters")
    assert all(holds for text, holds in verdicts(found).items() if "maxima" not in text)  # those take all pairs
    assert "24,894,586, 8,695,126, 46,980,874" in found["claims"][0]["because"]


# Signals


def ratio_by_quadrature(name, deviation):
    """E |f(v) - f(w)| / |v - w| in one dimension, on a grid of 1601 x 1601 points, in float64."""
    x = torch.linspace(-7, 7, 1601, dtype=torch.float64)
    weight = torch.exp(-0.5 * x**2)
    weight = weight / weight.sum()
    value = activation(name).double()(deviation * x[:, None])
    distance = torch.cdist(value, value)
    gap = deviation * (x[:, None] - x[None, :]).abs()
    ratio = distance / torch.where(gap == 0, 1.0, gap)
    slopes = activation(name).double().linearize(deviation * x[:, None])[1]
    ratio.diagonal().copy_(torch.cat([s.expand(len(x), 1) for s in slopes], 1).norm(dim=1))  # the limit of equal points
    return float((weight @ ratio @ weight).detach())


@pytest.mark.parametrize(("name", "deviation"), [("table-signal", 1.0), ("table-signal-wide", 5.0)])
def test_signals_agree_with_quadrature_and_with_the_paper(made, name, deviation):
    found, _ = made(name)
    values = cells(found)
    for kind, title in signal.NAMES.items():
        mean = values[title, "mean, D = 1"]
        assert abs(mean["ours"] - ratio_by_quadrature(kind, deviation)) < 4 * mean["error"] + 1e-3, title
    for (row, column), cell in values.items():
        if cell["paper"] is not None and column.startswith("mean"):
            assert abs(cell["ours"] - cell["paper"]) < 0.01 + 4 * cell["error"], (row, column)
    assert all(holds for text, holds in verdicts(found).items() if "maxima" not in text)  # those take all pairs
    wrong = values["LipSwish", "mean, D = 1"]  # the control: another activation has another figure
    assert abs(wrong["ours"] - ratio_by_quadrature("clipswish", deviation)) > 20 * wrong["error"]


def test_maximum_never_exceeds_the_lipschitz_constant():
    for name in signal.NAMES:
        found = signal.preserved(name, 1.0, 1, 20_000)
        assert found.mean < found.most <= activation(name).lipschitz(2.0) * (1 + 1e-9) or name == "identity"


# Derivations


def test_clipswish_norm_is_that_of_autograd(made):
    found, _ = made("figure-clipswish")
    assert all(holds for text, holds in verdicts(found).items() if "maxima" not in text)  # those take all pairs
    x = torch.linspace(-6, 6, 201, dtype=torch.float64)
    for b in figures.BETAS:

        def pair(x, b=b):
            return torch.stack([x * torch.sigmoid(b * x), -x * torch.sigmoid(-b * x)]) / 1.1

        slopes = torch.autograd.functional.jacobian(lambda x: pair(x).sum(1), x)
        assert torch.allclose(figures.jacobian_norm(x, b), slopes.norm(dim=0), rtol=1e-10)


def test_range_of_the_concatenation(made):
    found, _ = made("figure-concatenation")
    assert all(holds for text, holds in verdicts(found).items() if "maxima" not in text)  # those take all pairs
    assert cells(found)["smallest reached", "eta1"]["ours"] < 1e-3 < 0.999 < cells(found)["largest reached", "eta2"]["ours"]


# Toy data


def test_toy_table(made):
    found, runs = made("table-toy")
    entropy = toy_set("checkerboard").entropy
    normal = math.log(2 * math.pi) + 16 / 3  # what the untrained base would score
    for (row, _), cell in cells(found).items():
        if "entropy" not in row:
            assert entropy < cell["ours"] < 0.75 * normal, row
    fixed, learned, residual = (
        runs[f"{name}-checkerboard-0"].last_flow for name in ("toy-idensenet-fixed", "toy-idensenet", "toy-resflow")
    )
    assert all(torch.equal(m.k, torch.ones_like(m.k)) for m in fixed.modules() if isinstance(m, DenseLayer))
    assert all(bool((m.k != 1).any(1).all()) for m in learned.modules() if isinstance(m, DenseLayer))
    assert not any(isinstance(m, DenseLayer) for m in residual.modules())
    assert found["claims"][-1]["holds"] is True


def test_toy_scores_are_those_of_the_last_weights(made):
    _, runs = made("table-toy")
    run = runs["toy-idensenet-checkerboard-0"]
    x = torch.from_numpy(run.source.test.x[:2000])
    with torch.no_grad():
        last, average = -run.last_flow.log_prob(x).double(), -run.flow.log_prob(x).double()
    assert torch.allclose(run.held_out(2000, last=True), last, atol=1e-4)
    assert torch.allclose(run.held_out(2000), average, atol=1e-4)
    assert (last - average).abs().max() > 1e-2


def test_densities_integrate_to_one(made):
    found, _ = made("figure-densities")
    for cell in cells(found).values():
        assert abs(cell["ours"] - 1) < 0.02


def in_region(points, region):
    column, row = ((points + toy.WIDE) * (toy.CELLS / (2 * toy.WIDE))).long().clamp(0, toy.CELLS - 1).unbind(1)
    return region[row, column]


def test_low_regions_have_little_of_the_data_and_what_samples_say_of_the_model(made):
    found, runs = made("figure-densities")
    n = 20_000
    for name in toy.SETS:
        data = toy_set(name).sample(n, torch.Generator().manual_seed(9))
        share = float(in_region(data, toy.low_region(name, 1_000_000)).double().mean())
        assert abs(share - 0.01) < 5 * math.sqrt(0.01 / n)
    x, y = torch.meshgrid(torch.arange(400), torch.arange(400), indexing="xy")
    centres = (torch.stack([x, y], -1).double() + 0.5) * 0.06 - 12
    field = (centres[..., 0].div(2).floor() + centres[..., 1].div(2).floor()) % 2 == 0
    board = field & (centres.abs().amax(-1) < 4)  # the dark squares: cells cut by an edge have less of the data
    low = toy.low_region("checkerboard")
    assert (board & ~low).sum() > 0.98 * board.sum()
    assert (~board & ~low).sum() < 0.02 * board.sum()
    drawn = runs["toy-idensenet-checkerboard-0"].last_flow.sample(n, generator=torch.Generator().manual_seed(0))
    share = float(in_region(drawn, low).double().mean())
    assert abs(share - cells(found, 1)["i-DenseNet + LC", "checkerboard"]["ours"]) < 5 * math.sqrt(share / n)


def test_full_toy_runs_are_as_published():
    for plan in toy.EXPERIMENTS[0].plans("cpu"):
        assert "train.max_steps" not in plan.options  # the recipe's 50,000
    names = [plan.name for plan in toy.EXPERIMENTS[0].plans("cpu")]
    assert len(names) == len(set(names)) == 3 * (1 + 5 * 3) + 5 * 4


def test_beyond_toy(made):
    found, runs = made("beyond-toy")
    entropy = toy_set("checkerboard").entropy
    for key in beyond.KEYS:
        config = runs[beyond.toy_plan(key, "checkerboard", 0, "smoke").name].config
        assert (config.model.block, config.model.activation) == key
        assert config.logdet.method == "exact"
        for table in (0, 1):  # at equal steps and at equal time
            assert entropy < cells(found, table)[beyond.title(key), "checkerboard"]["ours"] < 6
    assert len(found["claims"]) == 3 + 4 + 1 + 1
    assert len(beyond.EXPERIMENTS[0].plans("cpu")) == 6 * 8 * 3


# Images


def bits(run):
    """Per dimension of the first 60 held-out images."""
    return float(run.held_out(60).mean()) / (64 * math.log(2))


def test_density_columns_differ_only_in_g(made):
    found, runs = made("table-density")
    dense, residual = runs["cifar10-idensenet-tiny"], runs["cifar10-resflow-tiny"]
    assert density.only_g_differs(dense, residual) == ["model.activation", "model.block"]
    assert verdicts(found)["the two runs differ only in g"]
    for run in (dense, residual):
        curve = [value for *_, value in run.curve("bits_per_dim")]
        assert curve[-1] < curve[0] - 0.1  # it learns
        assert run.curve("bits_per_dim")[-1][0] == run.step == 15
    at_steps, at_time = cells(found), cells(found, 1)
    both = {"i-DenseNet": dense, "Residual Flow": residual}
    first = min(run.seconds for run in both.values())
    for name, run in both.items():
        x = run.source.test.batch(np.arange(60))[0]
        with torch.no_grad():
            mean = -run.flow.log_prob(x).double().mean() / (64 * math.log(2))
        assert at_steps[name, "bits/dim"]["ours"] == pytest.approx(float(mean), abs=1e-4)
        assert at_time[name, "s a step"]["ours"] == pytest.approx(run.seconds / 15)
        if run.seconds == first:  # it is done then
            assert at_time[name, "bits/dim"]["ours"] == run.curve("bits_per_dim")[-1][2]
            assert at_time[name, "steps by then"]["ours"] == 15
    gap = at_steps["i-DenseNet", "bits/dim"]["ours"] - at_steps["Residual Flow", "bits/dim"]["ours"]
    assert f"difference {gap:+.4f}" in found["claims"][0]["because"]
    assert found["tables"][2]["rows"][0] == [
        "Real NVP",
        [{"ours": None, "error": None, "paper": 3.49}, {"ours": None, "error": None, "paper": 4.28}],
    ]


def test_scores_at_a_time():
    curve = [(10, 1.0, 5.0), (20, 3.0, 4.0), (30, 4.0, 3.0)]
    assert density.at_time(curve, 2.0) == pytest.approx(4.5)
    assert density.at_time(curve, 0.5) == 5.0
    assert density.at_time(curve, 9.0) == 3.0


def test_paired_differences():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(400, generator=generator)
    better = base - 0.05 + 0.1 * torch.randn(400, generator=generator)
    assert images.paired("", better, base).holds is True
    assert images.paired("", base, better).holds is False
    assert images.paired("", base, base.flip(0)).holds is None


def test_samples_look_at_the_model_and_the_data(made):
    found, runs = made("samples")
    values = {column: cell["ours"] for (_, column), cell in cells(found).items()}
    run = runs["cifar10-idensenet-tiny"]
    drawn = run.flow.sample(8, generator=torch.Generator().manual_seed(0)).float().mean()
    real = float(run.source.test.x[:8].mean())
    assert values["mean level of samples"] == pytest.approx(float(drawn), rel=1e-5)
    assert values["of real images"] == pytest.approx(real, rel=1e-5)
    assert abs(float(drawn) - real) > 1e-3
    assert abs(values["mean level of samples"] - values["of real images"]) < 1.5  # ActNorm saw the data
    assert 2 < values["bits/dim of samples"] < 5


def test_activation_columns_have_their_activation(made):
    found, runs = made("table-activations")
    for (model, name), variant in {**variants.ACTIVATION_VARIANTS, **variants.LATER_VARIANTS}.items():
        run = runs[variant.plan("smoke").name]
        config = run.config.model
        assert config.activation == name.lower()
        assert config.block == ("dense" if model == "i-DenseNet" else "residual")
        assert cells(found)[model, name]["ours"] == pytest.approx(bits(run))
        assert cells(found)[model, name]["ours"] < 3.7  # it was above four before training
    assert len({cell["ours"] for cell in cells(found).values()}) == 10


def test_beyond_images(made):
    found, runs = made("beyond-images")
    for key in beyond.KEYS:
        run = runs[beyond.variant(key).plan("smoke").name]
        assert (run.config.model.block, run.config.model.activation) == key
        assert cells(found)[beyond.title(key), "bits/dim"]["ours"] == pytest.approx(bits(run))
    learned = runs[beyond.LEARNED.plan("smoke").name].flow
    assert any(bool(p.any()) for p in learned.dequantizer.nets[0][-1].parameters())  # it has left the uniform noise
    for name in ("uniform noise", "learned noise"):
        bound, closer = (cells(found, 1)[name, column]["ours"] for column in ("bound", "importance-weighted"))
        assert closer < bound + 0.02
    assert "beyond-images" in EXPERIMENTS


def test_depths(made):
    found, runs = made("figure-depth")
    for depth, variant in variants.DEPTHS.items():
        flow = runs[variant.tiny].flow
        layers = [sum(isinstance(m, DenseLayer) for m in block.modules()) for _, block, _ in flow.named_blocks()]
        assert layers == [depth] * 2
        assert cells(found)[f"depth {depth}", "bits/dim"]["ours"] == pytest.approx(bits(runs[variant.tiny]))
        assert cells(found)[f"depth {depth}", "million parameters"]["ours"] == flow.num_parameters / 1e6
    assert "step 4" in found["notes"][1]


def test_matching_architecture(made):
    found, runs = made("table-matching")
    size = {row: cell["ours"] for (row, column), cell in cells(found, 1).items() if column == "million parameters"}
    assert size["Residual Flow, extended"] > 2 * size["i-DenseNet + LC"]
    for title, variant in matching.VARIANTS.items():
        assert cells(found, 1)[title, "bits/dim"]["ours"] == pytest.approx(bits(runs[variant.tiny]))
    for model in matching.MODELS:
        score = runs[f"{model.recipe}-checkerboard-0"].held_out(2000, last=True).mean()
        assert cells(found)[model.title, "checkerboard"]["ours"] == pytest.approx(float(score))
    extended, dense = (runs[matching.VARIANTS[k].tiny].config.model for k in ("Residual Flow, extended", "i-DenseNet + LC"))
    assert (extended.growth, extended.depth, extended.activation) == (dense.growth, dense.depth, dense.activation)


def test_hybrids(made):
    found, runs = made("table-hybrid")
    for kind, short in hybrids.KINDS.items():
        kinds = {weight: runs[hybrids.plan(kind, weight, "smoke").name] for weight in hybrids.WEIGHTS}
        assert {weight: run.config.train.weight for weight, run in kinds.items()} == {"0": "0", "1/D": "1/D", "1": "1"}
        assert all(short in run.plan.recipe for run in kinds.values())
        accuracy = [value for *_, value in kinds["0"].curve("accuracy")]
        assert accuracy[-1] > 0.25  # chance is 0.1
        assert cells(found)[kind, "accuracy %, lambda 0"]["ours"] == pytest.approx(100 * sum(accuracy[-5:]) / 5)
        scores = [kinds[weight].curve("bits_per_dim")[-1][2] for weight in ("0", "1")]
        assert scores[1] < scores[0]  # the density is learned where it counts


def test_samples_of_hybrids(made):
    found, runs = made("samples-hybrid")
    shares = []
    for weight in ("1/D", "1"):
        run = runs[hybrids.plan("dense blocks", weight, "smoke").name]
        drawn = run.flow.sample(8, generator=torch.Generator().manual_seed(0))
        shares.append(100 * float(((drawn == 0) | (drawn == 16)).double().mean()))
        assert cells(found)[f"lambda {weight}", "% of levels at the edge"]["ours"] == pytest.approx(shares[-1])
        last = [value for *_, value in run.curve("bits_per_dim")][-5:]
        assert cells(found)[f"lambda {weight}", "bits/dim"]["ours"] == pytest.approx(sum(last) / 5)
    assert shares[0] != shares[1]


def test_running_times(made):
    found, _ = made("table-runtime")
    percent, seconds = cells(found), cells(found, 1)
    for (name, what), cell in percent.items():
        both = [seconds[f"{model}, {name}", what] for model in ("Residual Flow", "i-DenseNet")]
        other, ours = (math.sqrt(each["ours"] ** 2 - each["error"] ** 2 / 2) for each in both)  # geometric means of two rounds
        assert cell["ours"] == pytest.approx(runtime.percent_faster(other, ours))
    assert runtime.percent_faster(2.0, 1.0) == pytest.approx(100)
    assert runtime.percent_faster(1.0, 2.45) == pytest.approx(-145)
    assert runtime.compared(Times((2.0, 4.0)), Times((1.0, 2.0))) == pytest.approx((100, 0))
    assert runtime.compared(Times((2.0, 2.0)), Times((1.0, 4.0))) == pytest.approx((0, 100 * math.log(2)))
    assert [runtime.verdict("", True, value, 1.5).holds for value in (4.0, 2.0, -4.0)] == [True, None, False]
    assert [runtime.verdict("", False, value, 1.5).holds for value in (4.0, 2.0, -4.0)] == [False, None, True]


def test_running_times_are_those_of_the_model_and_the_work_in_their_place(made, monkeypatch):
    """Every piece of work is done once by a clock that takes what the flow is asked to do for the time."""
    asked = []

    def count(name):
        plain = getattr(Flow, name)

        def counted(flow, *words, **options):
            asked.append((name, flow.config.model.block, flow.config.model.activation, torch.is_grad_enabled(), flow.training))
            return plain(flow, *words, **options)

        monkeypatch.setattr(Flow, name, counted)

    def clock(pieces, repeats):
        found = {}
        for title, work in pieces.items():
            asked.clear()
            work()
            name, block, activation, gradient, training = asked[0]
            assert title == f"{'i-DenseNet' if block == 'dense' else 'Residual Flow'} {NAMES[activation]}"
            kind = "sampling" if name == "sample" else "training" if gradient else "forward"
            assert training == (kind != "sampling")
            seconds = {"forward": 1.0, "training": 2.0, "sampling": 4.0}[kind] * (1 + list(NAMES).index(activation))
            found[title] = Times((seconds * (1 if block == "dense" else 1.5),) * repeats)
        return found

    NAMES = {"lipswish": "LipSwish", "leakylipswish": "LeakyLipSwish", "clipswish": "CLipSwish"}
    count("log_prob")
    count("sample")
    monkeypatch.setattr(runtime, "in_turns", clock)
    found, _ = made("table-runtime")
    assert all(cell["ours"] == pytest.approx(50) for cell in cells(found).values())
    for i, name in enumerate(NAMES.values()):
        row = [cells(found, 1)[f"i-DenseNet, {name}", what]["ours"] for what in ("forward", "training", "sampling")]
        assert row == [1 + i, 2 * (1 + i), 4 * (1 + i)]


def test_weights_of_the_concatenation(made):
    found, runs = made("figure-eta")
    scales = concatenation_weights(runs[eta.plan("smoke").name].flow)
    assert [scale.title for scale in scales] == ["scale 1", "scale 2", "fully connected"]
    for scale in scales:
        for first, second in zip(*scale.values, strict=True):
            for a, b in zip(first, second, strict=True):
                assert a * a + b * b == pytest.approx(1, abs=1e-6)
                assert abs(a - math.sqrt(0.5)) > 1e-5  # it was switched on
    assert found["tables"][0]["rows"][0][1][1]["ours"] == pytest.approx(sum(row[-1] for row in scales[0].values[0]))


@pytest.mark.parametrize(
    ("last", "connected", "wanted"),
    [(0.1, 0.5, [True, True]), (0.1, 0.05, [True, False]), (0.8, 0.9, [False, None])],
)
def test_fully_connected_blocks_are_judged_only_where_the_others_show_something(last, connected, wanted):
    rows = (("scale 1", (Cell(0.6), Cell(last), Cell(0.0))), ("fully connected", (Cell(0.6), Cell(connected), Cell(0.0))))
    table = Table("", (eta.EARLIER, eta.LAST, "smallest"), rows)
    assert [claim.holds for claim in eta.claims_of(table)] == wanted
