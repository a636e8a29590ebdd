"""Traces: the committed recording, the reader's Python face, writing and importing."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import native
from steelyard.deploy.testbed.commands import ImportTrace, RecordTrace
from steelyard.deploy.testbed.plan import CLASS_NAMES, STATIC_FILES
from steelyard.envs.errors import UserError
from steelyard.envs.trace_file import HEADER_LINE, VERSION_LINE, TraceRows, trace_text, write_trace
from steelyard.envs.trace_import import Columns, import_csv

WEB = Path(__file__).parent.parent / "envs" / "traces" / "web.csv"
HEAD = f"{VERSION_LINE}\n{HEADER_LINE}\n"
GOOD = HEAD + "0,php,7421,312\n1500,static-100k,95,102400\n4500,php,12,0\n"
ROWS = TraceRows([0, 1500, 4500], ["php", "static-100k", "php"], [7421, 95, 12], [312, 102400, 0])


def columns(trace: native.Trace) -> tuple[list[int], list[str], list[int], list[int]]:
    """The columns of a trace as its file has them."""
    return (
        np.rint(trace.arrival_s * 1e6).astype(int).tolist(),
        [trace.class_names[index] for index in trace.class_id],
        np.rint(trace.service_s * 1e6).astype(int).tolist(),
        trace.bytes.tolist(),
    )


# --- the committed recording ---


def test_recorded_trace_is_small_and_large_enough():
    assert WEB.stat().st_size < 2**20
    trace = native.load_trace(str(WEB))
    assert len(trace) >= 20_000
    assert set(trace.class_names) == set(CLASS_NAMES)
    assert trace.period_s > trace.arrival_s[-1]
    assert trace.mean_rate * trace.period_s == pytest.approx(len(trace))


def test_recorded_trace_holds_what_its_readme_says():
    trace = native.load_trace(str(WEB))
    names = np.array(trace.class_names)[trace.class_id]
    for name, (size, _) in STATIC_FILES.items():
        assert (trace.bytes[names == name] == size).all()
    # Exponential iterations with a mean of 10 ms, measured as CPU time: coefficient of variation 1, and
    # its standard error for exponential samples is 1 / sqrt(n). The processor's own scatter (up to 1.5) adds
    # a little, hence the wider upper bound.
    php_s = trace.service_s[names == "php"]
    variation = php_s.std() / php_s.mean()
    assert 1 - 4 / np.sqrt(len(php_s)) < variation < 1.15
    assert 0.008 < php_s.mean() < 0.012
    for static in STATIC_FILES:
        assert np.median(trace.service_s[names == static]) < 0.1 * php_s.mean()


def test_recorded_arrivals_swell_as_a_poisson_process_does():
    # Rate r (1 + a sin(2 pi t / T)): in the first half of a period falls a share 1/2 + a/pi of its arrivals.
    trace = native.load_trace(str(WEB))
    period_s, swell = 12.0, 0.3
    whole = trace.arrival_s[trace.arrival_s < np.floor(trace.arrival_s[-1] / period_s) * period_s]
    share = float(np.mean((whole % period_s) < period_s / 2))
    expected = 0.5 + swell / np.pi
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / len(whole))


# --- native.Trace ---


def test_columns_are_read_only_views_that_outlive_the_trace():
    trace = native.parse_trace(GOOD.encode())
    arrival_s = trace.arrival_s
    assert arrival_s.dtype == np.float64
    assert trace.class_id.dtype == np.uint16
    assert trace.bytes.dtype == np.uint64
    with pytest.raises(ValueError, match="read-only"):
        arrival_s[0] = 1.0
    assert np.shares_memory(arrival_s, trace.arrival_s)
    del trace
    assert arrival_s.tolist() == [0.0, 0.0015, 0.0045]


def test_a_trace_survives_pickling():
    trace = native.parse_trace(GOOD.encode())
    assert columns(pickle.loads(pickle.dumps(trace))) == columns(trace)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "T: the file is empty; need the line '# steelyard-trace-v1' first"),
        ("\x00\xff", "T:1: '???' is not a version line; need '# steelyard-trace-v1'"),
        (GOOD + "4400,php,1,1\n", "T:6: column arrival_us: '4400' is not allowed; need at least 4500"),
        (
            GOOD + "5000,php,nan,1\n",
            "T:6: column service_us: 'nan' is not allowed; need a whole number from 1 to",
        ),
        (GOOD + "5000,php,1\n", "T:6: 3 columns; need 4: arrival_us,class,service_us,bytes"),
    ],
)
def test_bad_text_is_one_line_with_its_place(text: str, message: str):
    with pytest.raises(ValueError, match=r"^T:") as error:
        native.parse_trace(text.encode(), "T")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_arrays_make_a_trace_or_an_error():
    arrays = {
        "arrival_s": np.array([0.0, 0.5, 0.5]),
        "class_id": np.array([0, 1, 0], np.uint16),
        "service_s": np.array([1.0, 2.0, 3.0]),
        "bytes": np.array([1, 2, 3], np.uint64),
        "class_names": ["a", "b"],
    }
    assert native.Trace(**arrays).service_s.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=r"service_s\[1\] = nan; need a finite time above 0"):
        native.Trace(**{**arrays, "service_s": np.array([1.0, np.nan, 3.0])})
    with pytest.raises(ValueError, match="service_s has 2 dimensions; need 1"):
        native.Trace(**{**arrays, "service_s": np.ones((3, 1))})
    with pytest.raises(TypeError):  # -1 must not become class 65535
        native.Trace(**{**arrays, "class_id": np.array([0, -1, 0])})


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_trace_or_one_error_line(tail: bytes, with_head: bool):
    try:
        trace = native.parse_trace((GOOD.encode() if with_head else b"") + tail, "T")
    except ValueError as error:
        message = str(error)
    else:
        message = "T:"
        assert trace.arrival_s[0] == 0
        assert (np.diff(trace.arrival_s) >= 0).all()
        assert (trace.service_s > 0).all()
    assert message.startswith("T:")
    assert message.isprintable()


# --- writing ---

_row = st.tuples(
    st.integers(0, 10**9),
    st.text("abcXYZ019._-", min_size=1, max_size=64),
    st.integers(1, 10**15),
    st.integers(0, 10**15),
)


@given(st.lists(_row, min_size=1, max_size=20))
def test_what_is_written_is_what_is_read(rows: list[tuple[int, str, int, int]]):
    gaps, names, service_us, size = (list(column) for column in zip(*rows, strict=True))
    arrival_us = [0, *(np.cumsum(gaps) + 1).tolist()]
    expected = TraceRows(arrival_us, ["first", *names], [1, *service_us], [0, *size])
    trace = native.parse_trace(trace_text(expected, ["a note", "two\nlines"]).encode())
    assert columns(trace) == (arrival_us, expected.class_name, expected.service_us, expected.bytes)


def test_write_refuses_to_replace_and_leaves_nothing_half_written(tmp_path: Path):
    target = tmp_path / "t.csv"
    write_trace(target, ROWS)
    before = target.read_bytes()
    with pytest.raises(UserError, match=r"t\.csv.*does not exist yet; --force replaces it"):
        write_trace(target, ROWS)
    backwards = TraceRows([0, 2, 1], ["a"] * 3, [1] * 3, [0] * 3)
    with pytest.raises(UserError, match=r"not written: .*:5: column arrival_us: '1'"):
        write_trace(target, backwards, force=True)
    with pytest.raises(UserError, match="in a folder that exists"):
        write_trace(tmp_path / "no" / "t.csv", ROWS)
    with pytest.raises(UserError, match="a file, not a folder"):
        write_trace(tmp_path, ROWS, force=True)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    write_trace(target, TraceRows([0, 7], ["a", "a"], [1, 1], [0, 0]), force=True)
    assert len(native.load_trace(str(target))) == 2


# --- importing ---


def imported(tmp_path: Path, text: str | bytes, sort: bool = False, **options: str) -> TraceRows:
    """Import a CSV given as text."""
    source = tmp_path / "source.csv"
    source.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_csv(source, Columns(**{"arrival": "t", "service": "s", **options}), sort)


def test_import_converts_units_exactly(tmp_path: Path):
    # Seconds since 1970 with nanoseconds: a float64 would round them to 0.2 us.
    text = "s,t\n1.5,1763650800.000000001\n0.0000004,1763650800.123456501\n"
    rows = imported(tmp_path, text, service_unit="ms")
    assert rows.arrival_us == [0, 123456]
    assert rows.service_us == [1500, 1]  # above 0 stays above 0
    assert rows.class_name == ["request", "request"]
    assert rows.bytes == [0, 0]
    rows = imported(tmp_path, "t,s\n5000,7\n8499,9\n", arrival_unit="ns")
    assert (rows.arrival_us, rows.service_us) == ([0, 3], [7_000_000, 9_000_000])


def test_import_reads_iso_dates_classes_sizes_and_other_delimiters(tmp_path: Path):
    text = (
        "\ufefft;s;route;size\r\n"
        "2025-01-31T12:00:00.25+01:00;3;/index.php;10\r\n"
        "2025-01-31T11:00:00.5+00:00;4;static 1;2e3\r\n"
    )
    options = {"arrival_unit": "iso", "class_column": "route", "bytes_column": "size", "delimiter": ";"}
    rows = imported(tmp_path, text, service_unit="us", **options)
    assert rows.arrival_us == [0, 250_000]
    assert rows.class_name == ["_index.php", "static_1"]
    assert rows.service_us == [3, 4]
    assert rows.bytes == [10, 2000]


def test_import_sorts_only_when_told(tmp_path: Path):
    text = "t,s\n2,0.2\n1,0.1\n4,0.4\n"
    with pytest.raises(
        UserError, match=r"source\.csv:3: column t: 1000000 us before the row above.*or --sort"
    ):
        imported(tmp_path, text)
    rows = imported(tmp_path, text, sort=True)
    assert rows.arrival_us == [0, 1_000_000, 3_000_000]
    assert rows.service_us == [100_000, 200_000, 400_000]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the file has no header line"),
        ("t,s\n", {}, "0 requests; need at least 2"),
        ("time,s\n1,1\n", {}, r":1: unknown column 't'.*allowed: s, time"),
        ("t,t,s\n1,1,1\n", {}, ":1: column 't' appears 2 times"),
        ("t,s\n1,1\n2\n", {}, ":3: 1 columns; need 2"),
        ("t,s\n1,1\nNaN,1\n", {}, ":3: column t: 'NaN' is not allowed; need a number"),
        ("t,s\n1,1\n1e99,1\n", {}, ":3: column t: '1e99' is not allowed"),
        ("t,s\n1,1\n1_000,1\n", {}, ":3: column t: '1_000' is not allowed"),
        ("t,s\n1,1\n2,-1\n", {}, ":3: column s: '-1' is not allowed; need a time above 0"),
        ("t,s\n1,1\n2,0\n", {}, ":3: column s: '0' is not allowed"),
        ("t,s\n1,1\n2,\n", {}, ":3: column s: '' is not allowed"),
        ("t,s\n1,1\n1,1\n", {}, "from first to last arrival 0 us"),
        ('t,s\n1,1\n"2,1\n', {}, ":3: not a CSV line"),
        (b"t,s\n1,1\n\xff,1\n", {}, r":3: column t: '.*xff' is not allowed"),
        (
            "t,s,b\n1,1,1\n2,1,1.5\n",
            {"bytes_column": "b"},
            ":3: column b: '1.5' is not allowed; need a whole",
        ),
        ("t,s,c\n1,1,a b\n2,1,a_b\n", {"class_column": "c"}, ":3: column c: 'a_b' .*already made of 'a b'"),
        (
            "t,s,c\n1,1, \n2,1,a\n",
            {"class_column": "c"},
            ":2: column c: ' ' is not allowed; need a class name",
        ),
        ("t,s\n31.1.25,1\n", {"arrival_unit": "iso"}, ":2: column t: '31.1.25' is not allowed; need a date"),
        ("t,s\n1,1\n2,1\n", {"arrival_unit": "min"}, "unknown arrival_unit 'min'"),
        ("t,s\n1,1\n2,1\n", {"delimiter": "::"}, "delimiter = '::': must be one character"),
    ],
)
def test_import_names_what_is_wrong_and_where(
    tmp_path: Path, text: str | bytes, options: dict[str, str], message: str
):
    with pytest.raises(UserError, match=message) as error:
        imported(tmp_path, text, **options)
    assert "\n" not in str(error.value)


def test_import_command_writes_a_trace_and_keeps_what_exists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source, target = tmp_path / "mine.csv", tmp_path / "out.csv"
    source.write_text("when,cost\n10,2\n20,4\n")
    command = ImportTrace(source, target, "when", "cost", "ms", "ms")
    assert command.run() == 0
    assert "2 requests of 1 classes in 0.010 s, mean service 3.000 ms" in capsys.readouterr().out
    assert columns(native.load_trace(str(target))) == ([0, 10_000], ["request"] * 2, [2000, 4000], [0, 0])
    with pytest.raises(UserError, match="--force replaces it"):
        command.run()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        ImportTrace(tmp_path / "none.csv", tmp_path / "other.csv", "a", "b").run()
    assert not (tmp_path / "other.csv").exists()


# --- options of the recorder, refused before anything is started ---


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("requests", 1, "requests = 1: must be 2 to"),
        ("rate", 0.0, "rate = 0.0: must be above 0"),
        ("rate", float("nan"), "rate = nan"),
        ("rate", 0.001, "requests / rate = .* h: must be at most 1 h"),
        ("php_share", 1.5, "php_share = 1.5: must be 0 to 1"),
        ("php_mean_ms", -1.0, "php_mean_ms = -1.0"),
        ("swell", 2.0, "swell = 2.0: must be 0 to 1"),
        ("swell_period_s", 0.0, "swell_period_s = 0.0"),
        ("workers", 0, "workers = 0: must be 1 to"),
        ("seed", -1, "seed = -1"),
        ("php_mean_ms", 1000.0, "cores: must be at most .* cores at the top of the swell"),
    ],
)
def test_recorder_refuses_impossible_options(tmp_path: Path, option: str, value: float, message: str):
    with pytest.raises(UserError, match=message):
        RecordTrace(tmp_path / "t.csv", **{option: value}).run()


def test_commands_load_nothing_heavy():
    code = (
        "import sys, steelyard.deploy.testbed.commands as c; c.RecordTrace, c.ImportTrace; "
        "print(*sorted({'torch', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
