"""scikit-learn's own way to calibrated networks: MLPClassifier with early stopping, alone and cross-calibrated."""

from __future__ import annotations

import hashlib
import re
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from calibrant.experiments.common.keys import MEASURED, SCORING, code_digest, own_code
from calibrant.experiments.common.records import Predicted
from calibrant.experiments.tables.data import Split, prepare
from calibrant.report import versions

PEERS = {
    "sklearn-mlp": "scikit-learn's MLPClassifier with early stopping",
    "sklearn-isotonic": "MLPClassifier in CalibratedClassifierCV, isotonic",
    "sklearn-sigmoid": "MLPClassifier in CalibratedClassifierCV, sigmoid",
    "sklearn-temperature": "MLPClassifier in CalibratedClassifierCV, temperature (scikit-learn 1.8 or later)",
}
SETTINGS: dict[str, Any] = {"hidden_layer_sizes": (64, 64), "early_stopping": True, "max_iter": 1000}
"""The same network as ours; everything else is scikit-learn's default."""
FOLDS = 5
SINCE = {"sklearn-temperature": (1, 8)}
"""The version of scikit-learn that a peer came with."""
IN_FOLDS = "80 %, of which each network leaves out a fold"


def missing_peers(version: str = sklearn.__version__) -> dict[str, str]:
    """The peers that this scikit-learn lacks, and why: not their failure, and no last rank."""
    here = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return {
        name: f"it needs scikit-learn {'.'.join(map(str, since))} or later, and this is {version}"
        for name, since in SINCE.items()
        if here < since
    }


def made_by(methods: Sequence[str]) -> dict[str, str]:
    """What code stands behind each method's records: a digest of ours, and for a peer scikit-learn's version too."""
    data, here = "experiments/tables/data.py", "experiments/tables/peers.py"
    theirs = f"scikit-learn {versions()['scikit-learn']}, code {code_digest(*MEASURED, *SCORING, data, here)}"
    return {name: theirs if name in PEERS else f"code {own_code(data)}" for name in methods}


def peer_cost(method: str) -> dict[str, Any]:
    """How many networks a peer trains for one classifier, and which labels they learn from."""
    alone = method == "sklearn-mlp"
    return {"networks": 1 if alone else FOLDS, "labels": "80 %, a tenth of it to stop" if alone else IN_FOLDS}


class RememberedMLP(MLPClassifier):
    """An MLPClassifier that is trained once for the same rows.

    The three calibrators cross-fit the same five networks (same folds, same seed), and would each train them anew.
    ``seconds`` adds up what training took or would have taken.
    """

    trained: ClassVar[dict[bytes, tuple[dict[str, Any], float]]] = {}
    seconds: ClassVar[float] = 0.0

    def fit(self, X: Any, y: Any) -> RememberedMLP:
        key = hashlib.sha256(X.tobytes() + y.tobytes()).digest()
        if key not in self.trained:
            begin = time.perf_counter()
            super().fit(X, y)
            self.trained[key] = self.__dict__.copy(), time.perf_counter() - begin
        state, seconds = self.trained[key]
        self.__dict__.update(state)
        RememberedMLP.seconds += seconds
        return self


def peer(method: str, labels: np.ndarray, seed: int) -> Any:
    """The classifier of this id. Folds are fewer than five where a class has fewer rows; one row is an error."""
    base = RememberedMLP(**SETTINGS, random_state=seed)
    if method == "sklearn-mlp":
        return base
    folds = min(FOLDS, int(np.bincount(labels).min()))
    if folds < 2:
        raise ValueError("A class has one row only in training and validation part, and cross-fitting needs two.")
    return CalibratedClassifierCV(base, method=method.removeprefix("sklearn-"), cv=folds)


def run_peers(name: str, path: Path, seed: int, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Records of these peers on one split; they are given training and validation part as one."""
    split = prepare(name, path, seed)
    RememberedMLP.trained.clear()
    return [_record(split, method) for method in methods]


def _record(split: Split, method: str) -> dict[str, Any]:
    x, y = split.pooled()
    RememberedMLP.seconds, waited = 0.0, sum(seconds for _, seconds in RememberedMLP.trained.values())
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = peer(method, y, split.seed).fit(x, y)
        probs = model.predict_proba(split.inputs.numpy())
    except ValueError as error:  # a class too small for its folds
        return split.record(method, None, " ".join(str(error).split()), seconds=None)
    trained_now = sum(seconds for _, seconds in RememberedMLP.trained.values()) - waited
    seconds = time.perf_counter() - begin - trained_now + RememberedMLP.seconds
    classes = probs.argmax(1)
    found = Predicted(probs.astype(np.float64), classes, probs.max(1).astype(np.float64))
    return split.record(method, found, seconds=round(seconds, 3))
