"""The cluster world once more, in plain Python and in the order of its definition (network-lb.md).

Nothing here is fast: every job carries its remaining work, every server is advanced from event to event,
scores are compared as fractions and the oracle runs a copy of the server to the end. What it shares with the
native simulator is only what makes both comparable: the random streams (a draw is a function of seed, stream
and key) and the digest of decisions. Latency is zero.
"""

import copy
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np

from steelyard import native

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
CHOICE_SALT = 0x5BD1E9955BD1E995
STREAM_GAP, STREAM_ARRIVAL_STATE, STREAM_HASH, STREAM_RESERVOIR, STREAM_STAGE = 1, 2, 3, 7, 64


def mix64(x: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stream_key(seed: int, stream: int) -> int:
    return mix64(mix64((seed + GOLDEN) & MASK) ^ (stream * GOLDEN & MASK))


def draw(stream: int, key: int) -> int:
    return mix64((stream + (key + 1) * GOLDEN) & MASK)


def below(word: int, n: int) -> int:
    return word * n >> 64


def unit_open(word: int) -> float:
    return ((word >> 12) + 0.5) * 2.0**-52


def two_below(word: int, n: int) -> tuple[int, int]:
    first = below(word, n)
    second = below(mix64(word ^ GOLDEN), n - 1)
    return first, second if second < first else second + 1


def weight_q16(weight: float) -> int:
    return max(1, int(np.float32(weight) * np.float32(65536) + np.float32(0.5)))


def reservoir(
    samples: Iterable[tuple[float, float]], stream: int, size: int = 128
) -> list[tuple[float, float]]:
    """What seed 002 Alg. 3 keeps of (time, value) samples: each overwrites a place drawn at random.

    A place not used yet is as good as any other such place: the next one is taken.
    """
    kept: list[tuple[float, float]] = []
    for number, sample in enumerate(samples):
        place = below(draw(stream, number), size)
        if place < len(kept):
            kept[place] = sample
        else:
            kept.append(sample)
    return kept


class Job:
    """A flow: demands [s] of its stages, which stage it is in and how much of that is left."""

    def __init__(self, flow: int, balancer: int, opened: float, demands: list[float]) -> None:
        self.flow, self.balancer, self.opened, self.demands = flow, balancer, opened, demands
        self.stage, self.left = 0, 0.0


class Server:
    """CPU by seed 002 eq. (42), its line in order of arrival, and one processor-sharing IO device."""

    def __init__(self, config: native.ServerConfig, kinds: list[str]) -> None:
        self.workers, self.speed, self.kinds = config.workers, config.speed, kinds
        self.cap = config.workers if config.cpu == "fifo" else (config.ps_cap or math.inf)
        self.cpu: list[Job] = []
        self.io: list[Job] = []
        self.line: list[Job] = []

    def count(self) -> int:
        return len(self.cpu) + len(self.io) + len(self.line)

    def cpu_rate(self) -> float:
        """Work per second of each job in service."""
        return self.speed * (1 if len(self.cpu) <= self.workers else self.workers / len(self.cpu))

    def io_rate(self) -> float:
        return 1 / max(1, len(self.io))

    def enter(self, job: Job) -> bool:
        """Puts a job at the head of its current stage; True when it has no stage left."""
        if job.stage == len(self.kinds):
            return True
        job.left = job.demands[job.stage]
        if self.kinds[job.stage] == "io":
            self.io.append(job)
        elif len(self.cpu) < self.cap and not self.line:
            self.cpu.append(job)
        else:
            self.line.append(job)
        return False

    def until_next(self) -> float:
        """Time [s] until the first job in service is done; infinite when idle."""
        waits = [job.left / self.cpu_rate() for job in self.cpu] + [
            job.left / self.io_rate() for job in self.io
        ]
        return min(waits, default=math.inf)

    def advance(self, elapsed: float) -> None:
        cpu_work, io_work = elapsed * self.cpu_rate(), elapsed * self.io_rate()
        for job in self.cpu:
            job.left -= cpu_work
        for job in self.io:
            job.left -= io_work

    def finish_first(self) -> Job | None:
        """Moves the job that is done to its next stage; the job when that was its last."""
        jobs = min((jobs for jobs in (self.cpu, self.io) if jobs), key=lambda jobs: self.shortest_wait(jobs))
        job = min(jobs, key=lambda job: job.left)
        jobs.remove(job)
        while self.line and len(self.cpu) < self.cap:
            self.cpu.append(self.line.pop(0))
        job.stage += 1
        return job if self.enter(job) else None

    def shortest_wait(self, jobs: list[Job]) -> float:
        rate = self.cpu_rate() if jobs is self.cpu else self.io_rate()
        return min(job.left for job in jobs) / rate

    def completion_of(self, job: Job) -> float:
        """Seconds until `job` would be done here if it came now and nothing after it."""
        alone, clock = copy.deepcopy(self), 0.0
        alone.enter(newcomer := copy.deepcopy(job))
        while newcomer.stage < len(self.kinds):
            clock += (wait := alone.until_next())
            alone.advance(wait)
            alone.finish_first()
        return clock

    def remaining(self) -> float:
        """CPU work over the capacity of all workers plus IO work, of all stages to come [s]."""
        total = 0.0
        for job in self.cpu + self.io + self.line:
            for at, work in enumerate(job.demands[job.stage :], job.stage):
                left = job.left if at == job.stage else work
                total += left / (self.workers * self.speed if self.kinds[at] == "cpu" else 1)
        return total


class ReferenceWorld:
    """One episode of a Poisson world under one rule, without warm-up."""

    def __init__(self, config: native.ClusterConfig, by: native.RuleConfig, seed: int) -> None:
        self.config, self.name, self.seed = config, by.name, seed
        kinds = [stage.kind for stage in config.stages]
        self.servers = [Server(server, kinds) for server in config.servers]
        self.n, self.m = len(self.servers), config.num_load_balancers
        weights = [weight_q16(w) for w in by.weights or [1.0] * self.n]
        self.weights_at: Callable[[float, int], list[int]] = lambda clock, balancer: weights
        self.own = [[0] * self.n for _ in range(self.m)]  # flows of a balancer on a server
        self.reported = [[0] * self.n for _ in range(self.m)]  # Charon: load in the last reply, +1 per choice
        self.turn = [0] * self.m
        self.noise = by.noise
        self.clock = 0.0
        self.digest = 0  # of the decisions before the horizon
        self.measured = 0  # flows that arrived before the horizon
        self.done: dict[int, float] = {}  # such a flow -> its sojourn [s]

    def run(self) -> None:
        """Until every flow that arrived before the horizon is done; others go on arriving meanwhile."""
        gaps, hashes = stream_key(self.seed, STREAM_GAP), stream_key(self.seed, STREAM_HASH)
        at, flow = 0.0, 0
        while at < self.config.horizon_s or len(self.done) < self.measured:
            at -= math.log(unit_open(draw(gaps, flow))) / self.config.arrival.rate
            self.advance_to(at)
            self.arrive(flow, draw(hashes, flow))
            flow += 1

    def advance_to(self, at: float) -> None:
        """Everything that the servers do until time `at`."""
        while True:
            waits = [server.until_next() for server in self.servers]
            first = min(range(self.n), key=waits.__getitem__)
            done = waits[first] <= at - self.clock
            step = waits[first] if done else at - self.clock
            for server in self.servers:
                server.advance(step)
            self.clock += step
            if not done:
                return
            if (job := self.servers[first].finish_first()) is not None:
                self.own[job.balancer][first] -= 1
                self.completed(job, first)
                if job.opened < self.config.horizon_s:
                    self.done[job.flow] = self.clock - job.opened

    def completed(self, job: Job, j: int) -> None:
        """For rules that learn from what is done; server j no longer counts the job."""

    def arrive(self, flow: int, flow_hash: int) -> None:
        balancer = below(flow_hash, self.m)
        demands = [
            stage.demand.sample(draw(stream_key(self.seed, STREAM_STAGE + at), flow))
            for at, stage in enumerate(self.config.stages)
        ]
        job = Job(flow, balancer, self.clock, demands)
        j = self.choose(balancer, flow_hash, job)
        if self.clock < self.config.horizon_s:
            self.digest = mix64(self.digest ^ ((flow * GOLDEN + j + 1) & MASK))
            self.measured += 1
        self.own[balancer][j] += 1
        self.servers[j].enter(job)
        self.reported[balancer][j] = self.servers[j].count()

    def choose(self, balancer: int, flow_hash: int, job: Job) -> int:
        """The server for a new flow by the rule's definition."""
        word = mix64(flow_hash ^ CHOICE_SALT)
        if self.name == "ecmp":
            return below(word, self.n)
        if self.name == "rr":
            self.turn[balancer] += 1
            return (self.turn[balancer] - 1) % self.n
        if self.name == "oracle_srt":
            return self.least(lambda j: self.servers[j].remaining(), mix64(flow_hash))
        return self.least(self.score_of(balancer, word), word)

    def score_of(self, balancer: int, word: int) -> Callable[[int], Fraction]:
        """(q + 1) / w of a server, with the q that the rule looks at."""
        if self.name == "charon_sapp":
            return lambda j: Fraction(self.reported[balancer][j])
        if self.name == "least_load_noise":
            span = int(self.noise * 256) + 1
            return lambda j: Fraction(self.servers[j].count() * 256 + below(draw(word, j), span))
        if self.name.startswith("gsq"):
            return lambda j: Fraction(self.servers[j].count())
        if self.name.startswith("lsq"):
            return lambda j: Fraction(self.own[balancer][j])
        weights = self.weights_at(self.clock, balancer)
        return lambda j: Fraction(self.own[balancer][j] + 1, weights[j])

    def least(self, cost: Callable[[int], Fraction | float], word: int) -> int:
        """The server of least cost: of two that the word draws, or of all from a place that it draws."""
        if self.name.endswith("2") or self.name == "charon_sapp":
            candidates = list(two_below(word, self.n))
        else:
            start = below(word, self.n)
            candidates = [(start + i) % self.n for i in range(self.n)]
        return min(candidates, key=cost)
