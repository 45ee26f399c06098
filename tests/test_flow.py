import copy
import math
import pickle

import pytest
import torch

import idensenet as idn
from brute import log_abs_det
from flows import data, images, points, small_images, small_toy, train
from idensenet.bijections import ActNorm, Affine, Chain, Logit
from idensenet.errors import CheckpointError, InputError, UninitializedError
from idensenet.flow import Flow, bits_per_dim
from idensenet.lipschitz import DenseLayer, LipschitzMap, norms


@pytest.fixture(scope="module")
def digits():
    return small_images()


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# The density


def grid_integral(flow, density, steps=120):
    """The integral of a density over a box that holds practically all samples."""
    samples = flow.sample(4000, generator())
    centre, half = samples.mean(0), 1.8 * (samples - samples.mean(0)).abs().amax(0)
    ticks = (torch.arange(steps, dtype=flow.dtype) + 0.5) / steps * 2 - 1
    grid = torch.cartesian_prod(ticks, ticks) * half + centre
    with torch.no_grad():
        total = sum(float(density(part).exp().double().sum()) for part in grid.split(8192))
    return total * float((2 * half / steps).prod())


@pytest.mark.parametrize("name", [name for name in idn.recipes() if name.startswith("toy-")])
def test_the_density_integrates_to_one_before_and_after_training(name):
    flow = idn.build(name)
    assert grid_integral(flow, flow.log_prob) == pytest.approx(1, abs=1e-3)
    train(flow, 20, 128, lr=5e-3)
    assert grid_integral(flow, flow.log_prob) == pytest.approx(1, abs=1e-3)
    without = grid_integral(flow, lambda x: flow.log_prob_terms(x)["base"])
    assert abs(without - 1) > 3e-3  # and it would not without its log-determinant


def test_the_density_of_levels_plus_noise_integrates_to_one():
    """Only if every term is counted: the division by the levels, the logit, the base."""
    flow = Flow(Chain([]), (1, 1, 1), None, Chain([Affine(torch.tensor(0.0), torch.tensor(4.0)), Logit(0.0)]), levels=4)
    flow = flow.double().eval()
    x = (torch.arange(40000, dtype=torch.float64) + 0.5).view(-1, 1, 1, 1) / 10000
    assert float(flow.log_prob(x, dequantized=True).exp().sum()) / 10000 == pytest.approx(1, abs=1e-6)


def test_log_prob_is_the_change_of_variables_formula():
    flow = small_toy().double()
    x = torch.randn(5, 2, dtype=torch.float64)
    z, log_det = flow(x)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1) + log_abs_det(lambda a: flow(a)[0], x)
    torch.testing.assert_close(flow.log_prob(x), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(flow.inverse(z)[1], -log_det, rtol=1e-9, atol=1e-9)


def test_an_exact_image_flow_counts_everything_from_the_levels_on():
    flow = small_images(shape=(1, 4, 4), logdet={"eval_method": "exact"}).double()
    x = images(flow, 2)
    smooth = flow.dequantize(x)
    z = flow(x)[0]
    whole = log_abs_det(lambda a: flow(a, dequantized=True)[0], smooth)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(z).flatten(1).sum(1) + whole
    torch.testing.assert_close(flow.log_prob(x), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(flow.inverse(z)[0], smooth, rtol=0, atol=1e-10 * flow.levels)


def test_the_terms_add_up_to_log_prob(digits):
    x = images(digits, 3)
    terms = digits.log_prob_terms(x)
    assert set(terms) == {"base", "log_det", "preprocess", "levels"}
    torch.testing.assert_close(sum(terms.values()), digits.log_prob(x), rtol=1e-6, atol=1e-3)
    assert terms["levels"].tolist() == pytest.approx([-64 * math.log(17)] * 3)
    toy = small_toy()
    points_terms = toy.log_prob_terms(points(3))
    torch.testing.assert_close(sum(points_terms.values()), toy.log_prob(points(3)))
    assert points_terms["levels"].tolist() == points_terms["preprocess"].tolist() == [0, 0, 0]


def test_bits_per_dim_of_a_flow_that_does_nothing_by_hand():
    flow = Flow(Chain([]), (3, 4, 4), None, Affine(torch.tensor(0.0), torch.tensor(256.0)), 256).eval().double()
    x = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    for i, pixels in enumerate(flow.dequantize(x)):
        nats = sum(0.5 * (p / 256) ** 2 + 0.5 * math.log(2 * math.pi) + math.log(256) for p in pixels.flatten().tolist())
        assert float(flow.bits_per_dim(x)[i]) == pytest.approx(nats / 48 / math.log(2), rel=1e-12)
    assert flow.bits_per_dim(x).shape == (2,)
    torch.testing.assert_close(bits_per_dim(flow.log_prob(x), 48), flow.bits_per_dim(x))


# Evaluation is a function of the data


def test_noise_is_added_inside_the_flow_and_never_leaves_the_level(digits):
    x = images(digits, 4)
    smooth = digits.dequantize(x)
    assert smooth.dtype == torch.float32
    assert torch.equal(smooth.floor().to(torch.uint8), x)
    noise = smooth - x
    assert float(noise.std()) == pytest.approx(12**-0.5, rel=0.15)
    assert len(noise.unique()) > 200


def test_evaluation_gives_the_same_bits_again_whatever_ran_before(digits):
    x = images(digits, 4)
    first = digits.log_prob(x)
    torch.manual_seed(99)
    digits.sample(2)
    assert torch.equal(digits.log_prob(x), first)


def test_evaluation_does_not_depend_on_the_batch(digits):
    x = images(digits, 6)
    together = digits.log_prob(x)
    alone = torch.cat([digits.log_prob(x[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=0)
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    torch.testing.assert_close(digits.log_prob(x[order]), together[order], rtol=1e-5, atol=0)
    moved = digits.log_prob(images(digits, 6, seed=1))
    assert float((moved - together).detach().abs().min()) > 1e-3


def test_another_seed_gives_other_noise(digits):
    flow = copy.deepcopy(digits)
    flow.seed = 1
    x = images(digits, 4)
    assert float((flow.dequantize(x) - digits.dequantize(x)).abs().mean()) > 0.1
    assert float((flow.log_prob(x) - digits.log_prob(x)).abs().min()) > 0


def test_errors_of_different_samples_are_independent_and_unbiased():
    torch.manual_seed(0)
    roulette = {"eval_method": "roulette", "eval_terms": 1, "law": "geometric", "law_parameter": 0.5}
    flow = idn.build("toy-idensenet", shape=(6,), blocks=(1,), growth=8, depth=1, logdet=roulette).double()
    exact = copy.deepcopy(flow)
    exact.body.parts[0].parts[0].eval_log_det = exact.body.parts[0].parts[0].log_det
    x = torch.randn(6, 6, dtype=torch.float64)
    x[5] = x[4]  # the same content, so the same error: what dependence looks like
    errors = []
    for seed in range(400):
        flow.seed = seed
        errors.append((flow.log_prob(x) - exact.log_prob(x)).detach())
    errors = torch.stack(errors)
    assert float(errors.std(0).min()) > 1e-4
    assert float((errors.mean(0) / (errors.std(0) / 20)).abs().max()) < 4
    correlation = torch.corrcoef(errors.T)
    assert float(correlation[4, 5]) == pytest.approx(1)
    assert float((correlation[:5, :5] - torch.eye(5)).abs().max()) < 4 / 20


def test_training_draws_from_the_generator_and_from_nothing_else(digits):
    flow, x = copy.deepcopy(digits).train(), images(digits, 4)
    first = flow.log_prob(x, generator(3))
    torch.manual_seed(123)
    assert torch.equal(flow.log_prob(x, generator(3)), first)
    assert not torch.equal(flow.log_prob(x, generator(4)), first)
    state = generator(3)
    flow.log_prob(x, state)
    assert not torch.equal(flow.log_prob(x, state), first)  # it moves on
    before = torch.get_rng_state()
    flow.log_prob(x, generator(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_may_be_given_in_evaluation_too(digits):
    x = images(digits, 4)
    assert torch.equal(digits.dequantize(x, generator(1)), digits.dequantize(x, generator(1)))
    assert not torch.equal(digits.dequantize(x, generator(1)), digits.dequantize(x))
    assert torch.equal(digits.log_prob(x, generator(1)), digits.log_prob(x, generator(1)))


# Samples


def test_samples_are_levels_or_floats_and_repeat_with_the_generator(digits):
    x = digits.sample(5, generator(1))
    assert x.dtype == torch.uint8
    assert x.shape == (5, 1, 8, 8)
    assert int(x.max()) < 17
    assert torch.equal(digits.sample(5, generator(1)), x)
    assert not torch.equal(digits.sample(5, generator(2)), x)
    toy = small_toy()
    assert toy.sample(3).dtype == torch.float32
    assert toy.double().sample(3).dtype == torch.float64
    assert not toy.sample(3).requires_grad


def test_a_low_temperature_keeps_samples_together():
    flow = small_toy()
    warm, cold = flow.sample(500, generator(), temperature=1.0), flow.sample(500, generator(), temperature=0.1)
    assert float(cold.std(0).max()) < 0.3 * float(warm.std(0).min())


def test_samples_follow_the_density():
    flow = small_toy()
    train(flow, 20, 64, lr=1e-2)
    x, log_prob = flow.sample_and_log_prob(4000, generator())
    inside = x.detach().abs().amax(1) < 1
    ticks = (torch.arange(60) + 0.5) / 30 - 1
    mass = float(flow.log_prob(torch.cartesian_prod(ticks, ticks)).exp().sum()) / 900
    assert float(inside.float().mean()) == pytest.approx(mass, abs=4 * 0.5 / 4000**0.5)
    assert log_prob.shape == (4000,)


def test_the_log_prob_of_samples_is_that_of_the_density():
    flow = small_toy().double()
    x, log_prob = flow.sample_and_log_prob(6, generator())
    torch.testing.assert_close(log_prob, flow.log_prob(x), rtol=1e-9, atol=1e-9)
    flow = small_images(shape=(1, 4, 4), logdet={"eval_method": "exact"}).double()
    x, log_prob = flow.sample_and_log_prob(8, generator())
    assert x.dtype == torch.float64
    inside = ((x >= 0) & (x <= flow.levels)).flatten(1).all(1)  # the logit leaves a margin around the levels
    assert int(inside.sum()) >= 2
    torch.testing.assert_close(log_prob[inside], flow.log_prob(x[inside], dequantized=True), rtol=1e-8, atol=1e-8)


def test_the_gradient_through_samples_is_that_of_finite_differences():
    flow = small_toy(activation="clipswish").double()
    torch.manual_seed(5)
    with torch.no_grad():
        for m in flow.modules():
            if isinstance(m, LipschitzMap):
                m.weight.mul_(4)
    weights = torch.randn(4, 3, dtype=torch.float64)

    def loss():
        x, log_prob = flow.sample_and_log_prob(4, generator())
        return (weights * torch.cat([x, log_prob[:, None]], 1)).sum()

    parameters = list(flow.parameters())
    grads = torch.autograd.grad(loss(), parameters)
    for parameter, grad in zip(parameters, grads, strict=True):
        direction = torch.randn_like(parameter)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * 1e-5 * direction)
                values.append(loss())
                parameter.sub_(sign * 1e-5 * direction)
        numeric = float(values[0] - values[1]) / 2e-5
        assert float((grad * direction).sum()) == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def test_sample_and_log_prob_in_training_draws_from_the_generator_only():
    flow = small_toy(shape=(4,), logdet={"method": "roulette", "eval_method": "roulette"}).train()
    first = flow.sample_and_log_prob(3, generator(1))[1]
    torch.manual_seed(77)
    assert torch.equal(flow.sample_and_log_prob(3, generator(1))[1], first)


def test_an_empty_batch_goes_everywhere(digits):
    for flow in (small_toy(), digits, copy.deepcopy(digits).train()):
        x = data(flow, 2)[:0]
        z, log_det = flow(x)
        assert z.shape == (0, *flow.latent_shape)
        assert log_det.shape == flow.log_prob(x).shape == flow.bits_per_dim(x).shape == (0,)
        assert flow.inverse(z)[0].shape == (0, *flow.shape)
        assert flow.sample(0).shape == (0, *flow.shape)
        assert flow.sample_and_log_prob(0)[1].shape == (0,)
        assert all(term.shape == (0,) for term in flow.log_prob_terms(x).values())


def test_an_empty_batch_cannot_initialise():
    flow = idn.build("digits-idensenet", blocks=(1, 1), growth=4)
    with pytest.raises(InputError, match=r"empty batch"):
        flow.initialize(images(flow, 1)[:0])
    with pytest.raises(UninitializedError):
        flow.log_prob(images(flow, 1))


def test_initialize_standardises_and_a_second_one_changes_nothing():
    torch.manual_seed(0)
    flow = idn.build("digits-idensenet", blocks=(1, 1), growth=8)
    x = images(flow, 32)
    flow.initialize(x)
    first = next(m for m in flow.modules() if isinstance(m, ActNorm))
    y = first(flow.preprocess.encode(flow.dequantize(x)))[0]
    assert float(y.mean().detach()) == pytest.approx(0, abs=1e-5)
    assert float(y.std(unbiased=False).detach()) == pytest.approx(1, abs=1e-4)
    before = copy.deepcopy(flow.state_dict())
    flow.initialize(images(flow, 32, seed=5))
    assert all(torch.equal(before[k], v) for k, v in flow.state_dict().items())


def test_standardising_is_part_of_the_density_and_only_of_flows_that_ask_for_it():
    flow = small_toy(preprocess="standardize").double()
    x = torch.tensor([[100.0, 0.001]]) * points(256).double()
    flow.standardize(x)
    y = flow.preprocess.encode(x)
    torch.testing.assert_close(y.std(0, unbiased=False), torch.ones(2, dtype=torch.float64))
    plain = small_toy().double()
    expected = plain.log_prob(y) - x.std(0, unbiased=False).log().sum()
    torch.testing.assert_close(flow.log_prob(x), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match=r"preprocess='standardize'"):
        plain.standardize(x)


def test_gradients_reach_every_parameter(digits):
    for flow in (copy.deepcopy(digits).train(), small_toy().train(), copy.deepcopy(digits)):
        flow.zero_grad()
        (-flow.log_prob(data(flow, 4), generator()).mean()).backward()
        for name, p in flow.named_parameters():
            assert p.grad is not None, name
            assert bool(torch.isfinite(p.grad).all()), name
            assert float(p.grad.abs().max()) > 0, name


# The concatenation


def test_the_concatenation_learns_only_when_it_is_switched_on():
    flow = small_toy()
    ks = [m.k for m in flow.modules() if isinstance(m, DenseLayer)]
    flow.learn_concatenation(False)
    train(flow, 2, 16)
    assert all(k.grad is None and k.tolist() == [[1, 1], [1, 1]] for k in ks)
    flow.learn_concatenation()
    train(flow, 2, 16)
    assert all(k.grad is not None and bool((k != 1).any(1).all()) for k in ks)  # in each block
    flow.learn_concatenation(False)
    assert all(k.grad is None for k in ks)


def test_a_fixed_concatenation_stays_fixed():
    flow = small_toy(learnable_concatenation=False)
    flow.learn_concatenation()
    train(flow, 2, 16)
    layers = [m for m in flow.modules() if isinstance(m, DenseLayer)]
    assert all(m.k.tolist() == [[1, 1], [1, 1]] and not m.k.requires_grad for m in layers)


# Guarantees


def measured(stack, k, x):
    """The largest singular value of any Jacobian of g met at x."""
    from brute import jacobians

    return float(torch.linalg.matrix_norm(jacobians(stack.prepare()[k], x), 2).max())


def test_certificates_hold_before_and_after_training():
    flow = small_toy().double()
    bounds = []
    for _ in range(2):
        certificate = flow.certify()
        assert certificate.contractive
        bounds.append(certificate.L)
        for row, (name, stack, k) in zip(certificate.blocks, flow.named_blocks(), strict=True):
            assert row.name == name
            assert measured(stack, k, torch.randn(32, 2, dtype=torch.float64)) <= row.L < 1
        x, other = torch.randn(2, 256, 2, dtype=torch.float64)
        ratio = (flow(x)[0] - flow(other)[0]).norm(dim=1) / (x - other).norm(dim=1)
        assert certificate.lower <= float(ratio.min())
        assert float(ratio.max()) <= certificate.upper
        train(flow, 30, 64, lr=1e-2)
    assert bounds[0] != bounds[1]


def test_the_certificate_prints_a_row_for_every_block(digits):
    text = str(digits.certify())
    names = [name for name, _, _ in digits.named_blocks()]
    assert names == ["1.1", "2.1", "3.1"]
    for name in names:
        assert f" {name} " in text
    assert "every block is contractive" in text
    assert "NOT" not in text


@pytest.mark.parametrize("cheat", ["coeff", "sigma"])
def test_a_block_that_does_not_contract_is_reported_and_not_hidden(cheat):
    flow = small_toy(blocks=(3,))
    _, stack, k = flow.named_blocks()[1]
    assert (stack.blocks, k) == (3, 1)
    maps = [m for m in stack.modules() if isinstance(m, LipschitzMap)]
    with torch.no_grad():
        for m in maps:
            m.weight[k].mul_(100)
            if cheat == "coeff":
                m.coeff = 3.0
    if cheat == "sigma":
        flow.certify()  # norms are up to date now, so a wrong sigma is not noticed by the layers themselves
        for m in maps:
            m.sigma[k] = 0.5
    certificate = flow.certify()
    assert not certificate.contractive
    assert [row.name for row in certificate.blocks if not row.contractive] == ["1.2"]
    assert certificate.L > 1
    assert certificate.lower == 0
    text = str(certificate)
    assert "NOT CERTIFIED" in text
    assert "not contractive: 1.2" in text


def test_a_flow_without_residual_blocks_has_an_empty_certificate():
    certificate = idn.build("cifar10-coupling-hybrid", shape=(3, 8, 8), blocks=(1, 1), width=8, head_width=4).certify()
    assert certificate.blocks == ()
    assert certificate.L == 0
    assert certificate.contractive


def test_a_flow_may_have_a_single_bijection_as_its_body():
    stack = small_toy().stacks()[0]
    flow = Flow(stack, (2,)).eval()
    assert flow.named_blocks() == [("1.1", stack, 0), ("1.2", stack, 1)]
    assert flow.certify().contractive


# Copies and files


def through_state_dict(flow):
    torch.manual_seed(77)
    other = idn.models.build_config(flow.config)
    other.load_state_dict(flow.state_dict())
    return other


@pytest.mark.parametrize("copied", [through_state_dict, lambda f: pickle.loads(pickle.dumps(f)), copy.deepcopy])
def test_copies_give_the_same_bits_and_go_their_own_way(digits, copied):
    x = images(digits, 3)
    expected = digits.log_prob(x)
    other = copied(digits)
    assert torch.equal(other.log_prob(x), expected)
    train(other, 1, 4)
    assert not torch.equal(other.log_prob(x), expected)
    assert torch.equal(digits.log_prob(x), expected)


def test_a_flow_goes_to_float64_and_back(digits):
    x = images(digits, 3)
    flow = copy.deepcopy(digits).to(torch.float64)
    assert flow.dtype == torch.float64
    z, log_det = flow(x)
    assert z.dtype == log_det.dtype == torch.float64
    smooth = flow.dequantize(x)
    assert float((flow.inverse(z)[0] - smooth).abs().max()) < 1e-10 * flow.levels
    back = flow.to(torch.float32)
    torch.testing.assert_close(back.log_prob(x), digits.log_prob(x), rtol=1e-3, atol=0)  # norms to 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_model_loads_to_the_same_bits_without_power_iteration(tmp_path, monkeypatch, dtype):
    calls = []
    real = norms.convolution_norms
    monkeypatch.setattr(norms, "convolution_norms", lambda *args: calls.append(1) or real(*args))
    flow = small_images().to(dtype)
    train(flow, 2, 4)
    x = images(flow, 3)
    expected = flow.log_prob(x)
    assert calls  # the spy sees them
    assert idn.save(flow, tmp_path / "a" / "b") == tmp_path / "a" / "b"
    calls.clear()
    other = idn.load(tmp_path / "a" / "b")
    assert other.dtype == dtype
    assert not other.training
    assert torch.equal(other.log_prob(x), expected)
    assert torch.equal(other.sample(2, generator()), flow.sample(2, generator()))
    assert not calls
    assert other.config == flow.config
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == ["model.json", "model.safetensors"]


def test_saving_again_replaces_the_model(tmp_path):
    flow = small_toy()
    idn.save(flow, tmp_path)
    train(flow, 1, 8)
    idn.save(flow, tmp_path)
    x = points(4)
    assert torch.equal(idn.load(tmp_path).log_prob(x), flow.log_prob(x))


def test_a_norm_of_infinity_survives_the_file(tmp_path):
    flow = small_toy(norm=math.inf)
    idn.save(flow, tmp_path)
    other = idn.load(tmp_path)
    assert other.certify().norm == math.inf
    assert torch.equal(other.log_prob(points(4)), flow.log_prob(points(4)))


def truncate(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def replace(old, new):
    def change(path):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.json", lambda p: p.unlink()),
        ("model.safetensors", lambda p: p.unlink()),
        ("model.json", truncate),
        ("model.safetensors", truncate),
        ("model.safetensors", lambda p: p.write_bytes(b"")),
        ("model.json", lambda p: p.write_bytes(b"\xff\xfe\x00")),
        ("model.json", lambda p: p.write_text("[]")),
        ("model.json", lambda p: p.write_text("{}")),
        ("model.json", replace('"growth": 4', '"growth": 6')),
        ("model.json", replace('"growth": 4', '"groth": 4')),
        ("model.json", replace('"growth": 4', '"growth": "much"')),
        ("model.json", replace('"float32"', '"float31"')),
    ],
)
def test_a_damaged_model_is_a_checkpoint_error_that_names_the_folder(tmp_path, file, damage):
    idn.save(small_toy(), tmp_path)
    damage(tmp_path / file)
    with pytest.raises(CheckpointError) as caught:
        idn.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_holds_no_model(tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.json is missing.*; give the folder"):
        idn.load(tmp_path / "nothing")


def test_a_flow_made_by_hand_is_saved_and_loaded_to_the_same_bits(tmp_path):
    flow = Flow(Chain([ActNorm(2), *small_toy(actnorm=True).stacks()]), (2,)).eval()
    flow.initialize(points(64))
    other = idn.load(idn.save(flow, tmp_path / "new"))
    assert torch.equal(other.log_prob(points(4)), flow.log_prob(points(4)))


# Factoring out


def test_factoring_out_round_trips_and_its_log_det_is_that_of_the_jacobian():
    torch.manual_seed(0)
    flow = idn.build(
        "digits-idensenet", shape=(1, 8, 8), blocks=(1, 1, 1), growth=4, fc_blocks=1, fc_first=4, fc_growth=4, factor_out=True,
        logdet={"eval_method": "exact"},
    ).double()  # fmt: skip
    assert flow.latent_shape == (64,)
    x = images(flow, 8)
    flow.initialize(x)
    x = x[:2]
    z, log_det = flow(x)
    smooth = flow.dequantize(x)
    back, inverse_log_det = flow.inverse(z)
    torch.testing.assert_close(back, smooth, rtol=0, atol=1e-10 * flow.levels)
    torch.testing.assert_close(inverse_log_det, -log_det, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(log_det, log_abs_det(lambda a: flow(a, dequantized=True)[0], smooth), rtol=1e-9, atol=1e-9)
    latent = torch.randn_like(z)
    torch.testing.assert_close(flow.body.encode(flow.body.decode(latent)), latent, rtol=1e-10, atol=1e-10)
    assert flow.sample(2).shape == (2, 1, 8, 8)
    certificate = flow.certify()
    assert certificate.contractive
    assert [row.name for row in certificate.blocks] == ["1.1", "2.1", "3.1", "4.1"]


def test_one_scale_has_nothing_to_factor_out():
    assert idn.build("digits-idensenet", blocks=(1,), growth=4, fc_blocks=0, factor_out=True).latent_shape == (1, 8, 8)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("call", ["initialize", "standardize"])
def test_what_sets_the_state_for_good_is_looked_at_in_training_too(call, bad):
    flow = idn.build("toy-idensenet", actnorm=True, preprocess="standardize").train()
    x = torch.randn(20, 2)
    x[3, 1] = bad
    with pytest.raises(InputError, match="row 3"):
        getattr(flow, call)(x)
    with pytest.raises(InputError, match="empty batch"):
        getattr(flow, call)(x[:0])
    assert all(bool(torch.isfinite(value).all()) for value in flow.state_dict().values())
