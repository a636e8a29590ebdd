"""The linear critic of the rack game in PyTorch, the twin of native/core/linear_critic.h."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


def critic_features(kind: str, loads: torch.Tensor) -> torch.Tensor:
    """Features (..., D) of loads (..., N).

    linear: x, 1. quadratic: x, x_i x_j for i <= j row by row, 1. quartic: x, x_i x_j, x^3, x^4, 1 (the
    released code's features, in another order).
    """
    parts = [loads]
    if kind != "linear":
        rows, columns = torch.triu_indices(loads.shape[-1], loads.shape[-1])
        parts.append(loads[..., rows] * loads[..., columns])
    if kind == "quartic":
        parts += [loads**3, loads**4]
    return torch.cat([*parts, torch.ones_like(loads[..., :1])], dim=-1)


class LinearCritic(nn.Module):
    """V(x) = theta . f(x)."""

    def __init__(self, kind: str, num_servers: int) -> None:
        super().__init__()
        self.kind = kind
        self.theta = nn.Parameter(torch.zeros(critic_features(kind, torch.zeros(num_servers)).shape[-1]))

    def forward(self, loads: torch.Tensor) -> torch.Tensor:
        """Values (...) of loads (..., N)."""
        return critic_features(self.kind, loads) @ self.theta


@torch.no_grad()
def consensus(critics: Sequence[LinearCritic]) -> None:
    """theta_i <- mean_j theta_j (seed 000, Alg. 1)."""
    mean = torch.stack([critic.theta for critic in critics]).mean(0)
    for critic in critics:
        critic.theta.copy_(mean)
