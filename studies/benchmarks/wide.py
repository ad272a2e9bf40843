"""Time, memory, file size and test loss of the classifier on wide sparse matrices and free text, beside linear rivals.

``python -m studies.benchmarks.wide CASE`` fits one case in this process, prints its records as JSON, and adds them to
``results/bench.json``. Two cases need ``--folder``, with data in their usual form:

- ``newsgroups``: 20 newsgroups, split by date, with the folders ``20news-bydate-train`` and ``20news-bydate-test``;
- ``sst2``: the sentences of SST-2, with ``train.tsv`` and ``test.tsv`` (columns ``sentence`` and ``label``).

Rivals are fitted after the classifier, so they do not change its peak memory. For texts, they see their TF-IDF.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from calibrant import CrossCalibrated, SelfCalibratedClassifier
from calibrant.metrics import paired_difference
from studies.benchmarks.harness import Record, in_process, megabytes, print_records, record
from studies.report import Column, to_markdown

NEW = 2000
CASES = {
    "below": (2040, 6000, 2),
    "above": (2060, 6000, 2),
    "classes": (2100, 10_000, 4),
    "wide": (3000, 20_000, 4),
}
"""The numbers of training rows, of random columns and of classes."""
VECTORIZER = {"min_df": 3, "stop_words": "english"}
SOURCES = ("newsgroups", "sst2")
"""The cases that need a folder."""


class Data(NamedTuple):
    """Training and test rows, those of the rivals, and the limits of processor seconds and gigabytes."""

    name: str
    X: Any
    y: np.ndarray
    test: Any
    y_test: np.ndarray
    sparse: Any
    sparse_test: Any
    seconds: float
    gigabytes: float


def noise(rows: int, columns: int, classes: int) -> Data:
    """Random columns and one per class, which is 1 in 60 % of its rows; training rows, then ``NEW`` new ones."""
    random = np.random.default_rng(0)
    y = random.integers(0, classes, rows + NEW)
    places = random.integers(0, len(y), size := round(0.003 * len(y) * columns)), random.integers(0, columns, size)
    X = sparse.csr_matrix((random.random(size), places), shape=(len(y), columns))
    informative = np.eye(classes)[y] * (random.random(len(y)) < 0.6)[:, None]
    X = sparse.csr_matrix(sparse.hstack([X, informative]))
    train, test = X[:rows], X[rows:]
    return Data("random sparse rows", train, y[:rows], test, y[rows:], train, test, 30.0, 2.0)


def newsgroups(folder: Path) -> Data:
    """TF-IDF of whole messages, with headers."""
    texts, labels = [], []
    for part in ("train", "test"):
        files = sorted((folder / f"20news-bydate-{part}").glob("*/*"))
        texts.append([file.read_text(encoding="latin-1") for file in files])
        labels.append(np.array([file.parent.name for file in files]))
    vectorizer = TfidfVectorizer(**VECTORIZER)
    train, test = vectorizer.fit_transform(texts[0]), vectorizer.transform(texts[1])
    return Data("20 newsgroups", train, labels[0], test, labels[1], train, test, 300.0, 3.0)


def sst2(folder: Path, rows: int | None = None) -> Data:
    """Sentences as a text column of a data frame; with ``rows``, the first ones only."""
    import pandas as pd

    train, test = (pd.read_csv(folder / f"{part}.tsv", sep="\t", quoting=3) for part in ("train", "test"))
    train = train[:rows]
    vectorizer = TfidfVectorizer()
    X, X_test = vectorizer.fit_transform(train["sentence"]), vectorizer.transform(test["sentence"])
    frames = [table[["sentence"]] for table in (train, test)]
    labels = [table["label"].to_numpy() for table in (train, test)]
    return Data("SST-2 sentences", frames[0], labels[0], frames[1], labels[1], X, X_test, 600.0, 4.0)


def rivals() -> dict[str, Any]:
    """The linear models that the classifier is compared with."""
    return {
        "CrossCalibrated(LinearSVC())": CrossCalibrated(LinearSVC(random_state=0), random_state=0),
        "logistic regression": LogisticRegression(max_iter=1000),
        "logistic regression with temperature": CalibratedClassifierCV(
            LogisticRegression(max_iter=1000), method="temperature"
        ),
    }


def run() -> list[Record]:
    """One fit of each random case."""
    return [record_of_case for case in CASES for record_of_case in in_process("wide", case, "--print-only")]


def measure(data: Data) -> list[Record]:
    """Fit the classifier and then its rivals, and return the records."""
    before, begin, worked = megabytes("VmRSS"), time.perf_counter(), time.process_time()
    classifier = SelfCalibratedClassifier(random_state=0, device="cpu").fit(data.X, data.y)
    seconds, wall, memory = time.process_time() - worked, time.perf_counter() - begin, megabytes("VmHWM") / 1024
    codes = np.searchsorted(classifier.classes_, data.y_test)
    losses = {"classifier": _losses(classifier.predict_proba(data.test), codes)}
    for name, rival in rivals().items():
        losses[name] = _losses(rival.fit(data.sparse, data.y).predict_proba(data.sparse_test), codes)
    means = {name: float(values.mean()) for name, values in losses.items()}
    loss = means.pop("classifier")
    best = min(means, key=means.__getitem__)
    gap = paired_difference(losses["classifier"].tolist(), losses[best].tolist())
    columns = classifier.projection_.columns
    shape = f"{len(data.y):,} × {columns:,}, {len(classifier.classes_)} classes"
    details: dict[str, Any] = {
        "data": data.name,
        "shape": [len(data.y), columns, len(classifier.classes_)],
        "processor_seconds": seconds,
        "wall_seconds": wall,
        "threads": torch.get_num_threads(),
        "peak_gigabytes": memory,
        "before_gigabytes": before / 1024,
        "file_megabytes": _file_size(classifier) / 1e6,
        "members": classifier.members_,
        "test_nll": loss,
        "rivals": means,
        "difference": [gap.value, gap.low, gap.high],
    }
    name = f"SelfCalibratedClassifier, {data.name}, {shape}"
    return [
        record(f"{name}, processor seconds", seconds, data.seconds, wide=details),
        record(f"{name}, peak gigabytes", memory, data.gigabytes),
        record(f"{name}, test NLL (target: the best linear rival's)", loss, means[best]),
    ]


def _losses(probs: np.ndarray, codes: np.ndarray) -> np.ndarray:
    values: np.ndarray = -np.log(probs[np.arange(len(codes)), codes].astype(float))
    return values


def _file_size(classifier: SelfCalibratedClassifier) -> int:
    with TemporaryDirectory() as folder:
        classifier.save(Path(folder) / "model")
        return (Path(folder) / "model").stat().st_size


def table(records: list[Record]) -> str:
    """The stored cases as a Markdown table, for the documentation."""
    names = list(rivals())
    columns: list[Any] = ["data", Column("rows", digits=0), Column("columns", digits=0), "classes"]
    columns += [Column("processor, s", digits=0), Column("peak, GB", digits=2), Column("file, MB", digits=1)]
    columns += [Column(name, digits=3) for name in ("NLL", *names)] + ["NLL − best rival's"]
    rows = []
    for details in (r["wide"] for r in records if "wide" in r):
        numbers = [details[name] for name in ("processor_seconds", "peak_gigabytes", "file_megabytes", "test_nll")]
        value, low, high = details["difference"]
        difference = f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
        rivals_losses = [details["rivals"][name] for name in names]
        rows.append([details["data"], *details["shape"], *numbers, *rivals_losses, difference])
    return to_markdown(columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=[*CASES, *SOURCES])
    parser.add_argument("--folder", type=Path, help="the folder of 20 newsgroups or SST-2")
    parser.add_argument("--rows", type=int, help="train on the first rows only (sst2)")

    def chosen(arguments: argparse.Namespace) -> list[Record]:
        if arguments.case in CASES:
            return measure(noise(*CASES[arguments.case]))
        if arguments.folder is None:
            parser.error(f"{arguments.case} needs --folder")
        if arguments.case == "newsgroups":
            return measure(newsgroups(arguments.folder))
        return measure(sst2(arguments.folder, arguments.rows))

    print_records(parser, chosen)


if __name__ == "__main__":
    main()
