"""Twin critics Q(observation, recurrent features of the actor, action).

The critics are feed-forward: history reaches them through the actor's own recurrent features (detached), so
there is no second recurrent state to store, burn in or keep in step with replay.
"""

from __future__ import annotations

import torch
from torch import nn

from steelyard.agents.layout import ROW_DIM, observation_dim, server_rows


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _relative(action: torch.Tensor) -> torch.Tensor:
    """Actions (..., N) less their mean: argmin (q + 1) / w does not change when all weights are scaled.

    Without this, noise in Q along that dead direction drives all weights into the end of their range.
    """
    return action - action.mean(dim=-1, keepdim=True)


class FlatCritic(nn.Module):
    """One network on the whole observation. Continuous: Q (…,); discrete: a term per server and choice (…, N, 3)."""

    def __init__(self, num_servers: int, features: int, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.num_servers, self.discrete = num_servers, discrete
        extra, outputs = (0, 3 * num_servers) if discrete else (num_servers, 1)
        self.net = _mlp(observation_dim(num_servers) + features + extra, hidden, outputs)

    def forward(self, obs: torch.Tensor, features: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
        """obs (…, obs_dim) normalised; features (…, 1, F); action (…, N) or None when discrete."""
        inputs = [obs, features.flatten(-2)] + ([] if action is None else [_relative(action)])
        out = self.net(torch.cat(inputs, dim=-1))
        return out.unflatten(-1, (self.num_servers, 3)) if self.discrete else out.squeeze(-1)


class SetCritic(nn.Module):
    """Q = f(mean over servers of g(row_j, features_j, action_j)): permutation invariant (Deep Sets, 2017)."""

    def __init__(self, num_servers: int, features: int, hidden: int, discrete: bool) -> None:
        super().__init__()
        self.num_servers, self.discrete = num_servers, discrete
        extra = 0 if discrete else 1
        self.embed = nn.Sequential(
            nn.Linear(ROW_DIM + features + extra, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.value = _mlp(2 * hidden if discrete else hidden, hidden, 3 if discrete else 1)

    def forward(self, obs: torch.Tensor, features: torch.Tensor, action: torch.Tensor | None) -> torch.Tensor:
        """obs (…, obs_dim) normalised; features (…, N, F); action (…, N) or None when discrete."""
        inputs = [server_rows(obs, self.num_servers), features]
        if action is not None:
            inputs.append(_relative(action).unsqueeze(-1))
        embedded = self.embed(torch.cat(inputs, dim=-1))
        pool = embedded.mean(dim=-2)
        if not self.discrete:
            return self.value(pool).squeeze(-1)
        return self.value(torch.cat([embedded, pool.unsqueeze(-2).expand_as(embedded)], dim=-1))


class TwinCritic(nn.Module):
    """Two critics of the same shape; the smaller of the two is the target (Fujimoto et al., TD3, 2018)."""

    def __init__(self, num_servers: int, *, input_mode: str, features: int, hidden: int, discrete: bool) -> None:
        super().__init__()
        kind = SetCritic if input_mode == "per_server" else FlatCritic
        self.first = kind(num_servers, features, hidden, discrete)
        self.second = kind(num_servers, features, hidden, discrete)

    def forward(
        self, obs: torch.Tensor, features: torch.Tensor, action: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both values; see the critics for the shapes."""
        return self.first(obs, features, action), self.second(obs, features, action)
