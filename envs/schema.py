"""The observation schema: what stands at each index of an agent's observation, its unit and its bounds.

The native core defines the schema; its text and hash travel in every exported policy, and a policy for
another schema or pool size is refused. Layout of one observation of N servers, (12 N + 5,) float32, server by
server, then the balancer's own numbers:

| Index | Name | Unit |
|---|---|---|
| 11 j | `server_<j>.n_flow_on`: flows of this balancer that are open on server j | flows |
| 11 j + 1 ... 11 j + 5 | `server_<j>.flow_duration.<r>`: age of a flow at its data packets | s |
| 11 j + 6 ... 11 j + 10 | `server_<j>.fct.<r>`: flow completion time | s |
| 11 N ... 11 N + 4 | `inter_arrival.<r>`: time between flows that reach this balancer | s |
| 11 N + 5 + j | `previous_action.server_<j>`: log2(weight) / 2 | 1 |

`<r>` runs over the five reductions of a reservoir, over its non-empty entries: `mean`, `p90` (90th
percentile), `std`, `dmean` (discounted mean, sum of 0.9^age v over n) and `wdmean` (weighted discounted mean,
sum of 0.9^age v over sum of 0.9^age), age in seconds. An empty reservoir is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SCHEMA_VERSION = 1
REDUCTIONS = ("mean", "p90", "std", "dmean", "wdmean")
MEASUREMENTS = ("n_flow_on", "flow_duration", "fct", "inter_arrival", "previous_action")
SERVER_FEATURES = 1 + 2 * len(REDUCTIONS)
FEATURE_FAMILIES = MEASUREMENTS + REDUCTIONS
"""What `observation.hide` of a scenario can name: a measurement with all that is made of it, or a reduction
of every reservoir."""


@dataclass(frozen=True)
class Field:
    """One number of an observation."""

    index: int
    name: str
    unit: str
    low: float
    high: float


def observation_size(num_servers: int) -> int:
    """Numbers in one agent's observation: 12 N + 5."""
    return num_servers * (SERVER_FEATURES + 1) + len(REDUCTIONS)


def observation_fields(num_servers: int) -> list[Field]:
    """Every number of an observation, in order."""
    named = []
    for server in range(num_servers):
        named.append((f"server_{server}.n_flow_on", "flows", 0.0, math.inf))
        for reservoir in ("flow_duration", "fct"):
            named += [(f"server_{server}.{reservoir}.{r}", "s", 0.0, math.inf) for r in REDUCTIONS]
    named += [(f"inter_arrival.{r}", "s", 0.0, math.inf) for r in REDUCTIONS]
    named += [(f"previous_action.server_{server}", "1", -1.0, 1.0) for server in range(num_servers)]
    return [Field(index, *rest) for index, rest in enumerate(named)]


def schema_text(num_servers: int) -> str:
    """The schema in words, one line, as the native core writes it."""
    from steelyard import native

    return native.observation_schema_text(num_servers)


def schema_hash(num_servers: int) -> int:
    """64-bit hash of the schema's text; an exported policy carries it."""
    from steelyard import native

    return native.observation_schema_hash(num_servers)
