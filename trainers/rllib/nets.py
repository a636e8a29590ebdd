"""The networks inside RLlib's modules: the actors of agents/, which export as they are, and critics."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from steelyard.agents.central import CentralActor, CentralTwin
from steelyard.agents.critics import TwinCritic
from steelyard.agents.gaussian import LOG_STD_MAX, LOG_STD_MIN
from steelyard.agents.gru_actor import GruActor
from steelyard.agents.mlp_actor import CentralMlpActor, MlpActor


def mlp(inputs: int, hidden: int) -> nn.Sequential:
    """inputs -> 1 with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )


Actor = GruActor | MlpActor | CentralActor | CentralMlpActor


def make_actor(config: dict[str, Any]) -> Actor:
    """The actor that the module's configuration asks for."""
    servers, hidden, discrete = config["num_servers"], config["hidden"], config["discrete"]
    if config["policies"] == "central":
        central = CentralActor if config["recurrent"] else CentralMlpActor
        return central(config["num_agents"], servers, hidden=hidden, discrete=discrete)
    kind = GruActor if config["recurrent"] else MlpActor
    return kind(servers, input_mode=config["input"], hidden=hidden, discrete=discrete)


def make_twin(config: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    """Two critics Q(observation, action) of the same shape."""
    servers, hidden = config["num_servers"], config["critic_hidden"]
    if config["policies"] == "central":
        central = CentralTwin(config["num_agents"], servers, hidden=hidden, discrete=False)
        return central.first, central.second
    twin = TwinCritic(servers, kind=config["critic"], hidden=hidden, discrete=False)
    return twin.first, twin.second


def initial_state(actor: Actor) -> torch.Tensor | None:
    """(R, H) at the start of one sequence; None for an actor without memory."""
    return None if isinstance(actor, MlpActor | CentralMlpActor) else actor.initial_state(1)[0]


def run_actor(
    actor: Actor, obs: torch.Tensor, state: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Head and next state. obs (..., D) normalised, for a GRU (B, T, D) with state (B, R, H)."""
    if isinstance(actor, MlpActor | CentralMlpActor):
        return actor(obs), None
    assert state is not None
    output = actor(obs.transpose(0, 1), state)  # recurrent actors have the time first
    return output.head.transpose(0, 1), output.state


def as_logits(head: torch.Tensor, discrete: bool) -> torch.Tensor:
    """Head (..., N, 2) -> (..., 2 N), means then limited log deviations; (..., N, 3) -> (..., 3 N)."""
    if discrete:
        return head.flatten(-2)
    return torch.cat([head[..., 0], head[..., 1].clamp(LOG_STD_MIN, LOG_STD_MAX)], -1)


def slow_and_fast(actor: Actor) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """What follows features, and what is a constant per server (or for all)."""
    fast = {name for name, _ in actor.named_parameters() if name in ("head.bias", "constant")}
    named = list(actor.named_parameters())
    return [p for name, p in named if name not in fast], [p for name, p in named if name in fast]
