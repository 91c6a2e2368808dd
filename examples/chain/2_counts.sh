#!/bin/sh
# Counts how often each word follows another in what the step before wrote.
set -eu
awk '{ for (place = 2; place <= NF; place++) count[$(place - 1) " " $place]++ }
     END { for (pair in count) print count[pair], pair }' "$OUTPUTS/1_corpus.txt" | sort -k1,1nr -k2
