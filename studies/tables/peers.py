"""Rivals from other libraries: networks and boosted trees, alone and in scikit-learn's CalibratedClassifierCV."""

from __future__ import annotations

import importlib.util
import re
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold

from calibrant.estimators import CrossCalibrated
from calibrant.report import versions
from studies.common.records import ClassifierOutput
from studies.tables.bases import BASES, BOOSTING, CROSS, REALMLP, SETTINGS, Remembers, base_of, device_of
from studies.tables.data import Source, Split, prepare


def _peers() -> dict[str, str]:
    found = {}
    for prefix, base in BASES.items():
        if base.alone:
            found[base.alone] = f"{base.what} with early stopping"
        for how in base.calibrators:
            inside = "CrossCalibrated, on the same folds" if how == CROSS else f"CalibratedClassifierCV, {how}"
            found[f"{prefix}-{how}"] = f"{base.what} in {inside}"
    return found


PEERS = _peers()

FOLDS = 5
SINCE = {"temperature": (1, 8)}
"""The version of scikit-learn that introduced each calibrator."""
IN_FOLDS = "80 %, of which each network leaves out a fold"


def missing_peers(number: str = sklearn.__version__) -> dict[str, str]:
    """Return the peers that are not installed here, and why; they are not ranked as failures."""
    here = tuple(int(part) for part in re.findall(r"\d+", number)[:2])
    found = {}
    for name in PEERS:
        base, how = base_of(name)
        since = SINCE.get(how or "", here)
        if importlib.util.find_spec(base.package) is None:
            found[name] = f"it needs the package {base.package}, which is not installed"
        elif here < since:
            found[name] = f"it needs scikit-learn {'.'.join(map(str, since))} or later, and this is {number}"
    return found


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
    prefix = next(prefix for prefix, base in BASES.items() if base is base_of(method)[0])
    own = {"sklearn": SETTINGS, "realmlp": REALMLP}.get(prefix, BOOSTING)
    return f"{method}, {own}, cv={FOLDS}"


def peer_cost(method: str) -> dict[str, Any]:
    """Return how many models a peer trains for one classifier, and which labels they learn from."""
    alone = base_of(method)[1] is None
    return {"networks": 1 if alone else FOLDS, "labels": "80 %, a tenth of it to stop" if alone else IN_FOLDS}


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
    Remembers.trained.clear()
    return [_record(split, method) for method in methods]


def _record(split: Split, method: str) -> dict[str, Any]:
    x, y = split.pooled()
    Remembers.seconds, waited = 0.0, sum(seconds for _, seconds in Remembers.trained.values())
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", FutureWarning)  # LightGBM renames an argument that older versions need
            model = peer(method, y, split.seed).fit(x, y)
        probs = model.predict_proba(split.inputs.numpy())
    except ValueError as error:  # a class too small for its folds
        return split.record(method, None, " ".join(str(error).split()), seconds=None)
    trained_now = sum(seconds for _, seconds in Remembers.trained.values()) - waited
    seconds = time.perf_counter() - begin - trained_now + Remembers.seconds
    classes = probs.argmax(1)
    found = ClassifierOutput(probs.astype(np.float64), classes, probs.max(1).astype(np.float64))
    return split.record(method, found, seconds=round(seconds, 3), device=device_of(base_of(method)[0]))
