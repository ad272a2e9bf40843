"""Processor time of the pool's boosted trees, compared with scikit-learn's compiled ones."""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from calibrant.methods.blend import KINDS
from studies.benchmarks.harness import Record, in_turn, record

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
    jobs = {"own": lambda: forest.scores(rows), "scikit_learn": lambda: model.decision_function(rows)}
    with threadpool_limits(1, user_api="openmp"):
        times = in_turn(jobs, repeats=REPEATS, warmups=0, clock=time.process_time)
    seconds = {name: min(values) for name, values in times.items()}
    title = f"boosted trees, 10,000 rows, 450 trees of {leaves} leaves, processor time as a share of scikit-learn's"
    return record(title, seconds["own"] / seconds["scikit_learn"], 1 / FASTER, **seconds)
