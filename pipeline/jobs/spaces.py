"""Which space is meant, and which columns: definitions looked up in an archive.

Spark asks for the columns in a process of its own for each scan, so what a scan of no space needs
not is imported where it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from logweir.errors import ConfigError
from logweir.pipeline.columns import COLUMNS
from logweir.pipeline.options import ORIGIN, ScanOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def columns_of(options: ScanOptions) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """The wanted columns of resolved options, and all that there are with their types."""
    if not options.space:
        return options.columns, COLUMNS
    from logweir.pipeline.typedrows import typed_rows

    rows = typed_rows(options)
    return rows.names, rows.types


def resolved(options: ScanOptions, spark: SparkSession | None = None) -> ScanOptions:
    """The options with the definition of `space`, looked up in the newest snapshot and the logs
    behind it, and with its id in `spaces`. `spark`: whose tasks look through these, else this
    process does.

    Raises `RequestError` 36 where there is no such space, what reading raises, and `ConfigError`,
    also where the folders are of several stores that do not define it alike.
    """
    if not options.space:
        return options
    from logweir.pipeline.typedrows import definition_text, space_of_text, typed_rows

    text = options.space
    if not text.startswith("{"):
        if options.url:
            raise ConfigError(
                "space",
                "is looked up in the folder that is read, and a url has none.",
                origin=ORIGIN,
                hint="let `logweir follow` take it into a folder; or read `tuple`, with `spaces`",
            )
        from logweir.pipeline.jobs.folding import by_store, look_here, looking, prepare

        paths = [os.path.dirname(one) if os.path.isfile(one) else one for one in options.paths]
        look = look_here if spark is None else looking(spark)
        name = int(text) if text.isdecimal() else text
        texts = {
            definition_text(prepare(look, some).history.schema.space(name)): some
            for some in by_store(list(dict.fromkeys(paths)))
        }
        text, *others = texts
        if others:
            raise ConfigError(
                "space",
                f"{name!r} is not the same in {texts[text][0]} and {texts[others[0]][0]}, which "
                "are of two stores.",
                origin=ORIGIN,
                hint="read one store, or those alone that define it alike",
            )
    found = replace(options, space=text, spaces=(space_of_text(text).id,))
    typed_rows(found)  # knows the columns
    return found
