"""State values V(s), for learners that train on what their own policy did. They are never deployed."""

from __future__ import annotations

import torch
from torch import nn


class StateValue(nn.Module):
    """One network of two hidden layers on everything there is, with a value for each of `agents`."""

    def __init__(self, inputs: int, *, agents: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, agents),
        )

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Values (..., agents, 1) from state (..., inputs), normalised."""
        return self.net(state).unsqueeze(-1)
