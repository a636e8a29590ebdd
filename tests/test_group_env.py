"""The TorchRL environment with all balancers in one group: it is the batch, and its discrete steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from steelyard.envs.batch import LoadBalanceBatch
from steelyard.envs.errors import UserError

SHORT = ("episode.horizon_s=5",)  # 10 steps

pytestmark = pytest.mark.slow  # TorchRL takes seconds to import
both_actions = pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])


def make(num_envs: int = 3, **options: Any) -> Any:
    from steelyard.envs.torchrl_group_env import LoadBalanceGroupEnv

    return LoadBalanceGroupEnv("cluster-a-cpu", num_envs, overrides=SHORT, **options)


@both_actions
@pytest.mark.parametrize("state", ["true", "obs"])
def test_contract(discrete: bool, state: str) -> None:
    from torchrl.envs.utils import check_env_specs

    check_env_specs(make(discrete=discrete, state=state))


def test_is_the_batch() -> None:
    env, batch = make(seed=11, state="true"), LoadBalanceBatch("cluster-a-cpu", 3, overrides=SHORT)
    rollout = env.rollout(10, break_when_any_done=False)
    assert rollout.batch_size == (3, 10)
    seen = batch.reset(seed=11)
    for step in range(10):
        moment = rollout[:, step]
        np.testing.assert_array_equal(moment["agents", "observation"].numpy(), seen)
        state = np.concatenate([seen.reshape(3, -1), np.log1p(batch.remaining_time())], 1)
        np.testing.assert_allclose(moment["state"].numpy(), state, rtol=1e-6)
        seen, rewards, truncated = batch.step(moment["agents", "action"].numpy())
        np.testing.assert_array_equal(moment["next", "agents", "reward"][..., 0].numpy(), rewards)
        np.testing.assert_array_equal(moment["next", "truncated"][:, 0].numpy(), truncated)
    assert rollout["next", "done"][:, -1].all()
    assert not rollout["next", "terminated"].any()
    assert rollout["state"][..., -8:].max() > 0


def test_a_discrete_action_moves_one_level_by_one() -> None:
    """The observation's last N entries are the weights in force, log2(w) / 2."""
    import torch

    env = make(1, discrete=True)
    assert env.full_action_spec_unbatched["agents", "action"].space.n == 17
    moment = env.reset(seed=0)
    wanted = np.zeros((2, 8), dtype=int)
    # of agent 1: server 0 up, up, up at the end of its range, down; server 1 and then 0 down below theirs
    for first, second in ((0, 1), (8, 1), (8, 1), (16, 9), (3, 10), (0, 9), (0, 9)):
        moment["agents", "action"] = torch.tensor([[first, second]])
        moment = env.step(moment)["next"]
        for agent, action in enumerate((first, second)):
            if action:
                server, change = (action - 1) % 8, 1 if action <= 8 else -1
                wanted[agent, server] = np.clip(wanted[agent, server] + change, 0, 2)
        weights = np.exp2(2 * moment["agents", "observation"][0, :, -8:].numpy())
        np.testing.assert_allclose(weights, np.array([1, 1.5, 2])[wanted], rtol=1e-6)
    assert wanted.tolist() == [[0, 0, 1, 0, 0, 0, 0, 1], [0] * 8]


def test_levels_start_over_with_the_episode() -> None:
    env = make(2, discrete=True, seed=1)
    rollout = env.rollout(25, break_when_any_done=False)
    over = rollout["next", "done"][..., 0]
    assert over[:, 9].all()
    assert not rollout["agents", "observation"][:, 10, :, -8:].any()
    assert env._levels.any()


def test_worlds_reset_one_by_one_keep_the_others_levels() -> None:
    import torch
    from tensordict import TensorDict

    env = make(2, discrete=True)
    moment = env.reset(seed=3)
    moment["agents", "action"] = torch.ones(2, 2, dtype=torch.int64)
    env.step(moment)
    mask = torch.tensor([[True], [False]])
    env.reset(TensorDict({"_reset": mask}, batch_size=[2]))
    assert env._levels[:, :, 0].tolist() == [[0, 0], [1, 1]]


def test_refusals() -> None:
    with pytest.raises(UserError, match="state = 'all': must be true or obs"):
        make(state="all")
    with pytest.raises(UserError, match="happiness"):
        make(reward="happiness")
