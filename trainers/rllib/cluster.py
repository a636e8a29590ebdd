"""Ray for a run: started here with few resources, or a cluster by its address; stopped if it was started."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from steelyard.envs.errors import UserError, bad_value

_PORT = 6379  # of a head node, if the address names none
_CONNECT_S = 5.0
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP2_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # an empty frame: length (3), type 4, flags, stream (4)
_ADDRESS = re.compile(r"(?:ray://)?(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\])(?::(?P<port>[0-9]{1,5}))?")


def check_address(address: str | None) -> None:
    """UserError unless something answers at the address of a Ray cluster; within seconds."""
    if address is None:
        return
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"] or _PORT) < 65536 or address.startswith("ray://"):
        raise bad_value("--ray-address", address, "HOST or HOST:PORT of a cluster's head node")
    host, port = match["host"].strip("[]"), int(match["port"] or _PORT)
    try:
        reason = "" if _speaks_grpc(host, port) else "something else answers there"
    except OSError as error:
        reason = error.strerror or str(error) or "no answer"
    if reason:
        raise UserError(
            f"--ray-address: no Ray cluster at {host}:{port} ({reason}); start one with `ray start --head`"
        )


def _speaks_grpc(host: str, port: int) -> bool:
    """Whether the server greets as HTTP/2 does (RFC 9113, Sec. 3.4): Ray itself waits minutes to find out."""
    with socket.create_connection((host, port), _CONNECT_S) as stream:
        stream.settimeout(_CONNECT_S)
        stream.sendall(_HTTP2_PREFACE + _HTTP2_SETTINGS)
        head = b""
        while len(head) < len(_HTTP2_SETTINGS):
            more = stream.recv(len(_HTTP2_SETTINGS) - len(head))
            if not more:
                return False
            head += more
    return head[3] == _HTTP2_SETTINGS[3]


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Ray, on `cpus` cores of this machine or on the cluster. A Ray that runs in this process is used as it
    is.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        _start(address, cpus)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        ray.shutdown()
        where = f"--ray-address: the cluster at {address}" if address else "--engine rllib: Ray"
        hint = "; set RAY_AUTH_MODE=token if it asks for a token" if address else ""
        raise UserError(f"{where} did not start ({type(error).__name__}: {error}){hint}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _start(address: str | None, cpus: int) -> None:
    import ray

    quiet = {"configure_logging": True, "logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        ray.init(num_cpus=cpus, num_gpus=0, include_dashboard=False, **quiet)
    else:
        host, _, port = address.rpartition(":") if ":" in address else (address, "", str(_PORT))
        ray.init(address=f"{host}:{port}", **quiet)
