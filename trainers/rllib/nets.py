"""The networks inside RLlib's modules: the actors of agents/, which export as they are, and critics."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from steelyard.agents.critics import TwinCritic
from steelyard.agents.gaussian import LOG_STD_MAX, LOG_STD_MIN
from steelyard.agents.gru_actor import GruActor, action_head
from steelyard.agents.layout import observation_dim
from steelyard.agents.mlp_actor import MlpActor


class CentralActor(nn.Module):
    """One network from all balancers' observations to all their weights: two hidden layers."""

    def __init__(self, num_servers: int, num_agents: int, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.shape = (num_agents * num_servers, 3 if discrete else 2)
        inputs = num_agents * observation_dim(num_servers)
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
        self.head = action_head(hidden, self.shape[0], discrete)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Head (..., M N, 2 or 3); obs (..., M obs_dim) normalised."""
        hidden = torch.relu(self.second(torch.relu(self.first(obs))))
        return self.head(hidden).unflatten(-1, self.shape)


class CentralCritic(nn.Module):
    """Q (...) of all observations (..., M obs_dim) and all actions (..., M N), two hidden layers."""

    def __init__(self, num_servers: int, num_agents: int, hidden: int) -> None:
        super().__init__()
        inputs = num_agents * (observation_dim(num_servers) + num_servers)
        self.net = mlp(inputs, hidden)

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """obs normalised, actions in [-1, 1]."""
        return self.net(torch.cat([obs, action], -1)).squeeze(-1)


def mlp(inputs: int, hidden: int) -> nn.Sequential:
    """inputs -> 1 with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )


Actor = GruActor | MlpActor | CentralActor


def make_actor(config: dict[str, Any]) -> Actor:
    """The actor that the module's configuration asks for."""
    servers, hidden, discrete = config["num_servers"], config["hidden"], config["discrete"]
    if config["policies"] == "central":
        return CentralActor(servers, config["num_agents"], hidden, discrete)
    kind = GruActor if config["recurrent"] else MlpActor
    return kind(servers, input_mode=config["input"], hidden=hidden, discrete=discrete)


def make_twin(config: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    """Two critics Q(observation, action) of the same shape."""
    servers, hidden = config["num_servers"], config["critic_hidden"]
    if config["policies"] == "central":
        one, two = (CentralCritic(servers, config["num_agents"], hidden) for _ in range(2))
        return one, two
    twin = TwinCritic(servers, kind=config["critic"], hidden=hidden, discrete=False)
    return twin.first, twin.second


def run_actor(
    actor: Actor, obs: torch.Tensor, state: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Head and next state. obs (..., D) normalised, for a GRU (B, T, D) with state (B, R, H)."""
    if not isinstance(actor, GruActor):
        return actor(obs), None
    assert state is not None
    output = actor(obs.transpose(0, 1), state)  # GruActor has the time first
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
