"""The rack world's Python face: stepping, snapshots, policies set from outside, Pallas, refusals."""

import numpy as np
import pytest
from racks import US, WORKLOADS, by_type, column, exp_type, fixed_type, rack, runs
from worlds import STANDARD_ERRORS, assert_mean

from steelyard import native

N = 4


def stale(tasks: float = 50_000, **fields) -> native.RackConfig:
    """Four servers of unequal size; loads broadcast every 100 us, heard 2 us later."""
    return rack(
        [8, 4, 4, 2],
        WORKLOADS["exp50"],
        0.8,
        tasks,
        load_info="broadcast",
        broadcast_period_s=100 * US,
        task_delay=native.RackDelay(4 * US),
        message_delay=native.RackDelay(2 * US),
        **fields,
    )


def test_a_window_ends_when_the_loads_are_heard():
    world = native.RackWorld(stale(), native.RackRule("categorical"), 1)
    world.step_window()
    assert world.now_s == pytest.approx(2e-6)
    for k in range(1, 50):
        world.run_until(100e-6 * k)
        sent = world.loads()
        world.step_window()
        assert world.now_s == pytest.approx(100e-6 * k + 2e-6)
        views = world.views()
        others = ~np.eye(N, dtype=bool)
        np.testing.assert_array_equal(views[others], np.broadcast_to(sent, (N, N))[others])
        np.testing.assert_array_equal(np.diag(views), world.loads())


def test_servers_draw_from_the_distributions_that_are_set():
    config = stale(200_000)
    world = native.RackWorld(config, native.RackRule("categorical"), 1)
    migrate = np.array([[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0.25, 0.25, 0.25, 0.25], [0, 0, 0, 1]])
    world.set_policy(migrate, np.eye(N))
    world.run_until(0.05)
    counts = world.counts()
    expected = counts["arrivals"] * (1 - np.diag(migrate))
    assert (np.abs(counts["migrations"] - expected) <= STANDARD_ERRORS * np.sqrt(expected)).all()
    assert counts["steals"].sum() == 0
    world.set_policy(np.eye(N), np.full((N, N), 1 / N))
    before = counts["migrations"].sum()
    world.run_until(0.06)
    assert world.counts()["migrations"].sum() == before
    steals = world.counts()["steals"]
    assert steals[0] > 0 == steals[3]  # the smallest has more tasks than it can serve


def test_a_clone_goes_on_alike_and_can_be_restored():
    world = native.RackWorld(stale(), native.RackRule("categorical"), 1)
    world.set_policy(np.full((N, N), 0.25), np.full((N, N), 0.25))
    world.run_until(0.01)
    copy = world.clone()
    world.run_until(0.02)
    copy.run_until(0.02)
    assert copy.digest == world.digest
    earlier = native.RackWorld(stale(), native.RackRule("categorical"), 1)
    copy.restore(earlier)
    assert copy.now_s == 0.0
    copy.set_policy(np.full((N, N), 0.25), np.full((N, N), 0.25))
    copy.run_until(0.02)
    assert copy.digest == world.digest


def test_rates_are_estimated():
    world = native.RackWorld(stale(200_000, rate_ewma=0.001), native.RackRule("categorical"), 1)
    world.run_until(0.1)
    error = np.sqrt(0.001 / 2)  # of an exponential average of exponential times
    np.testing.assert_allclose(world.estimated_rates(), world.true_rates(), rtol=STANDARD_ERRORS * error)


def test_loads_over_time():
    record = native.simulate_rack(stale(20_000), native.RackRule("jsq"), [1], timeline=True)[0]
    timeline = record["timeline"]
    steps = len(timeline["t_s"])
    assert timeline["tasks"].shape == timeline["expected_wait_us"].shape == (steps, N)
    np.testing.assert_allclose(np.diff(timeline["t_s"]), 100e-6)
    rates = np.array([8, 4, 4, 2]) / 50.0
    np.testing.assert_allclose(timeline["expected_wait_us"], timeline["tasks"] / rates, rtol=1e-5)
    x = timeline["expected_wait_us"]
    pairs = np.abs(x[:, :, None] - x[:, None, :]).sum(axis=(1, 2)) / (N - 1)
    assert record["imbalance_mean_us"] == pytest.approx(pairs.mean(), rel=1e-4)


def test_threads_and_seeds():
    config, rule = stale(5_000), native.RackRule("power_of_d")
    one = native.simulate_rack(config, rule, [3, 1, 2])
    two = native.simulate_rack(config, rule, [3, 1, 2], threads=2)
    assert [r["seed"] for r in one] == [3, 1, 2]
    assert [r["digest"] for r in one] == [r["digest"] for r in two]


TRIMODAL = [fixed_type(5, 1 / 3), fixed_type(50, 1 / 3), fixed_type(500, 1 / 3)]


def pallas(**fields) -> native.RackRule:
    shaping = native.RackShaping()
    for name, value in fields.items():
        setattr(shaping, name, value)
    return native.RackRule("pallas", shaping=shaping)


def test_shaping_spares_short_tasks_the_long_ones():
    config = rack([10] * 8, TRIMODAL, 0.8, 60_000)
    plain = runs(config, "power_of_d", range(2))
    shaped = runs(config, pallas(by_slowdown=True), range(2))
    for type_ in (0, 1):
        assert by_type(shaped, type_, "latency_p99_us").max() < by_type(plain, type_, "latency_p99_us").min()
    assert column(shaped, "slowdown_p99").max() < column(plain, "slowdown_p99").min()


def test_shaping_into_one_group_on_one_server_is_one_queue():
    shaping = native.RackShaping()
    shaping.set_plan([0, 0], [[4.0]])
    config = rack([4], [exp_type(50, 0.5), exp_type(500, 0.5)], 0.8, 20_000)
    shaped = runs(config, native.RackRule("pallas", shaping=shaping), [1])
    np.testing.assert_array_equal(column(shaped), column(runs(config, "local", [1])))


def test_shaping_follows_a_change_of_the_mix():
    config = rack([10] * 4, [exp_type(12, 0.5), exp_type(650, 0.5)], 0.7, 400_000)
    middle_s = config.horizon_s / 2
    config.events = [
        native.RackEvent("mix", middle_s, split=[0.9, 0.1]),
        native.RackEvent("arrival_scale", middle_s, 331 / 75.8),
    ]
    adapted = runs(config, pallas(), [1])[0]
    fixed = runs(config, pallas(adapt=False), [1])[0]
    assert adapted["plans"] > 0 == fixed["plans"]
    assert adapted["by_type"][0]["latency_p99_us"] < fixed["by_type"][0]["latency_p99_us"]


def test_clones_are_answered_once():
    shaping = native.RackShaping()
    shaping.set_plan([0, 1], [[4.0, 4.0, 0.0, 0.0], [0.0, 0.0, 4.0, 4.0]])
    config = rack([4] * 4, [exp_type(20, 0.5), exp_type(20, 0.5)], 0.6, 50_000)
    plain = runs(config, native.RackRule("pallas", shaping=shaping), [1])[0]
    shaping.clone = True
    cloned = runs(config, native.RackRule("pallas", shaping=shaping), [1])[0]
    assert cloned["clones"] > cloned["clones_dropped"] > 0 == plain["clones"]
    assert cloned["tasks"] == plain["tasks"]
    assert cloned["busy_mean"] > plain["busy_mean"]


def test_a_plan_can_be_set_by_hand():
    world = native.RackWorld(rack([4] * 2, TRIMODAL, 0.5, 10_000), pallas(adapt=False), 1)
    world.set_shape([0, 0, 1], [[1.0, 0.0], [0.0, 1.0]])
    assert world.shape() == {"group_of": [0, 0, 1], "cores": [[1.0, 0.0], [0.0, 1.0]]}
    with pytest.raises(ValueError, match=r"rule\.shaping\.group_of: 2 is not allowed"):
        world.set_shape([0, 0, 2], [[1.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: native.RackRule("jsqq"), 'rule: "jsqq" is not known'),
        (lambda: native.RackRule("jsq", steal="some"), '"some" is not known'),
        (lambda: native.simulate_rack(stale(), native.RackRule("power_of_d", d=0), [1]), "rule.d: 0"),
        (lambda: native.simulate_rack(stale(split=[1, 1]), native.RackRule("jsq"), [1]), "workload.split: 2"),
        (lambda: native.simulate_rack(stale(), native.RackRule("decider"), [1]), "rule.decider: none given"),
        (lambda: native.simulate_rack(stale(), native.RackRule("jsq"), [1], threads=0), "threads: 0"),
        (
            lambda: native.simulate_rack(stale(discipline="ps"), native.RackRule("sparrow"), [1]),
            "late binding",
        ),
        (
            lambda: native.RackWorld(stale(), native.RackRule("jsq"), 1).set_policy(np.eye(4), np.eye(4)),
            "set_",
        ),
        (lambda: categorical().set_policy(np.eye(3), np.eye(3)), "migrate: needs shape"),
        (lambda: categorical().set_policy(-np.eye(4), np.eye(4)), "migrate: -1"),
        (lambda: categorical().set_policy(np.eye(4), np.zeros((4, 4))), "steal: row 0 sums to 0"),
        (lambda: categorical().run_until(-1.0), "is in the past"),
    ],
)
def test_refusals_are_one_line(call, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refusal:
        call()
    assert message in str(refusal.value)


def categorical() -> native.RackWorld:
    return native.RackWorld(stale(), native.RackRule("categorical"), 1)


def test_dispatchers_learn_from_replies():
    """Two dispatchers, replies at once, loads known by replies: latency ends with the reply."""
    fields = {
        "dispatchers": 2,
        "task_delay": native.RackDelay(5 * US),
        "reply_delay": native.RackDelay(3 * US),
    }
    config = rack([1, 1], [exp_type(50)], 0.4, 100_000, **fields)
    ends = column(runs(config, "random", range(4)))
    config.latency_with_reply = True
    replies = column(runs(config, "random", range(4)))
    np.testing.assert_allclose(replies - ends, 3.0, atol=1e-9)
    assert_mean(ends - 5.0, 50 / 0.6)
    known = column(runs(config, native.RackRule("power_of_d", info="piggyback"), range(4)))
    counted = column(runs(config, native.RackRule("power_of_d", info="outstanding"), range(4)))
    exact = column(runs(config, native.RackRule("power_of_d", info="exact"), range(4)))
    assert exact.max() < min(known.min(), counted.min())
    assert max(known.max(), counted.max()) < replies.min()
