"""Malcolm whose draws are from the state at their moment, against its definition and a PyTorch twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard import native
from steelyard.agents.malcolm import MalcolmLearner, expected_waits, still_to_wait

torch.set_num_threads(1)


def told(rng, n):
    """Tasks, service times and workers of n servers; loads in s."""
    workers, service_s = rng.integers(1, 6, n), rng.uniform(3e-5, 9e-5, n)
    task_s = service_s / workers
    return rng.integers(0, 12, n) * task_s, task_s, workers


def test_live_inputs_follow_reports_own_events_and_sends():
    """Against their definition, in units of 100 us, with a rate that moves at every completion."""
    n, me, rng = 7, 2, np.random.default_rng(3)
    config = native.MalcolmConfig.live()
    server = native.MalcolmServer(config, n, me, 3)
    loads, tasks, workers = np.zeros(n), np.zeros(n), np.zeros(n)
    workers[me], services, in_system = 3, [], 0
    for _ in range(300):
        loads[:], tasks[:], workers[np.arange(n) != me] = *told(rng, n)[:2], told(rng, n)[2][: n - 1]
        for j in range(n):
            server.on_load_message(j, float(loads[j]), 0, 0, float(tasks[j]), float(workers[j]))
        for _event in range(5):
            if in_system and rng.random() < 0.6:
                services.append(rng.exponential(5e-5))
                server.on_completion(0, services[-1])
                in_system -= 1
            sent = server.migrate(int(rng.integers(0, 2**64, dtype=np.uint64)))
            if sent == me:
                server.on_accept()
                in_system += 1
            else:
                loads[sent] += tasks[sent]
            tasks[me] = (np.mean(services) if services else config.initial_service_s) / 3
            loads[me] = in_system * tasks[me]
            waits = expected_waits(loads, tasks, workers)
            np.testing.assert_allclose(server.inputs[:n], waits / 1e-4, atol=2e-4)
            np.testing.assert_allclose(server.inputs[n:], workers * tasks / 1e-4, rtol=2e-4)
    assert len(services) < 1024  # the average of the rate is still the mean
    fresh = native.LinearActors(n, 2 * n, me)
    weight = server.parameters[: 2 * n * n].reshape(n, 2 * n)
    fresh.set_weights("migration", weight, server.parameters[2 * n * n :][:n])
    fresh.recompute(server.inputs)
    scale = np.abs(fresh.logits("migration")).max() + 50
    np.testing.assert_allclose(server.logits("migration"), fresh.logits("migration"), atol=1e-4 * scale)


@pytest.mark.parametrize("inputs", ["waits", "loads"])
@pytest.mark.parametrize("n", [3, 8, 17])
def test_a_live_server_learns_as_its_twin(inputs, n):
    """Draws from inputs that their predecessors moved; made-up reports in between."""
    config = native.MalcolmConfig.live()
    config.inputs, config.batch, config.init_scale, config.warm_start = inputs, 8, 0.2, 1.0
    config.warm_keep, config.warm_others = 0.5, 0.5
    config.discount, config.actor_trace, config.critic_trace = 0.7, 0.4, 0.3
    server = native.MalcolmServer(config, n, 1, 4)
    learner = MalcolmLearner(config, n, server.parameters)
    rng, start = np.random.default_rng(n), server.parameters
    others = np.arange(n) != 1
    for w in range(12 * config.batch + 1):
        moves = [0, 0]
        for word in rng.integers(0, 2**64, 5, dtype=np.uint64).tolist():
            seen = server.inputs
            to = server.migrate(word)
            learner.draw(0, seen, to)
            moves[0] += to != 1
            seen = server.inputs
            asked = server.steal(word)
            learner.draw(1, seen, 1 if asked is None else asked)
            moves[1] += asked is not None
        own_load_s, _, _, own_task_s, own_workers = server.broadcast()
        loads, tasks, workers = told(rng, n)
        loads[1], tasks[1], workers[1] = own_load_s, own_task_s, own_workers
        for j in np.flatnonzero(others).tolist():
            server.on_load_message(j, float(loads[j]), 0, 0, float(tasks[j]), float(workers[j]))
        result = server.on_window()
        to_wait = still_to_wait(loads / 1e-4, tasks / 1e-4, workers)
        error = learner.window(server.inputs[:n], np.zeros((2, n)), (moves[0], moves[1]), to_wait)
        assert result["learned"] == (error is not None) == (w > 0)
        if error is not None:
            assert result["td_error"] == pytest.approx(error, rel=1e-3, abs=1e-3)
    assert server.updates == 12
    moved = np.abs(server.parameters - start).max()
    assert moved > 5e-3
    np.testing.assert_allclose(server.parameters, learner.parameters, atol=2e-3 * moved)


def test_frozen_live_servers_go_on_with_their_draws():
    """Distributions follow the inputs; nothing is learned."""
    server = native.MalcolmServer(native.MalcolmConfig.live(), 4, 0, 1)
    server.frozen, before = True, server.parameters
    for j in (1, 2, 3):
        server.on_load_message(j, 0.0, 0, 0, 5e-5, 1.0)
    server.on_window()
    word = 2**62
    assert server.migrate(word) == 0  # the first finds its own worker idle
    for _ in range(4):
        server.on_accept()
    assert server.migrate(word) != 0
    assert server.probabilities("migration")[0] < 1e-3
    server.on_window()
    np.testing.assert_array_equal(server.parameters, before)
