"""The shared memory between dataplane and agent, from Python: views, snapshots, and both sides killed."""

import itertools
import os
import random
import re
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from pools import child, free_path, now_ns, scrambled, send_flows, until

from steelyard import native

HEADER = Path(native.include_dir()) / "native" / "shm" / "steelyard_shm.h"


def test_a_snapshot_is_what_the_dataplane_measured():
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 8, pool_id=5)
        reader = native.ShmReader(path)
        assert (reader.num_servers, reader.reservoir_size, reader.writer_pid) == (8, 128, os.getpid())
        assert reader.snapshot() is None
        for first in (0, 500, 1000):
            end_ns = send_flows(dataplane, first, first + 500)
            dataplane.publish(end_ns)
            snapshot = reader.snapshot()
            assert (snapshot.t_ns, snapshot.pool_id) == (end_ns, 5)
            np.testing.assert_array_equal(snapshot.observation(), dataplane.observe(end_ns))
        servers = snapshot.servers
        assert servers["flows_opened"].sum() == servers["packets"].sum() == 1500
        assert servers["bytes"].sum() == 150_000
        np.testing.assert_array_equal(servers["n_flow_on"], servers["flows_opened"] - servers["flows_completed"])
        np.testing.assert_array_equal(servers["n_flow_on"], snapshot.observation()[: 8 * 11 : 11])
        samples = snapshot.samples("fct", 3)
        assert len(samples) == min(128, len(samples)) > 0
        np.testing.assert_allclose(samples["value"], 0.05, rtol=1e-6)
        assert set(samples["t_ns"] % 1_000_000) == {0}
        gaps = snapshot.samples("inter_arrival")
        np.testing.assert_allclose(gaps["value"], 1e-3, rtol=1e-6)


def test_empty_slots_are_absent():
    with free_path() as path:
        dataplane, reader = native.ShmDataplane(path, 2), native.ShmReader(path)
        server = dataplane.open(1, 0)
        dataplane.close(1, server, True, 2_000_000_000)
        dataplane.publish(2_000_000_000)
        snapshot = reader.snapshot()
        assert snapshot.samples("fct", server)["value"].tolist() == [2.0]
        assert len(snapshot.samples("fct", 1 - server)) == 0


@pytest.mark.parametrize("servers", [63, 64, 65, 128])
def test_active_servers_around_a_word(servers):
    with free_path() as path:
        dataplane, reader = native.ShmDataplane(path, servers), native.ShmReader(path)
        dataplane.set_members([0, servers - 2, servers - 1])
        dataplane.publish(1)
        assert np.flatnonzero(reader.snapshot().active).tolist() == [0, servers - 2, servers - 1]


def test_views_are_not_copies_and_not_writeable():
    with free_path() as path:
        dataplane, reader = native.ShmDataplane(path, 2), native.ShmReader(path)
        dataplane.publish(1)
        number = reader.latest
        view, copy = reader.counters(number), reader.snapshot().servers
        server = dataplane.open(1, 0)
        for now in (2, 3):
            dataplane.publish(now)
            assert reader.still_whole(number)
            assert view["n_flow_on"].sum() == 0
        dataplane.publish(4)  # comes round to the frame of the view
        assert not reader.still_whole(number)
        assert view[server]["n_flow_on"] == 1
        assert copy["n_flow_on"].sum() == 0
        for array in (view, copy, reader.snapshot().samples("inter_arrival")):
            assert not array.flags.writeable
            assert not array.flags.owndata
            with pytest.raises(ValueError, match="read-only"):
                array["action" if "action" in array.dtype.names else "value"] = 0
        del reader, dataplane  # the view keeps the mapping
        assert view[server]["n_flow_on"] == 1


def test_records_are_laid_out_as_in_the_header():
    """The header is the source: its struct, field by field, against the dtype."""
    body = re.search(r"typedef struct \{([^}]*)\} steelyard_shm_server;", HEADER.read_text())[1]
    fields = re.findall(r"uint64_t (\w+)(?:\[(\d+)\])?;", body)
    offsets = dict(zip([name for name, _ in fields], itertools.accumulate(
        [8 * int(count or 1) for _, count in fields], initial=0), strict=False))  # fmt: skip
    with free_path() as path:
        dataplane, reader = native.ShmDataplane(path, 1), native.ShmReader(path)
        dataplane.publish(1)
        dtype = reader.snapshot().servers.dtype
    assert dtype.itemsize == sum(8 * int(count or 1) for _, count in fields)
    assert {name: dtype.fields[name][1] for name in dtype.names} == {
        name: offset for name, offset in offsets.items() if name != "reserved"
    }


def test_actions_come_back():
    with free_path() as path:
        dataplane, agent = native.ShmDataplane(path, 2), native.ShmReader(path, agent=True)
        dataplane.publish(now_ns())
        assert dataplane.poll(now_ns())[:2] == ("no agent has written yet", 0)
        snapshot = agent.snapshot()
        assert agent.act(np.array([1, -1], np.float32), snapshot) == 1
        assert dataplane.poll(now_ns())[:2] == ("usable", 1)
        assert dataplane.weights_q16 == [4 << 16, 1 << 14]
        dataplane.publish(now_ns())
        assert agent.snapshot().observation()[-2:].tolist() == [1, -1]
        assert agent.snapshot().action_status == "usable"
        assert agent.set_weights([3, 0.5], snapshot) == 2
        assert dataplane.poll(now_ns())[:2] == ("usable", 2)
        assert dataplane.weights_q16 == [3 << 16, 1 << 15]
        for values, why in (([np.nan, 1], "not finite"), ([2, 0], "out of range")):
            agent.act(values, snapshot)
            assert dataplane.poll(now_ns())[0] == why
        agent.set_weights([0, 0], snapshot)
        assert "no active server" in dataplane.poll(now_ns())[0]
        agent.act([0, 0], snapshot, now_ns=now_ns() - 2_000_000_000)
        assert dataplane.poll(now_ns())[0].startswith("stale")
        agent.withdraw()
        assert "withdrawn" in dataplane.poll(now_ns())[0]
        assert dataplane.weights_q16 == [3 << 16, 1 << 15]


def test_wrong_use_is_refused_in_one_line():
    with free_path() as path:
        with pytest.raises(ValueError, match="No such file"):
            native.ShmReader(path)
        dataplane, reader = native.ShmDataplane(path, 2), native.ShmReader(path)
        dataplane.publish(1)
        snapshot = reader.snapshot()
        for wrong, match in (
            (lambda: native.ShmDataplane(path, 2), "has a dataplane already"),
            (lambda: native.ShmDataplane(path + "x", 0), "out of range"),
            (lambda: native.ShmDataplane(path + "x", 2, reservoir_size=129), "out of range"),
            (lambda: reader.act([0, 0], snapshot), "agent=True"),
            (lambda: snapshot.samples("fct", 2), "must be in 0..1"),
            (lambda: snapshot.samples("speed", 0), "inter_arrival"),
            (lambda: dataplane.set_members([2]), "must be in 0..1"),
            (lambda: native.ShmReader(path, agent=True).act([0], snapshot), "one for each of the 2"),
        ):
            with pytest.raises(ValueError, match=re.escape(match)) as error:
                wrong()
            assert "\n" not in str(error.value)
        assert not Path(path + "x").exists()


def publish_for_ever(path: str) -> None:
    """A dataplane in which every flow is either on or completed, and the time says how many there were."""
    dataplane = native.ShmDataplane(path, 4)
    on: deque[tuple[int, int]] = deque()
    for flow in itertools.count():
        on.append((scrambled(flow), dataplane.open(scrambled(flow), flow)))
        if len(on) > 100:
            dataplane.close(*on.popleft(), True, flow)
        dataplane.publish(flow + 1)


def test_killed_dataplanes_leave_whole_publications():
    """kill -9 at any moment: readers go on with the last whole publication, the successor after it."""
    rng = random.Random(0)
    generations, reader, last = 12, None, 0
    with free_path() as path:
        for generation in range(1, generations + 1):
            with child(lambda: publish_for_ever(path)):
                until(lambda: Path(path).exists())
                if reader is None:
                    until(lambda: native.ShmReader(path).latest > 0 if Path(path).exists() else False)
                    reader = native.ShmReader(path)
                until(lambda g=generation: (s := reader.snapshot()) is not None and s.writer_generation == g)
                reads = rng.randrange(1, 400)
                for _ in range(reads):
                    last = check_whole(reader.snapshot(tries=10**6), last)
            assert not reader.writer_lives
            last = check_whole(reader.snapshot(), last)
            assert reader.is_current
        with pytest.raises(ValueError, match="stale: its dataplane"):
            native.ShmReader(path)
        assert Path(path).stat().st_mode & 0o7777 == 0o600


def check_whole(snapshot: native.ShmSnapshot, last: int) -> int:
    """Its publication, after `last` or the same."""
    servers = snapshot.servers
    assert snapshot.publication >= last
    assert servers["flows_opened"].sum() == snapshot.t_ns
    assert (servers["flows_opened"] == servers["n_flow_on"] + servers["flows_completed"]).all()
    return snapshot.publication


def act_for_ever(path: str) -> None:
    """An agent all of whose values are one number, another one each time."""
    agent = native.ShmReader(path, agent=True)
    snapshot = agent.snapshot()
    for k in itertools.count():
        agent.act([(k % 1000) / 1000] * 64, snapshot)


def test_killed_agents_leave_whole_actions_and_need_no_catching_up():
    rng = random.Random(1)
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 64)
        dataplane.publish(now_ns())
        last = 0
        for _ in range(12):
            seen = []
            with child(lambda: act_for_ever(path)):
                until(lambda: dataplane.agent_lives)
                until(lambda: dataplane.poll(now_ns())[1] > last)  # the first action of the new agent counts
                for _ in range(rng.randrange(1, 2000)):
                    status, generation, _ = dataplane.poll(now_ns())
                    if status.startswith("torn"):
                        continue
                    assert status == "usable"
                    assert generation >= last
                    assert len(set(dataplane.weights_q16)) == 1
                    last = generation
                    seen.append(generation)
            assert not dataplane.agent_lives
            status, last, _ = dataplane.poll(now_ns())
            assert status in ("usable", "stale: older than the limit")
            assert len(set(dataplane.weights_q16)) == 1
        assert last > 12


def test_a_file_is_private_whatever_the_umask():
    before = os.umask(0)
    try:
        with free_path() as path:
            native.ShmDataplane(path, 1)
            assert Path(path).stat().st_mode & 0o7777 == 0o600
    finally:
        os.umask(before)


def test_the_clock_is_that_of_python():
    with free_path() as path:
        dataplane = native.ShmDataplane(path, 1)
        dataplane.publish(1)
        first = now_ns()
        between = native.ShmReader(path).now_ns()
        assert first <= between <= now_ns()
