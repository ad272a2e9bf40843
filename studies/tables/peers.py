"""Rivals from other libraries: networks and boosted trees, alone and in scikit-learn's CalibratedClassifierCV."""

from __future__ import annotations

import importlib.util
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.neural_network import MLPClassifier

from calibrant.estimators import CrossCalibrated
from calibrant.report import versions
from studies.common.records import output_of
from studies.tables.data import Source, Split, prepare

SETTINGS: dict[str, Any] = {"hidden_layer_sizes": (64, 64), "early_stopping": True, "max_iter": 1000}
"""Settings of MLPClassifier: the same network as ours; everything else is scikit-learn's default."""
BOOSTING: dict[str, Any] = {"learning_rate": 0.03, "max_iter": 1000, "early_stopping": True}
"""Settings of HistGradientBoostingClassifier. LightGBM and CatBoost use the same learning rate, number of iterations
and stopping rule: a tenth of the rows is held out, and training ends after ten iterations without a lower loss."""
STOP = 10
REALMLP: dict[str, Any] = {"val_metric_name": "cross_entropy", "use_ls": False}
"""Settings of RealMLP that its authors recommend for cross-entropy; everything else is pytabkit's default."""


@dataclass(frozen=True)
class Base:
    """A classifier of another library, by the prefix of its ids."""

    what: str
    build: Callable[[int], Any]
    """The unfitted classifier for a seed."""
    package: str = "sklearn"
    """The package to import, whose version is reported."""
    kind: str = "trees"
    alone: str | None = None
    """The id of the classifier without a calibrator; None if it is not measured."""
    calibrators: tuple[str, ...] = ("isotonic", "sigmoid", "temperature")


def stopping_rows(X: Any, y: Any, seed: int | None) -> list[Any]:
    """Return nine tenths for training and a tenth for early stopping, split as in scikit-learn's boosting."""
    return list(train_test_split(X, y, test_size=0.1, random_state=seed, stratify=y))


def threads() -> int:
    """Return how many threads a classifier may use: as many as ours in the same job.

    By default, LightGBM, CatBoost and pytabkit would start one thread per core in every process.
    """
    return torch.get_num_threads()


def _lightgbm(seed: int) -> Any:
    from lightgbm import LGBMClassifier, early_stopping

    class StoppedLightGBM(LGBMClassifier):
        def fit(self, X: Any, y: Any) -> Any:
            rows, held, labels, held_labels = stopping_rows(X, y, self.random_state)
            callbacks = [early_stopping(STOP, verbose=False)]
            return super().fit(rows, labels, eval_set=[(held, held_labels)], callbacks=callbacks)

    rate, iterations = BOOSTING["learning_rate"], BOOSTING["max_iter"]
    return StoppedLightGBM(learning_rate=rate, n_estimators=iterations, random_state=seed, n_jobs=threads(), verbose=-1)


def _catboost(seed: int) -> Any:
    from catboost import CatBoostClassifier

    class StoppedCatBoost(CatBoostClassifier):
        def fit(self, X: Any, y: Any) -> Any:
            rows, held, labels, held_labels = stopping_rows(X, y, self.get_param("random_state"))
            return super().fit(rows, labels, eval_set=(held, held_labels), early_stopping_rounds=STOP)

    return StoppedCatBoost(
        learning_rate=BOOSTING["learning_rate"],
        iterations=BOOSTING["max_iter"],
        random_state=seed,
        thread_count=threads(),
        verbose=False,
        allow_writing_files=False,
    )


def device_of(base: Base) -> str:
    """Return the device that a classifier trains on: RealMLP uses a GPU if torch finds one, the others the CPU."""
    return "cuda" if base.package == "pytabkit" and torch.cuda.is_available() else "cpu"


def _realmlp(seed: int) -> Any:
    from pytabkit import RealMLP_TD_Classifier

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)  # it prints the device before every fit
    return RealMLP_TD_Classifier(random_state=seed, device=device_of(BASES["realmlp"]), n_threads=threads(), **REALMLP)


CROSS = "cross-calibrated"
"""The id suffix of a classifier in :class:`calibrant.CrossCalibrated`, on the folds of CalibratedClassifierCV."""

BASES = {
    "sklearn": Base(
        "MLPClassifier",
        lambda seed: MLPClassifier(**SETTINGS, random_state=seed),
        kind="network, other library",
        alone="sklearn-mlp",
    ),
    "hgb": Base(
        "HistGradientBoostingClassifier",
        lambda seed: HistGradientBoostingClassifier(**BOOSTING, random_state=seed),
        alone="hgb",
        calibrators=("isotonic", "sigmoid", "temperature", CROSS),
    ),
    "lightgbm": Base("LightGBM", _lightgbm, "lightgbm", alone="lightgbm"),
    "catboost": Base("CatBoost", _catboost, "catboost", alone="catboost"),
    "realmlp": Base(
        "RealMLP of pytabkit", _realmlp, "pytabkit", kind="network, other library", calibrators=("temperature",)
    ),
}


def base_of(method: str) -> tuple[Base, str | None]:
    """Return the classifier and the calibrator of an id."""
    for prefix, base in BASES.items():
        if method == base.alone:
            return base, None
        if method.startswith(f"{prefix}-"):
            return base, method.removeprefix(f"{prefix}-")
    raise ValueError(f"The id of a peer must begin with one of {', '.join(BASES)}; got {method!r}.")


def _peers() -> dict[str, str]:
    summaries = {}
    for prefix, base in BASES.items():
        if base.alone:
            summaries[base.alone] = f"{base.what} with early stopping"
        for how in base.calibrators:
            inside = "CrossCalibrated, on the same folds" if how == CROSS else f"CalibratedClassifierCV, {how}"
            summaries[f"{prefix}-{how}"] = f"{base.what} in {inside}"
    return summaries


PEERS = _peers()

FOLDS = 5


def missing_peers() -> dict[str, str]:
    """Return the peers that are not installed here, and why; they are not ranked as failures."""
    packages = {name: base_of(name)[0].package for name in PEERS}
    return {
        name: f"it needs the package {package}, which is not installed"
        for name, package in packages.items()
        if importlib.util.find_spec(package) is None
    }


VERSION = "version 1"
"""Raise it when a change of our code changes these numbers."""


def made_by(methods: Sequence[str]) -> dict[str, str]:
    """Return what made each method's records: the version of our code and, for peers, those of the libraries."""

    def theirs(name: str) -> str:
        base, _ = base_of(name)
        other = "" if base.package == "sklearn" else f"{base.package} {version(base.package)}, "
        return f"scikit-learn {versions()['scikit-learn']}, {other}{VERSION}"

    return {name: theirs(name) if name in PEERS else VERSION for name in methods}


def peer_settings(method: str) -> str:
    """Return a peer's settings as text."""
    package_settings = {"sklearn": SETTINGS, "realmlp": REALMLP}.get(method.partition("-")[0], BOOSTING)
    return f"{method}, {package_settings}, cv={FOLDS}"


def peer(method: str, labels: np.ndarray, seed: int) -> Any:
    """Return the classifier of this id. A class with fewer than five rows reduces the folds; one row is an error."""
    base, how = base_of(method)
    model = base.build(seed)
    if how is None:
        return model
    folds = min(FOLDS, int(np.bincount(labels).min()))
    if folds < 2:
        raise ValueError(
            "Each class must have two rows or more outside the test part, for cross-fitting; got one with a single row."
        )
    if how == CROSS:
        return CrossCalibrated(model, cv=StratifiedKFold(folds))  # the same as cv=5 in CalibratedClassifierCV
    return CalibratedClassifierCV(model, method=how, cv=folds)


def run_peers(name: str, path: Source, seed: int, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Return the records of these peers on one split; they are trained on the training and validation part together."""
    split = prepare(name, path, seed)
    return [_record(split, method) for method in methods]


def _record(split: Split, method: str) -> dict[str, Any]:
    x, y = split.pooled()
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", FutureWarning)  # LightGBM renames an argument that older versions need
            model = peer(method, y, split.seed).fit(x, y)
        probs = model.predict_proba(split.inputs.numpy())
    except ValueError as error:  # a class too small for its folds
        return split.record(method, None, " ".join(str(error).split()), seconds=None)
    seconds = time.perf_counter() - begin
    return split.record(
        method, output_of(probs.astype(np.float64)), seconds=round(seconds, 3), device=device_of(base_of(method)[0])
    )


OWN = "self-calibrated"
NETWORK_ONLY = "self-calibrated-network"
"""The same with only networks as members."""
FORMER = "self-calibrated-former"
"""The same with only perceptrons as members: the version before embeddings and the pool."""
RIVAL = "hgb-temperature"
"""The rival whose fit time, together with that of our former classifier, sets the time target."""
CROSSED = f"hgb-{CROSS}"
"""The trees of RIVAL in our CrossCalibrated, on the same folds."""
OURS = frozenset({OWN, NETWORK_ONLY, FORMER, CROSSED})
"""Classifiers that this library recommends or recommended; they are not rivals of each other."""
STORIES = {
    OWN: "networks, boosted trees and a linear model in one cross-fitted pool",
    NETWORK_ONLY: "the networks of self-calibrated without other members",
    "instance-weights": "weights that a network computes from the input, for accurate and stable predictions (Jain & "
    "Shenoy 2022)",
    FORMER: "perceptrons without embeddings and without other members, as before there was a pool",
}
"""Descriptions of rows that are neither registered methods nor rivals."""


def kind(method: str) -> str:
    """Return the group of a row."""
    if method in OURS:
        return "ours"
    if method in PEERS:
        return base_of(method)[0].kind
    return "network, baseline"
