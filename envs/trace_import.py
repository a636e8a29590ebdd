"""Importer: a CSV of requests with its own column names and units -> a trace file of ours.

Accepted: any CSV with a header line, UTF-8 with or without byte-order mark. Needed is a column of arrival
times and one of service times; class and size are optional. Times are numbers in s, ms, us or ns since any
moment, or ISO 8601 dates for arrivals; they are converted exactly (decimal), shifted so that the first
arrival is 0, and rounded to whole microseconds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from steelyard.envs.errors import UserError, shown, unknown
from steelyard.envs.trace_file import TraceRows, class_name

MICROSECONDS = {"s": Decimal(10**6), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}
MAX_NUMBER = 10**15
"""Largest number of any column of the format (31 years in microseconds)."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Columns:
    """Which column of the user's CSV holds what."""

    arrival: str
    service: str
    arrival_unit: str = "s"
    service_unit: str = "s"
    class_column: str | None = None
    bytes_column: str | None = None
    delimiter: str = ","

    def check(self) -> None:
        """UserError for units and delimiters that do not exist."""
        if self.arrival_unit not in (*MICROSECONDS, "iso"):
            raise unknown("arrival_unit", self.arrival_unit, (*MICROSECONDS, "iso"))
        if self.service_unit not in MICROSECONDS:
            raise unknown("service_unit", self.service_unit, MICROSECONDS)
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise UserError(
                f"delimiter = {shown(self.delimiter)}: must be one character that is no quote or line end"
            )

    def used(self) -> list[str]:
        """Names of the columns to read."""
        names = (self.arrival, self.service, self.class_column, self.bytes_column)
        return [name for name in names if name is not None]


@dataclass(frozen=True)
class _Request:
    line: int
    arrival_us: Decimal
    name: str
    service_us: int
    size: int


def import_csv(path: Path, columns: Columns, sort: bool = False) -> TraceRows:
    """Read a user's CSV. UserError 'FILE:LINE: column C: VALUE ...; need ...' for the first bad line.

    sort: order the rows by arrival (server logs are in the order of completion); otherwise rows that go back
    in time are an error.
    """
    columns.check()
    requests = list(_requests(path, columns))
    if len(requests) < 2:
        raise UserError(f"{path}: {len(requests)} requests; need at least 2")
    if sort:
        requests.sort(key=lambda request: request.arrival_us)
    start = requests[0].arrival_us
    arrival_us = []
    previous = start
    for request in requests:
        if request.arrival_us < previous:
            raise UserError(
                f"{path}:{request.line}: column {columns.arrival}: {previous - request.arrival_us:f} us "
                "before the row above it; need rows in order of arrival, or --sort"
            )
        previous = request.arrival_us
        arrival_us.append(round(request.arrival_us - start))
    _check_span(path, arrival_us[-1])
    return TraceRows(
        arrival_us,
        [request.name for request in requests],
        [request.service_us for request in requests],
        [request.size for request in requests],
    )


def _check_span(path: Path, span_us: int) -> None:
    """The last arrival must lie between 1 us and 31 years after the first."""
    if not 1 <= span_us <= MAX_NUMBER:
        raise UserError(f"{path}: from first to last arrival {span_us} us; need 1 to {MAX_NUMBER} us")


def _requests(path: Path, columns: Columns) -> Iterator[_Request]:
    """The rows of the file, each checked by itself."""
    merged: dict[str, str] = {}
    for line, row in _rows(path, columns):
        where = f"{path}:{line}"
        size = _whole(where, columns.bytes_column, row) if columns.bytes_column else 0
        name = _class(where, columns.class_column, row, merged) if columns.class_column else "request"
        arrival_us = _arrival(where, columns, row)
        service_us = _time_us(where, columns.service, row[columns.service], columns.service_unit)
        if service_us <= 0 or round(service_us) > MAX_NUMBER:
            raise _bad(
                where, columns.service, row[columns.service], f"a time above 0 and up to {MAX_NUMBER} us"
            )
        yield _Request(line, arrival_us, name, max(1, round(service_us)), size)


def _rows(path: Path, columns: Columns) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and cells by column name of every row that is not blank."""
    try:
        # Undecodable bytes stay visible in their cell, so that the error can name line and column.
        with path.open(encoding="utf-8-sig", errors="backslashreplace", newline="") as stream:
            reader = csv.reader(stream, delimiter=columns.delimiter, strict=True)
            yield from _cells(path, reader, columns)
    except OSError as error:
        raise UserError(f"trace source {shown(str(path))} cannot be read: {error.strerror}") from error


def _cells(path: Path, reader: Any, columns: Columns) -> Iterator[tuple[int, dict[str, str]]]:
    """As _rows, over an open reader."""
    try:
        header = [name.strip() for name in next(reader, [])]
        if not header:
            raise UserError(f"{path}: the file has no header line; need one with the column names")
        for name in columns.used():
            if header.count(name) > 1:
                raise UserError(
                    f"{path}:1: column {shown(name)} appears {header.count(name)} times; need once"
                )
            if name not in header:
                raise UserError(f"{path}:1: {unknown('column', name, header)}")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{path}:{reader.line_num}: {len(cells)} columns; need {len(header)} as in line 1"
                )
            yield reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: not a CSV line: {error}") from error


def _bad(where: str, column: str, value: str, need: str) -> UserError:
    return UserError(f"{where}: column {column}: {shown(value)} is not allowed; need {need}")


def _number(where: str, column: str, value: str, need: str) -> Decimal:
    """A finite decimal number of sane length and exponent."""
    try:
        number = Decimal(value.strip()) if len(value) <= 64 and "_" not in value else Decimal("nan")
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or number.adjusted() > 30:
        raise _bad(where, column, value, need)
    return number


def _time_us(where: str, column: str, value: str, unit: str) -> Decimal:
    return _number(where, column, value, f"a number [{unit}]") * MICROSECONDS[unit]


def _arrival(where: str, columns: Columns, row: dict[str, str]) -> Decimal:
    """Arrival in microseconds since a moment that is the same for every row."""
    value = row[columns.arrival]
    if columns.arrival_unit != "iso":
        return _time_us(where, columns.arrival, value, columns.arrival_unit)
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError as error:
        raise _bad(
            where, columns.arrival, value, "a date as 2025-01-31T12:00:00.5, with or without zone"
        ) from error
    elapsed = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return Decimal((elapsed.days * 86_400 + elapsed.seconds) * 10**6 + elapsed.microseconds)


def _whole(where: str, column: str, row: dict[str, str]) -> int:
    need = f"a whole number from 0 to {MAX_NUMBER}"
    number = _number(where, column, row[column], need)
    if number != number.to_integral_value() or not 0 <= number <= MAX_NUMBER:
        raise _bad(where, column, row[column], need)
    return int(number)


def _class(where: str, column: str, row: dict[str, str], merged: dict[str, str]) -> str:
    """The cell as a class name. Two different texts must not become one class: that hides a difference."""
    text = row[column].strip()
    name = class_name(text)
    if not name:
        raise _bad(where, column, row[column], "a class name")
    first = merged.setdefault(name, text)
    if first != text:
        raise _bad(
            where, column, text, f"a text that is not the class {name!r} already made of {shown(first)}"
        )
    return name
