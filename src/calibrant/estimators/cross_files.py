"""The content of files that hold a :class:`calibrant.estimators.CrossCalibrated`."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from sklearn.base import clone

from calibrant._files import Arrays, pack, unpack
from calibrant.estimators.cross_calibrated import CrossCalibrated
from calibrant.estimators.selective import HeldOut, check_out_of_fold, without_large
from calibrant.estimators.stored_models import pack_model, unpack_model
from calibrant.methods.pool import Pool
from calibrant.posthoc.persistence import build_calibrator, calibrator_parts

_PLAIN = ("classes_", "n_features_in_", "feature_names_in_", "oof_proba_", "oof_labels_", "oof_groups_", "_scale")
_LEAST, _SIZES = "_least", "_sizes"


def cross_parts(classifier: CrossCalibrated, arrays: Arrays) -> dict[str, Any]:
    """The header of a fitted classifier; its arrays go to ``arrays``.

    A calibrator or an estimator that cannot be written raises an error that says so. A splitter and a RandomState
    instance are left out.
    """
    params = classifier.get_params(deep=False)
    estimator, calibrator = params.pop("estimator"), params.pop("calibrator")
    for name in ("cv", "random_state"):
        if not isinstance(params[name], Integral):
            params.pop(name)
    state = without_large({name: getattr(classifier, name) for name in _PLAIN if hasattr(classifier, name)})
    if "held_out_" in state:
        state["held_out_"] = tuple(state["held_out_"])
    state |= {"pool": classifier.pool_._asdict(), _LEAST: float(classifier._least), _SIZES: list(classifier._sizes)}
    fitted = classifier.calibrator_
    return {
        "params": pack(params, "params", arrays),
        "estimator": None if estimator is None else pack_model(estimator, "estimator", arrays, fitted=False),
        "models": [pack_model(model, f"model.{k}", arrays) for k, model in enumerate(classifier.estimators_)],
        "named": calibrator if isinstance(calibrator, str) else None,
        "calibrator": None if fitted is None else calibrator_parts(fitted, "calibrator", arrays),
        "state": pack(state, "state", arrays),
    }


def build_cross(header: dict[str, Any], arrays: Arrays) -> CrossCalibrated:
    """The classifier that :func:`cross_parts` described."""
    params, state = unpack(header["params"], arrays), unpack(header["state"], arrays)
    fitted = None if header["calibrator"] is None else build_calibrator(header["calibrator"], arrays)
    given = header["named"] if header["named"] is not None or fitted is None else clone(fitted)
    estimator = None if header["estimator"] is None else unpack_model(header["estimator"], arrays)
    found = CrossCalibrated(estimator, calibrator=given, **params)
    found.pool_, found.calibrator_ = Pool(**state["pool"]), fitted
    found.estimators_ = [unpack_model(tree, arrays) for tree in header["models"]]
    found._least, found._sizes = state[_LEAST], state[_SIZES]
    if "held_out_" in state:
        found.held_out_ = HeldOut(*state["held_out_"])
    for name in _PLAIN:
        if name in state:
            setattr(found, name, state[name])
    if len(found._sizes) != len(found.estimators_) or found.pool_.bias.shape != found.classes_.shape:
        raise ValueError("the models, the classes and the pool do not fit together")
    check_out_of_fold(found)
    return found
