"""Which space is meant: definitions looked up in an archive."""

from __future__ import annotations

import os
from dataclasses import replace

from logweir.errors import ConfigError
from logweir.pipeline.jobs.folding import look_here, prepare
from logweir.pipeline.options import ORIGIN, ScanOptions
from logweir.pipeline.typedrows import definition_text, space_of_text, typed_rows

__all__ = ["resolved"]


def resolved(options: ScanOptions) -> ScanOptions:
    """The options with the definition of `space`, looked up in the newest snapshot and the logs
    behind it, and with its id in `spaces`.

    Raises `RequestError` 36 where there is no such space, what reading raises, and `ConfigError`.
    """
    if not options.space:
        return options
    text = options.space
    if not text.startswith("{"):
        if options.url:
            raise ConfigError(
                "space",
                "is looked up in the folder that is read, and a url has none.",
                origin=ORIGIN,
                hint="let `logweir follow` take it into a folder; or read `tuple`, with `spaces`",
            )
        paths = [os.path.dirname(one) if os.path.isfile(one) else one for one in options.paths]
        schema = prepare(look_here, list(dict.fromkeys(paths))).history.schema
        text = definition_text(schema.space(int(text) if text.isdecimal() else text))
    found = replace(options, space=text, spaces=(space_of_text(text).id,))
    typed_rows(found)  # knows the columns
    return found
