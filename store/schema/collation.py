"""Order of strings by collations: a string's bytes → the bytes that sort as it does. No I/O.

`none` and `binary` order by bytes. All others are ICU's: an ICU sort key, which compares as ICU's
own comparison does, and holds no zero byte but the last. They need PyICU (`logweir[collation]`);
without it such an index is refused by name. Keys made by another version of ICU may sort
otherwise: `version()` belongs to the version of what is kept by them.

Options are named as ICU's attributes, values as its attribute values: strength PRIMARY …
IDENTICAL, alternate_handling NON_IGNORABLE or SHIFTED, case_first OFF, UPPER_FIRST or LOWER_FIRST,
and french_collation, case_level, normalization_mode, numeric_collation OFF or ON. Bytes that are
not UTF-8 count as U+FFFD. Source: Tarantool 2.6.0, `coll.c`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from logweir.store.schema.refused import unsupported

if TYPE_CHECKING:
    from logweir.store.schema.definition import CollationDef

OPTION_VALUES: Final = {
    "french_collation": ("ON", "OFF"),
    "alternate_handling": ("NON_IGNORABLE", "SHIFTED"),
    "case_first": ("OFF", "UPPER_FIRST", "LOWER_FIRST"),
    "case_level": ("ON", "OFF"),
    "normalization_mode": ("ON", "OFF"),
    "strength": ("PRIMARY", "SECONDARY", "TERTIARY", "QUATERNARY", "IDENTICAL"),
    "numeric_collation": ("ON", "OFF"),
}
"""Options of ICU collations, each with the values that it may have."""


def version() -> str:
    """The version of ICU that orders here, "" if there is none."""
    icu = _icu()
    return "" if icu is None else str(icu.ICU_VERSION)


def _icu() -> Any:
    """The ICU binding, None if it is not installed."""
    try:
        icu = importlib.import_module("icu")
    except ImportError:
        return None
    # Any folder of that name, such as one in the current folder, can be imported, too.
    return icu if hasattr(icu, "ICU_VERSION") else None


def sort_key_maker(collation: CollationDef) -> Callable[[bytes], bytes]:
    """The function that makes the sort key of a string's bytes.

    Raises `RequestError` 5, naming the collation, where it needs ICU and that is not installed.
    """
    if collation.is_binary:
        return bytes
    return _icu_maker(collation.name, collation.locale, collation.options)


@functools.lru_cache(maxsize=512)
def _icu_maker(
    name: str, locale: str, options: tuple[tuple[str, str], ...]
) -> Callable[[bytes], bytes]:
    icu = _icu()
    if icu is None:
        text = f"This installation of logweir does not support collation '{name}'"
        raise unsupported(text, "install ICU and then logweir[collation]", collation=name)
    collator = icu.Collator.createInstance(icu.Locale(locale))
    for option, value in options:
        if value.upper() != "DEFAULT":
            attribute = getattr(icu.UCollAttribute, option.upper())
            collator.setAttribute(attribute, getattr(icu.UCollAttributeValue, value.upper()))

    def make(raw: bytes) -> bytes:
        key: bytes = collator.getSortKey(raw.decode("utf-8", "replace"))
        return key.rstrip(b"\0")

    return make
