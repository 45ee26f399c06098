"""Huge finite numbers: an inverse that is one, a density that is one, or an error."""

import pytest
import torch

import idensenet as idn
from flows import small_images, small_toy
from idensenet import errors
from idensenet.errors import ConvergenceError, NonFiniteError
from idensenet.solve import Anderson, Newton, Picard, solve
from idensenet.solve.solver import size

SIZES = {torch.float32: (1e10, 1e20, 1e37), torch.float64: (1e20, 1e155, 1e300)}
CASES = [(dtype, value) for dtype, values in SIZES.items() for value in values]


@pytest.mark.parametrize(("dtype", "value"), CASES)
def test_norms_do_not_overflow_before_the_numbers_do(dtype, value):
    r = torch.tensor([[3 * value, -4 * value], [0, 0], [3e-4, 4e-4]], dtype=dtype)
    torch.testing.assert_close(size(r), torch.tensor([5 * value, 0, 5e-4], dtype=dtype))
    most = torch.finfo(dtype).max
    assert not bool(torch.isfinite(size(torch.tensor([[most, most]], dtype=dtype))))


@pytest.mark.parametrize("solver", [Picard, Anderson, Newton])
@pytest.mark.parametrize(("dtype", "value"), CASES)
def test_the_inverse_of_a_huge_number_is_one(dtype, value, solver):
    """One batch with everyday numbers, which are not disturbed."""
    flow = idn.load("moons").to(dtype)
    for stack in flow.stacks():
        stack.solver = solver()
    z = torch.tensor([[value, -value], [0.5, -0.25], [-value, 1.0]], dtype=dtype)
    x, _ = flow.inverse(z)
    back, _ = flow(x)
    error = (back - z).norm(dim=1) if value < 1e18 else ((back - z) / z.abs().amax(1, keepdim=True)).norm(dim=1)
    largest = z.abs().amax(1) if value < 1e18 else 1.0
    assert bool((error <= (2e-4 if dtype == torch.float32 else 2e-11) * largest).all())
    alone, _ = flow.inverse(z[1:2])
    torch.testing.assert_close(x[1:2], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_linear_g_is_inverted_to_the_last_digits_of_a_huge_number(dtype):
    A = torch.tensor([[0.5, -0.3], [0.2, 0.4]], dtype=dtype)
    for value in SIZES[dtype]:
        y = torch.tensor([[value, 0.5 * value]], dtype=dtype)
        for solver in (Picard(), Anderson()):
            found = solve(lambda x: x @ A.T, y, solver)
            exact = torch.linalg.solve(torch.eye(2, dtype=torch.float64) + A.double(), y[0].double())
            assert bool(found.converged.all())
            torch.testing.assert_close(found.value[0].double(), exact, rtol=20 * torch.finfo(dtype).eps, atol=0.0)


def test_images_too():
    flow = small_images()
    z = torch.randn(3, *flow.latent_shape) * torch.tensor([1.0, 1e20, 1e30]).view(3, 1, 1, 1)
    x, _ = flow.body.inverse(z)
    back, _ = flow.body(x)
    assert bool((((back - z) / size(z).view(3, 1, 1, 1)).flatten(1).norm(dim=1) < 1e-4).all())


@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 3e38), (torch.float64, 1.5e308)])
def test_what_cannot_be_inverted_raises(dtype, value):
    z = torch.tensor([[0.0, 0.0], [value, -value]], dtype=dtype)
    with pytest.raises((ConvergenceError, NonFiniteError), match="1 of 2"):
        idn.load("moons").to(dtype).inverse(z)


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float32, 1e20), (torch.float32, 1e38), (torch.float64, 1e155), (torch.float64, 1e308)]
)
@pytest.mark.parametrize("levels", [False, True])
def test_a_density_that_is_no_number_raises_and_names_the_row(dtype, value, levels):
    flow = idn.load("moons").to(dtype)
    x = torch.tensor([[0.0, 0.0], [0.5, 0.5], [value, -value]], dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(NonFiniteError, match=rf"cannot be computed in {name} for 1 of 3 rows: row 2 .* drop such rows"):
        flow.log_prob_terms(x) if levels else flow.log_prob(x)
    assert bool(torch.isfinite(flow.log_prob(x[:2])).all())


@pytest.mark.parametrize("dims", [2, 5])
def test_a_huge_row_is_not_a_lost_inverse(dims):
    flow = idn.build("toy-idensenet", shape=(dims,), blocks=(2,), depth=2, growth=4).eval()
    x = torch.zeros(3, dims)
    x[1] = 3e38
    with pytest.raises(NonFiniteError, match="row 1"):
        flow.log_prob(x)


def test_the_density_is_right_up_to_the_edge():
    flow = idn.load("moons")
    x = torch.tensor([[1e17, -1e17]])
    exact = idn.load("moons").double().log_prob(x.double())
    torch.testing.assert_close(flow.log_prob(x).double(), exact, rtol=1e-4, atol=0.0)


def test_a_bound_still_has_density_zero_outside():
    flow = idn.build("toy-idensenet", blocks=(1,), preprocess="standardize", bounds=[[0, 1], [None, None]]).eval()
    flow.standardize(torch.rand(50, 2))
    assert flow.log_prob(torch.tensor([[2.0, 0.0]])).item() == -torch.inf


def test_rounding_inside_of_g_is_called_rounding():
    flow = idn.load("moons")
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(1e3)
    assert flow.certify().contractive
    with pytest.raises(ConvergenceError, match=r"rounding, most likely.*float64") as caught:
        flow.inverse(torch.randn(50, 2))
    assert "not contractive" not in str(caught.value)
    flow.double().inverse(torch.randn(20, 2, dtype=torch.float64))


def test_a_g_that_expands_is_called_that():
    with pytest.raises(ConvergenceError, match="not contractive"):
        solve(lambda x: 3 * x, torch.ones(1, 2), Picard(max_steps=5)).raise_unless_converged()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("call", ["log_prob", "sample", "certify", "inverse"])
def test_short_number_types_are_answered_with_a_sentence(dtype, call):
    flow = small_toy().to(dtype)
    arguments = {"sample": (3,), "certify": ()}.get(call, (torch.zeros(2, 2, dtype=dtype),))
    with pytest.raises(errors.DtypeError, match=r"float32 or float64, not in b?float16"):
        getattr(flow, call)(*arguments)


@pytest.mark.parametrize("call", ["log_prob", "inverse"])
def test_vmap_is_answered_with_a_sentence_and_other_transforms_work(call):
    flow = idn.load("moons")
    with pytest.raises(errors.InputError, match="vmap, which a flow cannot be used with"):
        torch.func.vmap(lambda row: getattr(flow, call)(row[None])[0])(torch.zeros(3, 2))
    gradient = torch.func.grad(lambda x: flow.log_prob(x).sum())(torch.zeros(3, 2))
    assert gradient.shape == (3, 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without")
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "nonsense", torch.device("cuda")])
def test_a_device_that_is_not_there_is_not_a_damaged_model(device):
    with pytest.raises(errors.DeviceError, match=r"cannot be used here.*'cpu'"):
        idn.load("moons", device=device)
