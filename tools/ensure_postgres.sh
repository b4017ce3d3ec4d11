#!/bin/sh
# Makes sure that PostgreSQL's server programs are on this machine: the tests start a server of their own with them.
# As root on Debian or Ubuntu the package is installed; elsewhere one sentence says what to do.
set -eu

found() {
    for folder in $(printf '%s' "$PATH" | tr ':' ' ') /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
        /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin; do
        if [ -x "$folder/postgres" ] && [ -x "$folder/initdb" ]; then
            return 0
        fi
    done
    return 1
}

fail() {
    echo "transactional: the tests need PostgreSQL's server programs (postgres, initdb), which are not on PATH or in" \
        "their usual folders: install PostgreSQL 13 or newer (Debian, Ubuntu: apt-get install postgresql; macOS: brew" \
        "install postgresql)." >&2
    exit 1
}

install_on_debian() {
    echo "Installing PostgreSQL for the tests ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update && apt-get install --yes --no-install-recommends postgresql; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
    fi
    rm -f "$log"
}

if ! found; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        install_on_debian
    fi
    found || fail
fi
