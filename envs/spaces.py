"""Gymnasium spaces of observations and actions."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from steelyard.envs.schema import observation_fields

# Weights {1, 1.5, 2} of the three discrete choices, as actions log2(weight) / 2.
DISCRETE_ACTIONS = (np.log2([1.0, 1.5, 2.0]) / 2).astype(np.float32)


def observation_space(num_servers: int, num_agents: int = 1) -> spaces.Box:
    """Box (num_agents * (12 N + 5),) float32: the observations of `num_agents` agents, end to end."""
    fields = observation_fields(num_servers)
    low = np.array([field.low for field in fields] * num_agents, dtype=np.float32)
    high = np.array([field.high for field in fields] * num_agents, dtype=np.float32)
    return spaces.Box(low, high, dtype=np.float32)


def action_space(num_servers: int, num_agents: int = 1, discrete: bool = False) -> spaces.Space:
    """Box(-1, 1, (num_agents * N,)) float32, weight 2^(2 a); or MultiDiscrete([3, ...]): 1, 1.5, 2."""
    size = num_servers * num_agents
    if discrete:
        return spaces.MultiDiscrete([len(DISCRETE_ACTIONS)] * size)
    return spaces.Box(-1.0, 1.0, (size,), dtype=np.float32)
