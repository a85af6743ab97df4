"""No error, message or result shows the password of an address, however the address is written."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.archives import run

import logweir
from logweir import pipeline
from logweir.archive.fetch import restore_archive
from logweir.archive.objects import open_objects
from logweir.errors import ConfigError, LogweirError, WalError, without_secrets
from logweir.pipeline.jobs.delta import DeltaPlace
from logweir.pipeline.onefile import write_file
from logweir.pipeline.options import SinkOptions, shown
from logweir.pipeline.spoolplace import SpoolPlace
from logweir.pipeline.storage import open_storage
from logweir.pipeline.targets import open_target
from logweir.replication.protocols import parse_url

pytestmark = pytest.mark.leaves  # what asks an object store keeps what it waits with
UNREADABLE = "s3://key:hid/den@bucket/log?region=us-east-1"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s3://bucket/a b", "s3://bucket/a b"),
        ("s3://key:hidden@bucket/log: no", "s3://…@bucket/log: no"),
        ("'s3://key:hid/den@bucket/log' is", "'s3://…@bucket/log' is"),
        ("s3:/key:hid/den@bucket/log: gone", "s3:/…@bucket/log: gone"),
        ("s3://key:hid?den@bucket/log", "s3://…"),
        ("s3://key:h@d?den@bucket/log", "s3://…"),
        ("s3://a:hidden@b s3://c:hidden@d", "s3://…@b s3://…@d"),
        ("s3://b/x?secret_key=hidden&region=r", "s3://b/x?secret_key=…&region=r"),
        ("at 'gs://b?r=1&access_token=hidden'.", "at 'gs://b?r=1&access_token=…'."),
        ("abfs://c/x?sig=hidden", "abfs://c/x?sig=…"),
        ("tank://h:1/t?password=hidden)", "tank://h:1/t?password=…)"),
        ("tank://ada@host:3301/?password_file=/a", "tank://ada@host:3301/?password_file=/a"),
        ("tarantool://ada@[::1]:3301", "tarantool://ada@[::1]:3301"),
        ("/data/a:b@c/1.xlog", "/data/a:b@c/1.xlog"),
    ],
)
def test_text_is_shown_without_secrets(text: str, wanted: str) -> None:
    """Of addresses the part with a password goes, and values that are called like secrets."""
    assert without_secrets(text) == wanted
    assert without_secrets(wanted) == wanted
    assert WalError(text, path=text).message == f"{wanted}: {wanted}"
    assert WalError("no", path=text).path == wanted


def test_a_place_is_shown_without_secrets() -> None:
    """As `file` and paths are, and without its options."""
    assert shown(UNREADABLE) == "s3://bucket/log"
    assert shown("s3://key:hid?den@bucket/log") == "s3://…"
    assert shown("/a:/b@c?d") == "/a:/b@c?d"
    assert shown("s3://key@bucket") == "s3://bucket"


ANY: Any = None
PLACES: dict[str, Callable[[str], object]] = {
    "export": lambda url: pipeline.export(ANY, "nowhere", url),
    "import": lambda url: pipeline.import_frame(ANY, url, "t"),
    "sink": lambda url: SinkOptions.parse({"path": url}),
    "spool": SpoolPlace,
    "scan": lambda url: pipeline.batches(url).read_all(),
    "storage": open_storage,
    "target": lambda url: open_target("to", url),
    "one file": lambda url: write_file(
        url.replace("log", "log.csv"), pa.table({"a": [1]}).to_reader()
    ),
    "table": lambda url: DeltaPlace(url).arrow(),
    "archive": open_objects,
    "upstream": parse_url,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("scheme", ["s3", "unheard"])
def test_a_refused_address_shows_no_secret(
    place: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what caused the error: a traceback shows that, too."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(LogweirError) as found:
        PLACES[place](UNREADABLE.replace("s3", scheme, 1))
    text = "".join(traceback.format_exception(found.value))
    for part in ("key:hid", "hid/", "/den"):
        assert part not in text


def test_restore_shows_no_secret(tmp_path: Path) -> None:
    """Where the archive's address cannot be read."""
    with pytest.raises(ConfigError, match="s3://bucket/log") as found:
        restore_archive(UNREADABLE, tmp_path / "to")
    assert "hid" not in "".join(traceback.format_exception(found.value))


@pytest.mark.parametrize(
    "words",
    [
        ("archive", "DIR", "--to", UNREADABLE),
        ("archive", "status", UNREADABLE),
        ("restore", "--from", UNREADABLE, "--to", "new"),
        ("changes", "DIR", "--space", "t", "-o", UNREADABLE.replace("log", "log.csv")),
        ("pipeline", "import", "DIR", "--format", "tank", "--to", UNREADABLE),
        ("verify", UNREADABLE),
        ("cat", UNREADABLE),
    ],
)
@pytest.mark.parametrize("more", [(), ("--debug",)])
def test_commands_show_no_secret(
    words: tuple[str, ...], more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the error nor in what `--debug` shows of where it came from."""
    monkeypatch.chdir(tmp_path)
    with logweir.open(tmp_path / "store") as log:
        log.create_space("t", format=[("id", "unsigned")])
    given = [str(tmp_path / "store") if word == "DIR" else word for word in words]
    done = run(*given, *more)
    assert done.exit_code not in (0, 1), done.output
    assert "error: " in done.output
    for part in ("key:", "hid/", "/den"):
        assert part not in done.output
