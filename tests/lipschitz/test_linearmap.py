"""Linear maps: products, transposes, probes in front, some samples only."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idensenet.lipschitz.linearmap import (
    Composition,
    ConvolutionMap,
    DenseLayerMap,
    DiagonalMap,
    MatrixMap,
    StackedDiagonalMap,
    convolve,
    flipped,
)

BATCH = 4


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def maps():
    """Name -> (map, shape of a sample that goes in, shape of one that comes out)."""
    inner = Composition([MatrixMap(randn(3, 5)), StackedDiagonalMap(randn(BATCH, 3), randn(BATCH, 3))])
    kernel = Composition([ConvolutionMap(randn(3, 2, 3, 3)), DiagonalMap(randn(BATCH, 3, 4, 5))])
    a, b = torch.tensor(0.6, dtype=torch.float64), torch.tensor(0.8, dtype=torch.float64)
    return {
        "matrix": (MatrixMap(randn(3, 5)), (5,), (3,)),
        "convolution": (ConvolutionMap(randn(3, 2, 3, 3)), (2, 4, 5), (3, 4, 5)),
        "diagonal": (DiagonalMap(randn(BATCH, 2, 3, 3)), (2, 3, 3), (2, 3, 3)),
        "stacked vectors": (StackedDiagonalMap(randn(BATCH, 3), randn(BATCH, 3)), (3,), (6,)),
        "stacked maps": (StackedDiagonalMap(randn(BATCH, 2, 3, 3), randn(BATCH, 2, 3, 3)), (2, 3, 3), (4, 3, 3)),
        "dense vectors": (DenseLayerMap(a, b, inner, 5, -1), (5,), (11,)),
        "dense maps": (DenseLayerMap(a, b, kernel, 2, -3), (2, 4, 5), (5, 4, 5)),
    }


NAMES = sorted(maps())


@pytest.mark.parametrize("name", NAMES)
def test_rmatvec_is_the_transpose_sample_by_sample(name):
    made, inside, outside = maps()[name]
    v, u = randn(BATCH, *inside), randn(BATCH, *outside)
    forth, back = made.matvec(v), made.rmatvec(u)
    assert forth.shape == u.shape
    assert back.shape == v.shape
    torch.testing.assert_close((forth * u).flatten(1).sum(1), (back * v).flatten(1).sum(1))


@pytest.mark.parametrize("name", NAMES)
def test_a_leading_dimension_of_probes_is_one_product_per_probe(name):
    made, inside, outside = maps()[name]
    v, u = randn(3, BATCH, *inside), randn(3, BATCH, *outside)
    torch.testing.assert_close(made.matvec(v), torch.stack([made.matvec(each) for each in v]))
    torch.testing.assert_close(made.rmatvec(u), torch.stack([made.rmatvec(each) for each in u]))


@pytest.mark.parametrize("name", NAMES)
def test_take_keeps_the_maps_of_the_chosen_samples(name):
    made, inside, outside = maps()[name]
    v, u, index = randn(BATCH, *inside), randn(BATCH, *outside), torch.tensor([2, 0])
    torch.testing.assert_close(made.take(index).matvec(v[index]), made.matvec(v)[index])
    torch.testing.assert_close(made.take(index).rmatvec(u[index]), made.rmatvec(u)[index])


def test_dense_layer_map_is_the_literal_concatenation():
    made, _, _ = maps()["dense vectors"]
    v = randn(BATCH, 5)
    torch.testing.assert_close(made.matvec(v), torch.cat([0.6 * v, 0.8 * made.inner.matvec(v)], 1))


@given(
    k=st.sampled_from([1, 3, 5]),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
)
def test_flipped_kernel_is_the_transposed_convolution(k, height, width, inputs, outputs):
    weight = randn(outputs, inputs, k, k)
    v, u = randn(1, inputs, height, width), randn(1, outputs, height, width)
    torch.testing.assert_close((convolve(v, weight) * u).sum(), (v * convolve(u, flipped(weight))).sum())


def test_products_carry_a_graph_exactly_where_gradients_are_recorded():
    weight = randn(3, 2, 3, 3).requires_grad_()
    made, u = ConvolutionMap(weight), randn(1, 3, 4, 4)
    with torch.no_grad():
        without = made.rmatvec(u)
    assert not without.requires_grad
    within = made.rmatvec(u)  # what was kept under no_grad must not be used here
    assert within.requires_grad
    torch.testing.assert_close(within.detach(), without)
    with torch.no_grad():
        assert not made.rmatvec(u).requires_grad
