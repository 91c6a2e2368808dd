"""Extractive question answering at toy size: find, in a short context, the span that answers a question.

It has the shape of a BERT fine-tuning run (the same flags, and a checkpoint every N steps in the output directory), yet
needs neither a download nor a GPU. Point the task's `run` at your own script to fine-tune the real thing.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import numpy as np

from perdure.checkpoint import Checkpointer

PEOPLE = ["ada", "bela", "chen", "dora", "emil", "fay", "gus", "hana", "ivo", "june"]
PLACES = ["harbour", "mill", "tower", "orchard", "quarry", "chapel", "market", "island", "bakery", "bridge"]
FILLER = ["went", "to", "the", "and", "then"]
VOCABULARY = [*PEOPLE, *PLACES, *FILLER]
WIDTH = 24
WINDOW = 4  # words from the person to the place in a sentence
FACTS = 4


def question(rng: np.random.Generator) -> tuple[np.ndarray, int, int]:
    """(context, the person in question, position of the answer in the context), as word numbers."""
    people = rng.choice(len(PEOPLE), FACTS, replace=False)
    places = rng.choice(len(PLACES), FACTS, replace=False)
    sentences = [f"{PEOPLE[who]} went to the {PLACES[where]}" for who, where in zip(people, places, strict=True)]
    context = np.array([VOCABULARY.index(word) for word in " and then ".join(sentences).split()])
    asked = rng.integers(FACTS)
    answer = int(np.flatnonzero(context == len(PEOPLE) + places[asked])[0])
    return context, int(people[asked]), answer


class Reader:
    """Scores every position: does the word `WINDOW` before it match the question, and is it a place?"""

    def __init__(self, rng: np.random.Generator) -> None:
        self.words = rng.normal(0.0, 0.3, (len(VOCABULARY), WIDTH))
        self.match = rng.normal(0.0, 0.3, (WIDTH, (WINDOW + 1) * WIDTH))

    def features(self, context: np.ndarray) -> np.ndarray:
        """Row i: the embeddings of word i and of the `WINDOW` words before it."""
        padded = np.concatenate([np.full(WINDOW, context[-1]), context])
        return np.concatenate([self.words[padded[back : back + len(context)]] for back in range(WINDOW + 1)], axis=1)

    def train_step(self, context: np.ndarray, who: int, answer: int, *, learning_rate: float) -> tuple[float, bool]:
        """Loss before the step, and whether the guess was right."""
        features = self.features(context)
        asked = self.words[who].copy()
        scores = features @ (asked @ self.match)
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()
        error = probabilities.copy()
        error[answer] -= 1.0
        pull = error @ features
        to_words = np.outer(error, asked @ self.match).reshape(len(context), WINDOW + 1, WIDTH)
        self.words[who] -= learning_rate * (self.match @ pull)
        self.match -= learning_rate * np.outer(asked, pull)
        padded = np.concatenate([np.full(WINDOW, context[-1]), context])
        for back in range(WINDOW + 1):
            np.add.at(self.words, padded[back : back + len(context)], -learning_rate * to_words[:, back])
        return float(-np.log(probabilities[answer])), bool(probabilities.argmax() == answer)


parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--max_steps", type=int, default=4000)
parser.add_argument("--save_steps", type=int, default=500)
parser.add_argument("--save_total_limit", type=int, default=5)
parser.add_argument("--logging_steps", type=int, default=250)
parser.add_argument("--learning_rate", type=float, default=2e-2)
parser.add_argument("--step_s", type=float, default=0.0, help="minimal duration of a step, to imitate a larger model")
options = parser.parse_args()


def main() -> int:
    rng = np.random.default_rng(11)
    reader = Reader(rng)
    checkpointer = Checkpointer(options.output_dir, keep=options.save_total_limit, every=options.save_steps)
    step = 0
    if saved := checkpointer.load():  # the newest whole checkpoint; None at the first start
        step, reader.words, reader.match = saved["step"], saved["words"], saved["match"]
        rng.bit_generator.state = saved["rng"]
    device = os.environ.get("CUDA_VISIBLE_DEVICES") or "the CPU"
    print(f"task {os.environ.get('SKYPILOT_TASK_ID', '-')} trains on {device} from step {step}", flush=True)

    losses, hits = [], []
    while step < options.max_steps:
        began = time.monotonic()
        loss, hit = reader.train_step(*question(rng), learning_rate=options.learning_rate)
        losses.append(loss)
        hits.append(hit)
        step += 1
        if step % options.logging_steps == 0:
            print(f"step {step} loss {np.mean(losses):.9f} exact match {100 * np.mean(hits):.1f}", flush=True)
            losses, hits = [], []
        if checkpointer.should_save(step) or step == options.max_steps:
            state = {"step": step, "words": reader.words, "match": reader.match, "rng": rng.bit_generator.state}
            checkpointer.save(step, state)
        if checkpointer.preempted():
            print(f"stops at step {step}: this machine is being taken away", flush=True)
            break
        time.sleep(max(0.0, began + options.step_s - time.monotonic()))
    checkpointer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
