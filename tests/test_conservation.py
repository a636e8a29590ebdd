"""Conservation: flows, counters and work are neither lost nor made up; Little's law."""

import numpy as np
import pytest
import theory
from scipy import stats
from worlds import (
    assert_mean,
    cluster,
    deterministic,
    event,
    exponential,
    hyperexponential,
    replications,
    rule,
    script,
    script_seed,
    server,
    stage,
    standard_error,
)

from steelyard import native

CPU_IO = [stage("cpu", exponential(0.7)), stage("io", hyperexponential([0.1, 0.6], [0.8, 0.2]))]
POOL = [server(2), server(1, 1.5, "ps"), server(2, 0.75, "ps", 3), server(1)]
LATENCY = {"hop_low_s": 1e-3, "hop_high_s": 2e-2, "node_low_s": 1e-5, "node_high_s": 1e-4}
ALL_RULES = native.rule_names()


def mixed_world(**fields) -> native.ClusterConfig:
    return cluster(POOL, 7.5, CPU_IO, num_load_balancers=3, horizon_s=40.0, step_s=0.5, **fields)


def arrivals_by(config: native.ClusterConfig, seed: int, times_s: np.ndarray) -> np.ndarray:
    """(T,) how many flows have opened by each time, from an episode of another rule with the same seed."""
    opened = native.simulate(config, rule("ecmp"), [seed], details=True)[0]["arrival_s"]
    return np.searchsorted(np.sort(opened), times_s, side="right")


@pytest.mark.parametrize("name", ALL_RULES)
def test_flows_in_are_flows_done_and_in_flight(name):
    """Without latency each flow is done, or in exactly one server and on one balancer's counter."""
    config = mixed_world(features=True, admission_limit=3)
    times_s = np.arange(0.5, 40.0, 0.5)
    opened = arrivals_by(config, 11, times_s)
    world = native.World(config, rule(name), 11)
    for t_s, count in zip(times_s, opened, strict=True):
        world.run_until(t_s)
        state = world.state()
        assert count == world.stats()["flows"] + state["live_flows"]
        assert sum(state["in_system"]) == state["live_flows"]
        np.testing.assert_array_equal(np.sum(state["flows_on"], axis=0), state["in_system"])
        assert (np.array(state["waiting"]) <= state["in_system"]).all()
    assert world.stats()["rejected"] > 0


@pytest.mark.parametrize("name", ["ecmp", "sed", "hlb", "charon_wsapp", "oracle"])
def test_counters_with_latency(name):
    """A balancer counts a flow from its SYN to its FIN or RST, on the wire too."""
    config = mixed_world(features=True, admission_limit=5, **LATENCY)
    times_s = np.arange(0.5, 40.0, 0.5)
    opened = arrivals_by(config, 12, times_s)
    world = native.World(config, rule(name), 12)
    on_the_wire = 0
    for t_s, count in zip(times_s, opened, strict=True):
        world.run_until(t_s)
        state = world.state()
        live = state["live_flows"]
        assert np.sum(state["flows_on"]) == live
        assert (np.sum(state["flows_on"], axis=0) >= state["in_system"]).all()
        assert count - world.stats()["flows"] <= live
        assert sum(state["in_system"]) <= count - world.stats()["flows"]
        on_the_wire += live - sum(state["in_system"])
    assert on_the_wire > 0


@pytest.mark.parametrize("name", ALL_RULES)
@pytest.mark.parametrize("latency", [{}, LATENCY], ids=["no-latency", "latency"])
def test_everything_returns_to_zero_when_arrivals_stop(name, latency):
    stop = event("arrival_scale", 20.0, value=1e-6)
    config = mixed_world(features=True, admission_limit=8, events=[stop], **latency)
    world = native.World(config, rule(name), 13)
    world.run_until(20.0)
    assert world.state()["live_flows"] > 0
    world.run_until(400.0)
    state = world.state()
    assert state["live_flows"] == 0
    assert not np.any(state["in_system"])
    assert not np.any(state["waiting"])
    assert not np.any(state["flows_on"])
    assert not np.any(world.remaining_time())


def test_a_full_bucket_leaves_flows_untracked_and_never_counted():
    """A table of one bucket with k ways is an M/G/k/k loss system: Erlang B of its flows are untracked."""
    ways, rate = 4, 3.0
    config = cluster(
        [server(1000)] * 3, rate, [stage("cpu", exponential())],
        flow_table_buckets=1, flow_table_ways=ways, horizon_s=4000.0, warmup_s=0.0,
    )  # fmt: skip
    episodes = native.simulate(config, rule("lsq"), list(range(32)), convention="peer")
    share = np.array([episode["untracked"] / (rate * config.horizon_s) for episode in episodes])
    assert_mean(share, theory.erlang_b(ways, rate))
    world = native.World(config, rule("lsq"), 1)
    most = 0
    for step in range(1, 200):
        world.run_until(0.25 * step)
        counted = sum(world.state()["flows_on"][0])
        assert counted <= min(ways, world.state()["live_flows"])
        most = max(most, counted)
    assert most == ways


@pytest.mark.parametrize("name", ["lsq", "sed", "charon_sapp"])
def test_small_tables_lose_no_count(name):
    stop = event("arrival_scale", 20.0, value=1e-6)
    config = mixed_world(flow_table_buckets=4, flow_table_ways=1, events=[stop], features=True, **LATENCY)
    world = native.World(config, rule(name), 14)
    world.run_until(20.0)
    assert np.sum(world.state()["flows_on"]) < world.state()["live_flows"]
    world.run_until(400.0)
    assert not np.any(world.state()["flows_on"])
    assert native.simulate(config, rule(name), [14])[0]["untracked"] > 0


def test_a_world_reports_its_untracked_flows():
    config = mixed_world(flow_table_buckets=1, flow_table_ways=1)
    world = native.World(config, rule("lsq"), 15)
    world.run_until(config.horizon_s)
    (episode,) = native.simulate(config, rule("lsq"), [15], convention="peer")
    assert world.stats("peer")["untracked"] == episode["untracked"] > 0


def test_untracked_flows_of_a_failed_balancer_stay_counted():
    fail = event("balancer_fail", 20.0, targets=[0], duration_s=5.0)
    config = mixed_world(flow_table_buckets=1, flow_table_ways=1, events=[fail])
    world = native.World(config, rule("lsq"), 15)
    world.run_until(19.99)
    before = world.stats()["untracked"]
    world.run_until(20.01)
    assert world.stats()["untracked"] >= before > 0


def test_a_flow_without_an_entry_is_forwarded_by_hash():
    """network-lb.md: its later packets find no entry either, so its server must follow from its hash."""
    config = cluster(
        [server(60_000)] * 4, 100.0, [stage("cpu", deterministic(1e6))],
        flow_table_buckets=1, flow_table_ways=1, horizon_s=100.0,
    )  # fmt: skip
    world = native.World(config, rule("sed", [1000.0, 1.0, 1.0, 1.0]), 16)
    world.run_until(config.horizon_s)
    counts = np.array(world.state()["in_system"])
    assert counts.sum() > 9000
    assert stats.chisquare(counts).pvalue > 1e-4


LITTLE = {
    "fifo": [server(4)],
    "ps": [server(3, 1.0, "ps", 5)],
    "mixed": POOL,
}


@pytest.mark.parametrize("pool", LITTLE)
def test_littles_law(pool):
    """Time-average flows in the servers = arrival rate x mean sojourn, for any discipline."""
    capacity = sum(s.workers * s.speed for s in LITTLE[pool])
    rate = 0.6 * capacity
    config = cluster(LITTLE[pool], rate, CPU_IO, horizon_s=1500.0, warmup_s=100.0, step_s=0.25)
    differences = []
    for episode in native.simulate(config, rule("sed"), list(range(24)), details=True):
        timeline = episode["timeline"]
        in_system = timeline["in_system"][timeline["t_s"] >= config.warmup_s].sum(axis=1).mean()
        differences.append(in_system - episode["flows"] / 1400.0 * episode["sojourn_mean_s"])
    assert standard_error(np.array(differences)) < 0.01 * rate
    assert abs(np.mean(differences)) < 4 * standard_error(np.array(differences))


@pytest.mark.parametrize("cpu", [("fifo", 0), ("ps", 0), ("ps", 3)])
def test_work_is_done_at_the_speed_of_the_busy_workers(cpu):
    """While nobody comes or goes, the CPU work of a server falls by min(n, workers) x speed a second."""
    pool = [server(2, 1.0, *cpu), server(1, 0.5, *cpu), server(3, 2.0, *cpu)]
    config = cluster(pool, 6.0, [stage("cpu", exponential())], num_load_balancers=2, horizon_s=50.0)
    world = native.World(config, rule("lsq"), 17)
    workers, speed = np.array([[s.workers, s.speed] for s in pool]).T
    quiet = busy = 0
    before, work, t_s, dt_s = None, None, 0.0, 0.01
    while t_s < 50.0:
        t_s += dt_s
        world.run_until(t_s)
        state = world.state()
        now = (world.stats()["flows"], state["live_flows"], state["in_system"])
        left = world.remaining_time() * workers * speed
        if now == before:
            done = np.minimum(state["in_system"], workers) * speed * dt_s
            np.testing.assert_allclose(work - left, done, atol=1e-7)
            quiet += 1
            busy += np.any(np.array(state["in_system"]) > workers)
        before, work = now, left
    assert quiet > 1000
    assert busy > 100


def test_the_agents_shares_of_the_work_add_up():
    config = mixed_world()
    world = native.World(config, rule("sed"), 18)
    for step in range(80):
        world.run_until(0.5 * (step + 1))
        shares = np.array([world.remaining_time(agent) for agent in range(3)])
        np.testing.assert_allclose(shares.sum(axis=0), world.remaining_time(), atol=1e-12)
        assert (shares >= 0).all()
        busy = np.array(world.state()["in_system"]) > 0
        np.testing.assert_array_equal(world.remaining_time() > 0, busy)


def test_every_arrival_of_the_measured_window_is_recorded_once():
    config = mixed_world(admission_limit=3, warmup_s=10.0, **LATENCY)
    (episode,) = native.simulate(config, rule("lsq"), [19], details=True)
    opened = arrivals_by(config, 19, np.array([np.inf]))[0]
    assert episode["flows"] == len(episode["sojourn_s"]) == opened
    assert episode["rejected"] == episode["was_rejected"].sum() > 0
    assert episode["arrival_s"].min() >= 10.0
    assert episode["arrival_s"].max() < 40.0
    assert (episode["sojourn_s"][episode["was_rejected"] == 1] == config.reject_sojourn_s).all()
    (peer,) = native.simulate(config, rule("lsq"), [19], details=True, convention="peer")
    in_time = episode["arrival_s"] + episode["sojourn_s"] <= 40.0
    served = episode["was_rejected"] == 0
    assert peer["flows"] - peer["rejected"] == (in_time & served).sum()


def test_statistics_are_those_of_the_recorded_flows():
    config = mixed_world(admission_limit=3, warmup_s=10.0, **LATENCY)
    (episode,) = native.simulate(config, rule("lsq"), [20], details=True)
    sojourns = episode["sojourn_s"].astype(float)
    assert episode["sojourn_mean_s"] == pytest.approx(sojourns.mean(), rel=1e-6)
    for percent, key in ((50, "p50"), (90, "p90"), (95, "p95"), (99, "p99"), (99.9, "p999")):
        assert episode[f"sojourn_{key}_s"] == pytest.approx(np.percentile(sojourns, percent), rel=1e-6)
    timeline = episode["timeline"]
    loads = timeline["in_system"][timeline["t_s"] >= 10.0] / [s.workers * s.speed for s in config.servers]
    squares = (loads**2).sum(axis=1)
    jain = np.where(squares > 0, loads.sum(axis=1) ** 2 / (4 * np.maximum(squares, 1e-300)), 1.0)
    assert episode["jain_mean"] == pytest.approx(jain.mean(), rel=1e-6)
    assert episode["makespan_mean"] == pytest.approx(loads.max(axis=1).mean(), rel=1e-6)


def test_rejected_flows_never_enter_a_reservoir():
    """One flow of 5 s, and 30 others that find the server taken: completion times know the first one only."""
    arrival_s = [0.0, *np.arange(1.0, 4.0, 0.1)]
    config = script(
        [server()], arrival_s, [5.0] * 31, admission_limit=0, features=True, horizon_s=30.0, step_s=0.5,
        hop_low_s=0.01, hop_high_s=0.01,
    )  # fmt: skip
    world = native.World(config, rule("lsq"), script_seed(config))
    world.run_until(4.5)
    assert world.stats()["rejected"] == 30
    assert world.state()["flows_on"] == [[1]]
    world.run_until(20.0)
    observation = world.observe(0)
    assert observation[0] == 0
    np.testing.assert_allclose(observation[6:9], [5.03, 5.03, 0.0], atol=1e-5)  # fct: mean, p90, std
    assert observation[2] <= 5.03 + 1e-5  # a refusal after 0.02 s is not a duration either
    assert observation[1] > 1


def test_waiting_is_the_sojourn_less_the_service():
    """architecture.md: waiting_time = sojourn_time - service_time, and slowdown = sojourn / service."""
    config = cluster(
        [server(1, 4.0)], 2.0, [stage("cpu", deterministic(1.0))], horizon_s=2000.0, warmup_s=100.0
    )
    waiting_s = theory.mg1_waiting_s(2.0, 0.25, 0.25**2)
    assert_mean(replications(config, rule("ecmp"), range(16), "waiting_mean_s"), waiting_s)
    assert_mean(replications(config, rule("ecmp"), range(16), "slowdown_mean"), (waiting_s + 0.25) / 0.25)
