"""From torch modules to the policy file that native inference runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from steelyard import native
from steelyard.agents.central import CentralActor
from steelyard.agents.gru_actor import GruActor
from steelyard.agents.layout import FEATURES_PER_SERVER, INTER_ARRIVAL_FEATURES, ROW_DIM
from steelyard.agents.mlp_actor import CentralMlpActor, MlpActor
from steelyard.agents.normaliser import Normaliser

Actor = GruActor | MlpActor
Central = CentralActor | CentralMlpActor
_OWN = FEATURES_PER_SERVER + 1  # of a row: what it says of its own server


def policy_spec(actors: Sequence[Actor], normalisers: Sequence[Normaliser], clip: float) -> dict[str, Any]:
    """The spec dict of `native.encode_policy`: agent i runs actor i on observations limited to +-clip."""
    first = actors[0]
    return {
        "num_servers": first.num_servers,
        "input": "per_server" if first.input_mode == "per_server" else "flat",
        "output": "discrete3" if first.discrete else "tanh",
        "clip": float(clip),
        "actors": [_actor(actor, normaliser) for actor, normaliser in zip(actors, normalisers, strict=True)],
    }


def policy_bytes(actors: Sequence[Actor], normalisers: Sequence[Normaliser], clip: float) -> bytes:
    """A policy file. ValueError if a weight is NaN or infinite."""
    return bytes(native.encode_policy(policy_spec(actors, normalisers, clip)))


def central_policy_bytes(actor: Central, normaliser: Normaliser, clip: float) -> bytes:
    """A central policy file: the actor as a flat one. ValueError if a weight is NaN or infinite."""
    mean, inverse = (np.tile(vector, actor.num_agents) for vector in normaliser.vectors())
    layers = _unshared_central(actor) if isinstance(actor, CentralActor) else _feed_forward(actor)
    spec = {
        "scope": "central",
        "num_agents": actor.num_agents,
        "num_servers": actor.num_servers,
        "input": "flat",
        "output": "discrete3" if actor.discrete else "tanh",
        "clip": float(clip),
        "actors": [{"mean": mean, "inv_std": inverse, "layers": layers}],
    }
    return bytes(native.encode_policy(spec))


def _actor(actor: Actor, normaliser: Normaliser) -> dict[str, Any]:
    mean, inverse = normaliser.vectors()
    if isinstance(actor, GruActor) and actor.input_mode == "shared":
        layers = _unshared(actor)
        return {"mean": mean, "inv_std": inverse, "layers": layers}
    if isinstance(actor, GruActor):
        layers = [_dense(actor.encoder, "relu"), _gru(actor.gru), _dense(actor.body, "relu"), _head(actor)]
    else:
        layers = _feed_forward(actor)
    return {"mean": mean, "inv_std": inverse, "layers": layers}


def _feed_forward(actor: MlpActor | CentralMlpActor) -> list[dict[str, Any]]:
    return [_dense(actor.first, "relu"), _dense(actor.second, "relu"), _head(actor)]


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


def _head(actor: Actor | Central) -> dict[str, Any]:
    """Logits as they are; of a Gaussian only the mean, outputs 0, 2, ..: exported policies do not explore."""
    layer = _dense(actor.head, "none")
    if actor.outputs == 2:
        layer["weight"] = np.ascontiguousarray(layer["weight"][::2])
        layer["bias"] = np.ascontiguousarray(layer["bias"][::2])
    return layer


def _unshared(actor: GruActor) -> list[dict[str, Any]]:
    """A `shared` actor as a flat one: the same numbers in one block per server, zeros elsewhere."""
    count, head = actor.num_servers, _head(actor)
    per_server = head["weight"].shape[0]  # 1 mean, or 3 logits
    constant = _numpy(actor.constant)[:, :per_server]
    return [
        *_unshared_body(actor, _row_matrix(_numpy(actor.encoder.weight), count)),
        head | {"weight": _blocks(head["weight"], count), "bias": (head["bias"] + constant).reshape(-1)},
    ]


def _unshared_central(actor: CentralActor) -> list[dict[str, Any]]:
    """A central actor as a flat one: a block of columns per balancer before, a block of rows after."""
    agents, count, head = actor.num_agents, actor.num_servers, _head(actor)
    pooled, *own = np.split(_numpy(actor.encoder.weight), range(ROW_DIM, actor.encoder.in_features, _OWN), 1)
    columns = [(pooled / agents).astype(np.float32) for _ in own]
    for column, part in zip(columns, own, strict=True):
        column[:, :_OWN] += part
    outputs = head["weight"].shape[0] // agents  # 1 mean, or 3 logits
    rows = [_blocks(part, count) for part in np.split(head["weight"], agents)]
    bias = head["bias"].reshape(agents, 1, outputs) + _numpy(actor.constant)[..., :outputs]
    return [
        *_unshared_body(actor, np.concatenate([_row_matrix(each, count) for each in columns], axis=1)),
        head | {"weight": np.concatenate(rows), "bias": bias.reshape(-1)},
    ]


def _unshared_body(actor: GruActor | CentralActor, first: NDArray[np.float32]) -> list[dict[str, Any]]:
    """All but the head, with `first` as the weights of the first layer."""
    count, gru = actor.num_servers, _gru(actor.gru)
    return [
        _dense(actor.encoder, "relu") | {"weight": first, "bias": np.tile(_numpy(actor.encoder.bias), count)},
        {"kind": "gru"}
        | {key: _gates(gru[key], lambda part: _blocks(part, count)) for key in ("weight_ih", "weight_hh")}
        | {key: _gates(gru[key], lambda part: np.tile(part, count)) for key in ("bias_ih", "bias_hh")},
        _dense(actor.body, "relu")
        | {
            "weight": _blocks(_numpy(actor.body.weight), count),
            "bias": np.tile(_numpy(actor.body.bias), count),
        },
    ]


def _blocks(matrix: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    return np.kron(np.eye(count, dtype=np.float32), matrix)


def _gates(
    stacked: NDArray[np.float32], spread: Callable[[NDArray[np.float32]], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """torch stacks the gates r, z, n by rows; each is spread over the servers by itself."""
    return np.concatenate([spread(part) for part in np.split(stacked, 3)])


def _row_matrix(weight: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Weights (H, 29) on a server's row -> (N H, obs_dim) on the whole observation (see
    layout.server_rows)."""
    own, arrival, pool = np.split(
        weight, [FEATURES_PER_SERVER + 1, FEATURES_PER_SERVER + 1 + INTER_ARRIVAL_FEATURES], 1
    )
    mine = _blocks(own[:, :-1], count) + np.tile(pool[:, :-1] / count, (count, count))
    previous = _blocks(own[:, -1:], count) + np.tile(pool[:, -1:] / count, (count, count))
    return np.concatenate([mine, np.tile(arrival, (count, 1)), previous], axis=1).astype(np.float32)
