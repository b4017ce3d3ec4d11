#!/bin/sh
# Runs a command, and notes in the file $TOOK, if one is named, for how many seconds: timed.sh NAME COMMAND...
set -eu

name=$1
shift
began=$(date +%s)
status=0
"$@" || status=$?
if [ -n "${TOOK:-}" ]; then
    printf '%s\t%s\n' "$(($(date +%s) - began))" "$name" >>"$TOOK"
fi
exit "$status"
