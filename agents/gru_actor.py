"""The recurrent actor: dense -> GRU -> dense -> weights, on the whole observation or on one row per server.

`flat` reads the whole observation with one network and can learn a constant per server: the shape of the
paper (Distr-LB, NeurIPS 2022, App. D). `per_server` runs one small network on each server's row and shares
its weights between them; it is permutation equivariant, so what it learns about one server holds for all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from steelyard.agents.layout import ROW_DIM, observation_dim, server_rows

LOG_STD_MIN, LOG_STD_MAX = -5.0, 0.5
INPUTS = ("flat", "per_server")


class ActorOutput(NamedTuple):
    """What one pass over a sequence gives; T steps, B sequences, N servers, R rows, H units."""

    head: torch.Tensor  # (T, B, N, 2) mean and log std before the squash, or (T, B, N, 3) logits
    features: torch.Tensor  # (T, B, R, H) recurrent features
    state: torch.Tensor  # (B, R, H) after the last step


class GruActor(nn.Module):
    """Gaussian (tanh-squashed) or three-way categorical weights for each of N servers."""

    def __init__(self, num_servers: int, *, input_mode: str, hidden: int, discrete: bool) -> None:
        super().__init__()
        if input_mode not in INPUTS:
            raise ValueError(f"actor input is {input_mode!r}; allowed: {', '.join(INPUTS)}")
        self.num_servers, self.hidden, self.discrete, self.input_mode = num_servers, hidden, discrete, input_mode
        self.rows = num_servers if input_mode == "per_server" else 1
        self.outputs = 3 if discrete else 2
        inputs = ROW_DIM if input_mode == "per_server" else observation_dim(num_servers)
        self.encoder = nn.Linear(inputs, hidden)
        self.gru = nn.GRU(hidden, hidden)
        self.body = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, self.outputs * num_servers // self.rows)
        with torch.no_grad():  # start near equal weights and a moderate spread
            self.head.weight.mul_(0.1)
            self.head.bias.zero_()
            if not discrete:
                self.head.bias[1::2] = -1.0

    def initial_state(self, batch: int) -> torch.Tensor:
        """(batch, R, H) zeros: the state at the start of an episode."""
        return torch.zeros(batch, self.rows, self.hidden)

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> ActorOutput:
        """Run T steps. obs: (T, B, obs_dim) normalised; state: (B, R, H)."""
        steps, batch = obs.shape[:2]
        rows = server_rows(obs, self.num_servers) if self.rows > 1 else obs.unsqueeze(-2)
        hidden = torch.relu(self.encoder(rows)).reshape(steps, batch * self.rows, self.hidden)
        features, last = self.gru(hidden, state.reshape(1, batch * self.rows, self.hidden))
        features = features.reshape(steps, batch, self.rows, self.hidden)
        raw = self.head(torch.relu(self.body(features)))
        head = raw.reshape(steps, batch, self.num_servers, self.outputs)  # flat: server-major outputs
        return ActorOutput(head, features, last.reshape(batch, self.rows, self.hidden))
