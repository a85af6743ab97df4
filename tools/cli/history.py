"""`logweir history`: what became of one key, change by change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from logweir.errors import RequestError
from logweir.store.engine.request import key_bytes
from logweir.tools.cli.common import FolderArgument, existing, given_vclock, utc_text
from logweir.tools.cli.output import Output
from logweir.tools.cli.refusals import with_hint
from logweir.tools.cli.spaces import SpaceArgument, given_key
from logweir.tools.cli.statements import KeyArgument
from logweir.wal.render import dumps, to_json
from logweir.wal.vclock import vclock_json

if TYPE_CHECKING:
    from logweir.store.recover.history import Change


def command(
    out: Output,
    directory: FolderArgument,
    space: SpaceArgument,
    key: KeyArgument,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="VCLOCK", help="Only changes after this vclock."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="End with the transaction that has the Nth change."),
    ] = None,
) -> int:
    """Print all changes of a key that the logs still hold, each with the tuple after it.

    The oldest snapshot begins; without --from what it has is the first line. The key is that of
    the primary index. The folder may be in use. Exit code 1 if there was never a tuple.
    """
    # Imported here: help and a wrong argument need no engine.
    from logweir.store.recover.history import BEGIN, folder_history

    existing(directory)
    name = int(space) if space.isdecimal() else space
    found = folder_history(
        directory,
        name,
        key_bytes(given_key(key)),
        after=given_vclock("--from", start),
        limit=limit,
    )
    is_known = False
    try:
        for change in found:
            is_known = is_known or change.tuple is not None or change.type_name != BEGIN
            if out.as_json:
                out.json(_json(change))
            else:
                place = f"{change.replica_id}:{change.lsn}"
                out.line(_line(change, str(change.vclock) if change.type_name == BEGIN else place))
    except RequestError as error:
        raise with_hint(error, str(directory), None) from error
    if not is_known:
        out.message("there is no change of that key")
    return 0 if is_known else 1


def _line(change: Change, place: str) -> str:
    row = "-" if change.tuple is None else dumps(list(change.tuple))
    return f"{utc_text(change.timestamp) or '-':<24}  {place:<12}  {change.type_name:<8}  {row}"


def _json(change: Change) -> dict[str, object]:
    return {
        "type": change.type_name,
        "replica_id": change.replica_id,
        "lsn": change.lsn,
        "timestamp": change.timestamp,
        "vclock": vclock_json(change.vclock),
        "tuple": None if change.tuple is None else to_json(list(change.tuple)),
    }
