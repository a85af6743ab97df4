"""What the Java of a local session starts with: a home of Spark, and an archive of its classes.

Half of what a Java does until Spark has its first rows is to find classes in 280 jars, to check
them and to put them in order. A Java can keep them as they are then, in a file that the next one
maps into its memory. It is the same code, and Java itself looks that it is of this Java and of jars
that are as they were; if not it goes on without. But it trusts that the file is whole, so the file
has its name when it is on disk. It is good only where all jars have the same names again, so the
home of Spark is kept with it, in the user's cache. Source: OpenJDK 17, observed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

ARCHIVE: Final = "classes.jsa"
_WANTED: Final = "logweir.classes"
"""The property of a Java that says where its archive is to be."""
FREE_BYTES: Final = 1 << 30
"""So much has to be free where an archive, which is a sixth of that, is made."""


def without_zip(folder: Path) -> Path:
    """A home of Spark in `folder`, links to the one that is installed without its copy of PySpark:
    Python processes import what is installed for their interpreter, which is compiled."""
    home = folder / "spark"
    home.mkdir()
    for entry in _installed().iterdir():
        if entry.name not in ("python", "work"):
            (home / entry.name).symlink_to(entry)
    return home


def _installed() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def kept_home(java: Path) -> Path | None:
    """Such a home in the user's cache, of this Java and this Spark. None if none can be there."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "logweir")
        spark = _installed()
        told = [
            java.resolve(),
            (java / "release").read_bytes(),
            spark,
            (spark / "jars").stat().st_mtime_ns,
            os.environ.get("SPARK_SUBMIT_OPTS"),
        ]
        folder = base / f"spark-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}"
        if not folder.is_dir():
            base.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(dir=base))
            without_zip(made)
            with contextlib.suppress(OSError):  # another one was quicker
                made.rename(folder)
            shutil.rmtree(made, ignore_errors=True)
        status = folder.stat()
    except (OSError, RuntimeError):
        return None
    owned = status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return folder / "spark" if owned else None


def archive_options(java: Path, home: Path) -> list[str]:
    """What tells a Java with that home to use the archive beside it. Where there is none, and
    `LOGWEIR_KEEP_CLASSES` is set, it notes what `keep_classes` needs: only then, for one that is
    told not to use an archive of its own classes does not start so; nor one that has none."""
    archive = home.with_name(ARCHIVE)
    if archive.exists():
        use = [f"-XX:SharedArchiveFile={archive}"]
    elif os.environ.get("LOGWEIR_KEEP_CLASSES") and (java / "lib/server" / ARCHIVE).exists():
        use = ["-XX:+RecordDynamicDumpInfo", f"-D{_WANTED}={archive}"]
    else:
        return []
    return [*map(shlex.quote, use), "-Xshare:auto", "-Xlog:cds*=off"]


def keep_classes(jvm: Any) -> bool:
    """Put the classes that this Java has by now into the archive, if it began without one; whether
    it did. It takes some seconds, in which Java does nothing else. `jvm`: as PySpark has it, None
    of a client of Spark Connect."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        wanted = jvm and jvm.System.getProperty(_WANTED)
        if not wanted or (archive := Path(wanted)).exists():
            return False
        if shutil.disk_usage(archive.parent).free < FREE_BYTES:
            return False
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made = Path(folder, ARCHIVE)
            _tell_java(jvm, "vmCds", "dynamic_dump", str(made))
            with open(made, "rb") as file:
                os.fsync(file.fileno())
            made.rename(archive)
    except (OSError, Py4JError):  # a disk that is full; a Java that cannot, or is gone
        return False
    return True


def _tell_java(jvm: Any, command: str, *words: str) -> None:
    """Give Java one of the commands that `jcmd` has, which only a Java for developers brings, and
    hide what it prints. The class of the server is hidden: its method is that of the interface."""
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    interface = jvm.Class.forName("javax.management.MBeanServer")
    (method,) = (one for one in interface.getMethods() if one.getName() == "invoke")
    name = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    given = _array(jvm, "Object", _array(jvm, "String", *words))
    types = _array(jvm, "String", "[Ljava.lang.String;")
    out = jvm.System.out
    jvm.System.setOut(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    try:
        method.invoke(server, _array(jvm, "Object", name, command, given, types))
    finally:
        jvm.System.setOut(out)


def _array(jvm: Any, kind: str, *values: Any) -> Any:
    made = jvm.java.lang.reflect.Array.newInstance(
        jvm.Class.forName(f"java.lang.{kind}"), len(values)
    )
    for number, value in enumerate(values):
        made[number] = value
    return made
