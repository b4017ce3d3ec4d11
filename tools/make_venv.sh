#!/bin/sh
# Creates a virtual environment from requirements.lock, hashes checked, with this project in editable form:
# `tools/make_venv.sh run` with what running a topology takes, `… test` with all of the lock.
# Run by make; safe to run again. PYTHON=... names the Python to use, else the first suitable one on PATH is taken;
# VENV=... another folder than .venv.
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}

fail() {
    echo "transactional: $*" >&2
    exit 1
}

suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

version_of() {
    "$1" -c 'import platform; print("Python", platform.python_version())' 2>/dev/null || echo "not there"
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if suitable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11, 3.12 or 3.13 is needed, but ${PYTHON:-python3} is $(version_of "${PYTHON:-python3}"):" \
        "install one of them, or name it as in 'make check PYTHON=/usr/bin/python3.12'."
}

create_venv() {
    python=$(find_python)
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "$python can't create virtual environments: install its venv module (Debian, Ubuntu: apt-get install" \
            "python3-venv), or name another Python as in 'make check PYTHON=/usr/bin/python3.12'."
    "$python" -m venv --clear "$venv"
}

# What a group of the lock holds: uv and what builds source archives (pyspark is one), what running takes, all of it.
group() {
    case "$1" in
    build) awk '/^[^ #]/ { wanted = /^(setuptools|uv)==/ } wanted' requirements.lock ;;
    run) sed '/^# To test/,$d' requirements.lock ;;
    test) cat requirements.lock ;;
    *) fail "usage: tools/make_venv.sh run|test" ;;
    esac
}

# uv shows what it downloads, and is several times as fast as pip; but it knows nothing of the mirrors and certificates
# that pip is configured for.
install_locked() {
    "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --no-build-isolation --require-hashes -r "$1" ||
        "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-deps --no-build-isolation \
            --use-pep517 --require-hashes -r "$1"
}

if ! suitable "$venv/bin/python"; then
    create_venv
fi
scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
echo "Setting up $venv, Spark included: 600 MB the first time ..."
group build >"$scratch"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --require-hashes -r "$scratch"
group "$1" >"$scratch"
install_locked "$scratch"
"$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --no-build-isolation --quiet --offline --editable .
