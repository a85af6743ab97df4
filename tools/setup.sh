# Set-up shared by tools/test, tools/run and .ci/run. Sourced, not run; bash 3.2 is enough.
#
# `logweir_setup [extra…]` makes or mends `.venv`, installs the project there with the named extras
# of pyproject.toml and sees that the kernels are compiled. It does nothing, and says nothing, when
# that has been done before for the same sources: `.venv/.logweir-setup` remembers, in one line, a
# checksum of what the installation depends on and the words for what is done.

LOGWEIR_ROOT="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)" || exit 1
LOGWEIR_VENV="$LOGWEIR_ROOT/.venv"
LOGWEIR_STAMP="$LOGWEIR_VENV/.logweir-setup"
LOGWEIR_LOG="$LOGWEIR_VENV/setup.log"
# Kernels are found by their names, which end so, or by their room; rooms that begin with t have none, but tests of them.
LOGWEIR_SOURCES="pyproject.toml setup.py compiled.py wal/kernels.c store/commit/*.py store/state/viewers.py [!t]*/*kernel.py [!t]*/*.px[di] [!t]*/*.pyx [!t]*/*/*kernel.py [!t]*/*/*.px[di] [!t]*/*/*.pyx replication/*/*/*kernel.py replication/*/*/*.px[di] replication/*/*/*.pyx"

say() {
    printf '%s\n' "$*" >&2
}

fail() {
    say "error: $*"
    exit 1
}

# The interpreter to build the environment with: LOGWEIR_PYTHON, or the first 3.11+ that is found.
find_python() {
    local candidate
    for candidate in ${LOGWEIR_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if [ "$("$candidate" -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null)" = True ]; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    if [ -n "${LOGWEIR_PYTHON:-}" ]; then
        fail "LOGWEIR_PYTHON is '$LOGWEIR_PYTHON', which is not a Python 3.11 or newer"
    fi
    fail "no Python 3.11 or newer was found on PATH.
Install one (Debian, Ubuntu: apt install python3 python3-venv; Fedora: dnf install python3;
macOS: brew install python) or name it: LOGWEIR_PYTHON=/path/to/python $0"
}

# What the installation depends on, as one word.
fingerprint() {
    (
        cd -- "$LOGWEIR_ROOT" || exit 1
        # shellcheck disable=SC2086
        { cat $LOGWEIR_SOURCES 2>/dev/null || true; printf '%s %s' "$LOGWEIR_ROOT" "${LOGWEIR_PURE:-}"; } |
            cksum | tr ' ' -
    )
}

stamp_has() {
    case " $(cat "$LOGWEIR_STAMP" 2>/dev/null) " in *" $1 "*) return 0 ;; esac
    return 1
}

stamp_add() {
    local word
    for word in "$@"; do
        stamp_has "$word" || printf '%s %s\n' "$(cat "$LOGWEIR_STAMP")" "$word" >"$LOGWEIR_STAMP.new"
        if [ -f "$LOGWEIR_STAMP.new" ]; then mv -f "$LOGWEIR_STAMP.new" "$LOGWEIR_STAMP"; fi
    done
}

make_venv() {
    if "$LOGWEIR_VENV/bin/python" -m pip --version >/dev/null 2>&1 &&
        "$LOGWEIR_VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        return 0
    fi
    local python
    python="$(find_python)" || exit 1
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        fail "$python cannot make virtual environments: its venv module is missing.
Install it (Debian, Ubuntu: apt install python3-venv) and run this again."
    fi
    if [ -e "$LOGWEIR_VENV" ]; then
        [ -f "$LOGWEIR_VENV/pyvenv.cfg" ] || fail "$LOGWEIR_VENV is in the way and no virtual environment"
        rm -rf -- "$LOGWEIR_VENV"
    fi
    say "Making $LOGWEIR_VENV with $("$python" --version 2>&1)"
    "$python" -m venv "$LOGWEIR_VENV" || fail "$python -m venv failed"
}

# Python compiles a module when it is first imported: pip would compile all of Spark and its like, for
# 45 seconds of processor time. By a variable, which the pip that it starts to build is given, too.
pip_install() {
    (cd -- "$LOGWEIR_ROOT" && export PIP_COMPILE=0 &&
        "$LOGWEIR_VENV/bin/python" -m pip install -q --disable-pip-version-check "$@") \
        >"$LOGWEIR_LOG" 2>&1
}

compiled_kernels() {
    local so
    for so in "$LOGWEIR_ROOT"/kernels.*.so; do
        if [ -f "$so" ]; then printf '%s\n' "$so"; fi
    done
}

# What compiles the kernels, where it is missing and Debian packages can be installed.
setup_compiler() {
    local packages=""
    if [ "${LOGWEIR_PURE:-}" = 1 ] || ! can_apt; then return 0; fi
    command -v cc >/dev/null 2>&1 || packages="gcc libc6-dev"
    "$LOGWEIR_VENV/bin/python" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' \
        || packages="$packages python3-dev"
    printf '#include <lmdb.h>\n' | cc -E - >/dev/null 2>&1 || packages="$packages liblmdb-dev"
    printf '#include <zstd.h>\n' | cc -E - >/dev/null 2>&1 || packages="$packages libzstd-dev"
    # shellcheck disable=SC2086
    if [ -n "$packages" ]; then apt_install $packages || true; fi
}

# What extras need beside what is there, for sources that are installed as they are: the package itself
# is not built again. Fails where that cannot be told or installed.
add_extras() {
    local list="$LOGWEIR_VENV/.logweir-extras"
    "$LOGWEIR_VENV/bin/python" -P - "$@" >"$list" <<'END' || return 1
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement

def of(extra):
    for one in map(Requirement, requires("logweir") or ()):
        marker = one.marker
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            if one.name == "logweir":
                for other in one.extras:
                    yield from of(other)
            else:
                one.marker = None
                yield str(one)

for extra in sys.argv[1:]:
    print(*(of(extra)), sep="\n")
END
    say "Installing what is missing of: $*"
    pip_install -r "$list"
}

logweir_setup() {
    local want now extra extras target missing=""
    now="$(fingerprint)"
    if stamp_has "$now" && [ -x "$LOGWEIR_VENV/bin/logweir" ]; then
        if stamp_has compiled && [ -z "$(compiled_kernels)" ]; then missing=kernels; fi
        for extra in "$@"; do stamp_has "extra:$extra" || missing="$extra"; done
        if [ -z "$missing" ]; then
            stamp_has types || link_types
            setup_reader
            return 0
        fi
        if [ "$missing" != kernels ] && add_extras "$@"; then
            for extra in "$@"; do stamp_add "extra:$extra"; done
            setup_reader
            return 0
        fi
    fi
    make_venv
    extras="$*"
    for want in test check spark; do
        if stamp_has "extra:$want"; then
            case " $extras " in *" $want "*) ;; *) extras="${extras:+$extras }$want" ;; esac
        fi
    done
    # A kernel that fails to compile is left out without a word: never let an old one stay.
    compiled_kernels | while IFS= read -r so; do rm -f -- "$so"; done
    setup_compiler
    target=".[$(printf '%s' "all${extras:+ $extras}" | tr ' ' ,)]"
    say "Installing logweir and what it needs${extras:+ (with: $extras)} …"
    case " $extras " in
        *" spark "* | *" test "*) say "(Spark is among it: some 500 MB, which takes minutes, once.)" ;;
    esac
    if ! pip_install -e "$target"; then
        tail -n 20 "$LOGWEIR_LOG" >&2
        fail "pip could not install logweir (all of its output: $LOGWEIR_LOG).
Is the package index reachable?"
    fi
    printf '%s\n' "$now" >"$LOGWEIR_STAMP"
    link_types
    for extra in $extras; do stamp_add "extra:$extra"; done
    if [ -n "$(compiled_kernels)" ]; then
        stamp_add compiled
    elif [ "${LOGWEIR_PURE:-}" != 1 ]; then
        say "note: the kernels could not be compiled and run interpreted, which is slower.
To compile them install a C compiler and Python's headers (Debian: apt install gcc python3-dev),
remove .venv and run this again."
    fi
    if stamp_has compiled && ! "$LOGWEIR_VENV/bin/python" -P -c 'import logweir.store.state.lmdbkernel' 2>/dev/null; then
        say "note: LMDB's headers are missing, so that the store calls it by py-lmdb, which is slower.
Install them (Debian: apt install liblmdb-dev), remove .venv and run this again."
    fi
    setup_reader
}

# The reader of logs in Java for Spark, where Spark and a Java compiler are.
setup_reader() {
    local folder="$LOGWEIR_ROOT/pipeline/jvm"
    local jar="$folder/logweir-spark.jar"
    if ! stamp_has extra:spark && ! stamp_has extra:test; then return 0; fi
    if [ -f "$jar" ] && [ -z "$(find "$folder" -name '*.java' -newer "$jar")" ]; then return 0; fi
    if ! command -v javac >/dev/null 2>&1; then return 0; fi
    "$LOGWEIR_VENV/bin/python" -P -m logweir.pipeline.sparkjar >"$LOGWEIR_LOG" 2>&1 ||
        say "note: the reader in Java could not be compiled (javac 17 or newer; all of its output:
$LOGWEIR_LOG); Spark reads logs in Python, which is slower."
}

# Type checkers do not follow setuptools' import hook: for them links stand where stubs would, which
# nothing else looks at.
link_types() {
    local stubs name
    stubs="$("$LOGWEIR_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/logweir-stubs"
    rm -rf -- "$stubs"
    mkdir -p -- "$stubs"
    ln -s "$LOGWEIR_ROOT/__init__.py" "$stubs/__init__.pyi"
    for name in "$LOGWEIR_ROOT"/*.py "$LOGWEIR_ROOT"/*/__init__.py; do
        name="${name%/__init__.py}"
        case "$name" in
            "$LOGWEIR_ROOT" | */setup.py) ;;
            *) ln -s "$name" "$stubs/" ;;
        esac
    done
    stamp_add types
}

# Whether Debian packages can be installed here.
can_apt() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1
}

apt_install() {
    say "Installing Debian package(s): $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" \
        >"$LOGWEIR_LOG" 2>&1 && return 0
    apt-get update -qq >>"$LOGWEIR_LOG" 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" \
            >>"$LOGWEIR_LOG" 2>&1
}
