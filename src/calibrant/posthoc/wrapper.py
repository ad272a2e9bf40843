"""A calibrator joined to the model whose predictions it corrects."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from calibrant.base.inputs import check_probs, two_columns
from calibrant.base.labels import class_columns
from calibrant.posthoc._base import Calibrator
from calibrant.posthoc.temperature import Temperature


class CalibratedModel(ClassifierMixin, BaseEstimator):
    """Calibrate a fitted scikit-learn classifier or a torch module on data that it was not trained on.

    ``CalibratedModel(forest, Isotonic()).fit(X_held_out, y_held_out).predict_proba(X)``. The model itself is not
    fitted again. If no rows are held out, :class:`calibrant.CrossCalibrated` fits a scikit-learn classifier and its
    calibration on the same rows, by cross-fitting. For a torch network, :func:`calibrant.calibrate` also takes loaders
    and gives a torch module.

    Parameters
    ----------
    model : scikit-learn classifier or nn.Module
        A fitted classifier with ``predict_proba`` or ``decision_function``, or a torch module that returns logits of
        shape (n, C), or (n,) or (n, 1) for the logit of class 1 of two.
    calibrator : Calibrator, optional
        None means `Temperature()`. It is cloned and always receives logits.
    batch_size : int
        Rows per forward pass of a torch module.

    Attributes
    ----------
    classes_ : array of shape (C,)
        The classifier's own classes; 0..C-1 for a torch module.
    calibrator_ : Calibrator
        The fitted calibrator, which `save_calibrator` can write.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from calibrant.posthoc import CalibratedModel, Temperature
    >>> X, y = load_iris(return_X_y=True)
    >>> model = GaussianNB().fit(X[::2], y[::2])
    >>> calibrated = CalibratedModel(model, Temperature()).fit(X[1::2], y[1::2])
    >>> calibrated.predict_proba(X).shape
    (150, 3)
    """

    def __init__(
        self,
        model: Any,
        calibrator: Calibrator | None = None,
        *,
        batch_size: int = 1024,
    ) -> None:
        self.model = model
        self.calibrator = calibrator
        self.batch_size = batch_size

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the calibrator on the model's predictions for held-out X and the true classes y."""
        if self.calibrator is not None and not isinstance(self.calibrator, Calibrator):
            raise TypeError(
                f"calibrator must be one of calibrant.posthoc, such as Temperature(); got {self.calibrator!r}. For a "
                "name, pass make_calibrator(name)."
            )
        logits = self._logits(X)
        if isinstance(self.model, torch.nn.Module):
            self.classes_ = np.arange(logits.shape[1])
        else:
            self.classes_ = np.asarray(self.model.classes_)
        calibrator = Temperature() if self.calibrator is None else clone(self.calibrator)
        self.calibrator_ = calibrator.set_params(from_probs=False)
        self.calibrator_.fit(logits, class_columns(y, self.classes_), sample_weight)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities, one column per entry of ``classes_``."""
        check_is_fitted(self)
        return np.asarray(self.calibrator_.predict_proba(self._logits(X)))

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row, as in ``classes_``."""
        check_is_fitted(self)
        return self.classes_[self.calibrator_.predict(self._logits(X))]

    def confidence(self, X: Any) -> np.ndarray:
        """The probability of the class that ``predict`` returns."""
        check_is_fitted(self)
        return np.asarray(self.calibrator_.confidence(self._logits(X)))

    def _logits(self, X: Any) -> np.ndarray:
        if isinstance(self.model, torch.nn.Module):
            return _two_columns(_module_outputs(self.model, X, self.batch_size))
        methods = ("predict_proba", "decision_function")  # the latter's values are read as logits
        method = next((name for name in methods if hasattr(self.model, name)), None)
        if method is None or not hasattr(self.model, "classes_"):
            raise ValueError(
                f"model must be a torch module or a fitted classifier with classes_ and {' or '.join(methods)}; got "
                f"{type(self.model).__name__}. Fit it first; regressors and clusterers cannot be calibrated."
            )
        values = np.asarray(getattr(self.model, method)(X), dtype=float)
        if method == "decision_function":
            return _two_columns(values)
        with np.errstate(divide="ignore"):
            return np.log(check_probs(values).numpy())


def _two_columns(values: np.ndarray) -> np.ndarray:
    """Two columns for one logit per row, (n,) or (n, 1); others as they are."""
    return np.asarray(two_columns(values[:, 0] if values.shape[1:] == (1,) else values, logits=True))


def _module_outputs(module: torch.nn.Module, X: Any, batch_size: int) -> np.ndarray:
    """Outputs of a module in evaluation mode; its mode is restored afterwards."""
    parameter = next(module.parameters(), torch.empty(0, device="cpu"))
    inputs = X if isinstance(X, torch.Tensor) else torch.as_tensor(np.asarray(X), device="cpu")
    if inputs.is_floating_point():
        inputs = inputs.to(parameter.dtype)
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            outputs = [module(batch.to(parameter.device)) for batch in inputs.split(batch_size)]
    finally:
        for child, mode in modes:
            child.training = mode
    if not all(isinstance(output, torch.Tensor) for output in outputs):
        raise ValueError(
            f"model must return a tensor of logits; got {type(outputs[0]).__name__}. "
            "Wrap it in a module that returns the logits alone."
        )
    return torch.cat(outputs).double().cpu().numpy()
