"""The faces of the game keep the contracts of PettingZoo, Gymnasium and TorchRL."""

import pickle
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, render_test, seed_test

from steelyard.envs import load_balance_v0
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.central import LoadBalanceCentralEnv
from steelyard.envs.errors import UserError
from steelyard.envs.vector import LoadBalanceVectorEnv

SHORT = ("episode.horizon_s=5",)  # 10 steps
both_actions = pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])


@both_actions
def test_pettingzoo_parallel_contract(discrete):
    parallel_api_test(load_balance_v0.parallel_env(overrides=SHORT, discrete=discrete), num_cycles=50)


@pytest.mark.filterwarnings(
    "ignore:Observation numpy array is all zeros", "ignore:Agent's maximum observation"
)
@pytest.mark.filterwarnings("ignore:Action space for each agent probably should be")
@both_actions
def test_pettingzoo_turn_based_contract(discrete):
    api_test(load_balance_v0.env(overrides=SHORT, discrete=discrete), num_cycles=50)


@both_actions
def test_pettingzoo_seeds(discrete):
    parallel_seed_test(
        lambda: load_balance_v0.parallel_env(overrides=SHORT, discrete=discrete), num_cycles=15
    )
    seed_test(lambda: load_balance_v0.env(overrides=SHORT, discrete=discrete), num_cycles=15)


def test_pettingzoo_render(capsys):
    modes = {
        "ansi": lambda text: "open flows" in text and text.count("\n") == 10,
        "rgb_array": lambda image: image.shape[1] == 480 and image.min() < image.max(),
    }
    render_test(lambda render_mode: load_balance_v0.env(overrides=SHORT, render_mode=render_mode), modes)
    assert "cluster-a-cpu at" in capsys.readouterr().out


def test_pettingzoo_names_and_spaces():
    env = load_balance_v0.parallel_env()
    assert env.metadata["name"] == "load_balance_v0"
    assert env.possible_agents == ["lb_0", "lb_1"]
    assert env.observation_space("lb_0").shape == (12 * 8 + 5,)
    assert env.observation_space("lb_0") is env.observation_space("lb_0")
    assert env.action_space("lb_1").shape == (8,)
    assert env.observation_space("lb_0").dtype == env.action_space("lb_0").dtype == np.float32
    discrete = load_balance_v0.parallel_env(discrete=True)
    assert discrete.action_space("lb_0").nvec.tolist() == [3] * 8
    env.reset(seed=0)
    assert env.state().shape == env.state_space.shape == (2 * 101,)
    assert env.state_space.contains(env.state())


def test_pettingzoo_episode():
    env = load_balance_v0.parallel_env(overrides=SHORT)
    observations, infos = env.reset(seed=3)
    assert infos["lb_0"]["seed"] == 3
    kept = observations["lb_0"].copy()
    first = observations
    steps = 0
    while env.agents:
        observations, _, terminations, truncations, infos = env.step(
            {agent: env.action_space(agent).sample() for agent in env.agents}
        )
        steps += 1
        assert not any(terminations.values())
        assert infos["lb_0"]["t_s"] == pytest.approx(steps * 0.5)
    assert steps == 10
    assert all(truncations.values())
    assert set(observations) == {"lb_0", "lb_1"}
    np.testing.assert_array_equal(first["lb_0"], kept)  # an observation is not overwritten later
    assert infos["lb_0"]["flows"] > 0
    assert infos["lb_0"]["sojourn_mean_s"] > 0
    assert env.step({}) == ({}, {}, {}, {}, {})
    _, infos = env.reset()
    assert infos["lb_0"]["seed"] >= 2**63


def test_pettingzoo_repeats_a_seed_and_survives_pickling():
    def episode(env):
        env.reset(seed=7)
        still = np.zeros(8, np.float32)
        return [env.step({"lb_0": still, "lb_1": still})[1]["lb_0"] for _ in range(10)]

    env = load_balance_v0.parallel_env(overrides=SHORT)
    assert episode(env) == episode(env) == episode(pickle.loads(pickle.dumps(env)))


@pytest.mark.parametrize(
    ("actions", "part"),
    [
        ({"lb_0": np.zeros(8)}, "lb_1 is missing"),
        ({"lb_0": np.zeros(8), "lb_1": np.zeros(8), "lb_2": np.zeros(8)}, "unknown agent 'lb_2'"),
        ({"lb_0": np.zeros(8), "lb_1": np.zeros(7)}, "lb_1 .* shape"),
        (
            {"lb_0": np.zeros(8), "lb_1": np.array([0, 0, np.nan, 0, 0, 0, 0, 0])},
            "agent lb_1, server 2 = nan",
        ),
    ],
)
def test_pettingzoo_bad_actions(actions, part):
    env = load_balance_v0.parallel_env(overrides=SHORT)
    env.reset(seed=0)
    with pytest.raises(UserError, match=part) as caught:
        env.step(actions)
    assert "\n" not in str(caught.value)


def test_render_needs_a_mode():
    env = load_balance_v0.parallel_env()
    env.reset(seed=0)
    with pytest.raises(UserError, match="render_mode"):
        env.render()
    with pytest.raises(UserError, match="did you mean 'ansi'"):
        load_balance_v0.parallel_env(render_mode="ansii")


@both_actions
@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
def test_gymnasium_contract(discrete, render_mode):
    made = gym.make(
        "steelyard.envs:LoadBalance-v0", overrides=SHORT, discrete=discrete, render_mode=render_mode
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", message=".*Box observation space (minimum|maximum) value is.*infinity"
        )
        check_env(made.unwrapped)


def test_central_agent_is_all_agents_at_once():
    central, players = LoadBalanceCentralEnv(overrides=SHORT), load_balance_v0.parallel_env(overrides=SHORT)
    seen, info = central.reset(seed=5)
    observations, _ = players.reset(seed=5)
    assert info["seed"] == 5
    central.action_space.seed(0)
    for step in range(10):
        np.testing.assert_array_equal(seen, np.concatenate(list(observations.values())))
        action = central.action_space.sample()
        seen, reward, terminated, truncated, _ = central.step(action)
        observations, rewards, _, _, _ = players.step({"lb_0": action[:8], "lb_1": action[8:]})
        assert reward == pytest.approx(np.mean(list(rewards.values())), rel=1e-6)
        assert (terminated, truncated) == (False, step == 9)
    with pytest.raises(UserError, match=r"reset\(\) first"):
        central.step(action)
    with pytest.raises(UserError, match="shape"):
        central.step(np.zeros(8))


@both_actions
def test_vector_environment_by_id(discrete):
    vector = gym.make_vec("steelyard.envs:LoadBalance-v0", num_envs=3, overrides=SHORT, discrete=discrete)
    assert isinstance(vector.unwrapped, LoadBalanceVectorEnv)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observations, _ = vector.reset(seed=1)
    assert vector.observation_space.contains(observations)
    assert vector.action_space.contains(vector.action_space.sample())
    observations, rewards, terminated, truncated, infos = vector.step(vector.action_space.sample())
    assert observations.shape == (3, 202)
    assert rewards.shape == terminated.shape == truncated.shape == infos["flows"].shape == (3,)
    assert vector.observation_space.contains(observations)
    vector.close()


def test_vector_environment_is_gymnasiums_own_over_single_ones():
    """Same seeds, same actions, and the same NEXT_STEP autoreset as SyncVectorEnv over two episodes."""
    ours = LoadBalanceVectorEnv(2, overrides=SHORT)
    theirs = gym.make_vec(
        "steelyard.envs:LoadBalance-v0",
        num_envs=2,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.NEXT_STEP},
        overrides=SHORT,
    )
    seen, _ = ours.reset(seed=[10, 20])
    np.testing.assert_array_equal(seen, theirs.reset(seed=[10, 20])[0])
    ours.action_space.seed(0)
    for step in range(25):
        actions = ours.action_space.sample()
        one, two = ours.step(actions), theirs.step(actions)
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_allclose(one[1], two[1], rtol=1e-6)
        np.testing.assert_array_equal(one[2], two[2])
        np.testing.assert_array_equal(one[3], two[3])
        assert one[3].any() == (step % 11 == 9)
        assert one[4]["seed"].tolist() == two[4]["seed"].tolist()


def test_vector_environment_copies_unless_told_not_to():
    still = np.zeros((1, 16), np.float32)
    for copy in (True, False):
        vector = LoadBalanceVectorEnv(1, overrides=SHORT, copy=copy)
        first, _ = vector.reset(seed=0)
        assert np.shares_memory(first, vector.batch.buffers.observations) is not copy
        second = vector.step(still)[0]
        assert np.array_equal(first, second) is not copy


def test_vector_environment_bad_input():
    with pytest.raises(UserError, match="render_mode"):
        LoadBalanceVectorEnv(2, render_mode="ansi")
    vector = LoadBalanceVectorEnv(2)
    vector.reset(seed=0)
    with pytest.raises(UserError, match="shape"):
        vector.step(np.zeros((2, 8)))


def test_a_light_import():
    heavy = ("torch", "torchrl", "pettingzoo", "gymnasium", "matplotlib", "numpy")
    code = (
        "import sys; from steelyard.envs.scenario import Scenario; "
        "Scenario.load('cluster-a-cpu').to_native(); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert printed(code) == "[]"


@pytest.mark.parametrize("first", ["steelyard.envs", "gymnasium", "steelyard.envs.load_balance_v0"])
@pytest.mark.parametrize("env_id", ["LoadBalance-v0", "steelyard.envs:LoadBalance-v0"])
def test_registered_in_any_order_of_imports(first, env_id):
    code = f"import {first}, steelyard.envs, gymnasium; print(gymnasium.make({env_id!r}).unwrapped)"
    assert "LoadBalanceCentralEnv" in printed(code)


def test_id_alone_is_enough():
    code = "import gymnasium; print(gymnasium.make('steelyard.envs:LoadBalance-v0').unwrapped)"
    assert "LoadBalanceCentralEnv" in printed(code)


def test_registered_after_somebody_asked_whether_gymnasium_is_there():
    code = (
        "import steelyard.envs, importlib.util; found = importlib.util.find_spec('gymnasium');"
        "import gymnasium; print(found is not None, 'LoadBalance-v0' in gymnasium.registry)"
    )
    assert printed(code) == "True True"


def printed(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
class TestTorchRL:
    """The TorchRL face; slow to import."""

    @pytest.fixture
    def torch(self):
        torch = pytest.importorskip("torch")
        pytest.importorskip("torchrl")
        torch.set_num_threads(1)
        return torch

    def make(self, num_envs=3, **options):
        from steelyard.envs.torchrl_env import LoadBalanceTorchRLEnv

        return LoadBalanceTorchRLEnv("cluster-a-cpu", num_envs, overrides=SHORT, **options)

    @both_actions
    @pytest.mark.parametrize("num_envs", [1, 3])
    def test_contract(self, torch, discrete, num_envs):
        from torchrl.envs.utils import check_env_specs

        check_env_specs(self.make(num_envs, discrete=discrete))

    def test_is_the_batch(self, torch):
        env, batch = self.make(seed=11), LoadBalanceBatch("cluster-a-cpu", 3, overrides=SHORT)
        rollout = env.rollout(10, break_when_any_done=False)
        assert rollout.batch_size == (3, 10)
        seen = batch.reset(seed=11)
        for step in range(10):
            moment = rollout[:, step]
            for agent in range(2):
                key = f"lb_{agent}"
                np.testing.assert_array_equal(moment[key, "observation"].numpy(), seen[:, agent])
            actions = np.stack([moment[f"lb_{agent}", "action"].numpy() for agent in range(2)], axis=1)
            seen, rewards, truncated = batch.step(actions)
            for agent in range(2):
                np.testing.assert_array_equal(
                    moment["next", f"lb_{agent}", "reward"][:, 0].numpy(), rewards[:, agent]
                )
            np.testing.assert_array_equal(moment["next", "truncated"][:, 0].numpy(), truncated)
        assert rollout["next", "done"][:, -1].all()
        assert not rollout["next", "terminated"].any()

    def test_rollout_over_resets(self, torch):
        rollout = self.make(seed=2).rollout(25, break_when_any_done=False)
        ends = rollout["next", "done"].squeeze(-1)
        assert torch.nonzero(ends.all(0)).flatten().tolist() == [9, 19]
        assert not rollout["lb_0", "observation"][:, 10].any()  # an episode begins empty
        assert rollout["next", "lb_0", "observation"][:, 9].any()

    def test_same_seed_same_rollout(self, torch):
        def rollout():
            env = self.make()
            env.set_seed(5)
            torch.manual_seed(0)
            return env.rollout(10)

        assert (rollout() == rollout()).all()
