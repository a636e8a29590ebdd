"""The model card beside an exported policy: what it is, how it was made, what it was measured to do, limits.

After Mitchell et al., "Model Cards for Model Reporting", 2019: what is on record, and in words what is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from steelyard import native
from steelyard.agents.layout import central_bytes_per_step
from steelyard.deploy.card_evaluation import evaluation, known_failures
from steelyard.deploy.card_parts import machine, table, training
from steelyard.deploy.evaluation_file import CLUSTER
from steelyard.deploy.policy_file import PolicyFile

CARD = "MODEL_CARD.md"
_REPETITIONS, _CALLS = 15, 1000
_ACTIONS = {
    "tanh": "continuous, the mean action squashed by tanh",
    "clip": "continuous, limited to [-1, 1]",
    "discrete3": "one of the weights 1, 1.5, 2 per server, the largest logit",
}
_INPUTS = {
    "flat": "the whole observation at once; the servers have fixed places",
    "per_server": "one row per server through shared weights; the order of the servers does not matter",
}


def write(
    policy: PolicyFile, runnable: Path, target: Path, how_to: Sequence[str], error: Sequence[str] = ()
) -> float:
    """Write the card of `policy` to `target`; the measured time of one inference [ns].

    runnable: the exported blob or library, whose inference time is measured; how_to: lines that say how it is
    used; error: of rounded weights, as rounding.py words it. UserError if the run's records are damaged.
    """
    cost_ns = measure(runnable)
    sections = [
        [f"# {_title(policy)}", ""],
        _what(policy, runnable),
        ["## Use", "", *how_to, ""],
        training(policy.run),
        evaluation(policy.path, policy.run, CLUSTER),
        _cost(policy, cost_ns),
        error,
        _limits(policy),
        ["## Observation", "", "```", native.observation_schema_text(policy.spec["num_servers"]), "```", ""],
    ]
    target.write_text("\n".join(line for section in sections for line in section), "utf-8")
    return cost_ns


def measure(runnable: Path) -> float:
    """Time of one inference [ns]: the fastest of some repetitions, each the mean over many steps."""
    policy = native.Policy(runnable)
    policy.infer_ns(_CALLS)
    return min(policy.infer_ns(_CALLS) for _ in range(_REPETITIONS))


def _title(policy: PolicyFile) -> str:
    name = policy.run.resolve().name if policy.run else policy.path.name
    return f"Load-balancing policy {name}"


def _what(policy: PolicyFile, runnable: Path) -> list[str]:
    spec = policy.spec
    facts = [
        ("file", f"`{runnable.name}`"),
        ("policy SHA-256", f"`{policy.sha256}`"),
        ("exported by", f"steelyard {metadata.version('steelyard')}"),
        ("servers in the pool", str(spec["num_servers"])),
        ("actors", _actors(spec)),
        ("reads", _INPUTS[spec["input"]]),
        ("layers", "; ".join(policy.layers)),
        ("parameters per actor", f"{policy.parameters}"),
        ("weights", "bfloat16" if policy.bfloat16 else "float32"),
        ("action", _ACTIONS[spec["output"]]),
        ("observation schema", f"`{spec['schema_hash']:#018x}`"),
        ("normalised observation limited to", f"+-{spec['clip']:g}"),
    ]
    return table(["", ""], facts)


def _actors(spec: dict[str, Any]) -> str:
    if agents := central_agents(spec):
        return f"1, central: it decides for all {agents} load balancers at once"
    count = len(spec["actors"])
    return f"{count}, {'shared by all load balancers' if count == 1 else 'one per load balancer'}"


def central_agents(spec: dict[str, Any]) -> int:
    """Load balancers that a central policy decides for; 0 for any other. spec: of native.decode_policy."""
    return int(spec.get("num_agents", 0))


def _cost(policy: PolicyFile, cost_ns: float) -> list[str]:
    agents, servers = central_agents(policy.spec), policy.spec["num_servers"]
    whose = f"for all {agents} load balancers" if agents else "of one load balancer"
    lines = [
        "## Inference cost",
        "",
        f"{cost_ns / 1000:.2f} us per decision {whose} (fastest of {_REPETITIONS} means over",
        f"{_CALLS} steps; {machine()}). It allocates nothing and needs neither Python nor a math library.",
        "",
    ]
    if not agents:
        return lines
    traffic = central_bytes_per_step(agents, servers)
    return [
        *lines,
        f"It exchanges {traffic} bytes per step, in training and for as long as it serves: {agents}",
        f"observations up, {agents} x {servers} weights down, float32.",
        "",
    ]


def _limits(policy: PolicyFile) -> list[str]:
    servers = policy.spec["num_servers"]
    limits = [
        f"Serves pools of exactly {servers} servers that observe by the schema below; others are refused.",
        "Refuses NaN and infinity in an observation and keeps its state; the host's own rule then decides.",
        "Its state starts at zero; after a reset the first decisions rest on little history.",
        "Behaviour outside the training scenario (other load, capacities or demand) is unknown unless it "
        "stands in the table above.",
    ]
    if agents := central_agents(policy.spec):
        limits += [
            f"Serves exactly {agents} load balancers, in their order; hosts with another number refuse it.",
            "Needs every balancer's observation at every step and reads zeros for one that has failed. "
            "Cut off itself, it leaves the balancers with their last weights.",
        ]
    if policy.spec["input"] == "flat":
        limits.append("Servers have fixed places: permuting them changes its decisions.")
    if policy.run is not None:
        limits += known_failures(policy.path, policy.run, CLUSTER)
    return ["## Limits and known failures", "", *(f"- {limit}" for limit in limits), ""]
