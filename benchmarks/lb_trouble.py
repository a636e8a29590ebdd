"""What may befall a running `steelyard-lb`, one function each: the trouble, live traffic, what was lost.

Each takes a net whose servers echo (`echo_servers`) and an empty folder, and returns what it counted.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from steelyard import native
from steelyard.benchmarks.lb_net import PORT, VIP4, VIP6, Balancer, Net, Pool, run, wait_until

ECHO = "steelyard.benchmarks.lb_echo"
NOISE = "steelyard.benchmarks.lb_noise"
CORPUS = Path(__file__).resolve().parent.parent / "native" / "tests" / "corpus" / "packet"
Row = dict[str, Any]


def echo_servers(net: Net) -> None:
    """Start servers that answer with their names."""
    words = [sys.executable, "-m", ECHO, "serve"]
    net.serve(lambda index: [*words, f"srv{index}", str(PORT), VIP4, VIP6])


class Traffic:
    """Connections of the client while something happens; see lb_echo."""

    def __init__(self, net: Net, kept: int, seconds: float, rate: float, address: str = VIP4) -> None:
        self.process = net.python(
            "client", ECHO, "ask", address, str(PORT), str(kept), "0.2", str(seconds), str(rate),
            stdout=subprocess.PIPE,
        )  # fmt: skip

    def told(self) -> Row:
        """Wait for the end; what became of the connections."""
        out, _ = self.process.communicate(timeout=120)
        if self.process.returncode != 0:
            raise RuntimeError("the client has failed")
        told: Row = json.loads(out)
        return told


@contextmanager
def running(net: Net, folder: Path, pool: Pool, place: str = "lb") -> Iterator[Balancer]:
    """A balancer for the length of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    balancer = Balancer(net, folder, pool, place)
    balancer.start()
    try:
        yield balancer
    finally:
        balancer.kill()


def await_kept(balancer: Balancer, kept: int) -> None:
    """Until that many connections are established."""
    wait_until(lambda: balancer.vip()["connections"]["established"] >= kept, "connections are established")


def killed_and_restarted(net: Net, folder: Path, rule: str, kept: int, seconds: float) -> Row:
    """The balancer is killed and started again; nobody tells it what it knew."""
    with running(net, folder, Pool(rule)) as balancer:
        traffic = Traffic(net, kept, seconds, 20)
        await_kept(balancer, kept)
        balancer.kill()
        began = time.monotonic()
        balancer.start()
        outage_s = time.monotonic() - began
        told = traffic.told()
        adopted = balancer.vip()["adopted"]
    return told | {"outage_s": round(outage_s, 3), "adopted": adopted}


def taken_over(net: Net, folder: Path, rule: str, kept: int, seconds: float) -> Row:
    """The router sends all traffic to a second balancer, as when the first has died."""
    with (
        running(net, folder / "one", Pool(rule)) as first,
        running(net, folder / "two", Pool(rule), "lb2") as second,
    ):
        traffic = Traffic(net, kept, seconds, 20)
        await_kept(first, kept)
        net.go_by("lb2")
        first.kill()
        try:
            told = traffic.told()
        finally:
            net.go_by("lb")
        adopted = second.vip()["adopted"]
    return told | {"adopted": adopted}


def server_killed(net: Net, folder: Path, kept: int, seconds: float, victim: int = 1) -> Row:
    """A server loses its power; after a second it is drained, as a health check would do."""
    with running(net, folder, Pool()) as balancer:
        traffic = Traffic(net, kept, seconds, 20)
        await_kept(balancer, kept)
        net.cut_off(victim)
        try:
            time.sleep(1.0)
            balancer.reload(Pool(drained=(victim,)))
            after = Traffic(net, 0, 2.0, 20).told()
            told = traffic.told()
        finally:
            net.reconnect(victim)
    told["broken_elsewhere"] = told["broken"] - told["broken_servers"].get(f"srv{victim}", 0)
    return told | {"failed_after_drain": after["short_failed"], "servers_after_drain": after["short_servers"]}


def some_policy(folder: Path, num_servers: int) -> Path:
    """A linear policy with random weights."""
    rng, size = np.random.default_rng(2), native.observation_size(num_servers)
    layer = {
        "kind": "dense",
        "activation": "none",
        "weight": (rng.normal(size=(num_servers, size)) / size).astype(np.float32),
        "bias": rng.normal(size=num_servers).astype(np.float32),
    }
    actor = {"mean": np.zeros(size, np.float32), "inv_std": np.ones(size, np.float32), "layers": [layer]}
    spec = {
        "num_servers": num_servers,
        "input": "flat",
        "output": "tanh",
        "clip": 10.0,
        "actors": [actor],
    }
    path = folder / "policy.bin"
    path.write_bytes(native.encode_policy(spec))
    return path


def agent_killed(net: Net, folder: Path, kept: int, seconds: float) -> Row:
    """The agent that sets the weights is killed and started again."""
    folder.mkdir(parents=True, exist_ok=True)
    policy, memory = some_policy(folder, net.servers), Path(f"/dev/shm/{net.prefix}-web4")
    keys = f'shared_memory = "{memory}"\ninterval_s = 0.1\nmax_age_s = 0.5\n'
    command = [sys.executable, "-c", "import sys; from steelyard.trainers import cli; sys.exit(cli.main())"]
    command += ["agent", "--pool", str(memory), "--policy", str(policy), "--period", "0.1"]

    def health() -> bool:
        return bool(balancer.vip()["policy"]["healthy"])

    def start_agent() -> subprocess.Popen[bytes]:
        agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        net.children.append(agent)
        return agent

    try:
        with running(net, folder, Pool("policy", vip_keys=keys)) as balancer:
            agent = start_agent()
            wait_until(health, "weights come from the agent")
            traffic = Traffic(net, kept, seconds, 20)
            await_kept(balancer, kept)
            agent.kill()
            fallback_s = wait_until(lambda: not health(), "lsq goes on")
            why = balancer.vip()["policy"]["why"]
            start_agent()
            return_s = wait_until(health, "weights come from the next agent")
            told = traffic.told()
    finally:
        memory.unlink(missing_ok=True)
    return told | {"fallback_s": round(fallback_s, 3), "why": why, "return_s": round(return_s, 3)}


def noise(net: Net, how: str, *words: object) -> subprocess.Popen[bytes]:
    """Start lb_noise in the client's namespace, towards the balancer."""
    mac = json.loads(run(*net.inside("lb", "ip", "-j", "link", "show", "eth0")))[0]["address"]
    return net.python(
        "client", NOISE, how, "eth0", mac, VIP4, str(PORT), *map(str, words), stdout=subprocess.PIPE
    )


def syn_flood(net: Net, folder: Path, kept: int, rate: float, seconds: float) -> Row:
    """SYNs from clients that are not there, beside real connections."""
    keys = "half_open = 4096\ntimeouts = { opening_s = 3 }\n"
    with running(net, folder, Pool(vip_keys=keys)) as balancer:
        before = Traffic(net, 0, 2.0, 20).told()
        traffic = Traffic(net, kept, seconds + 1, 20)
        await_kept(balancer, kept)
        flood = noise(net, "flood", rate, seconds)
        sent = int(flood.communicate(timeout=120)[0])
        told = traffic.told()
        wait_until(lambda: balancer.flows_on() == 0, "what the flood opened is given back")
        vip = balancer.vip()
    return told | {
        "p50_before_ms": before["short_p50_ms"],
        "p99_before_ms": before["short_p99_ms"],
        "syns": sent,
        "half_open_refused": vip["half_open_refused"],
        "flows_on_after": sum(server["flows_on"] for server in vip["servers"]),
    }


def malformed(net: Net, folder: Path, kept: int, frames: int, seconds: float) -> Row:
    """The fuzzer's corpus, damaged, through the real socket."""
    with running(net, folder, Pool()) as balancer:
        traffic = Traffic(net, kept, seconds, 20)
        await_kept(balancer, kept)
        sent = int(noise(net, "malformed", frames, CORPUS).communicate(timeout=120)[0])
        told = traffic.told()
        packets = balancer.ask("stats")["packets"]
    return told | {"frames": sent, "packets": packets}


def full_disk(net: Net, folder: Path, kept: int, seconds: float) -> Row:
    """The tape's file system has no room left."""
    folder.mkdir(parents=True, exist_ok=True)
    small = folder / "small"
    small.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=128k", "steelyard-test", small)
    try:
        with running(net, folder, Pool(vip_keys=f'tape = "{small}/web.tape"\n')) as balancer:
            traffic = Traffic(net, kept, seconds, 20)
            await_kept(balancer, kept)
            noise(net, "flood", 5000, 3).communicate(timeout=60)
            told = traffic.told()
            ended = balancer.events("tape_ended")
    finally:
        run("umount", small)
    return told | {"why": ended[0]["why"] if ended else "the tape has not ended"}


def taped(net: Net, folder: Path, pool: Pool, seconds: float) -> tuple[Path, Row]:
    """A tape of real traffic, and what the balancer says of it at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    pool.vip_keys += 'tape = "web.tape"\n'
    with running(net, folder, pool) as balancer:
        Traffic(net, 20, seconds, 100).told()
        balancer.stop()
        with contextlib.suppress(IndexError):
            return folder / "web.tape", balancer.events("tape_ended")[0]
    raise RuntimeError(f"no tape was ended; {balancer.log}")


def hang_up(balancer: Balancer) -> None:
    """SIGHUP: read the configuration again."""
    assert balancer.process is not None
    balancer.process.send_signal(signal.SIGHUP)
