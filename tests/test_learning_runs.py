"""Training runs: gradients, determinism, exact resume, Ctrl-C, refusals, logs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from steelyard import native
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import centr_lb, checkpoint, cli, rounds
from steelyard.trainers.distr_lb import Agent, DistrLb, DistrLbTrainer
from steelyard.trainers.replay import SequenceReplay
from steelyard.trainers.rlb_sac import RlbSac, RlbSacTrainer

SHORT = ["--set", "episode.horizon_s=10", "--set", "algo.num_envs=2", "--set", "algo.updates_per_episode=2"]
ALGORITHMS = ["distr-lb", "rlb-sac", "centr-lb", "qmix", "vdn", "masac", "maddpg"]
CASES = list(itertools.product(("flat", "shared", "per_server"), (False, True)))


def train(run: Path, episodes: int, *more: str) -> int:
    common = ["--scenario", "cluster-a-cpu", "--run", str(run), "--episodes", str(episodes), "--quiet"]
    return cli.main(["train", *common, *SHORT, *more])


def played(trainer: DistrLbTrainer, episodes: int = 2) -> None:
    trainer.play([native.train_seed(9, index) for index in range(episodes)])


@pytest.mark.parametrize(("input_mode", "discrete"), CASES)
def test_every_parameter_has_a_gradient(input_mode: str, discrete: bool) -> None:
    """The authors' released actor has none at all: it hands sampled actions to Q without their graph."""
    scenario = Scenario.load("cluster-a-cpu", ["episode.horizon_s=15"])
    kind = "flat" if input_mode == "flat" else "set"
    config = DistrLb(input=input_mode, discrete=discrete, critic=kind, num_envs=2)
    trainer = DistrLbTrainer(config, scenario, 0)
    played(trainer)
    agent = trainer.agents[0]
    before = {name: p.detach().clone() for name, p in agent.actor.named_parameters()}
    agent.update()
    for net in (agent.actor, agent.critic):
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max().item() > 0, name
    for name, parameter in agent.actor.named_parameters():
        assert not torch.equal(before[name], parameter), name
    assert agent.log_alpha.grad is not None
    assert agent.log_alpha.grad.item() != 0


def test_every_parameter_of_rlb_sac_has_a_gradient() -> None:
    scenario = Scenario.load("cluster-a-cpu", ["episode.horizon_s=15"])
    trainer = RlbSacTrainer(RlbSac(num_envs=2), scenario, 0)
    trainer.play([native.train_seed(9, index) for index in range(2)])
    agent = trainer.agents[0]
    agent.update()
    for net in (agent.actor, agent.critic):
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max().item() > 0, name


@pytest.mark.parametrize("discrete", [False, True])
def test_every_parameter_of_centr_lb_has_a_gradient(discrete: bool) -> None:
    scenario = Scenario.load("cluster-a-cpu", ["episode.horizon_s=15"])
    trainer = centr_lb.CentrLbTrainer(centr_lb.CentrLb(num_envs=2, discrete=discrete), scenario, 0)
    trainer.play([native.train_seed(9, index) for index in range(2)])
    agent = trainer.agent
    before = {name: p.detach().clone() for name, p in agent.actor.named_parameters()}
    agent.update()
    for net in (agent.actor, agent.critic):
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max().item() > 0, name
    for name, parameter in agent.actor.named_parameters():
        assert not torch.equal(before[name], parameter), name
    assert agent.log_alpha.grad is not None
    assert agent.log_alpha.grad.item() != 0
    assert sum(p.numel() for group in agent.actor.slow_and_fast() for p in group) == sum(
        p.numel() for p in agent.actor.parameters()
    )


def test_an_episode_ends_by_truncation_and_its_tail_counts() -> None:
    """With reward 1 for ever, Q must go to 1 / (1 - gamma), also at the last step of an episode."""
    config = DistrLb(critic_lr=3e-3, gamma=0.5, shaping=0.0, tau=0.2, alpha=1e-9, chunk=4, burn_in=0)
    agent = Agent(config, num_servers=2, steps=4, seed=0)
    obs, action = torch.zeros(8, 5, 29), torch.zeros(8, 4, 2)
    agent.remember(obs, action, torch.ones(8, 4), torch.zeros(8, 4, agent.actor.rows, config.hidden))
    agent.scale.mean, agent.scale.variance = 0.0, 1.0
    for _ in range(300):
        agent.update()
    with torch.no_grad():
        value = agent.critic(agent.normalised(obs[0, 3]), action[0, 3])[0].item()
    assert abs(value - 2.0) < 0.1


def test_the_shaped_return_differs_by_the_potential_alone() -> None:
    """Sum of gamma^t r'_t = sum of gamma^t r_t + k (gamma^T r_{T-1} - r_{-1}): no policy changes its rank."""
    config = DistrLb(gamma=0.8, shaping=1.7)
    agent = Agent(config, num_servers=2, steps=20, seed=0)
    agent.scale.mean, agent.scale.variance = 0.0, 1.0
    reward = torch.randn(13, 1, dtype=torch.float64)
    discount = 0.8 ** torch.arange(12, dtype=torch.float64)
    shaped = (discount * agent._shaped(reward)[:, 0]).sum()
    plain = (discount * reward[1:, 0]).sum()
    torch.testing.assert_close(shaped, plain + 1.7 * (0.8**12 * reward[-1, 0] - reward[0, 0]))


def test_replay_returns_chunks_with_the_state_at_their_start() -> None:
    generator = torch.Generator().manual_seed(0)
    replay = SequenceReplay(6, steps=12, length=5, stride=3, batch=64, generator=generator)
    base = torch.arange(8).view(8, 1) * 1000  # of 8 episodes, the first two are overwritten
    obs = (base + torch.arange(13)).float().unsqueeze(-1)
    action, reward = obs[:, :12] + 0.25, (base + torch.arange(12)).float()
    state = action.unsqueeze(-1) + 0.25
    for part in (slice(0, 4), slice(4, 8)):
        replay.add(obs[part], action[part], reward[part], state[part])
    assert len(replay) == 6
    seen, acted, paid, start = replay.sample()
    assert seen.shape == (6, 64, 1)
    first = seen[0, :, 0]
    assert set((first % 1000).tolist()) == {0.0, 3.0, 6.0}
    assert first.min() >= 2000
    torch.testing.assert_close(acted[:, :, 0], seen[:5, :, 0] + 0.25)
    torch.testing.assert_close(start[:, 0, 0], first + 0.5)
    torch.testing.assert_close(paid[1:], seen[:5, :, 0])
    torch.testing.assert_close(paid[0] % 1000, (first % 1000 - 1).clamp_min(0))


def files(run: Path) -> dict[str, bytes]:
    names = ("episodes.csv", "progress.csv", "policy.bin", "checkpoint/arrays.npz", "checkpoint/state.json")
    return {name: (run / name).read_bytes() for name in names}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_same_seed_same_run_and_another_seed_another(tmp_path: Path, algo: str) -> None:
    for name, seed, threads in (("a", 5, 1), ("b", 5, 2), ("c", 6, 1)):
        assert train(tmp_path / name, 4, "--algo", algo, "--seed", str(seed), "--threads", str(threads)) == 0
    one, two, three = (files(tmp_path / name) for name in "abc")
    assert one == two
    assert one["policy.bin"] != three["policy.bin"]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_resume_gives_the_same_run(tmp_path: Path, algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off after a checkpoint and some further rounds, whose rows in the logs must go."""
    from steelyard.trainers import session

    assert train(tmp_path / "whole", 16, "--algo", algo) == 0
    record, count = session.Session._record, itertools.count(1)

    def dying(self: session.Session, *args: object) -> None:
        record(self, *args)
        if next(count) == 7:  # rounds are 2 episodes, checkpoints every 5 rounds
            raise RuntimeError("power cut")

    monkeypatch.setattr(session.Session, "_record", dying)
    with pytest.raises(RuntimeError, match="power cut"):
        train(tmp_path / "cut", 16, "--algo", algo)
    monkeypatch.undo()
    assert len((tmp_path / "cut" / "episodes.csv").read_text().splitlines()) == 1 + 14
    assert train(tmp_path / "cut", 16, "--algo", algo, "--resume") == 0
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_resume_without_a_checkpoint_starts_over(tmp_path: Path) -> None:
    assert train(tmp_path / "whole", 4) == 0
    assert train(tmp_path / "cut", 4) == 0
    for name in ("policy.bin", "checkpoint/arrays.npz", "checkpoint/state.json"):
        (tmp_path / "cut" / name).unlink()
    assert train(tmp_path / "cut", 4, "--resume") == 0
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--scenario", "cluster-a-cpu", "--run", str(run), "--episodes", "100000", *SHORT]
    command = [sys.executable, "-m", "steelyard.trainers.cli", "train", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (run / "episodes.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("stopped after")
    assert "--resume" in errors.splitlines()[-1]
    done = checkpoint.load(run / "checkpoint")["trainer"]["episodes"]
    assert len((run / "episodes.csv").read_text().splitlines()) == 1 + done
    assert native.Policy(str(run / "policy.bin")).num_servers == 8


def refusal(capsys: pytest.CaptureFixture[str], status: int) -> str:
    assert status == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_refusals_name_the_problem_and_overwrite_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert "config.json" in refusal(capsys, train(run, 2, "--resume"))
    assert not run.exists()
    assert train(run, 2) == 0
    before = snapshot(run)
    capsys.readouterr()
    assert "--resume" in refusal(capsys, train(run, 2))
    assert "seed" in refusal(capsys, train(run, 2, "--resume", "--seed", "1"))
    assert "gamma" in refusal(capsys, train(run, 2, "--resume", "--set", "algo.gamma=.7"))
    assert "pool.balancers" in refusal(capsys, train(run, 2, "--resume", "--set", "pool.balancers=3"))
    assert snapshot(run) == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("do not lose me")
    assert "not a run directory" in refusal(capsys, train(other, 2))
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    arrays = run / "checkpoint" / "arrays.npz"
    arrays.write_bytes(arrays.read_bytes()[:1000])
    assert "damaged" in refusal(capsys, train(run, 4, "--resume"))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algo.gama=0.5", "did you mean 'gamma'"),
        ("algo.gamma=1.5", "algo.gamma = 1.5"),
        ("algo.gamma=high", "a number"),
        ("algo.num_envs=0", "at least 1"),
        ("algo.chunk=500", "the steps of an episode"),
        ("algo.input=wide", "flat or shared or per_server"),
        ("algo.discrete=2", "true or false"),
        ("algo.reward=happiness", "happiness"),
        ("algo.measure=guess", "guess"),
        ("reward.kind=vbf", "algo.reward"),
    ],
)
def test_bad_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, words: str) -> None:
    assert words in refusal(capsys, train(tmp_path / "run", 2, "--set", setting))
    assert not (tmp_path / "run").exists()


def test_nan_stops_the_run_and_keeps_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert train(run, 2) == 0
    before = snapshot(run / "checkpoint")
    capsys.readouterr()
    monkeypatch.setattr(Agent, "act", lambda self, obs, state: (torch.full((len(obs), 8), np.nan), state))
    line = refusal(capsys, train(run, 4, "--resume"))
    assert "nan" in line
    assert snapshot(run / "checkpoint") == before
    with pytest.raises(UserError, match="obs holds NaN"):
        rounds.check_finite({"obs": torch.tensor([1.0, np.inf])})


def test_a_save_that_is_cut_off_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "checkpoint"
    checkpoint.save(place, {"x": torch.arange(3), "y": [1.5, None, {"z": True}]})
    assert checkpoint.load(place)["x"].tolist() == [0, 1, 2]
    assert checkpoint.load(place)["y"] == [1.5, None, {"z": True}]
    rename = os.rename

    def cut(source: Path, target: Path) -> None:
        if Path(source).name.endswith(".new"):
            raise OSError("power cut")
        rename(source, target)

    monkeypatch.setattr(os, "rename", cut)
    with pytest.raises(OSError, match="power cut"):
        checkpoint.save(place, {"x": torch.arange(9)})
    monkeypatch.undo()
    assert checkpoint.load(place)["x"].tolist() == [0, 1, 2]
    checkpoint.save(place, {"x": torch.arange(4)})
    assert len(checkpoint.load(place)["x"]) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    with pytest.raises(TypeError, match="object"):
        checkpoint.save(place, {"x": object()})


def test_what_a_run_directory_holds(tmp_path: Path) -> None:
    import csv

    run = tmp_path / "run"
    assert train(run, 5, "--seed", "3") == 0
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"] == "distr-lb"
    assert config["seed"] == 3
    assert config["hyper"]["num_envs"] == 2
    assert config["scenario"]["episode"]["horizon_s"] == 10
    rows = list(csv.DictReader((run / "episodes.csv").open()))
    assert [int(row["episode"]) for row in rows] == [1, 2, 3, 4, 5]
    assert len({row["seed"] for row in rows}) == 5
    assert all(int(row["seed"]) >= 2**63 for row in rows)
    assert all(0.3 < float(row["sojourn_mean_s"]) < 10 for row in rows)
    progress = list(csv.DictReader((run / "progress.csv").open()))
    assert [int(row["episode"]) for row in progress] == [2, 4, 5]
    assert float(progress[-1]["eval_sojourn_s"]) > 0
    assert float(progress[-1]["sed_sojourn_s"]) > 0
    assert native.decode_policy((run / "policy.bin").read_bytes())["num_servers"] == 8


def test_wandb_offline_writes_its_file_and_needs_no_account(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run = tmp_path / "run"
    assert train(run, 2, "--wandb", "offline") == 0
    (written,) = run.glob("wandb/offline-run-*/run-*.wandb")
    content = written.read_bytes()
    for word in (
        b"eval/sojourn_s",
        b"eval/weights",
        b"eval_sojourn_s",
        b"updates_per_episode",
        b"policy.bin",
    ):
        assert word in content, word


def test_without_wandb_it_is_not_imported(tmp_path: Path) -> None:
    script = (
        "import sys; from steelyard.trainers import cli;"
        f"cli.main(['train', '--scenario', 'cluster-a-cpu', '--run', {str(tmp_path / 'r')!r},"
        f" '--episodes', '2', '--quiet', *{SHORT!r}]); sys.exit('wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 0
