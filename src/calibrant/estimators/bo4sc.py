"""BO4SC, the method of the first paper, as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.random import RandomState

from calibrant.base.settings import shown
from calibrant.estimators.base import NetworkClassifier
from calibrant.methods import BO4SC, Fitted, Samples


class BO4SCClassifier(NetworkClassifier):
    """A network trained with one weight per sample; the weights are learned to make held-out confidence accurate.

    BO4SC, self-calibration by bilevel optimisation (Sanguin, Pakrashi, Viola, Rinaldi, AICS 2024), Algorithm 1. Some of
    the rows are held out for the outer level. Start with :class:`SelfCalibratedClassifier`. Use this one to see how
    much each sample was trusted (``sample_weights_``), or if training labels may be wrong but those of the held-out
    part are right.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, or int, optional
        Units of the hidden layers, as in :class:`sklearn.neural_network.MLPClassifier`. Default: (64, 64).
    steps : int, optional
        T, the number of inner steps per outer step. Default: 5.
    epochs : int, optional
        Passes over the training data. Default: 1,200 steps or 20 epochs, whichever is more. Training ends with a
        complete outer step: the number of inner steps (passes, for the full batch) is rounded up to a multiple of
        ``steps``.
    learning_rate : float, optional
        η_θ, the learning rate of the network (inner level). Default: 0.005.
    outer_learning_rate : float, optional
        η_w, the learning rate of the weights (outer level). Default: 1.5·n_samples.
    alpha : float, optional
        α of the Boltzmann operator, the smooth maximum inside the outer loss. Default: 30.
    method : :class:`calibrant.methods.BO4SC`, optional
        All further settings: ``BO4SC(weights="neighbours", also=("l2",))``, for example. An argument above that is not
        None replaces the field of this object.
    validation_fraction : float
        The share of rows to hold out if ``fit`` gets no ``X_val``; the split is stratified by class.
    class_weight : dict, "balanced" or None
        Weights of the classes, as in scikit-learn; they multiply ``sample_weight``. The probabilities are then those of
        the weighted population, not of the data. Keep None unless you want this.
    text_columns : names of columns, or one name
        Columns of free text, in addition to those that :class:`calibrant.data.TableEncoder` recognises.
    random_state : int, RandomState instance or None
        Seed of the held-out rows, the networks' initial parameters and the order of mini-batches.
    device : {"auto", "cpu", "cuda"}
        Where to train; ``"auto"`` uses a GPU if there is one. The fitted classifier is on the CPU.
    verbose : bool
        Show the progress on standard error.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in every scikit-learn classifier
    encoder_ : :class:`calibrant.data.TableEncoder` or None
        The encoder of a table with text, categories or dates; None if all columns were numeric.
    projection_ : :class:`calibrant.data.projection.Projection` or None
        The projection of sparse columns for the network; None if no column is sparse.
    sample_weights_ : (n_samples,) array, or None with ``BO4SC(weights=None)``
        The learned weight of each row of X, from 0 to 1; NaN for rows that were not trained on: those held out, and
        those whose ``sample_weight`` is zero.
    sample_weights_history_ : (outer steps + 1, n_samples) array, with ``BO4SC(keep_history=True)`` and weights
        The weights after each outer step; the first row is the start.
    suspicion_ : (n_samples,) array
        How wrong each label looks, from 0 to 1: ``1 − w_i·p(y_i | x_i)``, with w = 1 for rows that were not trained on.
        Use it to sort rows. It is not a probability, because the network was trained on these rows.
    learned_ : bool
        Whether the log-loss of held-out rows is below that of the class frequencies by more than chance (95 %
        interval). If it is not, :meth:`suspects` lists nothing.
    train_indices_, validation_indices_ : arrays of int
        The training rows and the held-out rows of X.
    history_ : dict of (outer steps,) arrays
        ``inner_loss``, ``outer_loss`` and ``gradient_norm`` (of the hypergradient).
    l2_, label_smoothing_ : arrays, if ``also`` of ``method`` names them
        The learned L2 strengths and amounts of smoothing.
    label_noise_ : float, if ``also`` of ``method`` names it
        The learned rate of wrong labels, the same for all classes.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from calibrant import BO4SCClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = BO4SCClassifier(epochs=100, random_state=0).fit(X, y)
    >>> bool(clf.score(X, y) > 0.9)
    True
    >>> clf.sample_weights_.shape, clf.confidence(X[:2]).shape
    ((150,), (2,))
    """

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int | None = None,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        outer_learning_rate: float | None = None,
        alpha: float | None = None,
        method: BO4SC | None = None,
        validation_fraction: float = 0.25,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        text_columns: Sequence[Any] | str = (),
        random_state: int | RandomState | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.steps = steps
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.outer_learning_rate = outer_learning_rate
        self.alpha = alpha
        self.method = method
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.text_columns = text_columns
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _base(self) -> BO4SC:
        if self.method is not None and not isinstance(self.method, BO4SC):
            raise ValueError(f"method must be a calibrant.methods.BO4SC, or None; got {shown(self.method)}.")
        return BO4SC() if self.method is None else self.method

    def _settings(self) -> dict[str, Any]:
        return {name: value for name, value in super()._settings().items() if value is not None}

    def _holds_out(self) -> bool:
        return True

    def _keep(self, fitted: Fitted, samples: Samples) -> None:
        learned, rows, n = fitted.extras, self.train_indices_, len(samples)
        for name in ("l2", "label_smoothing"):
            if name in learned:
                setattr(self, f"{name}_", learned[name].double().numpy())
        if "label_noise" in learned:
            self.label_noise_ = float(learned["label_noise"][0])  # the same for every class
        weights = learned.get("sample_weights")
        self.sample_weights_ = None if weights is None else _spread(weights, rows, n)
        if "sample_weights_history" in learned:
            self.sample_weights_history_ = _spread(learned["sample_weights_history"], rows, n)
        self.suspicion_ = self._suspicion(samples, self.sample_weights_)


def _spread(values: Any, rows: np.ndarray, n: int) -> np.ndarray:
    """Spread values of the training rows over an array of all n rows; the others are NaN."""
    whole = np.full((*values.shape[:-1], n), np.nan)
    whole[..., rows] = values.double().numpy()
    return whole
