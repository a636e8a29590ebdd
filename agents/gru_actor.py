"""The recurrent actor: dense -> GRU -> dense -> weights, on the whole observation or on one row per server.

`flat` reads the whole observation with one network and can learn a constant per server: the shape of the
paper (Distr-LB, NeurIPS 2022, App. D). `per_server` runs one small network on each server's row and shares
its weights between them; it is permutation equivariant, so what it learns about one server holds for all.
`shared` adds to that a learnt constant per server: what differs between servers is in the constants, how
to answer what is seen is learnt from all of them. It is exported as a flat network with block matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from steelyard.agents.layout import ROW_DIM, observation_dim, server_rows

LOG_STD_START = -1.5
INPUTS = ("flat", "shared", "per_server")


class ActorOutput(NamedTuple):
    """What one pass over a sequence gives; T steps, B sequences, N servers, R rows, H units."""

    head: torch.Tensor  # (T, B, N, outputs_per_server): before the squash, or logits
    features: torch.Tensor  # (T, B, R, H) recurrent features
    state: torch.Tensor  # (B, R, H) after the last step


def input_size(num_servers: int, input_mode: str) -> tuple[int, int]:
    """(inputs of the first layer, rows R) of a network that reads `flat` or `per_server`."""
    if input_mode not in INPUTS:
        raise ValueError(f"input = {input_mode!r}: must be {' or '.join(INPUTS)}")
    return (observation_dim(num_servers), 1) if input_mode == "flat" else (ROW_DIM, num_servers)


def outputs_per_server(discrete: bool, deterministic: bool) -> int:
    """3 logits (or values of three choices), or the mean alone, or mean and log std."""
    return 3 if discrete else 1 if deterministic else 2


def action_head(hidden: int, servers_per_row: int, outputs: int) -> nn.Linear:
    """Server-major, `outputs` for each server (see outputs_per_server); starts near equal weights."""
    head = nn.Linear(hidden, outputs * servers_per_row)
    with torch.no_grad():
        head.weight.mul_(0.1)
        head.bias.zero_()
        if outputs == 2:
            head.bias[1::2] = LOG_STD_START
    return head


class GruActor(nn.Module):
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
        self.num_servers, self.hidden, self.discrete, self.input_mode = (
            num_servers,
            hidden,
            discrete,
            input_mode,
        )
        inputs, self.rows = input_size(num_servers, input_mode)
        self.outputs = outputs_per_server(discrete, deterministic)
        self.encoder = nn.Linear(inputs, hidden)
        self.gru = nn.GRU(hidden, hidden)
        self.body = nn.Linear(hidden, hidden)
        self.head = action_head(hidden, num_servers // self.rows, self.outputs)
        if input_mode == "shared":
            self.constant = nn.Parameter(torch.zeros(num_servers, self.outputs))

    def slow_and_fast(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """What follows features, and what is a constant per server (or for all)."""
        fast = {name for name, _ in self.named_parameters() if name in ("head.bias", "constant")}
        named = list(self.named_parameters())
        return [p for name, p in named if name not in fast], [p for name, p in named if name in fast]

    def initial_state(self, batch: int) -> torch.Tensor:
        """(batch, R, H) zeros: the state at the start of an episode."""
        return torch.zeros(batch, self.rows, self.hidden)

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> ActorOutput:
        """Run T steps. obs: (T, B, obs_dim) normalised; state: (B, R, H)."""
        steps, batch = obs.shape[:2]
        rows = server_rows(obs, self.num_servers) if self.input_mode != "flat" else obs.unsqueeze(-2)
        hidden = torch.relu(self.encoder(rows)).reshape(steps, batch * self.rows, self.hidden)
        features, last = self.gru(hidden, state.reshape(1, batch * self.rows, self.hidden))
        features = features.reshape(steps, batch, self.rows, self.hidden)
        raw = self.head(torch.relu(self.body(features)))
        head = raw.reshape(steps, batch, self.num_servers, self.outputs)  # flat: server-major outputs
        if self.input_mode == "shared":
            head = head + self.constant
        return ActorOutput(head, features, last.reshape(batch, self.rows, self.hidden))
