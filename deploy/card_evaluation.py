"""What a model card says of evaluations: latencies with intervals, gaps to rivals, known failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from steelyard.agents.rules import rule_names
from steelyard.deploy import evaluation_file
from steelyard.deploy.card_parts import table
from steelyard.deploy.evaluation_file import CLUSTER, EVALUATION_FILE, Gap, Metrics, Record, Summary
from steelyard.envs.rack_native import rack_rule_names


def evaluation(path: Path, run: Path | None, metrics: Metrics) -> list[str]:
    """The section: summaries, gaps to rivals. path: of the policy. UserError if the records are damaged."""
    lines = ["## Evaluation", ""]
    records = evaluation_file.read_records(run / EVALUATION_FILE, metrics) if run else []
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
    what = [f"{word} {metrics.what} [{metrics.unit}]" for word in ("mean", "p99")]
    head = ["scenario", "policy", "episodes", "seeds", *what, metrics.count]
    lines += ["Means over held-out episodes with 95 % bootstrap intervals.", ""]
    found = evaluation_file.summarise(records, metrics)
    lines += table(head, (_summary_cells(summary, metrics) for summary in found))
    gaps = _gaps(path, records, metrics)
    if gaps:
        compared = what[(metrics.mean, metrics.tail).index(metrics.compared)].partition(" [")[0]
        lines += [f"Difference of the {compared} to each rival, paired by seed; below zero is better.", ""]
        head = ["scenario", "policy", "rival", f"difference [{metrics.unit}]"]
        lines += table(head, (_gap_cells(gap, metrics) for gap in gaps))
    return lines


def known_failures(path: Path, run: Path, metrics: Metrics) -> list[str]:
    """Where rivals are clearly better, and whether the records are older than the policy."""
    file = run / EVALUATION_FILE
    worse = [
        gap
        for gap in _gaps(path, evaluation_file.read_records(file, metrics), metrics)
        if gap.difference.low > 0
    ]
    failures = [
        f"On {gap.scenario}, {gap.policy} is slower than {gap.rival} by "
        f"{gap.difference.shown(metrics.form)} {metrics.unit} (95 % interval clear of zero)."
        for gap in worse
    ]
    if file.is_file() and file.stat().st_mtime < path.stat().st_mtime:
        failures.append(
            f"{EVALUATION_FILE} is older than the policy: it may describe an earlier state of it."
        )
    return failures


def _summary_cells(summary: Summary, metrics: Metrics) -> list[str]:
    return [
        summary.scenario,
        summary.policy,
        str(summary.episodes),
        summary.seeds,
        summary.mean.shown(metrics.form),
        summary.tail.shown(metrics.form),
        str(summary.count),
    ]


def _gap_cells(gap: Gap, metrics: Metrics) -> list[str]:
    return [gap.scenario, gap.policy, gap.rival, gap.difference.shown(metrics.form)]


def _gaps(path: Path, records: Sequence[Record], metrics: Metrics) -> list[Gap]:
    names = _own_names(path, records, metrics)
    return [gap for name in names for gap in evaluation_file.gaps(records, name, metrics)]


def _own_names(path: Path, records: Sequence[Record], metrics: Metrics) -> list[str]:
    """Under which names the policy may stand in the records: its run's, else every name that is no rule."""
    rules = set(rule_names() if metrics is CLUSTER else rack_rule_names())
    names = dict.fromkeys(record["policy"] for record in records)
    learned = [name for name in names if name.partition(":")[0] not in rules]
    places = {path.resolve(), path.resolve().parent}
    run = path.resolve().parent.name
    own = [name for name in learned if name.split("/")[-1] == run or Path(name).resolve() in places]
    return own or learned
