"""Policies for tests: torch.nn modules, the spec that native.encode_policy takes, their inference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from steelyard.agents.layout import DISCRETE_ACTIONS, ROW_DIM, observation_dim, server_rows

CLIP = 10.0


@dataclass
class TorchPolicy:
    """The PyTorch twin of a native policy: one actor, float32, one observation per step.

    layers: nn.Linear, nn.GRU and activation modules, in order.
    """

    num_servers: int
    input: str
    output: str
    layers: list[nn.Module]
    mean: NDArray[np.float32]
    inv_std: NDArray[np.float32]
    state: dict[int, torch.Tensor] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        """The spec of this actor alone."""
        return policy_spec([self])

    def logits(self, obs: NDArray[np.float32]) -> torch.Tensor:
        """Outputs of the last layer, (N,) or (N, 3); the state advances. obs: (12 N + 5,)."""
        x = (torch.from_numpy(obs) - torch.from_numpy(self.mean)) * torch.from_numpy(self.inv_std)
        x = x.clamp(-CLIP, CLIP)
        x = server_rows(x, self.num_servers) if self.input == "per_server" else x.unsqueeze(0)
        with torch.no_grad():
            for place, layer in enumerate(self.layers):
                if isinstance(layer, nn.GRU):
                    x, self.state[place] = layer(x.unsqueeze(0), self.state.get(place))
                    x = x.squeeze(0)
                else:
                    x = layer(x)
        return x.reshape(self.num_servers, 3) if self.output == "discrete3" else x.flatten()

    def action(self, obs: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N,) action in [-1, 1]; the state advances."""
        y = self.logits(obs)
        if self.output == "discrete3":
            return np.array(DISCRETE_ACTIONS, np.float32)[y.argmax(-1).numpy()]
        return (y.tanh() if self.output == "tanh" else y.clamp(-1.0, 1.0)).numpy()


def policy_spec(actors: list[TorchPolicy]) -> dict[str, Any]:
    """The spec of actors of one architecture."""
    first = actors[0]
    return {
        "num_servers": first.num_servers,
        "input": first.input,
        "output": first.output,
        "clip": CLIP,
        "actors": [
            {"mean": actor.mean, "inv_std": actor.inv_std, "layers": _layer_specs(actor.layers)}
            for actor in actors
        ],
    }


def make(
    kind: str,
    num_servers: int,
    input_mode: str,
    output: str,
    *,
    hidden: int = 64,
    seed: int = 0,
    gain: float = 1.0,
) -> TorchPolicy:
    """A random policy; kind: gru | feedforward | linear. gain scales torch's initial weights."""
    torch.manual_seed(seed)
    rows = input_mode == "per_server"
    inputs = ROW_DIM if rows else observation_dim(num_servers)
    outputs = (1 if rows else num_servers) * (3 if output == "discrete3" else 1)
    layers: list[nn.Module] = {
        "linear": lambda: [nn.Linear(inputs, outputs)],
        "feedforward": lambda: [
            nn.Linear(inputs, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs),
        ],
        "gru": lambda: [
            nn.Linear(inputs, hidden), nn.ReLU(), nn.GRU(hidden, hidden),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs),
        ],
    }[kind]()  # fmt: skip
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters():
                parameter.mul_(gain)
    draw = np.random.default_rng(seed)
    size = observation_dim(num_servers)
    mean = draw.exponential(1.0, size).astype(np.float32)
    inv_std = (1 / draw.uniform(0.2, 2.0, size)).astype(np.float32)
    return TorchPolicy(num_servers, input_mode, output, layers, mean, inv_std)


def observations(num_servers: int, steps: int, seed: int) -> NDArray[np.float32]:
    """(steps, 12 N + 5) observations of plausible size."""
    draw = np.random.default_rng(seed)
    return draw.exponential(1.5, (steps, observation_dim(num_servers))).astype(np.float32)


def _layer_specs(layers: list[nn.Module]) -> list[dict[str, Any]]:
    specs: list[dict[str, Any]] = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            weight, bias = _array(layer.weight), _array(layer.bias)
            specs.append({"kind": "dense", "weight": weight, "bias": bias, "activation": "none"})
        elif isinstance(layer, nn.GRU):
            arrays = {name: _array(getattr(layer, f"{name}_l0")) for name in _GRU_ARRAYS}
            specs.append({"kind": "gru", **arrays})
        else:
            specs[-1]["activation"] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}[type(layer)]
    return specs


_GRU_ARRAYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return tensor.detach().numpy().copy()
