"""The capacity of a server: a share of a processor, held down by a control group (cgroup v1 or v2)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from steelyard.deploy.testbed.machine import TestbedError, alive, end
from steelyard.envs.errors import UserError

PERIOD_US = 10_000
"""Every period a server may run for its share of it. Short beside a request, not below the kernel's tick."""
MIN_QUOTA_US = 1000
"""The kernel takes no less."""
MAX_PERIOD_US = 1_000_000
MIN_SHARE = 0.01
OTHERS = "others"
WEIGHT = 64
"""Of the testbed against everything else that wants a processor, which has 1: a capacity that others
could take away would be none. Quotas bound what the servers can take."""
OTHERS_WEIGHT = 8
"""Of balancers and client against one server: they are to be there at once, and want little."""


@dataclass(frozen=True)
class CpuGroups:
    """Where this machine keeps control groups for processors, and in which version."""

    root: Path
    version: int

    def folder(self, prefix: str) -> Path:
        """Of a testbed."""
        return self.root / prefix

    def server(self, prefix: str, server: int) -> Path:
        """Of one server of a testbed."""
        return self.root / prefix / f"s{server}"

    def others(self, prefix: str) -> Path:
        """Of balancers and client, without a limit."""
        return self.root / prefix / OTHERS


def find_groups(v1: Path = Path("/sys/fs/cgroup/cpu"), v2: Path = Path("/sys/fs/cgroup")) -> CpuGroups:
    """The groups of this machine; UserError if it has none that can hold a processor share."""
    if (v1 / "cpu.cfs_quota_us").exists() or (v1 / "cpu.shares").exists():
        return CpuGroups(v1, 1)
    controllers = v2 / "cgroup.controllers"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        return CpuGroups(v2, 2)
    raise UserError(
        f"no cgroup with the cpu controller at {v1} (v1) or {v2} (v2): servers can get no capacity"
    )


def settings(share: float, version: int) -> Mapping[str, str]:
    """Files and values that give a group this share of one processor."""
    period_us = PERIOD_US
    while share * period_us < MIN_QUOTA_US and period_us < MAX_PERIOD_US:
        period_us *= 2
    quota_us = max(MIN_QUOTA_US, round(share * period_us))
    if version == 2:
        return {"cpu.max": f"{quota_us} {period_us}"}
    return {"cpu.cfs_period_us": str(period_us), "cpu.cfs_quota_us": str(quota_us)}


def make(groups: CpuGroups, prefix: str, servers: int) -> None:
    """One group for each server, without a limit yet, and one for balancers and client."""
    folder = groups.folder(prefix)
    folder.mkdir(exist_ok=True)
    name, one = ("cpu.weight", 100) if groups.version == 2 else ("cpu.shares", 1024)
    _write(folder / name, str(one * WEIGHT))
    if groups.version == 2:
        _write(groups.root / "cgroup.subtree_control", "+cpu")
        _write(folder / "cgroup.subtree_control", "+cpu")
    for server in range(servers):
        groups.server(prefix, server).mkdir(exist_ok=True)
    groups.others(prefix).mkdir(exist_ok=True)
    _write(groups.others(prefix) / name, str(one * OTHERS_WEIGHT))


def join(groups: CpuGroups, prefix: str, pid: int) -> None:
    """A process that forwards or asks is to have a processor when it wants one, as servers have."""
    _write(groups.others(prefix) / "cgroup.procs", str(pid))


def join_thread(groups: CpuGroups, prefix: str) -> None:
    """The same for the calling thread alone; version 2 has no groups of threads, so there it stays."""
    if groups.version == 1:
        _write(groups.others(prefix) / "tasks", str(threading.get_native_id()))


def set_share(groups: CpuGroups, prefix: str, server: int, share: float | None) -> None:
    """From now on the server has this share of one processor; None: as much as it can get."""
    folder = groups.server(prefix, server)
    if share is None:
        unlimited = {"cpu.max": "max"} if groups.version == 2 else {"cpu.cfs_quota_us": "-1"}
        for name, value in unlimited.items():
            _write(folder / name, value)
        return
    for name, value in settings(share, groups.version).items():
        _write(folder / name, value)


def share_of(groups: CpuGroups, prefix: str, server: int) -> float | None:
    """The share in force; None: no limit."""
    folder = groups.server(prefix, server)
    if groups.version == 2:
        quota, period = (folder / "cpu.max").read_text().split()
    else:
        quota = (folder / "cpu.cfs_quota_us").read_text().strip()
        period = (folder / "cpu.cfs_period_us").read_text().strip()
    return None if quota in ("max", "-1") else int(quota) / int(period)


def used_s(groups: CpuGroups, prefix: str, server: int) -> float:
    """CPU time that the processes of a server have used so far [s], to the nanosecond."""
    total_ns = 0
    for word in (groups.server(prefix, server) / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):  # a process that has ended meanwhile
            total_ns += int(Path(f"/proc/{word}/schedstat").read_text().split()[0])
    return total_ns * 1e-9


def members(groups: CpuGroups, prefix: str) -> list[int]:
    """Processes in the groups of a testbed."""
    pids: list[int] = []
    folder = groups.folder(prefix)
    for path in sorted(folder.glob("*/cgroup.procs")) if folder.is_dir() else []:
        pids += [int(word) for word in path.read_text().split()]
    return [pid for pid in pids if alive(pid)]


def remove(groups: CpuGroups, prefix: str) -> None:
    """End what runs in the groups of a testbed, and remove them."""
    folder = groups.folder(prefix)
    if not folder.is_dir():
        return
    end(members(groups, prefix))
    for child in [*sorted(path for path in folder.iterdir() if path.is_dir()), folder]:
        with contextlib.suppress(OSError):  # who looks again sees what is left
            os.rmdir(child)


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise TestbedError(f"{path} = {value}: {error.strerror}") from error
