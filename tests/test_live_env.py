"""live_v0 against balancers without packets: the contract of the environment, and what crosses the memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from pettingzoo.test import api_test, parallel_api_test

from steelyard import native
from steelyard.envs import live_v0, load_balance_v0
from steelyard.envs.errors import LiveError, UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import live

FAST = ["control.step_s=0.02", "episode.horizon_s=0.2", "episode.warmup_s=0"]
SERVERS = 4


class FakeBalancer:
    """Publishes every few milliseconds and serves flows at random, on a thread."""

    def __init__(self, path: Path, servers: int = SERVERS):
        self.path = path
        self.dataplane = native.ShmDataplane(str(path), servers)
        self.said = ("", 0, 0)
        self.actions: list[list[int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        rng, open_flows = np.random.default_rng(1), []
        self.dataplane.publish(time.monotonic_ns())
        while not self._ended.is_set():
            now = time.monotonic_ns()
            flow = int(rng.integers(1, 2**62))
            server = self.dataplane.open(flow, now)
            self.dataplane.first_ack(flow, now + 1000)
            open_flows.append((flow, server))
            if len(open_flows) > 8:
                self.dataplane.close(*open_flows.pop(0), True, time.monotonic_ns())
            self.said = self.dataplane.poll(time.monotonic_ns(), 10**9)
            self.actions.append(list(self.dataplane.weights_q16))
            self.dataplane.publish(time.monotonic_ns())
            time.sleep(0.003)

    def stop(self) -> None:
        """Die."""
        self._ended.set()
        self._thread.join()
        del self.dataplane


@contextmanager
def balancers(folder: Path, count: int = 2, servers: int = SERVERS) -> Iterator[list[FakeBalancer]]:
    """So many that live."""
    made = [FakeBalancer(folder / f"lb{index}", servers) for index in range(count)]
    try:
        yield made
    finally:
        for each in made:
            if hasattr(each, "dataplane"):
                each.stop()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[FakeBalancer]]:
    """The balancers of testbed-2x4."""
    with balancers(tmp_path) as made:
        yield made


def make(two: list[FakeBalancer], **more: object) -> live_v0.LiveParallelEnv:
    """An environment over them, with short steps."""
    return live_v0.parallel_env(pools=[each.path for each in two], overrides=FAST, **more)


def test_parallel_contract(two: list[FakeBalancer]) -> None:
    env = make(two)
    parallel_api_test(env, num_cycles=30)
    env.close()


def test_turn_based_contract(two: list[FakeBalancer]) -> None:
    env = live_v0.env(pools=[each.path for each in two], overrides=FAST)
    api_test(env, num_cycles=20)
    env.close()


@pytest.mark.parametrize("discrete", [False, True])
def test_spaces_are_those_of_the_simulated_game(two: list[FakeBalancer], discrete: bool) -> None:
    here = make(two, discrete=discrete)
    there = load_balance_v0.parallel_env(scenario="testbed-2x4", discrete=discrete)
    assert here.possible_agents == there.possible_agents
    for agent in here.possible_agents:
        assert here.observation_space(agent) == there.observation_space(agent)
        assert here.action_space(agent) == there.action_space(agent)
    assert here.state_space == there.state_space


def test_an_episode_is_as_long_as_the_scenario_says(two: list[FakeBalancer]) -> None:
    env = make(two)
    observations, infos = env.reset(seed=3)
    steps = 0
    while env.agents:
        actions = {agent: np.zeros(SERVERS, np.float32) for agent in env.agents}
        observations, _, terminated, truncated, infos = env.step(actions)
        steps += 1
        assert not any(terminated.values())
        for agent, seen in observations.items():
            assert env.observation_space(agent).contains(seen)
    assert steps == 10
    assert all(truncated.values())
    assert infos["lb_0"]["seed"] == 3
    assert infos["lb_0"]["flows"] > 0
    assert infos["lb_0"]["rejected"] == 0
    assert infos["lb_0"]["sojourn_mean_s"] > 0
    assert infos["lb_0"]["late_steps"] >= 0
    env.close()


def test_actions_reach_the_balancers_and_come_back_as_previous_ones(two: list[FakeBalancer]) -> None:
    env = make(two)
    env.reset(seed=1)
    actions = {
        "lb_0": np.array([0.5, -0.5, 1, 0], np.float32),
        "lb_1": np.array([-1, 1, 0, 0.25], np.float32),
    }
    for _ in range(3):
        observations = env.step(actions)[0]
    for balancer, agent in zip(two, env.possible_agents, strict=True):
        wanted = [int(native.weight_of_action(float(a)) * 65536) for a in actions[agent]]
        assert balancer.actions[-1] == pytest.approx(wanted, abs=1)
        np.testing.assert_allclose(observations[agent][-SERVERS:], actions[agent], atol=1e-6)
    env.close()


def test_rewards_are_of_the_durations_that_each_agent_sees(two: list[FakeBalancer]) -> None:
    for reward in ("vbf", "team_jain"):
        env = make(two, reward=reward)
        env.reset(seed=1)
        observations, rewards, *_ = env.step({a: np.zeros(SERVERS, np.float32) for a in env.agents})
        seen = np.stack(
            [observations[a][: 11 * SERVERS].reshape(SERVERS, 11)[:, 5] for a in env.possible_agents]
        )
        loads = np.broadcast_to(seen.mean(0), seen.shape) if reward.startswith("team") else seen
        for agent, own in zip(env.possible_agents, loads, strict=True):
            assert rewards[agent] == pytest.approx(native.reward(reward, own.astype(float)), rel=1e-5)
        env.close()


def test_close_tells_the_balancers_to_go_on(two: list[FakeBalancer]) -> None:
    env = make(two)
    env.reset(seed=1)
    env.step({agent: np.zeros(SERVERS, np.float32) for agent in env.agents})
    env.close()
    deadline = time.monotonic() + 5
    while "withdrawn" not in two[0].said[0] and time.monotonic() < deadline:
        time.sleep(0.005)
    assert "withdrawn" in two[0].said[0]


def test_every_reset_asks_for_the_flows_of_its_seed(two: list[FakeBalancer]) -> None:
    class Traffic:
        def __init__(self) -> None:
            self.seeds: list[int] = []

        def begin(self, seed: int) -> None:
            self.seeds.append(seed)

    traffic = Traffic()
    env = make(two, traffic=traffic)
    env.reset(seed=7)
    env.reset()
    assert traffic.seeds == [7, native.train_seed(7, 1)]
    env.close()


def test_a_balancer_that_was_restarted_is_found_again(two: list[FakeBalancer]) -> None:
    env = make(two)
    env.reset(seed=1)
    two[1].stop()
    two[1] = FakeBalancer(two[1].path)
    env.reset(seed=2)
    env.step({agent: np.full(SERVERS, 0.5, np.float32) for agent in env.agents})
    two[1].stop()
    env.close()


def test_a_balancer_that_dies_in_an_episode(two: list[FakeBalancer]) -> None:
    env = make(two)
    env.reset(seed=1)
    two[0].stop()
    with pytest.raises(LiveError, match="lb0: the balancer publishes nothing any more"):
        env.step({agent: np.zeros(SERVERS, np.float32) for agent in env.agents})


def test_what_cannot_be_is_refused(two: list[FakeBalancer], tmp_path: Path) -> None:
    paths = [each.path for each in two]
    with pytest.raises(UserError, match=r"reward\.measure = 'true'"):
        live_v0.parallel_env(pools=paths, measure="true")
    with pytest.raises(UserError, match=r"pools = .*: must be 2 files"):
        live_v0.parallel_env(pools=paths[:1])
    with pytest.raises(UserError, match=r"pools: .*nothing-here"):
        live_v0.parallel_env(pools=[paths[0], tmp_path / "nothing-here"]).reset(seed=1)
    with pytest.raises(UserError, match="must be of 7 servers"):
        live_v0.parallel_env(scenario="testbed-2x7", pools=paths).reset(seed=1)
    env = make(two)
    env.reset(seed=1)
    with pytest.raises(UserError, match="action of lb_1 is missing"):
        env.step({"lb_0": np.zeros(SERVERS, np.float32)})
    with pytest.raises(UserError, match="must be a number from -1 to 1"):
        env.step({agent: np.full(SERVERS, np.nan, np.float32) for agent in env.agents})
    with pytest.raises(UserError, match="true remaining time"):
        env.batch.remaining_time()
    env.close()


def test_a_learner_learns_from_balancers(
    two: list[FakeBalancer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steelyard.trainers import checkpoint
    from steelyard.trainers.distr_lb import DistrLb, DistrLbTrainer

    class Ground:
        def __init__(self) -> None:
            self.pools = [each.path for each in two]
            self.seeds: list[int] = []

        def begin(self, seed: int) -> None:
            self.seeds.append(seed)

    class Host:
        def __init__(self) -> None:
            self.ground = Ground()

        @contextmanager
        def learning_ground(self, scenario: Scenario, name: str, dataplane: str) -> Iterator[Ground]:
            yield self.ground

    host = Host()
    monkeypatch.setattr(live, "host", lambda: host)
    scenario = Scenario.load("testbed-2x4", [*FAST, "episode.horizon_s=0.4"])
    small = {"batch_size": 4, "chunk": 8, "burn_in": 2, "hidden": 4, "critic_hidden": 4}
    simulated = DistrLbTrainer(DistrLb(num_envs=2, **small), scenario, seed=1)
    simulated.round(2)
    checkpoint.save(tmp_path / "run" / "checkpoint", {"trainer": simulated.state()})
    config = DistrLb(**{**small, **live.DEFAULTS})
    trainer = DistrLbTrainer(config, scenario, seed=2)
    live.begin_from(trainer, tmp_path / "run")
    assert trainer.policy() == simulated.policy()
    with live.learning(trainer, scenario, config, "tb", "lb"):
        played = trainer.round(1)
    assert host.ground.seeds == [native.train_seed(2, 0)]
    assert played.stats["flows"][0] > 0
    assert trainer.policy() != simulated.policy()
    with pytest.raises(UserError, match=r"--from: .* was trained on another pool"):
        live.begin_from(DistrLbTrainer(DistrLb(hidden=5), Scenario.load("testbed-2x7"), 1), tmp_path / "run")


def test_who_cannot_learn_live() -> None:
    with pytest.raises(UserError, match="qmix cannot learn live; allowed: distr-lb"):
        live.check_learner("qmix", {"num_envs": 1})
    with pytest.raises(UserError, match=r"algo\.num_envs = 8"):
        live.check_learner("distr-lb", {"num_envs": 8})
