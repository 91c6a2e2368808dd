#!/bin/sh
# Runs every numbered step in order. A finished step is not run again. An interrupted step is run from its start, because its
# output receives its name only when it is complete. So this script may be restarted any number of times.
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
