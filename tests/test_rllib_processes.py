"""The RLlib engine over time and processes: resume, Ctrl-C, several env runners, a cluster by its address."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rllib_runs import arguments, rows, train, trainer, wait_for

from steelyard import native
from steelyard.trainers.rllib import cluster

pytest.importorskip("ray.rllib")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


@pytest.mark.parametrize("algo", ["ippo", "sac"])
def test_resume_restores_weights_and_counters(tmp_path: Path, algo: str) -> None:
    from steelyard.trainers import checkpoint

    run = tmp_path / "run"
    assert train(run, algo, 8, {}) == 0
    saved = trainer(algo)
    found = checkpoint.find(run / "checkpoint")
    assert found is not None
    saved.load(checkpoint.load(run / "checkpoint")["trainer"])
    saved.load_files(found)
    assert saved.policy() == (run / "policy.bin").read_bytes()
    assert (saved.episodes, saved.rounds, saved.algorithm.iteration) == (8, 2, 2)
    optimiser = saved.algorithm.learner_group._learner.get_optimizers_for_module("lb_0")[0][1]
    assert max(float(each["step"]) for each in optimiser.state.values()) > 1
    if algo == "sac":
        assert len(saved.algorithm.replay.kept["lb_0"]) == 8
    saved.stop()
    assert train(run, algo, 16, {}, "--resume") == 0
    seeds = [int(row["seed"]) for row in rows(run, "episodes")]
    assert seeds == [native.train_seed(0, index) for index in range(16)]
    assert json.loads((run / "budget.json").read_text())["env_steps"] == 16 * 20
    assert train(run, algo, 20, {"gamma": 0.9}, "--resume") == 2


def test_two_processes_play_what_one_does(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "ippo", 8, {}, "--env-runners", "2") == 0
    seeds = [int(row["seed"]) for row in rows(run, "episodes")]
    assert sorted(seeds) == sorted(native.train_seed(0, index) for index in range(8))


def test_interrupt_saves_and_ray_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(arguments(run, "ippo", 100_000), stderr=subprocess.PIPE, text=True)
    wait_for(run / "timing.csv")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("stopped after")
    done = json.loads((run / "budget.json").read_text())["episodes"]
    assert len(rows(run, "episodes")) == done
    assert native.Policy(str(run / "policy.bin")).num_servers == 8


def ray_command(*words: str, home: Path) -> None:
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": str(home),
    }
    line = [sys.executable, "-m", "ray.scripts.scripts", *words]
    subprocess.run(line, check=True, capture_output=True, timeout=120, env=environment)


def processes_of(folder: Path) -> list[int]:
    """Processes on whose command line the folder stands."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in place.read_bytes():
                found.append(int(place.parent.name))
        except OSError:
            continue
    return [number for number in found if number != os.getpid()]


def end_processes_of(folder: Path) -> None:
    """As `ray stop` does, but only these."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        for number in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, sent)
        deadline = time.monotonic() + 5
        while processes_of(folder) and time.monotonic() < deadline:
            time.sleep(0.1)


def test_training_on_a_cluster_by_its_address(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path("/tmp") / f"steelyard-ray-{os.getpid()}"  # short: Ray's sockets lie in it
    start = ["start", "--head", "--port", str(port), "--num-cpus", "2", "--include-dashboard", "false"]
    run = tmp_path / "run"
    try:
        ray_command(*start, "--temp-dir", str(folder), home=tmp_path)
        line = arguments(run, "appo", 8, "--env-runners", "1", "--ray-address", f"127.0.0.1:{port}")
        environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
        done = subprocess.run(line, capture_output=True, text=True, timeout=240, env=environment)
        assert done.returncode == 0, done.stderr
        assert native.Policy(str(run / "policy.bin")).num_servers == 8
        assert len(rows(run, "episodes")) >= 8
        cluster.check_address(f"127.0.0.1:{port}")  # it is left running
    finally:
        end_processes_of(folder)
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def test_what_an_unreachable_cluster_leaves(tmp_path: Path) -> None:
    done = subprocess.run(
        arguments(tmp_path / "run", "ippo", 8, "--ray-address", "127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no Ray cluster at 127.0.0.1:1" in done.stderr
    assert not (tmp_path / "run").exists()
