"""A page as blocks, written as Markdown and as one self-contained HTML file, so that both say the same."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; display: block; overflow-x: auto }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap }
.n { text-align: right } .words td { white-space: normal }
img { max-width: 100% } figure { margin: 1.5rem 0 } figcaption { color: #555; font-size: 13px }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; font-size: 12px } a { color: #0645ad }
"""


@dataclass(frozen=True)
class Link:
    """Text that leads somewhere: #anchor of the page, or a path beside it."""

    text: str
    href: str


Inline = str | Link


@dataclass(frozen=True)
class Heading:
    """A heading, to which its anchor leads."""

    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    parts: tuple[Inline, ...]


@dataclass(frozen=True)
class Table:
    """Rows of cells; columns of numbers are right-aligned. With words=True lines may wrap."""

    header: Sequence[str]
    rows: Sequence[Sequence[Inline]]
    words: bool = False


@dataclass(frozen=True)
class Code:
    """Lines as typed."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A PNG, which stands beside a Markdown page under its name and inside an HTML page."""

    name: str
    caption: str
    png: bytes
    html_only: bool = False
    """Not among the files beside the page, so not in Markdown."""


Block = Heading | Text | Table | Code | Picture


def text(*parts: Inline) -> Text:
    """A paragraph of these parts."""
    return Text(parts)


def paragraphs(words: str) -> list[str]:
    """What stands between empty lines; a line that starts with "- " begins one of its own."""
    return [part.strip() for part in re.split(r"\n\s*\n|\n(?=- )", words) if part.strip()]


def anchor(name: str) -> str:
    """A name as an anchor."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def markdown(title: str, blocks: Sequence[Block]) -> str:
    """The page as Markdown."""
    parts = [f"# {_plain(title)}", *(_markdown(block) for block in blocks)]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """The page as HTML that needs no other file."""
    body = "\n".join(_html(block) for block in blocks)
    name = html.escape(title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>{name}</h1>\n{body}\n</body></html>\n"
    )


def markdown_table(table: Table) -> str:
    """A table as Markdown."""
    rule = ["---:" if numeric else "---" for numeric in _numeric(table)]
    rows = [table.header, rule, *table.rows]
    return "\n".join("| " + " | ".join(_inline(cell) for cell in row) + " |" for row in rows)


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        mark = f'<a id="{block.anchor}"></a>\n\n' if block.anchor else ""
        return f"{mark}{'#' * block.level} {_plain(block.text)}"
    if isinstance(block, Text):
        return "".join(_inline(part) for part in block.parts)
    if isinstance(block, Table):
        return markdown_table(block)
    if isinstance(block, Code):
        return f"```bash\n{block.text}\n```"
    return "" if block.html_only else f"![{_plain(block.caption)}]({block.name}.png)"


def _inline(part: Inline) -> str:
    return f"[{_plain(part.text)}]({part.href})" if isinstance(part, Link) else _plain(part)


def _plain(words: str) -> str:
    """Words in which Markdown sees no mark, and no line ends."""
    return re.sub(r"([|<*])", r"\\\1", re.sub(r"\s+", " ", words))


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        mark = f' id="{html.escape(block.anchor)}"' if block.anchor else ""
        return f"<h{block.level}{mark}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        return "<p>" + "".join(_html_inline(part) for part in block.parts) + "</p>"
    if isinstance(block, Table):
        return _html_table(block)
    if isinstance(block, Code):
        return f"<pre>{html.escape(block.text)}</pre>"
    data, caption = base64.b64encode(block.png).decode(), html.escape(block.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption>'
        "</figure>"
    )


def _html_table(table: Table) -> str:
    kinds = [' class="n"' if numeric else "" for numeric in _numeric(table)]
    head = "".join(f"<th{k}>{html.escape(c)}</th>" for k, c in zip(kinds, table.header, strict=True))
    rows = [
        "<tr>" + "".join(f"<td{k}>{_html_inline(c)}</td>" for k, c in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    ]
    kind = ' class="words"' if table.words else ""
    return f"<table{kind}><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table>"


def _numeric(table: Table) -> list[bool]:
    """For each column, whether it holds numbers and nothing else."""
    columns = zip(*table.rows, strict=True) if table.rows else [[] for _ in table.header]
    return [all(re.match(r"[-+]?[0-9]", words(cell) or "0") for cell in column) for column in columns]


def words(part: Inline) -> str:
    """A cell without its link."""
    return part.text if isinstance(part, Link) else part


def _html_inline(part: Inline) -> str:
    if isinstance(part, Link):
        return f'<a href="{html.escape(part.href)}">{html.escape(part.text)}</a>'
    return html.escape(part)
