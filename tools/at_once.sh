#!/bin/sh
# Runs commands at the same time and shows what they print one after the other: at_once.sh "COMMAND" "COMMAND" ...
# Ends with code 1 when one of them has failed, after all have ended.
set -u

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'kill $running 2>/dev/null; exit 130' INT TERM

number=0
running=
for command in "$@"; do
    number=$((number + 1))
    sh -c "$command" >"$folder/$number" 2>&1 &
    running="$running $!"
done

number=0
failed=0
for process in $running; do
    number=$((number + 1))
    wait "$process" || failed=1
    cat "$folder/$number"
done
exit "$failed"
