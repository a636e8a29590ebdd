"""The README and the pages under docs/ run as they are printed."""

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if ">>> " in page.read_text()
]


def test_pages_with_examples_are_found():
    assert {"README.md", "docs/simulator.md", "docs/environments.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_the_page_says(page):
    result = doctest.testfile(str(ROOT / page), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
