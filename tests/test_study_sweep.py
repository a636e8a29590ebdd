"""`steelyard study` as a whole: killed, resumed, failing, refused."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from steelyard.benchmarks import study_runs, sweep
from steelyard.benchmarks.study import Study, load_study
from steelyard.trainers import cli

TINY = '["episode.horizon_s=10", "algo.num_envs=2", "algo.updates_per_episode=1"]'
LEARNER = """
[[learners]]
name = "{name}"
algo = "{algo}"
scenario = "cluster-a-cpu"
train_set = {sets}
episodes = {episodes}
seeds = "{seeds}"
"""
STUDY = """
title = "T"
seeds = "0:3"
reference = "sed"
policies = ["lsq", "sed", {names}]
{learners}
[[cases]]
scenario = "cluster-a-cpu"
set = ["episode.horizon_s=10"]
"""
DEADLINE_S = 240


def write_study(folder: Path, *learners: dict) -> Path:
    """A study of two rules and these learners on one short case."""
    default = {"algo": "rlb-sac", "sets": TINY, "seeds": "0:2"}
    names = ", ".join(f'"{each["name"]}"' for each in learners)
    path = folder / "mine.toml"
    path.write_text(
        STUDY.format(names=names, learners="".join(LEARNER.format(**default | each) for each in learners))
    )
    return path


def command(folder: Path, *more: str) -> list[str]:
    options = ["--out", str(folder / "out"), "--runs", str(folder / "runs"), "--jobs", "1", "--quiet"]
    return ["study", str(folder / "mine.toml"), *options, *more]


def start(folder: Path) -> subprocess.Popen:
    """`steelyard study` as a process of its own."""
    words = [sys.executable, "-m", "steelyard.trainers.cli", *command(folder)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(what: Callable[[], bool], process: subprocess.Popen) -> None:
    end = time.monotonic() + DEADLINE_S
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


def runs_of(folder: Path) -> list[study_runs.Run]:
    study: Study = load_study(str(folder / "mine.toml"))
    return [run for learner in study.learners for run in study_runs.runs_of(learner, folder / "runs")]


def stamps(folder: Path) -> dict[str, int]:
    """Time of change of every file under a folder."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def is_locked(path: Path) -> bool:
    with open(path, "ab") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.slow
def test_a_killed_sweep_goes_on_without_redoing_a_finished_run(tmp_path):
    """The first run is over, the second is under way, and the sweep is killed (SIGKILL)."""
    write_study(tmp_path, {"name": "short", "episodes": 4, "seeds": "0:1"}, {"name": "long", "episodes": 200})
    first, second, third = runs_of(tmp_path)
    sweeping = start(tmp_path)
    wait_for(lambda: study_runs.is_finished(first) and study_runs.episodes_played(second) >= 4, sweeping)
    finished = stamps(first.directory)
    sweeping.kill()
    sweeping.communicate()
    end = time.monotonic() + DEADLINE_S
    while is_locked(second.log):  # told by the kernel that the sweep is gone, the run saves and ends
        assert time.monotonic() < end
        time.sleep(0.05)
    saved = study_runs.episodes_saved(second)
    assert 4 <= saved < 200
    write_study(
        tmp_path,
        {"name": "short", "episodes": 4, "seeds": "0:1"},
        {"name": "long", "episodes": 200, "seeds": "0:1"},
    )
    assert cli.main(command(tmp_path)) == 0
    assert stamps(first.directory) == finished
    assert study_runs.is_finished(second)
    assert not third.directory.exists()
    episodes = (second.directory / "episodes.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in episodes[1:]] == [str(k) for k in range(1, 201)]
    started = [line for line in second.log.read_text().splitlines() if line.startswith("$ ")]
    assert [line.endswith("--resume") for line in started] == [False, True]
    case = json.loads((tmp_path / "out" / "summary.json").read_text())["cases"]["cluster-a-cpu"]
    assert set(case["policies"]) == {"lsq", "sed", "short", "long"}
    before = stamps(tmp_path / "runs") | stamps(tmp_path / "out" / "cells")
    assert cli.main(command(tmp_path)) == 0
    assert stamps(tmp_path / "runs") | stamps(tmp_path / "out" / "cells") == before


@pytest.mark.slow
def test_a_stopped_sweep_saves_its_runs_and_says_how_to_go_on(tmp_path):
    write_study(tmp_path, {"name": "long", "episodes": 4000, "seeds": "0:1"})
    (run,) = runs_of(tmp_path)
    sweeping = start(tmp_path)
    wait_for(lambda: study_runs.episodes_played(run) >= 4, sweeping)
    sweeping.send_signal(signal.SIGTERM)
    _, err = sweeping.communicate(timeout=DEADLINE_S)
    assert sweeping.returncode == 130
    assert f"to go on: steelyard study {tmp_path}/mine.toml --out" in err
    assert err.count("\n") == 1
    end = time.monotonic() + DEADLINE_S
    while is_locked(run.log):  # what the run itself had started ends a moment after it
        assert time.monotonic() < end
        time.sleep(0.05)
    assert 4 <= study_runs.episodes_saved(run) < 4000
    assert study_runs.episodes_saved(run) == study_runs.episodes_played(run)


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(tmp_path, capsys):
    good = {"name": "good", "episodes": 2, "seeds": "0:1"}
    bad = {"name": "bad", "episodes": 2, "seeds": "0:1", "sets": '["algo.no_such=1"]'}
    write_study(tmp_path, bad, good)
    assert cli.main(command(tmp_path)) == 1
    err = capsys.readouterr().err.splitlines()
    run, _ = runs_of(tmp_path)
    assert len(err) == 1
    assert err[0].startswith("steelyard: failed: bad/s0: exit status 2: steelyard: error: algo.no_such")
    assert err[0].endswith(f"see {run.log}")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["cases"]["cluster-a-cpu"]
    assert set(summary["policies"]) == {"lsq", "sed", "good"}
    assert summary["missing"] == ["bad"]
    assert "bad/s0: exit status 2" in (tmp_path / "out" / "table.md").read_text()


def test_a_run_that_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    write_study(tmp_path, {"name": "one", "episodes": 2, "seeds": "0:1"})
    (run,) = runs_of(tmp_path)
    run.log.parent.mkdir(parents=True)
    log = open(run.log, "ab")  # noqa: SIM115  (closed when the other process ends)
    fcntl.flock(log, fcntl.LOCK_EX)
    seen = []

    def sleep(seconds: float) -> None:
        seen.append(seconds)
        assert len(seen) < 10
        if len(seen) == 3:  # the other process finishes the run
            log.close()

    monkeypatch.setattr(sweep.time, "sleep", sleep)
    monkeypatch.setattr(study_runs, "is_finished", lambda run: len(seen) >= 3)
    monkeypatch.setattr(sweep, "_launch", lambda run, log: pytest.fail("trained twice"))
    shown = []
    assert sweep.train([run], 1, lambda done, total, what: shown.append(what)) == []
    assert "waiting for another process" in shown[0]
    assert len(seen) >= 3


def study_of_rules(folder: Path) -> None:
    path = write_study(folder)
    path.write_text(path.read_text().replace('"sed", ]', '"sed"]'))


def test_only_what_is_named_is_worked_on_and_the_rest_is_kept(tmp_path):
    study_of_rules(tmp_path)
    summary = tmp_path / "out" / "summary.json"
    assert cli.main(command(tmp_path, "--only", "lsq")) == 0
    case = json.loads(summary.read_text())["cases"]["cluster-a-cpu"]
    assert (set(case["policies"]), case["missing"]) == ({"lsq"}, ["sed"])
    assert cli.main(command(tmp_path, "--only", "sed")) == 0
    case = json.loads(summary.read_text())["cases"]["cluster-a-cpu"]
    assert (set(case["policies"]), case["missing"]) == ({"lsq", "sed"}, [])


def refused(capsys, words: list[str]) -> str:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys):
    study_of_rules(tmp_path)
    before = stamps(tmp_path)
    assert "unknown --only 'sde' (did you mean 'sed'" in refused(capsys, command(tmp_path, "--only", "sde"))
    assert "--jobs: 0; allowed: 1 to" in refused(capsys, command(tmp_path, "--jobs", "0"))
    assert "unknown study 'mni'" in refused(capsys, ["study", "mni"])
    missing = ["study", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "no" / "out")]
    assert "does not exist; make it first" in refused(capsys, missing)
    assert stamps(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"mine.toml"}


def test_a_directory_of_another_study_is_left_alone(tmp_path, capsys):
    study_of_rules(tmp_path)
    assert cli.main(command(tmp_path)) == 0
    (tmp_path / "other.toml").write_text((tmp_path / "mine.toml").read_text())
    before = stamps(tmp_path)
    words = [word.replace("mine.toml", "other.toml") for word in command(tmp_path)]
    assert "holds results of the study 'mine'; name another" in refused(capsys, words)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    words = ["thesis" if word.endswith("out") and "/" in word else word for word in command(tmp_path)]
    words = [str(tmp_path / word) if word == "thesis" else word for word in words]
    assert "holds something else than results of a study" in refused(capsys, words)
    assert {path: stamp for path, stamp in stamps(tmp_path).items() if "thesis" not in path} == before


def test_a_full_disk_is_one_line_and_what_was_written_stays(tmp_path, capsys, monkeypatch):
    study_of_rules(tmp_path)
    assert cli.main(command(tmp_path)) == 0
    before = stamps(tmp_path / "out")
    text = (tmp_path / "mine.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace("0:3", "0:4"))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device; nothing was overwritten" in refused(capsys, command(tmp_path))
    assert stamps(tmp_path / "out") == before
