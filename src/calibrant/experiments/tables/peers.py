"""Rivals from other libraries: networks and boosted trees, alone and in scikit-learn's CalibratedClassifierCV."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from calibrant.experiments.common.keys import MEASURED, SCORING, code_digest, own_code
from calibrant.experiments.common.records import Predicted
from calibrant.experiments.tables.data import Source, Split, prepare
from calibrant.report import versions

SETTINGS: dict[str, Any] = {"hidden_layer_sizes": (64, 64), "early_stopping": True, "max_iter": 1000}
"""Of MLPClassifier: the same network as ours; everything else is scikit-learn's default."""
BOOSTING: dict[str, Any] = {"learning_rate": 0.03, "max_iter": 1000, "early_stopping": True}
"""Of HistGradientBoostingClassifier. LightGBM and CatBoost have the same rate, number and rule to stop: a tenth of the
rows is held out, and ten iterations without a better loss there end the training."""
STOP = 10


@dataclass(frozen=True)
class Base:
    """A classifier of another library, by the prefix of its ids."""

    what: str
    build: Callable[[int], Any]
    """The unfitted classifier for a seed."""
    package: str = "sklearn"
    """The package to import, of which the version is told."""
    alone: str | None = None
    """The id of the classifier without a calibrator; None where it is not measured."""
    calibrators: tuple[str, ...] = ("isotonic", "sigmoid", "temperature")


class Remembers:
    """A mixin: the same rows train a classifier once.

    The three calibrators cross-fit the same five classifiers (same folds, same seed), and would each train them anew.
    ``seconds`` adds up what training took or would have taken.
    """

    trained: ClassVar[dict[bytes, tuple[dict[str, Any], float]]] = {}
    seconds: ClassVar[float] = 0.0

    def fit(self, X: Any, y: Any) -> Any:
        key = hashlib.sha256(type(self).__name__.encode() + X.tobytes() + y.tobytes()).digest()
        if key not in self.trained:
            begin = time.perf_counter()
            self.train(X, y)
            self.trained[key] = self.__dict__.copy(), time.perf_counter() - begin
        state, seconds = self.trained[key]
        self.__dict__.update(state)
        Remembers.seconds += seconds
        return self

    def train(self, X: Any, y: Any) -> None:
        """What ``fit`` of the other library does."""
        super().fit(X, y)  # type: ignore[misc]


class RememberedMLP(Remembers, MLPClassifier):
    """scikit-learn's network."""


class RememberedTrees(Remembers, HistGradientBoostingClassifier):
    """scikit-learn's boosted trees."""


def stopping_rows(X: Any, y: Any, seed: int | None) -> list[Any]:
    """Nine tenths to train on and a tenth to stop by, as scikit-learn's boosting takes them."""
    return list(train_test_split(X, y, test_size=0.1, random_state=seed, stratify=y))


def _lightgbm(seed: int) -> Any:
    from lightgbm import LGBMClassifier, early_stopping

    class RememberedLightGBM(Remembers, LGBMClassifier):
        def train(self, X: Any, y: Any) -> None:
            own, held, labels, other = stopping_rows(X, y, self.random_state)
            callbacks = [early_stopping(STOP, verbose=False)]
            LGBMClassifier.fit(self, own, labels, eval_set=[(held, other)], callbacks=callbacks)

    return RememberedLightGBM(
        learning_rate=BOOSTING["learning_rate"], n_estimators=BOOSTING["max_iter"], random_state=seed, verbose=-1
    )


def _catboost(seed: int) -> Any:
    from catboost import CatBoostClassifier

    class RememberedCatBoost(Remembers, CatBoostClassifier):
        def train(self, X: Any, y: Any) -> None:
            own, held, labels, other = stopping_rows(X, y, self.get_param("random_state"))
            CatBoostClassifier.fit(self, own, labels, eval_set=(held, other), early_stopping_rounds=STOP)

    return RememberedCatBoost(
        learning_rate=BOOSTING["learning_rate"],
        iterations=BOOSTING["max_iter"],
        random_state=seed,
        verbose=False,
        allow_writing_files=False,
    )


def _realmlp(seed: int) -> Any:
    from pytabkit import RealMLP_TD_Classifier

    class RememberedRealMLP(Remembers, RealMLP_TD_Classifier):
        pass

    return RememberedRealMLP(random_state=seed, device="cpu")


BASES = {
    "sklearn": Base("MLPClassifier", lambda seed: RememberedMLP(**SETTINGS, random_state=seed), alone="sklearn-mlp"),
    "hgb": Base(
        "HistGradientBoostingClassifier", lambda seed: RememberedTrees(**BOOSTING, random_state=seed), alone="hgb"
    ),
    "lightgbm": Base("LightGBM", _lightgbm, "lightgbm", alone="lightgbm"),
    "catboost": Base("CatBoost", _catboost, "catboost", alone="catboost"),
    "realmlp": Base("RealMLP of pytabkit", _realmlp, "pytabkit", calibrators=("temperature",)),
}


def _peers() -> dict[str, str]:
    found = {}
    for prefix, base in BASES.items():
        if base.alone:
            found[base.alone] = f"{base.what} with early stopping"
        found |= {f"{prefix}-{how}": f"{base.what} in CalibratedClassifierCV, {how}" for how in base.calibrators}
    return found


PEERS = _peers()

FOLDS = 5
SINCE = {"temperature": (1, 8)}
"""The version of scikit-learn that a calibrator came with."""
IN_FOLDS = "80 %, of which each network leaves out a fold"


def base_of(method: str) -> tuple[Base, str | None]:
    """The classifier behind an id, and its calibrator."""
    for prefix, base in BASES.items():
        if method == base.alone:
            return base, None
        if method.startswith(f"{prefix}-"):
            return base, method.removeprefix(f"{prefix}-")
    raise ValueError(f"There is no peer called {method!r}; known are {', '.join(PEERS)}.")


def missing_peers(number: str = sklearn.__version__) -> dict[str, str]:
    """The peers that this scikit-learn or this machine lacks, and why: not their failure, and no last rank."""
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


def made_by(methods: Sequence[str]) -> dict[str, str]:
    """What code stands behind each method's records: a digest of ours, and for a peer scikit-learn's version too."""
    data, here = "experiments/tables/data.py", "experiments/tables/peers.py"
    code = f"code {code_digest(*MEASURED, *SCORING, data, here)}"

    def theirs(name: str) -> str:
        package = base_of(name)[0].package
        other = "" if package == "sklearn" else f"{package} {version(package)}, "
        return f"scikit-learn {versions()['scikit-learn']}, {other}{code}"

    return {name: theirs(name) if name in PEERS else f"code {own_code(data)}" for name in methods}


def peer_settings(method: str) -> str:
    """A peer's settings as text."""
    prefix = next(prefix for prefix, base in BASES.items() if base is base_of(method)[0])
    own = {"sklearn": SETTINGS, "realmlp": "defaults"}.get(prefix, BOOSTING)
    return f"{method}, {own}, cv={FOLDS}"


def peer_cost(method: str) -> dict[str, Any]:
    """How many models a peer trains for one classifier, and which labels they learn from."""
    alone = base_of(method)[1] is None
    return {"networks": 1 if alone else FOLDS, "labels": "80 %, a tenth of it to stop" if alone else IN_FOLDS}


def peer(method: str, labels: np.ndarray, seed: int) -> Any:
    """The classifier of this id. Folds are fewer than five where a class has fewer rows; one row is an error."""
    base, how = base_of(method)
    model = base.build(seed)
    if how is None:
        return model
    folds = min(FOLDS, int(np.bincount(labels).min()))
    if folds < 2:
        raise ValueError("A class has one row only in training and validation part, and cross-fitting needs two.")
    return CalibratedClassifierCV(model, method=how, cv=folds)


def run_peers(name: str, path: Source, seed: int, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Records of these peers on one split; they are given training and validation part as one."""
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
            model = peer(method, y, split.seed).fit(x, y)
        probs = model.predict_proba(split.inputs.numpy())
    except ValueError as error:  # a class too small for its folds
        return split.record(method, None, " ".join(str(error).split()), seconds=None)
    trained_now = sum(seconds for _, seconds in Remembers.trained.values()) - waited
    seconds = time.perf_counter() - begin - trained_now + Remembers.seconds
    classes = probs.argmax(1)
    found = Predicted(probs.astype(np.float64), classes, probs.max(1).astype(np.float64))
    return split.record(method, found, seconds=round(seconds, 3))
