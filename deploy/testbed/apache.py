"""A private Apache on loopback: own folder, own port, prefork workers, a CPU-bound PHP page and static files.

The system's Apache service and its configuration are neither used nor touched. Every request is logged with
the CPU time that its server process spent on it (see LUA_CPU_TIME).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from steelyard.deploy.testbed import machine
from steelyard.deploy.testbed.plan import MAX_ITERATIONS, STATIC_FILES
from steelyard.envs.errors import UserError

INSTALL = "sudo apt-get install -y --no-install-recommends apache2-bin libapache2-mod-php"
HOST = "127.0.0.1"
START_LIMIT_S = 20.0
STOP_LIMIT_S = 10.0

LUA_CPU_TIME = """\
-- A prefork process serves one request at a time, so the CPU time of the process between the start of a
-- request and its log line is that of the request, in Apache, PHP and kernel, whatever else the machine does.
require "apache2"
function begin(r)
  r.notes["cpu_begin_us"] = string.format("%.0f", os.clock() * 1e6)
  return apache2.DECLINED
end
function finish(r)
  local begin_us = tonumber(r.notes["cpu_begin_us"])
  if begin_us then r.notes["cpu_us"] = string.format("%.0f", os.clock() * 1e6 - begin_us) end
  return apache2.DECLINED
end
"""

PHP_PAGE = """\
<?php
function cpu_us() {
  $u = getrusage();
  $s = $u['ru_utime.tv_sec'] + $u['ru_stime.tv_sec'];
  return $s * 1000000 + $u['ru_utime.tv_usec'] + $u['ru_stime.tv_usec'];
}
$begin_us = cpu_us();
$n = (int)($_GET['n'] ?? 0);
if ($n < 1 || $n > MAX_ITERATIONS) { http_response_code(400); exit; }
$sum = 0;
for ($i = 0; $i < $n; $i++) { $sum = ($sum * 31 + $i) & 0xffffff; }
apache_note('script_us', (string)(cpu_us() - $begin_us));
$reply = str_pad((string)$sum, 10 + intdiv($n, 100), 'x');
header('Content-Length: ' . strlen($reply));  // else chunks, whose frames the client would count
echo $reply;
""".replace("MAX_ITERATIONS", str(MAX_ITERATIONS))

# No PHP time limits: they arm a process timer, and while one is armed Linux answers CPU-time questions from a
# copy that is refreshed at clock ticks (4 ms), too coarse for a request. The page bounds its own work.
CONFIGURATION = """\
ServerRoot "{root}"
ServerName {host}
Listen {host}:{port}
PidFile "{root}/httpd.pid"
Mutex "file:{root}"
{modules}
{identity}
StartServers {workers}
MinSpareServers {workers}
MaxSpareServers {workers}
ServerLimit {workers}
MaxRequestWorkers {workers}
MaxConnectionsPerChild 0
KeepAlive Off
Timeout 60
EnableSendfile On
TypesConfig /dev/null
ErrorLog "{root}/error.log"
LogFormat "%{{X-Request-Id}}i %>s %B %D %{{cpu_us}}n %{{script_us}}n" steelyard
CustomLog "{root}/access.log" steelyard
LuaScope server
LuaCodeCache forever
LuaQuickHandler "{root}/cpu_time.lua" begin
LuaHookLog "{root}/cpu_time.lua" finish
php_admin_value max_execution_time 0
php_admin_value max_input_time 0
DocumentRoot "{root}/htdocs"
<Directory "{root}/htdocs">
  Require all granted
  AllowOverride None
  <FilesMatch "\\.php$">
    SetHandler application/x-httpd-php
  </FilesMatch>
</Directory>
"""


@dataclass(frozen=True)
class Installation:
    """Where this machine has Apache."""

    binary: Path
    modules: tuple[tuple[str, Path], ...]
    """Name and file of each module to load, in order."""

    def version(self) -> str:
        """As "Apache/2.4.66 (Debian)"."""
        answer = subprocess.run(
            [self.binary, "-v"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
        return answer.splitlines()[0].partition(":")[2].strip()

    def php_version(self) -> str:
        """As "PHP 8.2", from the module's file name."""
        return "PHP " + next(
            path.stem.removeprefix("libphp") for name, path in self.modules if name == "php_module"
        )


def find_apache(
    search_path: str | None = None,
    modules: Path = Path("/usr/lib/apache2/modules"),
    more: Sequence[str] = (),
) -> Installation:
    """The installed Apache and the modules that a recording needs, and `more` (names as "headers").

    UserError naming what is missing and the command that installs it.
    """
    search_path = search_path or os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    binary = shutil.which("apache2", path=search_path)
    if binary is None:
        raise UserError(f"Apache (apache2) is missing; install it and PHP: {INSTALL}")
    found = []
    for name in ("mpm_prefork", "authz_core", "mime", "lua", *more):
        found.append((f"{name}_module", modules / f"mod_{name}.so"))
    php = sorted(modules.glob("libphp*.so"))
    found.append(("php_module", php[-1] if php else modules / "libphp8.2.so"))
    for name, path in found:
        if not path.exists():
            raise UserError(f"Apache's {name} ({path}) is missing; install it: {INSTALL}")
    return Installation(Path(binary), tuple(found))


class ServerError(RuntimeError):
    """The server did not start or did not do what a recording needs. One line."""


@dataclass(frozen=True)
class LogLine:
    """One served request."""

    request_id: str
    status: int
    body_bytes: int
    wall_us: int
    """Apache's %D: from reading the request to logging it, with every wait in between [us]."""
    cpu_us: int
    """CPU time of the server process on this request [us]."""
    script_us: int | None
    """CPU time of the PHP script alone, by its own getrusage [us]; None for static files."""


class PrivateApache:
    """Context manager: starts an Apache of its own in a temporary folder, stops it and removes the folder."""

    def __init__(self, installation: Installation, workers: int):
        self.installation = installation
        self.workers = workers
        self.port = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        """Folder of the running server."""
        assert self._folder is not None
        return Path(self._folder.name)

    def __enter__(self) -> PrivateApache:
        self._folder = tempfile.TemporaryDirectory(prefix="steelyard-apache-")
        try:
            self._write_files()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_files(self) -> None:
        pages = self.root / "htdocs"
        pages.mkdir()
        self.root.chmod(0o755)  # the workers run as another user and read from here
        (pages / "loop.php").write_text(PHP_PAGE)
        for name, (size, _) in STATIC_FILES.items():
            (pages / f"{name}.bin").write_bytes(os.urandom(size))
        (self.root / "cpu_time.lua").write_text(LUA_CPU_TIME)
        self.port = free_port()
        (self.root / "httpd.conf").write_text(
            CONFIGURATION.format(
                root=self.root,
                host=HOST,
                port=self.port,
                workers=self.workers,
                modules="\n".join(f'LoadModule {name} "{path}"' for name, path in self.installation.modules),
                identity=identity(self.root),
            )
        )

    def _start(self) -> None:
        with (self.root / "start.log").open("wb") as output:
            self._process = subprocess.Popen(
                [self.installation.binary, "-f", self.root / "httpd.conf", "-DFOREGROUND"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,  # Ctrl-C reaches this process alone, which then stops the server
                preexec_fn=machine.ends_with_us(),
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            if self._process.poll() is not None:
                raise ServerError(f"Apache did not start: {self.last_error()}")
            if time.monotonic() > deadline:
                raise ServerError(f"Apache does not answer after {START_LIMIT_S:g} s: {self.last_error()}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Whether our own server listens: it writes its pid once it has bound the port."""
        if not (self.root / "httpd.pid").exists():
            return False
        try:
            socket.create_connection((HOST, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def last_error(self) -> str:
        """Last line that the server wrote about a problem."""
        lines = []
        for name in ("error.log", "start.log"):
            path = self.root / name
            lines += path.read_text(errors="replace").splitlines()[-1:] if path.exists() else []
        return lines[-1] if lines else "it wrote no message"

    def served(self) -> list[LogLine]:
        """Requests in the log so far that carried an id, in the order of completion."""
        path = self.root / "access.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [line for line in map(parse_log_line, lines) if line.request_id != "-"]

    def close(self) -> None:
        """Stop the server and every process it started, and remove its folder. May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its own: nothing else is in this group
        if self._folder is not None:
            self._folder.cleanup()


def parse_log_line(line: str) -> LogLine:
    """A line of our log format; ServerError when it is not one."""
    try:
        request_id, status, size, wall_us, cpu_us, script_us = line.split(" ")
        script = None if script_us == "-" else int(script_us)
        return LogLine(request_id, int(status), int(size), int(wall_us), int(float(cpu_us)), script)
    except ValueError as error:
        raise ServerError(f"log line {line[:80]!r} is not in the expected format") from error


def free_port() -> int:
    """A TCP port that nobody on loopback listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def identity(root: Path) -> str:
    """Apache refuses to serve as root; Debian has the user www-data for this. Others serve as themselves."""
    if os.geteuid() != 0:
        return ""
    closed = [folder for folder in root.parents if not folder.stat().st_mode & 0o001]
    if closed:
        raise UserError(
            f"TMPDIR = {root.parent}: must be a folder that others may enter; {closed[0]} is closed"
        )
    try:
        pwd.getpwnam("www-data")
    except KeyError as error:
        raise UserError(
            f"user www-data, which Apache serves as, is missing; install it: {INSTALL}"
        ) from error
    return "User www-data\nGroup www-data"
