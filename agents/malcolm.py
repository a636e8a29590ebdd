"""How one server of the rack game learns, in plain PyTorch: the twin of native/core/malcolm.h.

Gradients by autograd, updates by torch.optim.AdamW. It is told the loads and the draws; estimating loads and
drawing actions are the native class's own.
"""

from __future__ import annotations

import numpy as np
import torch

from steelyard import native
from steelyard.agents.linear_actor import LinearActor, actor_inputs
from steelyard.agents.linear_critic import LinearCritic


class MalcolmLearner:
    """Actors, critic and optimisers of one server; `parameters` as in native.MalcolmServer.parameters."""

    def __init__(self, config: native.MalcolmConfig, num_servers: int, parameters: np.ndarray) -> None:
        self.config, self.num_servers = config, num_servers
        inputs = len(actor_inputs(config.inputs, torch.zeros(num_servers)))
        self.actors = [LinearActor(num_servers, inputs) for _ in range(2)]
        self.critic = LinearCritic(config.features, num_servers)
        values = torch.from_numpy(parameters.copy())
        torch.nn.utils.vector_to_parameters(values, self._all())
        actor_parameters = [p for actor in self.actors for p in actor.parameters()]
        self._optimizers = [
            _adamw(actor_parameters, config.actor_rate, config.actor_weight_decay),
            _adamw([self.critic.theta], config.critic_rate, config.critic_weight_decay),
        ]
        self._traces = [torch.zeros_like(p) for p in self._all()]
        for parameter in self._all():
            parameter.grad = torch.zeros_like(parameter)
        self.average_reward, self._cached = 0.0, 0
        self._loads: torch.Tensor | None = None
        self._draws: list[tuple[int, torch.Tensor, int]] = []

    @property
    def parameters(self) -> np.ndarray:
        """Weights and biases of migration and stealing, then theta, end to end."""
        return torch.nn.utils.parameters_to_vector(self._all()).detach().numpy()

    def draw(self, actor: int, inputs: np.ndarray, drawn: int) -> None:
        """Server `drawn` was drawn from inputs (K,), by migration (0) or stealing (1): with live_draws."""
        if self._loads is not None:
            self._draws.append((actor, torch.from_numpy(inputs.copy()), drawn))

    def window(
        self, loads: np.ndarray, drawn: np.ndarray, moves: tuple[int, int], waiting: float = 0.0
    ) -> float | None:
        """A window ends in `loads` (N,); returns the TD error, None for the first one.

        drawn (2, N): this server's draws by outcome, migration and stealing; moves: migrations and steals
        of all servers in the window. With live_draws the critic reads the expected waits: they are `loads`,
        `drawn` is not used, and `waiting` is what `still_to_wait` says.
        """
        raw, before = torch.from_numpy(loads.copy()), self._loads
        self._loads = raw
        if before is None:
            return None
        config = self.config
        reward = self._reward(before, raw, moves, waiting)
        scores = self._scores(before, drawn)
        before, now = before.clamp(max=config.load_cap), raw.clamp(max=config.load_cap)
        with torch.no_grad():
            error = reward - self.average_reward + config.discount * self.critic(now) - self.critic(before)
        self.average_reward += config.average_step * float(error)
        self._cache(float(error), torch.autograd.grad([*scores, self.critic(before)], self._all()))
        return float(error)

    def _scores(self, before: torch.Tensor, drawn: np.ndarray) -> list[torch.Tensor]:
        """Log probability of each actor's draws in the window that began in `before`."""
        config = self.config
        if config.live_draws:
            scores = [0.0 * actor(torch.zeros(actor.linear.in_features)).sum() for actor in self.actors]
            for actor, inputs, server in self._draws:
                scores[actor] = scores[actor] + self.actors[actor](inputs)[server]
            self._draws = []
            return scores
        inputs = actor_inputs(config.inputs, before, config.load_cap)
        return [
            actor.window_score(inputs, torch.from_numpy(counts.astype(np.float32)), mean=config.mean_score)
            for actor, counts in zip(self.actors, drawn, strict=True)
        ]

    def _all(self) -> list[torch.nn.Parameter]:
        return [p for module in (*self.actors, self.critic) for p in module.parameters()]

    def _reward(
        self, before: torch.Tensor, now: torch.Tensor, moves: tuple[int, int], waiting: float
    ) -> float:
        cost = self.config.migration_cost * moves[0] + self.config.steal_cost * moves[1]
        if self.config.reward == "waiting":
            return -self.config.reward_scale * waiting - cost
        if self.config.reward == "potential":
            return -self.config.reward_scale * float(_imbalance(before)) - cost
        return self.config.reward_scale * float(_mean_squared(before) - _mean_squared(now)) - cost

    def _cache(self, error: float, gradients: tuple[torch.Tensor, ...]) -> None:
        """Moves traces, adds to the batch's gradient (of what is minimised), and updates at its end."""
        config = self.config
        for parameter, trace, gradient in zip(self._all(), self._traces, gradients, strict=True):
            kept = config.critic_trace if parameter is self.critic.theta else config.actor_trace
            trace.mul_(config.discount * kept).add_(gradient)
            assert parameter.grad is not None
            parameter.grad.sub_(trace, alpha=error / config.batch)
        self._cached += 1
        if self._cached == config.batch:
            self._cached = 0
            for optimizer in self._optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)


def expected_waits(loads: np.ndarray, task: np.ndarray, workers: np.ndarray) -> np.ndarray:
    """Of one task more at each server, (N,): its load in tasks above the workers, less one, times `task`."""
    return np.maximum(loads + task - workers * task, 0)


def still_to_wait(loads: np.ndarray, task: np.ndarray, workers: np.ndarray) -> float:
    """What all tasks that wait have yet to wait: q of them at a server that starts one every `task`."""
    queue = np.maximum(loads / task - workers, 0)
    return float((queue * (queue + 1) / 2 * task).sum())


def _adamw(parameters: list[torch.nn.Parameter], rate: float, decay: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.999), eps=1e-6, weight_decay=decay)


def _gaps(loads: torch.Tensor) -> torch.Tensor:
    return loads[:, None] - loads[None, :]


def _imbalance(loads: torch.Tensor) -> torch.Tensor:
    return _gaps(loads).abs().sum() / (len(loads) - 1)


def _mean_squared(loads: torch.Tensor) -> torch.Tensor:
    return _gaps(loads).square().sum() / (len(loads) * (len(loads) - 1))
