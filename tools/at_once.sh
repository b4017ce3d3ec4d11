#!/bin/sh
# Runs commands at the same time: at_once.sh "COMMAND" "COMMAND" ... What the first one prints is shown as it comes, what
# the others print one after the other when it has ended.
# Ends with code 1 when one of them has failed, after all have ended. Their temporary files are gone then; they are in
# memory where nobody has said where they belong, there is room and programs may be started there. With
# LIMITS, such as "60 s, the processors 110 s", it says at the end what it took, and of what; it fails for none of it: a
# machine may be busy.
set -u

began=$(date +%s)

memory=/dev/shm
has_room() {
    [ -z "${TMPDIR:-}" ] && [ -w "$memory" ] && [ "$(df -Pk "$memory" | awk 'END { print $4 }')" -ge 2000000 ]
}

starts_programs() {
    printf '#!/bin/sh\n' >"$1/program" && chmod +x "$1/program" && "$1/program" 2>/dev/null
}

folder=
if has_room; then
    folder=$(mktemp -d "$memory/at_once.XXXXXX")
    starts_programs "$folder" || { rm -rf "$folder" && folder=; }
fi
folder=${folder:-$(mktemp -d)}
mkdir "$folder/temporary"
chmod 711 "$folder" # servers that may not run as root have their files there, too
export TMPDIR="$folder/temporary"
trap 'rm -rf "$folder"' EXIT
trap 'wait; exit 130' INT # Ctrl-C reaches the commands by itself
trap 'kill $running 2>/dev/null; exit 130' TERM

number=0
running=
for command in "$@"; do
    number=$((number + 1))
    if [ "$number" -eq 1 ]; then
        sh -c "$command" 2>&1 &
    else
        sh -c "$command" >"$folder/$number" 2>&1 &
    fi
    running="$running $!"
done

number=0
failed=0
for process in $running; do
    number=$((number + 1))
    wait "$process" || failed=1
    [ "$number" -eq 1 ] || cat "$folder/$number"
done
if [ -n "${LIMITS:-}" ]; then
    times >"$folder/times"
    processors=$(awk 'END { gsub(/s/, ""); split($1 "m" $2, t, "m"); printf "%.0f", 60 * (t[1] + t[3]) + t[2] + t[4] }' "$folder/times")
    echo "took $(($(date +%s) - began)) s, the processors $processors s; two quiet ones have $LIMITS"
fi
exit "$failed"
