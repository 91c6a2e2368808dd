"""A small perceptron, its data, and momentum SGD, in NumPy. Nothing here deals with preemption."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

import numpy as np

ARMS = 3
POINTS_PER_ARM = 400
HIDDEN = 48
LEARNING_RATE = 0.04
MOMENTUM = 0.9


def spirals(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of three noisy interleaved spirals, and the arm that each belongs to."""
    rng = np.random.default_rng(seed)
    radius = np.linspace(0.05, 1.0, POINTS_PER_ARM)
    points, labels = [], []
    for arm in range(ARMS):
        angle = arm * 2 * np.pi / ARMS + 7.0 * radius + rng.normal(0.0, 0.22, POINTS_PER_ARM)
        points.append(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1))
        labels.append(np.full(POINTS_PER_ARM, arm))
    return np.concatenate(points), np.concatenate(labels)


class Trainer:
    """Everything that training changes. `state` and `load_state` carry all of it, so that a resumed run takes exactly
    the steps that an uninterrupted one would have taken: the weights, their momentum, the random generator, and which
    samples of this epoch were already used.
    """

    def __init__(self, *, seed: int, batch_size: int = 64) -> None:
        self.points, self.labels = spirals(seed)
        self.batch_size = batch_size
        self.rng = np.random.default_rng(seed)
        sizes = [2, HIDDEN, HIDDEN, ARMS]
        self.weights = [
            self.rng.normal(0.0, np.sqrt(1.0 / fan_in), (fan_in, fan_out))
            for fan_in, fan_out in itertools.pairwise(sizes)
        ]
        self.biases = [np.zeros(fan_out) for fan_out in sizes[1:]]
        self.velocity = [np.zeros_like(parameter) for parameter in self.parameters]
        self.step = 0
        self.order = self.rng.permutation(len(self.points))
        self.position = 0

    @property
    def parameters(self) -> list[np.ndarray]:
        return [*self.weights, *self.biases]

    def train_step(self) -> float:
        """One step of momentum SGD; returns the batch's loss."""
        batch = self._next_batch()
        loss, gradients = self._loss_and_gradients(self.points[batch], self.labels[batch])
        for parameter, velocity, gradient in zip(self.parameters, self.velocity, gradients, strict=True):
            velocity *= MOMENTUM
            velocity -= LEARNING_RATE * gradient
            parameter += velocity
        self.step += 1
        return loss

    def evaluate(self) -> tuple[float, float]:
        """Loss and accuracy over all points."""
        loss, _ = self._loss_and_gradients(self.points, self.labels)
        guesses = self._forward(self.points)[-1].argmax(axis=1)
        return loss, float((guesses == self.labels).mean())

    def state(self) -> dict[str, np.ndarray]:
        """Named arrays, as `np.savez` takes them."""
        return {
            **{f"parameter_{index}": array for index, array in enumerate(self.parameters)},
            **{f"velocity_{index}": array for index, array in enumerate(self.velocity)},
            "rng": np.array(json.dumps(self.rng.bit_generator.state)),
            "order": self.order,
            "position": np.array(self.position),
            "step": np.array(self.step),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        for index, (parameter, velocity) in enumerate(zip(self.parameters, self.velocity, strict=True)):
            parameter[...] = state[f"parameter_{index}"]
            velocity[...] = state[f"velocity_{index}"]
        self.rng.bit_generator.state = json.loads(str(state["rng"]))
        self.order = state["order"]
        self.position = int(state["position"])
        self.step = int(state["step"])

    def _next_batch(self) -> np.ndarray:
        if self.position + self.batch_size > len(self.order):
            self.order = self.rng.permutation(len(self.points))
            self.position = 0
        batch = self.order[self.position : self.position + self.batch_size]
        self.position += self.batch_size
        return batch

    def _forward(self, x: np.ndarray) -> list[np.ndarray]:
        first = np.tanh(x @ self.weights[0] + self.biases[0])
        second = np.tanh(first @ self.weights[1] + self.biases[1])
        logits = second @ self.weights[2] + self.biases[2]
        exp = np.exp(logits - logits.max(axis=1, keepdims=True))
        return [x, first, second, exp / exp.sum(axis=1, keepdims=True)]

    def _loss_and_gradients(self, x: np.ndarray, labels: np.ndarray) -> tuple[float, list[np.ndarray]]:
        activations = self._forward(x)
        probabilities = activations.pop()
        rows = np.arange(len(x))
        loss = float(-np.log(probabilities[rows, labels]).mean())
        error = probabilities.copy()
        error[rows, labels] -= 1.0
        error /= len(x)
        weight_gradients, bias_gradients = [], []
        for layer in (2, 1, 0):
            weight_gradients.insert(0, activations[layer].T @ error)
            bias_gradients.insert(0, error.sum(axis=0))
            if layer:
                error = (error @ self.weights[layer].T) * (1.0 - activations[layer] ** 2)
        return loss, [*weight_gradients, *bias_gradients]
