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
LOGWEIR_WHEELS="$LOGWEIR_VENV/wheels"
# Kernels are found by their names, which end so, or by their room; rooms that begin with t have none, but tests of them.
LOGWEIR_SOURCES="pyproject.toml setup.py compiled.py wal/kernels.c store/commit/*.py store/engine/asking.py store/state/stacked.py store/state/viewers.py replication/bucket/*.py replication/service/line.py replication/*/serve/runs.py replication/iproto/wire/runs.py replication/iproto/serve/statements.py replication/iproto/serve/selects.py replication/memcached/serve/reads.py wal/tail.py [!t]*/*kernel.py [!t]*/*.px[di] [!t]*/*.pyx [!t]*/*/*kernel.py [!t]*/*/*.px[di] [!t]*/*/*.pyx replication/*/*/*kernel.py replication/*/*/*.px[di] replication/*/*/*.pyx"

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

# Of two that add a word at once one may be lost: then the next set-up looks again.
stamp_add() {
    local word new
    for word in "$@"; do
        if stamp_has "$word"; then continue; fi
        new="$(mktemp "$LOGWEIR_STAMP.XXXXXX")"
        printf '%s %s\n' "$(cat "$LOGWEIR_STAMP")" "$word" >"$new"
        mv -f "$new" "$LOGWEIR_STAMP"
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

# The programs that some tests run: a name, a file that is there with it, Debian packages.
LOGWEIR_PROGRAMS='tarantool|tarantool|tarantool
memcached|memcached|memcached
memccapable|memccapable|libmemcached-tools
spymemcached|/usr/share/java/spymemcached.jar|libspymemcached-java
java|javac|default-jdk-headless
nc|nc|netcat-openbsd
redis|redis-server|redis-server
strace|strace|strace
openssl|openssl|openssl
chromium|chromium|chromium
flatc|flatc|flatbuffers-compiler libflatbuffers-dev g++'

is_there() {
    [ -e "$1" ] || command -v "$1" >/dev/null 2>&1
}

# The server alone: no cluster that is started with the machine. Debian has its programs in a folder.
has_postgresql() {
    command -v initdb >/dev/null 2>&1 || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

prepare_postgresql() {
    local settings=/etc/postgresql-common/createcluster.conf
    if [ -e "$settings" ]; then return 0; fi
    mkdir -p -- "${settings%/*}"
    echo 'create_main_cluster = false' >"$settings"
}

# All that is missing of those, and of what builds the collation library, by one command. `tools/test`
# tries again, one by one, and says what cannot be had.
install_programs() {
    local name file packages wanted=""
    if ! can_apt; then return 0; fi
    while IFS='|' read -r name file packages; do
        is_there "$file" || stamp_has "no-$name" || wanted="$wanted $packages"
    done <<<"$LOGWEIR_PROGRAMS"
    pkg-config --exists icu-i18n >/dev/null 2>&1 || stamp_has no-collation ||
        wanted="$wanted g++ pkg-config libicu-dev"
    if ! has_postgresql && ! stamp_has no-postgresql; then
        prepare_postgresql
        wanted="$wanted postgresql"
    fi
    # shellcheck disable=SC2086
    if [ -n "$wanted" ]; then LOGWEIR_LOG="$LOGWEIR_LOG.programs" apt_install $wanted || true; fi
}

# What the extra `collation` needs.
collation_requirements() {
    "$LOGWEIR_VENV/bin/python" -c 'import sys, tomllib
with open(sys.argv[1], "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["collation"], sep="\n")
' "$LOGWEIR_ROOT/pyproject.toml"
}

# Builds the collation library, which has no ready-made wheel, for `tools/test` to install: one
# compiler that runs while pip fetches and unpacks, and makes it nothing but soon, of which tests see
# nothing. Where it fails `tools/test` tries again, and says so.
build_collation() {
    if stamp_has collation || stamp_has no-collation; then return 0; fi
    if ! pkg-config --exists icu-i18n >/dev/null 2>&1; then return 0; fi
    (cd -- "$LOGWEIR_ROOT" && CFLAGS="${CFLAGS:-} -O0 -g0" "$LOGWEIR_VENV/bin/python" -m pip wheel -q --disable-pip-version-check \
        --no-deps -w "$LOGWEIR_WHEELS" "$(collation_requirements)") >"$LOGWEIR_LOG.collation" 2>&1 || true
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
    local want now extra extras target missing="" beside=""
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
    # Debian's packages come while Python's do, and while the kernels are compiled.
    case " $extras " in *" test "*) { install_programs && build_collation; } & beside=$! ;; esac
    if ! pip_install -e "$target"; then
        tail -n 20 "$LOGWEIR_LOG" >&2
        fail "pip could not install logweir (all of its output: $LOGWEIR_LOG).
Is the package index reachable?"
    fi
    if [ -n "$beside" ]; then wait "$beside" || true; fi
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
