"""A world is a pure function of configuration, rule, seed and actions, whatever surrounds it."""

import numpy as np
import pytest
from worlds import cluster, event, exponential, hyperexponential, rule, server, stage

from steelyard import native

RULES = native.rule_names()
MEASURED = (
    "digest",
    "flows",
    "rejected",
    "untracked",
    "events",
    "sojourn_mean_s",
    "sojourn_p99_s",
    "jain_mean",
)
WEIGHTS = [2.0, 1.5, 1.5, 1.0]


def busy_world(**fields) -> native.ClusterConfig:
    """Everything at once: two stages, latencies, rejections, small tables, reservoirs, random events."""
    drop = event("speed", 5.0, value_low=0.3, value_high=0.9, t_high_s=15.0, targets=[0, 1, 2, 3], count=2)
    drop.duration_s = 6.0
    leave = event("leave", 12.0, targets=[0, 3], count=1, duration_s=4.0)
    fail = event("balancer_fail", 14.0, targets=[1], duration_s=5.0)
    return cluster(
        [server(2), server(1, 1.5, "ps"), server(2, 0.75, "ps", 3), server(1)],
        7.0,
        [stage("cpu", exponential(0.7)), stage("io", hyperexponential([0.1, 0.6], [0.8, 0.2]))],
        **{
            "num_load_balancers": 3, "horizon_s": 25.0, "warmup_s": 2.0, "step_s": 0.5, "features": True,
            "admission_limit": 12, "flow_table_buckets": 8, "flow_table_ways": 2, "hop_low_s": 1e-4,
            "hop_high_s": 1e-3, "node_low_s": 1e-6, "node_high_s": 1e-5, "events": [drop, leave, fail],
            **fields,
        },
    )  # fmt: skip


def by_name(name: str) -> native.RuleConfig:
    by = rule(name)
    by.weights = WEIGHTS if by.uses_weights else []
    return by


def measured(episodes: list[dict]) -> list[tuple]:
    return [tuple(episode[key] for key in MEASURED) for episode in episodes]


@pytest.mark.parametrize("name", RULES)
def test_threads_order_and_company_of_seeds_change_nothing(name):
    config, by, seeds = busy_world(), by_name(name), list(range(12))
    alone = [native.simulate(config, by, [seed])[0] for seed in seeds]
    assert measured(native.simulate(config, by, seeds)) == measured(alone)
    assert measured(native.simulate(config, by, seeds, threads=3)) == measured(alone)
    assert measured(native.simulate(config, by, seeds[::-1], threads=2)) == measured(alone)[::-1]
    assert len({episode["digest"] for episode in alone}) == len(seeds)


@pytest.mark.parametrize("name", RULES)
def test_a_world_used_again_forgets_everything(name):
    config, by = busy_world(), by_name(name)
    used = native.World(config, by, 1)
    used.run_until(17.3)
    used.reset(2)
    fresh = native.World(config, by, 2)
    for t_s in np.arange(0.7, 30.0, 0.7):
        used.run_until(t_s)
        fresh.run_until(t_s)
        assert used.digest == fresh.digest
        np.testing.assert_array_equal(used.observe_all(), fresh.observe_all())
    assert used.stats() == fresh.stats()


@pytest.mark.parametrize("name", RULES)
def test_a_snapshot_replays(name):
    """Clone, go on, restore, go on: twice the same; and the clone itself is not touched by either."""
    world = native.World(busy_world(), by_name(name), 3)
    world.run_until(10.1)
    snapshot = world.clone()
    ends = []
    for _ in range(2):
        world.run_until(24.9)
        ends.append(
            (world.digest, world.stats(), world.observe_all().tolist(), world.remaining_time().tolist())
        )
        world.restore(snapshot)
        assert world.now_s == snapshot.now_s == pytest.approx(10.1)
    snapshot.run_until(24.9)
    ends.append(
        (
            snapshot.digest,
            snapshot.stats(),
            snapshot.observe_all().tolist(),
            snapshot.remaining_time().tolist(),
        )
    )
    assert str(ends[0]) == str(ends[1]) == str(ends[2])


def test_a_clone_outlives_its_world():
    world = native.World(busy_world(), by_name("sed"), 4)
    world.run_until(3.0)
    clone = world.clone()
    world.run_until(20.0)
    digest = world.digest
    del world
    clone.run_until(20.0)
    assert clone.digest == digest


def test_a_branch_with_another_action_differs_from_there_on():
    config = busy_world(events=[])
    world = native.World(config, rule("policy"), 5)
    world.run_until(10.0)
    branch = world.clone()
    branch.act(0, np.array([1, -1, -1, -1], np.float32))
    world.run_until(20.0)
    branch.run_until(20.0)
    assert world.digest != branch.digest
    assert world.state()["weights"][1] == branch.state()["weights"][1]


def test_how_often_a_world_is_looked_at_changes_nothing():
    config = busy_world()
    often, once = (native.World(config, by_name("hlb"), 6) for _ in range(2))
    for t_s in np.linspace(0.01, 25.0, 777):
        often.run_until(t_s)
        often.observe_all()
        often.reward("vbf", "true")
        often.state()
    once.run_until(25.0)
    assert often.digest == once.digest
    np.testing.assert_array_equal(often.observe_all(), once.observe_all())


def test_episodes_are_worlds_run_to_the_end():
    config = busy_world()
    (uncensored,) = native.simulate(config, by_name("sed"), [7])
    (peer,) = native.simulate(config, by_name("sed"), [7], convention="peer")
    world = native.World(config, by_name("sed"), 7)
    world.run_until(config.horizon_s)
    assert world.done
    for key in ("flows", "rejected", "sojourn_mean_s", "sojourn_p99_s", "jain_mean"):
        assert world.stats("peer")[key] == peer[key]
    assert world.digest == peer["digest"]
    world.drain()
    for key in ("flows", "rejected", "sojourn_mean_s", "sojourn_p99_s", "jain_mean"):
        assert world.stats()[key] == uncensored[key]
    assert world.digest == uncensored["digest"]


def test_details_and_features_change_no_decision():
    config = busy_world()
    plain = native.simulate(config, by_name("sed"), [8, 9])
    detailed = native.simulate(config, by_name("sed"), [8, 9], details=True)
    assert measured(plain) == measured(detailed)
    blind = native.simulate(busy_world(features=False), by_name("sed"), [8, 9])
    assert [episode["digest"] for episode in blind] == [episode["digest"] for episode in plain]


def flow_by_flow(config: native.ClusterConfig, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Arrival times and sojourns of an episode, in order of arrival."""
    (episode,) = native.simulate(config, by_name(name), [10], details=True)
    order = np.argsort(episode["arrival_s"], kind="stable")
    return episode["arrival_s"][order], episode["sojourn_s"][order]


@pytest.mark.parametrize("name", RULES)
def test_common_random_numbers(name):
    """Arrival times and demands belong to the scenario and the seed, never to the rule."""
    arrivals, _ = flow_by_flow(busy_world(), name)
    expected, _ = flow_by_flow(busy_world(), "ecmp")
    np.testing.assert_array_equal(arrivals, expected)
    stages = [stage("cpu", exponential(0.7)), stage("cpu", hyperexponential([0.1, 0.6], [0.8, 0.2]))]
    unhindered = cluster(  # a worker for everyone, so that a sojourn is its demand and its latency
        [server(1000)] * 4, 7.0, stages, num_load_balancers=3, horizon_s=25.0, hop_low_s=1e-4, hop_high_s=1e-3
    )
    for mine, theirs in zip(flow_by_flow(unhindered, name), flow_by_flow(unhindered, "ecmp"), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_longer_horizon_or_another_pool_keeps_the_flows():
    arrivals, _ = flow_by_flow(busy_world(), "ecmp")
    longer, _ = flow_by_flow(busy_world(horizon_s=40.0), "ecmp")
    np.testing.assert_array_equal(longer[: len(arrivals)], arrivals)
    other, _ = flow_by_flow(busy_world(num_load_balancers=7, reservoir_size=5), "ecmp")
    np.testing.assert_array_equal(other, arrivals)


def play(
    config: native.ClusterConfig, seeds: list[int], actions: np.ndarray, threads: int
) -> list[np.ndarray]:
    """Observations, rewards and truncations of a native batch; actions: (T, B, M, N)."""
    steps, b, m, n = actions.shape
    batch = native.ClusterBatch(config, b, threads, "vbf+log_vbf", "durations")
    seen = np.zeros((b, m, native.observation_size(n)), np.float32)
    buffers = (seen, np.zeros((b, m), np.float32), np.zeros(b, np.uint8))
    batch.bind(*buffers)
    batch.reset(np.array(seeds, np.uint64))
    history = [[buffer.copy() for buffer in buffers]]
    for step in range(steps):
        batch.step(actions[step])
        history.append([buffer.copy() for buffer in buffers])
    return [np.array(column) for column in zip(*history, strict=True)]


@pytest.mark.parametrize("delay_s", [0.0, 0.2])
def test_a_batch_is_its_worlds_bit_for_bit(delay_s):
    """step() = act() for every agent and run_until() the next boundary; alone, together and threaded."""
    config = busy_world(actuation_delay_s=delay_s)
    seeds = [21, 22, 23, 24, 25]
    actions = np.random.default_rng(0).uniform(-1, 1, (50, 5, 3, 4)).astype(np.float32)
    seen, paid, over = play(config, seeds, actions, threads=1)
    for threads in (2, 5):
        for one, two in zip(play(config, seeds, actions, threads), (seen, paid, over), strict=True):
            np.testing.assert_array_equal(one, two)
    for place, seed in enumerate(seeds):
        world = native.World(config, rule("policy"), seed)
        np.testing.assert_array_equal(seen[0, place], world.observe_all())
        for step in range(50):
            for agent in range(3):
                world.act(agent, actions[step, place, agent])
            world.run_until((step + 1) * 0.5)
            np.testing.assert_array_equal(seen[step + 1, place], world.observe_all())
            np.testing.assert_array_equal(paid[step + 1, place], world.reward("vbf+log_vbf", "durations"))
            assert over[step + 1, place] == world.done == (step == 49)


def test_training_seeds_are_no_evaluation_seeds():
    seeds = {native.train_seed(run, episode) for run in range(20) for episode in range(200)}
    assert len(seeds) == 4000
    assert all(2**63 <= seed < 2**64 for seed in seeds)
