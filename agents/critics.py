"""Twin critics Q(observation, action).

They are feed-forward: an observation already sums up the last seconds in its reservoirs, and so there is no
second recurrent state to store, burn in or keep in step with replay.
"""

from __future__ import annotations

import torch
from torch import nn

from steelyard.agents.layout import PREVIOUS_ACTION_COLUMNS, ROW_DIM, observation_dim, server_rows

ACTION_SCALE = 5.0
"""Actions spread by about .2, normalised features by 1: on one scale, their effect is not learnt last."""


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def _relative(action: torch.Tensor) -> torch.Tensor:
    """Actions (..., N) less their mean: argmin (q + 1) / w does not change when all weights are scaled.

    Without this, noise in Q along that dead direction drives all weights into the end of their range.
    """
    return ACTION_SCALE * (action - action.mean(dim=-1, keepdim=True))


class FlatCritic(nn.Module):
    """One network on the whole observation. Q (...); if discrete, a term per server and choice (..., N,
    3)."""

    def __init__(self, num_servers: int, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.num_servers, self.discrete = num_servers, discrete
        extra, outputs = (0, 3 * num_servers) if discrete else (num_servers, 1)
        self.net = _mlp(observation_dim(num_servers) + extra, hidden, outputs)

    def forward(self, obs: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
        """obs (..., obs_dim) normalised; action (..., N) or None when discrete."""
        inputs = [obs] + ([] if action is None else [_relative(action)])
        out = self.net(torch.cat(inputs, dim=-1))
        return out.unflatten(-1, (self.num_servers, 3)) if self.discrete else out.squeeze(-1)


class SetCritic(nn.Module):
    """Q = f(mean over servers of g(row_j, action_j, identity of j)): few parameters, since g is shared (Deep
    Sets, 2017).

    The identity (one of N) lets the critic, which is never deployed, know which server a row is from; without
    it, noise in a row passes for evidence that the server is a fast or a slow one.
    """

    def __init__(self, num_servers: int, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.num_servers, self.discrete = num_servers, discrete
        self.embed = nn.Linear(ROW_DIM + (0 if discrete else 1), hidden)
        self.identity = nn.Parameter(torch.zeros(num_servers, hidden))
        self.mix = nn.Linear(hidden, hidden)
        row_scale = torch.ones(ROW_DIM)
        row_scale[list(PREVIOUS_ACTION_COLUMNS)] = ACTION_SCALE
        self.register_buffer("row_scale", row_scale, persistent=False)
        self.value = _mlp(2 * hidden if discrete else hidden, hidden, 3 if discrete else 1)

    row_scale: torch.Tensor

    def forward(self, obs: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
        """obs (..., obs_dim) normalised; action (..., N) or None when discrete."""
        rows = server_rows(obs, self.num_servers) * self.row_scale
        if action is not None:
            rows = torch.cat([rows, _relative(action).unsqueeze(-1)], dim=-1)
        embedded = torch.relu(self.mix(torch.relu(self.embed(rows) + self.identity)))
        pool = embedded.mean(dim=-2)
        if not self.discrete:
            return self.value(pool).squeeze(-1)
        return self.value(torch.cat([embedded, pool.unsqueeze(-2).expand_as(embedded)], dim=-1))


CRITICS = {"set": SetCritic, "flat": FlatCritic}


class TwinCritic(nn.Module):
    """Two critics of the same shape; the smaller of the two is the target (Fujimoto et al., TD3, 2018)."""

    def __init__(self, num_servers: int, *, kind: str, hidden: int, discrete: bool) -> None:
        super().__init__()
        if kind not in CRITICS:
            raise ValueError(f"critic = {kind!r}: must be {' or '.join(CRITICS)}")
        self.first = CRITICS[kind](num_servers, hidden, discrete)
        self.second = CRITICS[kind](num_servers, hidden, discrete)

    def forward(self, obs: torch.Tensor, action: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Both values; see the critics for the shapes."""
        return self.first(obs, action), self.second(obs, action)
