#!/bin/sh
# Makes sure that strace is on this machine: the proof of power cuts records with it what a run does to its files.
# As root on Debian or Ubuntu the package is installed; elsewhere one sentence says what to do.
set -eu

fail() {
    echo "transactional: the tests need strace, which is not on PATH: install it on a Linux machine (Debian, Ubuntu:" \
        "apt-get install strace; Fedora: dnf install strace)." >&2
    exit 1
}

install_on_debian() {
    echo "Installing strace for the tests ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update && apt-get install --yes --no-install-recommends strace; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
    fi
    rm -f "$log"
}

if ! command -v strace >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        install_on_debian
    fi
    command -v strace >/dev/null 2>&1 || fail
fi
