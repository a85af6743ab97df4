"""`tools.audit`: a report of pip-audit is a success only if each package was looked up."""

from __future__ import annotations

from typing import Any

import pytest

from logweir.tools.audit import verdict

WHOLE: dict[str, Any] = {"name": "lmdb", "version": "1.6", "vulns": []}
WEAK = {
    "name": "redis",
    "version": "4.5.1",
    "vulns": [{"id": "PYSEC-2023-45", "fix_versions": ["4.5.3"]}],
}
UNKNOWN = {"name": "msgpack", "skip_reason": "Dependency not found on PyPI"}
OURS = {"name": "logweir", "skip_reason": "distribution marked as editable"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([WHOLE, OURS], 0, "1 packages were looked up"),
        ([WHOLE, WEAK], 1, "redis 4.5.1: PYSEC-2023-45, mended in 4.5.3"),
        ([UNKNOWN, WEAK], 1, "redis 4.5.1"),
        ([UNKNOWN, WHOLE], 4, "NOT LOOKED UP: 1 of 2 packages (msgpack, …)"),
        ([OURS], 4, "NOT LOOKED UP: 0 of 0"),
        ([], 4, "NOT LOOKED UP"),
    ],
)
def test_a_report_is_judged(packages: list[dict[str, Any]], code: int, said: str) -> None:
    """Findings come first; what nobody looked up is no success."""
    found, lines = verdict({"dependencies": packages})
    assert found == code
    assert said in lines[0]
