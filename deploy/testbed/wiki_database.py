"""The database of a testbed's wiki: a MariaDB of its own on a Unix socket, and the wiki installed in it once.

The system's MariaDB and its data are neither used nor touched. A prepared database is kept in CACHE, under a
name that changes with MediaWiki, MariaDB, settings and pages; a testbed gets a copy of it that goes with it.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from steelyard.deploy.testbed import machine, wiki
from steelyard.deploy.testbed.machine import TestbedError
from steelyard.deploy.testbed.wiki import WikiPrograms
from steelyard.envs.errors import UserError

CACHE = Path("/var/cache/steelyard")
SPARE_CONNECTIONS = 50
_START_LIMIT_S = 60.0
_PREPARE_LIMIT_S = 600.0


def options(folder: Path, connections: int) -> list[str]:
    """How MariaDB runs on a folder. What a power cut would lose nobody misses: commits wait for no disk."""
    return [
        "--no-defaults",
        f"--user={wiki.USER}",
        f"--datadir={folder / 'data'}",
        f"--socket={folder / 'socket'}",
        f"--pid-file={folder / 'pid'}",
        f"--log-error={folder / 'error.log'}",
        "--skip-networking",
        "--skip-log-bin",
        "--skip-name-resolve",
        "--performance-schema=OFF",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=8M",
        "--innodb-flush-log-at-trx-commit=0",
        f"--max-connections={connections + SPARE_CONNECTIONS}",
    ]


def prepared(programs: WikiPrograms, tell: Callable[[str], None], cache: Path = CACHE) -> Path:
    """The folder of the prepared wiki, made now if it is not there yet. UserError or TestbedError."""
    folder = cache / f"wiki-{_key(programs)}"
    if folder.exists():
        return folder
    tell(f"wiki: installing MediaWiki {programs.version} once, in {folder}")
    cache.mkdir(parents=True, exist_ok=True)
    _remove_partial(cache)
    partial = cache / f"wiki.{os.getpid()}.partial"
    try:
        _prepare(programs, partial)
        try:
            partial.rename(folder)
        except OSError:  # somebody else was first
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def settings_file(folder: Path) -> Path:
    """LocalSettings.php of a wiki in a folder."""
    return folder / "LocalSettings.php"


def start(programs: WikiPrograms, template: Path, folder: Path, connections: int, group: Path) -> None:
    """Copy the prepared wiki to a folder, start its database in a control group; returns once it answers."""
    _own(folder)
    for part in ("data", "cache"):
        # Not by Python's copytree: `cp` keeps owners.
        machine.command(("cp", "-a", template / part, folder / part))
    _write_settings(folder)
    command = shlex.join([str(programs.mariadbd), *options(folder, connections)])
    with (folder / "start.log").open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))} && exec {command}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    _await(process, folder)


def main_process(folder: Path) -> int | None:
    """The database's process, by its own file; None without one."""
    try:
        return int((folder / "pid").read_text())
    except (OSError, ValueError):
        return None


def _key(programs: WikiPrograms) -> str:
    """Changes with everything that a prepared wiki depends on."""
    database = subprocess.run(
        [programs.mariadbd, "--no-defaults", "--version"], capture_output=True, text=True, timeout=30
    ).stdout
    parts = [programs.version, database, wiki.SETTINGS, *wiki.page_texts()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _remove_partial(cache: Path) -> None:
    """What killed preparations have left."""
    for path in cache.glob("wiki.*.partial"):
        if not machine.alive(int(path.name.split(".")[1])):
            shutil.rmtree(path, ignore_errors=True)


def _prepare(programs: WikiPrograms, folder: Path) -> None:
    """Install MediaWiki in a new database in that folder and fill it with the pages."""
    _own(folder)
    for part in ("cache", "pages", "conf"):
        _own(folder / part)
    for page, text in enumerate(wiki.page_texts()):
        (folder / "pages" / wiki.page_title(page)).write_text(text)
    _carry_out(
        [
            programs.install_db,
            "--no-defaults",
            f"--user={wiki.USER}",
            f"--datadir={folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ],
        user=None,
    )
    _write_settings(folder)
    with _running(programs, folder):
        _install(programs, folder)
    for part in ("pages", "conf"):
        shutil.rmtree(folder / part)


def _install(programs: WikiPrograms, folder: Path) -> None:
    maintenance = programs.code / "maintenance"
    _carry_out(
        [
            programs.php,
            maintenance / "install.php",
            *("--dbtype", "mysql", "--dbserver", f"localhost:{folder / 'socket'}"),
            *("--dbname", wiki.DATABASE, "--dbuser", "root", "--installdbuser", "root"),
            *("--confpath", folder / "conf", "--server", "http://localhost", "--scriptpath", "/wiki"),
            *("--skins", "Vector", "--pass", "nobody-logs-in-here", "Testbed", "Admin"),
        ],
    )
    pages = sorted((folder / "pages").iterdir())
    conf = ("--conf", settings_file(folder))
    _carry_out([programs.php, maintenance / "importTextFiles.php", *conf, *pages])
    _carry_out([programs.php, maintenance / "rebuildLocalisationCache.php", *conf, "--lang", "en"])


def _write_settings(folder: Path) -> None:
    settings_file(folder).write_text(wiki.settings(folder / "socket", folder / "cache"))


def _own(folder: Path) -> None:
    """A folder that database and Apache may write to."""
    folder.mkdir(mode=0o755)
    try:
        user = pwd.getpwnam(wiki.USER)
    except KeyError as error:
        raise UserError(f"user {wiki.USER} is missing; install what makes it: {wiki.INSTALL}") from error
    os.chown(folder, user.pw_uid, user.pw_gid)


def _carry_out(argv: Sequence[str | Path], user: str | None = wiki.USER) -> None:
    """A step of the preparation; TestbedError with its last line if it fails."""
    words = [str(word) for word in argv]
    what = Path(words[1] if words[1].endswith(".php") else words[0]).name
    machine.command(words, cwd="/", name=f"wiki: {what}", limit_s=_PREPARE_LIMIT_S, user=user)


@contextmanager
def _running(programs: WikiPrograms, folder: Path) -> Iterator[None]:
    """The database runs within the block, and ends whole."""
    with (folder / "start.log").open("wb") as output:
        process = subprocess.Popen(
            [programs.mariadbd, *options(folder, 0)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            preexec_fn=machine.ends_with_us(),
        )
    try:
        _await(process, folder)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_START_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the database takes connections; TestbedError with its last message if it does not."""
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(folder / "socket"))
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise TestbedError(f"wiki: MariaDB does not start: {last_error(folder)}") from None
        time.sleep(0.05)


def last_error(folder: Path) -> str:
    """Last line that the database wrote; a note if there is none."""
    for name in ("error.log", "start.log"):
        path = folder / name
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        if lines:
            return lines[-1]
    return "it wrote no message"
