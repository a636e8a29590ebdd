"""What a testbed does to the machine: steps carried out, namespaces entered, processes found and ended."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from steelyard.deploy.testbed.network import OffloadsOff, Run, Step, Sysctl, is_ours
from steelyard.envs.errors import LiveError, UserError

INSTALL = "sudo apt-get install -y --no-install-recommends iproute2"
_NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_SIOCETHTOOL = 0x8946
_ETHTOOL_SETS = {"rx-checksum": 0x15, "tx-checksum": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}
_COMMAND_LIMIT_S = 20.0
_END_LIMIT_S = 5.0
_PR_SET_PDEATHSIG = 1

Result = TypeVar("Result")


class TestbedError(LiveError):
    """The machine did not do what the testbed needs. One line."""

    __test__ = False  # not a class of tests


def require_root() -> None:
    """UserError unless this machine lets us make namespaces."""
    if os.geteuid() != 0:
        raise UserError(
            "a testbed makes network namespaces and cgroups, so it needs root; try: sudo steelyard ..."
        )
    if shutil.which("ip") is None:
        raise UserError(f"the command ip is missing; install it: {INSTALL}")


def carry_out(steps: Iterable[Step]) -> None:
    """Every step in turn; TestbedError at the first that fails."""
    for step in steps:
        if isinstance(step, Run):
            command(step.argv)
        elif isinstance(step, Sysctl):
            _set(step)
        else:
            _offloads_off(step)


def command(
    argv: Sequence[str | Path],
    cwd: str | Path | None = None,
    name: str | None = None,
    limit_s: float = _COMMAND_LIMIT_S,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
) -> str:
    """What a command prints; TestbedError, which calls it by `name`, with its last line if it fails."""
    words = [str(word) for word in argv]
    name = name or " ".join(words)
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env=environment,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except subprocess.TimeoutExpired as error:
        raise TestbedError(f"{name}: has not ended within {limit_s:g} s") from error
    except OSError as error:
        raise TestbedError(f"{name}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise TestbedError(f"{name}: {said[-1] if said else f'status {done.returncode}'}")
    return done.stdout


def ends_with_us() -> Callable[[], object]:
    """What a child calls before it runs: it ends when this process does, killed without clean-up or not."""
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """This thread, and no other, is in that network namespace within the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        there = os.open(_NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TestbedError(f"namespace {namespace}: {error.strerror}; the testbed is not up") from error
    try:
        if libc.setns(there, _CLONE_NEWNET) != 0:
            raise TestbedError(f"namespace {namespace}: {os.strerror(ctypes.get_errno())}")
        try:
            yield
        finally:
            libc.setns(home, _CLONE_NEWNET)
    finally:
        os.close(there)
        os.close(home)


def call_in(namespace: str, function: Callable[[], Result]) -> Result:
    """What a function returns that is called in that namespace, on a thread of its own."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            with entered(namespace):
                results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def namespaces(prefix: str) -> list[str]:
    """Namespaces on this machine that belong to the testbed of that name."""
    if not _NAMESPACES.is_dir():
        return []
    return sorted(path.name for path in _NAMESPACES.iterdir() if is_ours(prefix, path.name))


def processes_in(namespace: str) -> list[int]:
    """Processes whose network is that namespace; none of one that was only half made."""
    try:
        return [int(word) for word in command(("ip", "netns", "pids", namespace)).split()]
    except TestbedError:
        return []


def end(pids: Iterable[int]) -> None:
    """Ends these processes: asks first, kills what is still there after five seconds."""
    waiting = _signal(list(pids), signal.SIGTERM)
    deadline = time.monotonic() + _END_LIMIT_S
    while waiting and time.monotonic() < deadline:
        time.sleep(0.05)
        waiting = [pid for pid in waiting if alive(pid)]
    _signal(waiting, signal.SIGKILL)
    while waiting and time.monotonic() < deadline + _END_LIMIT_S:
        time.sleep(0.05)
        waiting = [pid for pid in waiting if alive(pid)]


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and waits to be noticed does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def _signal(pids: Sequence[int], number: int) -> list[int]:
    """Those that are there to get it."""
    reached = []
    for pid in pids:
        try:
            os.kill(pid, number)
            reached.append(pid)
        except ProcessLookupError:
            continue
    return reached


def _set(step: Sysctl) -> None:
    path = Path("/proc/sys") / step.key.replace(".", "/")
    try:
        with entered(step.namespace):
            path.write_text(step.value)
    except OSError as error:
        if "ipv6" in step.key and not path.exists():
            return  # a kernel without IPv6 has nothing to turn off
        raise TestbedError(f"{step.key} = {step.value} in {step.namespace}: {error.strerror}") from error


def _offloads_off(step: OffloadsOff) -> None:
    with entered(step.namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for what, number in _ETHTOOL_SETS.items():
            value = ctypes.create_string_buffer(struct.pack("II", number, 0))
            request = struct.pack("16sP", step.device.encode(), ctypes.addressof(value)).ljust(40, b"\0")
            try:
                fcntl.ioctl(control, _SIOCETHTOOL, request)
            except OSError as error:
                raise TestbedError(
                    f"{what} of {step.device} in {step.namespace} cannot be turned off: {error.strerror}"
                ) from error
