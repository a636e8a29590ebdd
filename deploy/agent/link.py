"""The agent's link to one dataplane, which may come, go and come again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from steelyard import native
from steelyard.envs.errors import UserError

_LOG = logging.getLogger("steelyard.agent")


class Link:
    """A pool's shared memory as far as it is there. Not thread-safe."""

    def __init__(self, path: str, num_servers: int, max_age_s: float):
        """max_age_s: a state that is older says that its dataplane does not run."""
        self.path = path
        self.restarted = False
        """Whether the last state is the first of its dataplane: what the agent remembers is of another one."""
        self.connections = 0
        self._num_servers = num_servers
        self._max_age_ns = round(max_age_s * 1e9)
        self._reader: native.ShmReader | None = None
        self._snapshot: native.ShmSnapshot | None = None
        self._generation: int | None = None
        self._said = ""

    def state(self) -> native.ShmSnapshot | None:
        """What the dataplane measured last; None while it is away, has not published or stands still."""
        reader = self._connected()
        if reader is None:
            return None
        try:
            snapshot = reader.snapshot()
        except TimeoutError as error:
            self._say(str(error), logging.WARNING)
            return None
        if snapshot is None:
            self._say(f"{self.path}: nothing published yet", logging.WARNING)
            return None
        age_ns = reader.now_ns() - snapshot.t_ns
        if age_ns > self._max_age_ns:
            self._say(f"{self.path}: the dataplane stands still", logging.WARNING)
            return None
        self._say(f"{self.path}: process {reader.writer_pid} publishes", logging.INFO)
        self.restarted = snapshot.writer_generation != self._generation
        self._generation = snapshot.writer_generation
        self._snapshot = snapshot
        return snapshot

    def act(self, action: Sequence[float]) -> None:
        """Answer the last state. action: (N,) in [-1, 1]."""
        if self._reader is not None and self._snapshot is not None:
            self._reader.act(action, self._snapshot)

    def close(self) -> None:
        """Tell the dataplane to go on alone, and let go of its file."""
        if self._reader is not None:
            self._reader.withdraw()
        self._reader = self._snapshot = None

    def _connected(self) -> native.ShmReader | None:
        if self._reader is not None and not self._reader.is_current:
            self._reader = self._snapshot = self._generation = None  # generations are of one file
        if self._reader is None:
            try:
                self._reader = native.ShmReader(self.path, agent=True)
            except ValueError as error:
                self._say(str(error), logging.WARNING)
                return None
            self.connections += 1
            self._check_fits(self._reader.num_servers)
        if self._reader is not None and not self._reader.writer_lives:
            self._say(f"{self.path}: its dataplane is gone; waiting for the next", logging.WARNING)
            return None
        return self._reader

    def _check_fits(self, num_servers: int) -> None:
        """At the first sight of a pool a policy for another is an error; later on the agent waits."""
        if num_servers == self._num_servers:
            return
        self._reader = None
        text = f"{self.path}: the pool has {num_servers} servers; the policy is for {self._num_servers}"
        if self.connections == 1:
            raise UserError(text)
        self._say(text, logging.ERROR)

    def _say(self, text: str, level: int) -> None:
        """Once, until something else is to be said."""
        if text != self._said:
            _LOG.log(level, "%s", text)
        self._said = text
