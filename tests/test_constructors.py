"""The front door: flows by their main sizes, and what `dir` shows."""

import inspect

import pytest
import torch

import idensenet as idn
from idensenet.errors import OptionError, ShapeError, UnknownNameError
from idensenet.logdet import ExactLogDet, KrylovLogDet, RouletteLogDet


def flows():
    torch.manual_seed(0)
    small = {"blocks": 2, "depth": 2}
    return {
        "dense": (idn.IDenseNet(3, growth=8, **small), torch.randn(40, 3), None),
        "dense, conditional": (idn.IDenseNet(3, 2, growth=8, **small), torch.randn(40, 3), torch.randn(40, 2)),
        "monotone": (idn.MonotoneFlow(3, growth=8, **small), torch.randn(40, 3), None),
        "residual": (idn.ResidualFlow(3, width=16, **small), torch.randn(40, 3), None),
        "image": (idn.ImageFlow((1, 8, 8), levels=17, blocks=(1, 1), growth=8), torch.randint(17, (40, 1, 8, 8)).byte(), None),
    }


@pytest.mark.parametrize("name", list(flows()))
def test_a_constructor_gives_a_flow_that_trains_inverts_certifies_and_is_saved(name, tmp_path):
    flow, x, context = flows()[name]
    flow.initialize(x, context)
    given = {} if context is None else {"context": context}
    back = flow.inverse(flow(x, **given)[0], **given)[0]
    assert (back - flow.dequantize(x)).abs().max() < 1e-3
    assert flow.certify().contractive
    optimizer = torch.optim.Adam(flow.train().parameters(), 5e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(12):
        loss = -flow.log_prob(x, generator, **given).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[-3:]) < losses[0]
    again = idn.load(idn.save(flow.eval(), tmp_path / "model"))
    torch.testing.assert_close(again.log_prob(x, **given), flow.log_prob(x, **given))


def test_few_features_get_exact_log_determinants_and_many_an_estimate():
    for features, training, evaluation in ((12, ExactLogDet, ExactLogDet), (13, RouletteLogDet, KrylovLogDet)):
        block = idn.IDenseNet(features, blocks=1, growth=4).stacks()[0]
        assert (type(block.log_det), type(block.eval_log_det)) == (training, evaluation)
    assert isinstance(idn.IDenseNet(2, blocks=1, log_det="adaptive").stacks()[0].log_det, idn.AdaptiveLogDet)


def test_a_hybrid_image_flow_classifies():
    flow = idn.ImageFlow((1, 8, 8), levels=17, blocks=(1, 1), growth=8, classes=3)
    x = torch.randint(17, (8, 1, 8, 8)).byte()
    flow.initialize(x)
    assert isinstance(flow, idn.HybridFlow)
    assert flow.classify(x).shape == (8, 3)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: idn.IDenseNet(0), ShapeError, "shape"),
        (lambda: idn.IDenseNet(2, activation="swash"), UnknownNameError, "swash"),
        (lambda: idn.IDenseNet(2, lipschitz=1.0), OptionError, "strictly between 0 and 1"),
        (lambda: idn.IDenseNet(2, log_det="exacct"), OptionError, "did you mean 'exact'"),
        (lambda: idn.ImageFlow((3, 30, 30)), ShapeError, "multiples of 4"),
    ],
)
def test_wrong_sizes_are_one_sentence(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_dir_shows_public_names_and_each_has_a_docstring():
    shown = set(dir(idn))
    assert shown == {*idn.__all__, "__version__"}
    assert not [name for name in shown if inspect.ismodule(getattr(idn, name))]
    assert not [name for name in idn.__all__ if not inspect.getdoc(getattr(idn, name))]
    for name in ("ResidualBlock", "DenseBlock", "ActNorm", "Chain", "RouletteLogDet", "Anderson"):
        assert name in shown
