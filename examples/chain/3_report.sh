#!/bin/sh
# Prints the most frequent pairs, under the title from the environment.
set -eu
printf '%s\n\n' "$REPORT_TITLE"
head -n "$REPORT_PAIRS" "$OUTPUTS/2_counts.txt"
