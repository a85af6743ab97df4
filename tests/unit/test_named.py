"""Tuples as JSON arrays and objects: both forms give the same tuple again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import values

from logweir.errors import DecodeError
from logweir.store.schema.definition import FieldDef, SpaceDef
from logweir.store.schema.named import Named
from logweir.wal.mp import pack, unpack


def named(*fields: str) -> Named:
    """The forms of a space with these fields."""
    return Named(SpaceDef(512, 1, "t", fields=tuple(FieldDef(name) for name in fields)))


@given(st.lists(values(), min_size=1, max_size=5), st.booleans())
def test_both_forms_give_the_tuple_again(row: list[Any], names: bool) -> None:
    """Whatever is in it, shorter or longer than the format, with a field called like a value's
    mark."""
    form = named("$bin", "id", "name")
    text = form.text(row, names=names)
    assert "\n" not in text
    assert repr(unpack(pack(form.read(text)))) == repr(unpack(pack(row)))


def test_an_object_has_the_names_of_the_fields() -> None:
    """What is behind them stands in `_rest`; what is left out is nil, but at the end."""
    form = named("id", "name", "age")
    assert form.text([1, b"a", None, 2], names=True) == (
        '{"id": 1, "name": {"$bin": "YQ=="}, "age": null, "_rest": {"3": 2}}'
    )
    assert form.read('{"age": 3, "id": 1}') == [1, None, 3]
    assert form.read('{"id": 1}') == [1]
    assert form.read('{"_rest": {"4": "x"}, "id": 1}') == [1, None, None, None, "x"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("[1", "not JSON"),
        ("[NaN]", r"NaN is written \{\"\$float\""),
        ("[" * 3000 + "]" * 3000, "nested too deep"),
        ('"text"', "neither an array nor an object"),
        ('[{"$bin": 1}]', r"\$bin does not hold"),
        ('{"nam": 1}', "'nam' is no field"),
        ('{"_rest": 1}', "'_rest' is no field"),
        ('{"_rest": {"0": 1}}', "no number of a field behind"),
        ('{"_rest": {"999999999": 1}}', "no number of a field behind"),
        (b"[\xff]", "not JSON"),
    ],
)
def test_what_is_no_tuple_is_refused(text: str | bytes, complaint: str) -> None:
    """With the reason."""
    with pytest.raises(DecodeError, match=complaint):
        named("id", "name").read(text)


def test_objects_need_names() -> None:
    """Of a space without a format, or with a field called `_rest`, there are arrays only."""
    for form in (named(), named("id", "_rest")):
        with pytest.raises(DecodeError, match="an object cannot be stored") as refused:
            form.read('{"id": 1}')
        assert "write an array" in refused.value.hint
        assert form.read("[1, 2]") == [1, 2]
