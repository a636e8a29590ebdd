"""The linear actor of the rack game in PyTorch, the twin of native/core/linear_actor.h."""

from __future__ import annotations

import math

import torch
from torch import nn


class LinearActor(nn.Module):
    """pi = softmax(W z + b) over the N servers (seed 000, Sec. 6.2.3), for migration or for stealing."""

    allowed: torch.Tensor
    """(N,) bool: servers that can be drawn; all at first."""

    def __init__(self, num_servers: int, num_inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_servers)
        self.register_buffer("allowed", torch.ones(num_servers, dtype=torch.bool))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Log probabilities (..., N) from inputs (..., K); -inf for servers that are not allowed."""
        logits = self.linear(inputs).masked_fill(~self.allowed, -math.inf)
        return torch.log_softmax(logits, dim=-1)

    def window_score(self, inputs: torch.Tensor, drawn: torch.Tensor, *, mean: bool = False) -> torch.Tensor:
        """Log probability of a window's draws, or the mean over them; 0 without any.

        inputs: (K,); drawn: (N,), how often each server was drawn. Its gradient at the logits is
        drawn - total pi, or drawn / total - pi.
        """
        total = drawn.sum()
        share = drawn / total if mean and total > 0 else drawn
        log_pi = self(inputs)
        return (share * log_pi.masked_fill(~self.allowed, 0.0)).sum()


def log_ranks(loads: torch.Tensor) -> torch.Tensor:
    """Ranks in falling order of load (ties by index) on a log scale: greatest load -1, least 1.

    loads: (N,), N >= 2 -> (N,). The released code's actor reads them beside the loads.
    """
    order = torch.sort(loads, descending=True, stable=True).indices
    half = 0.5 * math.log(len(loads))
    ranks = torch.empty_like(loads)
    ranks[order] = (torch.arange(1, len(loads) + 1, dtype=torch.float64).log() / half - 1).to(loads.dtype)
    return ranks


def actor_inputs(kind: str, loads: torch.Tensor, cap: float = math.inf) -> torch.Tensor:
    """Inputs (K,) of the actors from loads (N,): `loads`, at most `cap`, or those and the `ranks` of all."""
    capped = loads.clamp(max=cap)
    return capped if kind == "loads" else torch.cat([capped, log_ranks(loads)])
