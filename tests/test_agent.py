"""`steelyard agent`: a policy over shared memory, with dataplanes that come and go."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from pools import free_path, now_ns, send_flows, until
from zero_policy import policy_blob

from steelyard import native
from steelyard.deploy.agent.service import Controller, Options, load_policy, run
from steelyard.envs.errors import UserError

PERIOD_S = 0.01


def echo_policy(servers: int, actors: int = 1) -> bytes:
    """Actor k answers -(k + 1)/4 and half of its previous action, which is the end of the observation."""
    dim = native.observation_size(servers)

    def actor(k: int) -> dict:
        weight = np.zeros((servers, dim), np.float32)
        weight[:, dim - servers :] = np.eye(servers) / 2
        bias = np.full(servers, -(k + 1) / 4, np.float32)
        layer = {"kind": "dense", "weight": weight, "bias": bias, "activation": "none"}
        return {"mean": np.zeros(dim, np.float32), "inv_std": np.ones(dim, np.float32), "layers": [layer]}

    spec = {"num_servers": servers, "input": "flat", "output": "clip", "clip": 10.0}
    return native.encode_policy(spec | {"actors": [actor(k) for k in range(actors)]})


@pytest.fixture
def policy(tmp_path: Path) -> str:
    (tmp_path / "policy.bin").write_bytes(echo_policy(2, actors=2))
    return str(tmp_path)


@contextmanager
def process(*args: str) -> Iterator[subprocess.Popen]:
    """A `steelyard agent` of its own; killed at the end if it still runs."""
    command = [sys.executable, "-m", "steelyard.trainers.cli", "agent", *args]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def test_each_pool_gets_its_actor_and_its_previous_action(policy):
    with free_path() as first, free_path() as second:
        dataplanes = [native.ShmDataplane(path, 2) for path in (first, second)]
        controller = Controller(Options((first, second), policy))
        expected = [0.0, 0.0]
        for _ in range(4):
            for dataplane in dataplanes:
                dataplane.publish(now_ns())
            controller.step()
            expected = [previous / 2 - (k + 1) / 4 for k, previous in enumerate(expected)]
            for dataplane, action in zip(dataplanes, expected, strict=True):
                assert dataplane.poll(now_ns(), 60 * 10**9)[0] == "usable"
                assert dataplane.weights_q16 == [round(2 ** (2 * action) * 65536)] * 2
        controller.close()
        assert "withdrawn" in dataplanes[0].poll(now_ns())[0]
        assert controller.counts.steps == 8


def test_index_names_the_actor(policy):
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 2)
        dataplane.publish(now_ns())
        Controller(Options((path,), policy, index=1)).step()
        assert dataplane.poll(now_ns(), 60 * 10**9)[0] == "usable"
        assert dataplane.weights_q16 == [1 << 15] * 2


def test_decides_on_what_the_dataplane_measured(tmp_path):
    """A policy of random weights, stepped by hand on the balancer's own observations."""
    from policy_specs import make

    blob = native.encode_policy(make("gru", 3, "flat", "tanh", hidden=8).spec())
    (tmp_path / "p.bin").write_bytes(blob)
    by_hand = native.Policy(blob)
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 3, virtual_clock=True)
        controller = Controller(Options((path,), str(tmp_path / "p.bin")))
        for step in range(5):
            end_ns = send_flows(dataplane, 200 * step, 200 * (step + 1))
            dataplane.publish(end_ns)
            expected = by_hand.infer(0, dataplane.observe(end_ns))
            controller.step()
            assert dataplane.poll(0, 0)[0] == "usable"
            dataplane.publish(end_ns)
            np.testing.assert_array_equal(dataplane.observe(end_ns)[-3:], expected)


def test_waits_for_the_dataplane_and_for_its_successors(policy, caplog):
    caplog.set_level("INFO", "steelyard.agent")
    with free_path() as path:
        controller = Controller(Options((path,), policy))
        controller.step()
        assert controller.counts.waits == 1
        for _ in range(3):
            dataplane = native.ShmDataplane(path, 2)
            dataplane.publish(now_ns())
            controller.step()
            assert dataplane.poll(now_ns(), 60 * 10**9)[:2] == ("usable", 1)
            assert controller.links[0].restarted
            controller.step()
            assert not controller.links[0].restarted
            del dataplane
            controller.step()
            dataplane = native.ShmDataplane(path, 2)  # takes over
            dataplane.publish(now_ns())
            controller.step()
            assert controller.links[0].restarted
            assert dataplane.poll(now_ns(), 60 * 10**9)[:2] == ("usable", 3)
            del dataplane
            Path(path).unlink()
            controller.step()
        assert controller.links[0].connections == 3
        assert [r.message for r in caplog.records].count(f"{path}: cannot open: No such file or directory") == 4


def test_a_pool_of_another_size(policy):
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 3)
        with pytest.raises(UserError, match="the pool has 3 servers; the policy is for 2"):
            Controller(Options((path,), policy)).step()
        del dataplane
        dataplane = native.ShmDataplane(path, 2)
        dataplane.publish(now_ns())
        controller = Controller(Options((path,), policy))
        controller.step()
        del dataplane
        dataplane = native.ShmDataplane(path, 3)  # the same path, replaced: the agent waits
        dataplane.publish(now_ns())
        controller.step()
        assert (controller.counts.steps, controller.counts.waits) == (1, 1)
        assert dataplane.poll(now_ns())[0] == "no agent has written yet"


def test_a_dataplane_that_stands_still_is_not_answered(policy):
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 2)
        dataplane.publish(now_ns() - 10**10)
        controller = Controller(Options((path,), policy))
        controller.step()
        assert controller.counts.waits == 1
        dataplane.publish(now_ns())
        controller.step()
        assert controller.counts.steps == 1


def test_no_finite_action_is_no_action(policy):
    """An observation beyond float32 makes the policy refuse: the dataplane hears nothing."""
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 2)
        dataplane.close(1, dataplane.open(1, -(2**62)), True, 2**62)
        dataplane.publish(now_ns())
        controller = Controller(Options((path,), policy))
        controller._policies = [Refuses()] * 2
        controller.step()
        assert controller.counts.refused == 1
        assert dataplane.poll(now_ns())[0] == "no agent has written yet"


class Refuses:
    """A policy that has no finite action."""

    def reset(self) -> None:
        """Nothing to forget."""

    def infer(self, agent: int, obs: np.ndarray) -> np.ndarray:
        """As native.Policy says it."""
        raise ValueError("not finite")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pools": ()}, "--pool: none given"),
        ({"pools": ("a", "a")}, "given twice"),
        ({"period_s": 0.0}, "--period"),
        ({"report_s": float("nan")}, "--report"),
        ({"index": -1}, "--index"),
        ({"index": 2}, "the last pool's balancer is number 2"),
        ({"duration_s": 0.0}, "--duration"),
        ({"policy": "/no/such/policy"}, "--policy"),
    ],
)
def test_bad_options_are_one_line(policy, changes, match):
    with pytest.raises(UserError, match=match) as error:
        Controller(Options(**{"pools": ("a",), "policy": policy} | changes))
    assert "\n" not in str(error.value)


def test_a_shared_actor_serves_any_number(tmp_path):
    (tmp_path / "p.bin").write_bytes(policy_blob(2))
    assert load_policy(str(tmp_path / "p.bin"), 5).num_agents == 5


def test_the_loop_keeps_its_moments(policy):
    """Moments that were missed are left out: with steps slower than the period there are fewer steps."""
    options = Options(("/dev/shm/steelyard-no-such-file",), policy, period_s=0.001, duration_s=0.2)
    controller = Controller(options)
    stop = threading.Event()
    run(controller, options, stop)
    assert 0 < len(controller.counts.late_ms) <= 201
    stop.set()
    before = controller.counts.waits
    run(controller, options, stop)
    assert controller.counts.waits == before


@pytest.mark.slow
def test_kill_and_terminate(policy):
    """kill -9: the next agent goes on at once. SIGTERM: withdrawn, status 0, a last line of metrics."""
    arguments = ("--policy", policy, "--period", str(PERIOD_S), "--report", "0.1")
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 2)

        def tick() -> int:
            dataplane.publish(now_ns())
            status, generation, _ = dataplane.poll(now_ns())
            return generation if status == "usable" else 0

        last = 0
        for _ in range(3):
            with process("--pool", path, *arguments) as agent:
                until(lambda: dataplane.agent_lives, tick)
                until(lambda last=last: tick() > last + 5)
                agent.send_signal(signal.SIGKILL)
                agent.wait()
            assert not dataplane.agent_lives
            last = max(last, dataplane.poll(now_ns())[1])
        with process("--pool", path, *arguments) as agent:
            until(lambda: tick() > last + 20)
            agent.send_signal(signal.SIGTERM)
            out, err = agent.communicate()
        assert agent.returncode == 0, err
        assert "withdrawn" in dataplane.poll(now_ns())[0]
        assert re.search(r"agent pools=1 connections=1 steps=\d\d+ .* late_ms_max=", out.splitlines()[-1])
        assert "Traceback" not in err


@pytest.mark.slow
def test_needs_no_torch(policy):
    code = (
        "import sys\nfrom steelyard.trainers.cli import main\n"
        f"assert main(['agent', '--pool', '/dev/shm/none', '--policy', {policy!r}, '--duration', '0.1']) == 0\n"
        "assert not {'torch', 'torchrl', 'ray', 'scipy', 'pandas'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("agent pools=1 connections=0 steps=0 waits=")
