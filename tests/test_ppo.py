"""IPPO and MAPPO: gradients, steps = sequence, truncation, what is sent, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers.ppo import Ippo, Mappo, PpoTrainer
from steelyard.trainers.ppo_parts import cut, moves, run

SEEDS = [native.train_seed(9, index) for index in range(3)]
CASES = [
    *itertools.product((True,), ("flat", "shared", "per_server"), (False, True)),
    *itertools.product((False,), ("flat", "per_server"), (False, True)),
]


def trainer_of(config: Ippo) -> PpoTrainer:
    return PpoTrainer(config, Scenario.load("cluster-a-cpu", ["episode.horizon_s=10"]), 0)


def taken(trainer: PpoTrainer) -> dict[str, torch.Tensor]:
    """Play a round and give it to every learner; the tape."""
    _, tape = trainer.play(SEEDS)
    for index, learner in enumerate(trainer.learners):
        part = slice(None) if isinstance(trainer.config, Mappo) else slice(index, index + 1)
        obs, move, reward = (tape[name][:, :, part] for name in ("obs", "move", "reward"))
        learner.take(obs, move, reward, tape.get("world"))
    return tape


@pytest.mark.parametrize(("recurrent", "input_mode", "discrete"), CASES)
@pytest.mark.parametrize("kind", [Ippo, Mappo])
def test_every_parameter_has_a_gradient(
    kind: type[Ippo], recurrent: bool, input_mode: str, discrete: bool
) -> None:
    trainer = trainer_of(kind(recurrent=recurrent, input=input_mode, discrete=discrete, minibatches=1))
    taken(trainer)
    for learner in trainer.learners:
        learner.update()
    nets = [*(agent.actor for agent in trainer.agents), *(learner.critic for learner in trainer.learners)]
    assert len({id(net) for net in nets}) == (3 if kind is Mappo else 4)
    for net in nets:
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max().item() > 0, name


@pytest.mark.parametrize(("recurrent", "input_mode", "discrete"), CASES)
def test_steps_give_what_the_sequence_gives(recurrent: bool, input_mode: str, discrete: bool) -> None:
    """Heads of whole episodes and of chunks from their stored states are those of acting step by step."""
    trainer = trainer_of(Ippo(recurrent=recurrent, input=input_mode, discrete=discrete, chunk=7))
    agent, obs = trainer.agents[0], torch.randn(3, 20, 101)
    with torch.no_grad():
        heads, memory = run(agent.actor, obs, agent.memory(3))
        state, stepped = agent.memory(3), []
        for step in range(20):
            head, states = run(agent.actor, obs[:, step : step + 1], state)
            state = states[:, 1]
            stepped.append(head[:, 0])
        chunks = cut({"obs": obs, "memory": memory[:, :20], "head": heads}, 7)
        again = run(agent.actor, chunks["obs"], chunks["memory"])[0]
    torch.testing.assert_close(torch.stack(stepped, 1), heads, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(again, chunks["head"], rtol=1e-5, atol=1e-6)


def test_chunks_cover_every_step_and_the_last_overlaps() -> None:
    index = torch.arange(20.0).expand(2, 20)
    chunks = cut({"obs": index, "memory": index}, 8)
    assert chunks["obs"].shape == (6, 8)
    assert chunks["obs"][:, 0].tolist() == [0, 0, 8, 8, 12, 12]
    assert chunks["memory"].tolist() == chunks["obs"][:, 0].tolist()


def test_the_ratio_starts_at_one_and_the_squash_cancels_in_it() -> None:
    trainer = trainer_of(Mappo())
    taken(trainer)
    (learner,) = trainer.learners
    found = learner.loss(learner.chunks)
    assert abs(found["kl_approx"].item()) < 1e-6
    assert found["clip_fraction"].item() == 0
    one = moves(loc=torch.zeros(4, 8), scale=torch.ones(4, 8))
    two = moves(loc=torch.zeros(4, 8), scale=torch.full((4, 8), 1.2))
    raw = torch.randn(4, 8)
    slope = torch.log(1 - torch.tanh(raw) ** 2).sum(-1)
    squashed = (two.log_prob(raw) - slope) - (one.log_prob(raw) - slope)
    torch.testing.assert_close(squashed, two.log_prob(raw) - one.log_prob(raw))


@pytest.mark.parametrize("trace", [0.0, 0.9, 1.0])
def test_an_episode_ends_by_truncation_and_its_tail_counts(trace: float) -> None:
    """With reward 1 for ever and V = 1 / (1 - gamma), every advantage is 0, also at the last step."""
    learner = trainer_of(Ippo(gamma=0.5, trace=trace)).learners[0]
    value, reward = torch.full((4, 13, 1, 1), 2.0), torch.ones(4, 12, 1, 1)
    advantage, goal = learner._advantage(value, reward)
    assert advantage.abs().max().item() == 0
    assert (goal == 2).all()


def test_advantages_are_the_sums_that_define_them() -> None:
    """A_t = sum over k of (gamma lambda)^k delta_{t+k} (Schulman et al. 2016, eq. (16)), per agent."""
    learner = trainer_of(Mappo(gamma=0.7, trace=0.6)).learners[0]
    value, reward = torch.randn(5, 13, 2, 1), torch.randn(5, 12, 2, 1)
    advantage, goal = learner._advantage(value, reward)
    delta = reward + 0.7 * value[:, 1:] - value[:, :-1]
    wanted = torch.stack(
        [sum(0.42**k * delta[:, t + k] for k in range(12 - t)) for t in range(12)],  # type: ignore[misc]
        1,
    )
    torch.testing.assert_close(goal, wanted + value[:, :-1])
    centred = wanted - wanted.mean((0, 1))
    torch.testing.assert_close(advantage, centred / wanted.std((0, 1), correction=0), rtol=1e-4, atol=1e-5)


def parameters(trainer: PpoTrainer) -> int:
    return sum(array.numel() for array in trainer.agents[0].actor.state_dict().values())


@pytest.mark.parametrize(("discrete", "state"), list(itertools.product((False, True), ("true", "obs"))))
def test_bytes_are_those_of_the_formula(discrete: bool, state: str) -> None:
    """Counted from what a round holds: 3 episodes of 20 steps, 2 agents, 8 servers, 101 numbers seen."""
    trainer = trainer_of(Mappo(discrete=discrete, state=state))
    played, tape = trainer.play(SEEDS)
    sent = 4 * (tape["obs"].numel() + tape["reward"].numel())
    sent += (1 if discrete else 4) * tape["action"].numel()
    sent += 4 * tape["world"].numel() if state == "true" else 0
    assert ("world" in tape) == (state == "true")
    assert played.bytes_exchanged == sent + 2 * 4 * (parameters(trainer) + 32)


def test_ippo_sends_nothing_and_its_agents_do_not_depend_on_each_other() -> None:
    """What agent 0 learns from a round is the same whatever the other one saw."""
    results = []
    for noise in (0.0, 1.0):
        trainer = trainer_of(Ippo(epochs=1))
        played, tape = trainer.play(SEEDS)
        assert played.bytes_exchanged == 0
        other = tape["obs"][:, :, 1:] + noise
        for learner, obs, index in zip(trainer.learners, (tape["obs"][:, :, :1], other), (0, 1), strict=True):
            learner.take(obs, tape["move"][:, :, [index]], tape["reward"][:, :, [index]], None)
            learner.update()
        results.append([net.actor.state_dict() for net in trainer.agents])
    (mine, theirs), (mine_again, theirs_again) = results
    assert all(torch.equal(mine[name], mine_again[name]) for name in mine)
    assert not all(torch.equal(theirs[name], theirs_again[name]) for name in theirs)


def test_a_shared_actor_is_one_and_serves_any_number_of_balancers() -> None:
    trainer = trainer_of(Mappo(share=True))
    taken(trainer)
    trainer.learners[0].update()
    assert len(trainer.state()["agents"]) == 1
    assert len(native.decode_policy(trainer.policy())["actors"]) == 1
    assert native.Policy(trainer.policy(), num_agents=5).num_servers == 8


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Ippo(chunk=21), "algo.chunk = 21: must be 1 to 20"),
        (Ippo(clip_ratio=0.0), "algo.clip_ratio"),
        (Ippo(trace=1.1), "algo.trace"),
        (Ippo(entropy=-1.0), "algo.entropy"),
        (Ippo(epochs=0), "algo.epochs"),
        (Ippo(recurrent=False), "flat or per_server when algo.recurrent = false"),
        (Ippo(reward="happiness"), "happiness"),
        (Mappo(state="all"), "true or obs"),
    ],
)
def test_bad_settings(config: Ippo, words: str) -> None:
    with pytest.raises(UserError, match=words):
        trainer_of(config)


def test_what_is_exported_is_what_acts() -> None:
    """Native inference on raw observations gives the averaged actor's mean, squashed."""
    trainer = trainer_of(Mappo())
    tape = taken(trainer)
    trainer.learners[0].update()
    policy = native.Policy(trainer.policy(), num_agents=2)
    agent = trainer.agents[1]
    obs = tape["obs"][0, :, 1]
    with torch.no_grad():
        heads = run(agent.averaged, agent.normalised(obs).unsqueeze(0), agent.memory(1))[0][0]
    for step in range(len(obs)):
        ours = np.asarray(policy.infer(1, obs[step].numpy()))
        np.testing.assert_allclose(ours, torch.tanh(heads[step, :, 0]).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Ippo, Mappo])
def test_it_learns_which_servers_are_fast(kind: type[Ippo]) -> None:
    """Servers 0-3 have twice the workers of 4-7: after 192 episodes they get more weight, all of them."""
    trainer = PpoTrainer(kind(), Scenario.load("cluster-a-cpu"), 1)
    for _ in range(6):
        played = trainer.round(32)
    weights = played.weights.mean(0)
    assert weights[:4].min() > weights[4:].max()
