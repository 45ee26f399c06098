import dataclasses
import json
import math

import pytest

import idensenet as idn
from idensenet.config import Config, LogDetConfig, ModelConfig, SolverConfig, recipe
from idensenet.errors import OptionError, UnknownNameError
from idensenet.overriding import override


@pytest.mark.parametrize("name", idn.recipes())
def test_a_configuration_survives_json(name):
    config = recipe(name).config
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


@pytest.mark.parametrize("name", idn.recipes())
def test_every_recipe_has_a_one_line_description(name):
    found = recipe(name)
    assert found.name == name
    assert 10 < len(found.description) < 120
    assert "\n" not in found.description


def test_infinity_is_written_as_text():
    config = Config().replace(norm=math.inf)
    assert config.as_dict()["model"]["norm"] == "inf"
    assert Config.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_overrides_of_model_fields_need_no_group_and_others_do():
    config = Config().replace(depth=5, blocks=[1, 2], logdet={"terms": 7}, solver={"tol": 1e-3}, model={"growth": 8})
    assert config.model == dataclasses.replace(ModelConfig(), depth=5, blocks=(1, 2), growth=8)
    assert config.logdet == LogDetConfig(terms=7)
    assert config.solver == SolverConfig(tol=1e-3)
    assert Config() == Config().replace()


def test_numbers_and_lists_take_the_type_of_what_they_replace():
    config = Config().replace(coeff=0, norm="inf", shape=[3, 4, 4], levels=None, solver={"tol": None})
    assert isinstance(config.model.coeff, float)
    assert config.model.norm == math.inf
    assert config.model.shape == (3, 4, 4)
    assert config.model.levels is None
    assert config.solver.tol is None
    hash(config)


def test_a_recipe_inherits_from_its_base_and_changes_only_what_it_says():
    base, derived = recipe("cifar10-idensenet").config, recipe("cifar10-idensenet-small-leaky").config
    changed = {"blocks": (4, 4, 4), "growth": 124, "activation": "leakylipswish"}
    assert derived.model == dataclasses.replace(base.model, **changed)
    assert derived.logdet == base.logdet == LogDetConfig(method="roulette", eval_method="krylov")
    assert recipe("cifar10-iresnet").config.logdet.method == "series"


def test_reading_a_recipe_twice_gives_the_same_object_and_overrides_leave_it_alone():
    before = recipe("toy-idensenet").config
    idn.build("toy-idensenet", depth=1, blocks=(1,))
    assert recipe("toy-idensenet").config is before
    assert before.model.depth == 3


def test_the_recipes_hold_the_numbers_of_the_paper():
    full = recipe("cifar10-idensenet").config
    assert (full.model.coeff, full.model.lip, full.model.alpha, full.model.levels) == (0.98, 0.98, 0.05, 256)
    # one more term on average, not the paper's two: the gradient spreads no more
    assert (full.logdet.law, full.logdet.law_parameter, full.logdet.exact_terms, full.logdet.eval_terms) == (
        "poisson",
        1,
        2,
        20,
    )
    assert recipe("toy-idensenet").config.model.coeff == 0.9
    assert recipe("mnist-idensenet").config.model.alpha == 1e-6
    assert recipe("digits-idensenet").config.model.levels == 17
    hybrid = recipe("cifar10-idensenet-hybrid").config.model
    assert (hybrid.mean, hybrid.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"grwth": 8}, "no option 'grwth'; did you mean 'growth'"),
        ({"logdet": {"metod": "exact"}}, "no option 'metod'; did you mean 'method'"),
        ({"solver": {"tolerance": 1}}, "no option 'tolerance'"),
        ({"zzzzzz": 1}, "no option 'zzzzzz'; known are 'actnorm', "),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_ones(overrides, message):
    with pytest.raises(OptionError) as caught:
        Config().replace(**overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        {"coeff": "much"},
        {"coeff": None},
        {"blocks": 4},
        {"depth": "three"},
        {"depth": None},
        {"growth": 2.5},
        {"actnorm": "no"},
        {"logdet": "exact"},
        {"model": 3},
    ],
)
def test_a_value_of_the_wrong_kind_is_named(overrides):
    name, value = next(iter(overrides.items()))
    with pytest.raises(OptionError) as caught:
        Config().replace(**overrides)
    assert f"{name}={value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [("recompute", True, r"train\.memory"), ("recompute", "input", r"train\.memory"), ("bfloat16", True, "bf16-mixed")],
)
def test_an_option_that_is_gone_is_answered_with_what_takes_its_place(option, value, instead):
    with pytest.raises(OptionError, match=rf"logdet\.{option} is gone; use .*{instead}"):
        Config().replace(logdet={option: value})


def test_an_unknown_group_is_an_error():
    with pytest.raises(OptionError, match=r"no option 'modl'; did you mean 'model'"):
        override(Config(), {"modl": {}})


def test_an_unknown_recipe_is_answered_with_the_nearest_ones():
    with pytest.raises(UnknownNameError, match=r"no recipe 'toy-densenet'; did you mean 'toy-idensenet'"):
        recipe("toy-densenet")
