#!/bin/sh
# Writes requirements.lock anew from pyproject.toml: exact versions, and the hashes of every file of each, for every
# supported Python and system. Versions that still fit are kept; UPGRADE=1 takes the newest.
set -eu
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.8

# A folder of local wheels would hide the hashes of the files it doesn't hold; certificates are configured for pip.
unset PIP_FIND_LINKS UV_FIND_LINKS
SSL_CERT_FILE=${SSL_CERT_FILE:-${PIP_CERT:-}}
if [ -n "$SSL_CERT_FILE" ]; then export SSL_CERT_FILE; else unset SSL_CERT_FILE; fi

# What is in the output file already is preferred.
compile() {
    "$scratch/venv/bin/uv" pip compile pyproject.toml --group build --universal --python-version 3.11 \
        --fork-strategy fewest --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --cache-dir "$scratch/cache" --quiet "$@"
}

if [ -z "${UPGRADE:-}" ] && [ -f requirements.lock ]; then
    cp requirements.lock "$scratch/all"
fi
compile --all-extras --output-file "$scratch/all"
cp "$scratch/all" "$scratch/run"
compile --output-file "$scratch/run"

# The entries of all that running takes (1), or of all the rest (0).
part() {
    awk -v runs="$1" '
        /^[-#]/ { next }
        /^[^ ]/ { name = $0; sub(/==.*/, "", name) }
        NR == FNR { run[name]; next }
        (name in run) == runs
    ' "$scratch/run" "$scratch/all"
}

{
    echo "# Made by \`make lock\` from pyproject.toml; not to be edited. Installed with --require-hashes --no-deps."
    echo "# To set up, build and run:"
    part 1
    echo "# To test, besides, and for the extras:"
    part 0
} >"$scratch/finished.lock"
mv "$scratch/finished.lock" requirements.lock
