"""The critic of a central learner: Q(all observations, all actions, true state); it is never deployed."""

from __future__ import annotations

import torch
from torch import nn

from steelyard.agents.critics import ACTION_SCALE
from steelyard.agents.layout import PREVIOUS_ACTION_COLUMNS, ROW_DIM, server_rows


class CentralCritic(nn.Module):
    """Q = f(mean over servers of g(row_j of every agent, every agent's action_j, state_j, identity of j)).

    g is shared by the servers (Zaheer et al., Deep Sets, 2017) and is told which server a row is from, as in
    critics.SetCritic. Actions count relative to their mean over servers: scaling all weights of an agent
    changes no decision. `state_rows` numbers per server of the state are read (0: none).
    """

    def __init__(self, num_agents: int, num_servers: int, hidden: int, state_rows: int) -> None:
        super().__init__()
        self.num_agents, self.num_servers, self.state_rows = num_agents, num_servers, state_rows
        self.embed = nn.Linear(num_agents * (ROW_DIM + 1) + state_rows, hidden)
        self.identity = nn.Parameter(torch.zeros(num_servers, hidden))
        self.mix = nn.Linear(hidden, hidden)
        self.value = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        row_scale = torch.ones(ROW_DIM)
        row_scale[list(PREVIOUS_ACTION_COLUMNS)] = ACTION_SCALE
        self.register_buffer("row_scale", row_scale, persistent=False)

    row_scale: torch.Tensor

    def forward(self, obs: torch.Tensor, world: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Q (..., 1) from obs (..., M, obs_dim) and world (..., N state_rows or more), both normalised, and
        action (..., M N).
        """
        servers = self.num_servers
        rows = (server_rows(obs, servers) * self.row_scale).transpose(-3, -2).flatten(-2)  # (..., N, M 29)
        moved = action.unflatten(-1, (self.num_agents, servers))
        moved = ACTION_SCALE * (moved - moved.mean(-1, keepdim=True)).transpose(-2, -1)  # (..., N, M)
        parts = [rows, moved]
        if self.state_rows:
            parts.append(world.unflatten(-1, (servers, self.state_rows)))
        embedded = torch.relu(self.embed(torch.cat(parts, -1)) + self.identity)
        return self.value(torch.relu(self.mix(embedded)).mean(-2))
