"""The model card beside an exported policy of a rack: model_card.py says what it is after."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from steelyard import native
from steelyard.deploy.card_evaluation import evaluation, known_failures
from steelyard.deploy.card_parts import machine, table, training
from steelyard.deploy.evaluation_file import RACK
from steelyard.deploy.rack_file import RackFile

_REPETITIONS, _CALLS = 9, 20_000
_COSTS = {
    "load_message_ns": "a load message: logits of both actors",
    "window_ns": "a window: both distributions",
    "migrate_ns": "a migration drawn, random word included",
    "steal_ns": "a steal drawn, random word included",
}


def write(
    policy: RackFile, runnable: Path, target: Path, how_to: Sequence[str], error: Sequence[str]
) -> float:
    """Write the card of `policy` to `target`; the time of one migration's draw [ns].

    runnable: the exported blob or library, whose times are measured; how_to: lines that say how it is used;
    error: of rounded weights, as rounding.py words it. UserError if the run's records are damaged.
    """
    costs = measure(runnable)
    name = policy.run.resolve().name if policy.run else policy.path.name
    sections = [
        [f"# Policy of a rack's servers {name}", ""],
        _what(policy, runnable),
        ["## Use", "", *how_to, ""],
        training(policy.run),
        evaluation(policy.path, policy.run, RACK),
        _cost(policy, costs),
        error,
        _limits(policy),
        ["## Interface", "", "```", policy.spec["schema"], "```", ""],
    ]
    target.write_text("\n".join(line for section in sections for line in section), "utf-8")
    return costs["migrate_ns"]


def measure(runnable: Path) -> dict[str, float]:
    """Times of what a server does [ns]: the least of some repetitions, each the mean over many calls."""
    policy = native.RackPolicy(runnable)
    policy.costs(_CALLS)
    runs = [policy.costs(_CALLS) for _ in range(_REPETITIONS)]
    return {key: min(run[key] for run in runs) for key in _COSTS}


def _what(policy: RackFile, runnable: Path) -> list[str]:
    spec, config = policy.spec, policy.spec["config"]
    weights = [float(np.abs(matrix).max()) for matrix in policy.matrices]
    facts = [
        ("file", f"`{runnable.name}`"),
        ("policy SHA-256", f"`{policy.sha256}`"),
        ("exported by", f"steelyard {metadata.version('steelyard')}"),
        ("servers of the rack", str(spec["num_servers"])),
        ("actors", "two per server, linear and softmax: migration, stealing"),
        ("reads", f"{config.inputs}: {spec['num_inputs']} inputs, as the server knows them"),
        ("load", "tasks x mean service time / workers"),
        ("unit of load, greatest", f"{1e6 * config.load_unit_s:g} us, {config.load_cap:g} units"),
        ("service times averaged as", config.rate_average),
        ("smoothing of told loads", f"{config.load_smoothing:g}"),
        ("steals with fewer waiting than", str(config.steal_below)),
        ("weights", f"{spec['weights']}, up to {weights[0]:.3g} (migration) and {weights[1]:.3g} (stealing)"),
        ("parameters per server", str(spec["actors"].shape[1])),
        ("rack schema", f"`{spec['schema_hash']:#018x}`"),
    ]
    return table(["", ""], facts)


def _cost(policy: RackFile, costs: dict[str, float]) -> list[str]:
    lines = ["## Decision cost", "", f"Least of {_REPETITIONS} means over {_CALLS} calls; {machine()}.", ""]
    lines += table(["what", "ns"], [(_COSTS[key], f"{value:.1f}") for key, value in costs.items()])
    n = policy.spec["num_servers"]
    return [
        *lines,
        f"A server hears {n - 1} load messages a period and draws once per task. It allocates nothing",
        "then, and needs neither Python nor a math library.",
        "",
    ]


def _limits(policy: RackFile) -> list[str]:
    n = policy.spec["num_servers"]
    limits = [
        f"Serves racks of exactly {n} servers, in their order; others are refused. Their workers may differ "
        "from those of the training, which the file does not hold: then what was measured says little.",
        "Learns no more: the critics stay with the run.",
        "Logits that are not finite keep every task and steal none; loads that are not finite are ignored.",
        "Loads that are stale are taken as they are: it was trained with the broadcast period above.",
        "Behaviour outside the training scenario (other load, service times or period) is unknown unless it "
        "stands in the table above.",
    ]
    if policy.run is not None:
        limits += known_failures(policy.path, policy.run, RACK)
    return ["## Limits and known failures", "", *(f"- {limit}" for limit in limits), ""]
