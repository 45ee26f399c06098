"""Models on disk: built from a configuration, assembled by hand, or impossible to read."""

import json
import math

import numpy as np
import pytest
import torch

import idensenet as idn
from idensenet import structure
from idensenet.bijections import (
    ActNorm,
    Bijection,
    Chain,
    ConditionalAffine,
    Coupling,
    Flatten,
    Invert,
    InvertibleConv1x1,
    Logit,
    ResidualBlock,
    Split,
    Squeeze,
    Whiten,
    channel_mask,
    coupling_net,
)
from idensenet.bijections.base import no_log_det
from idensenet.data.catalog import open_source
from idensenet.errors import CheckpointError, InputError, OptionError
from idensenet.flow import Flow
from idensenet.lipschitz import Pieces, dense_block, refresh_norms, residual_net
from idensenet.lipschitz.conditional import ConditionalNetwork, Embedding
from idensenet.lipschitz.linear import maps_of, without_norms
from idensenet.logdet import AdaptiveLogDet, Geometric, KrylovLogDet, Poisson, RouletteLogDet, SeriesLogDet
from idensenet.solve import Anderson, Newton, Picard


def vectors():
    """Every kind of part on vectors."""
    torch.manual_seed(0)
    estimators = RouletteLogDet(Geometric(0.4), 3), KrylovLogDet(1e-4, 12)
    stack = ResidualBlock(dense_block([4], 2, 8, Pieces(), blocks=3), *estimators, Picard(1e-6, 50), ActNorm(4, 3))
    other = ResidualBlock(
        residual_net([4], [6, 6], [1, 1, 1], Pieces("elu", norm=2)), SeriesLogDet(5), AdaptiveLogDet(), Newton()
    )
    parts = [Whiten(4), stack, other, InvertibleConv1x1(4), Coupling(coupling_net([4], 8), channel_mask([4], True))]
    return Flow(Chain(parts), [4])


def images():
    """Every kind of part on images."""
    torch.manual_seed(0)
    pieces = Pieces("leakylipswish", norm=math.inf)
    stack = ResidualBlock(
        dense_block([2, 2, 2], 1, 4, pieces, blocks=2), RouletteLogDet(Poisson(2.0)), solver=Anderson(depth=3)
    )
    rest = Chain([Flatten([2, 2, 2]), Invert(Flatten([2, 2, 2])), stack])
    return Flow(Chain([Squeeze(), Split([4, 2, 2], rest)]), [1, 4, 4], [16], Chain([Logit(0.1)]), None)


def conditional():
    torch.manual_seed(0)
    inner = dense_block([2 + 5], 2, 6, Pieces(), outputs=2, blocks=2)
    parts = [ConditionalAffine(2, 3, 8), ResidualBlock(ConditionalNetwork(inner, Embedding(3, 8, 5, 2), 2))]
    return Flow(Chain(parts), [2], context=3)


@pytest.mark.parametrize("make", [vectors, images, conditional])
def test_a_flow_that_was_assembled_by_hand_comes_back_the_same(make, tmp_path):
    flow = make().eval()
    x = torch.rand(5, *flow.shape) * 0.8 + 0.1
    given = {"context": torch.randn(5, 3)} if flow.context else {}
    flow.initialize(x, **given)
    idn.save(flow, tmp_path / "model")
    back = idn.load(tmp_path / "model")
    assert [type(m) for m in back.modules()] == [type(m) for m in flow.modules()]
    assert torch.equal(back.log_prob(x, **given), flow.log_prob(x, **given))
    for ours, theirs in zip(back.stacks(), flow.stacks(), strict=True):
        for name in ("log_det", "eval_log_det", "solver"):
            assert structure.describe(getattr(ours, name)) == structure.describe(getattr(theirs, name))
        assert (ours.save, ours.blocks) == (theirs.save, theirs.blocks)
    assert back.certify() == flow.certify()


def test_a_hybrid_flow_assembled_by_hand_comes_back_with_its_classifier(tmp_path):
    flow = idn.build("toy-idensenet", classes=3).eval()
    x = torch.randn(4, 2)
    flow.config = None  # as if it had been put together by hand
    idn.save(flow, tmp_path)
    assert torch.equal(idn.load(tmp_path).classify(x), flow.classify(x))


class Doubled(Bijection):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.factor = factor

    def push(self, x, call):
        return self.factor * x, no_log_det(x) + math.log(self.factor) * x[0].numel()

    def pull(self, y, call):
        return y / self.factor, no_log_det(y) - math.log(self.factor) * y[0].numel()

    def bi_lipschitz(self, norms):
        return self.factor, self.factor


def test_classes_of_ones_own_are_registered_once_and_then_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "CLASSES", dict(structure.CLASSES))
    flow = Flow(Chain([Doubled(3.0)]), [2]).eval()
    with pytest.raises(InputError, match=r"register its class with idensenet\.register_class"):
        idn.save(flow, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    idn.register_class(Doubled)
    idn.save(flow, tmp_path / "model")
    x = torch.randn(3, 2)
    assert torch.equal(idn.load(tmp_path / "model").log_prob(x), flow.log_prob(x))
    monkeypatch.delitem(structure.CLASSES, "Doubled")
    with pytest.raises(CheckpointError, match="'Doubled', which is not known here"):
        idn.load(tmp_path / "model")


@pytest.mark.parametrize("version", [1, 99])
def test_another_format_is_one_sentence(version, tmp_path):
    idn.save(idn.build("toy-idensenet"), tmp_path)
    described = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**described, "format": version}))
    with pytest.raises(CheckpointError, match=f"has the format {version}, which this version cannot read; load it with"):
        idn.load(tmp_path)


def test_a_state_without_norms_is_whole_and_norms_are_computed_from_its_weights(tmp_path):
    flow = idn.load("digits")
    x, *_ = open_source("digits").test.batch(np.arange(20))
    state = without_norms(flow, flow.state_dict())
    assert sum(value.numel() for value in state.values()) < 1.02 * flow.num_parameters
    other = idn.models.build_config(flow.config).eval()
    other.load_state_dict(state)
    certificate = other.certify()
    assert certificate.contractive
    for mine, its in zip(maps_of(flow), maps_of(other), strict=True):
        torch.testing.assert_close(its.sigma, mine.sigma, rtol=1e-2, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(other.log_prob(x), flow.log_prob(x), rtol=0, atol=0.2)
    some = {name: value for name, value in flow.state_dict().items() if not name.endswith("left")}
    for m in maps_of(other):
        m.sigma.fill_(1e3)
        m.left.zero_()
    other.load_state_dict(some)  # a part of the norms is as good as none
    for mine, its in zip(maps_of(flow), maps_of(other), strict=True):
        refresh_norms(its)
        torch.testing.assert_close(its.sigma, mine.sigma, rtol=1e-2, atol=0)
        active = its.sigma > its.coeff  # u' W v, as far as it is computed
        torch.testing.assert_close(its.norm_product()[active].detach(), its.sigma[active], rtol=1e-2, atol=0)
    del state[next(iter(state))]
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict(state)


def test_a_weight_too_large_for_half_precision_is_refused_and_nothing_is_written(tmp_path):
    flow = idn.load("moons")
    with torch.no_grad():
        next(flow.parameters()).view(-1)[0] = 1e6
    with pytest.raises(OptionError, match="half precision"):
        idn.save(flow, tmp_path / "model", compact=True)
    assert not (tmp_path / "model" / "model.safetensors").exists()
