"""What every algorithm gives the training session: the records of a round, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.envs.errors import UserError


@dataclass
class Round:
    """Episodes played side by side (B of them, M agents, N servers), and what was learnt from them."""

    seeds: Sequence[int]
    stats: dict[str, NDArray[Any]]  # of the batch: sojourn_mean_s, flows, rejected, jain_mean, each (B,)
    returns: NDArray[np.float32]  # (B, M) undiscounted sums of rewards
    weights: NDArray[np.float32]  # (B, N) geometric means over steps and agents
    learning: dict[str, float] = field(default_factory=dict)  # means over the round's gradient steps


class Trainer(Protocol):
    """An algorithm on a scenario, between rounds."""

    episodes: int

    def round(self, episodes: int) -> Round:
        """Play that many episodes and learn from them."""

    def policy(self) -> bytes:
        """The policy file of what has been learnt."""

    def state(self) -> dict[str, Any]:
        """A tree for `checkpoint.save`."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""


def require(name: str, value: object, allowed: bool, text: str) -> None:
    """UserError naming the hyper-parameter unless `allowed`."""
    if not allowed:
        raise UserError(f"algo.{name} = {value!r}: must be {text}")


def check_finite(played: dict[str, torch.Tensor]) -> None:
    """UserError if anything that was seen or done is NaN or infinite."""
    for name, values in played.items():
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise UserError(f"training: {name} holds NaN or infinity; the last checkpoint is kept")


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each entry."""
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
