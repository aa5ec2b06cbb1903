#!/bin/sh
# Everything that `make setup` does: a virtual environment with the locked dependencies, and a Java runtime for Spark.
# Idempotent: what is there already is not touched, and the second run takes no time worth mentioning.
#
#   PYTHON=/path/to/python3.12 tools/bootstrap.sh    # otherwise python3, or the system's of the same version where that is faster
#   tools/bootstrap.sh --python                      # only tell which one
#   tools/bootstrap.sh --pure                        # all but compiling modules, for commands that run pure Python
#   MAGNETAR_COMPILE=no tools/bootstrap.sh           # the same, and says so
set -eu

cd "$(dirname "$0")/.."
venv=.venv
java_needed=17
python_needed=3.11

say() { printf '%s\n' "setup: $*"; }
fail() { printf '%s\n' "setup: $*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# How to run the package manager, or nothing when we may not: root, or sudo that asks no questions.
as_root() {
    if [ "$(id -u)" = 0 ]; then echo env; elif has sudo && sudo -n true 2>/dev/null; then echo "sudo -n"; fi
}

# install_one PACKAGE...: the first of these packages that apt knows; fails when none can be installed.
install_one() {
    has apt-get || return 1
    root=$(as_root)
    [ -n "$root" ] || return 1
    $root apt-get update -qq >/dev/null 2>&1 || say "apt-get update failed; trying with the lists that are there"
    for package in "$@"; do
        if apt-cache show "$package" >/dev/null 2>&1; then
            say "installing $package"
            $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null && return 0
        fi
    done
    return 1
}

good_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# A Python that was compiled at home without its own profile, as pyenv does unless told otherwise, takes a fifth longer for everything,
# a broker's work too. Where the system has one of the same version (distributions compile with it), that one is taken.
faster_python() {
    found=$("$1" -c '
import sys, sysconfig
at_home = sys.base_prefix != "/usr" and "--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or "--enable-optimizations")
print("/usr/bin/python%d.%d" % sys.version_info[:2] if at_home else "")')
    if [ -n "$found" ] && good_python "$found" && "$found" -c 'import ensurepip, venv' >/dev/null 2>&1; then echo "$found"; else echo "$1"; fi
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then command -v "$PYTHON"; return 0; fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if has "$candidate" && good_python "$candidate"; then faster_python "$(command -v "$candidate")"; return 0; fi
    done
    return 1
}

check_named_python() {
    if [ -n "${PYTHON:-}" ] && ! { has "$PYTHON" && good_python "$PYTHON"; }; then
        fail "PYTHON=$PYTHON is no Python $python_needed or newer: give the path of one, or leave it unset"
    fi
}

make_venv() {
    check_named_python
    python=$(find_python) || {
        install_one python3 python3.11 python3.12 && python=$(find_python)
    } || fail "Python $python_needed or newer is needed and was not found: install it (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python), or set PYTHON to its path"
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        install_one "python$version-venv" python3-venv && "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
            fail "$python lacks the module venv: install it (Debian, Ubuntu: apt install python$version-venv)"
    fi
    say "making $venv with Python $version ($python)"
    "$python" -m venv --clear "$venv"
}

# A name that changes with what it stands for, so that a new lock file installs and an old one does not.
# The folder is part of it: a virtual environment that was moved does not work.
stamp_name() {
    { pwd -P; cat requirements.lock pyproject.toml simulator/pyproject.toml; } | cksum | tr ' ' - | cut -d- -f1,2
}

install_packages() {
    stamp="$venv/.setup-$(stamp_name)"
    [ -e "$stamp" ] && "$venv/bin/python" -c 'import magnetar, magnetar_sim' 2>/dev/null && return 0
    if [ ! -x "$venv/bin/python" ] || ! good_python "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        make_venv
    fi
    # Its warnings are about how Spark packs itself; `--quiet` keeps those about the network.
    say "installing the locked dependencies (some 700 MB the first time, most of it Spark)"
    "$venv/bin/python" -W ignore -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock ||
        fail "the locked dependencies could not be installed; the lines above say why"
    "$venv/bin/python" -W ignore -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . -e simulator ||
        fail "the package itself and its simulator could not be installed; the lines above say why"
    rm -f "$venv"/.setup-*
    : >"$stamp"
}

java_version() {
    "$1" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

good_java() {
    [ -x "$1" ] && [ "$(java_version "$1" || true)" -ge $java_needed ] 2>/dev/null
}

# Where a Java may be that the PATH does not show; the project's own commands find it by the same list.
find_java() {
    if [ -n "${JAVA_HOME:-}" ] && good_java "$JAVA_HOME/bin/java"; then echo "$JAVA_HOME/bin/java"; return 0; fi
    if has java && good_java "$(command -v java)"; then command -v java; return 0; fi
    return 1
}

need_java() {
    find_java >/dev/null && return 0
    if [ "$(uname)" = Darwin ] && has brew; then
        say "installing openjdk@17 with brew"
        brew install --quiet openjdk@17 >/dev/null 2>&1 || true
        home=$(brew --prefix openjdk@17 2>/dev/null || true)
        if [ -n "$home" ] && good_java "$home/bin/java"; then
            fail "Java is installed: run  export JAVA_HOME=$home  and then the same command again"
        fi
    elif has apt-get; then
        # Debian and Ubuntu have different ones; the older is the better tested with Spark.
        install_one openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless default-jre-headless || true
        find_java >/dev/null && return 0
    fi
    wrong=""
    [ -n "${JAVA_HOME:-}" ] && wrong=" (JAVA_HOME=$JAVA_HOME is none)"
    fail "Spark needs a Java runtime $java_needed or newer$wrong: install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME; then run the same command again"
}

# Not needed, but each start of Spark takes half as long with it; made anew where Java or Spark are others than last time.
archive_classes() {
    "$venv/bin/python" -m magnetar.spark_session.classes --missing || say "Spark will start more slowly; the line above says why"
}

# Many containers forbid Python to write down what it compiled (PYTHONDONTWRITEBYTECODE): then each process compiled the package
# anew, half of what a broker takes to start. What has not changed since is left alone.
compile_sources() {
    "$venv/bin/python" -m compileall -q src simulator/src examples tests/support bench || say "processes will start more slowly; the line above says why"
}

# The modules that pyproject.toml lists, as machine code; without a C compiler pure Python runs, and one line says so.
compile_modules() {
    fresh=0
    "$venv/bin/python" tools/compile_modules.py --check >/dev/null || fresh=$?
    [ "$fresh" != 1 ] || say "compiling the modules on the way of a message, about two minutes of one processor"
    form=$("$venv/bin/python" tools/compile_modules.py) || fail "tools/compile_modules.py failed; the lines above say why (MAGNETAR_COMPILE=no goes without it)"
    say "$form"
}

case "${1:-}" in
--python) check_named_python; find_python || fail "there is no Python $python_needed or newer yet"; exit 0 ;;
"") ;;
--pure) ;;
*) fail "$1: what is that? There are --python and --pure" ;;
esac

install_packages
compile_sources
[ "${1:-}" = --pure ] || compile_modules
need_java
archive_classes
