"""What balancers measure, step by step, with the truth about the servers beside it: a dataset.

One row per episode, balancer, step and server. FEATURES are all that a balancer sees of a server and of its
own flows, in the simulator and on a testbed alike (Aquarius, seed 004, ch. 3); TRUTH is what it does not see
and what models are to tell. A Parquet file holds a dataset, its scenario and how it came to be
(docs/datasets.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.envs.errors import UserError, unknown
from steelyard.envs.scenario import Scenario
from steelyard.envs.schema import REDUCTIONS, SERVER_FEATURES
from steelyard.trainers import results

SERVER_COLUMNS = ("n_flow_on", *(f"{name}_{r}" for name in ("flow_duration", "fct") for r in REDUCTIONS))
GLOBAL_COLUMNS = tuple(f"inter_arrival_{r}" for r in REDUCTIONS)
FEATURES = SERVER_COLUMNS + GLOBAL_COLUMNS
"""Names as in envs/schema.py."""
KEYS = ("episode", "traffic", "load", "seed", "balancer", "step", "server", "t_s")
COUNTERS = ("packets", "bytes", "resets")
"""During the step; null in the simulator, which has no packets."""
TRUTH = ("in_server", "remaining_s", "cpu_busy", "capacity")
"""Requests in the server, of all balancers; work left [s], null live; share of its capacity that the server
used during the step, null simulated; its capacity in processors."""
LOADS = (0.4, 0.9)
"""An episode's offered load is drawn between these."""
_METADATA = b"steelyard.dataset"

TRAFFIC = {
    "loop": "CPU-bound page, exponential demand, Poisson arrivals",
    "files": "short requests of equal demand, five times as many",
    "heavy": "lognormal demand (sigma 1.5), Poisson arrivals",
    "bursts": "exponential demand, arrivals that switch between 0.4 and 1.6 times their rate",
}
Columns = dict[str, NDArray[Any]]
Tell = Callable[[int, int, str], None]
"""Called with (episodes done, in all, what runs now)."""


@dataclass(frozen=True)
class Plan:
    """One episode to record."""

    number: int
    traffic: str
    load: float
    seed: int
    scenario: Scenario


@dataclass(frozen=True)
class Recorded:
    """One episode as it was: T steps, M balancers, N servers."""

    observations: NDArray[np.float32]
    """(T, M, 12 N + 5)."""
    t_s: NDArray[np.float64]
    """(T, M) moment of each observation."""
    truth: dict[str, NDArray[np.float64]]
    """in_server (T, M, N) at that moment, and of the others what is known, (T, M, N)."""
    counters: dict[str, NDArray[np.float64]]
    """By name (T, M, N); empty in the simulator."""


def plans(scenario: Scenario, traffic: Sequence[str], seeds: range) -> list[Plan]:
    """Episodes: every kind of traffic under every seed, at a load drawn from both. UserError."""
    made: list[Plan] = []
    for name in traffic:
        if name not in TRAFFIC:
            raise unknown("--traffic", name, TRAFFIC)
        for seed in seeds:
            drawn = np.random.default_rng([seed, list(TRAFFIC).index(name)]).uniform(*LOADS)
            load = round(float(drawn), 4)
            made.append(Plan(len(made), name, load, seed, variant(scenario, name, load)))
    return made


def variant(scenario: Scenario, traffic: str, load: float) -> Scenario:
    """The scenario under a kind of traffic, at an offered load; the mean demand stays, but for `files`."""
    stages = scenario.workload.stages
    mean_s = stages[0].demand.mean_s if len(stages) == 1 and stages[0].kind == "cpu" else None
    if mean_s is None:
        raise UserError(
            f"--scenario: {scenario.name!r} must have one stage, of kind cpu, whose demand has mean_s"
        )
    if scenario.events:
        raise UserError(f"--scenario: {scenario.name!r} must have no events: a row holds one capacity")
    if traffic == "files":
        mean_s /= 5
    rate = load * sum(server.workers * server.speed for server in scenario.servers) / mean_s
    demand: dict[str, Any] = {"kind": "exponential", "mean_s": mean_s}
    if traffic == "files":
        demand = {"kind": "deterministic", "value_s": mean_s}
    elif traffic == "heavy":
        demand = {"kind": "lognormal", "mean_s": mean_s, "sigma": 1.5}
    arrival: dict[str, Any] = {"kind": "poisson", "rate": rate}
    if traffic == "bursts":
        arrival = {"kind": "mmpp", "rates": [0.4 * rate, 1.6 * rate], "mean_stay_s": [2.0, 2.0]}
    tree = scenario.to_dict()
    tree["scenario"].pop("offered_load", None)
    tree["workload"] = {"arrival": arrival, "stages": [{"kind": "cpu", "demand": demand}]}
    return Scenario.from_dict(tree)


def simulate(plan: Plan, policy: str) -> Recorded:
    """The episode in the simulator, under a rule."""
    from steelyard import native

    scenario = plan.scenario
    world = native.World(scenario.to_native(), scenario.to_rule(policy), plan.seed)
    steps = round(scenario.episode.horizon_s / scenario.control.step_s)
    shape = (steps, scenario.num_agents, scenario.num_servers)
    seen, in_server, remaining = [], np.zeros(shape), np.zeros(shape)
    for step in range(steps):
        world.run_until((step + 1) * scenario.control.step_s)
        seen.append(world.observe_all())
        in_server[step] = world.state()["in_system"]
        remaining[step] = world.remaining_time()
    ends = np.arange(1, steps + 1) * scenario.control.step_s
    t_s = np.repeat(ends[:, None], scenario.num_agents, axis=1)
    return Recorded(np.array(seen), t_s, {"in_server": in_server, "remaining_s": remaining}, {})


def columns(plan: Plan, recorded: Recorded) -> Columns:
    """The rows of an episode, column by column, in the order balancer, step, server."""
    scenario = plan.scenario
    steps, agents, _ = recorded.observations.shape
    servers = scenario.num_servers
    shape = (agents, steps, servers)
    balancer, step, server = np.indices(shape)
    moments = np.repeat(recorded.t_s.T[:, :, None], servers, axis=2)
    made: Columns = {
        "episode": np.full(shape, plan.number),
        "traffic": np.full(shape, plan.traffic),
        "load": np.full(shape, plan.load),
        "seed": np.full(shape, plan.seed),
    }
    made |= {"balancer": balancer, "step": step, "server": server, "t_s": moments}
    seen = recorded.observations.transpose(1, 0, 2)
    of_servers = seen[:, :, : SERVER_FEATURES * servers].reshape(agents, steps, servers, SERVER_FEATURES)
    made |= {name: of_servers[..., i] for i, name in enumerate(SERVER_COLUMNS)}
    for i, name in enumerate(GLOBAL_COLUMNS):
        made[name] = np.repeat(seen[:, :, SERVER_FEATURES * servers + i, None], servers, axis=2)
    known = recorded.truth | recorded.counters
    known["capacity"] = np.broadcast_to(
        [each.workers * each.speed for each in scenario.servers], (steps, agents, servers)
    )
    for name in COUNTERS + TRUTH:
        values = known.get(name)
        made[name] = np.full(shape, np.nan) if values is None else values.transpose(1, 0, 2)
    return {name: values.reshape(-1) for name, values in made.items()}


def record(
    listed: Sequence[Plan], play: Callable[[Plan], Recorded], tell: Tell = lambda done, total, what: None
) -> Columns:
    """All episodes, one after another."""
    parts: list[Columns] = []
    for plan in listed:
        tell(len(parts), len(listed), f"{plan.traffic}, load {plan.load:.2f}, seed {plan.seed}")
        parts.append(columns(plan, play(plan)))
    tell(len(listed), len(listed), "")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def write(path: Path, data: Columns, facts: dict[str, Any]) -> None:
    """A Parquet file; NaN become null. facts: JSON that travels with it. UserError without room for it."""
    import pyarrow
    from pyarrow import parquet

    arrays = {}
    for name, values in data.items():
        if values.dtype == np.float64:
            arrays[name] = pyarrow.array(values, from_pandas=True)
        elif values.dtype.kind == "i" and name != "seed":
            arrays[name] = pyarrow.array(values.astype(np.int32))
        else:
            arrays[name] = pyarrow.array(values)
    table = pyarrow.table(arrays).replace_schema_metadata({_METADATA: json.dumps(facts).encode()})
    out = pyarrow.BufferOutputStream()
    parquet.write_table(table, out, compression="zstd")
    results.write_file("--out", path, out.getvalue().to_pybytes())


def read(path: str | Path) -> tuple[Columns, dict[str, Any]]:
    """What `write` wrote: columns (null is NaN) and facts. UserError for any other file."""
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"dataset {path}: {error}") from error
    kept = (table.schema.metadata or {}).get(_METADATA)
    missing = [name for name in (*KEYS, *FEATURES, *COUNTERS, *TRUTH) if name not in table.column_names]
    if kept is None or missing:
        lacks = f"column {missing[0]}" if missing else "the scenario"
        raise UserError(f"dataset {path}: lacks {lacks}; is it of `steelyard dataset record`?")
    return {name: table[name].to_numpy() for name in table.column_names}, json.loads(kept)
