"""The core's sigmoid and tanh in PyTorch, operation by operation the formulas of native/core/activations.h.

In float32 they give the bits of native inference, so an actor built with them differs from the exported
one only by the order of its sums; torch's own differ from them by a few units in the last place. Gradients
are the exact derivatives, s (1 - s) and 1 - t^2, of the computed value.
"""

from __future__ import annotations

import torch

_ROUNDING_SHIFT = float.fromhex("0x1.8p23")
_LOG2_E = float.fromhex("0x1.715476p0")
_LN2_HIGH = float.fromhex("0x1.63p-1")
_LN2_LOW = float.fromhex("-0x1.bd0106p-13")
_EXP_LOWEST, _EXP_HIGHEST = -87.0, 88.0
_EXP = tuple(
    map(
        float.fromhex,
        ("0x1.fffffcp-2", "0x1.555490p-3", "0x1.5558f6p-5", "0x1.123a28p-7", "0x1.6a220cp-10"),
    )
)
_TANH_SMALL = 0.625
_TANH = tuple(
    map(
        float.fromhex,
        ("-0x1.555532p-2", "0x1.110726p-3", "-0x1.b83c5ap-5", "0x1.52269cp-6", "-0x1.75e1cep-8"),
    )
)
_TANH_HIGHEST = 10.0


def _horner(x: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        total = total * x + coefficient
    return total


def exp(x: torch.Tensor) -> torch.Tensor:
    """e^x of float32 values, x limited to [-87, 88]; no gradient. Raises TypeError for another dtype."""
    if x.dtype != torch.float32:
        raise TypeError(f"exp takes float32, not {x.dtype}")
    with torch.no_grad():
        x = x.clamp(_EXP_LOWEST, _EXP_HIGHEST)
        shifted = x * _LOG2_E + _ROUNDING_SHIFT
        n = shifted - _ROUNDING_SHIFT
        r = (x - n * _LN2_HIGH) - n * _LN2_LOW
        fraction = (_horner(r, _EXP) * (r * r) + r) + 1.0
        scale = ((shifted.view(torch.int32) + 127) << 23).view(torch.float32)
        return fraction * scale


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        y = 1.0 / (1.0 + exp((-x).clamp(_EXP_LOWEST, -_EXP_LOWEST)))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        (y,) = ctx.saved_tensors
        return grad * y * (1.0 - y)


class _Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        square = x * x
        small = _horner(square, _TANH) * square * x + x
        large = 1.0 - 2.0 / (exp(2.0 * x.abs().clamp(0.0, _TANH_HIGHEST)) + 1.0)
        y = torch.where(x.abs() < _TANH_SMALL, small, torch.where(x < 0.0, -large, large))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        (y,) = ctx.saved_tensors
        return grad * (1.0 - y * y)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + e^-x), any shape, float32; within 3 units in the last place."""
    return _Sigmoid.apply(x)


def tanh(x: torch.Tensor) -> torch.Tensor:
    """tanh(x), any shape, float32; within 2 units in the last place."""
    return _Tanh.apply(x)
