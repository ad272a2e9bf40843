"""The classifiers of other libraries in the comparison: networks and boosted trees, each with one setting."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

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


class Remembers:
    """A mixin that caches fits: a classifier is trained only once on the same rows.

    The calibrators cross-fit the same five classifiers (same folds, same seed); without the cache, each calibrator
    would train them again. ``seconds`` sums the time that training took or would have taken.
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
        """Call ``fit`` of the other library."""
        super().fit(X, y)  # type: ignore[misc]


class RememberedMLP(Remembers, MLPClassifier):
    """scikit-learn's network."""


class RememberedTrees(Remembers, HistGradientBoostingClassifier):
    """scikit-learn's boosted trees."""


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

    class RememberedLightGBM(Remembers, LGBMClassifier):
        def train(self, X: Any, y: Any) -> None:
            own, held, labels, other = stopping_rows(X, y, self.random_state)
            callbacks = [early_stopping(STOP, verbose=False)]
            LGBMClassifier.fit(self, own, labels, eval_set=[(held, other)], callbacks=callbacks)

    rate, iterations = BOOSTING["learning_rate"], BOOSTING["max_iter"]
    return RememberedLightGBM(
        learning_rate=rate, n_estimators=iterations, random_state=seed, n_jobs=threads(), verbose=-1
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

    class RememberedRealMLP(Remembers, RealMLP_TD_Classifier):
        pass

    return RememberedRealMLP(random_state=seed, device=device_of(BASES["realmlp"]), n_threads=threads(), **REALMLP)


CROSS = "cross-calibrated"
"""The id suffix of a classifier in :class:`calibrant.CrossCalibrated`, on the folds of CalibratedClassifierCV."""

BASES = {
    "sklearn": Base(
        "MLPClassifier",
        lambda seed: RememberedMLP(**SETTINGS, random_state=seed),
        kind="network, other library",
        alone="sklearn-mlp",
    ),
    "hgb": Base(
        "HistGradientBoostingClassifier",
        lambda seed: RememberedTrees(**BOOSTING, random_state=seed),
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
