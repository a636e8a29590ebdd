"""Sim to real: the same policies on the same flows, simulated and on a testbed of real Apache servers.

The simulator is told what the testbed measured: the mean CPU time that servers spent on a request, of each
episode its own, since a machine's speed drifts. Under a seed both play the same arrivals, and demands that
differ by one factor.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from steelyard.benchmarks import dataplane_gaps
from steelyard.benchmarks.live_figure import METRICS, live_beside_simulated
from steelyard.envs.errors import UserError
from steelyard.trainers import results
from steelyard.trainers.commands import common

if TYPE_CHECKING:
    from steelyard.envs.scenario import Scenario
    from steelyard.trainers.results import Row

POLICIES = ("ecmp", "wcmp", "lsq", "sed", "hlb")


@dataclass(kw_only=True)
class SimToReal:
    """Play policies on a testbed and in the simulator that it configures; write table, rows and manifest.

    Needs root and a machine with nothing else to do. Example:
    steelyard sim-to-real --policy distr-lb=runs/testbed --seeds 0:3
    steelyard sim-to-real --dataplane lb,vpp,vpp-lb --out benchmarks/results/sim-to-real-vpp
    """

    scenario: common.ScenarioName = "testbed-2x4"
    """What the testbed is to be."""
    policy: Annotated[tuple[str, ...], tyro.conf.arg(metavar="POLICY"), tyro.conf.UseAppendAction] = ()
    """Beside ecmp, wcmp, lsq, sed and hlb: a run directory or policy file; repeat for more."""
    seeds: Annotated[str, tyro.conf.arg(metavar="A:B")] = "0:3"
    """Episodes with seeds A, A+1, ..., B-1."""
    dataplane: Annotated[str, tyro.conf.arg(metavar="A,B,...")] = "lb"
    """What forwards: lb, vpp, and, which only hash, kernel and vpp-lb; every policy by each that can."""
    overrides: common.Overrides = ()
    """Change a value of the scenario (--set episode.horizon_s=60)."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = "benchmarks/results/sim-to-real"
    """Where table.md, figure.png, rows.csv, summary.json and manifest.json go."""
    name: str = field(default="steelyard")
    """Of the testbed."""
    quiet: common.Quiet = False
    """Print nothing but errors."""

    def run(self) -> int:
        """Play, simulate, compare, write."""
        from steelyard.deploy.testbed import live, site

        directory = results.check_directory("--out", self.out)
        dataplanes = dataplane_gaps.parse(self.dataplane)
        seeds = common.parse_seeds(self.seeds)
        scenario = site.load(self.scenario, self.overrides)
        contenders = live.parse([*POLICIES, *self.policy])
        began, load = time.monotonic(), os.getloadavg()[0]
        options = live.Options(self.name, dataplanes, keep=False)
        tell = live.silent if self.quiet else _progress
        rows = live.run_live([scenario], contenders, seeds, options, tell)
        twin = configured(scenario, rows)
        played, simulated = dataplane_gaps.label(rows, simulate(scenario, contenders, rows))
        summary = compare(played, simulated) | {"load_average_before": load, "processors": os.cpu_count()}
        summary |= dataplane_gaps.compare(played, summary) | dataplane_gaps.versions(dataplanes)
        members = {member.name: member.source for each in contenders for member in each.members}
        manifest = results.manifest(
            results.command_line("sim-to-real", self),
            [scenario, twin],
            members,
            seeds,
            wall_s=round(time.monotonic() - began, 1),
        )
        write(directory, summary, played, simulated, manifest)
        if not self.quiet:
            print(table(summary) + dataplane_gaps.table(summary))
        return 0


def configured(scenario: Scenario, rows: Sequence[Row]) -> Scenario:
    """The scenario with the demand that the servers really had: its mean is that of the measured CPU time."""
    measured_s = _overall(rows, "service_mean_s")
    tree = scenario.to_dict()
    tree["scenario"]["name"] = f"{scenario.name}-measured"
    tree["scenario"].pop("offered_load", None)
    (stage,) = tree["workload"]["stages"]
    demand = stage["demand"]
    if demand["kind"] == "trace":
        demand["scale"] = 1.0
    elif "mean_s" in demand:
        demand["mean_s"] = measured_s
    else:
        raise UserError(
            f"workload.stages.0.demand.kind = {demand['kind']!r}: must have a mean, or be a trace"
        )
    return type(scenario).from_dict(tree)


def simulate(scenario: Scenario, contenders: Sequence[Any], live: Sequence[Row]) -> list[Row]:
    """The same episodes in the simulator, each with the demand that was measured in it."""
    from steelyard.trainers import evaluation

    rows: list[Row] = []
    for row in live:
        (contender,) = (each for each in contenders if each.label == row["contender"])
        alone = [replace(contender, members=contender.members[row["run"] : row["run"] + 1])]
        twin = configured(scenario, [row])
        study = evaluation.Study([twin], alone, range(row["seed"], row["seed"] + 1))
        rows += [
            {**each, "run": row["run"]} for each in evaluation.run_cells(study, evaluation.prepare(study))
        ]
    return rows


def compare(live: Sequence[Row], simulated: Sequence[Row]) -> dict[str, Any]:
    """By metric: each contender's means over episodes [s], live and simulated, the relative gap, and the rank
    correlation (Spearman) of the contenders' means.
    """
    names = list(dict.fromkeys(row["contender"] for row in live))
    found: dict[str, Any] = {"contenders": names, "episodes": len(live) // len(names)}
    for metric in METRICS:
        real, model = ([_mean(rows, name, metric) for name in names] for rows in (live, simulated))
        found[metric] = {
            "live": real,
            "simulated": model,
            "gap": [a / b - 1 for a, b in zip(real, model, strict=True)],
            "rank_correlation": rank_correlation(real, model),
        }
    found["service_mean_s"] = _overall(live, "service_mean_s")
    found["lag_p99_s"] = max(row["lag_p99_s"] for row in live)
    found["failed"] = sum(row["rejected"] for row in live)
    found["lb_cpu_share"] = {name: _mean(live, name, "lb_cpu_share") for name in names}
    return found


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: the correlation of the ranks, ties at their mean rank; NaN if one side is all ties."""
    import numpy as np

    def ranks(values: Sequence[float]) -> np.ndarray:
        array = np.asarray(values, float)
        below = (array[:, None] > array[None, :]).sum(1)
        return below + ((array[:, None] == array[None, :]).sum(1) - 1) / 2

    mine, theirs = ranks(one), ranks(other)
    if np.ptp(mine) == 0 or np.ptp(theirs) == 0:
        return float("nan")
    return float(np.corrcoef(mine, theirs)[0, 1])


def table(summary: dict[str, Any]) -> str:
    """Markdown: mean, p50, p90 and p99 [ms] of each contender, live, simulated and the gap."""
    head = ["policy", *(f"{short} {what}" for short in METRICS.values() for what in ("live", "sim", "gap"))]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for index, name in enumerate(summary["contenders"]):
        cells = [name]
        for metric in METRICS:
            values = summary[metric]
            cells += [f"{1e3 * values[side][index]:.1f}" for side in ("live", "simulated")]
            cells.append(f"{100 * values['gap'][index]:+.0f} %")
        lines.append("| " + " | ".join(cells) + " |")
    ranks = [f"{short} {summary[metric]['rank_correlation']:.2f}" for metric, short in METRICS.items()]
    return (
        "\n".join(lines)
        + f"\n\nRank correlation of the policies, live against simulated: {', '.join(ranks)}.\n"
    )


def write(
    directory: Path, summary: dict[str, Any], live: Sequence[Row], simulated: Sequence[Row], manifest: Any
) -> None:
    """table.md, figure.png, rows.csv, summary.json, manifest.json."""
    results.make_directory("--out", directory)
    notes = (
        "# Sim to real\n\n"
        f"Sojourn [ms], means over {summary['episodes']} episodes for each policy; live on Apache servers, "
        f"simulated with the mean CPU time measured in each episode "
        f"({1e3 * summary['service_mean_s']:.2f} ms over all). "
        f"{summary['failed']} requests failed live; the client was late by at most "
        f"{1e3 * summary['lag_p99_s']:.1f} ms (p99 of the worst episode). Load average beforehand: "
        f"{summary['load_average_before']:.1f} on {summary['processors']} processors; beyond what is there, "
        "servers do not get their shares and the live numbers say little. Command and versions: "
        "manifest.json.\n\n"
    )
    text = notes + table(summary) + dataplane_gaps.table(summary)
    results.write_file("--out", directory / "table.md", text.encode())
    sides = {"simulated": simulated, "live": live}
    figure = live_beside_simulated(sides, "contender")
    results.write_file("--out", directory / "figure.png", figure)
    rows = [{**row, "where": "live"} for row in live] + [{**row, "where": "simulated"} for row in simulated]
    results.write_table("--out", directory / "rows.csv", rows)
    results.write_json("--out", directory / "summary.json", summary)
    results.write_json("--out", directory / "manifest.json", manifest)


def _mean(rows: Sequence[Row], name: str, metric: str) -> float:
    values = [row[metric] for row in rows if row["contender"] == name]
    return float(sum(values) / len(values))


def _overall(rows: Sequence[Row], metric: str) -> float:
    """Mean over requests."""
    return sum(row[metric] * row["flows"] for row in rows) / sum(row["flows"] for row in rows)


def _progress(done: int, total: int, what: str) -> None:
    if what:
        print(f"{done} of {total}: {what}", file=sys.stderr)
