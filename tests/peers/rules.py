"""The compared methods once more, in NumPy and from their formulas.

Each factory gives a function from the parameters and gradients of a step to the gradients; None is a missing one.
"""

import numpy as np


def norm(gradients):
    return np.sqrt(sum((g * g).sum() for g in gradients if g is not None))


def times(gradients, factor):
    return [None if g is None else g * factor for g in gradients]


def clipped(gradients, limit):
    return times(gradients, min(1.0, limit / (norm(gradients) + 1e-6)))


def clip():
    return lambda _, gradients: clipped(gradients, 10)


def nan_to_num_clip():
    return lambda _, gs: clipped([None if g is None else np.where(np.isfinite(g), g, 0) for g in gs], 10)


def autoclip():
    seen = []

    def step(_, gradients):
        seen.append(norm(gradients))
        ranked, place = sorted(seen), 0.1 * (len(seen) - 1)
        below, share = ranked[int(place)], place - int(place)
        above = ranked[min(int(place) + 1, len(seen) - 1)]
        return clipped(gradients, below + share * (above - below))

    return step


def zclip():
    first, moving = [], []

    def step(_, gradients):
        now = norm(gradients)
        if len(first) < 25:
            first.append(now)
            moving[:] = np.mean(first), np.var(first)
            return clipped(gradients, 1)
        mean, variance = moving
        std = np.sqrt(variance)
        z = (now - mean) / (std + 1e-6)
        aim = mean + 2.5**2 * std / z if z > 2.5 else now
        mean = 0.97 * mean + 0.03 * aim
        moving[:] = mean, 0.97 * variance + 0.03 * (aim - mean) ** 2
        limit = min(aim, 1.0)
        return times(gradients, limit / (now + 1e-6)) if now > limit else gradients

    return step


def adagc():
    gamma, time = {}, [0]

    def step(_, gradients):
        time[0] += 1
        if time[0] <= 100:
            out = clipped(gradients, 1)
            for i, g in enumerate(out):
                if g is not None:
                    gamma[i] = min(gamma.get(i, np.inf), norm([g]))
            return out
        out = list(gradients)
        for i, g in enumerate(gradients):
            if g is not None:
                reference = gamma.get(i, norm([g]))
                if norm([g]) > 1.05 * reference:
                    out[i] = g * 1.05 * reference / (norm([g]) + 1e-6)
                gamma[i] = 0.98 * reference + 0.02 * min(norm([g]), 1.05 * reference)
        return out

    return step


def agc():
    def unit(w, g):
        limit = 0.01 * max(np.sqrt((w * w).sum()), 1e-3)
        size = np.sqrt((g * g).sum())
        return g * limit / size if size > limit else g

    def tensor(w, g):
        if g is None:
            return None
        return unit(w, g) if w.ndim == 1 else np.stack([unit(*row) for row in zip(w, g, strict=True)])

    return lambda parameters, gradients: [tensor(w, g) for w, g in zip(parameters, gradients, strict=True)]


class Spam:
    """Adam of its own, with spikes cut, moments reset and a warm-up."""

    def __init__(self, parameters):
        self.parameters = [p.copy() for p in parameters]
        self.m = [np.zeros_like(p) for p in parameters]
        self.v = [np.zeros_like(p) for p in parameters]
        self.age = [0] * len(parameters)
        self.time = 0

    def step(self, gradients, lr):
        self.time += 1
        phase = self.time % 500
        if self.time >= 500 and phase < 150:
            lr = lr * (1 - 0.99 * np.cos(np.pi / 2 * (phase + 1) / 151) ** 2)
        for i, g in enumerate(gradients):
            if g is None:
                continue
            if phase == 0:
                self.m[i], self.v[i] = np.zeros_like(g), np.zeros_like(g)
            if phase >= 20:
                g = np.clip(g, -np.sqrt(5000 * self.v[i]), np.sqrt(5000 * self.v[i]))  # noqa: PLW2901
            self.age[i] += 1
            self.m[i] = 0.9 * self.m[i] + 0.1 * g
            self.v[i] = 0.999 * self.v[i] + 0.001 * g * g
            m, v = self.m[i] / (1 - 0.9 ** self.age[i]), self.v[i] / (1 - 0.999 ** self.age[i])
            self.parameters[i] -= lr * m / (np.sqrt(v) + 1e-8)
