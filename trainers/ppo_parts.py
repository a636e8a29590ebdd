"""Parts of IPPO and MAPPO: an actor with what it needs to act, actors side by side, episodes in chunks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from steelyard.agents import gaussian
from steelyard.agents.gru_actor import GruActor
from steelyard.agents.mlp_actor import MlpActor
from steelyard.agents.normaliser import Normaliser


class ActorConfig(Protocol):
    """The hyper-parameters that shape an actor; what they mean is said in ppo.py."""

    @property
    def input(self) -> str: ...
    @property
    def recurrent(self) -> bool: ...
    @property
    def discrete(self) -> bool: ...
    @property
    def hidden(self) -> int: ...
    @property
    def clip(self) -> float: ...


class Agent:
    """An actor and what it needs to act."""

    def __init__(self, config: ActorConfig, num_servers: int, seed: int) -> None:
        self.config, self.generator = config, torch.Generator().manual_seed(seed)
        kind = GruActor if config.recurrent else MlpActor
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = kind(
                num_servers, input_mode=config.input, hidden=config.hidden, discrete=config.discrete
            )
        self.averaged, self.normaliser = copy.deepcopy(self.actor), Normaliser(num_servers)

    def fast(self) -> list[nn.Parameter]:
        """Parameters that are a constant per server (or for all)."""
        if isinstance(self.actor, GruActor):
            return self.actor.slow_and_fast()[1]
        return [self.actor.head.bias]

    def slow(self) -> list[nn.Parameter]:
        """All others."""
        fast = {id(parameter) for parameter in self.fast()}
        return [parameter for parameter in self.actor.parameters() if id(parameter) not in fast]

    def normalised(self, obs: torch.Tensor) -> torch.Tensor:
        """(obs - mean) / std, limited, exactly as the exported policy does it."""
        mean, inverse = (torch.from_numpy(vector) for vector in self.normaliser.vectors())
        return ((obs - mean) * inverse).clamp(-self.config.clip, self.config.clip)

    def memory(self, batch: int) -> torch.Tensor:
        """(batch, R, H) at the start of an episode; H is 0 without recurrence."""
        if isinstance(self.actor, MlpActor):
            return torch.zeros(batch, 1, 0)
        return self.actor.initial_state(batch)

    @torch.no_grad()
    def act(self, obs: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sampled moves (B, N), Gaussian before the squash or choice indices, and the next memory, from obs
        (B, obs_dim).
        """
        heads, states = run(self.actor, self.normalised(obs).unsqueeze(1), memory)
        head, memory = heads[:, 0], states[:, 1]
        if self.config.discrete:
            chance = head.softmax(-1).flatten(0, 1)
            return torch.multinomial(chance, 1, generator=self.generator).view(head.shape[:-1]), memory
        mean, deviation = mean_and_deviation(head)
        return mean + deviation * torch.randn(mean.shape, generator=self.generator), memory

    def state(self) -> dict[str, Any]:
        """All that the rest of the training depends on."""
        return {
            "actor": self.actor.state_dict(),
            "averaged": self.averaged.state_dict(),
            "normaliser": self.normaliser.state(),
            "generator": self.generator.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from `state()`."""
        self.actor.load_state_dict(state["actor"])
        self.averaged.load_state_dict(state["averaged"])
        self.normaliser.load({name: array.numpy() for name, array in state["normaliser"].items()})
        self.generator.set_state(state["generator"])


def run(
    actor: GruActor | MlpActor, obs: torch.Tensor, memory: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads (B, L, N, 2 or 3) and the memory before each step and after the last, (B, L+1, R, H), from obs
    (B, L, obs_dim) normalised and memory (B, R, H).
    """
    if isinstance(actor, MlpActor):
        return actor(obs), memory.unsqueeze(1).expand(-1, obs.shape[1] + 1, -1, -1)
    output = actor(obs.transpose(0, 1), memory)  # a GRU's features are its states
    return output.head.transpose(0, 1), torch.cat([memory.unsqueeze(1), output.features.transpose(0, 1)], 1)


def mean_and_deviation(head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the Gaussian before the squash, each (..., N), from head (..., N, 2)."""
    return head[..., 0], head[..., 1].clamp(gaussian.LOG_STD_MIN, gaussian.LOG_STD_MAX).exp()


def moves(**parameters: Any) -> Independent:
    """The distribution of a joint move over servers: of logits (..., N, 3), or of loc and scale (..., N)."""
    return Independent(Categorical(**parameters) if "logits" in parameters else Normal(**parameters), 1)


class Team(nn.Module):
    """The actors of a learner side by side."""

    def __init__(self, agents: Sequence[Agent], discrete: bool) -> None:
        super().__init__()
        self.discrete, self.agents = discrete, list(agents)
        self.actors = nn.ModuleList(agent.actor for agent in agents)

    def forward(self, obs: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Parameters of `moves`, (C, L, M, ..), from obs (C, L, M, obs_dim) and memory (C, M, R, H)."""
        heads = [run(agent.actor, obs[:, :, i], memory[:, i])[0] for i, agent in enumerate(self.agents)]
        head = torch.stack(heads, 2)
        return (head,) if self.discrete else mean_and_deviation(head)


def cut(whole: dict[str, torch.Tensor], length: int) -> TensorDict:
    """Episodes (B, T, ..) as chunks (C, L, ..), the last of an episode overlapping if it must; of `memory`
    only what stands at a chunk's start, (C, M, R, H).
    """
    episodes, steps = whole["obs"].shape[:2]
    starts = [min(start, steps - length) for start in range(0, steps, length)]
    parts = {
        name: torch.cat([value[:, start : start + length] for start in starts])
        for name, value in whole.items()
    }
    parts["memory"] = parts["memory"][:, 0]
    return TensorDict(parts, batch_size=[episodes * len(starts)])
