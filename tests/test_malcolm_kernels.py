"""The rack game's native learning against PyTorch twins (autograd, torch.optim) and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard import native
from steelyard.agents import linear_critic
from steelyard.agents.linear_actor import LinearActor, log_ranks
from steelyard.agents.malcolm import MalcolmLearner

torch.set_num_threads(1)
SIZES = [2, 4, 9, 16, 32, 64]
ACTORS = ("migration", "stealing")
FEATURES = ["linear", "quadratic", "quartic"]
VARIANTS = {"thesis": native.MalcolmConfig.thesis, "code": native.MalcolmConfig.code}


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def pair(num_servers: int, num_inputs: int, seed: int = 0) -> tuple[native.LinearActors, list[LinearActor]]:
    """The native actors and their twins, with the same weights."""
    torch.manual_seed(seed)
    actors = native.LinearActors(num_servers, num_inputs, num_servers // 2)
    twins = [LinearActor(num_servers, num_inputs) for _ in ACTORS]
    for name, twin in zip(ACTORS, twins, strict=True):
        linear = twin.linear
        actors.set_weights(name, linear.weight.detach().numpy(), linear.bias.detach().numpy())
    return actors, twins


@pytest.mark.parametrize("n", SIZES)
def test_distributions_are_the_twins(n):
    rng = np.random.default_rng(n)
    actors, twins = pair(n, n)
    for twin in twins:
        twin.allowed[0] = n == 2  # 0 is out of the others
    for name in ACTORS:
        actors.set_allowed(name, 0, n == 2)
    for scale in (0.1, 10.0, 300.0):
        inputs = normal(rng, n, scale=scale)
        actors.recompute(inputs)
        actors.refresh()
        for name, twin in zip(ACTORS, twins, strict=True):
            with torch.no_grad():
                exact = twin.double()(torch.from_numpy(inputs).double()).exp().numpy()
            twin.float()
            np.testing.assert_allclose(
                actors.probabilities(name), exact, rtol=2e-5 * scale + 1e-5, atol=1e-30
            )


def test_extreme_logits_give_a_distribution():
    actors = native.LinearActors(8, 1, 3)
    for spread in (90.0, 1e3, 1e30):
        weight = np.linspace(-1, 1, 8, dtype=np.float32)[:, None] * np.float32(spread)
        actors.set_weights("migration", weight, np.zeros(8, np.float32))
        actors.recompute(np.ones(1, np.float32))
        actors.refresh()
        found = actors.probabilities("migration")
        assert found[7] == pytest.approx(1, abs=1e-6)
        assert actors.draw("migration", 2**64 - 1) == 7


@pytest.mark.parametrize("n", [4, 8, 32])
def test_incremental_logits_after_many_messages(n):
    """Each of 1e5 messages rounds by at most 2^-23 (|logit| + |delta W|), of either sign: 4 sigma."""
    rng = np.random.default_rng(n)
    actors, twins = pair(n, n)
    inputs = np.zeros(n, np.float32)
    actors.recompute(inputs)
    messages = 100_000
    for k, x in zip(rng.integers(0, n, messages).tolist(), normal(rng, messages).tolist(), strict=True):
        x32 = np.float32(x)
        actors.add_input(k, float(x32 - inputs[k]))
        inputs[k] = x32
    moved = {name: actors.logits(name) for name in ACTORS}
    actors.recompute(inputs)
    for name, twin in zip(ACTORS, twins, strict=True):
        fresh = actors.logits(name)
        assert np.abs(moved[name] - fresh).max() < 4 * np.sqrt(messages) * 2**-23 * (np.abs(fresh).max() + 4)
        with torch.no_grad():
            exact = twin.linear(torch.from_numpy(inputs)).numpy()
        np.testing.assert_allclose(fresh, exact, atol=1e-5)


@pytest.mark.parametrize("n", [4, 16, 33])
def test_draws_follow_the_distribution(n):
    """Chi-square within 4 standard deviations of its mean."""
    rng = np.random.default_rng(n)
    actors, _ = pair(n, n)
    actors.recompute(normal(rng, n))
    actors.refresh()
    for stream, name in enumerate(ACTORS):
        expected = 500_000 * actors.probabilities(name).astype(float)
        counts = actors.draw_counts(name, stream + 1, 500_000)
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi2 - (n - 1)) < 4 * np.sqrt(2 * (n - 1))


@pytest.mark.parametrize("trace", [0.0, 0.6])
@pytest.mark.parametrize("n", SIZES)
def test_actor_gradients_are_autograd(n, trace):
    """Cached over windows, with and without a trace."""
    rng = np.random.default_rng(n)
    windows, k = 5, 2 * n
    actors, twins = pair(n, k)
    inputs, errors = normal(rng, windows, k), normal(rng, windows)
    drawn = rng.integers(0, 5, (windows, 2, n)).astype(np.float32)
    score = np.empty_like(drawn)
    expected = np.zeros((2, k + 1, n), np.float32)
    traces = np.zeros_like(expected)
    for t in range(windows):
        actors.recompute(inputs[t])
        actors.refresh()
        for a, twin in enumerate(twins):
            score[t, a] = drawn[t, a] - drawn[t, a].sum() * actors.probabilities(ACTORS[a])
            value = twin.window_score(torch.from_numpy(inputs[t]), torch.from_numpy(drawn[t, a]))
            weight, bias = torch.autograd.grad(value, list(twin.parameters()))
            traces[a] = trace * traces[a] + np.concatenate([weight.numpy().T, bias.numpy()[None]])
        expected += errors[t] * traces
    found = actors.gradient(inputs, score, errors, trace)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=2e-4 * np.abs(expected).max())


def test_score_is_the_finite_difference_of_the_log_probability():
    rng = np.random.default_rng(1)
    twin = LinearActor(6, 6).double()
    inputs = torch.from_numpy(normal(rng, 6)).double()
    drawn = torch.tensor([3.0, 0, 1, 2, 0, 1]).double()
    for mean in (False, True):
        gradient = torch.autograd.grad(twin.window_score(inputs, drawn, mean=mean), twin.linear.bias)[0]
        with torch.no_grad():
            pi = twin(inputs).exp()
            closed = drawn / 7 - pi if mean else drawn - 7 * pi
            for i in range(6):
                values = []
                for step in (1e-5, -1e-5):
                    twin.linear.bias[i] += step
                    values.append(twin.window_score(inputs, drawn, mean=mean))
                    twin.linear.bias[i] -= step
                assert gradient[i] == pytest.approx(float(values[0] - values[1]) / 2e-5, abs=1e-8)
            torch.testing.assert_close(gradient, closed)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("n", SIZES)
def test_features_and_values_are_the_twins(features, n):
    rng = np.random.default_rng(n)
    loads = np.abs(normal(rng, n))
    expected = linear_critic.critic_features(features, torch.from_numpy(loads))
    np.testing.assert_allclose(native.critic_features(features, loads), expected.numpy(), rtol=1e-6)
    critic, twin = native.LinearCritic(features, n), linear_critic.LinearCritic(features, n)
    theta = normal(rng, critic.size, scale=0.1)
    critic.parameters = theta
    critic.start(loads)
    with torch.no_grad():
        twin.theta.copy_(torch.from_numpy(theta))
        assert critic.value == pytest.approx(float(twin(torch.from_numpy(loads))), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("features", FEATURES)
def test_td_gradient_is_the_written_out_sum(features):
    """- share sum_t error_t sum_k (gamma lambda)^(t-k) grad V(x_k), gradients by autograd."""
    rng = np.random.default_rng(3)
    n, steps, discount, trace = 6, 25, 0.95, 0.6
    critic, twin = native.LinearCritic(features, n), linear_critic.LinearCritic(features, n)
    theta = normal(rng, critic.size, scale=0.1)
    critic.parameters = theta
    with torch.no_grad():
        twin.theta.copy_(torch.from_numpy(theta))
    loads, rewards = np.abs(normal(rng, steps + 1, n)), normal(rng, steps)
    critic.start(loads[0])
    slopes, expected, average = [], np.zeros(critic.size), 0.0
    for t in range(steps):
        found = critic.observe(
            loads[t + 1], rewards[t], discount=discount, trace=trace, average_step=0.01, share=0.25
        )
        value, after = twin(torch.from_numpy(loads[t])), twin(torch.from_numpy(loads[t + 1]))
        error = rewards[t] - average + discount * float(after.detach()) - float(value.detach())
        assert found == pytest.approx(error, abs=1e-4)
        average += 0.01 * error
        slopes.append(torch.autograd.grad(value, twin.theta)[0].numpy())
        weights = (discount * trace) ** np.arange(t, -1, -1)
        expected -= 0.25 * error * (weights[:, None] * np.array(slopes)).sum(0)
    assert critic.average_reward == pytest.approx(average, abs=1e-5)
    np.testing.assert_allclose(critic.gradient, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_value_gradient_is_a_finite_difference():
    rng = np.random.default_rng(4)
    critic = native.LinearCritic("quadratic", 5)
    loads, theta = np.abs(normal(rng, 5)), normal(rng, critic.size)
    slope = native.critic_features("quadratic", loads)
    for i in range(critic.size):
        values = []
        for step in (0.5, -0.5):  # V is linear in theta: any step is exact
            moved = theta.copy()
            moved[i] += step
            critic.parameters = moved
            critic.start(loads)
            values.append(critic.value)
        assert slope[i] == pytest.approx(values[0] - values[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("size", [8, 40, 2112])
def test_adamw_is_torchs(size):
    rng = np.random.default_rng(size)
    ours = normal(rng, size)
    theirs = torch.nn.Parameter(torch.from_numpy(ours.copy()))
    optimizer = torch.optim.AdamW([theirs], lr=3e-3, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.02)
    adamw = native.AdamW(size)
    for _step in range(200):
        gradient = normal(rng, size, scale=10.0 ** rng.integers(-3, 3))
        theirs.grad = torch.from_numpy(gradient)
        optimizer.step()
        adamw.update(ours, gradient, 3e-3, 0.8, 0.99, 1e-6, 0.02)
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=2e-5, atol=2e-6)
    assert adamw.steps == 200


def test_consensus_is_the_mean_and_counts_its_bytes():
    rng = np.random.default_rng(0)
    vectors = normal(rng, 5, 37)
    np.testing.assert_allclose(native.average_parameters(vectors), vectors.mean(0), rtol=1e-5, atol=1e-6)
    critics = [linear_critic.LinearCritic("linear", 3) for _ in range(2)]
    with torch.no_grad():
        critics[0].theta.fill_(1.0)
    linear_critic.consensus(critics)
    assert all(critic.theta[0].item() == 0.5 for critic in critics)
    servers = [native.MalcolmServer(native.MalcolmConfig.thesis(), 4, i, 2) for i in range(4)]
    mean = np.mean([server.critic_parameters for server in servers], axis=0)
    assert native.malcolm_consensus(servers) == 4 * 3 * len(mean) * 4 == native.consensus_bytes(4, len(mean))
    for server in servers:
        np.testing.assert_allclose(server.critic_parameters, mean, rtol=1e-6, atol=1e-9)


def test_ranks_are_the_twins():
    rng = np.random.default_rng(0)
    server = native.MalcolmServer(native.MalcolmConfig.code(), 20, 0, 2)
    for _ in range(20):
        for j in range(1, 20):
            server.on_load_message(j, float(rng.integers(0, 8)) * 1e-3)  # with ties
        server.on_window()
        loads = torch.from_numpy(server.loads)  # in units of 32 ms: below the cap
        np.testing.assert_allclose(server.inputs[20:], log_ranks(loads).numpy(), atol=1e-6)


@pytest.mark.parametrize("n", [3, 8, 17])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_server_learns_as_its_twin(variant, n):
    """Hundreds of windows of made-up loads: TD errors and all parameters stay together."""
    config = VARIANTS[variant]()
    config.load_unit_s, config.load_cap, config.reward_scale = 1e-4, 2.0, 1.0
    config.migration_cost = 1e-3
    config.init_scale = 0.2
    server = native.MalcolmServer(config, n, 1, 4)
    learner = MalcolmLearner(config, n, server.parameters)
    rng = np.random.default_rng(n)
    start = server.parameters
    for w in range(12 * config.batch + 3):
        drawn, others = np.zeros((2, n)), rng.integers(0, 3, 2)
        for word in rng.integers(0, 2**64, 7, dtype=np.uint64).tolist():
            drawn[0, server.migrate(word)] += 1
            asked = server.steal(word)
            drawn[1, 1 if asked is None else asked] += 1
        for j in range(n):
            load_s = float(rng.exponential(6e-5))
            server.on_load_message(j, load_s, *((int(others[0]), int(others[1])) if j == 0 else (0, 0)))
        server.broadcast()
        moves = (int(drawn[0].sum() - drawn[0, 1] + others[0]), int(drawn[1].sum() - drawn[1, 1] + others[1]))
        result = server.on_window()
        error = learner.window(server.loads, drawn, moves)
        assert result["learned"] == (error is not None) == (w > 0)
        if error is not None:
            assert result["td_error"] == pytest.approx(error, rel=1e-3, abs=1e-3)
        assert result["updated"] == (w > 0 and w % config.batch == 0)
    assert server.updates == 12
    moved = np.abs(server.parameters - start).max()
    assert moved > 5e-3
    np.testing.assert_allclose(server.parameters, learner.parameters, atol=1e-3 * moved)


@pytest.mark.parametrize("n", [2, 8, 17, 33])
@pytest.mark.parametrize("actor", ACTORS)
def test_a_draws_score_is_autograd_and_a_finite_difference(actor, n):
    rng = np.random.default_rng(n)
    actors, twins = pair(n, 2 * n)
    kind, drawn = ACTORS.index(actor), n - 1
    inputs = normal(rng, 2 * n)
    found = actors.draw_score(actor, inputs, drawn)
    assert not found[1 - kind].any()
    twin = twins[kind].double()
    log_pi = twin(torch.from_numpy(inputs).double())[drawn]
    weight, bias = torch.autograd.grad(log_pi, [twin.linear.weight, twin.linear.bias])
    np.testing.assert_allclose(found[kind, :-1], weight.numpy().T, atol=2e-5)
    np.testing.assert_allclose(found[kind, -1], bias.numpy(), atol=2e-5)
    direction = torch.from_numpy(rng.standard_normal(weight.shape))
    values = []
    with torch.no_grad():
        for step in (1e-5, -2e-5):
            twin.linear.weight += step * direction
            values.append(float(twin(torch.from_numpy(inputs).double())[drawn]))
    slope = (values[0] - values[1]) / 2e-5
    assert slope == pytest.approx(float((found[kind, :-1].T * direction.numpy()).sum()), abs=1e-3)


def test_potential_is_exact_at_the_stage():
    """Whoever moves: what u_i gains, phi gains. Loads and costs are exact in binary."""
    rng = np.random.default_rng(0)
    for n in (2, 8, 32):
        loads = rng.integers(0, 64, n).astype(np.float32) / 4
        moves = [rng.integers(0, 4, n).tolist() for _ in range(2)]
        u, phi = native.rack_payoffs(loads, *moves, 0.25, 0.125)
        gaps = np.abs(loads[:, None] - loads[None]).sum() / (n - 1)
        assert phi == pytest.approx(-gaps - 0.25 * sum(moves[0]) - 0.125 * sum(moves[1]), rel=1e-6)
        for i in range(n):
            others = loads.copy()
            others[i] -= 0.25
            others[(i + 1) % n] += 0.25
            deviated = [list(part) for part in moves]
            deviated[0][i] += 1
            v, psi = native.rack_payoffs(others, *deviated, 0.25, 0.125)
            assert (v[i] - u[i]) - (psi - phi) == pytest.approx(0, abs=1e-12)
            assert v[i] != u[i]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate_weight": 0.0}, r"rate_weight is 0; must be in \(0, 1\]"),
        ({"inputs": "waits"}, "inputs, reward: ranks do not go with live_draws"),
        ({"inputs": "ranks", "live_draws": True}, "inputs, reward: ranks do not go with live_draws"),
        ({"batch": 0}, "batch is 0; must be at least 1"),
        ({"discount": 1.5}, r"discount is 1.5; must be in \[0, 1\]"),
        ({"load_unit_s": 0.0}, "load_unit_s is 0; must be positive"),
        ({"init_scale": float("nan")}, "init_scale is nan; must be at least 0"),
    ],
)
def test_bad_configs_are_refused(change, message):
    config = native.MalcolmConfig.thesis()
    for key, value in change.items():
        setattr(config, key, value)
    with pytest.raises(ValueError, match=message):
        native.MalcolmServer(config, 4, 0, 1)


def test_bad_arguments_are_refused():
    config = native.MalcolmConfig()
    with pytest.raises(ValueError, match="features is 'cubic'; must be one of linear, quadratic, quartic"):
        config.features = "cubic"
    with pytest.raises(ValueError, match="self is 4; must be below num_servers"):
        native.MalcolmServer(config, 4, 4, 1)
    server = native.MalcolmServer(config, 4, 0, 1)
    with pytest.raises(ValueError, match="parameters has 3 values; expected 55"):
        server.parameters = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="1 to 64 servers with critics of one size"):
        native.malcolm_consensus([server, native.MalcolmServer(config, 5, 0, 1)])
