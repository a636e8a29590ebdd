"""The networks of a central agent, which sees every balancer's observation and sets every balancer's weights.

Both run one small network on a row per server (`layout.central_rows`) and share it between servers, so
their size grows with the number of balancers but not with that of servers. Observations (..., M obs_dim) and
actions (..., M N) are those of the M balancers end to end, as in envs.central and in a central policy file.
"""

from __future__ import annotations

import torch
from torch import nn

from steelyard.agents.critics import ACTION_SCALE
from steelyard.agents.gru_actor import ActorOutput, action_head
from steelyard.agents.layout import (
    FEATURES_PER_SERVER,
    PREVIOUS_ACTION_COLUMNS,
    ROW_DIM,
    central_row_dim,
    central_rows,
)


class CentralActor(nn.Module):
    """dense -> GRU -> dense on each server's row -> that server's weight at every balancer, plus a constant.

    Gaussian (tanh-squashed) or three-way categorical. The constants, one per balancer and server, hold what
    differs between servers; how to answer what is seen is learnt from all servers together. It is exported as
    a flat network with block matrices.
    """

    def __init__(self, num_agents: int, num_servers: int, *, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.num_agents, self.num_servers = num_agents, num_servers
        self.hidden, self.discrete = hidden, discrete
        self.outputs = 3 if discrete else 2
        self.encoder = nn.Linear(central_row_dim(num_agents), hidden)
        self.gru = nn.GRU(hidden, hidden)
        self.body = nn.Linear(hidden, hidden)
        self.head = action_head(hidden, num_agents, self.outputs)
        self.constant = nn.Parameter(torch.zeros(num_agents, num_servers, self.outputs))

    def slow_and_fast(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """What follows features, and what is a constant per server or balancer."""
        fast = [self.head.bias, self.constant]
        return [p for p in self.parameters() if all(p is not other for other in fast)], fast

    def initial_state(self, batch: int) -> torch.Tensor:
        """(batch, N, H) zeros: the state at the start of an episode."""
        return torch.zeros(batch, self.num_servers, self.hidden)

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> ActorOutput:
        """Run T steps. obs: (T, B, M obs_dim) normalised; state: (B, N, H); the head: (T, B, M N, 2 or 3)."""
        steps, batch = obs.shape[:2]
        rows = central_rows(obs.unflatten(-1, (self.num_agents, -1)), self.num_servers)
        hidden = torch.relu(self.encoder(rows)).reshape(steps, batch * self.num_servers, self.hidden)
        features, last = self.gru(hidden, state.reshape(1, batch * self.num_servers, self.hidden))
        features = features.reshape(steps, batch, self.num_servers, self.hidden)
        raw = self.head(torch.relu(self.body(features)))
        head = raw.unflatten(-1, (self.num_agents, self.outputs)).transpose(-3, -2) + self.constant
        return ActorOutput(head.flatten(-3, -2), features, last.reshape(batch, self.num_servers, self.hidden))


class CentralCritic(nn.Module):
    """Q = f(mean over servers of g(row_j, the M actions for server j, identity of j)); see critics.SetCritic.

    Q (...); if discrete, a term per balancer, server and choice (..., M N, 3).
    """

    def __init__(self, num_agents: int, num_servers: int, *, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.num_agents, self.num_servers, self.discrete = num_agents, num_servers, discrete
        width = central_row_dim(num_agents)
        self.embed = nn.Linear(width + (0 if discrete else num_agents), hidden)
        self.identity = nn.Parameter(torch.zeros(num_servers, hidden))
        self.mix = nn.Linear(hidden, hidden)
        inputs, outputs = (2 * hidden, 3 * num_agents) if discrete else (hidden, 1)
        self.value = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
        )
        scale = torch.ones(width)
        scale[list(PREVIOUS_ACTION_COLUMNS)] = ACTION_SCALE
        scale[ROW_DIM + FEATURES_PER_SERVER :: FEATURES_PER_SERVER + 1] = ACTION_SCALE
        self.register_buffer("row_scale", scale, persistent=False)

    row_scale: torch.Tensor

    def forward(self, obs: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
        """obs (..., M obs_dim) normalised; action (..., M N) or None when discrete."""
        rows = central_rows(obs.unflatten(-1, (self.num_agents, -1)), self.num_servers) * self.row_scale
        if action is not None:
            joint = action.unflatten(-1, (self.num_agents, self.num_servers))
            relative = ACTION_SCALE * (joint - joint.mean(dim=-1, keepdim=True))  # see critics._relative
            rows = torch.cat([rows, relative.transpose(-2, -1)], dim=-1)
        embedded = torch.relu(self.mix(torch.relu(self.embed(rows) + self.identity)))
        pool = embedded.mean(dim=-2)
        if not self.discrete:
            return self.value(pool).squeeze(-1)
        terms = self.value(torch.cat([embedded, pool.unsqueeze(-2).expand_as(embedded)], dim=-1))
        return terms.unflatten(-1, (self.num_agents, 3)).transpose(-3, -2).flatten(-3, -2)


class CentralTwin(nn.Module):
    """Two central critics; the smaller of the two is the target (Fujimoto et al., TD3, 2018)."""

    def __init__(self, num_agents: int, num_servers: int, *, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.first = CentralCritic(num_agents, num_servers, hidden=hidden, discrete=discrete)
        self.second = CentralCritic(num_agents, num_servers, hidden=hidden, discrete=discrete)

    def forward(self, obs: torch.Tensor, action: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Both values; see CentralCritic for the shapes."""
        return self.first(obs, action), self.second(obs, action)
