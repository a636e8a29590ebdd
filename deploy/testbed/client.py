"""An open-loop HTTP client: every request leaves at its scheduled time, whatever became of those before it.

No coordinated omission: the schedule is fixed in advance, one connection per request, and a slow server only
makes more of them open at once. When more are open than a stated limit the run ends with an error; it never
waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

REQUEST_LIMIT_S = 60.0
START_DELAY_S = 0.1
_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True)
class Request:
    """What to ask and when, in microseconds from the start of the run."""

    request_id: str
    path: str
    scheduled_us: int


@dataclass
class Reply:
    """What became of a request; times in microseconds from the start of the run."""

    sent_us: int = -1
    """When the request was really started (connection opened)."""
    done_us: int = -1
    """When the last byte had arrived and the server had closed."""
    status: int = 0
    """HTTP status; 0: none."""
    body_bytes: int = 0
    problem: str = ""
    """Why there is no complete reply; empty when there is one."""


class ClientError(RuntimeError):
    """The run cannot go on. One line."""


class _Exchange(asyncio.BufferedProtocol):
    """One connection: sends the request, counts the reply, reads until the server closes."""

    def __init__(self, request: bytes, reply: Reply, finished: asyncio.Future[None]):
        self._request = request
        self._reply = reply
        self._finished = finished
        self._head = b""
        self._in_body = False
        self._length = -1
        self._buffer = bytearray(_BUFFER_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._in_body:
            self._reply.body_bytes += nbytes
            return
        self._head += self._buffer[:nbytes]
        head, end, body = self._head.partition(b"\r\n\r\n")
        if end:
            self._in_body = True
            self._reply.body_bytes = len(body)
            self._read_head(head)

    def _read_head(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        words = lines[0].split(b" ")
        if len(words) >= 2 and words[1].isdigit():
            self._reply.status = int(words[1])
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length" and value.strip().isdigit():
                self._length = int(value)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._reply.problem = f"connection lost: {exc}"
        elif not self._in_body:
            self._reply.problem = "closed before a whole reply head"
        elif self._length >= 0 and self._reply.body_bytes != self._length:
            self._reply.problem = f"{self._reply.body_bytes} bytes of {self._length}"
        if not self._finished.done():
            self._finished.set_result(None)


class OpenLoopClient:
    """Plays one schedule against one server."""

    def __init__(
        self, host: str, port: int, max_open: int, progress: Callable[[int, int], None] | None = None
    ):
        self.host = host
        self.port = port
        self.max_open = max_open
        self.progress = progress
        """Called about once a second with (replies so far, requests open now)."""
        self._open = 0
        self._done = 0

    def run(self, requests: Sequence[Request]) -> list[Reply]:
        """Send every request at its time; the replies in the order of the requests."""
        return asyncio.run(self._run(requests))

    async def _run(self, requests: Sequence[Request]) -> list[Reply]:
        loop = asyncio.get_running_loop()
        start_s = loop.time() + START_DELAY_S
        tasks: set[asyncio.Task[None]] = set()
        replies = [Reply() for _ in requests]
        failed: asyncio.Future[None] = loop.create_future()

        def launch(request: Request, reply: Reply) -> None:
            if failed.done():
                return
            if self._open >= self.max_open:
                failed.set_exception(
                    ClientError(
                        f"{self._open} requests open at {request.scheduled_us / 1e6:.1f} s: the server "
                        "cannot keep up; need a lower rate or less work per request"
                    )
                )
                return
            self._open += 1
            task = loop.create_task(self._exchange(request, reply, start_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        for request, reply in zip(requests, replies, strict=True):
            loop.call_at(start_s + request.scheduled_us * 1e-6, launch, request, reply)
        try:
            await self._watch(len(requests), failed)
        finally:
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return replies

    async def _watch(self, total: int, failed: asyncio.Future[None]) -> None:
        """Return when every request is done; raise what `failed` holds."""
        reported_s = time.monotonic()
        while self._done < total:
            done, _ = await asyncio.wait([failed], timeout=0.05)
            if done:
                failed.result()
            if self.progress is not None and time.monotonic() - reported_s >= 1.0:
                reported_s = time.monotonic()
                self.progress(self._done, self._open)

    async def _exchange(self, request: Request, reply: Reply, start_s: float) -> None:
        loop = asyncio.get_running_loop()
        text = (
            f"GET {request.path} HTTP/1.1\r\nHost: {self.host}\r\nX-Request-Id: {request.request_id}\r\n"
            "Connection: close\r\n\r\n"
        )
        finished: asyncio.Future[None] = loop.create_future()
        transport = None
        reply.sent_us = round((loop.time() - start_s) * 1e6)
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                transport, _ = await loop.create_connection(
                    lambda: _Exchange(text.encode("ascii"), reply, finished), self.host, self.port
                )
                await finished
        except TimeoutError:
            reply.problem = f"no reply within {REQUEST_LIMIT_S:g} s"
        except OSError as error:
            reply.problem = f"no connection: {error.strerror or error}"
        finally:
            if transport is not None:
                transport.close()
            reply.done_us = round((loop.time() - start_s) * 1e6)
            self._open -= 1
            self._done += 1
