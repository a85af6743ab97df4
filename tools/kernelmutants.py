"""Mutants of kernels, many in one build: each place holds what it was and what it may become.

    if a < b:           if (_at(7) and (a <= b) or not _at(7) and (a < b)):

`_at` notes that the place was reached, and says whether its mutant is the one that is put in; so a
kernel is compiled once for all of its mutants, and it tells which tests reach which. One that is
`switched` so does what it did before while no mutant is put in.

A place is a condition, an answer or what is assigned, in a function: one of its operators or
numbers is another, or all of it is denied; or a call or a change in place is left out. Cython's
sources are read as words, as Python's own reader of them does not know their types.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Callable, Iterator, Sequence
from tokenize import NAME, NUMBER, OP, STRING, TokenInfo
from typing import Final, NamedTuple

_SWAPPED: Final = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+"},
    **{"*": "+", "//": "*", "%": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "|"},
    **{"and": "or", "or": "and", "True": "False", "False": "True"},
}
_BLANKS: Final = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)
_ODD: Final = frozenset(("lambda", "yield", "for", ":=", "await", "sizeof"))
_STATEMENTS: Final = frozenset(
    (
        *("def", "cdef", "cpdef", "class", "ctypedef", "import", "from", "cimport", "global", "@"),
        *("nonlocal", "with", "for", "if", "elif", "else", "while", "try", "except", "finally"),
        *("assert", "raise", "return", "pass", "break", "continue", "del"),
    )
)


class Switch(NamedTuple):
    """One mutant: in line `line` `text` is `into`, of words between columns `start` and `end` of
    that line to line `last`; "pass": all of the line is left out."""

    line: int
    last: int
    start: int
    end: int
    text: str
    into: str


def switches(source: str) -> list[Switch]:
    """All mutants of a kernel's source, in their order."""
    found: list[Switch] = []
    functions: list[tuple[int, bool]] = []  # columns of headers, whether each is a function's
    for words in _lines(source):
        column = words[0].start[1]
        while functions and functions[-1][0] >= column:
            functions.pop()
        if functions and functions[-1][1]:
            found += _changed(words)
        if words[0].string in ("def", "cdef", "cpdef", "class") and words[-1].string == ":":
            plain = {word.string for word in words}
            is_function = "(" in plain and "class" not in plain
            functions.append((column, is_function))
    return found


def _lines(source: str) -> Iterator[list[TokenInfo]]:
    """The words of each statement, without blanks."""
    words: list[TokenInfo] = []
    for word in tokenize.generate_tokens(io.StringIO(source).readline):
        if word.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if words:
                yield words
            words = []
        elif word.type not in _BLANKS:
            words.append(word)


def _changed(words: Sequence[TokenInfo]) -> Iterator[Switch]:
    texts = [word.string for word in words]
    assigned = [at for at in _outer(texts) if texts[at].endswith("=") and texts[at] not in _SWAPPED]
    first, region = texts[0], range(0)
    if first in ("if", "elif", "while") and _outer(texts)[-1:] == [len(texts) - 1]:
        region = range(1, len(texts) - 1)
    elif first == "return":
        region = range(1, len(texts))
    elif len(assigned) == 1 and (first not in _STATEMENTS or first == "cdef"):
        region = range(assigned[0] + 1, len(texts))
    is_call = not assigned and words[0].type == NAME and texts[-1] == ")"
    if first not in _STATEMENTS and (is_call or any(len(texts[at]) > 1 for at in assigned)):
        start, end = words[0].start, words[-1].end
        yield Switch(start[0], end[0], start[1], end[1], " ".join(texts), "pass")
    inner = [words[at] for at in region]
    plain = [word.string for word in inner]
    if not inner or _ODD & set(plain) or any(plain[at] == "," for at in _outer(plain)):
        return
    if plain[0] == "[" and "*" in plain:  # of an array in C, of which a choice does not compile
        return
    if any(word.type == STRING and "\n" in word.string for word in inner):
        return
    begin, end = inner[0].start, inner[-1].end
    for changed in _variants(inner, first in ("if", "elif", "while")):
        yield Switch(begin[0], end[0], begin[1], end[1], " ".join(plain), changed)


def _outer(texts: Sequence[str]) -> list[int]:
    """Places that are in no brackets."""
    found, depth = [], 0
    for at, text in enumerate(texts):
        depth -= text in (")", "]", "}")
        if depth == 0 and text not in (")", "]", "}"):
            found.append(at)
        depth += text in ("(", "[", "{")
    return found


def _variants(words: Sequence[TokenInfo], is_condition: bool) -> Iterator[str]:
    texts = [word.string for word in words]
    if is_condition:
        yield f"not ( {' '.join(texts)} )"
    cast = False
    for at, word in enumerate(words):
        before = words[at - 1] if at else None
        binary = before is not None and (
            before.string in (")", "]")
            or (before.type in (NAME, NUMBER, STRING) and before.string not in _SWAPPED)
        )
        binary = binary and before is not None and before.string not in ("not", "return", "in")
        if word.string == "<" and not binary:
            cast = True  # to a type, which is no place
        elif word.string == ">" and cast:
            cast = False
        elif not cast:
            for into in _other(word, binary):
                yield " ".join((*texts[:at], into, *texts[at + 1 :]))


def _other(word: TokenInfo, binary: bool) -> Iterator[str]:
    if word.type == NUMBER and word.string.isdecimal():
        yield str(int(word.string) + 1)
    elif word.string in _SWAPPED and (binary or word.type != OP):
        yield _SWAPPED[word.string]


_CHOICE: Final = "(({1}) if _at({0}) else ({2}))"


def switched(source: str, chosen: Sequence[Switch]) -> str:
    """The source with mutants, the first of them 0; all lines stay where they are."""
    places: dict[tuple[int, int, int, int], list[int]] = {}
    for number, one in enumerate(chosen):
        places.setdefault((one.line, one.start, one.last, one.end), []).append(number)
    lines = source.split("\n")
    for (line, start, last, end), numbers in sorted(places.items(), reverse=True):
        before, rest = lines[line - 1][:start], lines[line - 1][start:]
        if chosen[numbers[0]].into == "pass":  # of all the line, in which a place may be another's
            lines[line - 1] = f"{before}if not _at({numbers[0]}): {rest}"
            continue
        inner, is_condition = chosen[numbers[0]].text, before.strip() in ("if", "elif", "while")
        for number in numbers:
            into = chosen[number].into
            # As a value Cython makes a broken object of an `and` of a number and a truth value.
            choice = "(_at({0}) and ({1}) or not _at({0}) and ({2}))" if is_condition else _CHOICE
            inner = choice.format(number, into, inner)
        after = lines[last - 1][end:]
        lines[line - 1 : last] = [f"{before}{inner}{after}", *[""] * (last - line)]
    return "\n".join(lines)


_FUTURE: Final = "from __future__ import annotations\n"
_PLAIN: Final = """

def _at(number):
    _reached[number] = 1
    return _mutant == number + 1  # 0, as memory begins: none, also before all of this is run


def _put_in(number):
    global _mutant
    _mutant = number + 1


def _take_reached():
    found = [number for number in range({count}) if _reached[number]]
    for number in found:
        _reached[number] = 0
    return found
"""


def declared(count: int, is_python: bool) -> tuple[str, str]:
    """What a switched source has besides, see `joined`, and what the file of its types has."""
    plain = _PLAIN.format(count=count)
    types = f"\ncdef int _mutant\ncdef unsigned char _reached[{count}]\n"
    types += "cdef bint _at(int number) noexcept nogil\n"
    if is_python:
        return f"\n_mutant = 0\n_reached = [0] * {count}\n{plain}", types
    at = "cdef bint _at(int number) noexcept nogil:"
    plain = plain.replace("def _at(number):", at)
    return f"\ncdef int _mutant = 0\ncdef unsigned char[{count}] _reached\n{plain}", ""


def joined(source: str, body: str) -> tuple[str, Callable[[int], int]]:
    """A switched source with what is declared, and which line of it was which. As plain Python it
    has to be in front of what is done at import."""
    head, future, rest = source.partition(_FUTURE)
    if not future:
        return source + body, lambda line: line
    first, more = (head + future).count("\n"), body.count("\n")
    return head + future + body + rest, lambda line: line - more if line > first else line
