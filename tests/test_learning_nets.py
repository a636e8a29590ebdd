"""Actors, critics, normaliser and export: shapes, gradients, sequence = steps, torch = native."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from steelyard import native
from steelyard.agents import export, gaussian
from steelyard.agents.critics import TwinCritic
from steelyard.agents.gru_actor import GruActor
from steelyard.agents.layout import DISCRETE_ACTIONS, observation_dim, server_rows
from steelyard.agents.mlp_actor import MlpActor
from steelyard.agents.normaliser import Normaliser
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.scenario import Scenario

N = 5
CASES = list(itertools.product(("flat", "shared", "per_server"), (False, True)))


def actor_of(input_mode: str, discrete: bool, seed: int = 0, servers: int = N) -> GruActor:
    torch.manual_seed(seed)
    actor = GruActor(servers, input_mode=input_mode, hidden=12, discrete=discrete)
    with torch.no_grad():  # larger than at the start of training, so that differences show
        actor.head.weight.mul_(20)
        if input_mode == "shared":
            actor.constant.normal_(0, 0.3)
    return actor


@pytest.mark.parametrize(("input_mode", "discrete"), CASES)
def test_a_sequence_is_its_steps(input_mode: str, discrete: bool) -> None:
    """Stored states at any step continue the sequence: what replay relies on."""
    actor = actor_of(input_mode, discrete)
    obs = torch.randn(40, 3, observation_dim(N))
    whole = actor(obs, actor.initial_state(3))
    state = actor.initial_state(3)
    for t in range(40):
        step = actor(obs[t : t + 1], state)
        state = step.state
        torch.testing.assert_close(step.head[0], whole.head[t], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state, whole.state, rtol=1e-5, atol=1e-6)
    later = actor(obs[25:], actor(obs[:25], actor.initial_state(3)).state)
    torch.testing.assert_close(later.head, whole.head[25:], rtol=1e-5, atol=1e-6)


def test_a_sequence_that_starts_from_zero_is_another() -> None:
    actor = actor_of("flat", False)
    obs = torch.randn(40, 3, observation_dim(N))
    whole = actor(obs, actor.initial_state(3)).head
    fresh = actor(obs[20:], actor.initial_state(3)).head[0]
    assert (fresh - whole[20]).abs().max().item() > 1e-3


@pytest.mark.parametrize("discrete", [False, True])
def test_permuting_servers_permutes_a_per_server_actor(discrete: bool) -> None:
    actor, order = actor_of("per_server", discrete), torch.randperm(N)
    obs = torch.randn(6, 2, observation_dim(N))
    features, rest, previous = obs[..., : 11 * N], obs[..., 11 * N : -N], obs[..., -N:]
    moved = features.unflatten(-1, (N, 11))[..., order, :].flatten(-2)
    permuted = torch.cat([moved, rest, previous[..., order]], dim=-1)
    start = actor.initial_state(2)
    torch.testing.assert_close(actor(permuted, start).head, actor(obs, start).head[..., order, :])


def test_rows_hold_what_the_observation_says() -> None:
    obs = torch.arange(float(observation_dim(N)))
    rows = server_rows(obs, N)
    assert rows.shape == (N, 29)
    for j in range(N):
        assert rows[j, :11].tolist() == list(range(11 * j, 11 * j + 11))
        assert rows[j, 11] == 11 * N + 5 + j
        assert rows[j, 12:17].tolist() == list(range(11 * N, 11 * N + 5))
        torch.testing.assert_close(rows[j, 17:], rows[:, :12].mean(0))


@pytest.mark.parametrize("kind", ["set", "flat"])
def test_scaling_all_weights_does_not_change_q(kind: str) -> None:
    """argmin (q + 1) / w is the same for w and 2 w: a + c must have the same value as a."""
    critic = TwinCritic(N, kind=kind, hidden=16, discrete=False)
    obs, action = torch.randn(7, observation_dim(N)), torch.rand(7, N) - 0.5
    for one, other in zip(critic(obs, action), critic(obs, action + 0.3), strict=True):
        assert one.shape == (7,)
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_normaliser_shares_statistics_between_servers() -> None:
    rng = np.random.default_rng(0)
    obs = rng.normal(3.0, 2.0, (500, observation_dim(N))).astype(np.float32)
    normaliser = Normaliser(N)
    for part in np.array_split(obs, 7):
        normaliser.update(part)
    mean, inverse = normaliser.vectors()
    rows = obs[:, : 11 * N].reshape(-1, 11)
    np.testing.assert_allclose(mean[:11], rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(1 / inverse[:11], rows.std(0), rtol=1e-5)
    np.testing.assert_allclose(1 / inverse[11 * N : -N], obs[:, 11 * N : -N].std(0), rtol=1e-5)
    for j in range(N):
        np.testing.assert_array_equal(mean[11 * j : 11 * j + 11], mean[:11])
    assert not mean[-N:].any()
    assert (inverse[-N:] == 1).all()


def test_a_feature_that_never_moves_stays_finite() -> None:
    normaliser = Normaliser(N)
    normaliser.update(np.zeros((10, observation_dim(N)), dtype=np.float32))
    assert np.isfinite(normaliser.vectors()[1]).all()


def warm_normaliser(scenario: Scenario) -> Normaliser:
    """Statistics of 20 steps in four worlds."""
    normaliser, batch = Normaliser(scenario.num_servers), LoadBalanceBatch(scenario, 4, autoreset=False)
    batch.reset(seed=3)
    for _ in range(20):
        normaliser.update(batch.step(np.zeros((4, 2, scenario.num_servers), dtype=np.float32))[0])
    return normaliser


def eager(actor: export.Actor, normaliser: Normaliser) -> Callable[[np.ndarray], torch.Tensor]:
    """obs (obs_dim,) -> head (N, 2 or 3), step by step in PyTorch."""
    mean, inverse = (torch.from_numpy(vector) for vector in normaliser.vectors())
    state = [actor.initial_state(1)] if isinstance(actor, GruActor) else []

    @torch.no_grad()
    def step(obs: np.ndarray) -> torch.Tensor:
        scaled = ((torch.from_numpy(obs.copy()) - mean) * inverse).clamp(-5.0, 5.0)
        if not isinstance(actor, GruActor):
            return actor(scaled)
        output = actor(scaled.view(1, 1, -1), state[0])
        state[0] = output.state
        return output.head[0, 0]

    return step


@pytest.mark.parametrize(("input_mode", "discrete"), CASES)
@pytest.mark.parametrize("recurrent", [True, False])
def test_torch_and_native_inference_agree_over_an_episode(
    input_mode: str, discrete: bool, recurrent: bool
) -> None:
    if input_mode == "shared" and not recurrent:
        pytest.skip("the feed-forward actor is flat or per_server")
    scenario = Scenario.load("cluster-a-cpu")
    actor: export.Actor = actor_of(input_mode, discrete, seed=1, servers=scenario.num_servers)
    if not recurrent:
        torch.manual_seed(1)
        actor = MlpActor(scenario.num_servers, input_mode=input_mode, hidden=16, discrete=discrete)
    normaliser = warm_normaliser(scenario)
    policy = native.Policy(export.policy_bytes([actor], [normaliser], 5.0), num_agents=2)
    step, moved = eager(actor, normaliser), 0.0
    batch = LoadBalanceBatch(scenario, 1, discrete=discrete, autoreset=False)
    obs = batch.reset(seeds=[7])
    for _ in range(120):
        head, ours = step(obs[0, 0]), np.asarray(policy.infer(0, obs[0, 0]))
        if discrete:
            choice = head.argmax(-1).numpy()
            np.testing.assert_array_equal(ours, np.asarray(DISCRETE_ACTIONS, dtype=np.float32)[choice])
        else:
            np.testing.assert_allclose(ours, torch.tanh(head[:, 0]).numpy(), rtol=2e-6, atol=2e-6)
        moved = max(moved, float(np.abs(ours).max()))
        obs = batch.step(np.tile(choice if discrete else ours, (1, 2, 1)))[0]
    assert discrete or moved > 0.01


def test_the_log_density_is_that_of_the_samples() -> None:
    """E[1 / p(a); |a| < .9] is the length of that interval, 1.8, whatever p is."""
    head = torch.tensor([0.3, -0.2]).expand(200_000, 1, 2)
    action, log_density = gaussian.sample(head, torch.Generator().manual_seed(0))
    weight = torch.exp(-log_density) * (action[:, 0].abs() < 0.9)
    error = weight.std() / len(weight) ** 0.5
    assert (weight.mean() - 1.8).abs() < 4 * error
