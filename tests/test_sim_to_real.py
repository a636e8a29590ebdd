"""The table of sim to real: what the simulator is told, gaps, ranks, files."""

import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest

from steelyard import native
from steelyard.agents import rules
from steelyard.benchmarks import sim_to_real
from steelyard.deploy.testbed import live
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


def test_policies_take_turns_live(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down meanwhile does so for all policies; rows are in the order of policies."""
    asked: list[tuple[str, int]] = []

    def episode(place: object, scenario: Scenario, source: str, seed: int, dataplane: str) -> dict[str, int]:
        asked.append((source, seed))
        return {}

    monkeypatch.setattr(live.balancers, "check", lambda *given: None)
    monkeypatch.setattr(live, "_up", lambda scenario, options: nullcontext())
    monkeypatch.setattr(live, "run_episode", episode)
    rows = live.run_live([Scenario.load("testbed-2x4")], live.parse(["sed", "lsq"]), range(2, 4))
    assert asked == [("sed", 2), ("lsq", 2), ("sed", 3), ("lsq", 3)]
    assert [(each["policy"], each["seed"]) for each in rows] == [
        ("sed", 2),
        ("sed", 3),
        ("lsq", 2),
        ("lsq", 3),
    ]


def test_every_episode_is_simulated_with_its_own_demand() -> None:
    scenario = Scenario.load("testbed-2x4", ["episode.horizon_s=4", "episode.warmup_s=0"])
    measured = {("lsq", 0): 0.004, ("lsq", 1): 0.012, ("sed", 0): 0.012, ("sed", 1): 0.004}
    rows = [
        row(name, 1.0, service_mean_s=mean_s, run=0, seed=seed) for (name, seed), mean_s in measured.items()
    ]
    found = sim_to_real.simulate(scenario, rules.parse_policies(["lsq", "sed"]), rows)
    assert [(each["contender"], each["run"], each["seed"]) for each in found] == [
        (name, 0, seed) for name, seed in measured
    ]
    for each in found:
        mean_s = measured[each["contender"], each["seed"]]
        twin = scenario.with_overrides([f"workload.stages.0.demand.mean_s={mean_s}"])
        (alone,) = native.simulate(twin.to_native(), twin.to_rule(each["contender"]), [each["seed"]])
        assert each["sojourn_mean_s"] == pytest.approx(alone["sojourn_mean_s"])


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
