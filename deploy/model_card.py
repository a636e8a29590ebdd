"""The model card beside an exported policy: what it is, how it was made, what it was measured to do, limits.

After Mitchell et al., "Model Cards for Model Reporting", 2019: what is on record, and in words what is not.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from steelyard import native
from steelyard.agents.layout import central_bytes_per_step
from steelyard.agents.rules import rule_names
from steelyard.deploy import evaluation_file
from steelyard.deploy.evaluation_file import EVALUATION_FILE, Gap, Record, Summary
from steelyard.deploy.policy_file import PolicyFile
from steelyard.envs.errors import UserError

CARD = "MODEL_CARD.md"
_REPETITIONS, _CALLS = 15, 1000
_MAX_VALUE = 120
_ACTIONS = {
    "tanh": "continuous, the mean action squashed by tanh",
    "clip": "continuous, limited to [-1, 1]",
    "discrete3": "one of the weights 1, 1.5, 2 per server, the largest logit",
}
_INPUTS = {
    "flat": "the whole observation at once; the servers have fixed places",
    "per_server": "one row per server through shared weights; the order of the servers does not matter",
}


def write(policy: PolicyFile, runnable: Path, target: Path, how_to: Sequence[str]) -> float:
    """Write the card of `policy` to `target`; the measured time of one inference [ns].

    runnable: the exported blob or library, whose inference time is measured; how_to: lines that say how it is
    used. UserError if the run's records are damaged.
    """
    cost_ns = measure(runnable)
    sections = [
        [f"# {_title(policy)}", ""],
        _what(policy, runnable),
        ["## Use", "", *how_to, ""],
        _training(policy.run),
        _evaluation(policy),
        _cost(policy, cost_ns),
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a run directory; empty if there is no such file, UserError if it is damaged."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); the run directory is damaged") from error
    if not isinstance(found, dict):
        raise UserError(
            f"{path}: holds a {type(found).__name__}, not an object; the run directory is damaged"
        )
    return found


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and printable values of nested JSON objects."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))
        return
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split()).replace("|", "\\|")
    yield prefix, text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 3] + "..."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


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


def _training(run: Path | None) -> list[str]:
    lines = ["## Training", ""]
    if run is None:
        return [*lines, "Not on record: the policy was exported from a file without its run directory.", ""]
    config, manifest = read_json(run / "config.json"), read_json(run / "manifest.json")
    if not config and not manifest:
        return [*lines, "Not on record: the run directory has neither config.json nor manifest.json.", ""]
    if config:
        lines += table(["setting", "value"], flatten(config))
    if manifest:
        lines += ["### Versions and command", ""]
        lines += table(["", ""], flatten({k: v for k, v in manifest.items() if k != "scenarios"}))
    return lines


def _evaluation(policy: PolicyFile) -> list[str]:
    lines = ["## Evaluation", ""]
    records = evaluation_file.read_records(policy.run / EVALUATION_FILE) if policy.run else []
    if not records:
        return [
            *lines,
            f"Not evaluated: there is no {EVALUATION_FILE} beside the policy. To add it:",
            "",
            "```",
            f"steelyard evaluate --scenario NAME --policy RUN --policy sed --json RUN/{EVALUATION_FILE}",
            "```",
            "",
        ]
    head = ["scenario", "policy", "episodes", "seeds", "mean sojourn [s]", "p99 sojourn [s]", "rejected"]
    lines += ["Means over held-out episodes with 95 % bootstrap intervals.", ""]
    lines += table(head, (_summary_cells(summary) for summary in evaluation_file.summarise(records)))
    found = _gaps(policy, records)
    if found:
        lines += ["Difference of the mean sojourn to each rival, paired by seed; below zero is better.", ""]
        lines += table(["scenario", "policy", "rival", "difference [s]"], (_gap_cells(gap) for gap in found))
    return lines


def _summary_cells(summary: Summary) -> list[str]:
    return [
        summary.scenario,
        summary.policy,
        str(summary.episodes),
        summary.seeds,
        str(summary.sojourn_mean_s),
        str(summary.sojourn_p99_s),
        str(summary.rejected),
    ]


def _gap_cells(gap: Gap) -> list[str]:
    return [gap.scenario, gap.policy, gap.rival, str(gap.difference_s)]


def _gaps(policy: PolicyFile, records: Sequence[Record]) -> list[Gap]:
    return [gap for name in _own_names(policy, records) for gap in evaluation_file.gaps(records, name)]


def _own_names(policy: PolicyFile, records: Sequence[Record]) -> list[str]:
    """Under which names the policy may stand in the records: its run's, else every name that is no rule."""
    rules = set(rule_names())
    learned = list(dict.fromkeys(r["policy"] for r in records if r["policy"] not in rules))
    places = {path.resolve() for path in (policy.path, policy.run) if path is not None}
    run = policy.path.resolve().parent.name
    own = [name for name in learned if name.split("/")[-1] == run or Path(name).resolve() in places]
    return own or learned


def _cost(policy: PolicyFile, cost_ns: float) -> list[str]:
    where = f"{_processor()}, one core, {platform.system()} {platform.machine()}"
    agents, servers = central_agents(policy.spec), policy.spec["num_servers"]
    whose = f"for all {agents} load balancers" if agents else "of one load balancer"
    lines = [
        "## Inference cost",
        "",
        f"{cost_ns / 1000:.2f} us per decision {whose} (fastest of {_REPETITIONS} means over",
        f"{_CALLS} steps; {where}). It allocates nothing and needs neither Python nor a math library.",
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


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
        limits += _known_failures(policy, policy.run)
    return ["## Limits and known failures", "", *(f"- {limit}" for limit in limits), ""]


def _known_failures(policy: PolicyFile, run: Path) -> list[str]:
    path = run / EVALUATION_FILE
    worse = [gap for gap in _gaps(policy, evaluation_file.read_records(path)) if gap.difference_s.low > 0]
    failures = [
        f"On {gap.scenario}, {gap.policy} is slower than {gap.rival} by {gap.difference_s} s "
        "(95 % interval clear of zero)."
        for gap in worse
    ]
    if path.is_file() and path.stat().st_mtime < policy.path.stat().st_mtime:
        failures.append(
            f"{EVALUATION_FILE} is older than the policy: it may describe an earlier state of it."
        )
    return failures
