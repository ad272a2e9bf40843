"""Both classifiers with settings that train quickly, and a problem that they can learn."""

import numpy as np

from calibrant import BO4SCClassifier, SelfCalibratedClassifier

QUICK = {
    "bo4sc": BO4SCClassifier((8,), epochs=20, learning_rate=0.05, random_state=0),
    "self-calibrated": SelfCalibratedClassifier((8,), folds=2, epochs=20, steps=5, learning_rate=0.05, random_state=0),
}


def three_classes(n: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three clusters on a circle, far enough apart for a small network."""
    random = np.random.default_rng(seed)
    y = np.arange(n) % 3
    angle = 2 * np.pi * y / 3
    return np.stack([np.cos(angle), np.sin(angle)], 1) * 3 + random.normal(size=(n, 2)), y
