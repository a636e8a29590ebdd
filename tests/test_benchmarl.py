"""Steelyard as a task of BenchMARL: its algorithms run, and what they train exports like any other."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import native
from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import UserError

NEEDED = ("benchmarl", "hydra", "tqdm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED), reason="BenchMARL is not installed"
    ),
    pytest.mark.filterwarnings("ignore"),
]
SHORT = ("episode.horizon_s=10",)  # 20 steps
BOTH = ("Mappo", "Ippo", "Masac", "Isac")
CONTINUOUS = ("Maddpg", "Iddpg")
DISCRETE = ("Qmix", "Vdn", "Iql")
PAGE = Path(__file__).parent.parent / "docs" / "benchmarl.md"


def experiment(folder: Path, algorithm: str, *, settings: dict[str, Any] | None = None, **task: Any) -> Any:
    """Two iterations of 80 steps, ready to run."""
    import torch
    from benchmarl import algorithms
    from benchmarl.experiment import Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig

    from steelyard.trainers.benchmarl_task import SteelyardTask

    torch.set_num_threads(1)
    config = ExperimentConfig.get_from_yaml()
    short: dict[str, Any] = {"max_n_iters": 2, "max_n_frames": None, "gamma": 0.5, "render": False}
    short |= {"loggers": [], "create_json": True, "evaluation_interval": 80, "evaluation_episodes": 2}
    short |= {
        "on_policy_n_minibatch_iters": 2,
        "on_policy_minibatch_size": 40,
        "off_policy_memory_size": 1000,
    }
    short |= {"off_policy_n_optimizer_steps": 2, "off_policy_train_batch_size": 32}
    for kind in ("on_policy", "off_policy"):
        short |= {f"{kind}_collected_frames_per_batch": 80, f"{kind}_n_envs_per_worker": 4}
    for key, value in (short | {"save_folder": str(folder)} | (settings or {})).items():
        assert hasattr(config, key)
        setattr(config, key, value)
    model = MlpConfig(num_cells=[32, 16], layer_class=torch.nn.Linear, activation_class=torch.nn.Tanh)
    return Experiment(
        task=SteelyardTask.LOAD_BALANCE.get_task({"overrides": SHORT} | task),
        algorithm_config=getattr(algorithms, f"{algorithm}Config").get_from_yaml(),
        model_config=model,
        seed=0,
        config=config,
    )


CASES = [(name, {"state": state}) for name in (*BOTH, *CONTINUOUS, *DISCRETE) for state in ("true", "obs")]
CASES += [(name, {"discrete": True}) for name in BOTH]  # type: ignore[dict-item]


@pytest.mark.parametrize(("algorithm", "task"), CASES, ids=lambda value: str(value))
def test_an_algorithm_plays_and_learns(tmp_path: Path, algorithm: str, task: dict[str, Any]) -> None:
    import torch

    made = experiment(tmp_path, algorithm, **task)
    assert made.continuous_actions == (algorithm not in DISCRETE and not task.get("discrete", False))
    policy = made.algorithm.get_policy_for_loss("agents")
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    made.run()
    assert made.total_frames == 160
    assert np.isfinite(made.mean_return)
    after = list(policy.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in after)
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("algorithm", CONTINUOUS)
def test_an_algorithm_that_cannot_play_discrete_actions_says_so(tmp_path: Path, algorithm: str) -> None:
    with pytest.raises(ValueError, match="not compatible with the action space of task LoadBalanceTask"):
        experiment(tmp_path, algorithm, discrete=True)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("algorithm", ["Mappo", "Masac", "Maddpg"])
def test_an_exported_actor_is_the_trained_one(tmp_path: Path, algorithm: str, share: bool) -> None:
    """Native inference on raw observations gives BenchMARL's deterministic actions on its normalised ones."""
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    from steelyard.trainers.benchmarl_export import export_benchmarl

    made = experiment(tmp_path, algorithm, settings={"share_policy_params": share})
    made.run()
    path = tmp_path / "policy.bin"
    blob = export_benchmarl(made, path)
    assert path.read_bytes() == blob
    assert len(native.decode_policy(blob)["actors"]) == (1 if share else 2)
    policy = native.Policy(str(path), num_agents=2)
    env = made.test_env
    env.base_env.set_seed(4)
    act = made.algorithm.get_policy_for_loss("agents")
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        theirs = env.rollout(20, policy=act, break_when_any_done=False)["agents", "action"].detach().numpy()
    batch = LoadBalanceBatch("cluster-a-cpu", 2, overrides=SHORT)
    seen, moved = batch.reset(seed=4), 0.0
    for step in range(20):
        for world in range(2):
            ours = np.stack([policy.infer(agent, seen[world, agent]) for agent in range(2)])
            np.testing.assert_allclose(ours, theirs[world, step], rtol=1e-4, atol=1e-5)
            moved = max(moved, float(np.abs(ours).max()))
        seen = batch.step(theirs[:, step])[0]
    assert moved > 0.01


def test_what_a_policy_file_cannot_hold_is_refused(tmp_path: Path) -> None:
    import torch

    from steelyard.trainers.benchmarl_export import export_benchmarl

    path = tmp_path / "policy.bin"
    with pytest.raises(UserError, match=r"qmix was trained on discrete actions"):
        export_benchmarl(experiment(tmp_path, "Qmix"), path)
    made = experiment(tmp_path, "Mappo")
    made.model_config.activation_class = torch.nn.SiLU
    with pytest.raises(UserError, match="activation_class is SiLU; allowed: ReLU, Tanh or Sigmoid"):
        export_benchmarl(made, path)
    made.model_config.activation_class = torch.nn.Tanh
    with torch.no_grad():
        next(made.algorithm.get_policy_for_loss("agents").parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="export: "):
        export_benchmarl(made, path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"scenario": "cluster-z"}, "cluster-z"),
        ({"senario": "cluster-a-cpu"}, "task.senario: unknown key (did you mean 'scenario'?)"),
        ({"reward": "happiness"}, "happiness"),
        ({"measure": "guess"}, "guess"),
        ({"state": "all"}, "task.state = 'all': must be true or obs"),
        ({"discrete": "yes"}, "task.discrete"),
        ({"overrides": ["pool.balancers=0"]}, "pool.balancers"),
    ],
)
def test_bad_options_are_one_line(config: dict[str, Any], words: str) -> None:
    from steelyard.trainers.benchmarl_task import SteelyardTask

    with pytest.raises(UserError, match=re.escape(words)):
        SteelyardTask.LOAD_BALANCE.get_task(config)


def test_what_a_learner_sees_is_normalised() -> None:
    """Under equal weights: observations within the limit, features and rewards near mean 0, variance 1."""
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.envs import Compose, TransformedEnv

    from steelyard.trainers.benchmarl_task import CLIP, SteelyardTask

    task: Any = SteelyardTask.LOAD_BALANCE.get_task({})
    env = task.get_env_fun(num_envs=16, continuous_actions=True, seed=3, device="cpu")()
    whole = TransformedEnv(env, Compose(*task.get_env_transforms(env)))
    keys = [("agents", "observation")], [("agents", "action")]
    rollout = whole.rollout(120, policy=TensorDictModule(lambda seen: torch.zeros(16, 2, 8), *keys))
    seen, state = rollout["agents", "observation"], rollout["state"]
    assert seen.abs().max() <= CLIP
    assert state.shape[-1] == 2 * 101 + 8
    torch.testing.assert_close(state[..., :101], seen[:, :, 0])
    flows = seen[..., :88].unflatten(-1, (8, 11))[..., 0]
    for values in (flows, state[..., -8:], rollout["next", "agents", "reward"]):
        assert abs(values.mean().item()) < 0.2
        assert 0.7 < values.std().item() < 1.3


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/benchmarl.md as printed, with fewer steps."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    short, count = re.subn(r"max_n_frames = [\d_]+", "max_n_frames = 7680", code)
    assert count == 1
    script = tmp_path / "example.py"
    script.write_text(short)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))
    assert native.Policy(str(tmp_path / "mappo.bin"), num_agents=2).num_servers == 8
