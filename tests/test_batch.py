"""The batched environment: the buffer contract, seeds, autoreset, determinism, and bad input."""

import numpy as np
import pytest

from steelyard import native
from steelyard.envs import load_balance_v0
from steelyard.envs.batch import Buffers, LoadBalanceBatch
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import scenario_names
from steelyard.envs.schema import observation_fields, observation_size, schema_hash, schema_text
from steelyard.envs.spaces import DISCRETE_ACTIONS, observation_space

SHORT = ("episode.horizon_s=3",)  # 6 steps


def actions_of(seed: int, step: int, num_agents: int = 2, num_servers: int = 8) -> np.ndarray:
    """Actions (M, N) that depend on the world's seed and the step alone."""
    return np.random.default_rng([seed, step]).uniform(-1, 1, (num_agents, num_servers)).astype(np.float32)


def play(seeds: list[int], steps: int, **options) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Observations (T + 1, B, M, D), rewards (T, B, M) and truncations (T, B) of worlds with these seeds."""
    batch = LoadBalanceBatch("cluster-a-cpu", len(seeds), **options)
    seen, paid, over = [batch.reset(seeds=seeds).copy()], [], []
    for step in range(steps):
        observations, rewards, truncated = batch.step(np.stack([actions_of(seed, step) for seed in seeds]))
        seen.append(observations.copy())
        paid.append(rewards.copy())
        over.append(truncated.copy())
    return np.array(seen), np.array(paid), np.array(over)


def test_worlds_depend_on_neither_the_batch_nor_the_threads():
    seeds = [3, 11, 4, 99, 7]
    together = play(seeds, 15, overrides=SHORT)
    threaded = play(seeds, 15, overrides=SHORT, threads=3)
    backwards = play(seeds[::-1], 15, overrides=SHORT, threads=2)
    for one, two, three in zip(together, threaded, backwards, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three[:, ::-1])
    for place, seed in enumerate(seeds):
        for one, whole in zip(play([seed], 15, overrides=SHORT), together, strict=True):
            np.testing.assert_array_equal(one[:, 0], whole[:, place])


def test_seeds_matter():
    seen, _, _ = play([1, 2], 10)
    assert not np.array_equal(seen[-1, 0], seen[-1, 1])


def test_one_world_is_the_pettingzoo_environment_bit_for_bit():
    seen, paid, over = play([21], 6, overrides=SHORT)
    env = load_balance_v0.parallel_env(overrides=SHORT)
    observations, _ = env.reset(seed=21)
    for step in range(6):
        for agent, name in enumerate(env.possible_agents):
            np.testing.assert_array_equal(observations[name], seen[step, 0, agent])
        joint = actions_of(21, step)
        observations, rewards, terminations, truncations, _ = env.step(
            {name: joint[agent] for agent, name in enumerate(env.possible_agents)}
        )
        assert list(rewards.values()) == paid[step, 0].tolist()
        assert set(truncations.values()) == {bool(over[step, 0])}
        assert not any(terminations.values())
    assert over[-1, 0]
    assert env.agents == []


def test_writes_into_the_callers_buffers():
    size = observation_size(8)
    buffers = Buffers.allocate(3, 2, size)
    addresses = [array.ctypes.data for array in (buffers.observations, buffers.rewards, buffers.truncated)]
    batch = LoadBalanceBatch("cluster-a-cpu", 3, overrides=SHORT, buffers=buffers)
    assert batch.reset(seed=1) is buffers.observations
    before = buffers.observations.copy()
    for _ in range(9):
        observations, rewards, truncated = batch.step(np.zeros((3, 2, 8), np.float32))
        assert observations is buffers.observations
        assert rewards is buffers.rewards
        assert truncated is buffers.truncated
        assert [array.ctypes.data for array in (observations, rewards, truncated)] == addresses
    assert not np.array_equal(buffers.observations, before)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("observations", np.zeros((1, 2, 101))),
        ("observations", np.zeros((1, 2, 100), np.float32)),
        ("observations", np.zeros((1, 2, 202), np.float32)[:, :, ::2]),
        ("rewards", np.zeros((2, 1), np.float32)),
        ("truncated", np.zeros(1, np.int8)),
        ("truncated", None),
    ],
)
def test_buffers_that_do_not_fit_are_refused(name, array):
    good = Buffers.allocate(1, 2, 101)
    bad = Buffers(**{**vars(good), name: array})
    with pytest.raises(UserError, match=f"buffers.{name}"):
        LoadBalanceBatch("cluster-a-cpu", 1, buffers=bad)


def test_read_only_buffers_are_refused():
    buffers = Buffers.allocate(1, 2, 101)
    buffers.rewards.flags.writeable = False
    with pytest.raises(UserError, match=r"buffers\.rewards"):
        LoadBalanceBatch("cluster-a-cpu", 1, buffers=buffers)


def test_next_step_autoreset():
    batch = LoadBalanceBatch("cluster-a-cpu", 2, overrides=SHORT)
    batch.reset(seeds=[8, 9])
    first_seeds = batch.seeds
    still = np.zeros((2, 2, 8), np.float32)
    for step in range(6):
        observations, rewards, truncated = batch.step(still)
        assert truncated.tolist() == [step == 5] * 2
    last, stats = observations.copy(), batch.episode_stats()
    assert (stats["flows"] > 0).all()
    observations, rewards, truncated = batch.step(still + 1)
    assert not truncated.any()
    assert (rewards == 0).all()
    assert not np.array_equal(observations, last)
    assert (batch.seeds != first_seeds).all()
    fresh = LoadBalanceBatch("cluster-a-cpu", 2, overrides=SHORT)
    np.testing.assert_array_equal(observations, fresh.reset(seeds=batch.seeds))
    for _ in range(6):
        for one, two in zip(batch.step(still), fresh.step(still), strict=True):
            np.testing.assert_array_equal(one, two)


def test_worlds_out_of_step_reset_alone():
    options = {"overrides": SHORT, "autoreset": True}
    batch, alone = (
        LoadBalanceBatch("cluster-a-cpu", 3, **options),
        LoadBalanceBatch("cluster-a-cpu", 1, **options),
    )
    batch.reset(seeds=[1, 2, 3])
    still = np.zeros((3, 2, 8), np.float32)
    for _ in range(2):
        batch.step(still)
    batch.reset_worlds(np.array([False, True, False]))
    seed = int(batch.seeds[1])
    assert seed == native.train_seed(2, 1)
    alone.reset(seeds=[seed])
    truncations = []
    for step in range(6):
        observations, rewards, truncated = batch.step(still)
        truncations.append(truncated.tolist())
        one = alone.step(still[:1])
        np.testing.assert_array_equal(observations[1], one[0][0])
        np.testing.assert_array_equal(rewards[1], one[1][0])
        assert truncated[1] == one[2][0] == (step == 5)
    assert truncations[3] == [True, False, True]
    assert truncations[4] == [False, False, False]


def test_without_autoreset_a_step_after_the_end_is_an_error():
    batch = LoadBalanceBatch("cluster-a-cpu", 2, overrides=SHORT, autoreset=False)
    batch.reset(seed=4)
    still = np.zeros((2, 2, 8), np.float32)
    for _ in range(6):
        _, _, truncated = batch.step(still)
    assert truncated.all()
    with pytest.raises(UserError, match="world 0"):
        batch.step(still)
    batch.reset_worlds(truncated.copy())
    assert not batch.step(still)[2].any()


def test_training_seeds_never_meet_evaluation_seeds():
    batch = LoadBalanceBatch("cluster-a-cpu", 4, overrides=SHORT)
    seen: set[int] = set()
    for run in (0, 1):
        batch.reset(seed=run)
        for _ in range(5):
            seeds = [int(seed) for seed in batch.seeds]
            assert all(seed >= 2**63 for seed in seeds)
            assert not seen.intersection(seeds)
            seen.update(seeds)
            batch.reset()
    assert len(seen) == 40
    assert all(0 <= seed < 2**64 for seed in seen)
    assert [int(s) for s in LoadBalanceBatch("cluster-a-cpu", 2).seeds] == [0, 0]


def test_an_unseeded_batch_draws_its_own_run():
    one, two = LoadBalanceBatch("cluster-a-cpu", 2), LoadBalanceBatch("cluster-a-cpu", 2)
    one.reset()
    two.reset()
    assert not set(one.seeds.tolist()) & set(two.seeds.tolist())


def test_discrete_actions_are_the_three_weights():
    indices = np.random.default_rng(0).integers(0, 3, (6, 1, 2, 8))
    discrete = LoadBalanceBatch("cluster-a-cpu", 1, overrides=SHORT, discrete=True)
    continuous = LoadBalanceBatch("cluster-a-cpu", 1, overrides=SHORT)
    np.testing.assert_allclose(2.0 ** (2 * DISCRETE_ACTIONS), [1, 1.5, 2], rtol=1e-6)
    discrete.reset(seeds=[1])
    continuous.reset(seeds=[1])
    for index in indices:
        one, two = discrete.step(index), continuous.step(DISCRETE_ACTIONS[index])
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[0][0, :, -8:], DISCRETE_ACTIONS[index[0]])


def test_observation_is_as_the_schema_says():
    fields = observation_fields(8)
    assert [field.index for field in fields] == list(range(observation_size(8)))
    text = schema_text(8)
    assert text.startswith("steelyard-obs-v1;servers=8;")
    assert schema_hash(8) != schema_hash(9)
    named = [field.name for field in fields]
    batch = LoadBalanceBatch("cluster-a-cpu", 1)
    assert not batch.reset(seeds=[0]).any()
    for step in range(40):
        joint = actions_of(0, step)
        observation = batch.step(joint[None])[0][0]
    values = {name: observation[:, index] for index, name in enumerate(named)}
    for server in range(8):
        np.testing.assert_array_equal(values[f"previous_action.server_{server}"], joint[:, server])
        flows = values[f"server_{server}.n_flow_on"]
        assert (flows == np.rint(flows)).all()
        assert (values[f"server_{server}.fct.p90"] >= 0).all()
    for agent in range(2):  # half of 20.28 flows/s reaches each balancer; 200 gaps or so
        assert values["inter_arrival.mean"][agent] == pytest.approx(2 / 20.28, rel=0.4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_actions_that_are_no_numbers_move_nothing(bad):
    batch = LoadBalanceBatch("cluster-a-cpu", 2, overrides=SHORT)
    batch.reset(seeds=[1, 2])
    actions = np.zeros((2, 2, 8), np.float32)
    batch.step(actions)
    before = batch.buffers.observations.copy()
    actions[1, 0, 3] = bad
    with pytest.raises(UserError, match=r"world 1, agent lb_0, server 3 = -?(nan|inf): must be"):
        batch.step(actions)
    np.testing.assert_array_equal(batch.buffers.observations, before)
    actions[1, 0, 3] = 0
    reference = LoadBalanceBatch("cluster-a-cpu", 2, overrides=SHORT)
    reference.reset(seeds=[1, 2])
    reference.step(actions)
    np.testing.assert_array_equal(batch.step(actions)[0], reference.step(actions)[0])


def test_actions_outside_the_box_are_clipped():
    outside, edge = LoadBalanceBatch("cluster-a-cpu", 1), LoadBalanceBatch("cluster-a-cpu", 1)
    outside.reset(seeds=[1])
    edge.reset(seeds=[1])
    seen = outside.step(np.full((1, 2, 8), 7.0))[0]
    np.testing.assert_array_equal(seen, edge.step(np.ones((1, 2, 8)))[0])


@pytest.mark.parametrize(
    ("discrete", "actions", "part"),
    [
        (False, np.zeros((1, 2, 7)), "shape"),
        (False, np.zeros(16), "shape"),
        (False, np.full((1, 2, 8), "a"), "numbers"),
        (True, np.zeros((1, 2, 8)), "whole numbers"),
        (True, np.full((1, 2, 8), 3), "server 0 = 3: must be 0, 1 or 2"),
        (True, np.full((1, 2, 8), -1), "server 0 = -1: must be 0, 1 or 2"),
    ],
)
def test_bad_actions(discrete, actions, part):
    batch = LoadBalanceBatch("cluster-a-cpu", 1, discrete=discrete)
    batch.reset(seed=0)
    with pytest.raises(UserError, match=part):
        batch.step(actions)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"num_envs": 0}, "num_envs = 0"),
        ({"num_envs": 1.5}, "num_envs = 1.5"),
        ({"num_envs": 1, "threads": 0}, "threads = 0"),
        ({"num_envs": 1, "scenario": "nowhere"}, "unknown scenario"),
    ],
)
def test_bad_arguments(options, part):
    with pytest.raises(UserError, match=part):
        LoadBalanceBatch(**{"scenario": "cluster-a-cpu", **options})


@pytest.mark.parametrize(
    "reset",
    [
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 1.5},
        {"seeds": [1]},
        {"seeds": [1, -2]},
        {"seed": 1, "seeds": [1, 2]},
    ],
)
def test_bad_seeds(reset):
    with pytest.raises(UserError, match="seed"):
        LoadBalanceBatch("cluster-a-cpu", 2).reset(**reset)


def test_step_before_reset():
    with pytest.raises(UserError, match=r"reset\(\) first"):
        LoadBalanceBatch("cluster-a-cpu", 1).step(np.zeros((1, 2, 8)))


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_plays(name):
    batch = LoadBalanceBatch(name, 2, threads=2)
    shape = (2, batch.num_agents, batch.num_servers)
    assert batch.reset(seed=0).shape == (*shape[:2], observation_size(batch.num_servers))
    space = observation_space(batch.num_servers, 2 * batch.num_agents)
    rng = np.random.default_rng(0)
    warmup = round(batch.scenario.episode.warmup_s / batch.scenario.control.step_s)
    for _ in range(warmup + 4):
        observations, rewards, truncated = batch.step(rng.uniform(-1, 1, shape))
        assert space.contains(observations.reshape(-1))
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()
        assert not truncated.any()
    assert (batch.episode_stats()["flows"] > 0).all()


def test_a_horizon_between_two_steps_ends_the_episode_at_the_next():
    batch = LoadBalanceBatch("cluster-a-cpu", 1, overrides=["episode.horizon_s=1.3"])
    batch.reset(seed=0)
    ends = [bool(batch.step(np.zeros((1, 2, 8)))[2][0]) for _ in range(4)]
    assert ends == [False, False, True, False]


def test_without_features_flows_and_actions_remain():
    batch = LoadBalanceBatch("cluster-a-cpu", 1, overrides=["observation.features=false"])
    batch.reset(seed=0)
    for _ in range(20):
        observation = batch.step(np.ones((1, 2, 8)))[0][0]
    fields = observation_fields(8)
    kept = [field.index for field in fields if "n_flow_on" in field.name or "action" in field.name]
    assert observation[:, kept].any()
    assert not np.delete(observation, kept, axis=1).any()
