"""System views: the system spaces, as far as a user may know of what stands in them.

====  =============  ======  =======================================================================
view  name           shows   rows that are shown
====  =============  ======  =======================================================================
277   _vcollation    276     all
281   _vspace        280     spaces that one owns or may read, write, drop or alter
286   _vsequence     284     sequences that one owns or may use so, or execute
289   _vindex        288     indexes of the spaces shown
297   _vfunc         296     functions that one owns or may use so, or execute
305   _vuser         304     oneself, and users that one owns
313   _vpriv         312     what one granted or was granted
====  =============  ======  =======================================================================

Whoever may read the space behind a view, or everything, is shown all of it. A view has the indexes
of the space behind it. Source: Tarantool 2.6.0, `sysview.c`, observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from logweir.store.schema.access import Access, Privilege
from logweir.store.schema.schema import Schema
from logweir.wal.mp import Value, unpack

_KNOW: Final = Privilege.READ | Privilege.WRITE | Privilege.DROP | Privilege.ALTER
_KNOW_OR_RUN: Final = _KNOW | Privilege.EXECUTE


@dataclass(frozen=True, slots=True)
class SystemView:
    """One view. `source_id`: the space behind it; `object_type`: of what its rows define."""

    source_id: int
    object_type: str
    wanted: int = int(_KNOW)


VIEWS: Final[Mapping[int, SystemView]] = {
    277: SystemView(276, ""),
    281: SystemView(280, "space"),
    286: SystemView(284, "sequence", int(_KNOW_OR_RUN)),
    289: SystemView(288, "space"),
    297: SystemView(296, "function", int(_KNOW_OR_RUN)),
    305: SystemView(304, "user"),
    313: SystemView(312, "privilege"),
}


def row_filter(view_id: int, access: Access, schema: Schema) -> Callable[[bytes], bool] | None:
    """Which rows (MsgPack) of a view are shown to a user; None: all of them."""
    view = VIEWS[view_id]
    if not view.object_type or access.is_admin:
        return None
    wide = access.universe | access.types.get(view.object_type, 0)
    readable = access.bits("space", view.source_id) & Privilege.READ
    if wide & view.wanted or readable:
        return None
    me = access.user.id

    def shown(data: bytes) -> bool:
        row: list[Value] = unpack(data)
        if view_id in (305, 313):
            return me in (row[0], row[1])
        owner = row[1]
        if view_id == 289:
            space = schema.get(row[0])
            if space is None:
                return False
            owner = space.owner
        return access.may_see(view.object_type, row[0], owner, view.wanted)

    return shown
