"""The batch of racks plays Malcolm's game: observations and payoffs by hand, draws, seeds, refusals."""

import numpy as np
import pytest

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.envs.rack_batch import RackBatch
from steelyard.envs.rack_scenario import RackScenario
from steelyard.envs.scenario import Scenario

SHORT = ("episode.horizon_s=0.001", "episode.warmup_s=0")  # 10 windows
LONG = ("episode.horizon_s=0.02", "episode.warmup_s=0")


def keep(batch: RackBatch) -> np.ndarray:
    """Actions (B, N, 2 N) under which everybody keeps tasks and asks nobody, as far as softmax allows."""
    own = 2 * np.eye(batch.num_servers, dtype=np.float32) - 1
    return np.broadcast_to(np.concatenate([own, own], 1), batch.action_shape).copy()


def test_an_observation_by_hand():
    """Every number against a plain world that plays the same draws."""
    scenario = RackScenario.load("rack-het-2x14-6x4", LONG)
    batch = RackBatch(scenario, 1)
    world = native.RackWorld(scenario.to_native(), native.RackRule("categorical"), 5)
    batch.reset(seeds=[5])
    world.step_window()
    rng = np.random.default_rng(0)
    before = world.counts()
    told = None
    for _ in range(60):
        actions = rng.uniform(-1, 1, batch.action_shape).astype(np.float32)
        weights = batch.weights_of(actions)[0]
        seen, _, _ = batch.step(actions)
        world.set_policy(weights[0], weights[1])
        world.run_until(world.now_s + 98e-6 - 1e-9)  # just before the broadcast leaves, 2 us before the end
        told = world.loads() / world.estimated_rates()
        world.step_window()
        now, after = world.loads() / world.estimated_rates(), world.counts()
        for i in range(8):
            heard = np.where(np.arange(8) == i, now, told) / 100e-6
            np.testing.assert_allclose(seen[0, i, :8], heard, rtol=1e-5)
            own = seen[0, i, 8:]
            assert own[0] == world.loads()[i]
            assert own[1] == world.waiting()[i]
            assert own[3] == (14 if i < 2 else 4)
            assert own[2] == own[3] - (own[0] - own[1])  # fcfs: a worker for each task that does not wait
            assert own[4] == pytest.approx(own[3] / world.estimated_rates()[i] / 100e-6, rel=1e-5)
            for place, name in ((5, "arrivals"), (6, "migrations"), (8, "completions")):
                assert own[place] == after[name][i] - before[name][i]
            assert own[7] == batch.moves()[0, 1, i].sum()
        before = after
    assert after["steals"].sum() > 0


def test_the_reward_is_malcolms_payoff():
    scenario = RackScenario.load("rack-hom-8x8", [*SHORT, "game.migration_cost=0.01", "game.steal_cost=0.02"])
    batches = {kind: RackBatch(scenario, 2, reward=kind) for kind in ("payoff", "phi")}
    for batch in batches.values():
        batch.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(10):
        actions = rng.uniform(-1, 1, batches["phi"].action_shape).astype(np.float32)
        paid = {kind: batch.step(actions)[1] for kind, batch in batches.items()}
        x, moves = batches["payoff"].expected_waits_us() / 100, batches["payoff"].moves().astype(float)
        imbalance = np.abs(x[:, :, None] - x[:, None, :]).sum((1, 2)) / 7
        away = moves * (1 - np.eye(8))
        cost = 0.01 * away[:, 0].sum(-1) + 0.02 * away[:, 1].sum(-1)
        np.testing.assert_allclose(paid["payoff"], -imbalance[:, None] - cost, rtol=1e-4)
        phi = -imbalance - cost.sum(-1)
        np.testing.assert_allclose(paid["phi"], np.broadcast_to(phi[:, None], (2, 8)), rtol=1e-4)
    assert cost.min() > 0


def test_actions_are_the_distributions():
    """Shares of 20,000 draws lie within 5 standard errors of softmax(5 a)."""
    batch = RackBatch("rack-hom-8x8", 1, overrides=LONG)
    batch.reset(seed=0)
    actions = np.random.default_rng(2).uniform(-1, 1, batch.action_shape).astype(np.float32)
    weights = batch.weights_of(actions)[0, 0]
    np.testing.assert_allclose(weights, np.exp(5 * actions[0, :, :8]), rtol=1e-5)
    drawn = np.zeros((8, 8))
    for _ in range(190):
        batch.step(actions)
        drawn += batch.moves()[0, 0]
    share, total = weights / weights.sum(1, keepdims=True), drawn.sum(1, keepdims=True)
    error = np.sqrt(share * (1 - share) / total)
    assert total.sum() > 20_000
    assert (np.abs(drawn / total - share) < 5 * error).all()


def test_a_discrete_action_favours_a_server():
    batch = RackBatch("rack-hom-8x8", 1, overrides=("game.favour=0.25", *LONG), discrete=True)
    batch.reset(seed=0)
    actions = np.zeros((1, 8, 2), dtype=np.int64)
    actions[0, :, 0], actions[0, :, 1] = 3, np.arange(8)
    weights = batch.weights_of(actions)[0]
    np.testing.assert_allclose(weights[0], 0.75 * np.eye(8) + 0.25 * np.eye(8)[[3] * 8])
    np.testing.assert_allclose(weights[1], np.eye(8))  # its own number: asks nobody
    for _ in range(20):
        batch.step(actions)
    assert batch.moves()[0, 1].sum() == 0
    assert batch.episode_stats()["steals"][0] == 0


def test_sharing_beats_keeping():
    """With unequal servers and equal arrivals, tasks that are kept pile up at the slow ones."""
    batch = RackBatch("rack-het-2x14-6x4", 2, overrides=LONG)
    batch.reset(seeds=[1, 1])
    capacity = np.array([14] * 2 + [4] * 6)
    actions = keep(batch)
    actions[1, :, :8] = np.log(capacity / capacity.max()) / 5
    for _ in range(200):
        batch.step(actions)
    kept, shared = batch.stats(0), batch.stats(1)
    assert shared["latency_p99_us"] < kept["latency_p99_us"] / 2
    assert batch.episode_stats()["imbalance_us"][1] < batch.episode_stats()["imbalance_us"][0]


def test_threads_and_neighbours_change_nothing():
    def play(num_envs, threads):
        batch = RackBatch("rack-hom-8x8", num_envs, overrides=SHORT, threads=threads)
        batch.reset(seeds=range(num_envs))
        rng = np.random.default_rng(3)
        found = []
        for _ in range(25):  # over two resets
            actions = rng.uniform(-1, 1, (5, *batch.action_shape[1:])).astype(np.float32)[:num_envs]
            seen, rewards, truncated = batch.step(actions)
            found.append((seen[0].copy(), rewards[0].copy(), bool(truncated[0]), batch.seeds[0]))
        return found

    for one, other in zip(play(1, 1), play(5, 3), strict=True):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)
    assert [over for _, _, over, _ in play(1, 1)].count(True) == 2


def test_a_copied_world_goes_on_as_the_other():
    batch = RackBatch("rack-hom-8x8", 2, overrides=LONG)
    batch.reset(seeds=[1, 2])
    rng = np.random.default_rng(4)
    actions = rng.uniform(-1, 1, (1, *batch.action_shape[1:])).astype(np.float32).repeat(2, 0)
    for _ in range(20):
        seen, _, _ = batch.step(actions)
    assert not np.array_equal(seen[0], seen[1])
    batch.copy_world(0, 1)
    for _ in range(20):
        np.testing.assert_array_equal(seen[0], seen[1])
        seen, rewards, _ = batch.step(actions)
    np.testing.assert_array_equal(rewards[0], rewards[1])
    assert batch.seeds.tolist() == [1, 1]


def test_windows_without_delay_and_with_staggered_broadcasts():
    for overrides in (
        ("network.message_delay.constant_s=0",),
        ("loads.broadcast_phase=staggered",),
        ("loads.broadcast_period_s=1e-6",),
    ):
        batch = RackBatch("rack-hom-8x8", 1, overrides=(*LONG, *overrides))
        batch.reset(seed=0)
        arrived = 0
        for _ in range(100):
            seen, _, _ = batch.step(np.zeros(batch.action_shape, np.float32))
            arrived += seen[0, :, 8 + 5].sum()
        expected = batch.scenario.arrival_rate() * 100 * batch.window_s
        assert abs(arrived - expected) < 6 * expected**0.5
        assert seen[0, :, :8].max() > 0


def test_bad_input():
    with pytest.raises(UserError, match=r"game\.reward 'vbf'"):
        RackBatch("rack-hom-8x8", 1, reward="vbf")
    with pytest.raises(UserError, match=r"rack\.dispatchers = 2"):
        RackBatch("rack-hom-8x8", 1, overrides=["rack.dispatchers=2"])
    with pytest.raises(UserError, match="of the world 'cluster'"):
        RackBatch(Scenario.load("cluster-a-cpu"), 1)
    with pytest.raises(UserError, match="num_envs"):
        RackBatch("rack-hom-8x8", 0)
    batch = RackBatch("rack-hom-8x8", 1, discrete=True)
    with pytest.raises(UserError, match=r"reset\(\) first"):
        batch.step(np.zeros((1, 8, 2), dtype=np.int64))
    batch.reset(seed=0)
    with pytest.raises(UserError, match="number 1 = 8"):
        batch.step(np.full((1, 8, 2), [0, 8]))
    with pytest.raises(UserError, match="whole numbers"):
        batch.step(np.zeros((1, 8, 2)))


def test_the_native_batch_refuses_bad_weights():
    made = native.RackBatch(RackScenario.load("rack-hom-8x8").to_native(), 1)
    with pytest.raises(ValueError, match="bind"):
        made.reset(np.zeros(1, np.uint64))
    seen, paid, over = np.zeros((1, 8, 17), np.float32), np.zeros((1, 8), np.float32), np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match="observations"):
        made.bind(seen[:, :7], paid, over)
    made.bind(seen, paid, over)
    made.reset(np.zeros(1, np.uint64))
    for weights, part in (
        (np.zeros((1, 2, 8, 8)), "sums to 0"),
        (np.full((1, 2, 8, 8), -1.0), "at least 0"),
        (np.full((1, 2, 8, 8), np.inf), "at least 0"),
        (np.ones((2, 8, 8)), "shape"),
    ):
        with pytest.raises(ValueError, match=part):
            made.step(weights.astype(np.float32))
    with pytest.raises(ValueError, match="reward"):
        native.RackBatch(RackScenario.load("rack-hom-8x8").to_native(), 1, reward="vbf")
