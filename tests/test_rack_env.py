"""`rack_v0` and its batch keep the contracts of PettingZoo, Gymnasium, TorchRL."""

import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, render_test, seed_test

from steelyard import native
from steelyard.envs import rack_v0
from steelyard.envs.errors import UserError
from steelyard.envs.rack_batch import RackBatch
from steelyard.envs.rack_central import RackCentralEnv, RackVectorEnv
from steelyard.envs.rack_render import render_image
from steelyard.envs.rack_schema import rack_observation_fields, rack_observation_size, rack_schema_text

SHORT = ("episode.horizon_s=0.001", "episode.warmup_s=0")  # 10 windows
both_actions = pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])


def make(**options):
    return rack_v0.parallel_env(overrides=SHORT, **options)


@both_actions
def test_pettingzoo_parallel_contract(discrete):
    parallel_api_test(make(discrete=discrete), num_cycles=50)


@pytest.mark.filterwarnings(
    "ignore:Observation numpy array is all zeros", "ignore:Agent's maximum observation"
)
@pytest.mark.filterwarnings("ignore:Action space for each agent probably should be")
@both_actions
def test_pettingzoo_turn_based_contract(discrete):
    api_test(rack_v0.env(overrides=SHORT, discrete=discrete), num_cycles=50)


@both_actions
def test_pettingzoo_seeds(discrete):
    parallel_seed_test(lambda: make(discrete=discrete), num_cycles=15)
    seed_test(lambda: rack_v0.env(overrides=SHORT, discrete=discrete), num_cycles=15)


def test_pettingzoo_render(capsys):
    modes = {
        "ansi": lambda text: "load [us]" in text and text.count("\n") == 10,
        "rgb_array": lambda image: image.shape[1] == 480 and image.min() < image.max(),
    }
    render_test(lambda render_mode: rack_v0.env(overrides=SHORT, render_mode=render_mode), modes)
    assert "rack-hom-8x8 at" in capsys.readouterr().out


def test_pettingzoo_names_and_spaces():
    env = rack_v0.parallel_env(scenario="rack-het-2x14-9x4")
    assert env.metadata["name"] == "rack_v0"
    assert env.possible_agents == [f"server_{j}" for j in range(11)]
    assert env.observation_space("server_0").shape == (11 + 9,)
    assert env.observation_space("server_0") is env.observation_space("server_0")
    assert env.action_space("server_1").shape == (22,)
    assert env.observation_space("server_0").dtype == env.action_space("server_0").dtype == np.float32
    discrete = rack_v0.parallel_env(discrete=True)
    assert discrete.action_space("server_0").nvec.tolist() == [8, 8]
    env.reset(seed=0)
    assert env.state().shape == env.state_space.shape == (11 * 20,)
    assert env.state_space.contains(env.state())


def test_pettingzoo_episode():
    env = make()
    observations, infos = env.reset(seed=3)
    assert infos["server_0"]["seed"] == 3
    kept, first = observations["server_0"].copy(), observations
    steps = 0
    while env.agents:
        observations, rewards, terminations, truncations, infos = env.step(
            {agent: env.action_space(agent).sample() for agent in env.agents}
        )
        steps += 1
        assert not any(terminations.values())
        assert all(value < 0 for value in rewards.values())
        assert infos["server_0"]["t_s"] == pytest.approx(steps * 1e-4)
        assert infos["server_0"]["loads_us"].shape == (8,)
    assert steps == 10
    assert all(truncations.values())
    np.testing.assert_array_equal(first["server_0"], kept)  # an observation is not overwritten later
    assert infos["server_0"]["tasks"] > 0
    assert infos["server_0"]["latency_mean_us"] > 0
    assert env.step({}) == ({}, {}, {}, {}, {})
    assert env.reset()[1]["server_0"]["seed"] >= 2**63


def test_repeats_a_seed_and_survives_pickling():
    def episode(env):
        env.reset(seed=7)
        still = {agent: np.zeros(16, np.float32) for agent in env.agents}
        return [env.step(still)[1]["server_0"] for _ in range(10)]

    env = make()
    assert episode(env) == episode(env) == episode(pickle.loads(pickle.dumps(env)))


def test_schema():
    fields = rack_observation_fields(8)
    assert [field.index for field in fields] == list(range(17))
    assert rack_observation_size(8) == native.rack_observation_size(8) == len(fields)
    assert rack_schema_text(2).startswith("rack-observation-v1:load.server_0,load.server_1,tasks,waiting,")


@pytest.mark.parametrize(
    ("actions", "part"),
    [
        ({f"server_{j}": np.zeros(16) for j in range(7)}, "server_7 is missing"),
        ({f"server_{j}": np.zeros(16) for j in range(9)}, "unknown agent 'server_8'"),
        ({f"server_{j}": np.zeros(16 - j // 7) for j in range(8)}, "server_7 .* shape"),
        (
            {f"server_{j}": np.where(np.arange(16) == 2, np.nan, 0.0) for j in range(8)},
            "agent server_0, number 2 = nan",
        ),
    ],
)
def test_bad_actions(actions, part):
    env = make()
    env.reset(seed=0)
    with pytest.raises(UserError, match=part) as caught:
        env.step(actions)
    assert "\n" not in str(caught.value)


def test_image_of_an_empty_rack_shows_its_servers():
    nothing = render_image(np.zeros((3, 12), np.float32), np.zeros(3, np.float32))
    assert nothing.shape == (58, 480, 3)
    assert np.unique(np.argwhere(nothing[..., 0] < 250)[:, 0]).tolist() == [17, 35, 53]


def test_render_needs_a_mode():
    env = make()
    env.reset(seed=0)
    with pytest.raises(UserError, match="render_mode"):
        env.render()


@both_actions
@pytest.mark.parametrize("render_mode", [None, "ansi", "rgb_array"])
def test_gymnasium_contract(discrete, render_mode):
    made = gym.make("steelyard.envs:Rack-v0", overrides=SHORT, discrete=discrete, render_mode=render_mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", message=".*Box observation space (minimum|maximum) value is.*infinity"
        )
        check_env(made.unwrapped)


def test_central_agent_is_all_agents_at_once():
    central, players = RackCentralEnv(overrides=SHORT), make()
    seen, info = central.reset(seed=5)
    observations, _ = players.reset(seed=5)
    assert info["seed"] == 5
    central.action_space.seed(0)
    for step in range(10):
        np.testing.assert_array_equal(seen, np.concatenate(list(observations.values())))
        action = central.action_space.sample()
        seen, reward, terminated, truncated, _ = central.step(action)
        parts = dict(zip(players.agents, action.reshape(8, 16), strict=True))
        observations, rewards, _, _, _ = players.step(parts)
        assert reward == pytest.approx(np.mean(list(rewards.values())), rel=1e-5)
        assert (terminated, truncated) == (False, step == 9)
    with pytest.raises(UserError, match=r"reset\(\) first"):
        central.step(action)


@both_actions
def test_vector_environment_by_id(discrete):
    vector = gym.make_vec("steelyard.envs:Rack-v0", num_envs=3, overrides=SHORT, discrete=discrete)
    assert isinstance(vector.unwrapped, RackVectorEnv)
    observations, _ = vector.reset(seed=1)
    assert vector.observation_space.contains(observations)
    for step in range(12):
        observations, rewards, _, truncated, infos = vector.step(vector.action_space.sample())
        assert observations.shape == (3, 8 * 17)
        assert rewards.shape == infos["tasks"].shape == (3,)
        assert truncated.all() == (step == 9)


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
        from steelyard.envs.rack_torchrl_env import RackTorchRLEnv

        return RackTorchRLEnv("rack-hom-8x8", num_envs, overrides=SHORT, **options)

    @both_actions
    def test_contract(self, torch, discrete):
        from torchrl.envs.utils import check_env_specs

        check_env_specs(self.make(2, discrete=discrete))

    def test_is_the_batch(self, torch):
        env, batch = self.make(seed=11), RackBatch("rack-hom-8x8", 3, overrides=SHORT)
        rollout = env.rollout(10, break_when_any_done=False)
        seen = batch.reset(seed=11)
        for step in range(10):
            moment = rollout[:, step]
            for agent in range(8):
                key = f"server_{agent}"
                np.testing.assert_array_equal(moment[key, "observation"].numpy(), seen[:, agent])
            actions = np.stack([moment[f"server_{agent}", "action"].numpy() for agent in range(8)], axis=1)
            seen, rewards, _ = batch.step(actions)
            np.testing.assert_array_equal(moment["next", "server_7", "reward"][:, 0].numpy(), rewards[:, 7])
        assert rollout["next", "done"][:, -1].all()
        assert not rollout["next", "terminated"].any()


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_rllib_plays_it():
    """RLlib's PPO takes two training steps on the rack, one policy for each server."""
    pytest.importorskip("ray")
    from ray.rllib.algorithms.ppo import PPOConfig

    from steelyard.envs.rllib import RACK, rack_multi_agent_env, register_envs

    with pytest.raises(UserError, match="measure"):
        rack_multi_agent_env({"measure": "true"})
    register_envs()
    config = (
        PPOConfig()
        .environment(RACK, env_config={"overrides": list(SHORT)})
        .env_runners(num_env_runners=0)
        .training(train_batch_size=40, minibatch_size=20, num_epochs=1)
        .multi_agent(
            policies={f"server_{j}" for j in range(8)},
            policy_mapping_fn=lambda agent, *args, **kwargs: agent,
        )
    )
    algorithm = config.build_algo()
    try:
        result = [algorithm.train() for _ in range(2)][-1]
        assert result["env_runners"]["episode_return_mean"] < 0
    finally:
        algorithm.stop()
