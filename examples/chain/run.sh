#!/bin/sh
# Runs every numbered step in order. A step that has finished is never run again, and one that was cut short is run from
# its start: its output gets its name only when it is whole. So this script may be started as often as machines come and go.
set -eu
cd "$(dirname "$0")"
mkdir -p "$OUTPUTS"
for step in [0-9]*.sh; do
    output="$OUTPUTS/${step%.sh}.txt"
    if [ -e "$output" ]; then
        echo "$step: done before"
        continue
    fi
    echo "$step: task $SKYPILOT_TASK_ID"
    sleep "${STEP_SECONDS:-0}"
    sh "./$step" >"$output.part"
    mv "$output.part" "$output"
done
cat "$OUTPUTS/3_report.txt"
