"""Central learners (QMIX, VDN, MASAC, MADDPG): gradients, memory, mixing, bytes, export, refusals."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from steelyard import native
from steelyard.agents import export
from steelyard.agents.central_critic import CentralCritic
from steelyard.agents.layout import DISCRETE_ACTIONS, observation_dim
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.scenario import Scenario
from steelyard.trainers import algorithms, cli, rounds
from steelyard.trainers.ctde import CentralTrainer, run

NAMES = ["qmix", "vdn", "masac", "maddpg"]
SEEDS = [native.train_seed(9, index) for index in range(3)]


def trainer_of(name: str, *, horizon_s: int = 15, played: bool = True, **hyper: object) -> CentralTrainer:
    scenario = Scenario.load("cluster-a-cpu", [f"episode.horizon_s={horizon_s}"])
    _, trainer = algorithms.make_trainer(name, scenario, hyper, 0, 1)
    assert isinstance(trainer, CentralTrainer)
    if played:
        trainer.play(SEEDS)
    return trainer


def module_of(trainer: CentralTrainer) -> nn.Module:
    """What TorchRL's loss runs on obs and memory: heads, spread or actions."""
    loss = trainer.loss
    if hasattr(loss, "local_value_network"):
        return loss.local_value_network.module
    network = loss.actor_network
    return network.module[0].module if isinstance(network.module, nn.ModuleList) else network.module


def tensors_of(trainer: CentralTrainer) -> dict[str, torch.Tensor]:
    """Parameters and targets by name, as a checkpoint has them."""
    return trainer.state()["loss"]


def first(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return outputs[0] if isinstance(outputs, tuple) else outputs


@pytest.mark.parametrize("state", ["true", "obs"])
@pytest.mark.parametrize(("name", "recurrent"), list(itertools.product(NAMES, (True, False))))
def test_every_parameter_has_a_gradient(name: str, recurrent: bool, state: str) -> None:
    kind = "shared" if recurrent else "per_server"
    trainer = trainer_of(name, recurrent=recurrent, input=kind, state=state)
    before = {key: p.detach().clone() for key, p in trainer.actor.named_parameters()}
    trainer.update()
    learnt = dict(trainer.loss.named_parameters())
    for parameter in trainer.actor.parameters():
        assert any(parameter is other for other in learnt.values())
    for key, parameter in learnt.items():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().max().item() > 0, key
    for key, parameter in trainer.actor.named_parameters():
        assert not torch.equal(before[key], parameter), key


@pytest.mark.parametrize("name", NAMES)
def test_targets_follow_slowly_and_the_average_moves(name: str) -> None:
    trainer = trainer_of(name, tau=0.25)
    before = {key: value.detach().clone() for key, value in tensors_of(trainer).items()}
    averaged = [p.clone() for p in trainer.averaged.parameters()]
    trainer.update()
    after = tensors_of(trainer)
    targets = [key for key in after if key.startswith("target_") and "row_scale" not in key]
    assert targets
    for key in targets:
        own = after[key.removeprefix("target_")]
        torch.testing.assert_close(after[key], before[key] + 0.25 * (own - before[key]), rtol=1e-4, atol=1e-7)
    assert any(
        not torch.equal(old, new) for old, new in zip(averaged, trainer.averaged.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_is_its_steps(name: str) -> None:
    """What the loss sees of a chunk, at t and at t + 1, is what agents have that act step by step."""
    trainer = trainer_of(name)
    with torch.no_grad():  # larger than at the start, so that differences show
        for parameter in trainer.actor.parameters():
            parameter.mul_(2)
    batch, module = trainer.batch(), module_of(trainer)
    here = first(module(batch["obs"], batch["memory"]))
    after = first(module(batch["next", "obs"], batch["next", "memory"]))
    torch.testing.assert_close(after[:-1], here[1:], rtol=1e-5, atol=1e-6)
    memory = batch["memory"][0]
    for t in range(len(here)):
        step = first(module(batch["obs"][t : t + 1], memory.unsqueeze(0)))
        torch.testing.assert_close(step[0], here[t], rtol=1e-5, atol=1e-6)
        memory = run(trainer.actor, batch["obs"][t : t + 1], memory)[1]
    from_zero = first(module(batch["next", "obs"], torch.zeros_like(batch["memory"])))
    assert (from_zero - after).abs().max().item() > 1e-3


def test_a_batch_holds_what_was_played() -> None:
    trainer = trainer_of("vdn", measure="own", reward="vbf", state="obs", burn_in=2, chunk=6, shaping=0.0)
    tapes = []
    remember = trainer.remember
    trainer.remember = lambda tape, memory: (tapes.append(tape), remember(tape, memory))  # type: ignore[method-assign, assignment, return-value, func-returns-value]
    trainer.replay.buffer.empty()
    trainer.play(SEEDS[:1])
    (tape,) = tapes
    assert not torch.equal(tape["reward"][..., 0], tape["reward"][..., 1])
    team = trainer.scale(tape["reward"].mean(-1)[0])
    obs = trainer.normalised(tape["obs"][0])
    batch = trainer.batch()
    assert batch.batch_size == (4, 24)
    for column in range(24):
        (t,) = (t for t in range(2, 30) if torch.equal(obs[t], batch["obs"][0, column]))
        assert t % 2 == 0
        torch.testing.assert_close(batch["next", "obs"][:, column], obs[t + 1 : t + 5])
        torch.testing.assert_close(batch["action"][:, column], tape["action"][0, t : t + 4].flatten(1))
        torch.testing.assert_close(batch["next", "reward"][:, column, 0], team[t : t + 4])
        torch.testing.assert_close(batch["world"][:, column], obs[t : t + 4].flatten(1))
    assert not batch["next", "terminated"].any()


def test_an_episode_ends_by_truncation_and_its_tail_counts() -> None:
    """With reward 1 for ever, the team's value must go to 1 / (1 - gamma), also in an episode's last step."""
    hyper = {"shaping": 0.0, "tau": 0.3, "actor_lr": 1e-4, "bias_lr": 1e-2, "chunk": 4, "burn_in": 0}
    trainer = trainer_of("vdn", horizon_s=2, played=False, state="obs", **hyper)
    obs = torch.zeros(8, 5, 2, trainer.obs_dim)
    tape = {"obs": obs, "action": torch.zeros(8, 4, 2, 8, dtype=torch.int64), "reward": torch.ones(8, 4, 2)}
    trainer.remember(tape, trainer.first_memory(8).unsqueeze(1).expand(-1, 4, -1, -1, -1))
    trainer.scale.mean, trainer.scale.variance = 0.0, 1.0
    for _ in range(100):
        trainer.update()
    batch = trainer.batch()
    with torch.no_grad():
        values = first(module_of(trainer)(batch["obs"], batch["memory"]))[..., 0].sum(-1)
    assert (values - 2.0).abs().max().item() < 0.1


def test_the_best_joint_choice_is_the_best_of_every_head() -> None:
    """QMIX's monotonicity over all 3^4 joint choices of 2 agents x 2 servers, for states at random."""
    from torchrl.modules import QMixer

    from steelyard.trainers.qmix import TeamValue

    torch.manual_seed(0)
    team = TeamValue(QMixer(state_shape=torch.Size([3]), mixing_embed_dim=8, n_agents=2, device="cpu"))
    values, world = torch.randn(50, 4, 3), torch.randn(50, 3)
    joint = torch.tensor(list(itertools.product(range(3), repeat=4)))  # (81, 4)
    with torch.no_grad():
        chosen = values.unsqueeze(1).expand(-1, 81, -1, -1).gather(3, joint.expand(50, -1, -1).unsqueeze(-1))
        mixed = team(chosen, world.unsqueeze(1).expand(-1, 81, -1).contiguous()).squeeze(-1)
        greedy = team(values.max(-1, keepdim=True).values, world).squeeze(-1)
    torch.testing.assert_close(greedy, mixed.max(1).values)
    assert (mixed.max(1).values - mixed.min(1).values).min() > 0.01


def test_epsilon_falls_and_says_how_often_choices_are_random() -> None:
    trainer = trainer_of("qmix", played=False, epsilon=0.8, epsilon_last=0.2, epsilon_episodes=10.0)
    head = torch.zeros(400, 2, 8, 3)
    head[..., 1] = 1.0
    for episodes, epsilon in ((0, 0.8), (5, 0.5), (10, 0.2), (100, 0.2)):
        trainer.episodes = episodes
        assert trainer.extras() == {"epsilon": pytest.approx(epsilon)}
        share = (trainer.choose(head) == 1).double().mean().item()
        expected = 1 - epsilon * 2 / 3
        assert abs(share - expected) < 4 * (expected * (1 - expected) / 6400) ** 0.5


@pytest.mark.parametrize(("name", "state"), list(itertools.product(NAMES, ("true", "obs"))))
def test_the_bytes_are_those_of_what_is_sent(name: str, state: str) -> None:
    """What a round remembers, counted array by array, and the actor sent back to each agent."""
    trainer = trainer_of(name, played=False, state=state)
    sent = []
    remember = trainer.remember

    def counting(tape: dict[str, torch.Tensor], memory: torch.Tensor) -> None:
        action = tape["action"].to(torch.uint8) if trainer.config.discrete else tape["action"]
        sent.extend([tape["obs"], action, tape["reward"], *([tape["world"]] if "world" in tape else [])])
        remember(tape, memory)

    trainer.remember = counting  # type: ignore[method-assign]
    played = trainer.play(SEEDS)
    parameters = sum(value.nbytes for value in trainer.actor.state_dict().values())
    arrays = sum(array.numel() * array.element_size() for array in sent)
    assert played.bytes_exchanged == arrays + 2 * (parameters + 32 * 4)
    assert len(sent) == (4 if state == "true" else 3)


def test_a_run_adds_up_its_bytes_and_logs(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = ["--scenario", "cluster-a-cpu", "--set", "episode.horizon_s=5", "--episodes", "5", "--quiet"]
    few = ["--set", "algo.num_envs=2", "--set", "algo.updates_per_episode=1", "--set", "algo.chunk=6"]
    assert cli.main(["train", "--algo", "qmix", "--run", str(run_dir), *options, *few]) == 0
    scenario = Scenario.load("cluster-a-cpu", ["episode.horizon_s=5"])
    _, trainer = algorithms.make_trainer("qmix", scenario, {"chunk": 6}, 0, 1)
    assert isinstance(trainer, CentralTrainer)
    spent = json.loads((run_dir / "budget.json").read_text())
    assert spent["bytes_exchanged"] == sum(trainer.bytes_of_round(count) for count in (2, 2, 1))
    header = (run_dir / "progress.csv").read_text().splitlines()[0].split(",")
    assert {"loss", "epsilon", "eval_sojourn_s", "sed_sojourn_s"} <= set(header)
    assert native.decode_policy((run_dir / "policy.bin").read_bytes())["output"] == "discrete3"


@pytest.mark.parametrize("recurrent", [True, False])
@pytest.mark.parametrize("name", ["qmix", "maddpg"])
def test_the_exported_policy_acts_alone_as_the_actor_does(name: str, recurrent: bool) -> None:
    """Native inference on one agent's own observation against the greedy actor, over an episode."""
    trainer = trainer_of(name, recurrent=recurrent, input="shared" if recurrent else "flat")
    for _ in range(20):
        trainer.update()
    actor, memory, moved = trainer.averaged, trainer.first_memory(1), 0.0
    policy = native.Policy(trainer.policy(), num_agents=2)
    batch = LoadBalanceBatch(
        trainer.scenario, 1, discrete=trainer.config.discrete, reward="vbf", autoreset=False
    )
    obs = batch.reset(seeds=[7])
    for _ in range(trainer.steps):
        with torch.no_grad():
            seen = trainer.normalised(torch.from_numpy(obs.copy())).unsqueeze(0)
            head, memory = run(actor, seen, memory)
        ours = np.stack([np.asarray(policy.infer(agent, obs[0, agent])) for agent in range(2)])
        if trainer.config.discrete:
            chosen = head[0, 0].argmax(-1).numpy()
            np.testing.assert_array_equal(ours, np.asarray(DISCRETE_ACTIONS, dtype=np.float32)[chosen])
            obs = batch.step(chosen[None])[0]
        else:
            np.testing.assert_allclose(ours, torch.tanh(head[0, 0, :, :, 0]).numpy(), rtol=1e-5, atol=2e-6)
            obs = batch.step(ours[None])[0]
        moved = max(moved, float(np.abs(ours).max()))
    assert moved > 0.01


def test_a_deterministic_head_has_no_spread_to_export() -> None:
    trainer = trainer_of("maddpg", played=False)
    assert trainer.actor.head.out_features == 1
    spec = export.policy_spec([trainer.actor], [trainer.normaliser], 5.0)
    assert spec["actors"][0]["layers"][-1]["weight"].shape[0] == 8


def test_the_central_critic_ignores_a_common_factor_of_an_agents_weights() -> None:
    torch.manual_seed(0)
    critic = CentralCritic(num_agents=3, num_servers=5, hidden=16, state_rows=1)
    obs, world, action = torch.randn(7, 3, observation_dim(5)), torch.randn(7, 5), torch.rand(7, 3, 5) - 0.5
    value = critic(obs, world, action.flatten(1))
    assert value.shape == (7, 1)
    scaled = action + torch.tensor([0.1, -0.3, 0.2]).view(1, 3, 1)
    torch.testing.assert_close(critic(obs, world, scaled.flatten(1)), value, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(critic(obs, world + 1, action.flatten(1)), value)


def test_the_true_state_is_what_the_reward_is_over() -> None:
    batch = LoadBalanceBatch("cluster-a-cpu", 3, reward="team_makespan", measure="true")
    batch.reset(seed=2)
    assert not batch.remaining_time().any()
    for _ in range(10):
        _, reward, _ = batch.step(np.zeros((3, 2, 8), dtype=np.float32))
        left = batch.remaining_time()
        assert left.shape == (3, 8)
        np.testing.assert_allclose(-left.max(1), reward[:, 0], rtol=1e-6)
    assert left.min(1).max() < left.max()


@pytest.mark.parametrize(
    ("name", "setting", "words"),
    [
        ("qmix", "discrete=false", "algo.discrete = False: must be true: qmix plays discrete weights alone"),
        ("vdn", "discrete=false", "vdn plays discrete weights alone"),
        ("masac", "discrete=true", "algo.discrete = True: must be false: masac plays continuous"),
        ("maddpg", "discrete=true", "maddpg plays continuous"),
        ("vdn", "mixer_units=32", "mixer_units"),
        ("qmix", "mixer_units=0", "at least 1"),
        ("qmix", "epsilon=1.5", "from 0 to 1"),
        ("qmix", "epsilon_last=1.5", "algo.epsilon"),
        ("qmix", "epsilon_episodes=0", "above 0"),
        ("qmix", "state=all", "true or obs"),
        ("qmix", "tau=0", "above 0 and below 1"),
        ("masac", "alpha=0", "above 0"),
        ("masac", "recurrent=false", "flat or per_server when algo.recurrent = false"),
        ("masac", "target_entropy=nan", "a number"),
        ("maddpg", "noise=2", "from 0 to 1"),
        ("maddpg", "critic_hidden=0", "at least 1"),
        ("maddpg", "measure=own", "team_log_vbf"),
        ("maddpg", "chunk=500", "the steps of an episode"),
    ],
)
def test_bad_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, setting: str, words: str
) -> None:
    place = tmp_path / "run"
    options = ["--scenario", "cluster-a-cpu", "--run", str(place), "--episodes", "2", "--quiet"]
    assert cli.main(["train", "--algo", name, *options, "--set", f"algo.{setting}"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert words in lines[0]
    assert not place.exists()


def test_nan_stops_a_central_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of("masac")
    with torch.no_grad():
        next(iter(trainer.actor.parameters())).fill_(torch.nan)
    with pytest.raises(rounds.UserError, match="not finite"):
        trainer.update()
