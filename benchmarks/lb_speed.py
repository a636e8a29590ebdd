"""Requests per second through `steelyard-lb`, beside plain kernel forwarding in the same run; as root.

    python -m steelyard.benchmarks.lb_speed [--seconds S] [--rounds N] [--json FILE]

Client, forwarder and one Apache are namespaces of this machine, so that they share its cores: what a
forwarder takes, the others lack. All forward to the same server: the kernel by a route, steelyard-lb (lsq)
through AF_PACKET and through AF_XDP; and each again ("awake") while processors are to wake at once, which the
balancer asks for by `cpu_latency_us = 0`. Rounds go through all forwarders in turn; medians are printed. The
client `ab` is of Debian's apache2-utils.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tyro

from steelyard.benchmarks.lb_net import PORT, VIP4, VIP6, Balancer, Net, Pool
from steelyard.benchmarks.lb_trouble import Row, running
from steelyard.benchmarks.wake_up import processors_awake
from steelyard.envs.errors import UserError
from steelyard.trainers import cli

APACHE = Path("/usr/sbin/apache2")
MODULES = Path("/usr/lib/apache2/modules")
CONFIGURATION = """\
ServerRoot "{root}"
ServerName steelyard
{listen}
PidFile "{root}/pid"
Mutex "file:{root}"
{modules}
StartServers 1
ServerLimit 1
ThreadsPerChild 64
MaxRequestWorkers 64
MinSpareThreads 1
MaxSpareThreads 64
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 15
ErrorLog "{root}/error.log"
DocumentRoot "{root}"
<Directory "{root}">
  Require all granted
</Directory>
"""
SERVERS = 1


def apache_servers(net: Net) -> None:
    """Start an Apache in each server's namespace. UserError if there is none."""
    names = [name for name in ("mpm_event", "authz_core") if not (MODULES / f"mod_{name}.so").exists()]
    if not APACHE.exists() or names:
        raise UserError("Apache (apache2) is missing; install it: sudo apt-get install -y apache2")
    modules = "\n".join(f"LoadModule {n}_module {MODULES}/mod_{n}.so" for n in ("mpm_event", "authz_core"))

    def command(index: int) -> list[str | Path]:
        root = net.folder / f"apache{index}"
        root.mkdir()
        root.chmod(0o755)
        (root / "index").write_text(f"srv{index}\n")
        listen = f"Listen {VIP4}:{PORT}\nListen [{VIP6}]:{PORT}"
        user = "User www-data\nGroup www-data\n"
        (root / "conf").write_text(user + CONFIGURATION.format(root=root, listen=listen, modules=modules))
        return [APACHE, "-f", root / "conf", "-DFOREGROUND"]

    net.folder.chmod(0o755)
    net.serve(command)


def load(net: Net, seconds: int, at_once: int, keep: bool) -> Row:
    """Requests by ab, as many at once; requests per second and latency percentiles [ms]."""
    out = net.folder / "percentiles.csv"
    command = ["ab", "-q", "-t", str(seconds), "-n", "10000000", "-c", str(at_once), "-e", str(out)]
    url = f"http://{VIP4}:{PORT}/index"
    done = subprocess.run(
        net.inside("client", *command, *(["-k"] if keep else []), url), capture_output=True, text=True
    )
    rate = re.search(r"Requests per second:\s+([\d.]+)", done.stdout)
    failed = re.search(r"Failed requests:\s+(\d+)", done.stdout)
    if done.returncode != 0 or rate is None or failed is None:
        raise RuntimeError(f"ab: {done.stderr.strip() or done.stdout.strip()}")
    percentiles = dict(line.split(",") for line in out.read_text().splitlines()[1:])
    row: Row = {"per_s": float(rate[1]), "failed": int(failed[1])}
    return row | {f"p{p}_ms": float(percentiles[str(p)]) for p in (50, 90, 99)}


@contextmanager
def by_kernel(net: Net, folder: Path) -> Iterator[Balancer | None]:
    """The namespace's kernel forwards to one server."""
    net.forward_by_kernel("lb", 0)
    try:
        yield None
    finally:
        net.stop_kernel_forwarding("lb")


@contextmanager
def by_kernel_awake(net: Net, folder: Path) -> Iterator[Balancer | None]:
    """The same while processors are to wake at once."""
    with processors_awake(), by_kernel(net, folder) as nobody:
        yield nobody


def by_balancer(transport: str, keys: str = "") -> Callable[[Net, Path], object]:
    """steelyard-lb in that namespace."""
    pool = Pool(servers=tuple(range(SERVERS)), transport=transport, transport_keys=keys)
    return lambda net, folder: running(net, folder, pool)


AWAKE = "cpu_latency_us = 0\n"
FORWARDERS: dict[str, Callable[[Net, Path], object]] = {
    "kernel": by_kernel,
    "af_packet": by_balancer("af_packet"),
    "af_xdp": by_balancer("af_xdp"),
    "kernel-awake": by_kernel_awake,
    "af_packet-awake": by_balancer("af_packet", AWAKE),
    "af_xdp-awake": by_balancer("af_xdp", AWAKE),
}
LOADS = {
    "keep-alive, 32 at once": (32, True),
    "a connection each, 32 at once": (32, False),
    "one at a time": (1, True),
}


@dataclass(kw_only=True)
class LbSpeed:
    """Measure requests per second and latency through forwarders."""

    seconds: int = 3
    """Length of one load [s]; ab knows whole ones, and no end at 0."""
    rounds: int = 5
    """Each forwarder meets each load so many times."""
    json: str | None = None
    """Write every measurement there."""

    def run(self) -> int:
        """Measure and print; 0."""
        found: dict[tuple[str, str], list[Row]] = {}
        with tempfile.TemporaryDirectory(prefix="steelyard-lb-") as folder, Net(Path(folder), SERVERS) as net:
            apache_servers(net)
            for turn in range(self.rounds):
                for name, forwarder in FORWARDERS.items():
                    at = Path(folder) / f"{name}{turn}"
                    with forwarder(net, at) as balancer:  # type: ignore[attr-defined]
                        for load_name in LOADS:
                            row = self._load(net, balancer, load_name)
                            found.setdefault((load_name, name), []).append(row)
        rows = [{"load": key[0], "forwarder": key[1]} | median_of(each) for key, each in found.items()]
        print_table(rows)
        if self.json is not None:
            Path(self.json).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
        return 0

    def _load(self, net: Net, balancer: Balancer | None, name: str) -> Row:
        before = balancer.cpu_s() if balancer else 0.0
        at_once, keep = LOADS[name]
        row = load(net, self.seconds, at_once, keep)
        used = balancer.cpu_s() - before if balancer else float("nan")
        return row | {"cores": used / self.seconds}


def median_of(rows: list[Row]) -> Row:
    """The median of every number."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def print_table(rows: list[Row]) -> None:
    """As Markdown, with ratios to the kernel of the same load."""
    print("| load | forwarder | requests/s | of the kernel's | p50 | p90 | p99 [ms] | cores used |")
    print("|---|---|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: list(LOADS).index(row["load"])):
        kernel = next(r for r in rows if r["forwarder"] == "kernel" and r["load"] == row["load"])
        cells = [
            row["load"],
            row["forwarder"],
            f"{row['per_s']:.0f}",
            f"{row['per_s'] / kernel['per_s']:.2f}",
        ]
        cells += [f"{row[key]:.3f}" for key in ("p50_ms", "p90_ms", "p99_ms")]
        print("| " + " | ".join([*cells, f"{row['cores']:.2f}"]) + " |")


def main() -> int:
    """Entry of `python -m steelyard.benchmarks.lb_speed`."""
    try:
        return tyro.cli(LbSpeed).run()
    except UserError as error:
        return cli.fail(str(error))


if __name__ == "__main__":
    sys.exit(main())
