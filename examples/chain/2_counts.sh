#!/bin/sh
# Counts how often each word follows another in the output of the previous step.
set -eu
awk '{ for (place = 2; place <= NF; place++) count[$(place - 1) " " $place]++ }
     END { for (pair in count) print count[pair], pair }' "$OUTPUTS/1_corpus.txt" | sort -k1,1nr -k2
