"""Addresses of upstreams and listeners.

``scheme://[user[:password]@]host[:port][/path…][?name=value&…]``
``scheme://[user[:password]@]unix/:/file[:/path…][?name=value&…]``
``scheme://FILE[?name=value&…]``

Which schemes there are, with their ports, paths and options, say the folders of the protocols
(`Scheme`); `logweir.replication.protocols` reads addresses of all of them.

Names, passwords and paths may be percent-encoded. A host that stands alone is an IPv6 address in
brackets, an IPv4 address or a name; a listener without a host takes 127.0.0.1, so that nothing is
reachable from outside unless it is asked for. Options of every upstream: `tls=1` (speak TLS),
`ca=FILE` (trust these certificates and no others), `certificate=FILE`, `key=FILE` (what we show of
ourselves: see `--tls-client-ca` of servers), `stall=SECONDS` (one that says nothing for so long is
given up), `password_file=FILE` (its first line is the password, which then stands in no list of
processes; it is read anew for every connection); of every listener: `from`
(`logweir.replication.addresses`).

The second form, after its scheme the one in which Tarantool writes them, means a unix socket. TLS
is not spoken there, and networks have no meaning; a listener has `mode` instead of `from`
(`logweir.replication.unixsocket`). A colon in the file's name is written `%3A`. The third form is
that of schemes whose addresses are files that say where the upstream is (`Scheme.is_file`).
"""

from __future__ import annotations

import functools
import os
import stat
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from logweir.errors import ConfigError, without_secrets
from logweir.replication.logs import get_logger

_log = get_logger("logweir.replication")

STALL_SECONDS: Final = 30.0
"""An upstream that shows no life for so long is given up, unless its protocol says otherwise."""

_SECONDS_MAX: Final = 1e6
_ON: Final = ("1", "on", "true", "yes")
_OFF: Final = ("0", "off", "false", "no")
_PASSWORD_FILE: Final = "password_file"  # noqa: S105
_OF_CONTAINERS: Final = ("/run/secrets/", "/var/run/secrets/")
_FILE_OPTIONS: Final = frozenset(("stall", "name"))
_SOCKET_OPTIONS: Final = _FILE_OPTIONS | {_PASSWORD_FILE}
_OPTIONS: Final = _SOCKET_OPTIONS | {"tls", "ca", "certificate", "key"}
_LISTEN_OPTIONS: Final = frozenset(("from",))
_LISTEN_SOCKET_OPTIONS: Final = frozenset(("mode",))


@dataclass(frozen=True, slots=True)
class Url:
    """One address. Its text (`str`) never shows the password, which a connection takes from
    `secret`. `socket`: the file of a unix socket; then there is no host, and the port is 0.
    `file`: that says where the upstream is; then there is nothing else but options.
    `password_file`: where the password was read."""

    scheme: str
    host: str
    port: int
    user: str = ""
    password: str = field(default="", repr=False)
    path: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    socket: str = ""
    file: str = ""
    password_file: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        who = urllib.parse.quote(self.user, safe="") + "@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = "".join("/" + urllib.parse.quote(part, safe="") for part in self.path)
        query = "?" + urllib.parse.urlencode(self.options) if self.options else ""
        if self.file:
            return f"{self.scheme}://{urllib.parse.quote(self.file)}{query}"
        if self.socket:
            path = f":{path}" if path else ""
            return f"{self.scheme}://{who}unix/:{urllib.parse.quote(self.socket)}{path}{query}"
        return f"{self.scheme}://{who}{host}:{self.port}{path}{query}"

    def secret(self) -> str:
        """The password, as it stands in its file now; the one that was read first if the file
        cannot be read any more, as on another machine. "" for none."""
        if not self.password_file:
            return self.password
        try:
            return read_password(self.password_file) or self.password
        except (OSError, ValueError):
            return self.password

    def option(self, name: str) -> str:
        """The value of one option; "" if it is not given."""
        return dict(self.options).get(name, "")

    def flag(self, name: str) -> bool:
        """Whether an option is switched on. Raises `ConfigError` for a value that says neither."""
        text = dict(self.options).get(name, "0").lower()
        if text not in _ON and text not in _OFF:
            hint = f"write {name}=1, or {name}=0 as without it"
            raise ConfigError(name, f"{text!r} in {self}", hint=hint)
        return text in _ON


@dataclass(frozen=True, slots=True)
class Scheme:
    """One kind of address. `path_names`: what the path holds; `required`: how many parts;
    `listens_with_path`: whether a listener may have one; `listens`, `follows`: whether it is one of
    listeners, of upstreams; `options`, `listen_options`: what may stand in an upstream's and a
    listener's address besides what may stand in each, a name that ends with a point for all that
    begin so; `stall_seconds`: how long an upstream may say nothing, unless its address says;
    `is_file`: its addresses are files; `fills`: (kind, name here, part) of what an upstream's
    address tells that it fills, see `replication.service.names`."""

    name: str
    port: int
    path_names: tuple[str, ...] = ()
    required: int = 0
    listens_with_path: bool = False
    listens: bool = True
    follows: bool = True
    options: frozenset[str] = frozenset()
    listen_options: frozenset[str] = frozenset()
    stall_seconds: float = STALL_SECONDS
    is_file: bool = False
    fills: Callable[[Url], Iterable[tuple[str, str, str]]] = lambda url: ()


Schemes = Mapping[str, Scheme]
"""By name."""


def schemes_of(*schemes: Scheme) -> Schemes:
    """Schemes by their names."""
    return {scheme.name: scheme for scheme in schemes}


def option_seconds(url: Url, name: str, default: float, *, may_be_zero: bool = False) -> float:
    """An option of an address that is a time. Raises `ConfigError`."""
    text = url.option(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (0.0 < seconds <= _SECONDS_MAX or (may_be_zero and seconds == 0.0)):
        raise ConfigError(name, f"{text!r} in {url}", hint=f"write {name}=SECONDS, such as 60")
    return seconds


def option_choice(url: Url, name: str, known: Sequence[str]) -> str:
    """An option of an address that is one of some words, the first if it is not given. Raises
    `ConfigError`."""
    text = url.option(name) or known[0]
    if text not in known:
        raise ConfigError(
            name, f"{text!r} in {url}", hint=f"one of {', '.join(filter(None, known))}"
        )
    return text


def option_names(url: Url, name: str) -> list[str]:
    """An option of an address that is names with commas between them."""
    return [one for one in url.option(name).split(",") if one]


def _refuse(text: str, origin: str, message: str, hint: str) -> ConfigError:
    shown = without_secrets(text)
    if "@" in shown:
        before, host = shown.rpartition("@")[::2]
        scheme, separator, _ = before.partition("://")
        shown = f"{scheme}://…@{host}" if separator and "@" not in scheme else f"…@{host}"
    return ConfigError(f"address {shown!r}", message, origin=origin, hint=hint)


def _scheme(text: str, schemes: Schemes, origin: str, is_listener: bool) -> Scheme:
    """The scheme of an address. Raises `ConfigError` if it has none, or an unsuitable one."""
    name, separator, _ = text.partition("://")
    fitting = [one for one in schemes.values() if (one.listens if is_listener else one.follows)]
    known = ", ".join(one.name for one in fitting)
    if not separator:
        example = text.rsplit("@", 1)[-1] or "host"
        hint = f"write tarantool://{example}, or another scheme: {known}"
        raise _refuse(text, origin, "it does not begin with a scheme", hint)
    scheme = schemes.get(name)
    what = "listened on" if is_listener else "followed"
    if scheme is None:
        hint = f"those that can be {what}: {known}"
        raise _refuse(text, origin, "the scheme is not known", hint)
    if scheme not in fitting:
        raise _refuse(text, origin, f"{name} cannot be {what}", f"these can: {known}")
    return scheme


def _takes(options: frozenset[str], key: str) -> bool:
    """Whether `key` is among them, or begins as one that ends with a point."""
    head, _, rest = key.partition(".")
    return (f"{head}." if rest else key) in options and not key.endswith(".")


def _options(query: str) -> tuple[tuple[str, str], ...]:
    """Raises `ValueError`."""
    found = urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    names = [name for name, _ in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the option {name!r} stands in it more than once")
    return tuple(found)


def _parse_file(text: str, scheme: Scheme, origin: str) -> Url:
    """The third form. Raises `ConfigError`."""
    name, _, query = text.partition("://")[2].partition("?")
    file = urllib.parse.unquote(name)
    form = f"write {scheme.name}://FILE, and %3F for a question mark in its name"
    if not file or "\0" in file:
        raise _refuse(text, origin, "it names no file", form)
    try:
        return Url(scheme.name, "", 0, options=_options(query), file=file)
    except ValueError as error:
        raise _refuse(text, origin, str(error), form) from error


def _parse(
    text: str, schemes: Schemes, origin: str, default_host: str, is_listener: bool
) -> tuple[Url, Scheme]:
    scheme = _scheme(text, schemes, origin, is_listener)
    if scheme.is_file:
        return _parse_file(text, scheme, origin), scheme
    form = f"write {scheme.name}://host:{scheme.port}" + "".join(
        f"/{part}" for part in scheme.path_names
    )
    form += f", or {scheme.name}://unix/:/FILE for a unix socket"
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
        options = _options(parts.query)
    except ValueError as error:
        raise _refuse(text, origin, str(error), form) from error
    if parts.fragment or any(letter.isspace() or letter < " " for letter in text):
        hint = f"{form}, and %20 for a space" if " " in text else form
        raise _refuse(text, origin, "it holds a letter that an address cannot have", hint)
    host, rest, file = parts.hostname or default_host, parts.path, ""
    if host == "unix" and port is None and rest.startswith("/:"):
        host, port = "", 0
        name, separator, rest = rest.removeprefix("/:").partition(":")
        file = urllib.parse.unquote(name)
        if not file or "\0" in file or (separator and not rest.startswith("/")):
            raise _refuse(text, origin, "it names no unix socket", form)
    elif not host:
        raise _refuse(text, origin, "it names no host", form)
    path = tuple(urllib.parse.unquote(part) for part in rest.split("/")[1:])
    if path and path[-1] == "":
        path = path[:-1]
    least = 0 if is_listener else scheme.required
    if not least <= len(path) <= len(scheme.path_names) or "" in path:
        raise _refuse(text, origin, "its path does not fit", form)
    url = Url(
        scheme=scheme.name,
        host=host,
        port=scheme.port if port is None else port,
        user=urllib.parse.unquote(parts.username or ""),
        password=urllib.parse.unquote(parts.password or ""),
        path=path,
        options=options,
        socket=file,
    )
    return url, scheme


def read_url(text: str, schemes: Schemes, *, origin: str = "argument") -> Url:
    """Read the address of an upstream. `origin`: where it was written, for the error.

    Raises `ConfigError`, in which a password is not shown.
    """
    url, scheme = _parse(text, schemes, origin, "", is_listener=False)
    if url.port == 0 and not (url.socket or url.file):
        raise _refuse(text, origin, "port 0 cannot be connected to", "name the port")
    allowed = scheme.options | (
        _FILE_OPTIONS if url.file else _SOCKET_OPTIONS if url.socket else _OPTIONS
    )
    unknown = sorted(key for key, _ in url.options if not _takes(allowed, key))
    if unknown:
        known = ", ".join(sorted(allowed))
        message = f"an upstream of {url.scheme} has no option {unknown[0]!r}"
        raise _refuse(text, origin, message, f"it has {known}")
    return _with_password(url, text, origin) if url.option(_PASSWORD_FILE) else url


def read_password(file: str) -> str:
    """The first line of a file. That everybody may read it is told once, but for what a container
    is given in `/run/secrets`. Raises `OSError`; `ValueError` if it is not text."""
    with open(file, encoding="utf-8") as opened:
        mode = os.fstat(opened.fileno()).st_mode
        if stat.S_ISREG(mode) and mode & stat.S_IROTH and not file.startswith(_OF_CONTAINERS):
            _tell_readable(file, f"{stat.S_IMODE(mode):04o}")
        return opened.readline().rstrip("\r\n")


@functools.cache
def _tell_readable(file: str, mode: str) -> None:
    _log.warning("password_file.readable", file=file, mode=mode, hint="chmod 600 FILE")


def _with_password(url: Url, text: str, origin: str) -> Url:
    """The address with the password from the file that it names, as if it stood there itself."""
    if url.password:
        raise _refuse(text, origin, "it has a password and a password_file", "give one of them")
    file = url.option(_PASSWORD_FILE)
    try:
        password = read_password(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        hint = "its first line is the password"
        raise ConfigError(_PASSWORD_FILE, f"{file}: {reason}", origin=origin, hint=hint) from error
    if not password:
        hint = "its first line is the password"
        raise ConfigError(_PASSWORD_FILE, f"{file}: it is empty", origin=origin, hint=hint)
    others = tuple(one for one in url.options if one[0] != _PASSWORD_FILE)
    return replace(url, password=password, password_file=file, options=others)


def read_listen_url(text: str, schemes: Schemes, *, origin: str = "argument") -> Url:
    """Read the address of a listener: no user; a path only if `Scheme.listens_with_path`; host
    127.0.0.1 unless given; port 0: any.

    Raises `ConfigError`.
    """
    url, scheme = _parse(text, schemes, origin, "127.0.0.1", is_listener=True)
    allowed = scheme.listen_options | (_LISTEN_SOCKET_OPTIONS if url.socket else _LISTEN_OPTIONS)
    refused = sorted(key for key, _ in url.options if not _takes(allowed, key))
    plain = f"write {Url(url.scheme, url.host, url.port, socket=url.socket)}"
    if url.user or url.password:
        raise _refuse(text, origin, "a listener has no user and no password", plain)
    if url.path and not scheme.listens_with_path:
        raise _refuse(text, origin, f"a listener of {url.scheme} has no path", plain)
    if refused:
        known = f"it has {', '.join(sorted(allowed))}"
        if refused[0] == "tls" and not url.socket:
            known = "give --tls-certificate and --tls-key: they are for every listener"
        message = f"a listener of {url.scheme} has no option {refused[0]!r}"
        raise _refuse(text, origin, message, known)
    return url
