"""The RLlib engine at work: runs of two or three rounds, export, resume, Ctrl-C, processes, a cluster, sweeps."""

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import cli
from steelyard.trainers.rllib import cluster, settings

pytest.importorskip("ray.rllib")
pytestmark = pytest.mark.slow

HYPER = {"num_envs": 4, "fit_episodes": 4, "hidden": 8, "critic_hidden": 16, "sequence": 8}
PPO, SAC = {"minibatch": 40, "epochs": 2}, {"updates_per_episode": 1.0, "batch_size": 32}
GRU = {"recurrent": True, "input": "shared"}
SHORT = ["--set", "episode.horizon_s=10"]
SCENARIO = Scenario.load("cluster-a-cpu", ["episode.horizon_s=10"])


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    """One Ray for all runs in this process; it must survive them."""
    import ray

    with cluster.connected(None, cpus=3):
        yield
        assert ray.is_initialized()
    assert not ray.is_initialized()


def options(hyper: dict[str, object]) -> list[str]:
    return [word for name, value in hyper.items() for word in ("--set", f"algo.{name}={json.dumps(value)}")]


def train(run: Path, algo: str, episodes: int, hyper: dict[str, object], *more: str) -> int:
    family = SAC if algo == "sac" else PPO if algo in ("ippo", "mappo") else {}
    line = ["train", "--engine", "rllib", "--algo", algo, "--scenario", "cluster-a-cpu", "--run", str(run)]
    words = options({**HYPER, **family, **hyper})
    return cli.main([*line, "--episodes", str(episodes), "--quiet", *SHORT, *words, *more])


def rows(run: Path, name: str) -> list[dict[str, str]]:
    with open(run / f"{name}.csv") as stream:
        return list(csv.DictReader(stream))


CASES = {
    "ippo": ("ippo", {}),
    "ippo-shared": ("ippo", {"policies": "shared", "input": "per_server"}),
    "ippo-gru": ("ippo", GRU),
    "ippo-discrete": ("ippo", {"discrete": True}),
    "mappo": ("mappo", {"average": 0.9}),
    "mappo-gru-shared": ("mappo", {**GRU, "policies": "shared"}),
    "sac": ("sac", {}),
    "sac-gru": ("sac", GRU),
    "appo-gru": ("appo", GRU),
    "impala": ("impala", {}),
}


@pytest.mark.parametrize(("algo", "hyper"), CASES.values(), ids=CASES.keys())
def test_a_run_and_what_it_leaves(tmp_path: Path, algo: str, hyper: dict[str, object]) -> None:
    run = tmp_path / "run"
    assert train(run, algo, 12, hyper) == 0
    played = rows(run, "episodes")
    assert [int(row["episode"]) for row in played] == list(range(1, 13))
    assert [int(row["seed"]) for row in played] == [native.train_seed(0, index) for index in range(12)]
    last = rows(run, "progress")[-1]
    assert 0.3 < float(last["eval_sojourn_s"]) < 5
    assert 0.3 < float(last["sed_sojourn_s"]) < 5
    losses = [float(value) for name, value in last.items() if "loss" in name]
    assert losses
    assert np.isfinite(losses).all()
    policy = native.decode_policy((run / "policy.bin").read_bytes())
    assert len(policy["actors"]) == (1 if hyper.get("policies") == "shared" else 2)
    assert len(rows(run, "timing")) == 3
    spent = json.loads((run / "budget.json").read_text())
    assert (spent["episodes"], spent["env_steps"]) == (12, 12 * 20)
    alone = algo != "mappo" and "policies" not in hyper
    assert (spent["bytes_exchanged"] == 0) == alone
    config = json.loads((run / "config.json").read_text())
    assert (config["engine"], config["algorithm"], config["hyper"]["num_envs"]) == ("rllib", algo, 4)
    versions = json.loads((run / "manifest.json").read_text())["versions"]
    assert {"ray", "torch", "steelyard"} <= versions.keys()


def trainer(algo: str, seed: int = 0, **hyper: object):  # noqa: ANN201 - importing its type imports Ray
    from steelyard.trainers.rllib.trainer import RllibTrainer

    family = SAC if algo == "sac" else PPO
    made = settings.find_entry(algo).settings(**{**HYPER, **family, **hyper})
    return RllibTrainer(made, SCENARIO, seed)


PARITY = [
    ("ippo", {}),
    ("ippo", GRU),
    ("mappo", {**GRU, "policies": "shared"}),
    ("sac", {"input": "per_server"}),
]


@pytest.mark.parametrize(("algo", "hyper"), PARITY, ids=["mlp", "gru", "shared", "sac"])
def test_native_actions_are_those_of_rllibs_modules(algo: str, hyper: dict[str, object]) -> None:
    from ray.rllib.core.columns import Columns

    learner = trainer(algo, **hyper)
    learner.round(4)
    policy = native.Policy(learner.policy(), num_agents=2)
    game = learner.game
    batch = game.batch(1)
    seen = batch.reset(seed=5).copy()
    states = [learner.module(game.policy_of(agent)).get_initial_state() for agent in game.agents]
    states = [{key: value[None] for key, value in state.items()} for state in states]
    for _ in range(game.steps):
        joint = np.zeros((1, 2, 8), np.float32)
        for index, agent in enumerate(game.agents):
            module = learner.module(game.policy_of(agent))
            obs = torch.from_numpy(seen[:, index].copy())
            inputs = {Columns.OBS: obs}
            if states[index]:
                inputs = {Columns.OBS: obs[:, None], Columns.STATE_IN: states[index]}
            with torch.no_grad():
                out = module.forward_inference(inputs)
            states[index] = out.get(Columns.STATE_OUT, {})
            expected = module.likeliest(out[Columns.ACTION_DIST_INPUTS].reshape(1, -1))[0]
            joint[0, index] = policy.infer(index, seen[0, index])
            np.testing.assert_allclose(joint[0, index], expected, rtol=2e-6, atol=2e-6)
        seen = batch.step(joint)[0].copy()
    assert np.abs(joint).max() > 0
    learner.stop()


def test_what_a_recurrent_step_remembers_a_sequence_does_too() -> None:
    """The logits noted step by step while playing are those of one pass over the sequence."""
    from ray.rllib.core.columns import Columns

    for algo in ("ippo", "sac"):
        learner = trainer(algo, **GRU)
        runner = learner.algorithm.env_runner
        episode = runner.sample()[0]
        for agent, one in episode.agent_episodes.items():
            module = learner.module(learner.game.policy_of(agent))
            obs = torch.from_numpy(one.observations.data[None])
            start = {key: value[None] for key, value in module.get_initial_state().items()}
            with torch.no_grad():
                out = module._forward({Columns.OBS: obs, Columns.STATE_IN: start})
            noted = one.extra_model_outputs[Columns.ACTION_DIST_INPUTS].data
            np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS][0, :-1], noted, atol=1e-5)
        learner.stop()


def test_every_parameter_is_trained() -> None:
    for algo, hyper in (("ippo", GRU), ("mappo", {}), ("sac", GRU), ("ippo", {"policies": "central"})):
        learner = trainer(algo, **hyper)
        policy = learner.game.policies[0]
        module = learner.algorithm.learner_group._learner.module[policy]
        before = {name: each.detach().clone() for name, each in module.named_parameters()}
        for _ in range(2):
            learner.round(4)
        for name, each in module.named_parameters():
            assert not torch.equal(before[name], each), (algo, name)
        learner.stop()


def test_agents_start_and_explore_differently() -> None:
    learner = trainer("ippo")
    one, two = learner.actors()
    assert not torch.equal(one.head.weight, two.head.weight)
    episode = learner.algorithm.env_runner.sample()[0]
    acted = [each.actions.data for each in episode.agent_episodes.values()]
    assert np.abs(acted[0] - acted[1]).max() > 0.01
    learner.stop()


def test_a_central_policy_trains_and_stays(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "ippo", 8, {"policies": "central"}) == 0
    assert 0.3 < float(rows(run, "progress")[-1]["eval_sojourn_s"]) < 5
    assert not (run / "policy.bin").exists()
    learner = trainer("sac", policies="central")
    learner.round(4)
    with pytest.raises(UserError, match="central policy cannot be exported"):
        learner.policy()
    (actor,) = learner.actors()
    with torch.no_grad():
        learner.module("central").actor.head.weight.zero_()
        learner.module("central").actor.head.bias.zero_()
    played = learner.evaluate([3, 4])
    lsq = native.simulate(SCENARIO.to_native(), SCENARIO.to_rule("lsq"), [3, 4])
    assert actor is not learner.module("central").actor
    for mine, theirs in zip(played, lsq, strict=True):  # equal weights are LSQ
        assert mine["sojourn_mean_s"] == pytest.approx(theirs["sojourn_mean_s"], rel=1e-9)
    learner.stop()


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


def arguments(run: Path, algo: str, episodes: int, *more: str) -> list[str]:
    words = [*SHORT, *options({**HYPER, **(PPO if algo == "ippo" else {})})]
    line = ["train", "--engine", "rllib", "--algo", algo, "--scenario", "cluster-a-cpu", "--run", str(run)]
    command = [sys.executable, "-m", "steelyard.trainers.cli", *line, "--episodes", str(episodes)]
    return [*command, *words, *more]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert path.exists()


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
        for number in processes_of(folder):
            os.kill(number, signal.SIGTERM)
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def test_what_an_unreachable_cluster_leaves(tmp_path: Path) -> None:
    done = subprocess.run(
        arguments(tmp_path / "run", "ippo", 8, "--ray-address", "127.0.0.1:1"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no Ray cluster at 127.0.0.1:1" in done.stderr
    assert not (tmp_path / "run").exists()


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
    """Killed when its first trial has ended: that one is not done again, none is lost."""
    (tmp_path / "sweep.toml").write_text(SWEEP.format(scheduler="none").replace("[4, 8]", "[4, 6, 8, 10]"))
    line = [sys.executable, "-m", "steelyard.trainers.cli", *sweep_line(tmp_path)]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for text in process.stderr:
        if text.startswith("trial 1:"):
            break
    time.sleep(3)  # Tune saves its own state every two seconds
    process.kill()
    process.communicate(timeout=60)
    trials = tmp_path / "out" / "trials"
    ended = {
        each: each.stat().st_mtime_ns
        for each in trials.glob("*/episodes.csv")
        if len(rows(each.parent, "episodes")) == 8
    }
    assert ended
    assert not (tmp_path / "out" / "results.csv").exists()
    assert cli.main(sweep_line(tmp_path, "--resume", "--quiet")) == 0
    assert {each: each.stat().st_mtime_ns for each in ended} == ended
    with open(tmp_path / "out" / "results.csv") as stream:
        table = list(csv.DictReader(stream))
    assert sorted(int(row["hidden"]) for row in table) == [4, 6, 8, 10]
    assert all(len(rows(trials / row["trial"], "episodes")) == 8 for row in table)


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "rllib.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(example.splitlines()) < 30
    exec(example, {})
    printed = capsys.readouterr().out.split()
    assert printed[0::2] == ["0", "1"]
    assert all(np.isfinite(float(number)) for number in printed[1::2])
