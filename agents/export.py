"""From torch modules to the policy file that native inference runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from steelyard import native
from steelyard.agents.gru_actor import GruActor
from steelyard.agents.mlp_actor import MlpActor
from steelyard.agents.normaliser import Normaliser

Actor = GruActor | MlpActor


def policy_spec(actors: Sequence[Actor], normalisers: Sequence[Normaliser], clip: float) -> dict[str, Any]:
    """The spec dict of `native.encode_policy`: agent i runs actor i on observations limited to +-clip."""
    first = actors[0]
    return {
        "num_servers": first.num_servers,
        "input": first.input_mode,
        "output": "discrete3" if first.discrete else "tanh",
        "clip": float(clip),
        "actors": [_actor(actor, normaliser) for actor, normaliser in zip(actors, normalisers, strict=True)],
    }


def policy_bytes(actors: Sequence[Actor], normalisers: Sequence[Normaliser], clip: float) -> bytes:
    """A policy file. ValueError if a weight is NaN or infinite."""
    return bytes(native.encode_policy(policy_spec(actors, normalisers, clip)))


def _actor(actor: Actor, normaliser: Normaliser) -> dict[str, Any]:
    mean, inverse = normaliser.vectors()
    if isinstance(actor, GruActor):
        layers = [_dense(actor.encoder, "relu"), _gru(actor.gru), _dense(actor.body, "relu")]
    else:
        layers = [_dense(layer, "relu") for layer in actor.layers]
    return {"mean": mean, "inv_std": inverse, "layers": [*layers, _head(actor)]}


def _numpy(tensor: torch.Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.detach().numpy(), dtype=np.float32)


def _dense(layer: nn.Linear, activation: str) -> dict[str, Any]:
    return {
        "kind": "dense",
        "weight": _numpy(layer.weight),
        "bias": _numpy(layer.bias),
        "activation": activation,
    }


def _gru(layer: nn.GRU) -> dict[str, Any]:
    names = {
        "weight_ih": "weight_ih_l0",
        "weight_hh": "weight_hh_l0",
        "bias_ih": "bias_ih_l0",
        "bias_hh": "bias_hh_l0",
    }
    return {"kind": "gru"} | {key: _numpy(getattr(layer, name)) for key, name in names.items()}


def _head(actor: Actor) -> dict[str, Any]:
    """Logits as they are; of a Gaussian only the mean, outputs 0, 2, 4, ...: exported policies do not explore."""
    layer = _dense(actor.head, "none")
    if not actor.discrete:
        layer["weight"] = np.ascontiguousarray(layer["weight"][::2])
        layer["bias"] = np.ascontiguousarray(layer["bias"][::2])
    return layer
