"""Sweeps on Ray Tune: of both engines, their best hyper-parameters, and what a killed one goes on with."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rllib_runs import SHORT, rows

from steelyard.trainers import cli

pytest.importorskip("ray.rllib")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]

SWEEP = """
scenario = "cluster-a-cpu"
set = ["episode.horizon_s=10"]
engine = "local"
algo = "rlb-sac"
episodes = 8
scheduler = "{scheduler}"
[space]
hidden = {{grid = [4, 8]}}
num_envs = 2
updates_per_episode = 1.0
"""


def sweep_line(tmp_path: Path, *more: str) -> list[str]:
    return ["sweep", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "out"), "--threads", "2", *more]


def test_a_sweep_of_the_engine_and_its_best(tmp_path: Path) -> None:
    text = SWEEP.format(scheduler="asha").replace('"local"', '"rllib"').replace('"rlb-sac"', '"ippo"')
    text = text.replace("updates_per_episode = 1.0", "minibatch = 20\nfit_episodes = 2")
    (tmp_path / "sweep.toml").write_text(text)
    assert cli.main(sweep_line(tmp_path, "--quiet")) == 0
    with open(tmp_path / "out" / "results.csv") as stream:
        table = list(csv.DictReader(stream))
    assert sorted(row["hidden"] for row in table) == ["4", "8"]
    assert all(row["status"] == "TERMINATED" for row in table)
    sojourns = [float(row["eval_sojourn_s"]) for row in table]
    assert sojourns == sorted(sojourns)
    for row in table:
        progress = rows(tmp_path / "out" / "trials" / row["trial"], "progress")
        assert float(progress[-1]["eval_sojourn_s"]) == float(row["eval_sojourn_s"])
    best = ["--hyper", str(tmp_path / "out" / "best.toml"), "--episodes", "2", "--quiet", *SHORT]
    line = ["train", "--engine", "rllib", "--algo", "ippo", "--scenario", "cluster-a-cpu", *best]
    assert cli.main([*line, "--run", str(tmp_path / "again")]) == 0
    hyper = json.loads((tmp_path / "again" / "config.json").read_text())["hyper"]
    assert hyper["hidden"] == int(table[0]["hidden"])
    assert hyper["fit_episodes"] == 2


def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    """Killed at the moment its first trial ends: that one is not done again, none is lost."""
    (tmp_path / "sweep.toml").write_text(SWEEP.format(scheduler="none").replace("[4, 8]", "[4, 6, 8]"))
    line = [sys.executable, "-m", "steelyard.trainers.cli", *sweep_line(tmp_path)]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for text in process.stderr:
        if text.startswith("trial 1:"):
            break
    process.kill()
    process.communicate(timeout=60)
    trials = tmp_path / "out" / "trials"
    ended = {
        each.with_name("episodes.csv"): each.with_name("episodes.csv").stat().st_mtime_ns
        for each in trials.glob("*/budget.json")  # the last file that a trial writes
        if json.loads(each.read_text())["episodes"] == 8
    }
    assert ended
    assert not (tmp_path / "out" / "results.csv").exists()
    assert cli.main(sweep_line(tmp_path, "--resume", "--quiet")) == 0
    assert {each: each.stat().st_mtime_ns for each in ended} == ended
    with open(tmp_path / "out" / "results.csv") as stream:
        table = list(csv.DictReader(stream))
    assert sorted(int(row["hidden"]) for row in table) == [4, 6, 8]
    assert all(len(rows(trials / row["trial"], "episodes")) == 8 for row in table)
    assert len(list(trials.glob("*/config.json"))) == 3
