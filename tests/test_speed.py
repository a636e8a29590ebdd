"""benchmarks/: the SimPy reference agrees with the simulator, `steelyard bench` has ratios, the demo runs."""

import json
import os

import numpy as np
import pytest

from steelyard import native
from steelyard.benchmarks import demo, speed, wake_up
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import cli


def test_simpy_and_native_agree_on_the_mean_sojourn():
    """Two independent programs with different random numbers: means within 4 standard errors."""
    simpy_reference = pytest.importorskip("steelyard.benchmarks.simpy_reference")
    scenario = Scenario.load("cluster-a-cpu")
    theirs = [simpy_reference.simulate(scenario, seed).sojourn_mean_s for seed in range(40)]
    stats = native.simulate(scenario.to_native(), scenario.to_rule("sed"), list(range(400)))
    ours = [stat["sojourn_mean_s"] for stat in stats]
    error = np.sqrt(np.var(theirs, ddof=1) / len(theirs) + np.var(ours, ddof=1) / len(ours))
    assert abs(np.mean(theirs) - np.mean(ours)) < 4 * error


def test_simpy_reference_refuses_what_it_does_not_know():
    simpy_reference = pytest.importorskip("steelyard.benchmarks.simpy_reference")
    with pytest.raises(UserError, match="cluster-a-75"):
        simpy_reference.simulate(Scenario.load("cluster-a-75"), 0)


def test_ratio_is_how_many_times_better():
    slow = speed.Measurement("slow", "ns", [30.0, 10.0, 20.0], "lower")
    fast = speed.Measurement("fast", "ns", [2.0], "lower", target=3.0, reference="slow")
    many = speed.Measurement("many", "1/s", [40.0], "higher", target=50.0, reference="slow")
    found = {m.name: m for m in (slow, fast, many)}
    assert speed.ratio(slow, found) is None
    assert speed.ratio(fast, found) == 10.0
    assert speed.ratio(many, found) == 2.0
    assert (slow.reached(), fast.reached(), many.reached()) == (None, True, False)


def test_wake_up_comes_to_an_end_where_it_was():
    affinity = os.sched_getaffinity(0)
    here = min(affinity)
    assert wake_up.wake_up_us(here, here, 3) > 0
    assert os.sched_getaffinity(0) == affinity


def test_bench_reports_every_measurement(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(speed, "_INFERENCES", 10)
    out = tmp_path / "bench.json"
    assert cli.main(["bench", "--repeats", "1", "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    names = [m["name"] for m in document["measurements"]]
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)
    assert all(m["median"] > 0 for m in document["measurements"])
    assert document["versions"]["steelyard"]
    for m in document["measurements"]:
        assert (m["ratio"] is None) == (m["reference"] not in names)


@pytest.mark.slow
def test_demo_goes_from_training_to_a_compiled_policy(tmp_path, capsys):
    """A demo of a few episodes and seeds: every step works and names its files."""
    assert demo.Demo(episodes=16, seeds="0:3", out=str(tmp_path / "demo")).run() == 0
    out = capsys.readouterr().out
    assert "to the bit" in out
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
    for name in (*demo.RULES, demo.LEARNED):
        assert name in out
