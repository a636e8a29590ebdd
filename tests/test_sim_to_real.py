"""The table of sim to real: what the simulator is told, gaps, ranks, files."""

import json
import math
from pathlib import Path

import pytest

from steelyard.benchmarks import sim_to_real
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario


def row(contender: str, mean_s: float, **more: float) -> dict[str, object]:
    """An episode whose every percentile is its mean."""
    fixed = {"contender": contender, "flows": 100, "rejected": 1, "service_mean_s": 0.012, "lag_p99_s": 0.001}
    return {**fixed, **dict.fromkeys(sim_to_real.METRICS, mean_s), "lb_cpu_share": 0.1, **more}


def test_rank_correlation_is_spearmans() -> None:
    assert sim_to_real.rank_correlation([1, 2, 3, 4], [10, 20, 30, 99]) == pytest.approx(1)
    assert sim_to_real.rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    # 1 - 6 sum d^2 / (n (n^2 - 1)) with d = (0, 1, 1, 0)
    assert sim_to_real.rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(1 - 6 * 2 / 60)
    assert math.isnan(sim_to_real.rank_correlation([1, 1], [1, 2]))


def test_simulator_is_told_the_measured_mean() -> None:
    scenario = Scenario.load("testbed-2x4")
    rows = [row("a", 1.0), row("b", 1.0, service_mean_s=0.018, flows=200)]
    twin = sim_to_real.configured(scenario, rows)
    assert twin.workload.stages[0].demand.mean_s == pytest.approx((0.012 + 2 * 0.018) / 3)
    assert twin.name == "testbed-2x4-measured"
    uniform = scenario.with_overrides(['workload.stages.0.demand={kind="uniform",low_s=0,high_s=1}'])
    with pytest.raises(UserError, match=r"workload\.stages\.0\.demand\.kind"):
        sim_to_real.configured(uniform, rows)


def test_gaps_and_files(tmp_path: Path) -> None:
    live = [row("a", 0.2), row("a", 0.4), row("b", 0.1), row("b", 0.1)]
    simulated = [row("a", 0.2), row("a", 0.2), row("b", 0.1), row("b", 0.1)]
    summary = sim_to_real.compare(live, simulated)
    assert summary["sojourn_mean_s"]["gap"] == pytest.approx([0.5, 0.0])
    assert summary["sojourn_mean_s"]["rank_correlation"] == pytest.approx(1)
    assert summary["failed"] == 4
    assert summary["episodes"] == 2
    summary |= {"load_average_before": 0.5, "processors": 2}
    sim_to_real.write(tmp_path / "out", summary, live, simulated, {"command": "steelyard sim-to-real"})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "figure.png",
        "manifest.json",
        "rows.csv",
        "summary.json",
        "table.md",
    ]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["contenders"] == ["a", "b"]
    assert "| a | 300.0 | 200.0 | +50 % |" in (tmp_path / "out" / "table.md").read_text()
