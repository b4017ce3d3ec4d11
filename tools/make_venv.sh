#!/bin/sh
# Creates .venv with everything in requirements.lock, hashes checked, and this project in editable form.
# Run by make; safe to run again. PYTHON=... names the Python to use, else the first suitable one on PATH is taken.
set -eu
cd "$(dirname "$0")/.."

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
    "$python" -m venv --clear .venv
}

install() {
    .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-input --no-deps "$@"
}

# The source archives in the lock are built by its own setuptools, so that one has to be there before them.
lock_of_setuptools() {
    awk '/^[^ #]/ { wanted = /^setuptools==/ } wanted' requirements.lock
}

if ! suitable .venv/bin/python; then
    create_venv
fi
echo "Setting up .venv (a few minutes the first time) ..."
scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
lock_of_setuptools >"$scratch"
install --require-hashes -r "$scratch"
install --require-hashes --no-build-isolation --use-pep517 -r requirements.lock
# What this project was installed as before: its command and its entry points would stay beside ours.
.venv/bin/python -m pip uninstall --quiet --yes transactional >/dev/null 2>&1
install --no-build-isolation --no-index --editable .
