"""BO4SC, the method of the first paper, as a scikit-learn classifier."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import RandomState

from calibrant.bilevel import History
from calibrant.estimators.base import NetworkClassifier
from calibrant.estimators.reading import Samples
from calibrant.methods import BO4SC, Fitted, Method
from calibrant.methods.bo4sc import Companion


class BO4SCClassifier(NetworkClassifier):
    """A network trained with one weight per sample; the weights are learned to make held-out confidence accurate.

    BO4SC, self-calibration by bilevel optimisation (Sanguin, Pakrashi, Viola, Rinaldi, AICS 2024), Algorithm 1. Part of
    the data is held out for the outer level. Start with :class:`SelfCalibratedClassifier`. Use this one to see how much
    each sample was trusted (``sample_weights_``), or if training labels may be wrong but those of the held-out part are
    right.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, or int
        Units of the hidden layers, as in :class:`sklearn.neural_network.MLPClassifier`.
    steps : int
        T, the number of inner steps per outer step.
    epochs : int, optional
        Passes over the training data. Default: 1,200 steps or 20 epochs, whichever is more. Training ends with a
        complete outer step: the number of inner steps (passes, for the full batch) is rounded up to a multiple of
        ``steps``.
    learning_rate : float
        η_θ, the learning rate of the inner optimiser.
    batch_size : int, optional
        Default: the full batch up to 4,096 rows, else 512.
    outer_rate : float, optional
        η_w, the learning rate of the weights. Default: 1.5·n_samples.
    alpha : float
        Parameter of the Boltzmann operator, the smooth maximum inside the outer loss.
    inner : {"adam", "sgd"}
        The inner optimiser: Section 4 of the paper says Adam, Algorithm 1 prints plain descent.
    hypergradient : {"unrolled", "truncated", "implicit"}
        How the hypergradient is computed: exactly through all T steps, through the last ``last`` steps, or by the
        implicit function theorem at a minimum.
    last : int
        Number of steps for ``hypergradient="truncated"``.
    damping : float
        For ``hypergradient="implicit"``: added to the eigenvalues of the Hessian, which may be negative.
    outer_loss : {"bce", "nll", "brier", "sece", "dece"}
        The loss on held-out data; the paper uses ``"bce"``.
    weights : {"sample", "prior", "neighbours", "network"} or None
        "sample": free weights, as published. "prior": weights pulled towards 1. "neighbours": weights smoothed over
        neighbours with the same label. "network": weights computed by a small network. None: no weights; only the
        variables in ``also`` are learned.
    prior_strength : float, optional
        Strength of the pull towards equal weights, for all ``weights`` except ``"sample"``. Default: 0.01 for
        ``"prior"``, else 0.
    form : {"clip", "sigmoid"}
        How weights are kept in [0, 1].
    initial_weight : float, optional
        Default: 1, or 0.9 for ``form="sigmoid"``.
    also : tuple of {"l2", "l2-unit", "label-smoothing", "label-noise"}
        Further outer variables, which Adam optimises.
    also_rate : float
        The learning rate for the variables in ``also``.
    restart : bool
        Start each outer step from the initial parameters again.
    keep_history : bool
        Keep the weights of every outer step in ``sample_weights_history_``.
    validation_fraction : float
        The share of rows to hold out if ``fit`` gets no ``X_val``; the split is stratified by class.
    class_weight : dict, "balanced" or None
        Weights of the classes, as in scikit-learn; they multiply ``sample_weight``. The probabilities are then those of
        the weighted population, not of the data. Keep None unless you want this.
    random_state : int, RandomState instance or None
        Seed of the held-out rows, the networks' initial parameters and the order of mini-batches.
    device : {"auto", "cpu", "cuda"}
        Where to train; ``"auto"`` uses a GPU if there is one. The fitted classifier is on the CPU.
    verbose : bool
        Show a progress bar on standard error.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as in every scikit-learn classifier
    encoder_ : :class:`calibrant.data.TableEncoder` or None
        The encoder of a table with text, categories or dates; None if all columns were numeric.
    sample_weights_ : (n_samples,) array, or None with ``weights=None``
        The learned weight of each row of X, from 0 to 1; NaN for rows that were not trained on: those held out, and
        those whose ``sample_weight`` is zero.
    sample_weights_history_ : (outer steps + 1, n_samples) array, with ``keep_history`` and weights
        The weights after each outer step; the first row is the start.
    suspicion_ : (n_samples,) array
        How wrong each label looks, from 0 to 1: ``1 − w_i·p(y_i | x_i)``, with w = 1 for rows that were not trained on.
        Use it to sort rows. It is not a probability, because the network was trained on these rows.
    train_indices_, validation_indices_ : the training rows and the held-out rows of X
    history_ : dict of (outer steps,) arrays
        ``inner_loss``, ``outer_loss`` and ``gradient_norm`` (of the hypergradient).
    l2_, label_smoothing_ : arrays, if ``also`` names them
    label_noise_ : float, if ``also`` names it
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

    method: ClassVar[type[Method]] = BO4SC

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int = BO4SC.hidden,
        *,
        steps: int = BO4SC.steps,
        epochs: int | None = BO4SC.epochs,
        learning_rate: float = BO4SC.learning_rate,
        batch_size: int | None = BO4SC.batch_size,
        outer_rate: float | None = BO4SC.outer_rate,
        alpha: float = BO4SC.alpha,
        inner: Literal["adam", "sgd"] = BO4SC.inner,
        hypergradient: Literal["unrolled", "truncated", "implicit"] = BO4SC.hypergradient,
        last: int = BO4SC.last,
        damping: float = BO4SC.damping,
        outer_loss: Literal["bce", "nll", "brier", "sece", "dece"] = BO4SC.outer_loss,
        weights: Literal["sample", "prior", "neighbours", "network"] | None = BO4SC.weights,
        prior_strength: float | None = BO4SC.prior_strength,
        form: Literal["clip", "sigmoid"] = BO4SC.form,
        initial_weight: float | None = BO4SC.initial_weight,
        also: tuple[Companion, ...] = BO4SC.also,
        also_rate: float = BO4SC.also_rate,
        restart: bool = BO4SC.restart,
        keep_history: bool = BO4SC.keep_history,
        validation_fraction: float = 0.25,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        random_state: int | RandomState | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.steps = steps
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.outer_rate = outer_rate
        self.alpha = alpha
        self.inner = inner
        self.hypergradient = hypergradient
        self.last = last
        self.damping = damping
        self.outer_loss = outer_loss
        self.weights = weights
        self.prior_strength = prior_strength
        self.form = form
        self.initial_weight = initial_weight
        self.also = also
        self.also_rate = also_rate
        self.restart = restart
        self.keep_history = keep_history
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _holds_out(self) -> bool:
        return True

    def _keep(self, fitted: Fitted, runs: list[History], samples: Samples) -> None:
        learned, rows, n = fitted.extras, self.train_indices_, len(samples)
        self.history_ = {name: values.double().numpy() for name, values in learned["history"].items()}
        for name in ("l2", "label_smoothing"):
            if name in learned:
                setattr(self, f"{name}_", learned[name].double().numpy())
        if "label_noise" in learned:
            self.label_noise_ = float(learned["label_noise"][0])  # the same for every class
        weights = learned.get("sample_weights")
        self.sample_weights_ = None if weights is None else _spread(weights, rows, n)
        if "sample_weights_history" in learned:
            self.sample_weights_history_ = _spread(learned["sample_weights_history"], rows, n)
        self.suspicion_ = self._suspicion(samples.inputs, samples.codes, self.sample_weights_)


def _spread(values: Any, rows: np.ndarray, n: int) -> np.ndarray:
    """Spread values of the training rows over an array of all n rows; the others are NaN."""
    whole = np.full((*values.shape[:-1], n), np.nan)
    whole[..., rows] = values.double().numpy()
    return whole
