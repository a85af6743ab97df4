"""What the Java of a session starts with: a home of Spark that is kept, an archive of classes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from logweir.pipeline.javastart import ARCHIVE, archive_options, keep_classes, kept_home
from logweir.pipeline.sessions import find_java


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache, with two homes of Java beside it."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("jdk", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "release").write_text('JAVA_VERSION="17"\n')
    return tmp_path / "cache"


def test_the_home_is_kept_for_one_java_and_one_spark(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same again next time; another one for another Java, one that was replaced, and one with
    other options. It has all of Spark but its copy of PySpark."""
    java = cache.with_name("jdk")
    home = kept_home(java)
    assert home is not None
    assert home.is_relative_to(cache)
    assert (home / "jars").is_symlink()
    assert not (home / "python").exists()
    assert kept_home(java) == home
    found = [home, kept_home(cache.with_name("other"))]
    (java / "release").write_text('JAVA_VERSION="17.0.1"\n')
    found.append(kept_home(java))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -verbose:gc")
    found.append(kept_home(java))
    assert len({*found, None}) == 5
    assert sorted(cache.glob("*/*")) == sorted(one.parent for one in found if one is not None)


def test_what_others_could_write_is_not_used(cache: Path) -> None:
    """Java runs what is in the archive. Where no cache can be, there is none either."""
    java = cache.with_name("jdk")
    home = kept_home(java)
    assert home is not None
    home.parent.chmod(0o770)
    assert kept_home(java) is None
    cache.rename(cache.with_name("gone"))
    cache.touch()
    assert kept_home(java) is None


def test_the_archive_is_used_where_there_is_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is none Java is told where it is to be, if it was asked for
    and this Java can."""
    java = cache.with_name("jdk")
    home = kept_home(java)
    assert home is not None
    (java / "lib" / "server").mkdir(parents=True)
    (java / "lib" / "server" / ARCHIVE).touch()
    assert archive_options(java, home) == []
    monkeypatch.setenv("LOGWEIR_KEEP_CLASSES", "1")
    assert archive_options(cache.with_name("other"), home) == []
    archive = home.with_name(ARCHIVE)
    assert f"-Dlogweir.classes={archive}" in archive_options(java, home)
    archive.touch()
    assert archive_options(java, home)[0] == f"-XX:SharedArchiveFile={archive}"


@pytest.mark.spark
def test_java_makes_and_takes_the_archive(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes it for the jars that it was made of only. Nothing of this is printed: what a job
    prints is its result."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    java = find_java()
    home = kept_home(java)
    assert home is not None
    monkeypatch.setenv("LOGWEIR_KEEP_CLASSES", "1")
    log = cache / "log"

    def start(jar: Path) -> tuple[bool, str]:
        """Whether it made the archive, and where it had its first class from."""
        words = [*archive_options(java, home), f"-Xlog:class+load:file={log}", "-cp", str(jar)]
        words += ["py4j.GatewayServer", "--die-on-broken-pipe", "0"]
        with subprocess.Popen([java / "bin" / "java", *words], stdin=PIPE, stdout=PIPE) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
            made = keep_classes(gateway.jvm)
            gateway.shutdown()
            printed, _ = process.communicate()
        assert not keep_classes(gateway.jvm)  # it is gone, as behind Ctrl-C
        assert printed == b""
        (line,) = (one for one in log.read_text().splitlines() if " py4j.GatewayServer " in one)
        return made, line.partition(" source: ")[2]

    (jar,) = (home / "jars").glob("py4j-*.jar")
    made, source = start(jar)
    assert made
    assert source.startswith("file:")
    assert start(jar) == (False, "shared objects file (top)")
    made, source = start(Path(shutil.copy(jar, cache)))
    assert not made
    assert source.startswith("file:")
    assert [one.name for one in home.parent.iterdir() if one != home] == [ARCHIVE]
