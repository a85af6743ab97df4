"""What the page about security says of limits and tests is so."""

from __future__ import annotations

import re
from pathlib import Path

from logweir import limits

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def test_budgets_are_those_that_hold() -> None:
    """Each limit has the value that the page says."""
    told = dict(re.findall(r"^\| `([A-Z_]+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert len(told) > 15
    assert told == {name: str(getattr(limits, name)) for name in told}


def test_tests_that_are_named_are_there() -> None:
    """Files with their folder, or beside the one that was named before them."""
    named = re.findall(r"`((?:tests/[a-z]+/)?test_\w+\.py|tests/[a-z]+)`", PAGE)
    assert len(named) > 10
    folder = Path()
    for name in named:
        path = Path(name) if "/" in name else folder / name
        folder = path.parent
        assert (ROOT / path).exists(), name
