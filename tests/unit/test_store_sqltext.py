"""What is told of texts that are certain to be no SQL expression: as by Tarantool 2.6.0."""

from __future__ import annotations

from pathlib import Path

import pytest

import logweir
from logweir.errors import ErrorCode, RequestError
from logweir.limits import SQL_CHARACTERS
from logweir.store.schema.schema import Schema
from logweir.store.schema.sqltext import check_expressions
from logweir.wal.mp import pack

REFUSED = {
    "'a": (185, "At line 1 at or near position 1: unrecognized token ''a'"),
    "'a''": (185, "At line 1 at or near position 1: unrecognized token ''a'''"),
    "1\n$": (185, "At line 2 at or near position 1: unrecognized token '$'"),
    "1 ! 2": (185, "At line 1 at or near position 3: unrecognized token '!'"),
    "1.5a": (185, "At line 1 at or near position 1: unrecognized token '1.5a'"),
    "X'0'": (185, "At line 1 at or near position 1: unrecognized token 'X'0''"),
    "a::b": (185, "At line 1 at or near position 2: unrecognized token ':'"),
    "a; $": (185, "At line 1 at or near position 4: unrecognized token '$'"),
    "{}": (185, "At line 1 at or near position 1: unrecognized token '{'"),
    "?1": (206, "At line 1 at or near position 3: bindings are not allowed in DDL"),
    "1 + ?": (206, "At line 1 at or near position 6: bindings are not allowed in DDL"),
    "? + 1": (206, "At line 1 at or near position 3: bindings are not allowed in DDL"),
    "?\n": (206, "At line 2 at or near position 1: bindings are not allowed in DDL"),
    "  ": (184, "Syntax error at line 1 near '   '"),
    "\0": (184, "Syntax error at line 1 near ' '"),
    "--c": (184, "Syntax error at line 1 near '--c'"),
    "1 2": (184, "Syntax error at line 1 near '2'"),
    "1\n 2": (184, "Syntax error at line 2 near '2'"),
    "(1": (184, "Syntax error at line 1 near '1'"),
    "1)": (184, "Syntax error at line 1 near ')'"),
    "()": (184, "Syntax error at line 1 near ')'"),
    "(1;": (184, "Syntax error at line 1 near ';'"),
    "1;2": (184, "Syntax error at line 1 near '2'"),
    "1 <> ": (184, "Syntax error at line 1 near ' '"),
    "1 *": (184, "Syntax error at line 1 near '*'"),
    "* 2": (184, "Syntax error at line 1 near '2'"),
    "1..2": (184, "Syntax error at line 1 near '.2'"),
    "/*": (184, "Syntax error at line 1 near '/'"),
    "1 'a' 2": (184, "Syntax error at line 1 near '2'"),
    "1 'a' = 2": (184, "Syntax error at line 1 near '='"),
    "1 || || 2": (184, "Syntax error at line 1 near '||'"),
    "f(1,)": (184, "Syntax error at line 1 near ')'"),
    "'a'.b": (184, "Syntax error at line 1 near '.'"),
}
"""Observed."""

TAKEN = [
    *("1", "-1", "- - 1", "1.", ".5", "1e+5", "0x1F", "0x1g", "x'00'", "''", "'it''s'", "NULL"),
    *("a b", "1 as x", "'a' 'b'", '(1) "b"', "1,2", "*", "t.*", "*, 1", "1;", "a;  -- c", "1 -- c"),
    *("/**/1", "1\0 2", "f()", "f(*)", '"f" (1)', "1 in ()", "(SELECT 1)", "a . b", "a$b", "é"),
    *("~1", '"q"', "1 * 2", "case when 1 then 2 end", "not not 1", "1 between 1 and 2"),
    *("cast(1 as integer)", "1 limit 1", "'\udcff'", "\udcff", "(values (1),())"),
]
"""What a Tarantool compiles."""


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_certain_not_to_compile_is_refused(text: str) -> None:
    """With the number, the text and the place that a Tarantool tells."""
    with pytest.raises(RequestError) as caught:
        check_expressions((text,))
    assert (caught.value.code, caught.value.message) == REFUSED[text]


@pytest.mark.parametrize("text", TAKEN)
def test_what_compiles_is_taken(text: str) -> None:
    """Also what looks odd."""
    check_expressions((text,))


def test_a_row_of_a_log_is_taken_as_it_is() -> None:
    """Some version let it in, or a newer Tarantool takes something else there."""
    fields = [{"name": "a", "type": "any", "is_nullable": True, "default": "'x"}]
    row, schema = pack([600, 1, "s", "memtx", 0, {}, fields]), Schema()
    with pytest.raises(RequestError):
        schema.apply(280, None, row)
    schema.apply(280, None, row, trusted=True)
    assert schema.space("s").fields[0].default == "'x"


def test_a_default_or_a_check_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """Of a new space and of one that is there."""
    with logweir.open(tmp_path / "s") as log:

        def define(default: str) -> None:
            fields = [{"name": "a", "type": "any", "is_nullable": True, "default": default}]
            log.replace("_space", (600, 1, "s", "memtx", 0, {}, fields))

        for default in ("'a", "1 'a' 2"):
            with pytest.raises(RequestError) as caught:
                define(default)
            assert caught.value.code == REFUSED[default][0]
            assert log.schema.get("s") is None
        define("'x'")
        with pytest.raises(RequestError):
            define("'x")
        assert log.select("_space", 600)[0][6][0]["default"] == "'x'"
        with pytest.raises(RequestError) as caught:
            log.insert("_ck_constraint", (600, "c", False, "SQL", "1 2", True))
        assert caught.value.code == ErrorCode.CREATE_CK_CONSTRAINT
        told = "Failed to create check constraint 'c': Syntax error at line 1 near '2'"
        assert caught.value.message == told
        log.insert("_ck_constraint", (600, "c", False, "SQL", '"a" = 1', True))


def test_texts_together_are_bounded(tmp_path: Path) -> None:
    """Those of all fields, or of a CHECK: they are looked at in one turn of the loop."""
    with logweir.open(tmp_path / "s") as log:

        def define(*texts: str) -> None:
            fields = [
                {"name": f"f{at}", "type": "any", "is_nullable": True, "default": text}
                for at, text in enumerate(texts)
            ]
            log.replace("_space", (600, 1, "s", "memtx", 0, {}, fields))

        half = "+" * (SQL_CHARACTERS // 2 - 1) + "1"
        define(half, half)
        with pytest.raises(RequestError) as caught:
            define(half, half, "1")
        assert caught.value.code == ErrorCode.SQL_PARSER_LIMIT
        assert len(log.schema.space("s").fields) == 2
        check = (600, "c", False, "SQL", half + half, True)
        log.insert("_ck_constraint", check)
        with pytest.raises(RequestError) as caught:
            log.replace("_ck_constraint", (*check[:4], f"{check[4]} ", True))
        assert caught.value.code == ErrorCode.CREATE_CK_CONSTRAINT
        assert f"exceeds the limit ({SQL_CHARACTERS})" in caught.value.message
        assert "write a shorter one" in caught.value.hint
