"""Two running servers compared by what they hold: `logweir diff`, `logweir status --checksums`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.waiting import until

from interop.realtarantool import RealTarantool
from interop.serving import Serving
from interop.test_iproto_cli import told
from logweir.replication.service import users
from logweir.store.schema.access import Privilege


def fill(serving: Serving, count: int = 500) -> None:
    serving.log.create_space("t", format=[("id", "unsigned"), ("v", "string")])
    serving.log.append("t", [(number, f"v{number}") for number in range(count)])


def differences(*words: object) -> list[dict[str, object]]:
    code, out, err = told("diff", *words)
    found = [json.loads(line) for line in out.splitlines()]
    assert code == bool(found), err
    return found


@pytest.mark.tarantool
def test_a_tarantool_and_its_master_are_compared_by_content(tmp_path: Path) -> None:
    """A replica that is up to date differs in nothing, whichever side is named first; from a copy
    of before it differs in what has changed since. A tuple that is other there, at the very same
    position, is found."""
    ours, before = tmp_path / "ours", tmp_path / "before"
    with Serving(ours, guest="replicate") as serving:
        fill(serving)
        users.add_user(serving.log, "copier", password="secret")
        users.grant(serving.log, "copier", Privilege.EXECUTE, users.Target("role", "replication"))
        cfg = {"replication": f"127.0.0.1:{serving.port}", "read_only": True}
        with RealTarantool(tmp_path / "theirs", cfg=cfg) as replica:
            theirs = f"tarantool://copier:secret@127.0.0.1:{replica.port}"
            until(lambda: replica.eval("return box.space.t and box.space.t:count()")[0] == 500)
            serving.log.snapshot()
            shutil.copytree(ours, before, ignore=shutil.ignore_patterns("state", "*.lock"))
            assert differences(serving.url, theirs) == []
            serving.log.replace("t", (7, "later"))
            serving.log.delete("t", 8)
            until(lambda: replica.eval("return box.space.t:count()")[0] == 499)
            assert differences(theirs, serving.url) == []
            changes = differences(before, theirs)
            assert [(one["change"], one.get("after")) for one in changes] == [
                ("changed", [7, "later"]),
                ("removed", None),
            ]
            replica.eval("box.cfg{replication = '', read_only = false}")
            replica.eval("box.space.t:replace{7, 'theirs'}")
            serving.log.replace("t", (7, "ours"))
            (found,) = differences(serving.url, theirs, "--space", "t")
            assert (found["before"], found["after"]) == ([7, "ours"], [7, "theirs"])


def test_two_logweirs_with_equal_positions_and_other_contents(tmp_path: Path) -> None:
    """`diff` names the tuples, `--space` chooses; the checksums of that space only differ, and are
    metrics."""
    with Serving(tmp_path / "one") as serving:
        fill(serving)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with (
        Serving(tmp_path / "one", guest="all") as one,
        Serving(tmp_path / "two", guest="all") as two,
    ):
        one.log.replace("t", (7, "a"))
        two.log.replace("t", (7, "b"))
        assert one.log.vclock == two.log.vclock
        (found,) = differences(one.url, two.url)
        assert (found["space"], found["before"], found["after"]) == ("t", [7, "a"], [7, "b"])
        assert differences(one.url, two.url, "--space", "_space") == []
        sums = []
        for serving in (one, two):
            code, out, _ = told("status", "--checksums", "--json", serving.url)
            assert code == 0
            status = json.loads(out)
            assert status["checksums_at"] == {"1": serving.log.vclock.lsn(1)}
            rows = status["checksums"]
            sums.append({row["space"]: (row["tuples"], row["crc32c"]) for row in rows})
            text = serving.server.metrics.render().decode()
            crc = float(int(sums[-1]["t"][1], 16))
            assert f'logweir_space_checksum{{space="t"}} {crc!r}' in text or f"{crc:.9e}" in text
            assert 'logweir_space_tuples{space="t"} 500.0' in text
        assert {name for name in sums[0] if sums[0][name] != sums[1][name]} == {"t"}


def test_what_cannot_be_compared_is_told(tmp_path: Path) -> None:
    """Another kind of server, nobody there, no right to replicate, no right to ask."""
    code, _, err = told("diff", "tank://127.0.0.1:1", tmp_path)
    assert (code, "copied as of one position" in err) == (2, True)
    code, _, err = told("diff", "tarantool://127.0.0.1:1", tmp_path)
    assert (code, "127.0.0.1:1" in err) == (4, True)
    with Serving(tmp_path / "ours", guest="none") as serving:
        code, _, err = told("diff", serving.url, tmp_path / "ours")
        assert (code, "denied" in err) == (4, True)
        code, _, err = told("status", "--checksums", serving.url)
        assert (code, "does not tell checksums" in err) == (1, True)
