#!/bin/sh
# Generates the corpus: CORPUS_LINES sentences, the same ones for the same CORPUS_SEED.
set -eu
awk -v lines="$CORPUS_LINES" -v seed="$CORPUS_SEED" 'BEGIN {
    srand(seed)
    subjects = split("the kelp|a diver|the tide|some crabs|the storm", subject, "|")
    verbs = split("holds|lifts|turns|leaves|covers", verb, "|")
    objects = split("the rock|the sand|a shell|the reef|the light", object, "|")
    for (line = 0; line < lines; line++)
        print subject[1 + int(rand() * subjects)], verb[1 + int(rand() * verbs)], object[1 + int(rand() * objects)]
}'
