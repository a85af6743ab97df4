"""JSON paths: text to steps and back."""

from __future__ import annotations

import pytest

from logweir.store.schema.jsonpath import ANY, PathError, Tokenizer, multikey_prefix, parse, render


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("", ()),
        ("a", (b"a",)),
        (".a", (b"a",)),
        ("a.b[3]", (b"a", b"b", 2)),
        ("[1]", (0,)),
        ("[*].x", (ANY, b"x")),
        ("['a b'][\"c]\"]", (b"a b", b"c]")),
        ("_a1.ü9", (b"_a1", "ü9".encode())),
        ("[007]", (6,)),
    ],
)
def test_paths_are_taken_apart(path: str, steps: tuple[object, ...]) -> None:
    """Names, quoted names, numbers from 1 and the star each make one step."""
    assert parse(path) == steps


@pytest.mark.parametrize(
    ("path", "position"),
    [
        ("[0]", 2),
        ("[", 1),
        ("[]", 2),
        ("[1", 3),
        ("[1x]", 3),
        ("['a]", 5),
        ("['']", 3),
        (".", 2),
        ("a.", 3),
        ("a..b", 3),
        ("1a", 1),
        ("a-b", 2),
        (".9", 2),
        ("[*", 3),
        ("[-1]", 2),
    ],
)
def test_wrong_paths_tell_the_character(path: str, position: int) -> None:
    """An error names the character, from 1, as Tarantool 2.6.0 counts."""
    with pytest.raises(PathError) as caught:
        parse(path)
    assert caught.value.position == position


def test_bytes_that_are_not_utf8_are_an_error() -> None:
    """A path is text; anything else is refused at its place."""
    with pytest.raises(PathError) as caught:
        parse(b"a.\xff")
    assert caught.value.position == 3


def test_a_number_of_any_length_is_read() -> None:
    """A number too long for any array is a step that leads nowhere, not an overflow."""
    (step,) = parse("[" + "9" * 5000 + "]")
    assert isinstance(step, int)
    assert step > 2**31


def test_steps_are_read_one_by_one() -> None:
    """What stands behind a step is looked at only when it is asked for."""
    tokens = Tokenizer(b"a.b[")
    assert [tokens.next(), tokens.next()] == [b"a", b"b"]
    with pytest.raises(PathError):
        tokens.next()


def test_prefix_of_a_multikey_path() -> None:
    """The steps before the star are counted."""
    assert multikey_prefix(parse("a.b[*].c")) == 2
    assert multikey_prefix(parse("a.b")) is None


def test_steps_are_written_in_brackets() -> None:
    """Messages name a place by brackets alone."""
    assert render((1, b"a", ANY, 2)) == '[2]["a"][*][3]'
