"""What stands at each index of a server's observation in `rack_v0`, its unit and bounds; and the spaces.

Layout of one observation of a rack of N servers, (N + 9,) float32:

| Index | Name | Unit |
|---|---|---|
| j | `load.server_<j>`: x_j = tasks / estimated rate, as last heard; its own now | game.load_unit_s |
| N | `tasks`: in this server | tasks |
| N + 1 | `waiting`: those that wait | tasks |
| N + 2 | `idle_workers` | workers |
| N + 3 | `workers` | workers |
| N + 4 | `service_time`: mean of a task on one worker, as this server estimates it | game.load_unit_s |
| N + 5 | `arrived`: tasks that arrived here in the last window | tasks |
| N + 6 | `given_away`: of them | tasks |
| N + 7 | `requests`: requests for work made in the last window | requests |
| N + 8 | `served`: tasks served in the last window | tasks |
"""

from __future__ import annotations

import math

import numpy as np
from gymnasium import spaces

from steelyard.envs.schema import Field

RACK_SCHEMA_VERSION = 1
_OWN = (
    ("tasks", "tasks"),
    ("waiting", "tasks"),
    ("idle_workers", "workers"),
    ("workers", "workers"),
    ("service_time", "game.load_unit_s"),
    ("arrived", "tasks"),
    ("given_away", "tasks"),
    ("requests", "requests"),
    ("served", "tasks"),
)


def rack_observation_size(num_servers: int) -> int:
    """Numbers in one server's observation: N + 9."""
    return num_servers + len(_OWN)


def rack_observation_fields(num_servers: int) -> list[Field]:
    """Every number of an observation, in order."""
    named = [(f"load.server_{j}", "game.load_unit_s") for j in range(num_servers)] + list(_OWN)
    return [Field(index, name, unit, 0.0, math.inf) for index, (name, unit) in enumerate(named)]


def rack_schema_text(num_servers: int) -> str:
    """The schema in words, one line: for whoever exports a policy of this game."""
    names = ",".join(field.name for field in rack_observation_fields(num_servers))
    return f"rack-observation-v{RACK_SCHEMA_VERSION}:{names}"


def rack_observation_space(num_servers: int, num_agents: int = 1) -> spaces.Box:
    """Box (num_agents * (N + 9),) float32, not negative: the observations of `num_agents`, end to end."""
    size = num_agents * rack_observation_size(num_servers)
    return spaces.Box(0.0, np.inf, (size,), dtype=np.float32)


def rack_action_space(num_servers: int, num_agents: int = 1, discrete: bool = False) -> spaces.Space:
    """Box(-1, 1, (num_agents * 2 N,)) float32, or MultiDiscrete([N, N] * num_agents)."""
    if discrete:
        return spaces.MultiDiscrete([num_servers] * 2 * num_agents)
    return spaces.Box(-1.0, 1.0, (2 * num_servers * num_agents,), dtype=np.float32)
