"""The servers of a testbed: one Apache (prefork, PHP) in each server's namespace, on the virtual address."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import time
from pathlib import Path

from steelyard.deploy.testbed import apache
from steelyard.deploy.testbed.apache import Installation, LogLine, parse_log_line
from steelyard.deploy.testbed.machine import TestbedError, call_in, command
from steelyard.deploy.testbed.network import HTTP_PORT, VIP, Network
from steelyard.deploy.testbed.plan import STATIC_FILES

EXTRA_MODULES = ("headers",)
BACKLOG = 4096
"""Connections that a server lets wait while all its workers are busy."""
_ANSWER_LIMIT_S = 20.0

_MORE = """\
ListenBacklog {backlog}
Header always set X-Server "{server}"
BufferedLogs Off
"""


def configuration(
    installation: Installation, root: Path, pages: Path, server: int, workers: int, more: str = ""
) -> str:
    """The text of a server's configuration; `more` goes last."""
    text = apache.CONFIGURATION.format(
        root=root,
        host=VIP,
        port=HTTP_PORT,
        workers=workers,
        modules="\n".join(f'LoadModule {name} "{path}"' for name, path in installation.modules),
        identity=apache.identity(root),
    )
    text = text.replace(f"{root}/htdocs", str(pages))
    return text + _MORE.format(backlog=BACKLOG, server=server) + more


def write_pages(folder: Path) -> None:
    """What all servers serve: the PHP page and the static files."""
    folder.mkdir(mode=0o755)
    (folder / "loop.php").write_text(apache.PHP_PAGE)
    for name, (size, _) in STATIC_FILES.items():
        (folder / f"{name}.bin").write_bytes(os.urandom(size))


def start(
    network: Network,
    server: int,
    folder: Path,
    installation: Installation,
    workers: int,
    group: Path,
    more: str = "",
) -> None:
    """Start one server in its namespace and its control group; returns once its first process is there.

    more: as `configuration` has it.
    """
    root = server_folder(folder, server)
    root.mkdir(mode=0o755)
    (root / "cpu_time.lua").write_text(apache.LUA_CPU_TIME)
    text = configuration(installation, root, folder / "htdocs", server, workers, more)
    (root / "httpd.conf").write_text(text)
    begin = (
        f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))} && "
        f"exec {shlex.quote(str(installation.binary))} -f {shlex.quote(str(root / 'httpd.conf'))} -k start"
    )
    namespace = f"/run/netns/{network.server(server)}"
    try:
        command(("nsenter", f"--net={namespace}", "sh", "-c", begin))
    except TestbedError as error:
        raise TestbedError(f"server {server}: {last_error(root) or error}") from error


def await_answer(network: Network, server: int, folder: Path) -> None:
    """Until the server takes connections; TestbedError with its last message if it does not."""
    deadline = time.monotonic() + _ANSWER_LIMIT_S

    def connect() -> None:
        socket.create_connection((VIP, HTTP_PORT), timeout=1.0).close()

    while True:
        try:
            return call_in(network.server(server), connect)
        except OSError as error:
            if time.monotonic() > deadline:
                said = last_error(server_folder(folder, server)) or str(error)
                raise TestbedError(f"server {server} does not answer: {said}") from error
        time.sleep(0.05)


def main_process(folder: Path, server: int) -> int | None:
    """The first process of a server, by its own file; None without one."""
    try:
        return int((server_folder(folder, server) / "httpd.pid").read_text())
    except (OSError, ValueError):
        return None


def log_size(folder: Path, server: int) -> int:
    """Bytes in a server's log so far."""
    with contextlib.suppress(FileNotFoundError):
        return (server_folder(folder, server) / "access.log").stat().st_size
    return 0


def log_since(folder: Path, server: int, offset: int) -> list[LogLine]:
    """Requests with an id that a server logged beyond that offset."""
    try:
        with (server_folder(folder, server) / "access.log").open("rb") as log:
            log.seek(offset)
            text = log.read().decode("ascii", "replace")
    except FileNotFoundError:
        return []
    whole, _, _ = text.rpartition("\n")
    lines = [line for line in whole.split("\n") if line]
    return [line for line in map(parse_log_line, lines) if line.request_id != "-"]


def server_folder(folder: Path, server: int) -> Path:
    """Where a server keeps its files."""
    return folder / f"s{server}"


def last_error(root: Path) -> str:
    """Last line that a server wrote about a problem; empty without one."""
    path = root / "error.log"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1] if lines else ""
