"""Where random numbers come from: functions of the data in evaluation, generators in training."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idensenet.draws import GeneratorDraws, KeyedDraws, content_keys, default_draws, mix

KINDS = ["uniform", "normal", "rademacher"]
COUNT = 200_000


def numbers(draws, kind, like, copies=1):
    return getattr(draws, kind)(like, copies)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_gets_the_same_numbers_in_every_batch(kind, dtype):
    x = torch.randint(0, 255, (6, 2, 3)).to(dtype)
    like = torch.zeros(6, 4)
    whole = numbers(KeyedDraws.of(x), kind, like, 2)
    for index in ([3], [5, 0], [1, 1, 4]):
        part = numbers(KeyedDraws.of(x[index]), kind, like[index], 2)
        assert torch.equal(part, whole[:, index])
    assert torch.equal(numbers(KeyedDraws.of(x.clone()), kind, like, 2), whole)
    assert torch.equal(KeyedDraws.of(x).lengths(6, x.device)[[2]], KeyedDraws.of(x[[2]]).lengths(1, x.device))


def test_strides_and_views_make_no_difference():
    x = torch.randn(4, 3, 5)
    assert torch.equal(content_keys(x), content_keys(x.transpose(1, 2).contiguous().transpose(1, 2)))
    assert torch.equal(content_keys(x), content_keys(x.flatten(1)))
    assert not bool((content_keys(x) == content_keys(x.transpose(1, 2))).any())


@pytest.mark.parametrize("kind", KINDS)
def test_seed_fold_and_content_each_give_other_numbers(kind):
    x, like = torch.randn(3, 5), torch.zeros(3, 100)
    base = KeyedDraws.of(x)
    want = numbers(base, kind, like)
    nudged = x.clone()
    nudged[:, 2] = torch.nextafter(nudged[:, 2], nudged[:, 2] + 1)
    others = [
        KeyedDraws.of(x, seed=1),
        KeyedDraws.of(x, seed=-1),
        KeyedDraws.of(x, seed=2**70 + 3),
        base.fold(0),
        base.fold(1),
        base.fold(0).fold(1),
        base.fold(1).fold(0),
        KeyedDraws.of(nudged),
        KeyedDraws.of(x.roll(1, 1)),
    ]
    results = [want, *(numbers(each, kind, like) for each in others)]
    for i, a in enumerate(results):
        for b in results[:i]:
            assert float((a == b).double().mean()) < 0.8  # signs agree half of the time; one standard error is 0.03
    assert torch.equal(numbers(KeyedDraws.of(x), kind, like), want)


def test_samples_with_other_content_have_other_keys():
    x = torch.cartesian_prod(*[torch.arange(16)] * 4)
    assert len(content_keys(x).unique()) == len(x)
    assert len(content_keys(x.float()).unique()) == len(x)
    assert len(content_keys(x.double() / 7).unique()) == len(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_both_zeros_are_the_same_content(dtype):
    assert torch.equal(
        content_keys(torch.tensor([[0.0, 1.0]], dtype=dtype)), content_keys(torch.tensor([[-0.0, 1.0]], dtype=dtype))
    )


def test_keys_are_computed_once_and_only_if_a_number_is_asked_for(monkeypatch):
    from idensenet import draws as module

    calls = []
    monkeypatch.setattr(module, "content_keys", lambda *args: calls.append(1) or content_keys(*args))
    x = torch.randn(3, 2)
    source = KeyedDraws.of(x)
    folded = source.fold(1)
    assert not calls
    first = folded.normal(x)
    assert torch.equal(source.fold(1).normal(x), first)
    assert torch.equal(folded.normal(x), first)
    assert len(calls) == 1


def within(sample, expected, error, times=4):
    """A mean over draws lies within some standard errors of what is expected."""
    return abs(float(sample) - expected) <= times * error


def sources():
    x = torch.arange(200.0)[:, None]
    return {
        "keyed": KeyedDraws.of(x),
        "keyed, folded": KeyedDraws.of(x, seed=5).fold(3),
        "generator": GeneratorDraws(torch.Generator().manual_seed(0)),
    }


@pytest.mark.parametrize("source", sources())
@pytest.mark.parametrize(
    ("kind", "mean", "variance", "fourth"),
    [("uniform", 0.5, 1 / 12, 1 / 80), ("normal", 0.0, 1.0, 3.0), ("rademacher", 0.0, 1.0, 1.0)],
)
def test_moments(source, kind, mean, variance, fourth):
    x = numbers(sources()[source], kind, torch.zeros(200, COUNT // 200, dtype=torch.float64)).flatten() - mean
    assert within(x.mean(), 0, math.sqrt(variance / COUNT))
    spread = math.sqrt((fourth - variance**2) / COUNT)  # standard error of the second moment
    assert within(x.square().mean(), variance, spread + 1e-12)
    skew = {"uniform": 1 / 448, "normal": 15.0, "rademacher": 1.0}[kind]  # the sixth central moment
    assert within((x**3).mean(), 0, math.sqrt(skew / COUNT))
    if kind == "normal":
        assert within((x**4).mean(), 3, math.sqrt(96 / COUNT))


@pytest.mark.parametrize("source", sources())
def test_uniforms_fill_their_interval_evenly(source):
    u = numbers(sources()[source], "uniform", torch.zeros(200, COUNT // 200, dtype=torch.float64)).flatten()
    counts = torch.histc(u, 50, 0, 1)
    chi = float(((counts - COUNT / 50) ** 2 / (COUNT / 50)).sum())
    assert within(chi, 49, math.sqrt(2 * 49))
    lengths = KeyedDraws.of(torch.arange(10_000.0)[:, None]).lengths(10_000, u.device)
    assert lengths.dtype == torch.float64
    assert within(lengths.mean(), 0.5, math.sqrt(1 / 12 / 10_000))


def correlation(a, b):
    a, b = a.flatten().double(), b.flatten().double()
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


@pytest.mark.parametrize("kind", KINDS)
def test_samples_folds_copies_and_neighbours_are_uncorrelated(kind):
    x, like = torch.arange(200.0)[:, None], torch.zeros(200, 500, dtype=torch.float64)
    draws = KeyedDraws.of(x)
    here = numbers(draws, kind, like, 2)
    error = 4 / math.sqrt(like.numel())  # one over root n is the standard error of a correlation of nothing
    others = {
        "next sample": here[0].roll(1, 0),
        "next number": here[0].roll(1, 1),
        "copy": here[1],
        "fold 0": numbers(draws.fold(0), kind, like)[0],
        "fold 1": numbers(draws.fold(1), kind, like)[0],
        "seed": numbers(KeyedDraws.of(x, 1), kind, like)[0],
    }
    for name, other in others.items():
        assert abs(correlation(here[0], other)) < error, name
    assert abs(correlation(numbers(draws.fold(0), kind, like)[0], others["fold 1"])) < error
    assert correlation(here[0], numbers(draws, kind, like, 2)[0]) == pytest.approx(1)


def test_kinds_drawn_for_one_sample_are_uncorrelated():
    draws, like = KeyedDraws.of(torch.arange(200.0)[:, None]), torch.zeros(200, 500, dtype=torch.float64)
    found = [numbers(draws, kind, like) for kind in KINDS]
    for i in range(3):
        for j in range(i):
            assert abs(correlation(found[i], found[j])) < 4 / math.sqrt(like.numel())


def test_uniforms_stay_below_one_in_float32():
    draws = KeyedDraws(lambda: torch.zeros(1, dtype=torch.int64))
    draws._unit = lambda stream, count: torch.tensor([[1 - 2.0**-53, 0.0, 0.5]], dtype=torch.float64)
    found = draws.uniform(torch.zeros(1, 3))
    assert found.dtype == torch.float32
    assert found[0, 0, 0] < 1
    assert float(torch.tensor(1 - 2.0**-53, dtype=torch.float64).float()) == 1.0  # what plain rounding would give
    assert found.flatten()[1:].tolist() == [0.0, 0.5]
    u = KeyedDraws.of(torch.arange(2000.0)[:, None]).uniform(torch.zeros(2000, 500))
    assert float(u.min()) >= 0
    assert float(u.max()) < 1


@given(
    shape=st.lists(st.integers(1, 4), min_size=0, max_size=3),
    batch=st.integers(0, 3),
    copies=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    kind=st.sampled_from(KINDS),
    keyed=st.booleans(),
)
def test_shapes_and_types_are_those_asked_for(shape, batch, copies, dtype, kind, keyed):
    like = torch.randn(batch, *shape, dtype=dtype)
    draws = KeyedDraws.of(like) if keyed else GeneratorDraws(torch.Generator().manual_seed(1))
    found = numbers(draws, kind, like, copies)
    assert found.shape == (copies, *like.shape)
    assert found.dtype == dtype
    if kind == "rademacher":
        assert set(found.flatten().tolist()) <= {-1.0, 1.0}
    assert bool(torch.isfinite(found).all())


@given(start=st.integers(-(2**63), 2**63 - 20_000))
def test_mix_has_no_collisions(start):
    x = torch.arange(start, start + 10_000)
    assert len(mix(x).unique()) == len(x)


def unmixed(x):
    """The inverse of mix, in Python integers."""
    mask = (1 << 64) - 1
    x &= mask
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        y = x
        for _ in range(64 // shift):
            y = x ^ (y >> shift)
        x = y * pow(factor, -1, 1 << 64) & mask
    return x


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_mix_can_be_undone(value):
    assert unmixed(int(mix(torch.tensor([value])))) == value % (1 << 64)


def test_mix_scatters_neighbours():
    x = torch.arange(4096)
    flips = mix(x) ^ mix(x + 1)
    bits = torch.stack([(flips >> i) & 1 for i in range(64)]).double()
    assert within(bits.mean(), 0.5, 0.5 / math.sqrt(bits.numel()))


@pytest.mark.parametrize("kind", KINDS)
def test_generator_draws_are_reproducible(kind):
    like = torch.zeros(3, 200)
    first, second, other = (GeneratorDraws(torch.Generator().manual_seed(seed)) for seed in (4, 4, 5))
    want = numbers(first, kind, like)
    assert torch.equal(want, numbers(second, kind, like))
    assert not torch.equal(want, numbers(other, kind, like))
    assert not torch.equal(want, numbers(second, kind, like))  # it moves on
    state = torch.get_rng_state()
    numbers(first, kind, like)
    assert torch.equal(state, torch.get_rng_state())


def test_generator_lengths_are_one_for_the_batch_and_come_from_the_host():
    cpu = torch.device("cpu")
    own = GeneratorDraws(torch.Generator().manual_seed(4))
    again = torch.rand(1, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = own.lengths(7, cpu)
    assert found.shape == (1,)
    assert torch.equal(found, again)
    host = GeneratorDraws(torch.Generator().manual_seed(9), torch.Generator().manual_seed(4))
    assert torch.equal(host.lengths(7, cpu), again)
    assert own.fold(3) is own
    assert GeneratorDraws().host is None


class OnCuda:
    """What a generator of CUDA tells on the host."""

    device = torch.device("cuda")

    def __init__(self, seed, offset=0):
        self.seed, self.offset = seed, offset

    def initial_seed(self):
        return self.seed

    def get_offset(self):
        return self.offset


def test_lengths_follow_from_a_generator_elsewhere():
    def length(*state):
        return float(GeneratorDraws(OnCuda(*state)).lengths(3, torch.device("cpu")))

    state = torch.get_rng_state()
    assert length(7) == length(7)
    assert len({length(7), length(8), length(7, 4), length(2**64 - 1, 8)}) == 4
    assert torch.equal(state, torch.get_rng_state())


def test_default_draws_follow_the_mode():
    x = torch.randn(3, 2)
    assert isinstance(default_draws(x, training=True), GeneratorDraws)
    assert torch.equal(default_draws(x, training=False).normal(x), KeyedDraws.of(x).normal(x))
    torch.manual_seed(3)
    first = default_draws(x, training=True).normal(x)
    torch.manual_seed(3)
    assert torch.equal(default_draws(x, training=True).normal(x), first)
