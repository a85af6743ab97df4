"""Finding a Java, without starting Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import logweir
from logweir import pipeline
from logweir.errors import ConfigError
from logweir.pipeline.sessions import find_java, has_module, without_module


def java(home: Path, version: str) -> Path:
    """A program that says it is a Java of that version."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize("version", ["17.0.15", "21", "21-ea"])
def test_java_home_is_taken(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user set is used where it is new enough."""
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", version)))
    assert find_java() == tmp_path / "jdk"


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2"])
def test_an_old_java_is_refused(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its version and what to install."""
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "jdk", version)))
    with pytest.raises(ConfigError, match=r"version (8|11).*install"):
        find_java()


def test_no_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without a program."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no java"):
        find_java()


def test_the_path_is_searched_without_java_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first `java` of the path, its links followed."""
    home = java(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert find_java() == home


def test_the_face_loads_neither_spark_nor_arrow() -> None:
    """`import logweir.pipeline` costs nothing, and an unknown name is an AttributeError."""
    code = (
        "import sys, logweir.pipeline; "
        "assert not {'pyspark', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code]).returncode == 0
    with pytest.raises(AttributeError, match="nothing"):
        _ = pipeline.nothing


def test_what_plans_a_read_loads_neither_pandas_nor_the_store() -> None:
    """Spark starts a process for each plan: what it imports is paid each time."""
    code = (
        "import sys, logweir.pipeline.readers; "
        "assert not {'pandas', 'logweir.store.engine.engine'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code]).returncode == 0


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv", "jsonl"])
def test_what_is_read_without_spark_loads_no_pandas(tmp_path: Path, ending: str) -> None:
    """Half a second that `logweir changes` and `pipeline.batches` do without."""
    with logweir.open(tmp_path / "data") as log:
        fields: list[Any] = [
            ("id", "unsigned"),
            ("n", "integer"),
            ("s", "string"),
            ("d", "decimal"),
        ]
        log.create_space("t", format=[*fields, ("b", "varbinary"), ("m", "map")])
        log.insert("t", (1, -1, "text", Decimal("1.5"), b"\x00", {"a": 1}))
    code = (
        "import sys\n"
        "from logweir import pipeline\n"
        "from logweir.tools.cli.main import app\n"
        "_, folder, to = sys.argv\n"
        "every = ['file', 'space_id', 'type_name', 'time', 'size', 'tuple', 'key_json', 'flags']\n"
        "assert pipeline.batches(folder, columns=every).read_all().num_rows > 1\n"
        "words = ['changes', folder, '--space', 't', '--output', to]\n"
        "assert not app(words, standalone_mode=False)\n"
        "assert 'pyarrow' in sys.modules and 'pandas' not in sys.modules\n"
    )
    to = tmp_path / f"changes.{ending}"
    ran = subprocess.run([sys.executable, "-P", "-c", code, tmp_path / "data", to])
    assert ran.returncode == 0


def test_a_java_without_the_module_is_started_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Java whose `release` does not list what Spark asks for gets every word but that one."""
    home = java(tmp_path / "jdk of mine", "21")
    (home / "release").write_text('JAVA_VERSION="21"\nMODULES="java.base java.sql"\n')
    (home / "bin" / "java").write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    assert not has_module(home)
    started = without_module(home, tmp_path / "folder")
    words = ["--add-modules=jdk.incubator.vector", "-cp", "a b", "", "--add-modules=java.sql"]
    ran = subprocess.run([started / "bin" / "java", *words], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<--add-modules=java.sql>"]
    (home / "release").write_text('MODULES="java.base jdk.incubator.vector"\n')
    assert has_module(home)
    (home / "release").unlink()
    assert has_module(home)


def test_a_missing_spark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PySpark is not there, the error names the extra."""
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ConfigError, match=r"logweir\[spark\].*tools/run pipeline"):
        pipeline.session()


def test_a_missing_arrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the one of batches without Spark."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pyarrow .*logweir\[arrow\]"):
        pipeline.batches(tmp_path)


@pytest.mark.parametrize(
    ("words", "extras"),
    [
        (["pipeline", "verify", "data"], "<spark>"),
        (["bench", "spark"], "<spark>"),
        (["pipeline", "--help"], "<>"),
        (["pipeline"], "<>"),
        (["verify", "data"], "<>"),
        ([], "<>"),
    ],
)
def test_a_clone_installs_spark_when_a_job_asks(
    words: list[str], extras: str, tmp_path: Path
) -> None:
    """`tools/run pipeline JOB` sets up the extra first; nothing else does."""
    tools = tmp_path / "tools"
    tools.mkdir()
    shutil.copy(Path(__file__).parents[2] / "tools" / "run", tools)
    (tools / "setup.sh").write_text(
        f'LOGWEIR_VENV={tmp_path}\nlogweir_setup() {{ echo "set up <$*>"; }}\n'
    )
    (tmp_path / "bin").mkdir()
    for name in ("logweir", "python"):
        program = tmp_path / "bin" / name
        program.write_text('#!/bin/sh\necho "ran $*"\n')
        program.chmod(0o755)
    ran = subprocess.run(["bash", tools / "run", *words], capture_output=True, text=True)
    first, second = ran.stdout.splitlines()
    assert first == f"set up {extras}"
    assert second == ("ran " + (" ".join(words) or "-P -m logweir.tools.tour"))
