"""What errors of refused requests hold for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

import logweir
from logweir.errors import ErrorCode, RequestError


def test_details_are_what_the_text_is_made_of(tmp_path: Path) -> None:
    """Of definitions, keys, tuples and operations alike, whoever refused them."""
    with logweir.open(tmp_path) as log:
        log.create_space("bolts", [("id", "unsigned"), ("name", "string")], field_count=2)
        log.insert("bolts", (1, "ten"))
        refused = []
        for code, call in (
            (ErrorCode.EXACT_FIELD_COUNT, lambda: log.insert("bolts", (2,))),
            (ErrorCode.EXACT_MATCH, lambda: log.get("bolts", [1, 2])),
            (ErrorCode.UPDATE_ARG_TYPE, lambda: log.update("bolts", 1, [["+", 1, 1]])),
            (ErrorCode.NO_SUCH_SEQUENCE, lambda: log.use_sequence("bolts", "none")),
            (ErrorCode.DROP_PRIMARY_KEY, lambda: log.drop_index("bolts", 0)),
        ):
            if code == ErrorCode.DROP_PRIMARY_KEY:
                log.create_index("bolts", "name", ["name"])
            with pytest.raises(RequestError) as caught:
                call()
            assert caught.value.code == code
            refused.append(caught.value.details)
        assert refused == [
            {"count": 1, "wanted": 2},
            {"wanted": 1, "count": 2},
            {"op": "+", "field": "2", "type": "a number"},
            {"sequence": "none"},
            {"space": "bolts"},
        ]
