"""Whatever is wrong with an input, the answer is one sentence with the value and the remedy."""

import math

import pytest
import torch

import idensenet as idn
from flows import images, small_images, small_toy
from idensenet import errors
from idensenet.bijections import ActNorm, ResidualBlock
from idensenet.lipschitz import LipschitzConv2d, LipschitzLinear, Pieces, activation, dense_block

TOY = small_toy()
DIGITS = small_images()
FRESH = idn.build("digits-idensenet", blocks=(1, 1), growth=4, fc_blocks=0)
IMAGE = images(DIGITS, 2)
REMEDY = ["flow.initialize(batch)"]


def with_value(value, row=3):
    x = torch.zeros(5, 2)
    x[row, 1] = value
    return x


def built(name="toy-idensenet", **overrides):
    return lambda: idn.build(name, **overrides)


# what is done, the error, and what its message must hold: the value at fault and the remedy
CASES = {
    "shape": (lambda: TOY.log_prob(torch.zeros(5, 3)), errors.ShapeError, ["(5, 3)", "(batch, 2)"]),
    "one sample without a batch": (lambda: TOY.log_prob(torch.zeros(2)), errors.ShapeError, ["(2,)", "(batch, 2)"]),
    "a number": (lambda: TOY.log_prob(torch.zeros(())), errors.ShapeError, ["()", "(batch, 2)"]),
    "shape of an image": (lambda: DIGITS.log_prob(IMAGE[:, 0]), errors.ShapeError, ["(2, 8, 8)", "(batch, 1, 8, 8)"]),
    "shape of z": (lambda: DIGITS.inverse(torch.zeros(2, 1, 8, 8)), errors.ShapeError, ["(2, 1, 8, 8)", "(batch, 4, 4, 4)"]),
    "shape at initialize": (lambda: FRESH.initialize(torch.zeros(2, 1, 4, 4)), errors.ShapeError, ["(2, 1, 4, 4)"]),
    "float image": (
        lambda: DIGITS.log_prob(IMAGE.float()),
        errors.DtypeError,
        ["float32", "torch.uint8", "dequantized=True"],
    ),
    "float64 points": (lambda: TOY.log_prob(torch.zeros(5, 2).double()), errors.DtypeError, ["float64", "float32", ".to()"]),
    "integer points": (lambda: TOY.log_prob(torch.zeros(5, 2).long()), errors.DtypeError, ["int64", "float32", ".to()"]),
    "float64 z": (lambda: TOY.inverse(torch.zeros(5, 2).double()), errors.DtypeError, ["float64", "float32", ".to()"]),
    "levels where floats are meant": (
        lambda: DIGITS.log_prob(IMAGE, dequantized=True),
        errors.DtypeError,
        ["uint8", "float32", ".to()"],
    ),
    "not a tensor": (lambda: TOY.log_prob([[0.0, 1.0]]), errors.DtypeError, ["list", "torch.as_tensor"]),
    "an array": (lambda: TOY.log_prob(torch.zeros(5, 2).numpy()), errors.DtypeError, ["ndarray", "torch.as_tensor"]),
    "device": (lambda: TOY.log_prob(torch.zeros(5, 2, device="meta")), errors.DeviceError, ["meta", "cpu", ".to()"]),
    "device of z": (lambda: TOY.inverse(torch.zeros(5, 2, device="meta")), errors.DeviceError, ["meta", "cpu", ".to()"]),
    "NaN": (lambda: TOY.log_prob(with_value(math.nan)), errors.NonFiniteError, ["NaN", "row 3", "drop or fill"]),
    "infinity": (lambda: TOY.log_prob(with_value(-math.inf, 1)), errors.NonFiniteError, ["infinity", "row 1", "drop or fill"]),
    "NaN in z": (lambda: TOY.inverse(with_value(math.nan)), errors.NonFiniteError, ["z has NaN", "row 3"]),
    "NaN at initialize": (lambda: TOY.initialize(with_value(math.nan)), errors.NonFiniteError, ["row 3", "drop or fill"]),
    "level above the levels": (
        lambda: DIGITS.log_prob(torch.full_like(IMAGE, 17)),
        errors.OptionError,
        ["level 17", "0 to 16", "rescale"],
    ),
    "dequantised outside": (
        lambda: DIGITS.log_prob(torch.full((1, 1, 8, 8), 18.5), dequantized=True),
        errors.InputError,
        ["18.5", "[0, 17]"],
    ),
    "coeff of one": (built(coeff=1.0), errors.OptionError, ["coeff=1.0", "between 0 and 1"]),
    "coeff above one": (lambda: LipschitzLinear(2, 2, coeff=1.5), errors.OptionError, ["coeff=1.5", "between 0 and 1"]),
    "coeff of zero": (built(coeff=0), errors.OptionError, ["coeff=0.0", "between 0 and 1"]),
    "even kernel": (lambda: LipschitzConv2d(1, 1, 2, (4, 4)), errors.OptionError, ["kernel=2", "odd"]),
    "odd growth": (built("toy-idensenet-clipswish", growth=15), errors.OptionError, ["growth=15", "even", "use 16"]),
    "odd width": (built("cifar10-resflow-small-clipswish", width=651), errors.OptionError, ["width=651", "even", "use 652"]),
    "depth": (built(depth=0), errors.OptionError, ["depth=0", "at least 1"]),
    "norm": (built("toy-idensenet-clipswish", norm=3), errors.OptionError, ["norm=3", "1, 2 or infinity"]),
    "image size": (
        built("cifar10-idensenet", shape=(3, 30, 30), growth=4, blocks=(1, 1, 1)),
        errors.ShapeError,
        ["(3, 30, 30)", "multiples of 4"],
    ),
    "two scales of vectors": (built(blocks=(1, 1)), errors.ShapeError, ["(2,)"]),
    "a shape of two numbers": (built(shape=(2, 3)), errors.ShapeError, ["(2, 3)", "(channels, height, width)"]),
    "no blocks": (built(blocks=()), errors.ShapeError, ["blocks=()", "positive"]),
    "an empty scale": (built(blocks=(0,)), errors.ShapeError, ["blocks=(0,)", "positive"]),
    "recipe": (
        built("cifar10-densenet"),
        errors.UnknownNameError,
        ["'cifar10-densenet'", "did you mean", "'cifar10-idensenet"],
    ),
    "recipe like no other": (built("????"), errors.UnknownNameError, ["'????'", "known are", "'toy-idensenet'"]),
    "option": (built(grwth=8), errors.OptionError, ["'grwth'", "did you mean", "'growth'"]),
    "option of a group": (built(logdet={"exactterms": 8}), errors.OptionError, ["'exactterms'", "'exact_terms'"]),
    "a group that is none": (built(logdet="exact"), errors.OptionError, ["logdet='exact'", "dictionary"]),
    "a value of the wrong type": (built(depth="3"), errors.OptionError, ["depth='3'", "like 3"]),
    "activation": (built(activation="swish"), errors.UnknownNameError, ["'swish'", "'lipswish'"]),
    "activation by hand": (lambda: activation("lipswich"), errors.UnknownNameError, ["'lipswich'", "'lipswish'"]),
    "block": (built(block="dens"), errors.OptionError, ["block='dens'", "'dense'"]),
    "preprocess": (built(preprocess="logits"), errors.OptionError, ["preprocess='logits'", "'logit'"]),
    "log-determinant": (built(logdet={"method": "exakt"}), errors.OptionError, ["logdet.method='exakt'", "'exact'"]),
    "log-determinant in evaluation": (
        built(logdet={"eval_method": "serie"}),
        errors.OptionError,
        ["logdet.eval_method='serie'", "'series'"],
    ),
    "law": (built(logdet={"law": "poison"}), errors.OptionError, ["logdet.law='poison'", "'poisson'"]),
    "law parameter": (
        built(logdet={"law": "geometric", "law_parameter": 2}),
        errors.OptionError,
        ["p=2.0", "between 0 and 1"],
    ),
    "probe": (built(logdet={"probe": "gauss"}), errors.OptionError, ["logdet.probe='gauss'", "'gaussian'"]),
    "probes": (built(logdet={"method": "series", "probes": 0}), errors.OptionError, ["probes=0", "at least 1"]),
    "solver": (built(solver={"method": "andersen"}), errors.OptionError, ["solver.method='andersen'", "'anderson'"]),
    "tolerance": (built(solver={"tol": -1.0}), errors.OptionError, ["tol=-1.0", "positive"]),
    "steps": (built(solver={"max_steps": 0}), errors.OptionError, ["max_steps=0", "at least 1"]),
    "one level": (built("digits-idensenet", levels=1, growth=4), errors.OptionError, ["levels=1 ", "between 2 and 256"]),
    "too many levels": (
        built("digits-idensenet", levels=257, growth=4),
        errors.OptionError,
        ["levels=257", "2 and 256"],
    ),
    "alpha": (built("digits-idensenet", alpha=0.5, growth=4), errors.OptionError, ["alpha=0.5", "[0, 0.5)"]),
    "mean of another image": (
        built("digits-idensenet", preprocess="normalize", growth=4),
        errors.OptionError,
        ["mean and std", "1 channels"],
    ),
    "context of images": (built("digits-idensenet", context=2), errors.OptionError, ["context", "vectors"]),
    "hybrid that factors out": (
        built("digits-idensenet", classes=3, factor_out=True, growth=4),
        errors.OptionError,
        ["classes", "factor_out=False"],
    ),
    "coupling of one number": (built(block="coupling", shape=(1,)), errors.OptionError, ["(1,)", "at least two"]),
    "negative n": (lambda: TOY.sample(-1), errors.OptionError, ["n=-1", "not be negative"]),
    "negative n with densities": (lambda: TOY.sample_and_log_prob(-1), errors.OptionError, ["n=-1", "not be negative"]),
    "temperature": (lambda: TOY.sample(1, temperature=0.0), errors.OptionError, ["temperature=0.0", "positive"]),
    "uninitialised at log_prob": (lambda: FRESH.log_prob(IMAGE), errors.UninitializedError, REMEDY),
    "uninitialised at forward": (lambda: FRESH(IMAGE), errors.UninitializedError, REMEDY),
    "uninitialised at inverse": (
        lambda: FRESH.inverse(torch.zeros(1, 4, 4, 4)),
        errors.UninitializedError,
        REMEDY,
    ),
    "uninitialised at sample": (lambda: FRESH.sample(1), errors.UninitializedError, REMEDY),
    "uninitialised, with densities": (
        lambda: FRESH.sample_and_log_prob(1),
        errors.UninitializedError,
        REMEDY,
    ),
    "uninitialised ActNorm": (
        lambda: ActNorm(2).inverse(torch.zeros(1, 2)),
        errors.UninitializedError,
        REMEDY,
    ),
    "nothing to initialise from": (
        lambda: FRESH.initialize(IMAGE[:0]),
        errors.ShapeError,
        ["(0, 1, 8, 8)", "with data"],
    ),
    "block on another width": (
        lambda: ResidualBlock(dense_block([3], 1, 4, Pieces()))(torch.zeros(2, 4)),
        errors.ShapeError,
        ["(2, 4)", "3 numbers"],
    ),
}


@pytest.mark.parametrize(("action", "error", "parts"), CASES.values(), ids=CASES.keys())
def test_a_mistake_is_answered_with_one_sentence_that_names_value_and_remedy(action, error, parts):
    with pytest.raises(error) as caught:
        action()
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert type(caught.value).__module__ == "idensenet.errors"
    for part in parts:
        assert part in message, message
    assert "\n" not in message
    assert message[-1] in ".?"
    assert len(message) < 900


def test_what_is_right_raises_nothing():
    """The inputs around the mistakes are accepted, so that the errors above are about the mistakes."""
    assert TOY.log_prob(with_value(1.0)).shape == (5,)
    assert DIGITS.log_prob(IMAGE).shape == (2,)
    assert DIGITS.log_prob(torch.full((1, 1, 8, 8), 16.5), dequantized=True).shape == (1,)
    assert DIGITS.log_prob(torch.full_like(IMAGE, 16)).shape == (2,)
    assert TOY.sample(0).shape == (0, 2)
    for make in (
        built(coeff=0.999),
        built("toy-idensenet-clipswish", growth=14),
        built("digits-idensenet", levels=2, growth=4),
    ):
        assert make().num_parameters > 0


def test_a_long_list_of_names_is_cut_and_says_so():
    few, many = [f"n{i}" for i in range(24)], [f"n{i}" for i in range(30)]
    assert errors.nearest("????", few).endswith("'n23'.")
    assert errors.nearest("????", many).endswith("and 6 more.")
    assert errors.nearest("????", many).count("'") == 2 * 24
