"""Texts that are certain to be no expression of Tarantool's SQL, which real replicas compile.

There is no SQL here. But a real replica that cannot compile a field's `default`, or what a CHECK
says, stops at its row, and a real Tarantool does not start from a folder with it. So words, numbers
and signs are told apart, and each is looked at next to the one before: what can never follow is
refused, as by Tarantool 2.6, of texts without words with its number, its text and its place. Words
are not looked at: they may be names or keywords, and anything may be beside one. So not every text
that passes compiles, and a Tarantool may say something else of one that has words.
Source: Tarantool 2.6.0, observed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final

from logweir.errors import ErrorCode, RequestError
from logweir.limits import SQL_CHARACTERS

_LETTER: Final = r"[A-Za-z0-9_$\x80-\U0010ffff]"
_NUMBER: Final = r"(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+"
_TOKEN: Final = rf"""(?P<line>\n|--[^\n]*\n)
    |(?P<space>[\ \t\v\f\r]\s*|--[^\n]*|/\*(?=.).*?(?:\*/|\Z))
    |(?P<text>'(?:[^']|'')*+')|(?P<name>"(?:[^"]|"")*+")
    |(?P<number>0[xX][0-9a-fA-F]+|{_NUMBER}(?!{_LETTER})|[xX]'(?:[0-9a-fA-F]{{2}})*')
    |(?P<none>{_NUMBER}{_LETTER}+|[xX]'[^']*'?|['"].*)
    |(?P<word>[A-Za-z_\x80-\U0010ffff]{_LETTER}*)|(?P<binding>\?\d*|[$:@\#]{_LETTER}+)
    |(?P<between><=|<>|<<|<|>=|>>|>|==?|!=|\|\|?|[/%&])|(?P<sign>[-+])|(?P<invert>~)
    |(?P<star>\*)|(?P<open>\()|(?P<close>\))|(?P<comma>,)|(?P<dot>\.)|(?P<end>;)|(?P<other>.)"""
_BEGINS: Final = frozenset(("number", "text", "name", "word", "sign", "invert", "open", "binding"))
_CLOSES: Final = frozenset(("word", "comma", "close", "end"))
_GOES_ON: Final = _CLOSES | {"between", "sign", "star", "text", "name"}
_MAY_FOLLOW: Final = {
    "": _BEGINS | {"star"},
    "between": _BEGINS,
    "sign": _BEGINS,
    "invert": _BEGINS,
    "comma": _BEGINS | {"star"},
    "open": _BEGINS,
    "call": _BEGINS | {"star", "close"},  # ( behind a name
    "dot": frozenset(("word", "name", "star")),
    "all": _CLOSES,  # a * that is no operator
    "star": _BEGINS | _CLOSES,  # one that may be either
    "alias": _CLOSES,  # a name or text behind a value
    "number": _GOES_ON,
    "text": _GOES_ON,
    "close": _GOES_ON,
    "name": _GOES_ON | {"open", "dot"},
    "word": _BEGINS | _GOES_ON | {"dot"},
    "end": frozenset[str](),
}
_VALUES: Final = frozenset(("number", "text", "name", "close"))
_MAY_END: Final = _VALUES | {"word", "all", "star", "alias", "end"}


@functools.cache
def _tokens() -> re.Pattern[str]:
    """Compiled when there is a text to check: that takes longer than most else at a start."""
    return re.compile(_TOKEN, re.VERBOSE | re.DOTALL | re.ASCII)


def check_expressions(texts: Iterable[str]) -> None:
    """Raises `RequestError` 184, 185 or 206 where one of them is certain not to compile, 191 where
    all together are longer than is looked at: see `limits.SQL_CHARACTERS`."""
    texts = list(texts)
    length = sum(map(len, texts))
    if length > SQL_CHARACTERS:
        raise RequestError(
            ErrorCode.SQL_PARSER_LIMIT,
            f"SQL expression length {length} exceeds the limit ({SQL_CHARACTERS})",
            hint="write a shorter one: it is looked at while all other clients wait",
        )
    for text in texts:
        _check_expression(text)


def _check_expression(text: str) -> None:
    text, _, _ = f" {text}".partition("\0")  # a blank is what stands before it when it is compiled
    if any(one > "\x7f" and one.isspace() for one in text):
        return
    end, line, line_at, depth = len(text), 1, 1, 0
    before, last, has_binding = "", "", False
    has_values = "values" in text.lower()  # whose rows may be empty behind the first
    for found in _tokens().finditer(text):
        kind, last = found.lastgroup or "", found[0]
        if kind == "line":
            line, line_at = line + 1, found.end()
        if kind in ("line", "space"):
            continue
        if kind in ("none", "other"):
            told = f"unrecognized token '{last}'"
            column = _column(text, line_at, found.start())
            raise _refused(ErrorCode.SQL_UNKNOWN_TOKEN, line, column, told)
        if has_binding:
            end = found.start()
            break
        if kind not in _MAY_FOLLOW[before] or (depth == 0 and kind == "close"):
            raise _unexpected(line, last)
        if kind == "end" and depth:
            raise _unexpected(line, last)
        depth += (kind == "open") - (kind == "close")
        has_binding = kind == "binding"
        is_row = kind == "open" and before == "comma" and has_values
        before = "call" if is_row else _meant(kind, before)
    if has_binding:
        told = "bindings are not allowed in DDL"
        raise _refused(ErrorCode.SQL_BIND_IN_DDL, line, _column(text, line_at, end), told)
    if depth or before not in _MAY_END:
        raise _unexpected(line, last)


def _column(text: str, line_at: int, at: int) -> int:
    """The place that a Tarantool tells: in bytes of the line, from 1 on."""
    return 1 + len(text[line_at:at].encode(errors="surrogateescape"))


def _meant(kind: str, before: str) -> str:
    """Which kind a sign is for what follows, by what stood before it."""
    if kind == "open" and before in ("word", "name"):
        return "call"
    if kind == "star":
        if before in _VALUES:
            return "between"
        return "star" if before == "word" else "all"
    if kind in ("text", "name") and before in _VALUES:
        return "alias"
    return kind


def _refused(code: ErrorCode, line: int, column: int, what: str) -> RequestError:
    return RequestError(code, f"At line {line} at or near position {column}: {what}")


def _unexpected(line: int, token: str) -> RequestError:
    return RequestError(ErrorCode.SQL_SYNTAX, f"Syntax error at line {line} near '{token}'")
