"""Running normalisation of observations, kept with the policy it belongs to.

One set of statistics per *feature*, shared by all servers: a server's flow duration is scaled the same way
whichever server it is, so that a policy sees that one server is slower than another. (Per-entry statistics
would subtract exactly that difference away.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.layout import FEATURES_PER_SERVER, INTER_ARRIVAL_FEATURES, observation_dim

_MIN_STD = 1e-3  # a feature that never moves (an empty reservoir: all zeros) must not be blown up


class Normaliser:
    """Mean and standard deviation of each feature, by Chan's parallel update (Chan, Golub, LeVeque 1983)."""

    def __init__(self, num_servers: int) -> None:
        self.num_servers = num_servers
        size = FEATURES_PER_SERVER + INTER_ARRIVAL_FEATURES
        self.count = np.zeros(size)
        self.mean = np.zeros(size)
        self.m2 = np.zeros(size)

    def update(self, obs: NDArray[np.float32]) -> None:
        """Add observations, shape (..., obs_dim), raw units (s, flows)."""
        flat = obs.reshape(-1, obs.shape[-1]).astype(np.float64)
        split = FEATURES_PER_SERVER * self.num_servers
        per_server = flat[:, :split].reshape(-1, FEATURES_PER_SERVER)
        arrival = flat[:, split : split + INTER_ARRIVAL_FEATURES]
        for part, rows in (
            (slice(0, FEATURES_PER_SERVER), per_server),
            (slice(FEATURES_PER_SERVER, None), arrival),
        ):
            count, mean = len(rows), rows.mean(axis=0)
            delta, total = mean - self.mean[part], self.count[part] + count
            self.m2[part] += ((rows - mean) ** 2).sum(axis=0) + delta**2 * self.count[part] * count / total
            self.mean[part] += delta * count / total
            self.count[part] = total

    def vectors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(mean, inverse standard deviation), each (obs_dim,) float32; previous actions pass unchanged."""
        std = np.sqrt(self.m2 / np.maximum(self.count, 1.0))
        inverse = np.where(self.count > 0, 1.0 / np.maximum(std, _MIN_STD), 1.0)
        mean_out = self._expand(self.mean, 0.0)
        inverse_out = self._expand(inverse, 1.0)
        return mean_out, inverse_out

    def _expand(self, stat: NDArray[np.float64], action_value: float) -> NDArray[np.float32]:
        out = np.full(observation_dim(self.num_servers), action_value, dtype=np.float32)
        split = FEATURES_PER_SERVER * self.num_servers
        out[:split] = np.tile(stat[:FEATURES_PER_SERVER], self.num_servers)
        out[split : split + INTER_ARRIVAL_FEATURES] = stat[FEATURES_PER_SERVER:]
        return out

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Arrays for a checkpoint."""
        return {"count": self.count.copy(), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def load(self, state: dict[str, NDArray[np.float64]]) -> None:
        """Take over the arrays of `state()`."""
        self.count, self.mean, self.m2 = (
            np.array(state[key], dtype=np.float64) for key in ("count", "mean", "m2")
        )
