"""What reaches an agent: late observations, hidden features, and which actor serves which balancer; the same
in every face of the game and in native inference.
"""

import numpy as np
import pytest
from worlds import cluster, event, exponential, rule, server, stage

from steelyard import native
from steelyard.envs import load_balance_v0
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.central import LoadBalanceCentralEnv
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.envs.schema import FEATURE_FAMILIES, observation_fields

SERVERS, AGENTS, STEP_S = 3, 2, 0.5


def config_of(**fields) -> native.ClusterConfig:
    """A busy pool with latencies, an actuation delay and a balancer that fails."""
    fail = event("balancer_fail", 9.25, targets=[1], duration_s=4.0)
    return cluster(
        [server(2), server(1), server(1, 0.5)],
        3.0,
        [stage("cpu", exponential(0.8))],
        **{
            "num_load_balancers": AGENTS, "horizon_s": 30.0, "step_s": STEP_S, "features": True,
            "hop_low_s": 1e-4, "hop_high_s": 1e-3, "actuation_delay_s": 0.2, "events": [fail], **fields,
        },
    )  # fmt: skip


def action_at(step: int) -> np.ndarray:
    """(M, N) some actions that belong to a step."""
    return np.sin(np.arange(AGENTS * SERVERS, dtype=np.float32) + step).reshape(AGENTS, SERVERS)


def views(config: native.ClusterConfig, at_s: list[float]) -> list[np.ndarray]:
    """What agents see at these times (ascending) while they play `action_at`."""
    world, step, seen = native.World(config, rule("policy"), 5), 0, []
    for t_s in at_s:
        while step * STEP_S < t_s:
            world.run_until(step * STEP_S)
            for agent in range(AGENTS):
                world.act(agent, action_at(step)[agent])
            step += 1
        world.run_until(t_s)
        seen.append(world.observe_all())
    return seen


@pytest.mark.parametrize("delay_s", [0.5, 1.0, 2.5, 0.2, 0.7, 3.3])
def test_an_agent_sees_at_a_step_what_was_there_the_delay_before(delay_s):
    """Steps are sampled whole; the world itself does not change, only what is told of it."""
    steps = [k * STEP_S for k in range(1, 60)]
    late = views(config_of(observation_delay_s=delay_s), steps)
    then = views(config_of(), [round(t_s - delay_s, 9) for t_s in steps if t_s >= delay_s - 1e-9])
    early = len(steps) - len(then)
    assert not np.any(late[:early])
    np.testing.assert_array_equal(late[early:], then)
    assert np.any(then[-1] != then[-2])


def test_between_steps_the_newest_observation_that_is_old_enough_stands():
    late = native.World(config_of(observation_delay_s=0.7), rule("lsq"), 5)
    plain = native.World(config_of(), rule("lsq"), 5)
    for now_s, taken_s in ((3.0, 2.3), (3.3, 2.3), (3.499, 2.3), (3.5, 2.8), (3.9, 2.8)):
        late.run_until(now_s)
        if plain.now_s < taken_s:
            plain.run_until(taken_s)
        np.testing.assert_array_equal(late.observe_all(), plain.observe_all())


def test_a_delay_leaves_rules_and_rewards_alone():
    for name in ("sed", "hlb"):
        late, plain = (native.World(config_of(observation_delay_s=d), rule(name), 2) for d in (1.2, 0.0))
        late.run_until(20.0)
        plain.run_until(20.0)
        assert late.digest == plain.digest
        np.testing.assert_array_equal(late.reward("vbf"), plain.reward("vbf"))


def test_a_snapshot_and_a_reset_take_what_is_on_its_way_along():
    world = native.World(config_of(observation_delay_s=1.3), rule("lsq"), 3)
    world.run_until(10.0)
    snapshot = world.clone()
    first = [(world.run_until(t_s), world.observe_all())[1] for t_s in (10.5, 11.0, 12.0)]
    world.restore(snapshot)
    again = [(world.run_until(t_s), world.observe_all())[1] for t_s in (10.5, 11.0, 12.0)]
    np.testing.assert_array_equal(first, again)
    world.reset(4)
    assert not np.any(world.observe_all())
    fresh = native.World(config_of(observation_delay_s=1.3), rule("lsq"), 4)
    world.run_until(7.0)
    fresh.run_until(7.0)
    np.testing.assert_array_equal(world.observe_all(), fresh.observe_all())


def blob(actors: int, seed: int = 1) -> bytes:
    """A linear policy with random weights: every feature matters."""
    rng, dim = np.random.default_rng(seed), native.observation_size(SERVERS)

    def actor() -> dict:
        weight = rng.normal(0, 0.3, (SERVERS, dim)).astype(np.float32)
        layer = {
            "kind": "dense", "weight": weight, "bias": np.zeros(SERVERS, np.float32), "activation": "none",
        }  # fmt: skip
        return {"mean": np.zeros(dim, np.float32), "inv_std": np.ones(dim, np.float32), "layers": [layer]}

    return native.encode_policy(
        {
            "num_servers": SERVERS, "input": "flat", "output": "tanh", "clip": 10.0,
            "actors": [actor() for _ in range(actors)],
        }
    )  # fmt: skip


def hosted(config: native.ClusterConfig, actors: int, **fields) -> native.World:
    by = rule("policy", **fields)
    by.policy = native.Policy(blob(actors))
    return native.World(config, by, 6)


@pytest.mark.parametrize(
    "fields",
    [
        {"observation_delay_s": 1.0},
        {"observation_delay_s": 0.7},
        {"hidden_features": ["fct", "p90"]},
        {"hidden_features": ["n_flow_on"], "observation_delay_s": 0.3},
    ],
)
def test_native_policies_see_what_a_caller_sees(fields):
    """The policy inside the simulator, and the same one stepped by hand on World.observe."""
    config = config_of(**fields, events=[])
    inside, outside = hosted(config, AGENTS), native.World(config, rule("policy"), 6)
    by_hand = native.Policy(blob(AGENTS))
    for step in range(50):
        outside.run_until(step * STEP_S)
        for agent, observed in enumerate(outside.observe_all()):
            outside.act(agent, by_hand.infer(agent, observed))
    inside.run_until(24.9)
    outside.run_until(24.9)
    assert inside.digest == outside.digest
    plain = hosted(config_of(events=[]), AGENTS)
    plain.run_until(24.9)
    assert plain.digest != inside.digest


def test_families_are_those_of_the_core():
    assert list(FEATURE_FAMILIES) == native.feature_families()


@pytest.mark.parametrize("hide", [[family] for family in FEATURE_FAMILIES] + [["fct", "std"], []])
def test_hidden_features_read_as_zero_and_others_as_they_are(hide):
    at_s = [12.5, 25.0]
    hidden = [bool(set(field.name.split(".")) & set(hide)) for field in named_fields()]
    plain = np.array(views(config_of(), at_s))
    seen = np.array(views(config_of(hidden_features=hide), at_s))
    np.testing.assert_array_equal(seen[:, :, hidden], 0)
    np.testing.assert_array_equal(seen[:, :, ~np.array(hidden)], plain[:, :, ~np.array(hidden)])
    assert np.any(plain[:, :, hidden] != 0) == bool(hide)


def named_fields() -> list:
    return observation_fields(SERVERS)


def test_every_face_of_the_game_hides_and_delays_alike():
    overrides = ["episode.horizon_s=8", 'observation.hide=["fct", "dmean"]', "observation.delay_s=1.2"]
    batch = LoadBalanceBatch("cluster-a-cpu", 1, overrides=overrides)
    parallel = load_balance_v0.parallel_env(scenario="cluster-a-cpu", overrides=overrides)
    central = LoadBalanceCentralEnv("cluster-a-cpu", overrides=overrides)
    scenario = Scenario.load("cluster-a-cpu", overrides)
    world = native.World(scenario.to_native(), rule("policy"), 11)
    of_batch = batch.reset(seeds=[11])
    of_parallel, _ = parallel.reset(seed=11)
    of_central, _ = central.reset(seed=11)
    still = np.zeros((2, 8), np.float32)
    for step in range(16):
        expected = world.observe_all()
        np.testing.assert_array_equal(of_batch[0], expected)
        np.testing.assert_array_equal([of_parallel["lb_0"], of_parallel["lb_1"]], expected)
        np.testing.assert_array_equal(of_central, expected.reshape(-1))
        world.act(0, still[0])
        world.act(1, still[1])
        world.run_until((step + 1) * 0.5)
        of_batch, _, _ = batch.step(still[None])
        of_parallel = parallel.step({"lb_0": still[0], "lb_1": still[1]})[0]
        of_central = central.step(still.reshape(-1))[0]
    assert np.any(expected != 0)
    hidden = [{"fct", "dmean"} & set(field.name.split(".")) != set() for field in observation_fields(8)]
    assert not np.any(expected[:, hidden])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('observation.hide=["fcts"]', "did you mean 'fct'"),
        ("observation.delay_s=-1", r"observation\.delay_s"),
        ("observation.delay_s=501", r"at most 1000 control\.step_s = 500"),
    ],
)
def test_bad_views_are_named(override, message):
    with pytest.raises(UserError, match=message):
        Scenario.load("cluster-a-cpu", [override])


def test_the_native_configuration_refuses_too():
    with pytest.raises(ValueError, match=r'observation\.hide: "fcts" is not known'):
        config_of(hidden_features=["fcts"]).prepare()
    with pytest.raises(ValueError, match=r"observation\.delay_s"):
        config_of(observation_delay_s=1e4).prepare()


def test_actors_are_cycled_only_when_asked():
    """Three balancers under two actors are balancers 0, 1, 2 under actors 0, 1, 0."""
    config = config_of(num_load_balancers=3)
    with pytest.raises(ValueError, match="2 actors; needs 1 or 3"):
        hosted(config, 2)
    inside = hosted(config, 2, cycle_actors=True)
    outside, by_hand = native.World(config, rule("policy"), 6), native.Policy(blob(2))
    for step in range(20):
        outside.run_until(step * STEP_S)
        for agent, observed in enumerate(outside.observe_all()):
            if not (agent == 1 and 9.25 <= step * STEP_S < 13.25):  # failed: its agent is not asked
                outside.act(agent, by_hand.infer(agent % 2, observed))
    inside.run_until(9.9)
    outside.run_until(9.9)
    assert inside.digest == outside.digest
    alone = hosted(config_of(num_load_balancers=1, events=[]), 2, cycle_actors=True)
    alone.run_until(5.0)
    assert alone.now_s == 5.0
