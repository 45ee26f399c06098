"""The answers to the page: true numbers, pictures of the right thing, and one sentence where there is no answer."""

import base64
import io
import json

import numpy as np
import pytest
import torch
from explore_models import HOSTILE, IMAGE, image_subject, plane_subject, table_subject
from PIL import Image

from idensenet.data.source import Source, Split
from idensenet.errors import InputError, MissingDataError, OptionError, UnknownNameError
from idensenet.explore.explorer import Explorer
from idensenet.explore.images import neighbours
from idensenet.explore.journey import journey
from idensenet.explore.query import Query, plain, spread
from idensenet.explore.subject import Subject
from idensenet.explore.table import distance
from idensenet.report.pictures import image_grid
from report_runs import toy_flow


@pytest.fixture(scope="module")
def plane():
    return Explorer(plane_subject())


@pytest.fixture(scope="module")
def table():
    return Explorer(table_subject())


@pytest.fixture(scope="module")
def images():
    return Explorer(image_subject())


def pixels(address):
    assert address.startswith("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB"))


# The path through the blocks


@pytest.mark.parametrize(
    "changes",
    [{}, {"actnorm": True}, {"preprocess": "standardize"}, {"block": "monotone"}, {"block": "implicit", "blocks": (2,)}],
    ids=["plain", "actnorm", "standardize", "monotone", "implicit"],
)
def test_journey_ends_where_the_flow_does(changes):
    flow = toy_flow(**changes).double()
    x = torch.randn(7, 2, dtype=torch.float64)
    steps = journey(flow, x)
    z, log_det = flow(x)
    assert torch.allclose(steps[-1].value, z, atol=1e-9)
    assert torch.allclose(sum(step.log_det for step in steps), log_det, atol=1e-9)
    assert torch.equal(steps[0].value, x)
    assert (steps[1].name == "preprocessing") == ("preprocess" in changes)
    if changes.get("block") != "implicit":
        assert [step.name for step in steps][-3:] == ["block 1", "block 2", "block 3"]


# Two columns


def test_path_has_the_terms_of_the_log_density(plane):
    found = plane.answer("path", {"x": "0.5", "y": "-0.25"})
    flow = plane.subject.flow
    true = float(flow.log_prob(torch.tensor([[0.5, -0.25]])).detach())
    assert found["log_prob"] == pytest.approx(true, abs=1e-4)
    assert found["base"] + sum(found["log_det"]) == pytest.approx(true, abs=1e-3)
    assert found["points"][0] == [0.5, -0.25]
    assert len(found["steps"]) == len(found["points"]) == len(found["log_det"]) == 4
    assert found["round_trip"] < 1e-4
    stages = plane.answer("cloud", {"n": "20"})["stages"]
    assert np.shape(stages) == (4, 20, 2)


@pytest.mark.parametrize("axis", [0, 1])
def test_slice_is_the_conditional_density(plane, axis):
    found = plane.answer("slice", {"axis": str(axis), "at": "0.7"})
    places, conditional = (np.array(found[name]) for name in ("places", "conditional"))
    assert len(places) == len(conditional) == 201
    step = places[1] - places[0]
    assert 0.5 < conditional.sum() * step < 1.01  # the rest lies outside of the frame
    point = [0.7, places[60]] if axis == 0 else [places[60], 0.7]
    joint = float(plane.subject.flow.log_prob(torch.tensor([point], dtype=torch.float32)).detach().exp())
    assert conditional[60] * found["marginal"] == pytest.approx(joint, rel=1e-3)
    data = plane.subject.source.test.x
    near = np.abs(data[:, axis] - 0.7) < found["half"]
    assert found["near"] == near.sum() > 0
    assert sum(found["bars"]) * (found["edges"][1] - found["edges"][0]) <= 1.0001


def test_picture_of_the_density_has_the_largest_value_in_its_place(plane):
    found = plane.answer("density", {})
    picture = pixels(found["image"]).sum(2)
    row, column = np.unravel_index(picture.argmax(), picture.shape)
    side = len(picture)
    x, y = -4.5 + 9 * (column + 0.5) / side, 4.5 - 9 * (row + 0.5) / side
    there = float(plane.subject.flow.log_prob(torch.tensor([[x, y]], dtype=torch.float32)).detach().exp())
    assert there == pytest.approx(found["largest"], rel=0.05)
    assert 0.3 < found["inside"] < 1.01


def test_samples_follow_seed_and_temperature(plane):
    first = plane.answer("samples", {"n": "50", "seed": "1"})
    assert first == plane.answer("samples", {"n": "50", "seed": "1"})
    assert first != plane.answer("samples", {"n": "50", "seed": "2"})
    true = plane.subject.flow.sample(50, torch.Generator().manual_seed(1), 0.5)
    assert plane.answer("samples", {"n": "50", "seed": "1", "temperature": "0.5"})["points"] == plain(true)
    assert plane.answer("data", {"n": "3"})["points"] == plain(plane.subject.source.test.x[:3])


def test_without_data_the_plane_shows_samples_and_says_why():
    explorer = Explorer(plane_subject(source=None, missing="it was deleted"))
    assert explorer.answer("about", {})["missing"] == "it was deleted"
    assert explorer.answer("slice", {})["bars"] is None
    with pytest.raises(MissingDataError, match="it was deleted"):
        explorer.answer("data", {})


# Tables


def test_columns_and_ranges_of_a_table(table):
    about = table.answer("about", {})
    assert [column["name"] for column in about["columns"]] == [IMAGE, "height", HOSTILE, "children", "city"]
    assert about["columns"][4]["labels"] == [IMAGE, "Oslo", "Rome"]
    assert about["context"] == []
    assert about["kind"] == "table"
    found = table.answer("pair", {"i": "3", "j": "4"})
    assert found["ranges"][1] == [-0.5, 2.5]
    assert set(found["samples"][1]) <= {0, 1, 2}
    assert all(value == round(value) for value in found["samples"][0])
    source = table.subject.source
    assert found["data"][0] == source.test.x[:, 3].tolist()
    assert found["data"][1] == source.test.context.argmax(1).tolist()
    assert found["rows"] == [2000, 300]
    assert len(table.answer("overview", {"n": "7"})["data"]) == 5


def test_distance_is_that_of_kolmogorov_and_smirnov():
    a, b = np.random.default_rng(0).normal(size=(2, 200)).round(1)
    b = b[:90] + 0.3
    assert distance(a, b) == pytest.approx(max(abs((a <= t).mean() - (b <= t).mean()) for t in [*a, *b]))
    assert distance(a, a) == 0


def test_least_likely_rows_are_those_of_the_lowest_log_density(table):
    found = table.answer("least", {"n": "5"})
    source, flow = table.subject.source, table.subject.flow
    x, c = torch.from_numpy(source.test.x), torch.from_numpy(source.test.context)
    true = flow.log_prob(x, context=c).detach().double() + torch.from_numpy(flow.columns.log_prob(source.test.context))
    order = true.argsort()[:5].tolist()
    assert found["place"] == order
    assert found["log_prob"] == pytest.approx(true[order].tolist(), abs=1e-3)
    assert found["rows"][0][1] == pytest.approx(float(source.test.x[order[0], 1]), abs=1e-3)
    assert not found["of_file"]
    assert found["scored"] == 300
    values = [*source.test.x.T, source.test.context.argmax(1)]
    for row, oddest in zip(order, found["oddest"], strict=True):
        tails = [min((each <= each[row]).mean(), (each >= each[row]).mean()) for each in values[:4]]
        tails.append((values[4] == values[4][row]).mean())
        assert tails[oddest] == pytest.approx(min(tails))


def test_without_data_a_table_shows_samples_alone():
    explorer = Explorer(table_subject(data=False))
    found = explorer.answer("pair", {})
    assert found["data"] is None
    assert found["distances"] is None
    with pytest.raises(MissingDataError, match="no file"):
        explorer.answer("least", {})


def test_conditional_model_needs_the_contexts_of_its_data():
    flow = toy_flow(shape=(2,), preprocess="standardize", context=1, initialized=False)
    subject = Subject(flow, "conditional", None, "gone")
    assert subject.kind == "table"
    with pytest.raises(MissingDataError, match="contexts"):
        Explorer(subject).answer("pair", {})


def test_conditional_model_is_sampled_at_the_contexts_of_its_data():
    flow = toy_flow(shape=(2,), preprocess="standardize", context=1, initialized=False)
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    flow.standardize(rows[:, :2], rows[:, 2:])
    split = Split(rows[:, :2].numpy(), context=rows[:, 2:].numpy())
    explorer = Explorer(Subject(flow, "given", Source("table", split, split, (2,), columns=("a", "b"), context=("wind",))))
    assert explorer.answer("about", {})["context"] == ["wind"]
    found = explorer.answer("pair", {"n": "50", "seed": "4"})
    given = rows[torch.arange(2000) % 40, 2:]
    true = flow.sample(2000, torch.Generator().manual_seed(4), context=given)
    assert found["samples"] == plain(true[:50].T)
    assert explorer.answer("least", {})["scored"] == 40


# Images


def test_neighbours_lie_on_the_sphere_at_the_angle():
    z = torch.randn(1, 4, 4, 4, dtype=torch.float64)
    found = neighbours(z, 12.0, 5, torch.Generator().manual_seed(0)).flatten(1)
    norm = float(z.norm())
    assert torch.allclose(found[12], z.flatten())
    assert torch.allclose(found.norm(dim=1), torch.full((25,), norm, dtype=torch.float64))
    cosines = (found @ found[12]) / norm**2
    angles = torch.rad2deg(cosines.clamp(-1, 1).acos())
    assert angles[13] == pytest.approx(12, abs=1e-4)
    assert angles[14] == pytest.approx(24, abs=1e-4)
    assert angles[18] == pytest.approx(12 * 2**0.5, abs=1e-4)
    across, down = (found[i] - cosines[i] * found[12] for i in (13, 17))
    assert float(across @ down) == pytest.approx(0, abs=1e-9)


def test_an_angle_of_zero_gives_the_image_itself(images):
    found = images.answer("neighbourhood", {"of": "3", "angle": "0"})
    picture, x = pixels(found["image"]), images.view.images(3, 1)
    assert (picture == image_grid(x.expand(9, -1, -1, -1), 17, 3, 8).numpy()).all()
    turned = images.answer("neighbourhood", {"of": "3", "angle": "30"})
    assert (pixels(turned["image"]) != picture).any()


def test_chosen_image_has_its_bits(images):
    found = images.answer("chosen", {"of": "5"})
    x = torch.from_numpy(images.subject.source.test.x[5:6])
    assert found["bits"] == pytest.approx(float(images.subject.flow.bits_per_dim(x).detach()), abs=1e-4)
    assert (pixels(found["image"]) == image_grid(x, 17, 1, 8).numpy()).all()
    assert len(images.answer("choices", {"first": "60", "n": "20"})["images"]) == 10  # of 70


def test_reconstructions_come_back(images):
    found = images.answer("reconstructions", {"n": "4"})
    assert (pixels(found["original"]) == pixels(found["back"])).all()
    assert found["largest"] < 1e-4
    assert pixels(found["error"]).any()


def test_samples_of_images(images):
    true = images.subject.flow.sample(5, torch.Generator().manual_seed(3), 0.7)
    found = images.answer("samples", {"n": "5", "seed": "3", "temperature": "0.7"})
    assert (pixels(found["image"]) == image_grid(true, 17, 5, 8).numpy()).all()


def test_without_data_there_are_samples_to_choose_from():
    explorer = Explorer(image_subject(data=False))
    about = explorer.answer("about", {})
    assert not about["real"]
    assert about["count"] == len(explorer.answer("choices", {"n": "36"})["images"]) == 12


# All of them


def test_certificate_and_concatenation(images):
    certificate = images.subject.flow.certify()
    found = images.answer("certificate", {})
    assert found["L"] == pytest.approx(certificate.L, rel=1e-5)
    assert found["contractive"]
    assert len(found["blocks"]) == len(certificate.blocks)
    maps = images.answer("concatenation", {})["maps"]
    assert len(maps) == 6
    assert maps[0]["words"].startswith("Heat map, scale 1: eta1")


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("samples", {"n": "2001"}, "n='2001' must be a whole number from 1 to 2000"),
        ("samples", {"n": "1e9"}, "n='1e9' must be a whole number"),
        ("samples", {"temperature": "nan"}, "temperature='nan' must be a number from 0.05 to 2"),
        ("samples", {"seed": "-1"}, "seed='-1'"),
        ("slice", {"axis": "2"}, "axis='2'"),
        ("slice", {"at": "1e30"}, "at='1e30' must be a number from -4.5 to 4.5"),
        ("path", {"x": "inf"}, "x='inf'"),
        ("path", {"x": "9" * 5000}, "x='999"),
        ("denisty", {}, "did you mean 'density'"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(plane, name, values, sentence):
    with pytest.raises(InputError, match=r".") as caught:
        plane.answer(name, values)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 200


def test_images_and_tables_have_bounds_too(images, table):
    for explorer, name, values in (
        (images, "samples", {"n": "37"}),
        (images, "chosen", {"of": "70"}),
        (images, "neighbourhood", {"reach": "3"}),
        (images, "reconstructions", {"n": "17"}),
        (table, "pair", {"i": "5"}),
        (table, "least", {"n": "51"}),
    ):
        with pytest.raises(OptionError, match="must be a whole number"):
            explorer.answer(name, values)


def test_every_answer_is_plain_json(plane, table, images):
    for explorer in (plane, table, images):
        for name in explorer.view.answers:
            json.dumps(explorer.answer(name, {}), allow_nan=False)


def test_what_cannot_be_explored_is_said():
    flow = toy_flow(initialized=False)
    flow.shape = (1, 8, 8)
    with pytest.raises(OptionError, match="cannot be explored"):
        Explorer(Subject(flow, "odd"))


def test_nothing_is_answered_after_the_end(tmp_path):
    explorer = Explorer(plane_subject())
    explorer.close()
    with pytest.raises(OptionError, match="has ended"):
        explorer.answer("about", {})


def test_numbers_for_json():
    assert plain([1.23456789, float("nan"), -float("inf")]) == [1.23457, None, None]
    assert plain(np.ones((2, 1))) == [[1.0], [1.0]]
    assert spread([[1.0] * 5]) == (0.95, 1.05)
    assert spread([[float("nan")]]) == (-1.0, 1.0)
    assert Query({}).number("x", 0.5, 0, 1) == 0.5
    with pytest.raises(UnknownNameError):
        Explorer(plane_subject()).answer("x" * 10_000, {})
