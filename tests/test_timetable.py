"""The timetable: capacity, membership, failures; at once, undone on time, random within its ranges."""

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
    replications,
    rule,
    script,
    script_seed,
    server,
    stage,
)

from steelyard import native
from steelyard.envs.scenario import Scenario

TYPED = [
    "ecmp",
    "wcmp",
    "awcmp",
    "lsq",
    "gsq2",
    "sed",
    "hlb",
    "charon_sapp",
    "charon_wsapp",
    "maglev",
    "rr",
    "oracle",
]


def scripted(config: native.ClusterConfig, name: str = "ecmp") -> native.World:
    return native.World(config, rule(name), script_seed(config))


def sojourns_of(config: native.ClusterConfig, name: str = "ecmp") -> np.ndarray:
    """Sojourns [s] of a script's flows, in order of arrival."""
    (episode,) = native.simulate(config, rule(name), [script_seed(config)], details=True)
    return episode["sojourn_s"][np.argsort(episode["arrival_s"], kind="stable")]


@pytest.mark.parametrize(("cpu", "ps_cap"), [("fifo", 0), ("ps", 0), ("ps", 2)])
def test_speed_changes_the_work_in_hand_at_once_and_is_undone(cpu, ps_cap):
    """10 s of work from t = 0; half speed from 4 s to 8 s: 4 + 2 + 4 more seconds of work, done at 12 s."""
    slow = event("speed", 4.0, value=0.5, targets=[0], duration_s=4.0)
    config = script([server(1, 1.0, cpu, ps_cap)], [0.0], [10.0], events=[slow], horizon_s=50.0)
    np.testing.assert_allclose(sojourns_of(config), [12.0], rtol=1e-6)
    world = scripted(config)
    for t_s, capacity, left_s in ((3.0, 1.0, 7.0), (4.0, 0.5, 12.0), (6.0, 0.5, 10.0), (8.0, 1.0, 4.0)):
        world.run_until(t_s)
        assert world.state()["capacity"] == [capacity]
        np.testing.assert_allclose(world.remaining_time(), [left_s], rtol=1e-6)


def test_a_factor_is_on_the_configured_speed():
    slow = [event("speed", t, value=v, targets=[0]) for t, v in ((1.0, 0.5), (2.0, 0.25), (3.0, 2.0))]
    world = native.World(cluster([server(3, 4.0)], 1.0, horizon_s=10.0, events=slow), rule("ecmp"), 1)
    for t_s, capacity in ((0.5, 12.0), (1.5, 6.0), (2.5, 3.0), (3.5, 24.0)):
        world.run_until(t_s)
        assert world.state()["capacity"] == [capacity]


def test_speed_leaves_other_servers_and_the_io_device_alone():
    slow = event("speed", 1.0, value=0.5, targets=[1])
    config = script([server()] * 2, [0.0, 0.0], [5.0, 5.0], kind="io", events=[slow], horizon_s=50.0)
    np.testing.assert_allclose(sojourns_of(config, "rr"), [5.0, 5.0], rtol=1e-6)
    config = script([server()] * 2, [0.0, 0.0], [5.0, 5.0], events=[slow], horizon_s=50.0)
    np.testing.assert_allclose(np.sort(sojourns_of(config, "rr")), [5.0, 9.0], rtol=1e-6)


def test_fewer_workers_share_the_flows_in_hand_and_more_take_waiting_ones():
    """Three flows of 6 s on two workers; one worker from 2 s to 5 s.

    Flows 1 and 2 do 2 s, then 1.5 s each at half speed, then 2.5 s: done at 7.5 s; the third from then on.
    """
    one = event("workers", 2.0, value=1, targets=[0], duration_s=3.0)
    config = script([server(2)], [0.0, 0.0, 0.0], [6.0] * 3, events=[one], horizon_s=50.0)
    np.testing.assert_allclose(sojourns_of(config), [7.5, 7.5, 13.5], rtol=1e-6)
    more = event("workers", 2.0, value=3, targets=[0])
    config = script([server(1)], [0.0, 0.0, 0.0], [6.0] * 3, events=[more], horizon_s=50.0)
    np.testing.assert_allclose(sojourns_of(config), [6.0, 8.0, 8.0], rtol=1e-6)


def test_a_lasting_change_is_the_queue_with_the_new_capacity():
    config = cluster([server(2)], 2.0, horizon_s=10_000.0, warmup_s=500.0, events=[
        event("workers", 1.0, value=4, targets=[0]), event("speed", 2.0, value=0.75, targets=[0]),
    ])  # fmt: skip
    assert_mean(replications(config, rule("ecmp"), range(16)), theory.mmc_sojourn_s(2.0, 1 / 0.75, 4))


@pytest.mark.parametrize("name", TYPED)
def test_a_server_that_left_gets_nothing_new_and_finishes_what_it_has(name):
    leave = event("leave", 10.0, targets=[1], duration_s=10.0)
    config = cluster(
        [server(5)] * 3, 20.0, [stage("cpu", deterministic(4.0))], num_load_balancers=2, events=[leave],
        horizon_s=30.0, step_s=0.5, features=True,
    )  # fmt: skip
    world = native.World(config, rule(name), 2)
    world.run_until(10.0)
    before = world.state()["in_system"][1]
    assert before > 5
    seen = [before]
    while world.now_s < 19.9:
        world.run_until(world.now_s + 0.1)
        seen.append(world.state()["in_system"][1])
    assert (np.diff(seen) <= 0).all()
    assert seen[-1] <= max(0, before - 10)  # two rounds of five flows of 4 s are done by then
    world.run_until(25.0)
    assert world.state()["in_system"][1] > 0  # it has joined again


@pytest.mark.parametrize("name", TYPED)
def test_a_server_joins(name):
    servers = [server(100) for _ in range(3)]
    servers[2].present = False
    config = cluster(
        servers, 50.0, [stage("cpu", deterministic(5.0))], horizon_s=60.0, step_s=0.5, features=True,
        events=[event("join", 20.0, targets=[2], duration_s=20.0)],
    )  # fmt: skip
    world = native.World(config, rule(name), 3)
    for t_s, present in ((19.9, False), (26.0, True), (40.0, True), (46.0, False)):
        world.run_until(t_s)
        assert (world.state()["in_system"][2] > 0) == present
        assert (world.state()["flows_on"][0][2] > 0) == present


def test_weights_survive_a_change_of_membership():
    """Charon draws its candidates by the weights of the last refresh, a leaving server aside."""
    counts = {}
    for events in ([], [event("leave", 0.5, targets=[3])]):
        config = cluster(
            [server(60_000)] * 4,
            2000.0,
            [stage("cpu", deterministic(1e6))],
            events=events,
            horizon_s=0.95,
            step_s=0.5,
        )
        world = native.World(config, rule("charon_wsapp", [1000.0, 1.0, 1.0, 1.0], interval_s=10.0), 4)
        world.run_until(0.95)
        counts[len(events)] = world.state()["in_system"][0]
    assert counts[1] > 0.9 * counts[0]


def test_an_empty_pool_rejects():
    leave = event("leave", 5.0, targets=[0, 1], duration_s=5.0)
    config = cluster([server(1000)] * 2, 50.0, horizon_s=20.0, events=[leave], reject_sojourn_s=17.0)
    (episode,) = native.simulate(config, rule("lsq"), [5], details=True)
    gone = (episode["arrival_s"] > 5.0) & (episode["arrival_s"] < 10.0)
    np.testing.assert_array_equal(episode["was_rejected"], gone)
    assert set(episode["sojourn_s"][gone]) == {17.0}


def test_a_failed_balancer_forgets_and_its_traffic_goes_to_the_others():
    """Its flows go on at their servers (direct server return); the others take its traffic evenly."""
    fail = event("balancer_fail", 20.0, targets=[1], duration_s=10.0)
    config = cluster(
        [server(100)] * 2, 40.0, [stage("cpu", deterministic(6.0))], num_load_balancers=4, horizon_s=60.0,
        events=[fail], features=True, step_s=0.5,
    )  # fmt: skip
    world, undisturbed = (native.World(c, rule("lsq"), 6) for c in (config, without_events(config)))
    for t_s in (20.0, 21.0, 25.9, 29.9):
        world.run_until(t_s)
        undisturbed.run_until(t_s)
        state = world.state()
        assert sum(state["flows_on"][1]) == 0
        assert not world.observe(1)[: 11 * 2 + 5].any()
        assert sum(state["in_system"]) == sum(undisturbed.state()["in_system"])
        assert state["live_flows"] == undisturbed.state()["live_flows"]
    shares = np.array([sum(flows) for flows in world.state()["flows_on"]])[[0, 2, 3]]
    assert shares.sum() == world.state()["live_flows"]
    assert stats.chisquare(shares).pvalue > 1e-4
    world.run_until(40.0)
    back = np.array([sum(flows) for flows in world.state()["flows_on"]])
    assert back.sum() == world.state()["live_flows"]
    assert stats.chisquare(back).pvalue > 1e-4


def without_events(config: native.ClusterConfig) -> native.ClusterConfig:
    return cluster(
        config.servers, config.arrival.rate, config.stages, num_load_balancers=config.num_load_balancers,
        horizon_s=config.horizon_s, features=config.features, step_s=config.step_s,
    )  # fmt: skip


def test_flows_of_a_failed_balancer_close_without_an_entry():
    fail = event("balancer_fail", 5.0, targets=[0], duration_s=1.0)
    config = script(
        [server(10)], [0.0] * 4 + [7.0], [9.0] * 4 + [9.0], events=[fail], horizon_s=50.0, features=True
    )
    world = scripted(config, "lsq")
    for t_s, counted, in_system in ((4.9, 4, 4), (5.1, 0, 4), (7.5, 1, 5), (9.5, 1, 1), (17.0, 0, 0)):
        world.run_until(t_s)
        assert (world.state()["flows_on"], world.state()["in_system"]) == ([[counted]], [in_system])
    assert world.stats()["flows"] == 5


def test_no_balancer_left_rejects():
    fail = event("balancer_fail", 5.0, targets=[0, 1], duration_s=5.0)
    config = cluster([server(1000)] * 2, 50.0, num_load_balancers=2, horizon_s=20.0, events=[fail])
    (episode,) = native.simulate(config, rule("lsq"), [7], details=True)
    gone = (episode["arrival_s"] > 5.0) & (episode["arrival_s"] < 10.0)
    np.testing.assert_array_equal(episode["was_rejected"], gone)


def test_balancer_recover_ends_a_failure():
    events = [event("balancer_fail", 5.0, targets=[0, 1]), event("balancer_recover", 8.0, targets=[1])]
    config = cluster([server(1000)], 50.0, num_load_balancers=2, horizon_s=20.0, events=events)
    world = native.World(config, rule("lsq"), 8)
    world.run_until(15.0)
    assert sum(world.state()["flows_on"][0]) == 0
    assert sum(world.state()["flows_on"][1]) == world.state()["live_flows"] > 0


def drawn(line: native.EventConfig, seeds: int, servers: int = 4) -> np.ndarray:
    """(R, N) capacity factors in force after the line, one row per seed."""
    config = cluster([server()] * servers, 1.0, events=[line], horizon_s=10.0)
    rows = []
    for seed in range(seeds):
        world = native.World(config, rule("ecmp"), seed)
        world.run_until(9.0)
        rows.append(world.state()["capacity"])
    return np.array(rows)


def test_random_values_stay_in_their_range_and_follow_their_law():
    line = event("speed", 1.0, value_low=0.2, value_high=0.8, targets=[0, 1, 2, 3], common_value=False)
    factors = drawn(line, 500)
    assert stats.kstest(factors.ravel(), stats.uniform(0.2, 0.6).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(factors[:, 0], factors[:, 1])[0, 1]) < 4 / np.sqrt(500)
    line.log_uniform = True
    assert stats.kstest(drawn(line, 500).ravel(), stats.loguniform(0.2, 0.8).cdf).pvalue > 1e-4
    line.common_value = True
    factors = drawn(line, 100)
    assert (factors == factors[:, :1]).all()
    assert len(np.unique(factors)) == 100


@pytest.mark.parametrize("count", [1, 2, 4])
def test_count_of_targets(count):
    """Exactly `count` of the named servers, each as often as any other."""
    factors = drawn(event("speed", 1.0, value=0.5, targets=[0, 1, 3, 4], count=count), 600, servers=6)
    hit = factors == 0.5
    assert (hit.sum(axis=1) == count).all()
    assert not hit[:, [2, 5]].any()
    expected = 600 * count / 4
    assert (
        np.abs(hit.sum(axis=0)[[0, 1, 3, 4]] - expected) <= 4 * np.sqrt(600 * count / 4 * (1 - count / 4))
    ).all()


def test_random_times_stay_in_their_range():
    line = event("speed", 2.0, value=0.5, targets=[0], t_high_s=6.0, duration_s=1.5)
    config = cluster([server()], 1.0, events=[line], horizon_s=10.0)
    begins, ends = [], []
    for seed in range(200):
        world = native.World(config, rule("ecmp"), seed)
        slow = []
        for t_s in np.arange(0.0, 10.0, 0.05):
            world.run_until(t_s)
            if world.state()["capacity"] == [0.5]:
                slow.append(t_s)
        begins.append(slow[0] - 0.025)
        ends.append(slow[-1] + 0.025)
    np.testing.assert_allclose(np.array(ends) - begins, 1.5, atol=0.06)
    assert stats.kstest(begins, stats.uniform(2.0, 4.0).cdf).pvalue > 1e-4


def test_the_timetable_of_a_seed_is_the_same_for_every_rule_and_again():
    line = event("speed", 1.0, value_low=0.2, value_high=0.8, targets=[0, 1, 2, 3], count=2, t_high_s=8.0)
    config = cluster([server()] * 4, 3.0, events=[line], horizon_s=10.0, step_s=0.1, num_load_balancers=2)
    for seed in range(5):
        histories = set()
        for name in ("ecmp", "sed", "hlb", "oracle", "policy"):
            world = native.World(config, rule(name), seed)
            history = []
            for step in range(100):
                world.run_until(0.1 * step)
                history.append(tuple(world.state()["capacity"]))
            histories.add(tuple(history))
        assert len(histories) == 1


BAD = [
    (event("speed", 1.0, value=0.0, targets=[0]), r"events\[0\].value: 0"),
    (event("speed", -1.0, value=0.5, targets=[0]), r"events\[0\].t_s: -1"),
    (event("speed", 1.0, value=0.5, targets=[0], t_high_s=0.5), r"events\[0\].t_s"),
    (event("speed", 1.0, value_low=0.9, value_high=0.5, targets=[0]), r"events\[0\].value"),
    (event("speed", 1.0, value=0.5), r"events\[0\].servers: empty"),
    (event("speed", 1.0, value=0.5, targets=[2]), r"events\[0\].servers: 2"),
    (event("speed", 1.0, value=0.5, targets=[0], count=2), r"events\[0\].count: 2"),
    (event("workers", 1.0, value=0.5, targets=[0]), r"events\[0\].value"),
    (event("balancer_fail", 1.0, targets=[1]), r"events\[0\].balancers: 1"),
    (event("leave", 1.0, targets=[0], duration_s=-1.0), r"events\[0\].duration_s"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_bad_lines_are_named(line, message):
    config = cluster([server()] * 2, 1.0, [stage("cpu", exponential())], events=[line], horizon_s=10.0)
    with pytest.raises(ValueError, match=message):
        native.World(config, rule("ecmp"), 1)


def test_randomised_episodes_differ_and_are_seldom_overloaded():
    """Load of an episode: work that came over what the servers could do, membership aside."""
    scenario = Scenario.load("cluster-a-randomised")
    loads, capacities = [], []
    world = native.World(scenario.to_native(), scenario.to_rule("lsq"), 0)
    for seed in range(150):
        world.reset(seed)
        total = 0.0
        capacities.append(tuple(world.state()["capacity"]))
        for second in range(60):
            world.run_until(float(second))
            total += sum(world.state()["capacity"])
        loads.append(world.stats()["arrived"] / total)
    assert len(set(capacities)) == 150
    factors = np.array(capacities) / np.array([4] * 4 + [2] * 4)
    assert factors.min() >= 0.4
    assert factors.max() <= 2
    assert np.ptp(factors, axis=1).min() > 0  # each server its own
    assert np.mean(np.array(loads) > 0.9) < 0.05
    assert np.quantile(loads, 0.05) < 0.5 < 0.7 < np.quantile(loads, 0.95)
