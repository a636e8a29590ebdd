"""The fluid world: the load-balancing game as Distr-LB writes it down, without flows, queues or delays.

Yao, Ding, "Learning Distributed and Fair Policies for Network Load Balancing as Markov Potential Game"
(NeurIPS 2022), Sec. 3.1, Algorithm 1 and footnote 4. In every step agent i splits its work w_i over the
servers,

    l_ij = (X_ij + w_i alpha_ij) / v_j,          X_ij <- max(0, X_ij + w_i alpha_ij - v_j / M),

where X_ij is agent i's backlog on server j, v_j what the server does in a step and M the number of agents:
every agent *owns* the share v_j / M of every server, used or not. It is a reference for the potential audit:
only here is the marginal reward an exact potential over more than one step. With `shared=True` a server does
all of v_j, in proportion to the backlogs, as a real one would; then one agent's load delays another's.

    >>> world = FluidWorld([1.0, 1.0], num_agents=2)
    >>> world.step([1.0, 1.0], [[1.0, 0.0], [0.5, 0.5]])
    array([[1. , 0. ],
           [0.5, 0.5]])
    >>> world.backlog
    array([[0.5, 0. ],
           [0. , 0. ]])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.envs.errors import bad_value


class FluidWorld:
    """M agents before N servers; `backlog` (M, N) is the work that is left, in units of work."""

    def __init__(self, rates: ArrayLike, num_agents: int, *, shared: bool = False):
        """rates: (N,) work that each server does in a step, above 0. UserError for anything else."""
        self.rates = np.array(rates, dtype=np.float64)
        if self.rates.ndim != 1 or self.rates.size == 0 or not (self.rates > 0).all():
            raise bad_value("rates", rates, "a vector of one or more numbers above 0")
        if num_agents < 1:
            raise bad_value("num_agents", num_agents, "1 or more")
        self.shared = shared
        self.backlog = np.zeros((num_agents, self.rates.size))

    def step(self, work: ArrayLike, split: ArrayLike) -> NDArray[np.float64]:
        """One step: work (M,) of each agent, split (M, N) of it, rows that sum to 1. The loads l (M, N), in
        steps of service, after the work has come and before it is served. UserError for bad input.
        """
        amount, shares = np.asarray(work, dtype=np.float64), np.asarray(split, dtype=np.float64)
        if amount.shape != self.backlog.shape[:1] or not (amount >= 0).all():
            raise bad_value("work", work, f"{len(self.backlog)} numbers, 0 or more")
        if shares.shape != self.backlog.shape or not (shares >= 0).all():
            raise bad_value("split", split, f"numbers, 0 or more, of shape {self.backlog.shape}")
        if not np.allclose(shares.sum(1), 1):
            raise bad_value("split", split, "rows that sum to 1")
        self.backlog = self.backlog + amount[:, None] * shares
        loads = self.backlog / self.rates
        if self.shared:
            total = self.backlog.sum(0)
            left = np.maximum(0.0, total - self.rates)
            self.backlog = self.backlog * np.divide(left, total, out=np.zeros_like(total), where=total > 0)
        else:
            self.backlog = np.maximum(0.0, self.backlog - self.rates / len(self.backlog))
        return loads

    def clone(self) -> FluidWorld:
        """A copy that goes its own way."""
        copied = FluidWorld(self.rates, len(self.backlog), shared=self.shared)
        copied.backlog = self.backlog.copy()
        return copied
