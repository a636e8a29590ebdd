"""The native open-loop client against small servers on loopback that misbehave on purpose."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from steelyard import native

OK, NO_CONNECTION, TIMEOUT, RESET, SHORT, OVERLOAD, STOPPED = range(7)
WHOLE = b"HTTP/1.1 200 OK\r\nX-Server: 3\r\nContent-Length: 3\r\n\r\nabc"


class Server:
    """An asyncio server in a thread; `handle(reader, writer)` serves one connection."""

    def __init__(self, handle: Callable[..., Any]):
        self._handle = handle
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0, backlog=1024)
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


def client(
    port: int, due_ns: list[int], timeout_s: float = 20.0, max_open: int = 512
) -> native.OpenLoopClient:
    """One that asks for / at these times."""
    return native.OpenLoopClient("127.0.0.1", port, due_ns, ["/"], [0] * len(due_ns), timeout_s, max_open)


def play(made: native.OpenLoopClient) -> dict[str, np.ndarray]:
    """Its results, started now."""
    made.run(time.monotonic_ns())
    return made.results()


def answering(reply: bytes) -> Callable[..., Any]:
    """Serves every connection with these bytes, then closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    return handle


def test_no_request_waits_for_the_replies_before_it() -> None:
    waiting: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting.append(writer)
        for each in waiting if len(waiting) == 20 else ():  # nobody is answered before everybody has asked
            each.write(WHOLE)
            each.close()

    with Server(handle) as server:
        found = play(client(server.port, [index * 1_000_000 for index in range(20)]))
    assert (found["problem"] == OK).all()
    assert (found["status"] == 200).all()
    assert (found["server"] == 3).all()
    assert (found["body_bytes"] == 3).all()
    assert (np.diff(found["sent_ns"]) > 0).all()


def test_requests_leave_at_their_times_and_say_who_they_are() -> None:
    asked: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(WHOLE)
        writer.close()

    due = [0, 30_000_000, 60_000_000]
    with Server(handle) as server:
        made = native.OpenLoopClient("127.0.0.1", server.port, due, ["/a", "/b?n=1"], [1, 0, 1], 5.0, 8)
        found = play(made)
    assert (found["sent_ns"] >= due).all()
    assert (found["done_ns"] > found["sent_ns"]).all()
    heads = [head.split(b"\r\n")[0] for head in asked]
    assert heads == [b"GET /b?n=1 HTTP/1.1", b"GET /a HTTP/1.1", b"GET /b?n=1 HTTP/1.1"]
    assert [b"X-Request-Id: r%d" % i in head for i, head in enumerate(asked)] == [True] * 3
    assert made.sent == made.done == 3


@pytest.mark.parametrize(
    ("reply", "problem", "status"),
    [
        (b"", SHORT, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Le", SHORT, 0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", SHORT, 200),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", OK, 503),
        (b"HTTP/1.1 200 OK\r\n\r\nwithout a length", OK, 200),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 9000, SHORT, 0),
        (b"\x00\xff garbage \r\n\r\n", OK, 0),
    ],
)
def test_what_a_server_says_is_told(reply: bytes, problem: int, status: int) -> None:
    with Server(answering(reply)) as server:
        found = play(client(server.port, [0]))
    assert (found["problem"][0], found["status"][0], found["server"][0]) == (problem, status, -1)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        found = play(client(taken.getsockname()[1], [0, 1]))
    assert (found["problem"] == NO_CONNECTION).all()


def test_a_silent_server_times_out_and_a_full_house_turns_away() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    with Server(handle) as server:
        found = play(client(server.port, [0, 0, 0], timeout_s=0.1, max_open=2))
    assert sorted(found["problem"]) == [TIMEOUT, TIMEOUT, OVERLOAD]
    assert (found["sent_ns"] < 0).sum() == 1


def test_stop_ends_a_run_from_another_thread() -> None:
    with Server(answering(WHOLE)) as server:
        made = client(server.port, [0, 3_600_000_000_000])
        thread = threading.Thread(target=made.run, args=(time.monotonic_ns(),))
        thread.start()
        while made.done < 1:
            time.sleep(0.005)
        made.stop()
        thread.join()
    assert made.results()["problem"].tolist() == [OK, STOPPED]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"due_ns": [1, 0]}, "due_ns: must be ascending"),
        ({"due_ns": [-1, 0]}, "due_ns: must be 0 or more"),
        ({"path_of": [0]}, "path_of: needs one entry"),
        ({"path_of": [0, 1]}, "path_of: 1 is no index"),
        ({"paths": ["a"]}, 'paths: "a" is not allowed'),
        ({"paths": ["/a b"]}, 'paths: "/a b" is not allowed'),
        ({"address": "localhost"}, 'address: "localhost" is no IPv4 or IPv6 address'),
        ({"timeout_s": 0.0}, "timeout_s: must be above 0"),
        ({"max_open": 0}, "max_open: must be 1 or more"),
    ],
)
def test_bad_plans_are_refused(change: dict[str, Any], says: str) -> None:
    good = {
        "address": "::1",
        "port": 80,
        "due_ns": [0, 0],
        "paths": ["/"],
        "path_of": [0, 0],
        "timeout_s": 1.0,
        "max_open": 1,
    }
    native.OpenLoopClient(**good)
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        native.OpenLoopClient(**(good | change))


def test_a_plan_is_played_once() -> None:
    made = client(1, [])
    made.run(time.monotonic_ns())
    with pytest.raises(RuntimeError, match="played once"):
        made.run(time.monotonic_ns())
