"""`logweir changes`: the changes of a space with its fields as columns, in one file."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from logweir.errors import ConfigError
from logweir.tools.cli.common import DecimalsOption, FolderArgument, given_vclock, store_at
from logweir.tools.cli.output import Output, human_bytes


def command(
    out: Output,
    directory: FolderArgument,
    space: Annotated[str, typer.Option(help="The space: its name or id.")],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The new file, or its URL; it ends in .parquet, .csv, .jsonl or .arrow.",
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Only these columns, with commas between them."),
    ] = None,
    integers: Annotated[
        Literal["decimal", "long"], typer.Option(help="Columns of integers: exact, or 64 bits.")
    ] = "decimal",
    decimals: DecimalsOption = "string",
    start: Annotated[
        str | None, typer.Option("--from", metavar="VCLOCK", help="Only rows after this vclock.")
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="VCLOCK", help="Only rows up to this vclock.")
    ] = None,
) -> int:
    """Write the changes of a space into one file, its fields as columns, on this machine.

    The columns are op, replica_id, lsn and time, the space's fields, and what these do not hold.
    `logweir pipeline export` does the same on Spark, and exports states.
    """
    store_at(directory)
    try:
        from logweir import pipeline
        from logweir.pipeline.onefile import write_file
    except ImportError as error:
        raise ConfigError(
            "changes", f"needs pyarrow and numpy: {error}", hint="pip install 'logweir[arrow]'"
        ) from error
    bounds = {
        name: given_vclock(option, text)
        for name, option, text in (("vclock_from", "--from", start), ("vclock_to", "--to", stop))
    }
    numbers = {"integers": integers, "decimals": decimals}
    found = pipeline.batches(directory, space=space, columns=columns, **numbers, **bounds)
    done = write_file(output, found)
    if out.as_json:
        out.json({"to": done.name, "rows": done.rows, "size": done.size})
    else:
        out.line(f"{done.name}: {done.rows} rows, {human_bytes(done.size)}")
    return 0
