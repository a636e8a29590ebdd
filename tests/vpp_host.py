"""A VPP with our plugin, for tests: started in a folder of its own, spoken to by its binary API.

VPP is no dependency of this project: where it is not installed, tests that need it are skipped and say so.
$STEELYARD_VPP_PREFIX names an installation that is not in /usr.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from scapy.packet import Packet, Raw
from scapy.utils import rdpcap, wrpcap

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ("steelyard", "lb", "af_packet")

STARTUP = """
unix {{ nodaemon cli-listen {run}/cli.sock runtime-dir {run} coredump-size 0 poll-sleep-usec {sleep_us} }}
api-segment {{ prefix {prefix} }}
socksvr {{ socket-name {run}/api.sock }}
statseg {{ socket-name {run}/stats.sock size 8m page-size default }}
memory {{ main-heap-size 256m main-heap-page-size default }}
buffers {{ buffers-per-numa 16384 page-size default }}
cpu {{ {cpu} }}
plugins {{ path {plugins} plugin default {{ disable }} {enabled} }}
logging {{ default-log-level info default-syslog-log-level disabled }}
"""


def prefix() -> Path | None:
    """Where VPP is installed; None: nowhere."""
    named = os.environ.get("STEELYARD_VPP_PREFIX")
    if named:
        return Path(named) if (Path(named) / "bin/vpp").exists() else None
    found = shutil.which("vpp")
    return Path(found).resolve().parent.parent if found else None


def plugin() -> Path | None:
    """The newest build of the plugin; None: there is none."""
    found = sorted(
        ROOT.glob("build/cmake-*/deploy/vpp/vpp_plugins/steelyard_plugin.so"),
        key=lambda path: path.stat().st_mtime,
    )
    return found[-1] if found else None


def why_not() -> str:
    """Why no test with VPP can run here; empty: it can."""
    if prefix() is None:
        return "VPP is not installed: no `vpp` in PATH, nor below $STEELYARD_VPP_PREFIX (docs/vpp.md)"
    if plugin() is None:
        return "the plugin is not built: make vpp-plugin"
    try:
        import vpp_papi  # noqa: F401
    except ImportError:
        return "vpp_papi is not installed: pip install vpp-papi"
    return ""


needs_vpp = pytest.mark.skipif(bool(why_not()), reason=why_not() or "VPP is here")


class Vpp:
    """A running VPP; a context manager. `enter`: the command that starts it elsewhere, as in a namespace."""

    def __init__(self, folder: Path, workers: int = 0, enter: Iterable[str] = (), sleep_us: int = 0) -> None:
        self.run = folder / "vpp"
        self.run.mkdir()
        self.enter = list(enter)
        self.home = prefix() or Path("/usr")
        libraries = sorted(self.home.glob("lib/*/vpp_plugins")) + sorted(self.home.glob("lib/vpp_plugins"))
        built = plugin()
        assert built is not None
        (self.run / "startup.conf").write_text(
            STARTUP.format(
                run=self.run,
                prefix=f"sly{os.getpid()}",
                cpu=f"main-core 0 workers {workers}" if workers else "",
                sleep_us=sleep_us,
                plugins=":".join(map(str, [built.parent, *libraries])),
                enabled=" ".join(f"plugin {name}_plugin.so {{ enable }}" for name in PLUGINS),
            )
        )

    def __enter__(self) -> Vpp:
        log = (self.run / "log").open("w")
        command = [*self.enter, str(self.home / "bin/vpp"), "-c", str(self.run / "startup.conf")]
        self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            self.api = self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "api"):
            self.api.disconnect()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _connect(self) -> Any:
        from vpp_papi import VPPApiClient

        ours = Path(str(plugin())).parent.parent / "steelyard.api.json"
        files = [*map(str, (self.home / "share/vpp/api").rglob("*.api.json")), str(ours)]
        client = VPPApiClient(apifiles=files, server_address=str(self.run / "api.sock"))
        for _ in range(600):
            assert self.process.poll() is None, (self.run / "log").read_text()[-2000:]
            if (self.run / "api.sock").exists():
                client.connect("steelyard-tests")
                return client
            time.sleep(0.05)
        raise AssertionError("VPP does not open its API socket:\n" + (self.run / "log").read_text()[-2000:])

    def cli(self, *lines: str) -> str:
        """Run lines of VPP's command line; their output."""
        output = ""
        for line in lines:
            reply = self.api.api.cli_inband(cmd=line)
            assert reply.retval == 0, f"{line}: {reply.reply}"
            output += reply.reply
        return output

    def refuses(self, line: str) -> str:
        """What VPP answers to a line that must be wrong."""
        reply = self.api.api.cli_inband(cmd=line)
        return str(reply.reply) + self.cli("show logging")

    def stats(self) -> dict[str, float]:
        """Our numbers in the stats segment."""
        from vpp_papi.vpp_stats import VPPStats

        segment = VPPStats(str(self.run / "stats.sock"))
        names = segment.ls(["^/steelyard/"])
        found = (
            {name.removeprefix("/steelyard/"): segment[name] for name in segment.lsstr(names)}
            if names
            else {}
        )
        segment.disconnect()
        return found


def pass_frames(vpp: Vpp, interface: str, frames: list[bytes]) -> tuple[str, list[bytes]]:
    """Send frames through an interface of the packet generator: what the trace says, and what came out."""
    sent, got = vpp.run / "in.pcap", vpp.run / "out.pcap"
    wrpcap(str(sent), [Raw(frame) for frame in frames], linktype=1)
    got.unlink(missing_ok=True)
    vpp.cli(
        "clear trace",
        f"trace add pg-input {len(frames)}",
        f"packet-generator capture {interface} pcap {got} count {max(2, 2 * len(frames))}",
        f"packet-generator new pcap {sent} source {interface} name frames limit {len(frames)}",
        "packet-generator enable-stream frames",
    )
    for _ in range(200):
        if "Packet 1" in (trace := vpp.cli(f"show trace max {len(frames)}")):
            break
        time.sleep(0.01)
    vpp.cli(f"packet-generator capture {interface} disable", "packet-generator delete frames")
    out = [bytes(frame) for frame in rdpcap(str(got))] if got.exists() and got.stat().st_size > 24 else []
    return trace, out


def verdict_of(trace: str) -> str:
    """Our node's word about the one packet of a trace; "" when it never came there."""
    found = re.search(r"steelyard: (\w+), next", trace)
    return found[1] if found else ""


def frame_of(packet: Packet) -> bytes:
    """The bytes of a case, as long as Ethernet has them at least."""
    return bytes(packet)
