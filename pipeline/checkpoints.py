"""By what a batch of a stream is known again when it is committed a second time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import closing
from typing import Final

from logweir.errors import ConfigError, WalError
from logweir.pipeline.options import ORIGIN
from logweir.pipeline.storage import open_storage

_METADATA_BYTES: Final = 64 * 1024


def stream_name(given: str, options: Mapping[str, str]) -> str:
    """The name of a stream, with which and a number a batch is known: the id in its checkpoint,
    which stays when the query is restarted or the checkpoint is moved, and is another one when it
    is begun anew. `given`: the option `query`, which stands before it; `options`: as Spark gives
    them. "" for what is no stream.

    Raises `ConfigError` if the checkpoint cannot be read here and no name was given.
    """
    for key, text in options.items():
        if key.lower() == "checkpointlocation":
            found = query_id(text)
            if not found and not given:
                raise ConfigError(
                    "query",
                    f"the id of the query cannot be read in the checkpoint {text}, so its batches "
                    "would not be known again.",
                    origin=ORIGIN,
                    hint="give option query, and another one when you begin with a new checkpoint",
                )
            return "-".join(one for one in (given, found) if one)
    return given


def query_id(checkpoint: str) -> str:
    """The id of the query that a checkpoint belongs to, "" if there is none or it cannot be read.

    Source: the file `metadata`, which Spark 4.3.0 writes before the first batch, observed.
    """
    if checkpoint.startswith("file:/") and not checkpoint.startswith("file://"):
        checkpoint = checkpoint.removeprefix("file:")
    try:
        filesystem, folder = open_storage(checkpoint)
        with closing(filesystem.open_read(folder / "metadata")) as file:
            found = json.loads(file.read(_METADATA_BYTES, 0))
        return str(uuid.UUID(found["id"]))
    except (OSError, WalError, ConfigError, ValueError, LookupError, TypeError):
        return ""
