"""The core's activations and their torch twin: the same bits, close to the exact functions, gradients."""

import numpy as np
import pytest
import torch

from steelyard import native
from steelyard.agents import activations

torch.set_num_threads(1)
TWINS = {"sigmoid": activations.sigmoid, "tanh": activations.tanh}


def floats() -> np.ndarray:
    """Finite floats of both signs from the smallest to the largest, with the special values."""
    size = np.arange(0, 0x7F800000, 10007, dtype=np.uint32).view(np.float32)
    return np.concatenate([size, -size, np.array([np.inf, -np.inf, np.nan], np.float32)])


@pytest.mark.parametrize("kind", TWINS)
def test_twin_gives_the_same_bits(kind):
    x = floats()
    expected = native.activation(kind, x)
    found = TWINS[kind](torch.from_numpy(x)).numpy()
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("kind", TWINS)
def test_close_to_torch(kind):
    """Three units in the last place; sigmoid stays at 1.6e-38 below -87."""
    x = torch.from_numpy(floats()[:-3])
    exact = getattr(torch, kind)(x.double())
    found = TWINS[kind](x).double()
    assert ((found - exact).abs() <= 3.0 * 2.0**-23 * exact.abs() + 2e-38).all()


@pytest.mark.parametrize("kind", TWINS)
def test_gradient(kind):
    x = torch.linspace(-12.0, 12.0, 4001, requires_grad=True)
    TWINS[kind](x).sum().backward()
    reference = x.detach().double().requires_grad_()
    getattr(torch, kind)(reference).sum().backward()
    assert x.grad is not None
    assert reference.grad is not None
    assert (x.grad - reference.grad).abs().max() < 1e-6


def test_exp_is_within_an_ulp():
    x = torch.linspace(-87.0, 88.0, 200001)
    error = (activations.exp(x).double() / torch.exp(x.double()) - 1).abs().max()
    assert error < 2.0**-23


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="float32"):
        activations.tanh(torch.zeros(3, dtype=torch.float64))
    with pytest.raises(TypeError):
        native.activation("tanh", np.zeros(3))
    with pytest.raises(ValueError, match="kind is 'gelu'; must be one of none, relu, tanh, sigmoid"):
        native.activation("gelu", np.zeros(3, np.float32))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 30])
def test_any_number_of_values(size):
    x = np.linspace(-3, 3, size, dtype=np.float32)
    np.testing.assert_array_equal(native.activation("relu", x), np.maximum(x, 0))
    assert native.activation("none", x.reshape(1, -1)).shape == (1, size)
