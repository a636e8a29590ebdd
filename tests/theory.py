"""Exact results of queueing theory, each with its source. Rates in 1/s, times in s.

Texts: Kleinrock, "Queueing Systems" vol. 1 (1975); Asmussen, "Applied Probability and Queues" (2nd ed. 2003);
Baskett, Chandy, Muntz, Palacios, JACM 22 (1975), "BCMP".
"""

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import splu

State = tuple
Transitions = Callable[[State], Iterable[tuple[float, State]]]


def mm1_sojourn_s(rate: float, service_rate: float) -> float:
    """Mean sojourn of M/M/1 (Kleinrock eq. 3.26)."""
    return 1 / (service_rate - rate)


def mm1_sojourn_quantile_s(rate: float, service_rate: float, q: float) -> float:
    """The sojourn of M/M/1 FIFO is exponential with rate mu - lambda (Kleinrock eq. 5.118)."""
    return -math.log1p(-q) / (service_rate - rate)


def erlang_c(servers: int, offered: float) -> float:
    """Probability that a customer of M/M/c waits; `offered` = lambda / mu < c (Kleinrock eq. 3.40)."""
    term, total = 1.0, 0.0
    for k in range(servers):
        total += term
        term *= offered / (k + 1)
    last = term * servers / (servers - offered)
    return last / (total + last)


def mmc_waiting_s(rate: float, mean_s: float, servers: int) -> float:
    """Mean waiting time of M/M/c (Kleinrock Sec. 3.5)."""
    return erlang_c(servers, rate * mean_s) / (servers / mean_s - rate)


def mmc_sojourn_s(rate: float, mean_s: float, servers: int) -> float:
    return mmc_waiting_s(rate, mean_s, servers) + mean_s


def mmc_sojourn_quantile_s(rate: float, mean_s: float, servers: int, q: float) -> float:
    """Quantile of the sojourn of M/M/c FIFO.

    The wait is 0 or, with probability C, exponential (Kleinrock Sec. 3.5).
    """
    waits, mu = erlang_c(servers, rate * mean_s), 1 / mean_s
    theta = servers * mu - rate  # of a wait that is not 0

    def excess(t: float) -> float:
        both = (theta * math.exp(-mu * t) - mu * math.exp(-theta * t)) / (theta - mu)
        return (1 - waits) * math.exp(-mu * t) + waits * both - (1 - q)

    return brentq(excess, 0.0, 100 * (mean_s + 1 / theta))


def power_of_d_sojourn(load: float, d: int) -> float:
    """Mean sojourn of infinitely many M/M/1 queues with d choices and unit service.

    The sum of load^((d^i - d) / (d - 1)) over i >= 1 (Mitzenmacher 2001, eq. 7).
    """
    return sum(load ** ((d**i - d) // (d - 1)) for i in range(1, 12))


def power_of_two_limit(fast: tuple[int, int], slow: tuple[int, int]) -> float:
    """Load above which two choices, whatever they are, bring the slow servers more than they serve.

    (servers, workers each); two different servers are both slow with probability m (m - 1) / (n (n - 1)).
    """
    n = fast[0] + slow[0]
    both_slow = slow[0] * (slow[0] - 1) / (n * (n - 1))
    share = slow[0] * slow[1] / (fast[0] * fast[1] + slow[0] * slow[1])
    return share / both_slow


def mg1_waiting_s(rate: float, mean_s: float, second_moment_s2: float) -> float:
    """Mean waiting time of M/G/1 FIFO, Pollaczek and Khinchine (Kleinrock eq. 5.63)."""
    return rate * second_moment_s2 / (2 * (1 - rate * mean_s))


def mg1_ps_sojourn_s(rate: float, mean_s: float) -> float:
    """Mean sojourn of M/G/1-PS, whatever the distribution of demands (Kleinrock vol. 2, eq. 4.17)."""
    return mean_s / (1 - rate * mean_s)


def erlang_arrivals_m1_sojourn_s(stages: int, rate: float, service_rate: float) -> float:
    """Mean sojourn of E_k/M/1: 1 / (mu (1 - sigma)), sigma = A*(mu - mu sigma) (Kleinrock eq. 6.4)."""

    def excess(sigma: float) -> float:
        stage_rate = stages * rate
        return (stage_rate / (stage_rate + service_rate * (1 - sigma))) ** stages - sigma

    return 1 / (service_rate * (1 - brentq(excess, 0.0, 1 - 1e-9)))


def second_moment_s2(kind: str, a: list[float], b: list[float]) -> float:
    """E[X^2] of a demand distribution, parameters as in native/sim/distribution.h."""
    match kind:
        case "exponential":
            return 2 * a[0] ** 2
        case "deterministic":
            return a[0] ** 2
        case "uniform":
            return (a[0] ** 2 + a[0] * a[1] + a[1] ** 2) / 3
        case "lognormal":
            return a[0] ** 2 * math.exp(a[1] ** 2)
        case "pareto":
            scale = a[0] * (a[1] - 1) / a[1]
            return scale**2 * a[1] / (a[1] - 2)
        case "hyperexponential":
            return sum(2 * p * mean**2 for mean, p in zip(a, b, strict=True))
        case "lognormal_mixture":
            parts = zip(a[: len(b)], a[len(b) :], b, strict=True)
            return sum(p * mean**2 * math.exp(sigma**2) for mean, sigma, p in parts)
        case "discrete":
            return sum(p * value**2 for value, p in zip(a, b, strict=True))
        case "empirical":
            return sum(value**2 for value in a) / len(a)
    raise ValueError(kind)


def stationary(start: State, transitions: Transitions) -> dict[State, float]:
    """Stationary distribution of the finite, irreducible continuous-time chain reached from `start`.

    With pi(start) set to 1 the other balance equations of pi Q = 0 are a regular system; then normalised.
    """
    index, order, entries = {start: 0}, [start], []
    for state in order:  # grows while it is walked
        for rate, target in transitions(state):
            if target not in index:
                index[target] = len(order)
                order.append(target)
            entries += [(index[target], index[state], rate), (index[state], index[state], -rate)]
    rows, columns, rates = map(np.array, zip(*entries, strict=True))
    balance = csc_matrix((rates, (rows, columns)), (len(order), len(order)))
    others = splu(balance[1:, 1:], permc_spec="MMD_AT_PLUS_A").solve(-balance[1:, 0].toarray()[:, 0])
    pi = np.r_[1.0, others]
    return dict(zip(order, pi / pi.sum(), strict=True))


def expectation(distribution: dict[State, float], value: Callable[[State], float]) -> float:
    return sum(p * value(state) for state, p in distribution.items())


def shortest_queue_sojourn_s(servers: int, load: float, choices: int, room: int) -> float:
    """Mean sojourn when each arrival joins the shortest of `choices` different ones of M/M/1 queues.

    Unit service rate, `load` per server; the chain on sorted queue lengths, cut off at `room` per queue.
    """

    def transitions(state: State) -> Iterable[tuple[float, State]]:
        for place, length in enumerate(
            state
        ):  # ascending; the shortest drawn is `place` when the rest are above
            drawn = math.comb(servers - place - 1, choices - 1) / math.comb(servers, choices)
            if drawn > 0 and length < room:
                yield load * servers * drawn, changed(state, place, 1)
            if length > 0:
                yield 1.0, changed(state, place, -1)

    customers = expectation(stationary((0,) * servers, transitions), sum)
    return customers / (load * servers)


def changed(state: State, place: int, by: int) -> State:
    """The sorted state with one queue longer or shorter."""
    return tuple(sorted((*state[:place], state[place] + by, *state[place + 1 :])))


def mmpp_mean_rate(rates: tuple[float, float], stays_s: tuple[float, float]) -> float:
    """Mean rate of a two-state Markov-modulated Poisson process."""
    return (rates[0] * stays_s[0] + rates[1] * stays_s[1]) / (stays_s[0] + stays_s[1])


def mmpp_dispersion(rates: tuple[float, float], stays_s: tuple[float, float], window_s: float) -> float:
    """Var / mean of the stationary count in a window (Heffes and Lucantoni, IEEE JSAC 4 (1986), eq. 5)."""
    q0, q1 = 1 / stays_s[0], 1 / stays_s[1]
    q = q0 + q1
    decay = 1 - (1 - math.exp(-q * window_s)) / (q * window_s)
    return 1 + 2 * q0 * q1 * (rates[0] - rates[1]) ** 2 / (q**2 * (rates[0] * q1 + rates[1] * q0)) * decay


def erlang_b(servers: int, offered: float) -> float:
    """Share of customers that M/G/c/c loses, whatever the service times (Asmussen Sec. III.3)."""
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked
