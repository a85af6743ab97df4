"""Following a homeserver as its own configuration says: ``synapse+file://homeserver.yaml``.

docs/synapse.md says what is read. A folder stands for all files `*.yaml` in it, in the order of
their names; those that the option `with` names come after the first, and each replaces whole
sections of those before. Neither passwords nor lines of the files stand in errors.
Source: `synapse/config` of 1.163.2, read; its defaults are taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from logweir.errors import ConfigError
from logweir.replication.runner import Progress, UrlSource
from logweir.replication.synapse.follow.channel import SynapseRedisSource
from logweir.replication.synapse.follow.contents import Database
from logweir.replication.urls import Url, option_names
from logweir.store import Log

_OWN: Final = frozenset(("with",))
_HERE: Final = "database"
_LIBPQ: Final = {"database": "dbname"}
_MAIN: Final = ("main", "master")
_KINDS: Final = {str: "a text", int: "a number", bool: "true or false", dict: "a section"}

V = TypeVar("V", str, int, bool, dict[str, Any])


@dataclass(frozen=True, slots=True)
class Homeserver:
    """How a homeserver is followed. `url`: its Redis, with the addresses for missed rows; `secret`:
    what requests for them bring; `database`: with the contents, if they are asked for there."""

    url: Url
    secret: str = field(repr=False)
    database: Database | None = None


@dataclass(frozen=True, slots=True)
class _Section:
    """Settings that stand together. `name`: of the section, "" for the whole; `file`: in which it
    was found."""

    values: Mapping[Any, Any]
    name: str
    file: Path

    def key(self, name: str) -> str:
        """What a setting is called in full."""
        return f"{self.name}.{name}" if self.name else name

    def error(self, name: str, message: str, hint: str = "") -> ConfigError:
        """That a setting cannot be."""
        return ConfigError(self.key(name), message, origin=str(self.file), hint=hint)

    def get(self, name: str, kind: type[V]) -> V | None:
        """A setting; None if it is not given. Raises `ConfigError`."""
        value = self.values.get(name)
        if value is not None and type(value) is not kind:
            hint = "put it in quotation marks" if kind is str else ""
            raise self.error(name, f"it is not {_KINDS[kind]}", hint)
        return value

    def given(self, name: str, default: V) -> V:
        """A setting; `default` if it is not given. Raises `ConfigError`."""
        value = self.get(name, type(default))
        return default if value is None else value

    def section(self, name: str) -> _Section:
        """A section in it; one without settings if it is not given. Raises `ConfigError`."""
        empty: dict[str, Any] = {}
        return _Section(self.given(name, empty), self.key(name), self.file)

    def beside(self, name: str) -> str:
        """The name of a file, as this program finds it; "" if it is not given."""
        found = self.given(name, "")
        return str(self.file.parent / found) if found else ""

    def secret(self, name: str, path_name: str) -> str | None:
        """A secret that stands here or in a file. Raises `ConfigError`."""
        told, file = self.get(name, str), self.beside(path_name)
        if not file:
            return told
        if told is not None:
            raise self.error(path_name, f"{self.key(name)} is given, too", "give one of them")
        return _text(Path(file), self.key(path_name)).strip()


def read_homeserver(url: Url) -> Homeserver:
    """What the files of an address of `synapse+file` say. Reads them. Raises `ConfigError`."""
    found = _read_files([url.file, *option_names(url, "with")])
    server_name = _at(found, "server_name").get("server_name", str)
    if not server_name:
        hint = "it may stand in another file: add ?with=FILE or ?with=FOLDER, such as conf.d"
        raise _at(found, "server_name").error("server_name", "it is not given", hint)
    own = _OWN | {"enrich"} if url.option("enrich") == _HERE else _OWN
    given = [option for option in url.options if option[0] not in own]
    known = {key for key, _ in given}
    writers = [one for one in _writers(found) if one[0] not in known]
    options = dict([*writers, *given])
    _check_writers(found, options)
    redis, at = _redis(_at(found, "redis").section("redis"))
    options.update(redis)
    secret = _at(found, "worker_replication_secret", "worker_replication_secret_path")
    return Homeserver(
        Url(
            "synapse+redis",
            at.host,
            at.port,
            at.user,
            at.password,
            (server_name,),
            tuple(options.items()),
            at.socket,
        ),
        secret.secret("worker_replication_secret", "worker_replication_secret_path") or "",
        _database(_at(found, "database")) if "enrich" in own else None,
    )


def _at(found: Mapping[str, tuple[Any, Path]], *names: str) -> _Section:
    """The settings of these names at the top of the files."""
    values = {name: found[name][0] for name in names if name in found}
    file = next((found[name][1] for name in names if name in found), found[""][1])
    return _Section(values, "", file)


def _text(file: Path, key: str) -> str:
    """What stands in a file. Raises `ConfigError`."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(key, f"{file}: {error.strerror}", origin="homeserver") from error
    except UnicodeDecodeError as error:
        raise ConfigError(key, f"{file}: it is not UTF-8", origin="homeserver") from error


def _read_files(names: Sequence[str]) -> dict[str, tuple[Any, Path]]:
    """Every setting at the top of the files, with the file that it stands in; under "" the first of
    them. Raises `ConfigError`."""
    try:
        import yaml
    except ImportError as error:
        hint = "pip install 'logweir[synapse]'"
        message = "the package `PyYAML` is not installed"
        raise ConfigError("synapse+file", message, hint=hint) from error
    files = [file for name in names for file in _files(Path(name))]
    if not files:
        raise ConfigError("synapse+file", f"{names[0]}: there is no file *.yaml in it")
    found: dict[str, tuple[Any, Path]] = {"": (None, files[0])}
    for file in files:
        try:
            values = yaml.safe_load(_text(file, "synapse+file"))
        except (yaml.YAMLError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            line = "" if mark is None else f", line {mark.line + 1}"
            raise ConfigError("synapse+file", f"it is no YAML{line}", origin=str(file)) from None
        if values is not None and not isinstance(values, dict):
            raise ConfigError("synapse+file", "it holds no settings", origin=str(file))
        found.update({str(name): (value, file) for name, value in (values or {}).items()})
    return found


def _files(path: Path) -> list[Path]:
    """A file, or those in a folder."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob("*.yaml") if file.is_file())


def _writers(found: Mapping[str, tuple[Any, Path]]) -> Iterator[tuple[str, str]]:
    """The options `http` and `http.<writer>` that `instance_map` makes. Raises `ConfigError`."""
    entries = _at(found, "instance_map").section("instance_map")
    for name in map(str, entries.values):
        entry = entries.section(name)
        option = "http" if name in _MAIN else f"http.{name}"
        if file := entry.beside("path"):
            yield option, f"unix/:{file}"
            continue
        host, port = entry.get("host", str), entry.get("port", int)
        if not host or port is None or not 0 < port < 65536:
            raise entries.error(name, "it has neither host and port nor path")
        scheme = "https" if entry.given("tls", False) else "http"
        yield option, f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _check_writers(found: Mapping[str, tuple[Any, Path]], options: Mapping[str, str]) -> None:
    """Every writer has an address: otherwise what is missed of it is lost. Raises `ConfigError`."""
    instances = _at(found, "instance_map")
    if "http" not in options:
        hint = "name its listener with the resource `replication` there, or add ?http=HOST:PORT"
        raise instances.error("instance_map.main", "the main process has no address there", hint)
    streams = _at(found, "stream_writers").section("stream_writers")
    for stream, told in streams.values.items():
        writers = told if isinstance(told, list) else [told]
        for writer in writers:
            if not isinstance(writer, str):
                raise streams.error(str(stream), "it is no name of a worker, and no list of them")
            if writer not in _MAIN and f"http.{writer}" not in options:
                message = f"{writer}, which writes {stream}, has no address there"
                hint = f"name it there, or add ?http.{writer}=HOST:PORT"
                raise instances.error(f"instance_map.{writer}", message, hint)


def _redis(redis: _Section) -> tuple[dict[str, str], Url]:
    """Options and address of the Redis. Raises `ConfigError`."""
    if not redis.given("enabled", False):
        hint = (
            "switch it on, as for workers; up to 1.66 a listener of type `replication` can be "
            "followed as synapse://HOST:PORT"
        )
        raise redis.error("enabled", "it is off: this homeserver sends its streams nowhere", hint)
    password = redis.secret("password", "password_path")
    user = redis.given("username", "")
    if user and password is None:
        raise redis.error("username", "there is no password for it", "add redis.password_path")
    port = redis.given("port", 6379)
    if not 0 < port < 65536:
        raise redis.error("port", f"{port} is no port")
    options = {}
    if (dbid := redis.get("dbid", int)) is not None:
        options["dbid"] = str(dbid)
    file = redis.beside("path")
    if not file and redis.given("use_tls", False):
        options["tls"] = "1"
        names = {"certificate_file": "certificate", "private_key_file": "key"}
        for name, option in {**names, "ca_path": "ca", "ca_file": "ca"}.items():
            if value := redis.beside(name):
                options[option] = value
    host = "" if file else redis.given("host", "localhost")
    where = Url("synapse+redis", host, 0 if file else port, user, password or "", socket=file)
    return options, where


def _database(found: _Section) -> Database:
    """The homeserver's only database. Raises `ConfigError`."""
    section = found.section("database")
    engine, args = section.given("name", "sqlite3"), section.section("args")
    shown = f"the database of {found.file}"
    if engine == "sqlite3":
        if file := args.beside("database"):
            return Database(shown, file=file)
        raise args.error("database", "it is not given")
    if engine != "psycopg2":
        raise section.error("name", "it is neither psycopg2 nor sqlite3")
    named = {_LIBPQ.get(name, name): value for name, value in args.values.items()}
    options = {
        str(name): str(value)
        for name, value in named.items()
        if not str(name).startswith("cp_") and value is not None
    }
    if not options.get("dbname"):
        raise args.error("dbname", "it is not given")
    return Database(shown, tuple(sorted(options.items())))


class HomeserverSource(UrlSource):
    """A homeserver, for a `Runner`, as its configuration says. Reads it; raises `ConfigError`."""

    def __init__(self, url: Url, log: Log, *, once: bool = False) -> None:
        super().__init__(url)
        self._log = log
        self._once = once
        self._take(read_homeserver(url))

    def _take(self, found: Homeserver) -> None:
        self._found = found
        self._source = SynapseRedisSource(
            found.url,
            self._log,
            once=self._once,
            secret=found.secret,
            database=found.database,
        )

    async def attempt(self, progress: Progress) -> None:
        """See `Source`. Raises `ConfigError` if the files cannot be read any more."""
        found = await asyncio.to_thread(read_homeserver, self._url)
        if found != self._found:
            self._take(found)
        await self._source.attempt(progress)
