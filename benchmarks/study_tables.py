"""Tables of a study, from its summary (plain data, as summary.json holds it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steelyard.benchmarks import summary
from steelyard.benchmarks.page import Inline, Table
from steelyard.benchmarks.study import Study

BUDGET_HEADER = ("env steps", "CPU [s]", "exchanged [MB]")
"""Of budget_cells: means of one training run."""
FORM = "#.4g"
"""Of values: four digits, also where they are zeros."""
_MEGABYTE = 1e6


def case_table(found: Mapping[str, Any], case: str) -> Table:
    """Policies of a case, best first."""
    metrics, policies = found["metrics"], found["cases"][case]["policies"]
    rivals = list(dict.fromkeys(name for policy in policies.values() for name in policy["versus"]))
    header = ["policy", *metrics]
    for name in rivals:
        header += [f"vs {name} [%]", *([f"P(better than {name})"] if name == rivals[0] else [])]
    rows = []
    for label in summary.ranked(policies, metrics[0]):
        policy = policies[label]
        row = [_label(label, policy), *(estimate(policy["metrics"][m]["iqm"]) for m in metrics)]
        for name in rivals:
            gap = policy["versus"].get(name)
            cells = ["", ""]
            if gap is not None:
                cells = [percent(gap["relative"]), estimate(gap["improvement"], ".2f")]
            row += cells if name == rivals[0] else cells[:1]
        rows.append(row)
    return Table(header, rows)


def group_table(
    found: Mapping[str, Any],
    names: Sequence[str],
    metric: str = "",
    relative: bool = False,
    group: str = "",
) -> Table:
    """Policies x cases: a metric (without one that which ranks), or its gap to the reference in per cent."""
    metric, reference = metric or found["metrics"][0], found["reference"]
    labels = dict.fromkeys(label for name in names for label in found["cases"][name]["policies"])
    rows = []
    for label in labels:
        row = [label]
        for name in names:
            policy = found["cases"][name]["policies"].get(label)
            if policy is None:
                row.append("")
            elif relative:
                gap = policy["versus"].get(reference)
                row.append("" if gap is None else percent(gap["relative"]))
            else:
                row.append(estimate(policy["metrics"][metric]["iqm"]))
        rows.append(row)
    shown = [name.removeprefix(f"{group}, ") for name in names]
    return Table([f"vs {reference} [%]" if relative else metric, *shown], rows)


def overall_table(found: Mapping[str, Any]) -> Table:
    """Scores over all cases, best first."""
    reference, metrics = found["reference"], found["metrics"]
    everyone = found["overall"]
    metrics = [
        name for name in metrics[1:] if any(name in held["other_scores"] for held in everyone.values())
    ]
    header = ["policy", f"score: {reference} / own", *(f"score by {name}" for name in metrics), "cases"]
    rows = [
        [
            label,
            estimate(everyone[label]["score"]),
            *(estimate(everyone[label]["other_scores"].get(name)) for name in metrics),
            str(len(everyone[label]["cases"])),
        ]
        for label in sorted(everyone, key=lambda label: -everyone[label]["score"]["value"])
    ]
    return Table(header, rows)


def quoted_table(study: Study, found: Mapping[str, Any]) -> Table:
    """Numbers of papers beside ours: the mean over episodes, since that is what papers give."""
    header = ["case", "policy", "metric", "paper", "ours (mean)", "ours / paper - 1 [%]", "source", "note"]
    rows: list[list[Inline]] = []
    for quoted in study.entry.quoted:
        policy = found["cases"][quoted.case]["policies"].get(quoted.policy)
        paper = number(quoted.value) + ("" if quoted.spread is None else f" ± {number(quoted.spread)}")
        ours, ratio = "", ""
        if policy is not None:
            metric = policy["metrics"][quoted.metric]
            ours = f"{estimate(metric['mean'])}, ± {number(metric['std'])}"
            ratio = f"{100 * (metric['mean']['value'] / quoted.value - 1):+.1f}" if quoted.value else ""
        rows.append(
            [quoted.case, quoted.policy, quoted.metric, paper, ours, ratio, quoted.source, quoted.note]
        )
    return Table(header, rows, words=True)


def budget_cells(learner: Mapping[str, Any]) -> list[str]:
    """Environment steps, CPU seconds, megabytes exchanged: means over a learner's finished runs."""
    values = []
    for key in ("env_steps", "cpu_s", "bytes_exchanged"):
        known = [run["budget"][key] for run in learner["runs"] if run["finished"]]
        if not known or any(value is None for value in known):
            values.append("")
        else:
            mean = sum(known) / len(known)
            values.append(f"{mean / _MEGABYTE:,.1f}" if key == "bytes_exchanged" else f"{mean:,.0f}")
    return values


def estimate(value: Mapping[str, Any] | None, form: str = FORM) -> str:
    """value [low, high]; nothing if there is no number."""
    if value is None or value["value"] is None or value["value"] != value["value"]:
        return ""
    if value["low"] == value["high"] == value["value"]:
        return number(value["value"], form)
    low, high = (number(value[end], form) for end in ("low", "high"))
    return f"{number(value['value'], form)} [{low}, {high}]"


def percent(value: Mapping[str, Any]) -> str:
    """As `estimate`, of a share, in per cent with sign."""
    if value["value"] is None or value["value"] != value["value"]:
        return ""
    scaled = {key: None if held is None else 100 * held for key, held in value.items()}
    return estimate(scaled, "+.1f")


def number(value: float | None, form: str = FORM) -> str:
    """A number; large ones without exponent."""
    if value is None or value != value:
        return ""
    if form != FORM:
        return f"{value:{form}}"
    return f"{value:,.0f}" if value == 0 or abs(value) >= 1e4 else f"{value:{form}}".rstrip(".")


def _label(label: str, policy: Mapping[str, Any]) -> str:
    return label if policy["runs"] == 1 else f"{label} ({policy['runs']} runs)"
