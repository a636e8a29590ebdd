"""The recorder: its schedule, its open-loop client, and (slow) recordings from a real Apache on loopback."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from steelyard import native
from steelyard.deploy.testbed import apache
from steelyard.deploy.testbed.apache import PrivateApache, ServerError, find_apache, parse_log_line
from steelyard.deploy.testbed.client import ClientError, OpenLoopClient, Reply, Request
from steelyard.deploy.testbed.commands import RecordTrace
from steelyard.deploy.testbed.plan import CLASS_NAMES, STATIC_FILES, Workload, draw_plan
from steelyard.deploy.testbed.recorder import Recording, RecordingError
from steelyard.envs.errors import UserError

WORKLOAD = Workload(20_000, 100.0, 0.6, 0.01, 0.5, 10.0, seed=3)


# --- schedule ---


def test_plan_is_drawn_from_its_seed_alone():
    first, again = draw_plan(WORKLOAD, 1e6), draw_plan(WORKLOAD, 2e6)
    assert (first.arrival_us == again.arrival_us).all()
    assert (first.class_id == again.class_id).all()
    other = draw_plan(Workload(20_000, 100.0, 0.6, 0.01, 0.5, 10.0, seed=4), 1e6)
    assert (first.arrival_us != other.arrival_us).any()


def test_plan_has_the_rates_shares_and_work_that_were_asked_for():
    plan = draw_plan(WORKLOAD, iterations_per_s=1e8)
    count = WORKLOAD.requests
    assert plan.arrival_us[0] == 0
    assert (np.diff(plan.arrival_us) >= 0).all()
    # A Poisson process of N arrivals lasts N / rate with standard error sqrt(N) / rate; the swell averages
    # out over whole periods and can shift the end by at most swell * period / (2 pi) at either end.
    slack_s = 4 * np.sqrt(count) / WORKLOAD.rate + WORKLOAD.swell * WORKLOAD.swell_period_s / np.pi
    assert abs(plan.arrival_us[-1] / 1e6 - count / WORKLOAD.rate) < slack_s
    share = np.mean(plan.class_id == 0)
    assert abs(share - 0.6) < 4 * np.sqrt(0.6 * 0.4 / count)
    iterations = plan.iterations[plan.class_id == 0]
    assert abs(iterations.mean() - 1e6) < 4 * 1e6 / np.sqrt(len(iterations))
    assert (plan.iterations[plan.class_id != 0] == 0).all()
    assert plan.path(int(np.argmax(plan.class_id == 0))).startswith("/loop.php?n=")
    assert plan.path(int(np.argmax(plan.class_id == 1))) == "/static-100k.bin"


def test_shares_of_static_files_add_up():
    assert sum(share for _, share in STATIC_FILES.values()) == pytest.approx(1.0)


# --- client, against small servers of its own ---


class Server:
    """An asyncio server in a thread; `handle` serves one connection."""

    def __init__(self, handle: Callable[..., object]):
        self._handle = handle
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)  # type: ignore[arg-type]
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    def __enter__(self) -> Server:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *unused: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def play(port: int, count: int, max_open: int = 64) -> list[Reply]:
    """`count` requests, a millisecond apart."""
    requests = [Request(f"r{index}", "/", 1000 * index) for index in range(count)]
    return OpenLoopClient("127.0.0.1", port, max_open).run(requests)


async def finish(writer: asyncio.StreamWriter, reply: bytes) -> None:
    """Send a reply and close."""
    writer.write(reply)
    await writer.drain()
    writer.close()


def test_no_request_waits_for_the_replies_before_it():
    # The server answers nobody before everybody has asked: a closed loop would wait forever.
    waiting: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting.append(writer)
        if len(waiting) == 20:
            for each in waiting:
                await finish(each, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")

    with Server(handle) as server:
        replies = play(server.port, 20)
    assert [(reply.status, reply.body_bytes, reply.problem) for reply in replies] == [(200, 3, "")] * 20
    last_sent = max(reply.sent_us for reply in replies)
    assert all(reply.done_us >= last_sent for reply in replies)
    assert all(reply.sent_us >= 1000 * index for index, reply in enumerate(replies))


def test_too_many_open_requests_end_the_run():
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # never answers; ends when the client gives up

    with Server(handle) as server, pytest.raises(ClientError, match=r"5 requests open at .* cannot keep up"):
        play(server.port, 20, max_open=5)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "3 bytes of 9"),
        (b"HTTP/1.1 200 OK\r\nContent", "closed before a whole reply head"),
        (b"", "closed before a whole reply head"),
    ],
)
def test_a_reply_that_is_not_whole_is_a_problem(reply: bytes, problem: str):
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await finish(writer, reply)

    with Server(handle) as server:
        assert play(server.port, 2)[0].problem == problem


def test_nobody_listening_is_a_problem():
    assert play(apache.free_port(), 2)[0].problem.startswith("no connection: ")


# --- checks of a recording ---


def recording(cpu_us: np.ndarray, script_us: np.ndarray) -> Recording:
    """A recording of PHP requests alone, with given times."""
    plan = draw_plan(Workload(len(cpu_us), 100.0, 1.0, 0.01, 0.0, 1.0, seed=1), 1e8)
    zero = np.zeros(len(cpu_us), np.int64)
    return Recording(plan, zero, zero, cpu_us, zero, script_us, zero)


def test_service_times_that_cannot_be_true_are_refused():
    work_us = draw_plan(Workload(1000, 100.0, 1.0, 0.01, 0.0, 1.0, seed=1), 1e8).iterations // 100
    recording(work_us + 300, work_us).check(0.9)
    with pytest.raises(RecordingError, match=r"correlation of -?0\.\d+; need at least 0\.9"):
        recording(np.random.default_rng(1).permutation(work_us) + 300, 0 * work_us).check(0.9)
    with pytest.raises(RecordingError, match=r"the CPU clock read 0 for 1.00% of requests"):
        recording(np.where(np.arange(1000) % 100 == 0, 0, work_us + 300), work_us).check(0.9)
    with pytest.raises(RecordingError, match="the two clocks disagree"):
        recording(work_us + 300, work_us + 400).check(0.9)


def test_log_lines_are_read_or_refused():
    line = parse_log_line("r7 200 100000 252 -0 -")
    assert (line.request_id, line.status, line.body_bytes, line.wall_us, line.cpu_us) == (
        "r7",
        200,
        100_000,
        252,
        0,
    )
    assert line.script_us is None
    assert parse_log_line("r8 200 10 9 8 7").script_us == 7
    for bad in ("", "r7 200 - 1 1 1", "r7 200 1 1 1 1 1"):
        with pytest.raises(ServerError, match="not in the expected format"):
            parse_log_line(bad)


# --- what is missing ---


def test_missing_apache_or_php_names_the_packages(tmp_path: Path):
    with pytest.raises(
        UserError, match=r"Apache .* is missing; install .*apt-get install .*apache2-bin libapache2-mod-php"
    ):
        find_apache(search_path=str(tmp_path))
    binary = tmp_path / "apache2"
    binary.write_text("")
    binary.chmod(0o755)
    with pytest.raises(UserError, match=r"mpm_prefork_module .* is missing; install it: sudo apt-get"):
        find_apache(search_path=str(tmp_path), modules=tmp_path)
    for name in ("mpm_prefork", "authz_core", "mime", "lua"):
        (tmp_path / f"mod_{name}.so").write_text("")
    with pytest.raises(UserError, match=r"php_module .*libphp.* is missing; install it: sudo apt-get"):
        find_apache(search_path=str(tmp_path), modules=tmp_path)


# --- a real Apache ---


@pytest.fixture(scope="module")
def installation() -> apache.Installation:
    """The installed Apache; where it is missing, CI fails and others skip."""
    try:
        return find_apache()
    except UserError as error:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(f"CI needs a real Apache: {error}")
        pytest.skip(str(error))


def spy(start: Callable[[PrivateApache], None], folders: list[Path]) -> Callable[[PrivateApache], None]:
    """The same start, which also notes the folder of the server."""

    def noted(server: PrivateApache) -> None:
        folders.append(server.root)
        start(server)

    return noted


def servers_of(pid: int) -> list[int]:
    """Children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def folder_of(server: int) -> Path:
    """Folder of a running private Apache, from its command line `apache2 -f FOLDER/httpd.conf ...`."""
    words = Path(f"/proc/{server}/cmdline").read_bytes().decode().split("\0")
    return Path(words[words.index("-f") + 1]).parent


def eventually(holds: Callable[[], object], what: str) -> None:
    """Wait for something that another process does."""
    for _ in range(600):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail(f"{what}: not within 30 s")


@pytest.mark.slow
@pytest.mark.usefixtures("installation")
def test_records_a_trace_from_a_real_apache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folders: list[Path] = []
    monkeypatch.setattr(PrivateApache, "_start", spy(PrivateApache._start, folders))
    target, details = tmp_path / "t.csv", tmp_path / "details.csv"
    command = RecordTrace(
        target,
        requests=400,
        rate=60.0,
        php_mean_ms=4.0,
        workers=8,
        seed=5,
        min_correlation=0.5,  # a busy machine scatters CPU times; rows joined wrongly have none at all
        details=details,
    )
    assert command.run() == 0
    trace = native.load_trace(str(target))
    plan = draw_plan(command.workload(), 1e8)
    assert np.rint(trace.arrival_s * 1e6).astype(int).tolist() == plan.arrival_us.tolist()
    names = np.array(trace.class_names)[trace.class_id]
    assert names.tolist() == [CLASS_NAMES[index] for index in plan.class_id]
    for name, (size, _) in STATIC_FILES.items():
        assert (trace.bytes[names == name] == size).all()
    # Demands are exponential with a mean of 4 ms of this processor's time, which itself scatters.
    assert 0.001 < trace.service_s[names == "php"].mean() < 0.016
    assert "correlation of service time" in capsys.readouterr().out
    header, *rows = details.read_text().splitlines()
    assert header.startswith("class,iterations,scheduled_us,sent_us,done_us,cpu_us")
    assert len(rows) == 400
    assert len(folders) == 1
    assert not folders[0].exists()
    with pytest.raises(UserError, match="--force replaces it"):
        command.run()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
@pytest.mark.usefixtures("installation")
def test_no_server_outlives_its_recorder(tmp_path: Path, number: int, status: int):
    code = (
        "import signal, sys; from pathlib import Path\n"
        "from steelyard.deploy.testbed.commands import RecordTrace\n"
        # A background job of a shell is born deaf to SIGINT.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "command = RecordTrace(Path(sys.argv[1]), rate=40.0, php_mean_ms=2.0, workers=4, quiet=True)\n"
        "try: sys.exit(command.run())\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    recorder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "t.csv")])
    try:
        eventually(lambda: servers_of(recorder.pid), "Apache starts")
        (server,) = servers_of(recorder.pid)
        eventually(lambda: len(servers_of(server)) >= 4, "its workers start")
        workers = servers_of(server)
        folder = folder_of(server)
        time.sleep(1.0)  # into the warm-up or the recording
        recorder.send_signal(number)
        assert recorder.wait(30) == status
    finally:
        recorder.kill()
        recorder.wait()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in [server, *workers]), "Apache ends")
    assert list(tmp_path.iterdir()) == []
    if number == signal.SIGKILL:  # nobody was left to remove it
        shutil.rmtree(folder)
    assert not folder.exists()


@pytest.mark.slow
def test_a_server_that_cannot_start_says_why(
    installation: apache.Installation, monkeypatch: pytest.MonkeyPatch
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(apache, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(ServerError, match=r"Apache did not start: ."), PrivateApache(installation, 2):
            pass
