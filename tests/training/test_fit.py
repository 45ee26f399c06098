"""`idn.fit`: any flow, on tensors, arrays and loaders."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import idensenet as idn
from idensenet.data.toy import toy_set
from idensenet.errors import DataError, OptionError, ShapeError

pytestmark = pytest.mark.filterwarnings("ignore:The held-out loss was still falling")
SHORT = {"steps": 40, "batch_size": 100, "verbose": False}


def moons(n=600):
    return toy_set("moons").sample(n, torch.Generator().manual_seed(0))


def small(**options):
    torch.manual_seed(0)
    return idn.IDenseNet(2, blocks=2, depth=2, growth=16, **options)


def test_a_fit_gains_and_keeps_the_best_weights():
    flow = small()
    found = idn.fit(flow, moons(), **SHORT)
    scores = [score for _, score in found.history]
    assert min(scores) < scores[0] - 0.1
    assert not flow.training
    best = dict(found.history)[found.best]
    assert best == min(scores)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:60]
    with torch.no_grad():
        assert float(-flow.log_prob(moons()[order]).mean()) == pytest.approx(best, abs=1e-5)  # on the held-out rows


def test_arrays_and_loaders_give_the_same_fit_as_a_tensor():
    x = moons()
    forms = [x, x.double().numpy(), DataLoader(TensorDataset(x), 50), [x[:100], x[100:]]]
    found = [idn.fit(small(), form, **SHORT).history for form in forms]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0] != idn.fit(small(), x, **{**SHORT, "seed": 1}).history


def test_conditional_flows_take_contexts_from_arguments_and_from_loaders():
    x, c = moons(), torch.randn(600, 3, generator=torch.Generator().manual_seed(1))
    histories = [
        idn.fit(small(context=3), data, context, **SHORT).history
        for data, context in ((x, c), (x, c.numpy()), (DataLoader(TensorDataset(x, c), 50), None))
    ]
    assert histories[0] == histories[1] == histories[2]
    with pytest.raises(DataError, match="600 samples but 5 contexts"):
        idn.fit(small(context=3), x, c[:5], **SHORT)


def test_whitening_is_fitted_once_and_images_are_integers():
    flow = idn.build("toy-idensenet-clipswish", blocks=(1,), preprocess="whiten")
    idn.fit(flow, moons() * 5 + 100, **{**SHORT, "steps": 4})
    whitening = next(iter(flow.preprocess))
    loc = whitening.loc.clone()
    assert float(loc.mean()) > 50
    idn.fit(flow, moons() * 5 + 90, **{**SHORT, "steps": 4})
    assert torch.equal(whitening.loc, loc)
    images = np.random.default_rng(0).integers(0, 17, (40, 1, 8, 8), dtype=np.uint8)
    found = idn.fit(idn.ImageFlow((1, 8, 8), levels=17, blocks=(1, 1), growth=8), images, steps=3, verbose=False)
    assert len(found.history) >= 2


def test_wrong_input_is_a_sentence_and_progress_is_lines_without_a_terminal(capsys):
    for options, says in (({"steps": 0}, "steps=0"), ({"held_out": 1.0}, "held_out=1.0"), ({"learning_rate": 0.0}, "rate=0.0")):
        with pytest.raises(OptionError, match=says):
            idn.fit(small(), moons(), **{**SHORT, **options})
    with pytest.raises(DataError, match="5 samples are too few"):
        idn.fit(small(), moons(5), **SHORT)
    with pytest.raises(DataError, match="no batch"):
        idn.fit(small(), [], **SHORT)
    with pytest.raises(ShapeError):
        idn.fit(small(), torch.randn(50, 3), **SHORT)
    idn.fit(small(), moons(), **{**SHORT, "verbose": True})
    assert "step 40 of 40: held-out loss" in capsys.readouterr().err
