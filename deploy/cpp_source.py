"""C++ source of a policy: its weights as constexpr arrays in hex floats, and nothing else.

The arrays hold the order in which the kernel reads them (native.pack_policy), so the kernel cannot tell them
from a loaded blob.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INPUTS = {"flat": "kFlat", "per_server": "kPerServer"}
_OUTPUTS = {"tanh": "kTanh", "clip": "kClip", "discrete3": "kDiscrete3"}
_KINDS = {"dense": "kDense", "gru": "kGru"}
_ACTIVATIONS = {"none": "kNone", "relu": "kRelu", "tanh": "kTanh", "sigmoid": "kSigmoid"}
_ARRAYS = {
    "weights": "Weights",
    "bias": "Bias",
    "hidden_weights": "HiddenWeights",
    "hidden_bias": "HiddenBias",
}
_PER_LINE = 6


def hex_float(value: float) -> str:
    """A float32 value as a C++ literal that reads back to the same bits."""
    mantissa, exponent = float(value).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}F"


def generate(packed: dict[str, Any], heading: list[str]) -> str:
    """Source of a policy. packed: as native.pack_policy gives it; heading: lines of the first comment."""
    lines = [f"// {line}".rstrip() for line in heading]
    lines += ['#include "native/core/policy.h"', "", "namespace steelyard::exported {", "namespace {", ""]
    for index, actor in enumerate(packed["actors"]):
        lines += _actor_arrays(index, actor)
    lines += ["constexpr core::PolicyView kActors[] = {"]
    lines += [f"    {_view(packed, index, actor)}," for index, actor in enumerate(packed["actors"])]
    lines += ["};", "constexpr core::PolicySet kPolicy = {"]
    sizes = f"{packed.get('num_agents', 0)}, {packed['num_servers']}, {len(packed['actors'])}"
    lines += [f"    {packed['schema_hash']:#018x}ULL, {sizes}, kActors}};"]
    lines += ["", "}  // namespace", "}  // namespace steelyard::exported", ""]
    lines += ['#include "native/core/policy_face.h"', ""]
    return "\n".join(lines)


def _actor_arrays(index: int, actor: dict[str, Any]) -> Iterator[str]:
    yield from float_array(f"kMean{index}", actor["mean"])
    yield from float_array(f"kInvStd{index}", actor["inv_std"])
    for number, layer in enumerate(actor["layers"]):
        for key, word in _ARRAYS.items():
            if key in layer:
                yield from float_array(f"k{word}{index}_{number}", layer[key])
    yield f"constexpr core::LayerView kLayers{index}[] = {{"
    yield from (f"    {_layer(index, number, layer)}," for number, layer in enumerate(actor["layers"]))
    yield from ("};", "")


def float_array(name: str, values: NDArray[np.float32]) -> Iterator[str]:
    """Lines that define the array `name` with the bits of `values`, (n,) float32."""
    yield f"alignas(64) constexpr float {name}[{values.size}] = {{"
    words = [hex_float(value) for value in values.tolist()]
    for start in range(0, len(words), _PER_LINE):
        yield "    " + ", ".join(words[start : start + _PER_LINE]) + ","
    yield "};"


def _layer(index: int, number: int, layer: dict[str, Any]) -> str:
    arrays = [f"k{word}{index}_{number}" if key in layer else "nullptr" for key, word in _ARRAYS.items()]
    kind = f"core::LayerKind::{_KINDS[layer['kind']]}"
    activation = f"core::Activation::{_ACTIVATIONS[layer['activation']]}"
    return f"{{{kind}, {activation}, {layer['in']}, {layer['out']}, {', '.join(arrays)}}}"


def _view(packed: dict[str, Any], index: int, actor: dict[str, Any]) -> str:
    modes = f"core::PolicyInput::{_INPUTS[packed['input']]}, core::PolicyOutput::{_OUTPUTS[packed['output']]}"
    clip = hex_float(packed["clip"])
    pool = f"{packed.get('num_agents', 1)}, {packed['num_servers']}"
    sizes = f"{pool}, {modes}, {len(actor['layers'])}, {clip}"
    return f"{{{sizes}, kMean{index}, kInvStd{index}, kLayers{index}}}"
