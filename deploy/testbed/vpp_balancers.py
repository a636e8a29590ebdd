"""VPP in every balancer's namespace, with the plugin or with VPP's own balancer."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.deploy import vpp_process
from steelyard.deploy.testbed import machine, processes, site, vpp_config
from steelyard.deploy.testbed.machine import TestbedError
from steelyard.deploy.testbed.vpp_config import Line
from steelyard.envs.errors import UserError

_START_LIMIT_S = 30.0


@dataclass
class VppBalancers(processes.Balancers):
    """VPPs that forward during an episode."""

    folders: list[Path] = field(default_factory=list)

    def trouble(self) -> str:
        """As the plugin says; VPP's own balancer says nothing."""
        told = []
        for index, folder in enumerate(self.folders):
            if found := vpp_config.trouble(ask(folder, "show steelyard")):
                told.append(f"balancer {index}: {found}")
        return ", ".join(told)


def check_installed(dataplane: str) -> None:
    """UserError that says what to do unless VPP, the plugin and nft are here."""
    if lacks := vpp_process.missing():
        raise UserError(f"--dataplane {dataplane}: {lacks}")
    if shutil.which("nft") is None:
        raise UserError(
            f"--dataplane {dataplane}: the command nft is missing; install it: "
            "sudo apt-get install -y --no-install-recommends nftables"
        )


def start(started: VppBalancers, place: site.Site) -> None:
    """Start the next one; it forwards nothing yet."""
    index = len(started.processes)
    folder = place.folder / f"vpp{index}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    conf = folder / "startup.conf"
    conf.write_text(vpp_process.startup(folder, f"{place.network.balancer(index)}-vpp"))
    started.folders.append(folder)
    processes.launch(started, place, [_home() / "bin/vpp", "-c", conf], vpp_process.libraries(_home()))


def configure(started: VppBalancers, index: int, lines: Sequence[Line]) -> None:
    """Wait until a balancer answers and tell it these lines; TestbedError for the first that it refuses."""
    _await(started, index)
    # VPP ties itself to the processor where it happens to start; servers need that one too.
    os.sched_setaffinity(started.processes[index].pid, os.sched_getaffinity(0))
    for line in lines:
        answer = ask(started.folders[index], line.text).strip()
        if not answer.startswith(line.answer) or (answer and not line.answer):
            raise TestbedError(f"balancer {index}: {line.text}: {answer or 'no answer'}")


def ask(folder: Path, line: str) -> str:
    """What the VPP of that folder answers to a line of its command line; TestbedError if it does not."""
    words: list[str | Path] = [_home() / "bin/vppctl", "-s", folder / "cli.sock", line]
    return machine.command(words, name=f"vppctl {line}", environment=vpp_process.libraries(_home()))


def _await(started: VppBalancers, index: int) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        started.watch(0.0)
        try:
            ask(started.folders[index], "show version")
            return
        except TestbedError as error:
            if time.monotonic() > deadline:
                said = processes.last_line(started.logs[index])
                raise TestbedError(f"balancer {index} does not start: {said}") from error
        time.sleep(0.05)


def _home() -> Path:
    return vpp_process.prefix() or Path("/usr")
