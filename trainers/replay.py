"""Replay of whole episodes for one agent, sampled as chunks with the recurrent state stored at their start.

Storage and sampling are TorchRL's (`LazyTensorStorage`, `RandomSampler`), one entry per episode. A chunk
starts on a multiple of `stride`, where the actor's state was stored at collection; the learner burns in over
the first steps so that a state left by an older policy is forgotten (Kapturowski et al., R2D2, 2019).
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler

logging.getLogger("torchrl").setLevel(logging.WARNING)  # it reports every storage on the terminal


class SequenceReplay:
    """Ring of `capacity` episodes of `steps` steps; every draw comes from `generator`."""

    def __init__(
        self, capacity: int, steps: int, length: int, stride: int, batch: int, generator: torch.Generator
    ) -> None:
        if not 0 < length <= steps:
            raise ValueError(f"chunk length is {length}; allowed: 1..{steps}, the steps of an episode")
        self.steps, self.length, self.stride, self.batch = steps, length, stride, batch
        self.generator = generator
        self.starts = torch.arange(0, steps - length + 1, stride)
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(capacity), sampler=RandomSampler(), batch_size=batch
        )
        self.buffer.set_rng(generator)

    def __len__(self) -> int:
        return len(self.buffer)

    def add(self, obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, state: torch.Tensor) -> None:
        """Append E episodes.

        obs (E, T+1, obs_dim) raw, so that normalisation is always today's; action (E, T, N) in [-1, 1] or
        choice indices; reward (E, T); state (E, T, R, H), of which every `stride`-th step is kept.
        """
        kept = state[:, :: self.stride].contiguous()
        episodes = {"obs": obs, "action": action, "reward": reward, "state": kept}
        self.buffer.extend(TensorDict(episodes, batch_size=[len(obs)]))

    def sample(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """obs (L+1, B, obs_dim), action (L, B, N), reward (L+1, B), state (B, R, H) at the first step.

        reward[t+1] follows action[t]; reward[0] is of the step before the chunk (an episode's first step has
        none before it and counts its own twice).
        """
        episodes = self.buffer.sample()
        pick = torch.randint(len(self.starts), (self.batch,), generator=self.generator)
        time = self.starts[pick].unsqueeze(0) + torch.arange(self.length + 1).unsqueeze(1)  # (L+1, batch)
        which = torch.arange(self.batch)
        obs = episodes["obs"][which, time]
        action, reward = (
            episodes["action"][which, time[:-1]],
            episodes["reward"][which, (time - 1).clamp_min(0)],
        )
        return obs, action, reward, episodes["state"][which, self.starts[pick] // self.stride]

    def state(self) -> dict[str, Any]:
        """Tensors and counters for a checkpoint; resuming from it draws the same chunks."""
        filled = len(self.buffer)
        content = self.buffer.storage[:filled].to_dict() if filled else {}
        return {"content": content, "cursor": int(self.buffer.writer._cursor)}

    def load(self, state: dict[str, Any]) -> None:
        """Take over the content of `state()`."""
        if not state["content"]:
            return
        content = TensorDict({key: torch.as_tensor(value) for key, value in state["content"].items()})
        content.batch_size = [len(content["reward"])]
        self.buffer.extend(content)
        self.buffer.writer._cursor = int(state["cursor"])
