"""The options of the Spark format `logweir`: text to values, checked. See `docs/pipeline.md`.

Spark hands options on as a map from lower-cased names to strings (`True` arrives as ``true``). An
option that is not known is refused: a mistyped bound must not silently widen a scan.
"""

from __future__ import annotations

import json
import math
import os
import re
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from logweir.errors import ConfigError, DecodeError, without_secrets
from logweir.limits import (
    DECIMAL_DIGITS,
    PIPELINE_BATCH_BYTES,
    PIPELINE_BATCH_ROWS,
    PIPELINE_SPLIT_BYTES,
    VCLOCK_COMPONENTS,
)
from logweir.pipeline.columns import DEFAULT_COLUMNS, check_columns
from logweir.wal.selection import parse_time, parse_type
from logweir.wal.vclock import VClock

ORIGIN: Final = "option"
STAGE: Final = ".logweir-stage-"
"""How the name of what is not yet published begins."""
SPOOL: Final = "spool+"
"""How the scheme begins of a URL where the parts of a spool are, and not logs (`spoolplace`)."""

_UINT64: Final = 2**64 - 1
KINDS: Final = ("xlog", "snap")
SPLIT_MODES: Final = ("exact", "resync", "none")
ON_ERROR: Final = ("fail", "skip", "report")
READERS: Final = ("auto", "python")
SPOOLED: Final = ("tap", "greenstack", "synapse", "synapse+redis", "synapse+file")
"""Schemes of the upstreams that are followed into a folder, from which the rows are read."""
SERVERS: Final = (*SPOOLED, "tarantool", "tank")
"""Schemes of the addresses that `url` takes."""


def _refuse(key: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError(key, message, origin=ORIGIN, hint=hint)


def parse_boolean(key: str, text: str) -> bool:
    """Read `true` or `false`. Raises `ConfigError`."""
    if text.lower() not in ("true", "false"):
        raise _refuse(key, f"{text!r} is not true or false")
    return text.lower() == "true"


def parse_count(key: str, text: str, least: int = 0) -> int:
    """Read a whole number of at least `least`. Raises `ConfigError`."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or int(text) < least:
        raise _refuse(key, f"{text!r} is not a whole number from {least} on")
    return int(text)


def whole(key: str, given: float) -> int:
    """A count from 1 on that was given as a number, 1e6 too. Raises `ConfigError`."""
    is_whole = isinstance(given, float) and given.is_integer()
    return parse_count(key, str(int(given) if is_whole else given), 1)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def parse_vclock(key: str, text: str) -> VClock:
    """Read a vclock: as in file headers, or a JSON object. Raises `ConfigError`."""
    try:
        if '"' not in text:
            return VClock.parse(text)
        given = json.loads(text)
        return VClock.parse(option_text({int(one): int(str(lsn)) for one, lsn in given.items()}))
    except DecodeError as error:
        raise _refuse(key, error.message) from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise _refuse(key, f"{text[:80]!r} is no vclock: {error}") from error


def parse_paths(key: str, text: str) -> tuple[str, ...]:
    """Read `paths`: a JSON array of strings. Raises `ConfigError`."""
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refuse(key, f"{text[:80]!r} is no JSON array: {error}") from error
    if not isinstance(paths, list):
        raise _refuse(key, "is not an array of paths")
    return tuple(place_text(key, path) for path in paths)


def _one_of(names: tuple[str, ...]) -> Callable[[str, str], str]:
    def read(key: str, text: str) -> str:
        if text.lower() not in names:
            raise _refuse(key, f"{text!r} is not one of {', '.join(names)}")
        return text.lower()

    return read


def _kinds(key: str, text: str) -> tuple[str, ...]:
    return tuple(sorted({_one_of(KINDS)(key, item) for item in _items(text)}))


def _spaces(key: str, text: str) -> tuple[int | str, ...]:
    found = tuple(int(item) if item.isdecimal() else item for item in _items(text))
    for one in found:
        if isinstance(one, int) and one > _UINT64:
            raise _refuse(key, f"{one} is no id of a space, which is below 2^64")
    return found


def _types(key: str, text: str) -> tuple[int, ...]:
    found = tuple(parse_type(item, key=key, origin=ORIGIN) for item in _items(text))
    if found and max(found) > _UINT64:
        raise _refuse(key, f"{max(found)} is no type of row, which is below 2^64")
    return found


def _replica(key: str, text: str) -> int:
    replica_id = parse_count(key, text)
    if replica_id >= VCLOCK_COMPONENTS:
        raise _refuse(key, f"{text!r} is not in 0 … {VCLOCK_COMPONENTS - 1}")
    return replica_id


def _time(key: str, text: str) -> float:
    seconds = parse_time(text, key=key, origin=ORIGIN)
    if math.isnan(seconds):
        raise _refuse(key, f"{text!r} is no time")
    return seconds


def _columns(key: str, text: str) -> tuple[str, ...]:
    """Names with commas between; as a JSON array where a field of a space has one in its name."""
    return parse_paths(key, text) if text.startswith("[") else tuple(_items(text))


def check_decimals(key: str, text: str) -> str:
    """`text`, if it is `string` or the scale of a DECIMAL, 0 … 38. Raises `ConfigError`."""
    if text != "string" and parse_count(key, text) > DECIMAL_DIGITS:
        raise _refuse(key, f"{text!r} is not string, or 0 … {DECIMAL_DIGITS}")
    return text


def _spool(key: str, text: str) -> str:
    """A folder from the root; or a URL, marked as one of a spool."""
    if scheme_of(text) in ("", "file"):
        return str(target_folder(key, text))
    return text if text.startswith(SPOOL) else SPOOL + text


def _positive(key: str, text: str) -> int:
    return parse_count(key, text, 1)


_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "paths": parse_paths,
    "url": lambda key, text: text,
    "spool": _spool,
    "kinds": _kinds,
    "recursive": parse_boolean,
    "columns": _columns,
    "vclock_from": parse_vclock,
    "vclock_to": parse_vclock,
    "replica_id": _replica,
    "lsn_from": parse_count,
    "lsn_to": parse_count,
    "time_from": _time,
    "time_to": _time,
    "space": lambda key, text: text,
    "integers": _one_of(("decimal", "long")),
    "decimals": check_decimals,
    "spaces": _spaces,
    "types": _types,
    "split_bytes": _positive,
    "split_mode": _one_of(SPLIT_MODES),
    "verify": parse_boolean,
    "on_error": _one_of(ON_ERROR),
    "live": parse_boolean,
    "settled": parse_boolean,
    "reader": _one_of(READERS),
    "batch_rows": _positive,
    "batch_bytes": _positive,
    "from": lambda key, text: text,
    "max_rows_per_batch": _positive,
    "max_bytes_per_batch": _positive,
    "max_files_per_batch": _positive,
    "fail_on_data_loss": parse_boolean,
}


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What to read and how. Made by `parse`; travels to the workers.

    Empty tuples and None want all. `lsn_from` and `lsn_to` include their ends and go with
    `replica_id`; rows that `vclock_from` holds are not wanted, of those that `vclock_to` does not
    hold none is. None of these applies to snapshots. Times are seconds since the epoch, ends
    included. `spool`: the folder or URL into which an upstream of the kinds `SPOOLED` is followed.
    `space`: the one whose rows are wanted, with its fields as columns: its name, its id, or, when
    it was looked up, its definition (`typedrows`). `reader`: `python` where the reader in Java
    is not to read though it is there.
    """

    paths: tuple[str, ...] = ()
    url: str = ""
    spool: str = ""
    kinds: tuple[str, ...] = KINDS
    recursive: bool = False
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    vclock_from: VClock | None = None
    vclock_to: VClock | None = None
    replica_id: int | None = None
    lsn_from: int | None = None
    lsn_to: int | None = None
    time_from: float | None = None
    time_to: float | None = None
    space: str = ""
    integers: str = "decimal"
    decimals: str = "string"
    spaces: tuple[int | str, ...] = ()
    types: tuple[int, ...] = ()
    split_bytes: int = PIPELINE_SPLIT_BYTES
    split_mode: str = "exact"
    verify: bool = True
    on_error: str = "fail"
    live: bool = True
    settled: bool = True
    reader: str = "auto"
    batch_rows: int = PIPELINE_BATCH_ROWS
    batch_bytes: int = PIPELINE_BATCH_BYTES
    start: str = "earliest"
    max_rows_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    max_files_per_batch: int | None = None
    fail_on_data_loss: bool = True
    counts: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ScanOptions:
        """Read the options as Spark gives them. Raises `ConfigError`."""
        values: dict[str, Any] = {}
        for given, text in options.items():
            key = given.lower()
            if key == "path":
                values["paths"] = (place_text(key, text),)
                continue
            if key not in _READERS:
                known = ", ".join(["path", *_READERS])
                raise _refuse(given, "is no option of the format logweir.", f"options are {known}")
            values["start" if key == "from" else key] = _READERS[key](key, text)
        values["paths"] = tuple(map(absolute, values.get("paths", ())))
        if values.get("space"):
            values.setdefault("kinds", ("xlog",))  # a snapshot has no changes
        parsed = cls(**values)
        parsed._check()
        return parsed

    def _check(self) -> None:
        if bool(self.paths) == bool(self.url):
            raise _refuse("path", "give either a path or a url", "load(PATH) or option url")
        if self.spool and not is_spooled(self.url):
            raise _refuse(
                "spool",
                f"is for upstreams that are followed into a folder ({', '.join(SPOOLED)}).",
                "leave it out: a path is read as it is, and tarantool:// and tank:// by position",
            )
        if (self.lsn_from, self.lsn_to) != (None, None) and self.replica_id is None:
            raise _refuse(
                "lsn_from" if self.lsn_from is not None else "lsn_to",
                "an lsn counts the rows of one replica.",
                "add replica_id, or give vclock_from and vclock_to",
            )
        if not self.kinds:
            raise _refuse("kinds", f"names none of {', '.join(KINDS)}")
        if self.space:
            if self.spaces and not self.space.startswith("{"):
                raise _refuse("spaces", "cannot be given together with space")
            if self.on_error == "report":
                raise _refuse("on_error", "report has no columns among those of a space")
            return  # `typedrows` knows its columns
        check_columns(self.columns, origin=ORIGIN)
        wants_damage = {"crc_ok", "damage"} & set(self.columns)
        if wants_damage and self.on_error != "report":
            raise _refuse("columns", f"{min(wants_damage)} is there with on_error=report only")

    def to_text(self) -> dict[str, str]:
        """The options that differ from the defaults, as `parse` reads them."""
        out: dict[str, str] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                text = json.dumps(value) if one.name == "paths" else option_text(value)
                out["from" if one.name == "start" else one.name] = text
        return out


def option_text(value: object) -> str:
    """A value as the text of an option."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {lsn}" for key, lsn in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return list_text(value)
    return str(value)


def list_text(items: Iterable[object]) -> str:
    """Items as the text of an option."""
    shown = [str(item) for item in items]
    if any("," in item or item != item.strip() for item in shown):
        return json.dumps(shown)
    return ",".join(shown)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where and how to write. Made by `parse`.

    `sink_mode`: `xlog` or `snap`; `positions`: `keep`, `new`, or `auto`: kept where the DataFrame
    has replica_id and lsn; `replica_id`: of new positions; `vclock`: of a snapshot, what it
    contains, of the first log of a folder, where it begins; `query`: the stream's name, which with
    the batch's number makes a batch known again; `staging`: folder that tasks and driver share,
    for a live server.
    """

    path: str = ""
    url: str = ""
    sink_mode: str = "xlog"
    positions: str = "auto"
    replica_id: int = 1
    vclock: VClock | None = None
    instance: uuid.UUID | None = None
    query: str = ""
    staging: str = ""
    compress_level: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read the options as Spark gives them. Raises `ConfigError`."""
        values: dict[str, Any] = {}
        for given, text in options.items():
            key = given.lower()
            if key in _SPARKS_OWN:
                continue
            if key not in _SINK_READERS:
                known = ", ".join(_SINK_READERS)
                raise _refuse(given, "is no option of a logweir sink.", f"options are {known}")
            values[key] = _SINK_READERS[key](key, text)
        for key in ("path", "staging"):
            if values.get(key):
                values[key] = str(target_folder(key, values[key]))
        parsed = cls(**values)
        if bool(parsed.path) == bool(parsed.url):
            raise _refuse("path", "give either a path or a url", "save(PATH) or option url")
        return parsed


_SPARKS_OWN: Final = frozenset(("checkpointlocation", "queryname"))


def _uuid(key: str, text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise _refuse(key, f"{text!r} is no UUID") from error


def _level(key: str, text: str) -> int:
    level = parse_count(key, text, 1)
    if level > 22:
        raise _refuse(key, f"{level} is not in 1 … 22")
    return level


def _name(key: str, text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", text) is None:
        raise _refuse(key, f"{text!r} is not 1 to 100 letters, digits, or _ . : -")
    return text


def _own_replica(key: str, text: str) -> int:
    if (replica_id := _replica(key, text)) == 0:
        raise _refuse(key, "0 is for rows that are not replicated")
    return replica_id


_SINK_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "path": lambda key, text: text,
    "url": lambda key, text: text,
    "sink_mode": _one_of(KINDS),
    "positions": _one_of(("auto", "keep", "new")),
    "replica_id": _own_replica,
    "vclock": parse_vclock,
    "instance": _uuid,
    "query": _name,
    "staging": lambda key, text: text,
    "compress_level": _level,
}


def place_text(key: str, place: object) -> str:
    """A path or a URL as text. Raises `ConfigError` for what is none."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else b""
    if not isinstance(text, str) or not text or "\0" in text:
        hint = "give it as text or as a Path; several as the function says"
        raise _refuse(key, f"is {repr(place)[:80]}, which is no path and no URL", hint)
    return text


def place_texts(key: str, places: object) -> list[str]:
    """One path or URL, or several, as texts. Raises `ConfigError` for what is none, and for no
    place at all."""
    if not isinstance(places, Iterable) or isinstance(places, str | bytes):
        return [place_text(key, places)]
    found = [place_text(key, one) for one in places]
    if not found:
        raise _refuse(key, "names no folder or file")
    return found


def absolute(path: str) -> str:
    """The path from the root: a worker's current folder may be another one."""
    return path if is_url(path) else os.path.abspath(path)


def target_folder(key: str, to: str | os.PathLike[str]) -> Path:
    """The folder that is to be written, from the root: of a local path or a `file://` URL.

    Raises `ConfigError` for any other URL, and for what is no path.
    """
    text = place_text(key, to)
    if not is_url(text):
        return Path(os.path.abspath(text))
    if (scheme := scheme_of(text)) != "file":
        raise _refuse(
            key,
            f"{shown(text)!r} is no local folder: what is written here is locked, or renamed as a "
            f"whole, which {scheme}:// does not promise.",
            "name a folder that the driver and all workers see; `logweir archive` copies a store "
            "into an object store, and compact, export and cdc write there",
        )
    return Path(urllib.parse.unquote(urllib.parse.urlsplit(text).path))


def is_topic(url: str) -> bool:
    """Whether that is a Tank topic."""
    return url.startswith("tank://")


def is_spooled(url: str) -> bool:
    """Whether that upstream is followed into a folder, from which its rows are read."""
    return url.partition("://")[0] in SPOOLED


def scheme_of(path: str) -> str:
    """Which file system a URL (`s3://…`) names; "" of the path of a local file."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else ""


def is_url(path: str) -> bool:
    """Whether a path names a file system (`s3://…`) and not a local file."""
    return scheme_of(path) != ""


def shown(location: str) -> str:
    """A place as it may be shown: without what stands in front of an `@`, and without options."""
    if not is_url(location):
        return location
    scheme, _, rest = without_secrets(location.removeprefix(SPOOL)).partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
