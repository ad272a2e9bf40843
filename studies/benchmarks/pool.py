"""Processor time of the pool's boosted trees, compared with scikit-learn's compiled ones."""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from calibrant.methods.blend import KINDS
from studies.benchmarks.harness import Record, record

TREES, LEAVES, EVALUATED, REPEATS = 450, (15, 31), 10_000, 7
FASTER = 3.0
"""How many times faster than scikit-learn's trees the evaluator must be to be worth its code."""


def run() -> list[Record]:
    """Measure small and large trees."""
    return [evaluated(leaves) for leaves in LEAVES]


def evaluated(leaves: int) -> Record:
    """Compare the processor time of stored trees with that of scikit-learn's, on one thread."""
    X, y = make_classification(2 * EVALUATED, 20, n_informative=10, random_state=0)
    model = HistGradientBoostingClassifier(max_iter=TREES, max_leaf_nodes=leaves, early_stopping=False).fit(X, y)
    forest = KINDS["trees"].model.of(model, TREES, np.zeros(2), [1])
    rows = X[:EVALUATED] + 0.01
    seconds = {}
    for name, evaluate in (("own", forest.scores), ("scikit_learn", model.decision_function)):
        times = []
        with threadpool_limits(1, user_api="openmp"):
            for _ in range(REPEATS):
                begin = time.process_time()
                evaluate(rows)
                times.append(time.process_time() - begin)
        seconds[name] = min(times)
    title = f"boosted trees, 10,000 rows, 450 trees of {leaves} leaves, processor time as a share of scikit-learn's"
    return record(title, seconds["own"] / seconds["scikit_learn"], 1 / FASTER, **seconds)
