"""Texts that a Tarantool compiles as SQL: what is refused here it refuses, too."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from unit.test_store_sqltext import REFUSED, TAKEN

from interop.realtarantool import RealTarantool
from logweir.errors import RequestError
from logweir.store.schema.sqltext import check_expressions

pytestmark = pytest.mark.tarantool

SIGNS = [
    *("1", "2.5", "x'00'", "'s'", '"q"', "(", ")", "(", ")", ",", ".", ";", "=", "<", "<>", "||"),
    *("&", "%", "<<", "+", "-", "~", "*", "?", ":a", "$", "!", "3a", ".5", "'", "\0"),
    *("\n", "  ", "\t\n", "-- c\n", "/* c */"),
]
WORDS = [
    *("a", "é", "not", "select", "from", "in", "null", "case", "when", "end", "as", "and"),
    *("distinct", "cast", "default", "limit", "values"),
]
COMPILE = """
local found = {}
for at, text in ipairs(...) do
    local fields = {{name = 'a', type = 'any', is_nullable = true, default = text}}
    local map = setmetatable({}, {__serialize = 'map'})
    local row = {700, 1, 's', 'memtx', 0, map, fields}
    local done, why = pcall(box.space._space.insert, box.space._space, row)
    if done then box.space._space:delete(700) end
    found[at] = done and {0, ''} or {why.code, tostring(why)}
end
return found
"""


def ours(text: str) -> tuple[int, str]:
    """What is told here, 0 where the text is taken."""
    try:
        check_expressions((text,))
    except RequestError as error:
        return error.code, error.message
    return 0, ""


def test_a_tarantool_compiles_nothing_that_is_refused_here(tmp_path: Path) -> None:
    """Lists of what was observed, and signs and words in any order. Of what has no words nearly
    all that a Tarantool refuses is."""
    dice = random.Random(20261130)
    made = [
        dice.choice(("", " ")).join(dice.choices(SIGNS, k=dice.randint(1, 7))) for _ in range(1500)
    ]
    spoken = [" ".join(dice.choices(SIGNS + WORDS, k=dice.randint(1, 7))) for _ in range(1500)]
    texts = [*REFUSED, *TAKEN, *made, *spoken]
    with RealTarantool(tmp_path / "real", listen=None, cfg={"wal_mode": "none"}) as box:
        ((theirs),) = box.eval(COMPILE, [texts])
    told = dict(zip(texts, map(tuple, theirs), strict=True))
    assert {text: told[text] for text in REFUSED} == REFUSED
    assert {text: told[text][0] for text in TAKEN} == dict.fromkeys(TAKEN, 0)
    assert [text for text in texts if ours(text)[0] and not told[text][0]] == []
    refused = [text for text in made if told[text][0]]
    assert len(refused) > 1000
    alike = [text for text in refused if ours(text) == told[text]]
    assert len(alike) > 0.95 * len(refused)
