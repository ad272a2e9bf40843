"""``SelfCalibratedClassifier``, the recommended classifier: one setting for all data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.random import RandomState

from calibrant.estimators.base import NetworkClassifier
from calibrant.estimators.folds import Splits, fold_count, named_splits
from calibrant.estimators.selective import SelectiveMixin
from calibrant.methods import Fitted, Method, Samples, SelfCalibrated
from calibrant.methods.blend import MEMBERS


class SelfCalibratedClassifier(SelectiveMixin, NetworkClassifier):
    """The recommended classifier: calibrated confidence without tuning.

    It trains networks, boosted trees and a linear model, each on all but one of K folds of the data. Hypergradients of
    the networks' held-out losses set the strength of the regularisation. The classifier is a log-linear pool of all
    members: their weights, the class biases and a lapse rate are fitted to out-of-fold predictions. Members that do not
    help are dropped. If nothing can be learned, the pool predicts the class frequencies. Every row is used for
    training.

    If validation data are given (``X_val``) and the networks agree with their labels more often than with the training
    labels, a second candidate also learns the rate of wrong training labels. Part of the validation data, which neither
    candidate learned from, chooses between the two.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, or int
        Units of the hidden layers, as in :class:`sklearn.neural_network.MLPClassifier`.
    activation : {"relu", "silu", "tanh"}
        The activation function of the hidden units.
    folds : int
        K; fewer if there are fewer rows or groups. Exact copies of a row, and rows of one group (``groups`` of
        ``fit``), are held out together.
    cv : splitter, iterable, int or None
        Your own folds: a scikit-learn splitter or an iterable of (train, test) rows, used unchanged. Each kind of
        network is trained once per fold, and ``repeats`` is ignored. An int replaces ``folds``.
    repeats : int
        How many times the data are divided into folds; there are ``folds·repeats`` networks.
    epochs : int, optional
        Passes over the data; the label-noise candidate makes three times as many. Default: 400 steps for the full
        batch, and 800 steps or 40 epochs, whichever is more, for mini-batches (400 steps or 40 epochs for more than 100
        classes, more than 256 columns, fewer than 50 rows outside the largest class, or ``embedding=None``); 1,200
        steps or 40 epochs for the label-noise candidate. Training ends with a complete outer step: the number of inner
        steps (passes, for the full batch) is rounded up to a multiple of ``steps``.
    learning_rate : float
        The learning rate of Adam for the network parameters (inner level).
    steps : int
        The number of inner steps per outer step.
    last : int
        How many of these steps the hypergradient is computed through; for large tables of wide rows and for more than
        100 classes, at most 2.
    outer_learning_rate : float
        The learning rate of Adam for the logarithms of the regularisation strengths (outer level).
    batch_size : int, optional
        Default: the full batch up to 512 rows, else 256. With ``embedding=None``: the full batch up to 4,096 rows, else
        512.
    embedding : {"piecewise", "linear"} or None
        How the networks of every second repeat embed the columns. The networks of the other repeats are plain
        perceptrons, and held-out labels set the weight of each kind. "piecewise" adds piecewise linear functions of
        each column to the first layer, and "linear" adds nothing; with at least 20 rows per column, both learn an L2
        factor for each column. With None, all networks are plain, with one L2 strength per layer.
    choose : float
        The share of the validation part that is kept for choosing between candidates.
    members : sequence of {"network", "trees", "linear"}
        The kinds of classifiers in the pool: cross-fitted networks (required), gradient boosting
        (:class:`sklearn.ensemble.HistGradientBoostingClassifier`, for up to 100 classes), and logistic regression.
        ``("network",)`` uses no pool: it is the mean of the networks with a temperature, class biases and a lapse rate.
    refit : bool
        False trains one network without cross-fitting on the rows that are not held out. The held-out rows, which are
        ``X_val`` or ``validation_fraction`` of the rows, set the regularisation, temperature, biases and lapse rate.
        There is no search for label noise; ``folds``, ``repeats`` and ``choose`` are ignored.
    decay : bool
        Decrease the inner learning rate along a cosine.
    validation_fraction : float
        The share of rows to hold out for ``refit=False`` without ``X_val``.
    class_weight : dict, "balanced" or None
        Weights of the classes, as in scikit-learn; they multiply ``sample_weight``. The probabilities are then those of
        the weighted population, not of the data. Keep None unless you want this.
    text_columns : names of columns, or one name
        Columns of free text, in addition to those that :class:`calibrant.data.TableEncoder` recognises.
    random_state : int, RandomState instance or None
        Seed of the folds, the networks' initial parameters and the order of mini-batches.
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
        The projection of sparse columns for networks and trees; None if no column is sparse.
    candidate_ : str
        The chosen candidate: ``"pooled"``, or ``"label noise"`` if training labels were found to be flipped.
    members_ : tuple of str
        The members that the pool kept.
    pool_weights_ : (len(members_),) array
        Their weights w in ``p(x) = (1 − λ)·softmax(Σ_m w_m·log p_m(x) + b) + λ/C``. The networks' ``p_m`` is the
        softmax of their mean logits.
    temperature_ : float
        ``1/Σ_m w_m``; infinite if the classifier predicts only the class frequencies.
    bias_ : (n_classes,) array
        The class biases b.
    oof_proba_ : (n_samples, n_classes) array
        Out-of-fold probabilities of the training rows. Each member's part comes from models that were not trained on
        the row; the few parameters of the pool were fitted to all rows. NaN for rows that no fold held out: rows of
        weight zero, rows outside the folds of ``cv``, and the training rows of the label-noise candidate or of
        ``refit=False``.
    lapse_ : float
        λ: the share of labels that look wrong even for clear inputs. Confidence is at most ``1 − λ + λ/C``.
    l2_ : array
        The learned L2 strengths, one per weight matrix; those of the networks that embed columns, if there are any.
    label_noise_ : float or None
        The share of training labels that look wrong, if the candidate models label noise: the maximum-likelihood rate
        given the classifier, which was trained on these labels as possibly wrong.
    suspicion_ : (n_samples,) array
        How wrong each label looks, from 0 to 1, judged by models that were not trained on the row if there are any.
        The label-noise candidate gives the probability that the label is wrong. The pooled candidate gives
        ``1 − p(y_i | x_i)``, the probability of another class, which is also high for correct labels where classes
        overlap.
    learned_ : bool
        Whether the log-loss of held-out rows is below that of the class frequencies by more than chance (95 %
        interval). If it is not, :meth:`suspects` lists nothing.
    oof_labels_, oof_groups_ : (n_samples,) arrays
        The column number of each training row's class, and the number of its group (None without groups).
    train_indices_, validation_indices_ : arrays of int
        The training rows and the held-out rows of X.
    history_ : dict of (outer steps,) arrays
        ``inner_loss``, ``outer_loss`` and ``gradient_norm`` (of the hypergradient): means over the networks of the
        chosen candidate, those that embed the columns if there are two kinds.

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

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int = SelfCalibrated.hidden,
        *,
        activation: Literal["relu", "silu", "tanh"] = SelfCalibrated.activation,
        folds: int = SelfCalibrated.folds,
        cv: Any = None,
        repeats: int = SelfCalibrated.repeats,
        epochs: int | None = SelfCalibrated.epochs,
        learning_rate: float = SelfCalibrated.learning_rate,
        steps: int = SelfCalibrated.steps,
        last: int = SelfCalibrated.last,
        outer_learning_rate: float = SelfCalibrated.outer_learning_rate,
        batch_size: int | None = SelfCalibrated.batch_size,
        embedding: Literal["piecewise", "linear"] | None = SelfCalibrated.embedding,
        choose: float = SelfCalibrated.choose,
        members: Sequence[str] = MEMBERS,
        refit: bool = SelfCalibrated.refit,
        decay: bool = SelfCalibrated.decay,
        validation_fraction: float = 0.25,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        text_columns: Sequence[Any] | str = (),
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
        self.outer_learning_rate = outer_learning_rate
        self.batch_size = batch_size
        self.embedding = embedding
        self.choose = choose
        self.members = members
        self.refit = refit
        self.decay = decay
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.text_columns = text_columns
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _holds_out(self) -> bool:
        return not self.refit

    def _base(self) -> SelfCalibrated:
        return SelfCalibrated()

    def _method(self) -> Method:
        method = super()._method()
        assert isinstance(method, SelfCalibrated)
        return replace(method, folds=fold_count(self.cv)) if isinstance(self.cv, Integral) else method

    def _named_splits(self, X: np.ndarray, y: np.ndarray, groups: Any, rows: np.ndarray) -> Splits | None:
        if self.cv is None or isinstance(self.cv, Integral):
            return None
        if not self.refit:
            raise ValueError("cv cannot be combined with refit=False, which uses no folds; omit one of them.")
        place = np.full(len(y), -1)
        place[rows] = np.arange(len(rows))
        return tuple(
            (place[train], place[held]) for train, held in named_splits(self.cv, X, y, groups, used=place >= 0)
        )

    def _keep(self, fitted: Fitted, samples: Samples) -> None:
        extras: dict[str, Any] = fitted.extras
        self.candidate_ = extras["candidate"]
        self.temperature_ = extras["temperature"]
        self.bias_ = extras["bias"].numpy()
        self.lapse_ = extras["lapse"]
        self.members_ = extras.get("members", ("network",))
        self.pool_weights_ = extras.get("pool_weights", np.array([1 / self.temperature_]))
        self.oof_labels_ = samples.labels.numpy()
        self.oof_groups_ = None if samples.groups is None else samples.groups.numpy()
        self.oof_proba_ = np.full((len(samples), len(self.classes_)), np.nan)
        rows = np.concatenate([self.train_indices_, self.validation_indices_])
        self.oof_proba_[rows] = extras["held_out"][: len(rows)].numpy()
        self.suspicion_ = np.empty(len(samples))
        self.suspicion_[self.train_indices_] = extras["suspicion"].double().numpy()
        other = np.setdiff1d(np.arange(len(samples)), self.train_indices_)
        if len(other):
            self.suspicion_[other] = self._suspicion(samples[other])
        self.l2_ = extras["l2"].double().numpy()
        noise = extras.get("label_noise")
        self.label_noise_ = None if noise is None else float(noise[0])  # the same for every class
