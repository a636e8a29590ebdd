"""The rules that production runs: each against its definition in plain Python, what it asks, what it takes."""

import json
import math
from statistics import median_low

import numpy as np
import pytest
from reference import (
    CHOICE_SALT,
    STREAM_RESERVOIR,
    Job,
    ReferenceWorld,
    below,
    draw,
    mix64,
    stream_key,
    two_below,
    unit_open,
)
from worlds import cluster, event, exponential, rule, server, stage, standard_error

from steelyard import native
from steelyard.agents.rules import LEARNED
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario
from steelyard.trainers import cli

POOL = [server(2, 1.5), server(1), server(1, 0.75), server(2)]
CAPACITY = [3.0, 1.0, 0.75, 2.0]
RULES = ["least_request", "peak_ewma", "c3", "prequal"]
PROBE_SALT = 0x70726F6265
CLUSTER_A = Scenario.load("cluster-a-cpu")


class PeakEwma(ReferenceWorld):
    """Finagle: a sample above the average replaces it, another one pulls it down by exp(-elapsed / decay); to
    look at a server is a sample of 0.
    """

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.decay_s = by.decay_s
        self.average: dict[tuple[int, int], tuple[float, float]] = {}  # (balancer, server) -> s, at

    def sample(self, key: tuple[int, int], rtt_s: float) -> float:
        average, at = self.average.get(key, (0.0, 0.0))
        keep = math.exp((at - self.clock) / self.decay_s)
        average = rtt_s if rtt_s > average else average * keep + rtt_s * (1 - keep)
        self.average[key] = (average, self.clock)
        return average

    def completed(self, job: Job, j: int) -> None:
        self.sample((job.balancer, j), self.clock - job.opened)

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        def cost(j: int) -> float:
            active = self.own[balancer][j]
            if (balancer, j) not in self.average:
                return active and 1e6 + active
            return self.sample((balancer, j), 0.0) * (active + 1)

        return min(two_below(mix64(flow_hash ^ CHOICE_SALT), self.n), key=cost)


class LeastRequest(ReferenceWorld):
    """Envoy, unequal weights: the server whose turn is due first; its next one is due (active + 1) / w later."""

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.weights = by.weights
        streams = [draw(stream_key(seed, STREAM_RESERVOIR), i) for i in range(self.m)]
        self.due = [
            [unit_open(draw(draw(stream, 2), j)) / w for j, w in enumerate(by.weights)] for stream in streams
        ]

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        due = self.due[balancer]
        j = min(range(self.n), key=due.__getitem__)
        due[j] += (self.own[balancer][j] + 1) / self.weights[j]
        return j


class C3(ReferenceWorld):
    """Suresh et al., Sec. 3.1: R - 1/mu + qhat^3 / mu, qhat = 1 + outstanding x clients + queue."""

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.newest = by.newest
        self.heard: dict[tuple[int, int], np.ndarray] = {}  # R, 1/mu, queue

    def completed(self, job: Job, j: int) -> None:
        service_s = sum(job.demands) / self.servers[j].speed
        new = np.array([self.clock - job.opened, service_s, self.servers[j].count()])
        old = self.heard.get((job.balancer, j), new)
        self.heard[job.balancer, j] = self.newest * new + (1 - self.newest) * old

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        def score(j: int) -> float:
            if (balancer, j) not in self.heard:
                return 0.0
            response_s, service_s, queue = self.heard[balancer, j]
            return response_s - service_s + (1 + self.own[balancer][j] * self.m + queue) ** 3 * service_s

        return self.least(score, mix64(flow_hash ^ CHOICE_SALT))


class Prequal(ReferenceWorld):
    """Wydrowski et al., Sec. 4, in a pool so small that every answer guides one flow. An answer is
    [server, flows in it, latency, received].
    """

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        super().__init__(config, by, seed)
        self.by = by
        self.found: dict[int, int] = {}  # flow -> others in its server when it came
        self.latencies: list[list[tuple[int, float]]] = [[] for _ in range(self.n)]
        self.pool: list[list[list[float]]] = [[] for _ in range(self.m)]
        self.recent: list[list[int]] = [[] for _ in range(self.m)]
        self.removals = [0] * self.m

    def completed(self, job: Job, j: int) -> None:
        self.latencies[j].append((self.found[job.flow], self.clock - job.opened))

    def latency_of(self, j: int) -> float:
        """Median at the current count; of at least three flows, if there are as many."""
        last, rif = self.latencies[j][-64:], self.servers[j].count()
        distances = sorted(abs(found - rif) for found, _ in last)
        near = [latency for found, latency in last if abs(found - rif) <= distances[:3][-1]]
        return median_low(near) if near else 0.0

    def rank(self, balancer: int, answer: list[float]) -> tuple[float, ...]:
        """Cold before hot; the cold by latency, the hot by count."""
        recent = sorted(self.recent[balancer][-64:])
        hot = answer[1] > recent[math.ceil(self.by.rif_quantile * len(recent)) - 1]
        return (1, answer[1]) if hot else (0, answer[2], answer[1])

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        pool = [a for a in self.pool[balancer] if self.clock - a[3] <= self.by.probe_age_s]
        chosen = below(mix64(flow_hash ^ CHOICE_SALT), self.n)
        if len(pool) >= 2:
            best = min(pool, key=lambda answer: self.rank(balancer, answer))
            pool.remove(best)
            chosen = int(best[0])
        for answer in pool:
            answer[1] += answer[0] == chosen
        if pool:
            worst = max(pool, key=lambda answer: self.rank(balancer, answer)[:2])
            pool.remove(worst if self.removals[balancer] % 2 else pool[0])
            self.removals[balancer] += 1
        self.pool[balancer] = pool
        self.probe(balancer, mix64(flow_hash ^ PROBE_SALT))
        self.found[job.flow] = self.servers[chosen].count()
        return chosen

    def probe(self, balancer: int, word: int) -> None:
        """Different servers by Floyd's sampling; their answers come before the flow does."""
        count = int(self.by.probes)
        targets: list[int] = []
        for k in range(count):
            last = self.n - count + k
            drawn = below(draw(word, k), last + 1)
            targets.append(last if drawn in targets else drawn)
        for j in targets:
            rif = self.servers[j].count()
            self.pool[balancer] = [a for a in self.pool[balancer] if a[0] != j]
            self.pool[balancer].append([j, rif, self.latency_of(j), self.clock])
            self.recent[balancer].append(rif)


REFERENCES = {"least_request": LeastRequest, "peak_ewma": PeakEwma, "c3": C3, "prequal": Prequal}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("least_request", {}),
        ("peak_ewma", {}),
        ("peak_ewma", {"decay_s": 0.5}),
        ("c3", {}),
        ("c3", {"newest": 0.2}),
        ("prequal", {}),
        ("prequal", {"probes": 2, "probe_age_s": 0.25, "rif_quantile": 0.5}),
    ],
)
def test_decisions_are_those_of_the_python_world(name, fields, seed):
    config = cluster(POOL, 4.2, [stage("cpu", exponential())], num_load_balancers=2, horizon_s=70.0)
    by = rule(name, CAPACITY if native.RuleConfig(name).uses_weights else [], **fields)
    reference = REFERENCES[name](config, by, seed)
    reference.run()
    world = native.World(config, by, seed)
    world.run_until(config.horizon_s)
    assert world.digest == reference.digest
