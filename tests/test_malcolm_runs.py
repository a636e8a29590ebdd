"""Malcolm in the running rack from Python, and `steelyard train --algo malcolm`."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from worlds import exponential, poisson

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.envs.rack_scenario import RackScenario
from steelyard.trainers import checkpoint, cli, rack_policies
from steelyard.trainers.consensus_ac import Malcolm, MalcolmTrainer
from steelyard.trainers.session import _VALIDATION_RUN, Plan

TINY = ["--set", "episode.horizon_s=0.02", "--set", "episode.warmup_s=0.002"]
US = 1e-6


def tiny_rack(horizon_s: float = 0.05) -> native.RackConfig:
    """Two servers of one worker; all tasks arrive at the first, which alone could not serve them."""
    config = native.RackConfig()
    config.servers = [native.RackServer(1), native.RackServer(1)]
    config.types = [native.RackType(exponential(50 * US))]
    config.arrival = poisson(0.7 * 2 / (50 * US))
    config.split = [1.0, 0.0]
    config.broadcast_period_s = 100e-6
    config.horizon_s, config.warmup_s = horizon_s, 0.0
    return config


def learner(variant: str = "code", **changes: object) -> native.MalcolmConfig:
    config = getattr(native.MalcolmConfig, variant)()
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def train(run: Path, *more: str) -> int:
    options = [
        "train",
        "--scenario",
        "rack-hom-8x8",
        "--algo",
        "malcolm",
        "--run",
        str(run),
        "--threads",
        "1",
    ]
    return cli.main([*options, "--quiet", *TINY, *more])


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("variant", ["thesis", "code", "live"])
def test_an_episode_is_a_function_of_setup_and_seed(variant: str) -> None:
    config = tiny_rack()
    rule = native.malcolm_rule(learner(variant), curve_windows=10)
    one, other = (native.RackWorld(config, rule, 3) for _ in range(2))
    one.run_until(0.02)
    copy = one.clone()
    for world in (one, other, copy):
        world.drain()
    assert one.digest == other.digest == copy.digest
    np.testing.assert_array_equal(native.malcolm_parameters(one), native.malcolm_parameters(copy))
    assert native.malcolm_learning(one) == native.malcolm_learning(other)
    assert [len(column) for column in native.malcolm_curve(one).values()] == [
        native.malcolm_counts(one)["windows"] // 10
    ] * 8
    (episode,) = native.simulate_rack(config, rule, [3])
    assert episode["digest"] == one.digest


def test_two_halves_of_learning_are_what_their_bytes_say() -> None:
    config = tiny_rack()
    first = native.RackWorld(config, native.malcolm_rule(learner()), 3)
    first.drain()
    learned = native.malcolm_learning(first)
    going_on = native.RackWorld(config, native.malcolm_rule(learner(seed=9), learning=learned), 4)
    np.testing.assert_array_equal(native.malcolm_parameters(going_on), native.malcolm_parameters(first))
    anew = native.RackWorld(config, native.malcolm_rule(learner()), 4)
    for world in (going_on, anew):
        world.drain()
    assert going_on.digest != anew.digest


def test_it_learns_to_move_tasks_off_the_server_that_has_them_all() -> None:
    """All tasks arrive at one of two servers, at 1.4 times what it can serve. Whatever is kept there beyond
    1 / 1.4 piles up, so the gradient says: keep less. Without steals the fall in imbalance is what migration
    alone achieves.
    """
    config = tiny_rack(1.0)
    config.steal_least = 10**9
    made = learner(actor_rate=5e-3, init_scale=0.0)
    world = native.RackWorld(config, native.malcolm_rule(made, curve_windows=500), 1)
    n = 2
    start = np.zeros_like(native.malcolm_parameters(world))
    bias = n * 2 * n
    start[0, bias] = 2.0  # keeps nearly nine tasks in ten at first, more than it can serve
    world = native.RackWorld(config, native.malcolm_rule(made, parameters=start, curve_windows=500), 1)
    world.run_until(1.0)
    learned = native.malcolm_parameters(world)
    frozen = {
        name: native.simulate_rack(config, native.malcolm_rule(made, frozen=True, parameters=p), [5, 6, 7])
        for name, p in (("start", start), ("learned", learned))
    }
    imbalance = {
        name: np.array([episode["imbalance_mean_us"] for episode in found]) for name, found in frozen.items()
    }
    assert imbalance["learned"].max() < 0.5 * imbalance["start"].min()


@pytest.mark.slow
def test_live_learns_to_beat_the_rules_on_unequal_servers() -> None:
    """2 x 14 + 9 x 4 workers at load .9, loads 100 us old, on episodes that it did not learn from: below its
    own start, and below the best of the rules that docs/malcolm.md compares it with, by 4 standard errors.
    """
    overrides = ["workload.load=0.9", "episode.horizon_s=0.3", "episode.warmup_s=0.1"]
    scenario = RackScenario.load("rack-het-2x14-9x4", overrides)
    rack = scenario.to_native()
    trainer = MalcolmTrainer(Malcolm(), scenario, 0, 1)
    start = trainer.frozen_rule()
    trainer.round(8)
    waiting = RackScenario.load("rack-het-2x14-9x4", [*overrides, 'loads.measure="waiting"'])
    rule = waiting.to_rule("jbt:threshold=1,increments=true,keep=true,steal=random")
    seeds = [native.train_seed(99, k) for k in range(6)]
    p99 = {
        name: np.array([row["latency_p99_us"] for row in native.simulate_rack(config, policy, seeds)])
        for name, config, policy in (
            ("start", rack, start),
            ("learned", rack, trainer.frozen_rule()),
            ("rule", waiting.to_native(), rule),
        )
    }
    for other in ("start", "rule"):
        gain = p99[other] - p99["learned"]
        assert gain.mean() > 4 * gain.std(ddof=1) / np.sqrt(len(gain))


def test_bad_setups_are_refused() -> None:
    config = tiny_rack()
    with pytest.raises(ValueError, match=r"malcolm\.learning: 3 is not allowed"):
        native.malcolm_rule(learner(), learning=b"abc").check(config)
    with pytest.raises(ValueError, match=r"malcolm\.parameters: 2 is not allowed"):
        native.malcolm_rule(learner(), parameters=np.zeros((2, 1), np.float32)).check(config)
    with pytest.raises(ValueError, match='does not play by the rule "malcolm"'):
        native.malcolm_curve(native.RackWorld(config, native.RackRule("jsq"), 1))


def test_a_run_leaves_what_it_promises(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "--episodes", "3") == 0
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"] == "malcolm"
    assert config["scenario"]["scenario"]["world"] == "rack"
    episodes, progress, curves = (rows(run / f"{name}.csv") for name in ("episodes", "progress", "curves"))
    assert [row["episode"] for row in episodes] == ["1", "2", "3"]
    assert float(progress[-1]["eval_p99_us"]) > 50
    assert float(progress[-1]["reference_p99_us"]) > 50
    assert len(curves) >= 3 * 20
    spent = json.loads((run / "budget.json").read_text())
    assert spent["env_steps"] == 3 * 200
    assert spent["bytes_exchanged"] == 0
    with np.load(run / "policy.npz") as policy:
        assert policy["migration_weight"].shape == (8, 8, 16)
        assert policy["steal_bias"].shape == (8, 8)
        parts = ("migration_weight", "migration_bias", "steal_weight", "steal_bias", "critic")
        flat = np.concatenate([policy[name].reshape(8, -1) for name in parts], axis=1)
    stored = checkpoint.load(run / "checkpoint")["trainer"]["parameters"]
    np.testing.assert_array_equal(flat, stored.numpy())


def test_a_policy_file_plays_as_it_was_evaluated(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(run, "--episodes", "1", "--set", "algo.variant=code") == 0
    scenario = RackScenario.load("rack-hom-8x8", TINY[1::2])
    seeds = [native.train_seed(_VALIDATION_RUN, index) for index in range(Plan.eval_episodes)]
    for source in (run, run / "policy.npz"):
        policy = rack_policies.parse_policy(f"learned={source}")
        rule = rack_policies.member_rule(scenario, policy.members[0], scenario.to_native())
        p99 = [row["latency_p99_us"] for row in native.simulate_rack(scenario.to_native(), rule, seeds)]
        assert float(rows(run / "progress.csv")[-1]["eval_p99_us"]) == float(np.mean(p99))
    smaller = RackScenario.load("rack-16x8")
    with pytest.raises(UserError, match=r"malcolm\.parameters"):
        rack_policies.member_rule(smaller, policy.members[0], smaller.to_native())
    (run / "policy.npz").write_bytes((run / "policy.npz").read_bytes()[:-100])
    with pytest.raises(UserError, match="not a policy of a rack"):
        rack_policies.member_rule(scenario, policy.members[0], scenario.to_native())


def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    short = ["--set", "algo.consensus_every=2"]
    assert train(whole, "--episodes", "7", *short) == 0
    assert train(halves, "--episodes", "3", *short) == 0
    assert train(halves, "--episodes", "7", "--resume", *short) == 0
    assert json.loads((whole / "budget.json").read_text())["bytes_exchanged"] > 0
    for name in ("episodes.csv", "curves.csv", "policy.npz", "checkpoint/arrays.npz"):
        assert (whole / name).read_bytes() == (halves / name).read_bytes(), name


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--algo", "distr-lb"], "'distr-lb' plays no rack"),
        (["--set", "algo.variant=best"], "algo.variant"),
        (["--set", "algo.features=cubic"], "algo.features"),
        (["--set", "algo.discount=2.0"], "algo.discount is 2; must be in [0, 1]"),
        (["--set", "algo.batch=-4"], "algo.batch = -4"),
        (["--engine", "rllib"], "is a rack"),
        (["--set", "rack.dispatchers=2"], "dispatchers"),
    ],
)
def test_bad_input_is_one_line(
    options: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    if "--algo" in options:
        status = cli.main(["train", "--scenario", "rack-hom-8x8", "--run", str(run), *options, *TINY])
    else:
        status = train(run, "--episodes", "1", *options)
    error = capsys.readouterr().err
    assert status == 2
    assert line in error
    assert error.strip().count("\n") == 0
    assert not (run / "config.json").exists()


def test_malcolm_plays_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    assert cli.main(["train", "--scenario", "cluster-a-cpu", "--algo", "malcolm", "--run", run]) == 2
    assert "'malcolm' plays no cluster" in capsys.readouterr().err
