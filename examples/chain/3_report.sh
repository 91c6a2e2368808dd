#!/bin/sh
# The most frequent pairs, under the title that the environment gives.
set -eu
printf '%s\n\n' "$REPORT_TITLE"
head -n "$REPORT_PAIRS" "$OUTPUTS/2_counts.txt"
