"""What an agent sees: the order of the schema, every number by hand, and nothing of what it may not see.

Latencies are fixed numbers here: every hop takes 10 ms. A flow that opens at t and has d seconds of work
alone on its server gives a duration of 30 ms at its first ACK (to the server, to the client, back) and of
d + 30 ms at its FIN, which is also its completion time.
"""

import numpy as np
import pytest
from reference import STREAM_HASH, STREAM_RESERVOIR, below, draw, reservoir, stream_key
from worlds import cluster, distribution, exponential, rule, script, script_seed, server, stage

from steelyard import native

HOP_S = 0.01
SERVERS = 3
FIXED = {"hop_low_s": HOP_S, "hop_high_s": HOP_S, "features": True, "horizon_s": 200.0, "step_s": 0.5}


def reduced(samples: list[tuple[float, float]], now_s: float) -> np.ndarray:
    """(5,) mean, 90th percentile, deviation, discounted and weighted discounted mean of (time, value)."""
    if not samples:
        return np.zeros(5)
    times, values = np.array(samples).T
    weight = 0.9 ** (now_s - times)
    return np.array([
        values.mean(), np.percentile(values, 90), values.std(),
        (weight * values).mean(), (weight * values).sum() / weight.sum(),
    ])  # fmt: skip


def expected_of(flows: list[tuple[float, float, int]], now_s: float, seed: int, agent: int = 0) -> np.ndarray:
    """(12 N + 5,) of flows (opened_s, work_s, server) that never waited, in the order of the schema."""
    parts: list = []
    streams = draw(stream_key(seed, STREAM_RESERVOIR), agent)
    for j in range(SERVERS):
        mine = [(opened, work) for opened, work, at in flows if at == j and opened <= now_s]
        acks = [(opened + 3 * HOP_S, 3 * HOP_S) for opened, _ in mine]
        fins = [(opened + work + 3 * HOP_S, work + 3 * HOP_S) for opened, work in mine]
        on = len(mine) - sum(at <= now_s for at, _ in fins)
        durations, completions = (sorted(s for s in kind if s[0] <= now_s) for kind in (acks + fins, fins))
        parts += [[on], reduced(reservoir(durations, stream_key(streams, 2 * j)), now_s)]
        parts += [reduced(reservoir(completions, stream_key(streams, 2 * j + 1)), now_s)]
    opened = sorted(opened for opened, _, _ in flows if opened <= now_s)
    gaps = zip(opened[1:], np.diff(opened), strict=True)
    parts += [reduced(reservoir(gaps, stream_key(streams, 2**64 - 1)), now_s), np.zeros(SERVERS)]
    return np.concatenate(parts)


ARRIVAL_S = [0.0, 0.4, 1.0, 3.5, 4.0, 4.1]
WORK_S = [2.0, 0.5, 7.25, 0.1, 1.5, 30.0]


def sent_in_turn() -> list[tuple[float, float, int]]:
    return [(t, w, k % SERVERS) for k, (t, w) in enumerate(zip(ARRIVAL_S, WORK_S, strict=True))]


def test_every_number_by_hand():
    config = script([server(100)] * SERVERS, ARRIVAL_S, WORK_S, **FIXED)
    world = native.World(config, rule("rr"), seed := script_seed(config))
    assert native.observation_size(SERVERS) == 12 * SERVERS + 5 == len(world.observe(0))
    for now_s in (0.001, 0.02, 0.2, 1.02, 3.0, 4.05, 5.55, 20.0, 34.13, 60.0, 199.0):
        world.run_until(now_s)
        observed = world.observe(0)
        assert observed.dtype == np.float32
        np.testing.assert_allclose(observed, expected_of(sent_in_turn(), now_s, seed), rtol=1e-5, atol=1e-6)


def test_a_flow_counts_from_its_syn_until_its_fin():
    """-1 one hop after the client has the reply: work + 3 hops after the SYN."""
    config = script([server(100)] * SERVERS, [0.0], [2.0], **FIXED)
    world = native.World(config, rule("rr"), script_seed(config))
    for now_s, on, in_system in (
        (0.0, 1, 0),
        (0.011, 1, 1),
        (2.009, 1, 1),
        (2.011, 1, 0),
        (2.029, 1, 0),
        (2.031, 0, 0),
    ):
        world.run_until(now_s)
        assert world.observe(0)[0] == on
        assert world.state()["in_system"][0] == in_system


def test_the_previous_action_is_last():
    config = script([server(100)] * SERVERS, ARRIVAL_S, WORK_S, **FIXED, actuation_delay_s=0.2)
    world = native.World(config, rule("policy"), script_seed(config))
    action = np.array([0.5, -1.0, 0.25], np.float32)
    world.run_until(1.0)
    world.act(0, action)
    np.testing.assert_array_equal(world.observe(0)[-SERVERS:], action)
    assert world.state()["weights"][0] == [1.0, 1.0, 1.0]
    world.run_until(1.21)
    np.testing.assert_allclose(world.state()["weights"][0], 2.0 ** (2 * action), rtol=2e-5)
    np.testing.assert_array_equal(world.observe(0)[-SERVERS:], action)


def test_each_balancer_sees_its_own_flows_only():
    """The edge router gives a flow to a balancer by its hash; the two histories are worked out apart."""
    arrival_s = [0.25 * k for k in range(400)]
    config = script([server(100)] * SERVERS, arrival_s, [1.1] * 400, **FIXED, num_load_balancers=2)
    seed = script_seed(config)
    hashes = stream_key(seed, STREAM_HASH)
    owners = [below(draw(hashes, k), 2) for k in range(400)]
    assert 150 < sum(owners) < 250
    world = native.World(config, rule("rr"), seed)
    for now_s in (5.1, 12.9, 40.1, 120.0):
        world.run_until(now_s)
        for agent, observed in enumerate(world.observe_all()):
            mine = [t for t, owner in zip(arrival_s, owners, strict=True) if owner == agent]
            flows = [(t, 1.1, k % SERVERS) for k, t in enumerate(mine)]
            expected = expected_of(flows, now_s, seed, agent)
            np.testing.assert_allclose(observed, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(observed, world.observe(agent))


def test_inter_arrival_times_are_those_of_the_balancers_share():
    """Two balancers halve a Poisson stream: gaps of mean and deviation 2 / rate."""
    stages = [stage("cpu", exponential(1e-3))]
    config = cluster([server(1000)], 50.0, stages, num_load_balancers=2, horizon_s=400.0, features=True)
    world = native.World(config, rule("ecmp"), 3)
    means, deviations = [], []
    for t_s in range(30, 400, 30):  # 750 gaps later the 128 places are all new
        world.run_until(t_s)
        for observed in world.observe_all():
            means.append(observed[11])
            deviations.append(observed[13])
    assert np.mean(means) == pytest.approx(2 / 50.0, rel=0.1)
    assert np.mean(deviations) == pytest.approx(2 / 50.0, rel=0.15)


def test_demands_cannot_be_seen():
    """Two worlds whose flows differ in work only: alike until the first of them is done."""
    worlds = []
    for work_s in ([5.0] * 6, [50.0, 6.0, 70.0, 8.0, 9.0, 10.0]):
        config = script([server(1)] * SERVERS, ARRIVAL_S, work_s, **FIXED)
        worlds.append(native.World(config, rule("sed"), script_seed(config)))
    for now_s in (0.5, 2.0, 4.9):
        for world in worlds:
            world.run_until(now_s)
        np.testing.assert_array_equal(worlds[0].observe(0), worlds[1].observe(0))


def test_a_small_reservoir_forgets():
    """Of many flows of 1 s, then as many of 3 s, 8 places soon hold none of the first kind."""
    arrival_s = [0.1 * k for k in range(400)]
    work_s = [1.0] * 200 + [3.0] * 200
    config = script([server(1000)], arrival_s, work_s, **FIXED, reservoir_size=8)
    world = native.World(config, rule("ecmp"), script_seed(config))
    world.run_until(20.0)
    np.testing.assert_allclose(world.observe(0)[6:9], [1.03, 1.03, 0.0], atol=1e-5)
    world.run_until(50.0)
    np.testing.assert_allclose(world.observe(0)[6:9], [3.03, 3.03, 0.0], atol=1e-5)


def test_features_off_leaves_the_counters():
    config = script([server(100)] * SERVERS, ARRIVAL_S, WORK_S, **{**FIXED, "features": False})
    world = native.World(config, rule("rr"), script_seed(config))
    world.run_until(4.2)
    observed = world.observe(0)
    expected = expected_of(sent_in_turn(), 4.2, seed=0)
    np.testing.assert_array_equal(observed[0 : 11 * SERVERS : 11], expected[0 : 11 * SERVERS : 11])
    assert np.count_nonzero(observed) == np.count_nonzero(observed[0 : 11 * SERVERS : 11])


def test_durations_of_the_reward_are_those_of_the_observation():
    stages = [stage("cpu", distribution("lognormal", [1.0, 1.0]))]
    config = cluster([server()] * SERVERS, 2.5, stages, num_load_balancers=2, horizon_s=50.0, features=True)
    world = native.World(config, rule("lsq"), 5)
    world.run_until(40.0)
    for agent, observed in enumerate(world.observe_all()):
        weighted = observed[5 : 11 * SERVERS : 11].astype(float)
        for kind in ("vbf", "jain", "pbf", "makespan"):
            assert world.reward(kind, "durations")[agent] == pytest.approx(
                native.reward(kind, weighted), rel=1e-5
            )


def test_schema_text_and_hash():
    """FNV-1a of the text; another number of servers is another schema."""
    text = native.observation_schema_text(SERVERS)
    assert text.startswith("steelyard-obs-v1;servers=3;")
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    assert native.observation_schema_hash(SERVERS) == value
    assert len({native.observation_schema_hash(n) for n in range(1, 200)}) == 199


@pytest.mark.parametrize("bad", [[0.0, 0.0], [0.0] * 4, [[0.0] * 3]])
def test_actions_of_another_shape_are_refused(bad):
    world = native.World(cluster([server()] * SERVERS, 1.0, horizon_s=1.0), rule("policy"), 1)
    with pytest.raises(ValueError, match=r"needs shape \(3,\)"):
        world.act(0, np.array(bad, np.float32))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_actions_that_are_no_numbers_are_refused(value):
    world = native.World(cluster([server()] * SERVERS, 1.0, horizon_s=1.0), rule("policy"), 1)
    with pytest.raises(ValueError, match=r"action\[0\]\[1\]: .* is not allowed"):
        world.act(0, np.array([0.0, value, 0.0], np.float32))
    assert world.state()["weights"] == [[1.0, 1.0, 1.0]]
