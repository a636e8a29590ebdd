"""Feed-forward actors: the heads of GruActor and CentralActor, two hidden layers, no memory of their own."""

from __future__ import annotations

import torch
from torch import nn

from steelyard.agents.gru_actor import action_head, input_size, outputs_per_server
from steelyard.agents.layout import observation_dim, server_rows


class MlpActor(nn.Module):
    """Gaussian (tanh-squashed), three-way categorical or deterministic weights for each of N servers."""

    def __init__(
        self,
        num_servers: int,
        *,
        input_mode: str,
        hidden: int,
        discrete: bool,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.num_servers, self.discrete, self.input_mode = num_servers, discrete, input_mode
        inputs, self.rows = input_size(num_servers, input_mode)
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
        self.outputs = outputs_per_server(discrete, deterministic)
        self.head = action_head(hidden, num_servers // self.rows, self.outputs)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Head (..., N, outputs_per_server); obs (..., obs_dim) normalised."""
        per_server = self.input_mode == "per_server"
        hidden = server_rows(obs, self.num_servers) if per_server else obs.unsqueeze(-2)
        hidden = torch.relu(self.second(torch.relu(self.first(hidden))))
        return self.head(hidden).flatten(-2).unflatten(-1, (self.num_servers, self.outputs))


class CentralMlpActor(nn.Module):
    """A central agent's weights of N servers at each of M balancers, by one network on everything."""

    def __init__(self, num_agents: int, num_servers: int, *, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.num_agents, self.num_servers, self.discrete = num_agents, num_servers, discrete
        inputs = num_agents * observation_dim(num_servers)
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
        self.outputs = outputs_per_server(discrete, deterministic=False)
        self.head = action_head(hidden, num_agents * num_servers, self.outputs)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Head (..., M N, 2 or 3); obs (..., M obs_dim) normalised."""
        hidden = torch.relu(self.second(torch.relu(self.first(obs))))
        return self.head(hidden).unflatten(-1, (self.num_agents * self.num_servers, self.outputs))
