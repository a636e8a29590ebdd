"""The same policies on the same flows by several dataplanes: names, ranks and differences for sim to real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steelyard.benchmarks.live_figure import METRICS
from steelyard.envs.errors import UserError, unknown

if TYPE_CHECKING:
    from steelyard.trainers.results import Row

_LEAST = 3
"""Contenders of a dataplane that make a rank correlation."""


def parse(text: str) -> tuple[str, ...]:
    """Dataplanes of "lb,vpp,vpp-lb". UserError for one that is not known or named twice."""
    from steelyard.deploy.testbed import balancers

    names = tuple(text.split(","))
    for name in names:
        if name not in balancers.DATAPLANES:
            raise unknown("dataplane", name, balancers.DATAPLANES)
    if len(set(names)) < len(names):
        raise UserError(f"--dataplane {text}: names one twice")
    return names


def label(live: Sequence[Row], simulated: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Rows of several dataplanes, the dataplane in the contender's name (`lsq by vpp`); of one as they are.

    simulated: the twin of each live row, in the same order.
    """
    if len({row["dataplane"] for row in live}) == 1:
        return list(live), list(simulated)
    names = [f"{row['contender']} by {row['dataplane']}" for row in live]
    own = [{**row, "policy_name": row["contender"]} for row in live]
    return (
        [{**row, "contender": name} for row, name in zip(own, names, strict=True)],
        [{**row, "contender": name} for row, name in zip(simulated, names, strict=True)],
    )


def compare(live: Sequence[Row], summary: dict[str, Any]) -> dict[str, Any]:
    """What several dataplanes add to a summary; nothing for one.

    by_dataplane: its contenders' rank correlations and its balancers' share of a processor; against_first: by
    contender, the mean sojourn minus that of the first dataplane under the same seed: mean, least and largest
    over episodes [s].
    """
    from steelyard.benchmarks import sim_to_real

    planes = list(dict.fromkeys(row["dataplane"] for row in live))
    if len(planes) == 1:
        return {}
    of = {row["contender"]: row["dataplane"] for row in live}
    found: dict[str, Any] = {"by_dataplane": {}, "against_first": {}}
    for plane in planes:
        at = [index for index, name in enumerate(summary["contenders"]) if of[name] == plane]
        ranks = {}
        for metric in METRICS if len(at) >= _LEAST else ():
            sides = ([summary[metric][side][index] for index in at] for side in ("live", "simulated"))
            ranks[metric] = sim_to_real.rank_correlation(*sides)
        shares = [row["lb_cpu_share"] for row in live if row["dataplane"] == plane]
        found["by_dataplane"][plane] = {
            "rank_correlation": ranks,
            "lb_cpu_share": sum(shares) / len(shares),
        }
    first = {_key(row): row["sojourn_mean_s"] for row in live if row["dataplane"] == planes[0]}
    for name, plane in of.items():
        rows = [row for row in live if row["contender"] == name]
        gaps = [row["sojourn_mean_s"] - first[_key(row)] for row in rows if _key(row) in first]
        if plane != planes[0] and gaps:
            found["against_first"][name] = {
                "difference_s": sum(gaps) / len(gaps),
                "least_s": min(gaps),
                "largest_s": max(gaps),
            }
    return found


def table(summary: dict[str, Any]) -> str:
    """Markdown of what `compare` found; empty for one dataplane."""
    if "by_dataplane" not in summary:
        return ""
    planes = summary["by_dataplane"]
    first = next(iter(planes))
    lines = [
        f"\n| mean sojourn beside {first}, same flows [ms] | difference | least | largest |",
        "|---|---:|---:|---:|",
    ]
    for name, gap in summary["against_first"].items():
        cells = (f"{1e3 * gap[key]:+.1f}" for key in ("difference_s", "least_s", "largest_s"))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", *([f"VPP {summary['vpp']}.", ""] if "vpp" in summary else [])]
    for plane, what in planes.items():
        found = what["rank_correlation"]
        ranks = [f"{METRICS[metric]} {value:.2f}" for metric, value in found.items()]
        told = f"rank correlation {', '.join(ranks)}; " if ranks else ""
        lines.append(f"- {plane}: {told}balancers took {100 * what['lb_cpu_share']:.1f} % of a processor")
    return "\n".join(lines) + "\n"


def versions(dataplanes: Sequence[str]) -> dict[str, str]:
    """The version of VPP, if it is among them."""
    from steelyard.deploy import vpp_process
    from steelyard.deploy.testbed import balancers

    return {"vpp": vpp_process.version()} if {balancers.VPP, balancers.VPP_LB} & set(dataplanes) else {}


def _key(row: Row) -> tuple[str, int, int]:
    return row["policy_name"], row["run"], row["seed"]
