#!/bin/sh
# Takes Mermaid, which draws the diagrams of the docs site, out of its package on npm's registry: mermaid.sh FILE.
# It is 5.5 MB, MIT, and none of ours: so it is pinned here and not in the repository.
set -eu

version=12.3.0
sha256=336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3

fail() {
    echo "transactional: $*" >&2
    exit 1
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
npm pack --silent --pack-destination "$scratch" "mermaid@$version" >/dev/null
tar -xzf "$scratch/mermaid-$version.tgz" -C "$scratch" package/dist/mermaid.min.js
file=$scratch/package/dist/mermaid.min.js
[ "$(sha256sum "$file" | cut -d' ' -f1)" = "$sha256" ] || fail "mermaid $version is not the one that is pinned."
mkdir -p "$(dirname "$1")"
mv "$file" "$1"
