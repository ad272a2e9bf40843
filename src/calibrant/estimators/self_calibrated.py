"""The recommended classifier: one setting for all data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import RandomState

from calibrant.bilevel import History
from calibrant.estimators.base import NetworkClassifier
from calibrant.estimators.folds import Splits, fold_count, named_splits
from calibrant.estimators.history import as_arrays
from calibrant.estimators.reading import Samples
from calibrant.estimators.selective import SelectiveMixin
from calibrant.methods import Fitted, Method, SelfCalibrated
from calibrant.methods.blend import MEMBERS


class SelfCalibratedClassifier(SelectiveMixin, NetworkClassifier):
    """A classifier whose confidence can be believed, with nothing to tune: the recommended one.

    Networks, boosted trees and a linear model, each trained on all but one of K folds of the data. The networks'
    held-out losses together learn how strongly to regularise, by hypergradients. The classifier is a log-linear pool of
    all members: their weights, class biases and a lapse rate are fitted to predictions for rows that the predicting
    model never saw. Members that do not help are left out, and where nothing can be learned the pool answers with the
    class frequencies. No data is lost to validation.

    Where held-out labels are given (``X_val``) and are met more often than the training labels, the rate of wrong
    training labels is learned as well, and kept unless samples that learned neither speak against it.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, or int
        Units of the hidden layers, as in :class:`sklearn.neural_network.MLPClassifier`.
    activation : {"relu", "silu", "tanh"}
        Of the hidden units.
    folds : int
        K; fewer where there are fewer rows or groups. Exact copies of a row, and rows of one group (``groups`` of
        ``fit``), are held out together.
    cv : splitter, iterable, int or None
        Folds of one's own: a scikit-learn splitter or an iterable of (train, test) rows, used as it is. Each kind of
        network is trained once for each fold, and ``repeats`` is not used. A number is that of ``folds``.
    repeats : int
        How often the folds are dealt: there are ``folds·repeats`` networks.
    epochs : int, optional
        Passes over the data, three times as many for the label-noise candidate. None chooses: 400 steps of the full
        batch; 800 steps of mini-batches, or 40 epochs where those are more; for the label-noise candidate 1,200 steps
        or 40 epochs. Training ends with a whole outer step: inner steps (passes, of the full batch) are rounded up to
        a multiple of ``steps``.
    learning_rate : float
        Of Adam, inside.
    steps : int
        Inner steps to one outer step.
    last : int
        How many of these the hypergradient goes back through.
    outer_rate : float
        Of Adam, outside, on the logarithms of the regularisation strengths.
    batch_size : int, optional
        None: the full batch up to 512 rows, 256 above (up to 4,096 rows and 512 above with ``embedding=None``).
    embedding : {"piecewise", "periodic", "linear"} or None
        What the networks of every second deal do with the columns; those of the other deals are plain perceptrons, and
        held-out labels decide how much each kind counts. All but None learn an L2 factor for each column. "piecewise"
        adds piecewise linear functions of each column to the first layer, "periodic" adds waves of learned frequency,
        and "linear" adds nothing. With None all networks are plain, with one L2 strength per layer.
    choose : float
        The share of the validation part that is kept for choosing between candidates.
    members : sequence of {"network", "trees", "linear"}
        The kinds of classifiers in the pool: cross-fitted networks, which must be there, gradient boosting
        (:class:`sklearn.ensemble.HistGradientBoostingClassifier`, for up to 100 classes) and logistic regression.
        ``("network",)`` has no pool: the networks' mean with a temperature, class biases and a lapse rate.
    refit : bool
        False is one network without cross-fitting: ``validation_fraction`` of the rows are held out (or ``X_val`` is),
        the rest trains it, and the held-out rows learn the regularisation, temperature, biases and lapse rate. There is
        no search for label noise; ``folds``, ``repeats`` and ``choose`` are not used.
    decay : bool
        Let the inner learning rate fall along a cosine.
    validation_fraction : float
        For ``refit=False`` without ``X_val``.
    class_weight : dict, "balanced" or None
        Weights of the classes, as in scikit-learn; they multiply ``sample_weight``. The probabilities are then those of
        a population that is weighted so, not of the data: leave it at None unless that is what you want.
    random_state : int, RandomState instance or None
        Decides the folds, the networks' start and the order of mini-batches.
    device : {"auto", "cpu", "cuda"}
        Where to train; ``"auto"`` takes a GPU if there is one. The fitted classifier is on the CPU.
    verbose : bool
        Show a progress bar on standard error.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as everywhere in scikit-learn
    encoder_ : :class:`calibrant.data.TableEncoder` or None
        What turned a table with text, categories or dates into numbers; None where all columns were numbers.
    candidate_ : str
        What was chosen: ``"pooled"``, or ``"label noise"`` if training labels were found to be flipped.
    members_ : tuple of str
        The members that the pool kept.
    pool_weights_ : (len(members_),) array
        Their weights w in ``p(x) = (1 − λ)·softmax(Σ_m w_m·log p_m(x) + b) + λ/C``. The networks' ``p_m`` is the
        softmax of their mean logits.
    temperature_ : float
        ``1/Σ_m w_m``; infinite where the classifier answers with the class frequencies alone.
    bias_ : (n_classes,) array
        b.
    oof_proba_ : (n_samples, n_classes) array
        Out-of-fold probabilities of the training rows: each member's part comes from models that never saw the row.
        The pool's few numbers were fitted to all of them. NaN where a row was held out by no fold: rows of weight zero,
        rows that the folds leave over, and the training rows of the label-noise candidate or of ``refit=False``.
    lapse_ : float
        λ: the share of labels that look wrong however clear the input. Confidence is at most ``1 − λ + λ/C``.
    l2_ : array
        The learned L2 strengths, one for each weight matrix; of the networks that embed columns, if there are any.
    label_noise_ : float or None
        The share of training labels that look wrong, where the candidate allows for such: the rate of greatest
        likelihood, given the classifier (which trained on these labels, knowing that they might be wrong).
    suspicion_ : (n_samples,) array
        How wrong each label looks, 0 to 1, by networks that never saw it, where there are any. The label-noise
        candidate gives the probability that the label is wrong; the pooled one ``1 − p(y_i | x_i)``, the chance of
        another class, which labels that are right have too where classes overlap.
    oof_labels_, oof_groups_ : (n_samples,) arrays
        The column number of each training row's class, and the number of its group (None without groups).
    train_indices_, validation_indices_ : rows of X that were trained on and that were held out
    history_ : dict of (outer steps,) arrays
        ``inner_loss``, ``outer_loss`` and ``gradient_norm`` (of the hypergradient), means over the networks.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from calibrant import SelfCalibratedClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = SelfCalibratedClassifier(epochs=100, random_state=0).fit(X, y)
    >>> bool(clf.score(X, y) > 0.9)
    True
    >>> clf.predict(X[:2], reject_below=1.0)
    array([-1, -1])
    """

    method: ClassVar[type[Method]] = SelfCalibrated

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int = SelfCalibrated.hidden,
        *,
        activation: Literal["relu", "silu", "tanh"] = SelfCalibrated.activation,  # type: ignore[assignment]
        folds: int = SelfCalibrated.folds,
        cv: Any = None,
        repeats: int = SelfCalibrated.repeats,
        epochs: int | None = SelfCalibrated.epochs,
        learning_rate: float = SelfCalibrated.learning_rate,
        steps: int = SelfCalibrated.steps,
        last: int = SelfCalibrated.last,
        outer_rate: float = SelfCalibrated.outer_rate,
        batch_size: int | None = SelfCalibrated.batch_size,
        embedding: Literal["piecewise", "periodic", "linear"] | None = SelfCalibrated.embedding,  # type: ignore[assignment]
        choose: float = SelfCalibrated.choose,
        members: Sequence[str] = MEMBERS,
        refit: bool = SelfCalibrated.refit,
        decay: bool = SelfCalibrated.decay,
        validation_fraction: float = 0.25,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        random_state: int | RandomState | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.folds = folds
        self.cv = cv
        self.repeats = repeats
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.steps = steps
        self.last = last
        self.outer_rate = outer_rate
        self.batch_size = batch_size
        self.embedding = embedding
        self.choose = choose
        self.members = members
        self.refit = refit
        self.decay = decay
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _holds_out(self) -> bool:
        return not self.refit

    def _method(self) -> Method:
        method = super()._method()
        assert isinstance(method, SelfCalibrated)
        return replace(method, folds=fold_count(self.cv)) if isinstance(self.cv, Integral) else method

    def _named_splits(self, X: np.ndarray, y: np.ndarray, groups: Any, rows: np.ndarray) -> Splits | None:
        if self.cv is None or isinstance(self.cv, Integral):
            return None
        if not self.refit:
            raise ValueError("cv deals folds, and refit=False has none; leave one of them out.")
        place = np.full(len(y), -1)
        place[rows] = np.arange(len(rows))
        found = [[place[own] for own in pair] for pair in named_splits(self.cv, X, y, groups)]
        return tuple((train[train >= 0], held[held >= 0]) for train, held in found)

    def _keep(self, fitted: Fitted, runs: list[History], samples: Samples) -> None:
        found: dict[str, Any] = fitted.extras
        self.candidate_ = found["candidate"]
        self.temperature_ = found["temperature"]
        self.bias_ = found["bias"].numpy()
        self.lapse_ = found["lapse"]
        self.members_ = found.get("members", ("network",))
        self.pool_weights_ = found.get("pool_weights", np.array([1 / self.temperature_]))
        self.oof_labels_, self.oof_groups_ = samples.codes, samples.groups
        self.oof_proba_ = np.full((len(samples), len(self.classes_)), np.nan)
        rows = np.concatenate([self.train_indices_, self.validation_indices_])
        self.oof_proba_[rows] = found["held_out"][: len(rows)].numpy()
        self.suspicion_ = self._suspicion(samples.inputs, samples.codes)  # for rows that were not trained on
        self.suspicion_[self.train_indices_] = found["suspicion"].double().numpy()
        self.history_ = as_arrays(runs[0 if self.candidate_ == "pooled" else len(runs) // 2])
        self.l2_ = found["l2"].double().numpy()
        noise = found.get("label_noise")
        self.label_noise_ = None if noise is None else float(noise[0])  # the same for every class
