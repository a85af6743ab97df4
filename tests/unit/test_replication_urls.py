"""Addresses of upstreams and listeners."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logweir.errors import ConfigError
from logweir.replication.protocols import SCHEMES, parse_listen_url, parse_url, wire_protocols
from logweir.replication.urls import Url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("tarantool://host", Url("tarantool", "host", 3301)),
        (
            "tarantool://me:p%40ss@10.0.0.1:3302",
            Url("tarantool", "10.0.0.1", 3302, "me", "p@ss"),
        ),
        ("tarantool://[::1]:1", Url("tarantool", "::1", 1)),
        ("tank://h/topic", Url("tank", "h", 11011, path=("topic",))),
        ("tank://h/topic/3", Url("tank", "h", 11011, path=("topic", "3"))),
        ("tap://h:1/", Url("tap", "h", 1)),
        ("greenstack://h", Url("greenstack", "h", 11210)),
        ("synapse://h", Url("synapse", "h", 9092)),
        ("synapse+redis://h/matrix.org", Url("synapse+redis", "h", 6379, path=("matrix.org",))),
        (
            "synapse://h?http=a:1&http.p1=b:2",
            Url("synapse", "h", 9092, options=(("http", "a:1"), ("http.p1", "b:2"))),
        ),
        ("tarantool://h?anonymous=1", Url("tarantool", "h", 3301, options=(("anonymous", "1"),))),
        ("tarantool://unix/:/run/x.sock", Url("tarantool", "", 0, socket="/run/x.sock")),
        ("tarantool://unix/:x.sock", Url("tarantool", "", 0, socket="x.sock")),
        ("tarantool://unix:1", Url("tarantool", "unix", 1)),
        (
            "tarantool://me:p@unix/:/a%3Ab%20c?stall=3",
            Url("tarantool", "", 0, "me", "p", options=(("stall", "3"),), socket="/a:b c"),
        ),
        (
            "tap://unix/:/run/x:/space:orders",
            Url("tap", "", 0, path=("space:orders",), socket="/run/x"),
        ),
        ("tank://unix/:/x:/t/3", Url("tank", "", 0, path=("t", "3"), socket="/x")),
        (
            "synapse+redis://unix/:/r:/matrix.org",
            Url("synapse+redis", "", 0, path=("matrix.org",), socket="/r"),
        ),
        (
            "synapse+file:///etc/My%20Server/hs.yaml?name=two",
            Url("synapse+file", "", 0, options=(("name", "two"),), file="/etc/My Server/hs.yaml"),
        ),
        ("synapse+file://hs.yaml", Url("synapse+file", "", 0, file="hs.yaml")),
    ],
)
def test_address_is_read(text: str, url: Url) -> None:
    """Every scheme, its default port and its path."""
    assert parse_url(text) == url
    assert parse_url(text).password == url.password
    assert parse_url(str(url)) == replace(url, password="")


def test_path_with_a_space_is_quoted() -> None:
    """A certificate may lie anywhere; who writes its path as it is, is told how to write it."""
    url = parse_url("tank://h?tls=1&ca=/my%20files/c.pem")
    assert url.options == (("tls", "1"), ("ca", "/my files/c.pem"))
    assert parse_url(str(url)) == url
    with pytest.raises(ConfigError) as caught:
        parse_url("tank://h?tls=1&ca=/my files/c.pem")
    assert "%20 for a space" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:3301",
        "http://host",
        "tarantool://",
        "tarantool://h:99999",
        "tarantool://h:x",
        "tarantool://h:0",
        "tarantool://h/path",
        "tarantool://h?what=1",
        "synapse://h?http.=b:2",
        "tarantool://h#part",
        "tank://h/a/b/c",
        "tank://h//1",
        "tarantool://u:secret@h:x y",
        "tarantool://[::1",
        "synapse+redis://h",
        "memcached://h",
        "tarantool:///run/x.sock",
        "tarantool://unix/:",
        "tarantool://unix/:/x%00y",
        "tarantool://unix/:/x:/path",
        "tap://unix/:/x:b",
        "tarantool://unix/:/x?tls=1",
        "synapse+redis://unix/:/x",
        "tank://u:secret@h?start=begin&start=end",
        "synapse+file:///x?start=all&start=all",
    ],
)
def test_bad_address_is_refused_without_its_password(text: str) -> None:
    """A typed error with a hint; the password never shows."""
    with pytest.raises(ConfigError) as caught:
        parse_url(text, origin="--follow")
    assert caught.value.origin == "--follow"
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_listener_is_on_loopback_unless_told() -> None:
    """No host means 127.0.0.1; any other host has to be written."""
    assert parse_listen_url("tarantool://:0") == Url("tarantool", "127.0.0.1", 0)
    assert parse_listen_url("tank://0.0.0.0") == Url("tank", "0.0.0.0", 11011)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("tarantool://u@h", "no user", "write tarantool://h:3301"),
        ("tank://h/topic", "no path", "write tank://h:11011"),
        ("tarantool://h?tls=1", "no option 'tls'", "--tls-certificate"),
        ("tank://h?value=2", "no option 'value'", "it has from, topics"),
        ("synapse://h?http.p1=b:2", "no option 'http.p1'", "it has auth_file, dialect, from"),
        ("greenstack://h?dialect=2", "no option 'dialect'", "it has from, plain"),
        ("synapse+redis://h/s", "cannot be listened on", "tarantool, tank, tap, memcached"),
        ("127.0.0.1:3301", "does not begin with a scheme", "write tarantool://127.0.0.1:3301,"),
        ("", "does not begin with a scheme", "write tarantool://host,"),
        ("tarantool://unix/:/x?from=::1", "no option 'from'", "it has mode"),
        ("tarantool://unix/:/x?tls=1", "no option 'tls'", "it has mode"),
        ("tarantool://h?mode=600", "no option 'mode'", "it has from"),
        ("tarantool://u@unix/:/x", "no user", "write tarantool://unix/:/x"),
        ("tarantool:///x", "its path does not fit", "tarantool://unix/:/FILE for a unix socket"),
        ("http://h", "the scheme is not known", "can be listened on: tarantool, tank"),
    ],
)
def test_listener_is_told_what_it_cannot_have(text: str, message: str, hint: str) -> None:
    """What a listener cannot honour is refused by name, with an address that it could have."""
    with pytest.raises(ConfigError) as caught:
        parse_listen_url(text, origin="--listen")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "synapse+redis" not in caught.value.hint


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (
            "tank://h/t?dialect=D1",
            "it has ca, certificate, key, name, password_file, skip, stall, start, tls, topics",
        ),
        ("synapse://h?vbuckets=1", "http."),
        ("greenstack://h?sweep=1", "stall"),
        ("tarantool://h?from=::1", "anonymous"),
    ],
)
def test_upstream_is_told_which_options_its_scheme_has(text: str, known: str) -> None:
    """What another scheme, or a listener, would take is refused by name."""
    with pytest.raises(ConfigError, match="has no option") as caught:
        parse_url(text)
    assert known in caught.value.hint


def test_every_scheme_belongs_to_the_protocol_that_serves_it() -> None:
    """Addresses that can be read, and protocols of a server, are the same."""
    served = {name: scheme for one in wire_protocols() for name, scheme in one.schemes.items()}
    assert served == SCHEMES


@pytest.mark.parametrize(
    "text", ["me:secret@host", "me:secret@host:3301", "://me:secret@h", "me:secret@h://h"]
)
def test_address_without_scheme_keeps_its_password_to_itself(text: str) -> None:
    """Neither the message nor the hint, which shows an address, has it."""
    for parse in (parse_url, parse_listen_url):
        with pytest.raises(ConfigError) as caught:
            parse(text)
        assert "secret" not in f"{caught.value} {caught.value.hint}"


def test_password_is_never_printed() -> None:
    """Neither `str` nor `repr` shows it."""
    url = parse_url("tarantool://me:geheim@h")
    assert "geheim" not in str(url)
    assert "geheim" not in repr(url)


@given(
    st.sampled_from(sorted(one.name for one in SCHEMES.values() if one.follows)),
    st.integers(1, 65535),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1),
)
def test_text_of_an_address_reads_back(scheme: str, port: int, user: str) -> None:
    """`parse_url(str(url))` is the same address, but for the password."""
    path = ("part",) * SCHEMES[scheme].required
    url = Url(scheme, "host", port, user, path=path)
    if SCHEMES[scheme].is_file:
        url = Url(scheme, "", 0, file=user)
    assert parse_url(str(url)) == url


@given(st.text())
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    """Garbage gives a value or our error only."""
    for candidate in (text, "tarantool://" + text):
        with contextlib.suppress(ConfigError):
            assert isinstance(parse_url(candidate), Url)


@pytest.mark.parametrize(
    "scheme", [one.name for one in SCHEMES.values() if one.follows and not one.is_file]
)
def test_password_is_read_from_a_file(scheme: str, tmp_path: Path) -> None:
    """The first line of the file counts, of every upstream; its address is then what it is with the
    password written there."""
    file = tmp_path / "pass word"
    file.write_text("se cret\nmore\n")
    path = "/".join(["", *SCHEMES[scheme].path_names[: SCHEMES[scheme].required]])
    url = parse_url(f"{scheme}://me@h:1{path}?stall=3&password_file={quote(str(file))}")
    assert url == parse_url(f"{scheme}://me:se%20cret@h:1{path}?stall=3")
    assert url.password == url.secret() == "se cret"
    assert "cret" not in str(url) + repr(url)
    file.write_text("another\n")
    assert url.secret() == "another"
    file.write_text("")
    assert url.secret() == "se cret"
    file.unlink()
    assert url.secret() == "se cret"


@pytest.mark.parametrize(("mode", "told"), [(0o600, False), (0o640, False), (0o644, True)])
def test_password_file_that_all_may_read_is_told(
    mode: int, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with its mode and what to do, and the password is taken; a group may be meant."""
    file = tmp_path / "password"
    file.write_text("secret\n")
    file.chmod(mode)
    for _ in range(2):
        assert parse_url(f"tarantool://me@h?password_file={file}").secret() == "secret"
    lines = [one.getMessage() for one in caplog.records]
    assert lines == told * [
        f"event='password_file.readable' file='{file}' mode='0644' hint='chmod 600 FILE'"
    ]


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "No such file"), (b"", "empty"), (b"\xff", "not text")]
)
def test_password_file_that_is_none_is_refused(
    content: bytes | None, complaint: str, tmp_path: Path
) -> None:
    """With its name; so is an address with two passwords."""
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse_url(f"tarantool://me@h?password_file={file}", origin="--follow")
    assert str(file) in str(caught.value)
    with pytest.raises(ConfigError, match="give one of them") as caught:
        parse_url(f"tarantool://me:secret@h?password_file={file}")
    assert "secret" not in str(caught.value)
