"""SED on a one-stage CPU cluster, written the obvious way in SimPy: a reference for speed and truth.

It shares no code and no random numbers with the native simulator, so means agree in distribution, not flow
by flow. It has what SED needs (flow counts per balancer, latencies, FIFO workers, admission limit) and none
of the features that agents observe.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import simpy

from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario


@dataclass(frozen=True)
class Outcome:
    """What one episode gave."""

    flows: int
    sojourn_mean_s: float
    cpu_s: float


@dataclass
class SedWorld:
    """M balancers, each choosing argmin (q + 1) / w from its own flow counts, before N FIFO servers."""

    scenario: Scenario
    seed: int
    sojourns_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.env = simpy.Environment()
        self.random = random.Random(self.seed)
        self.weights = self.scenario.configured_weights()
        self.speeds = [server.speed for server in self.scenario.servers]
        self.workers = [simpy.Resource(self.env, server.workers) for server in self.scenario.servers]
        self.in_system = [0] * self.scenario.num_servers
        self.flows_on = [[0] * self.scenario.num_servers for _ in range(self.scenario.num_agents)]

    def run(self) -> None:
        """Arrivals until the horizon, every flow to completion."""
        self.env.process(self.arrivals())
        self.env.run()

    def arrivals(self) -> simpy.events.ProcessGenerator:
        """Poisson arrivals, each given to a balancer at random."""
        rate = self.scenario.workload.arrival.mean_rate()
        while True:
            yield self.env.timeout(self.random.expovariate(rate))
            if self.env.now >= self.scenario.episode.horizon_s:
                return
            self.env.process(self.flow(self.random.randrange(self.scenario.num_agents)))

    def choose(self, flows_on: list[int]) -> int:
        """Least (q + 1) / w, ties at random."""
        scores = [(q + 1) / w for q, w in zip(flows_on, self.weights, strict=True)]
        least = min(scores)
        return self.random.choice([j for j, score in enumerate(scores) if score == least])

    def hop(self) -> simpy.events.Timeout:
        """One hop of the network and the processing at its end."""
        latency = self.scenario.latency
        network = self.random.uniform(latency.hop_low_s, latency.hop_high_s)
        return self.env.timeout(network + self.random.uniform(latency.node_low_s, latency.node_high_s))

    def flow(self, balancer: int) -> simpy.events.ProcessGenerator:
        """From the SYN at the balancer to the FIN that it sees."""
        flows_on = self.flows_on[balancer]
        opened = self.env.now
        server = self.choose(flows_on)
        flows_on[server] += 1
        yield self.hop()
        rejected = self.in_system[server] > self.scenario.pool.admission_limit
        if not rejected:
            yield from self.serve(server)
        yield self.hop()
        penalty = self.scenario.pool.reject_sojourn_s
        self.sojourns_s.append(penalty if rejected else self.env.now - opened)
        yield self.hop()
        flows_on[server] -= 1

    def serve(self, server: int) -> simpy.events.ProcessGenerator:
        """Wait for a worker and occupy it."""
        self.in_system[server] += 1
        with self.workers[server].request() as worker:
            yield worker
            mean_s = self.scenario.workload.stages[0].demand.mean()
            yield self.env.timeout(self.random.expovariate(1 / mean_s) / self.speeds[server])
        self.in_system[server] -= 1


def simulate(scenario: Scenario, seed: int) -> Outcome:
    """One episode of SED. UserError for a scenario beyond this reference."""
    stages = scenario.workload.stages
    simple = len(stages) == 1 and stages[0].kind == "cpu" and stages[0].demand.kind == "exponential"
    if not simple or scenario.workload.arrival.kind != "poisson" or scenario.events:
        raise UserError(
            f"scenario {scenario.name}: the SimPy reference knows Poisson arrivals and one CPU stage only"
        )
    began = time.process_time()
    world = SedWorld(scenario, seed)
    world.run()
    flows = len(world.sojourns_s)
    return Outcome(flows, sum(world.sojourns_s) / flows, time.process_time() - began)
