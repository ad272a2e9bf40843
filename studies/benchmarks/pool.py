"""Time, memory and loss of the pool: wide tables, scikit-learn's small ones, and shapes of the tables of the study.

The trees alone are compared with scikit-learn's compiled ones. Each table is fitted in a separate process:
``python -m studies.benchmarks.pool CASE`` prints its record as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from calibrant import SelfCalibratedClassifier
from calibrant.methods.blend import KINDS
from calibrant.metrics import nll
from studies.benchmarks.harness import Record, record
from studies.benchmarks.peak_memory import peak, resident
from studies.hostile_cases import CASES

SECONDS, TIMES = 10.0, 10.0
"""The largest accepted fit time: in seconds, or as a multiple of that of scikit-learn's network."""
MEGABYTES = 1000.0
PREDICTED, LIMIT = 100_000, 2.0
SINGLE = 0.05
"""The largest accepted time for one row, in seconds."""
WIDE = ("3,200 x 784", "200 x 5,000")
SPLITS, NETWORKS = 3, 10
TREES, LEAVES, EVALUATED = 450, (15, 31), 10_000
FASTER = 3.0
"""How many times faster than scikit-learn's trees the evaluator must be to be worth its code."""
SHAPES = {
    "adult": (48842, 14, 2),
    "banana": (5300, 2, 2),
    "car": (1728, 6, 4),
    "churn": (5000, 20, 2),
    "credit_g": (1000, 20, 2),
    "heart_statlog": (270, 13, 2),
    "letter": (20000, 16, 26),
    "magic": (19020, 10, 2),
    "optdigits": (5620, 64, 10),
    "phoneme": (5404, 5, 2),
    "pima": (768, 8, 2),
    "satimage": (6435, 36, 6),
    "segmentation": (2310, 19, 7),
    "spambase": (4601, 57, 2),
    "splice": (3188, 60, 3),
    "twonorm": (7400, 20, 2),
    "vehicle": (846, 18, 4),
    "waveform_21": (5000, 21, 3),
    "wine_quality_red": (1599, 11, 6),
    "yeast": (1479, 8, 9),
}
"""Rows, columns and classes of the tables of `python -m studies bench tables`."""
TIMED = ("adult", "churn", "letter")
"""Shapes whose prediction is timed: many rows, few rows, and many classes."""


def run() -> list[Record]:
    """Measure fit times of wide tables, losses on small ones, memory and prediction times for twenty table shapes."""
    found = [_wide(case) for case in WIDE]
    found += [_evaluated(leaves) for leaves in LEAVES]
    found += [_served(name, load) for name, load in (("digits", load_digits), ("breast-cancer", load_breast_cancer))]
    shapes = {name: _alone(name) for name in SHAPES}
    largest = max(shapes, key=lambda name: float(shapes[name]["megabytes"]))
    found.append(
        record(
            "SelfCalibratedClassifier, tables of twenty shapes, most megabytes beyond the data",
            shapes[largest]["megabytes"],
            MEGABYTES,
            table=largest,
            each={name: round(own["megabytes"]) for name, own in shapes.items()},
        )
    )
    for name in TIMED:
        title = f"SelfCalibratedClassifier, 100,000 rows of the shape of {name}, predict, seconds"
        details = {key: shapes[name][key] for key in ("processor_seconds", "members")}
        found.append(record(title, shapes[name]["predict_seconds"], LIMIT, **details))
        title = f"SelfCalibratedClassifier, one row of the shape of {name}, predict, seconds"
        found.append(record(title, shapes[name]["row_seconds"], SINGLE))
    return found


def _evaluated(leaves: int) -> Record:
    """Compare the processor time of stored trees with that of scikit-learn's, on one thread."""
    X, y = make_classification(2 * EVALUATED, 20, n_informative=10, random_state=0)
    model = HistGradientBoostingClassifier(max_iter=TREES, max_leaf_nodes=leaves, early_stopping=False).fit(X, y)
    forest = KINDS["trees"].model.of(model, TREES, np.zeros(2), [1])
    rows = X[:EVALUATED] + 0.01
    seconds = {}
    for name, evaluate in (("own", forest.scores), ("scikit_learn", model.decision_function)):
        times = []
        with threadpool_limits(1, user_api="openmp"):
            for _ in range(7):
                begin = time.process_time()
                evaluate(rows)
                times.append(time.process_time() - begin)
        seconds[name] = min(times)
    title = f"boosted trees, 10,000 rows, 450 trees of {leaves} leaves, processor time as a share of scikit-learn's"
    return record(title, seconds["own"] / seconds["scikit_learn"], 1 / FASTER, **seconds)


def _wide(case: str) -> Record:
    found = _alone(case)
    limit = max(SECONDS, TIMES * found["mlp_seconds"])
    return record(f"SelfCalibratedClassifier, {case}, fit, seconds", found.pop("seconds"), limit, **found)


def _served(name: str, load: Any) -> Record:
    """Compare the mean NLL over splits with the better of ten plain networks and logistic regression."""
    X, y = load(return_X_y=True)
    losses: dict[str, list[float]] = {"own": [], "ten networks": [], "logistic regression": []}
    for seed in range(SPLITS):
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, stratify=y, random_state=seed)

        def probs(model: Any, X_train: Any = X_train, y_train: Any = y_train, X_test: Any = X_test) -> np.ndarray:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return np.asarray(make_pipeline(StandardScaler(), model).fit(X_train, y_train).predict_proba(X_test))

        networks = [probs(MLPClassifier(random_state=NETWORKS * seed + k)) for k in range(NETWORKS)]
        losses["own"].append(nll(probs(SelfCalibratedClassifier(random_state=seed)), y_test))
        losses["ten networks"].append(nll(np.mean(networks, axis=0), y_test))
        losses["logistic regression"].append(nll(probs(LogisticRegression(max_iter=1000)), y_test))
    means = {method: float(np.mean(values)) for method, values in losses.items()}
    own = means.pop("own")
    return record(f"SelfCalibratedClassifier, scikit-learn's {name}, NLL", own, min(means.values()), **means)


def _alone(case: str) -> dict[str, Any]:
    call = [sys.executable, "-m", "studies.benchmarks.pool", case]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def fit_wide(case: str) -> dict[str, Any]:
    """Return the seconds of the classifier and of scikit-learn's network."""
    data = CASES[case].make(0)
    network = make_pipeline(StandardScaler(), MLPClassifier(early_stopping=True, random_state=0))
    begin = time.perf_counter()
    network.fit(data.X, data.y)
    other, before = time.perf_counter() - begin, resident()
    begin, worked = time.perf_counter(), time.process_time()
    classifier = SelfCalibratedClassifier(random_state=0, device="cpu").fit(data.X, data.y)
    seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    own, rival = (nll(model.predict_proba(data.X_test), data.y_test) for model in (classifier, network))
    return {
        "seconds": seconds,
        "processor_seconds": worked,
        "mlp_seconds": other,
        "nll": own,
        "mlp_nll": rival,
        "megabytes": peak() - before,
        "members": classifier.members_,
    }


def fit_shape(name: str) -> dict[str, Any]:
    """Return the memory of one fit beyond the data, and the seconds of predictions.

    Networks train for one epoch, because neither depends on the number of epochs. 80 % of the rows are for training, as
    in the study.
    """
    rows, columns, classes = SHAPES[name]
    informative = max(2, columns // 2)
    X, y = make_classification(
        max(rows, 10 * classes),
        columns,
        n_informative=informative,
        n_redundant=0,
        n_classes=classes,
        n_clusters_per_class=1,
        flip_y=0.05,
        random_state=0,
    )
    train = 4 * rows // 5
    X_new = np.resize(X, (PREDICTED, columns))
    before = resident()
    classifier = SelfCalibratedClassifier(epochs=1, random_state=0, device="cpu").fit(X[:train], y[:train])
    megabytes, begin, worked = peak() - before, time.perf_counter(), time.process_time()
    classifier.predict_proba(X_new)
    seconds, worked = time.perf_counter() - begin, time.process_time() - worked
    single = []
    for row in X_new[:20]:
        begin = time.perf_counter()
        classifier.predict_proba(row[None])
        single.append(time.perf_counter() - begin)
    return {
        "megabytes": megabytes,
        "predict_seconds": seconds,
        "processor_seconds": worked,
        "row_seconds": float(np.median(single)),
        "members": classifier.members_,
    }


if __name__ == "__main__":
    asked = sys.argv[1]
    print(json.dumps(fit_wide(asked) if asked in WIDE else fit_shape(asked)))
