"""The reader in Java, of the files in `jvm`: `spark_jar` says where it is compiled, `build`
compiles it.

It is a jar, made where a Java compiler and PySpark are (`tools/setup.sh`), and contained in the
packages that are built there. In it stands the digest of its sources: one of other sources is as
good as none. Without it Spark reads by the source in Python, which is also what it asks for plans
and for all that is out of order (`Provider.java`, `Reader.java`).

    python -P -m logweir.pipeline.sparkjar
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent / "jvm"
_JAR: Final = _HERE / "logweir-spark.jar"
_DIGEST: Final = "META-INF/logweir-sources"
_SERVICE: Final = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_PROVIDER: Final = "logweir.spark.Provider"
_RELEASE: Final = "17"
_EARLIEST: Final = (1980, 1, 1, 0, 0, 0)


def spark_jar() -> str | None:
    """The jar by which Spark reads logs in Java; None where it was not compiled from the sources
    that are here, of which a wheel has none. For `--conf spark.jars=…`; `session` takes it by
    itself."""
    try:
        with zipfile.ZipFile(_JAR) as jar:
            is_own = not _sources() or jar.read(_DIGEST).decode() == _digest()
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    return str(_JAR) if is_own else None


def _sources() -> list[Path]:
    return sorted(_HERE.glob("*.java"))


def _digest() -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in _sources())).hexdigest()


def find_compiler() -> str | None:
    """A Java compiler: that of `JAVA_HOME`, else the path's."""
    home = os.environ.get("JAVA_HOME")
    own = shutil.which("javac", path=os.path.join(home, "bin")) if home else None
    return own or shutil.which("javac")


def build() -> str:
    """What was done: compiled, or why not. Raises `subprocess.CalledProcessError`."""
    compiler, spark = find_compiler(), find_spec("pyspark")
    if compiler is None or spark is None or spark.origin is None:
        return "needs javac" if compiler is None else "needs PySpark"
    libraries = Path(spark.origin).parent / "jars" / "*"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(  # noqa: S603 - the user's own compiler
            [
                *(compiler, "--release", _RELEASE, "-nowarn", "-proc:none"),
                *("-cp", str(libraries), "-d", folder),
                *map(str, _sources()),
            ],
            check=True,
        )
        found = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(Path(folder).rglob("*.class"))
        }
    found |= {_DIGEST: _digest().encode(), _SERVICE: f"{_PROVIDER}\n".encode()}
    new = _JAR.with_suffix(".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in found.items():
            out.writestr(zipfile.ZipInfo(name, _EARLIEST), data, zipfile.ZIP_DEFLATED)
    new.replace(_JAR)
    return "compiled"


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
