"""Hypothesis strategies of MsgPack values, as `wal.mp` gives them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from logweir.wal.mp import Ext, map_of


def decimals() -> st.SearchStrategy[Decimal]:
    """Decimals of up to 38 digits with scales from -38 to 38, zeros with a sign among them."""
    return st.builds(
        lambda sign, digits, scale: Decimal((sign, tuple(map(int, str(digits))), -scale)),
        st.integers(0, 1),
        st.one_of(st.integers(0, 999), st.integers(0, 10**38 - 1)),
        st.integers(-38, 38),
    )


def texts() -> st.SearchStrategy[str]:
    """Strings as they come from bytes: UTF-8 or not."""
    return st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.binary(max_size=12).map(lambda data: data.decode("utf-8", "surrogateescape")),
        st.sampled_from(["$", "$bin", "$map", "id", ""]),
    )


def scalars() -> st.SearchStrategy[Any]:
    """Values that are no arrays and no maps."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        texts(),
        st.binary(max_size=20),
        decimals(),
        st.uuids(),
        st.builds(Ext, st.integers(-128, 0), st.binary(max_size=20)),
        st.builds(Ext, st.integers(3, 127), st.binary(max_size=20)),
    )


def values() -> st.SearchStrategy[Any]:
    """Any value."""
    return st.recursive(
        scalars(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=5),
            st.lists(st.tuples(st.one_of(texts(), scalars(), inner), inner), max_size=4).map(
                map_of
            ),
        ),
        max_leaves=20,
    )


def same(one: Any, other: Any) -> bool:
    """Equality that tells 1 from 1.0 and True, 1.0 from 1.00, 0.0 from -0.0, and takes NaN."""
    return repr(one) == repr(other)
