"""The first paper's method as a scikit-learn classifier."""

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
    """A network trained with one weight per sample, the weights learned so that held-out confidence is right.

    BO4SC, self-calibration by bilevel optimisation (Sanguin, Pakrashi, Viola, Rinaldi, AICS 2024), Algorithm 1. Part of
    the data is held out for the outer level. :class:`SelfCalibratedClassifier` is the one to begin with; this one shows
    which samples were believed (``sample_weights_``), and copes with wrong training labels where those of the held-out
    part are right.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, or int
        Units of the hidden layers, as in :class:`sklearn.neural_network.MLPClassifier`.
    steps : int
        T, inner steps to one outer step.
    epochs : int, optional
        Passes over the training data; None chooses (1,200 steps, or 20 epochs where those are more). Training ends
        with a whole outer step: inner steps (passes, of the full batch) are rounded up to a multiple of ``steps``.
    learning_rate : float
        η_θ, of the inner optimiser.
    batch_size : int, optional
        None: the full batch up to 4,096 rows, 512 above.
    outer_rate : float, optional
        η_w, of the weights; None takes 1.5·n_samples.
    alpha : float
        Of the Boltzmann operator, the smooth maximum under the outer loss.
    inner : {"adam", "sgd"}
        The inner optimiser: Section 4 of the paper says Adam, Algorithm 1 prints plain descent.
    hypergradient : {"unrolled", "truncated", "implicit"}
        Exact through all T steps; through the last ``last`` of them; or that of a minimum.
    last : int
        For ``hypergradient="truncated"``.
    damping : float
        For ``hypergradient="implicit"``: added to the eigenvalues of the Hessian, which is not convex everywhere.
    outer_loss : {"bce", "nll", "brier", "sece", "dece"}
        What held-out data are asked; the paper's is ``"bce"``.
    weights : {"sample", "prior", "neighbours", "network"} or None
        Free weights as published; pulled towards 1; smoothed over neighbours of one label; given by a small network; or
        none, with ``also`` alone.
    prior_strength : float, optional
        Of the pull towards equal weights, for all of ``weights`` but ``"sample"``. None: 0.01 for ``"prior"``, else 0.
    form : {"clip", "sigmoid"}
        How weights stay in [0, 1].
    initial_weight : float, optional
        None is 1 (0.9 for ``form="sigmoid"``).
    also : tuple of {"l2", "l2-unit", "label-smoothing", "label-noise"}
        Further outer variables, moved by Adam at ``also_rate``.
    also_rate : float
    restart : bool
        Start each outer step from the first parameters again.
    keep_history : bool
        Keep the weights of every outer step in ``sample_weights_history_``.
    validation_fraction : float
        The share of the rows that is held out, each class in proportion, when ``fit`` is not given ``X_val``.
    class_weight : dict, "balanced" or None
        Weights of the classes, as in scikit-learn; they multiply ``sample_weight``. The probabilities are then those of
        a population that is weighted so, not of the data: leave it at None unless that is what you want.
    random_state : int, RandomState instance or None
        Decides the held-out rows, the networks' start and the order of mini-batches.
    device : {"auto", "cpu", "cuda"}
        Where to train; ``"auto"`` takes a GPU if there is one. The fitted classifier is on the CPU.
    verbose : bool
        Show a progress bar on standard error.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    encoder_ : :class:`calibrant.data.TableEncoder` or None
        What turned a table with text, categories or dates into numbers; None where all columns were numbers.
    sample_weights_ : (n_samples,) array, or None with ``weights=None``
        The learned weight of each row of X, 0 to 1; NaN for rows that were not trained on: those held out, and those
        whose ``sample_weight`` is zero.
    sample_weights_history_ : (outer steps + 1, n_samples) array, with ``keep_history`` and weights
    suspicion_ : (n_samples,) array
        How wrong each label looks, 0 to 1: ``1 − w_i·p(y_i | x_i)``, with w = 1 for rows that were not trained on. A
        score to sort by, and no probability: the network saw the rows that it was trained on.
    train_indices_, validation_indices_ : rows of X that were trained on and that were held out
    history_ : dict of (outer steps,) arrays
        ``inner_loss``, ``outer_loss`` and ``gradient_norm`` (of the hypergradient).
    l2_, label_smoothing_ : arrays, where ``also`` names them
    label_noise_ : float, where ``also`` names it
        The learned rate of wrong labels, one for all classes.

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
    """Values of the training rows in places of their own among all n, NaN elsewhere."""
    whole = np.full((*values.shape[:-1], n), np.nan)
    whole[..., rows] = values.double().numpy()
    return whole
