"""A VPP with our plugin as a child process: started in a folder of its own, spoken to by its binary API.

VPP is no dependency of this project: `why_not` says what is missing. $STEELYARD_VPP_PREFIX names one that is
not in /usr, $STEELYARD_VPP_PLUGIN a plugin that is neither built here nor installed there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
    """$STEELYARD_VPP_PLUGIN, else the newest build here, else the one installed; None: there is none."""
    if named := os.environ.get("STEELYARD_VPP_PLUGIN"):
        return Path(named) if Path(named).is_file() else None
    found = sorted(
        ROOT.glob("build/cmake-*/deploy/vpp/vpp_plugins/steelyard_plugin.so"),
        key=lambda path: path.stat().st_mtime,
    )
    if not found and (home := prefix()) is not None:
        found = [path for folder in plugin_folders(home) for path in folder.glob("steelyard_plugin.so")]
    return found[-1] if found else None


def plugin_folders(home: Path) -> list[Path]:
    """Where the VPP of that prefix keeps its plugins."""
    return sorted(home.glob("lib/*/vpp_plugins")) + sorted(home.glob("lib/vpp_plugins"))


def libraries(home: Path) -> dict[str, str]:
    """The environment of programs of the VPP of that prefix, which need not be where the linker looks."""
    inherited = os.environ.get("LD_LIBRARY_PATH")
    paths = [str(folder.parent) for folder in plugin_folders(home)] + ([inherited] if inherited else [])
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths)}


def version() -> str:
    """Of VPP, such as v26.06-release."""
    home = prefix() or Path("/usr")
    command = [str(home / "bin/vpp"), "--version"]
    words = subprocess.run(command, capture_output=True, text=True, env=libraries(home)).stdout.split()
    return words[1] if len(words) > 1 else "of an unknown version"


def missing() -> str:
    """What VPP and our plugin lack on this machine; empty: nothing."""
    if prefix() is None:
        return "VPP is not installed: no `vpp` in PATH, nor below $STEELYARD_VPP_PREFIX (docs/vpp.md)"
    if plugin() is None:
        return "the plugin is not built: make vpp-plugin"
    return ""


def why_not() -> str:
    """Why no test with VPP can run here; empty: it can."""
    if lacks := missing():
        return lacks
    if importlib.util.find_spec("vpp_papi") is None:
        return "vpp_papi is not installed: pip install vpp-papi"
    return ""


def startup(run: Path, segment: str, workers: int = 0, sleep_us: int = 0, built: Path | None = None) -> str:
    """A start-up file: sockets in the folder `run`, API memory named `segment`, our plugin and lb."""
    home, built = prefix() or Path("/usr"), built or plugin()
    assert built is not None
    return STARTUP.format(
        run=run,
        prefix=segment,
        cpu=f"workers {workers}" if workers else "",
        sleep_us=sleep_us,
        plugins=":".join(map(str, [built.parent, *plugin_folders(home)])),
        enabled=" ".join(f"plugin {name}_plugin.so {{ enable }}" for name in PLUGINS),
    )


class Vpp:
    """A running VPP; a context manager. `enter`: the command that starts it elsewhere, as in a namespace."""

    def __init__(
        self,
        folder: Path,
        workers: int = 0,
        enter: Iterable[str] = (),
        sleep_us: int = 0,
        installed: Path | None = None,
    ) -> None:
        """installed: the root below which the plugin lies, if not where it was built."""
        self.run = folder / "vpp"
        self.run.mkdir()
        self.enter = list(enter)
        self.home = prefix() or Path("/usr")
        built = next(installed.rglob("steelyard_plugin.so")) if installed else plugin()
        assert built is not None
        self.api_file = next((installed or built.parent.parent).rglob("steelyard.api.json"))
        text = startup(self.run, f"sly{os.getpid()}", workers, sleep_us, built)
        (self.run / "startup.conf").write_text(text)

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
        files = [*map(str, (self.home / "share/vpp/api").rglob("*.api.json")), str(self.api_file)]
        client = importlib.import_module("vpp_papi").VPPApiClient(
            apifiles=files, server_address=str(self.run / "api.sock")
        )
        for _ in range(600):
            assert self.process.poll() is None, (self.run / "log").read_text()[-2000:]
            if (self.run / "api.sock").exists():
                client.connect("steelyard")
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

    def stats(self) -> dict[str, float]:
        """Our numbers in the stats segment."""
        segment = importlib.import_module("vpp_papi.vpp_stats").VPPStats(str(self.run / "stats.sock"))
        found = segment.dump(segment.ls(["^/steelyard/"]))
        segment.disconnect()
        return {name.removeprefix("/steelyard/"): value for name, value in found.items()}
