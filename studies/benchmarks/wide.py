"""Time, memory and test loss of the classifier on wide sparse matrices, each fitted in a separate process.

``python -m studies.benchmarks.wide CASE`` fits one case, prints its records as JSON, and adds them to
``results/bench.json``. The case ``newsgroups`` needs ``--folder``: the by-date split of 20 newsgroups with the folders
``20news-bydate-train`` and ``20news-bydate-test``. Its rivals are fitted after the classifier, so they do not change
its peak memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.svm import LinearSVC

from calibrant import CrossCalibrated, SelfCalibratedClassifier
from studies.benchmarks.harness import RESULTS, Record, record, write
from studies.benchmarks.peak_memory import peak, resident

NEW = 2000
CASES = {
    "below": (2040, 6000, 2),
    "above": (2060, 6000, 2),
    "classes": (2100, 10_000, 4),
    "wide": (3000, 20_000, 4),
}
"""The numbers of training rows, of random columns and of classes."""
SECONDS, GIGABYTES = 30.0, 2.0
NEWSGROUPS = "newsgroups"
VECTORIZER = {"min_df": 3, "stop_words": "english", "sublinear_tf": True}
NEWS_SECONDS, NEWS_GIGABYTES = 300.0, 3.0


def noise(rows: int, columns: int, classes: int) -> tuple[Any, ...]:
    """Random columns and one per class, which is 1 in 60 % of its rows; training rows, then ``NEW`` new ones."""
    random = np.random.default_rng(0)
    y = random.integers(0, classes, rows + NEW)
    places = random.integers(0, len(y), size := round(0.003 * len(y) * columns)), random.integers(0, columns, size)
    X = sparse.csr_matrix((random.random(size), places), shape=(len(y), columns))
    informative = np.eye(classes)[y] * (random.random(len(y)) < 0.6)[:, None]
    X = sparse.csr_matrix(sparse.hstack([X, informative]))
    return X[:rows], y[:rows], X[rows:], y[rows:]


def newsgroups(folder: Path) -> tuple[Any, ...]:
    """TF-IDF of whole messages, with headers; training rows, then test rows."""
    vectorizer, parts = TfidfVectorizer(**VECTORIZER), []
    for part in ("train", "test"):
        files = sorted((folder / f"20news-bydate-{part}").glob("*/*"))
        texts = [file.read_text(encoding="latin-1") for file in files]
        X = vectorizer.fit_transform(texts) if part == "train" else vectorizer.transform(texts)
        parts += [X, np.array([file.parent.name for file in files])]
    return tuple(parts)


def run() -> list[Record]:
    """One fit of each random case."""
    found: list[Record] = []
    for case in CASES:
        call = [sys.executable, "-m", "studies.benchmarks.wide", case, "--print-only"]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        found += json.loads(done.stdout.splitlines()[-1])
    return found


def measure(case: str, folder: Path | None = None) -> list[Record]:
    """Fit one case in this process, and return its records."""
    if case == NEWSGROUPS:
        assert folder is not None
        data, name, limits = newsgroups(folder), "20 newsgroups", (NEWS_SECONDS, NEWS_GIGABYTES)
    else:
        data, name, limits = noise(*CASES[case]), "random sparse rows", (SECONDS, GIGABYTES)
    X, y, new, labels = data
    name = f"SelfCalibratedClassifier, {name}, {X.shape[0]:,} × {X.shape[1]:,}, {len(set(y.tolist()))} classes"
    before, begin, worked = resident(), time.perf_counter(), time.process_time()
    classifier = SelfCalibratedClassifier(random_state=0, device="cpu").fit(X, y)
    details: dict[str, Any] = {
        "wall_seconds": time.perf_counter() - begin,
        "before_gigabytes": before / 1024,
        "members": classifier.members_,
    }
    seconds, memory = time.process_time() - worked, peak() / 1024
    loss = log_loss(labels, classifier.predict_proba(new))
    found = [
        record(f"{name}, processor seconds", seconds, limits[0], test_nll=loss, **details),
        record(f"{name}, peak gigabytes", memory, limits[1], **details),
    ]
    if case == NEWSGROUPS:
        rivals = {
            "CrossCalibrated(LinearSVC())": CrossCalibrated(LinearSVC(random_state=0), random_state=0),
            "logistic regression with temperature": CalibratedClassifierCV(
                LogisticRegression(max_iter=1000), method="temperature"
            ),
        }
        losses = {rival: log_loss(labels, model.fit(X, y).predict_proba(new)) for rival, model in rivals.items()}
        best = min(losses.values())
        found.append(record(f"{name}, test NLL (target: the better rival's)", loss, best, rivals=losses, **VECTORIZER))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=[*CASES, NEWSGROUPS])
    parser.add_argument("--folder", type=Path, help="the folder of 20 newsgroups")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the result file")
    parser.add_argument("--print-only", action="store_true", help="do not write to the result file")
    arguments = parser.parse_args()
    if arguments.case == NEWSGROUPS and arguments.folder is None:
        parser.error("newsgroups needs --folder")
    found = measure(arguments.case, arguments.folder)
    if not arguments.print_only:
        write(arguments.out, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
