"""The recommended method: few outer variables, learned by cross-fitting, with the same settings for all data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor

from calibrant._settings import check_choice, check_number
from calibrant.bilevel import Callback
from calibrant.methods.adapter import Compile
from calibrant.methods.base import Method
from calibrant.methods.blend import blended, check_members, check_table
from calibrant.methods.calibrated_mean import calibrated_mean
from calibrant.methods.candidates import LabelNoisy, Pooled, cross_fits, preferable
from calibrant.methods.crossfit import FoldTask
from calibrant.methods.dealing import grouped
from calibrant.methods.distinct import for_all_rows, merged
from calibrant.methods.fitted import Fitted
from calibrant.methods.part import batch_size
from calibrant.methods.tabular import ColumnEmbedding, TabularNetwork, bare, pooled_part, tabular_network, wide_axes
from calibrant.methods.task import Task
from calibrant.methods.wrong_labels import labels_differ
from calibrant.models.architectures.mlp import Activation

FULL_BATCH, BATCH = 512, 256
"""A step uses all rows if there are at most ``FULL_BATCH``, and otherwise ``BATCH`` rows."""


@dataclass(frozen=True)
class SelfCalibrated(Method):
    """Cross-fitted networks with regularisation learned from the held-out loss, calibrated on held-out labels.

    The method chooses between two candidates automatically:

    * **pooled**: training and validation parts are pooled; φ is an L2 strength per layer and a factor per column.
    * **label noise**, if there is a validation part *and* its labels agree better with the pooled networks than the
      training labels do: only validation samples are held out, their labels are trusted, and φ includes the rate at
      which training labels were flipped (:class:`calibrant.bilevel.LabelNoise`). It replaces the pooled candidate
      unless its loss is higher by more than one standard error on validation samples that neither outer loss uses.

    In both, each network is trained without one of K folds, and folds are drawn ``repeats`` times. One φ is learned
    from the held-out losses of all networks by hypergradients (:mod:`calibrant.methods.crossfit`). The classifier is
    ``(1 − λ)·softmax(mean_k z_k(x)/T + b) + λ/C``. T, b and λ are fitted to held-out logits: the mean logits of the
    networks that were not trained on a sample (:mod:`calibrant.methods.held_out`). There is no early stopping, and
    nothing needs tuning.

    Parameters
    ----------
    hidden, activation : tuple of int, and str
        Units of the hidden layers, and their activation; smooth activations fit smooth boundaries better.
    folds : int
        K, the number of folds.
    repeats : int
        How often the folds are drawn. With 1, T is fitted to single networks. They need a higher T than their mean, so
        the classifier is under-confident.
    epochs : int, optional
        Passes over the data; three times as many for the label-noise candidate. None: 400 steps with the full batch;
        with mini-batches 800 steps or 40 epochs, whichever is more, or 400 steps or 40 epochs for more than 100
        classes, more than 256 columns, fewer than 50 rows outside the largest class, or ``embedding=None``; for the
        label-noise candidate 1,200 steps or 40 epochs, whichever is more.
    learning_rate, decay : float and bool
        Adam's learning rate for the networks; with ``decay`` it falls to a twentieth along half a cosine.
    steps : int
        Inner steps per outer step.
    last : int
        Number of these steps that the hypergradient differentiates through; all steps if there are fewer. For large
        tables of wide rows and for more than 100 classes, it is at most 2, which saves time.
    outer_learning_rate : float
        Adam's learning rate for the logarithms of the L2 strengths and the log-odds of the noise rate.
    choose : float
        Share of the validation samples that is used only to choose between the candidates.
    members : "auto" or tuple of {"network", "trees", "linear", "forest"}
        Kinds of classifiers in the log-linear pool (:mod:`calibrant.methods.pool`): "network", and optionally "trees"
        (gradient boosting), "linear" (logistic regression) and "forest" (bagged trees), cross-fitted on the networks'
        folds. "auto": all of them, but the forest only for small tables of several classes. With networks alone, there
        is no pool.
    refit : bool
        True uses all labels as described above. False trains one network on the training part, without cross-fitting.
        The validation part, which is then required, is used to learn φ and to fit T, b and λ. There are no folds and no
        search for label noise, so ``folds``, ``repeats`` and ``choose`` are not used.
    batch_size : int, optional
        Rows per step. None: all rows if there are at most 512, else 256; with ``embedding=None`` all rows if there are
        at most 4,096, else 512.
    embedding : {"piecewise", "periodic", "linear"} or None
        In the first, third, … repeat, the networks embed the columns of a table in this way
        (:mod:`calibrant.models.architectures.mlp`; "linear" does not embed) and learn an L2 factor for each column, if
        there are at least 20 rows per column. The other networks are plain perceptrons. The share of each kind in the
        mean is chosen by held-out loss. None: all networks are plain, with an L2 strength per layer. A model given with
        the task is not embedded.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "silu"
    folds: int = 5
    repeats: int = 2
    epochs: int | None = None
    learning_rate: float = 0.02
    steps: int = 10
    last: int = 5
    outer_learning_rate: float = 0.2
    choose: float = 1 / 3
    members: tuple[str, ...] | Literal["auto"] = ("network",)
    refit: bool = True
    decay: bool = True
    batch_size: int | None = None
    embedding: ColumnEmbedding | None = "piecewise"

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        for name in ("repeats", "steps", "last"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not 0 < check_number("choose", self.choose) < 1:
            raise ValueError(f"choose must lie strictly between 0 and 1; got {self.choose}.")
        check_choice("embedding", self.embedding, (*get_args(ColumnEmbedding), None))
        check_members(self.members)

    @property
    def networks(self) -> int:
        """The number of networks that one fit trains."""
        return self.folds * self.repeats if self.refit else 1

    def rows_at_once(self, task: Task) -> int:
        pooled = len(task.train) + (len(task.val) if task.val is not None else 0)
        return min(self.last, self.steps) * self.networks * (self.rows_of_step(pooled) or pooled)

    def rows_of_step(self, rows: int) -> int | None:
        """The number of rows per step; None: all rows."""
        if self.batch_size is None and self.embedding is not None:
            return None if rows <= FULL_BATCH else BATCH
        return batch_size(rows, self.batch_size)

    @property
    def deals(self) -> int:
        """How often the folds are drawn."""
        return self.repeats if self.refit else 1

    def embeds(self, task: Task) -> bool:
        """Whether some networks embed the columns of a task.

        This needs rows of numbers, at least two rows per column, and a task without a model. With fewer rows, there
        would be almost as many column factors as labels, and they would overfit these labels.
        """
        if self.embedding is None or not bare(task):
            return False
        rows = len(task.train) + (0 if task.val is None else len(task.val))
        columns = task.train.inputs.shape[1] - task.train.projected
        return bool(columns and rows >= 2 * columns)

    def tabular(self, task: Task) -> TabularNetwork | None:
        """The factory of networks that embed a table's columns; None if no network does."""
        if not self.embeds(task):
            return None
        assert self.embedding is not None
        return tabular_network(pooled_part(task), task.n_classes, self.embedding, self.hidden, self.activation)

    def axes(self, task: Task) -> Tensor | None:
        """The axes that wide rows are projected on for the networks; None if the networks use the columns."""
        return None if self.embedding is None or not bare(task) else wide_axes(pooled_part(task).inputs)

    def share_of(self, parts: list[FoldTask], task: Task) -> list[FoldTask]:
        """The tasks for one kind of network. Networks of the first, third, … repeat embed columns, the others do not.

        Folds given as ``splits`` are one repeat, and both kinds have networks for all of them.
        """
        if task.splits is not None or not (isinstance(task.model, TabularNetwork) or self.embeds(task)):
            return parts
        size, odd = len(parts) // self.deals, not isinstance(task.model, TabularNetwork)
        return [part for k, part in enumerate(parts) if (k // size) % 2 == odd]

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[SelfCalibrated],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        tasks = [grouped(task.read()) for task in tasks]
        if len(tasks) == 1 and methods[0].refit:
            task, positions = merged(tasks[0])
            if positions is not None:
                return [for_all_rows(cls.fit_group(methods, [task], callbacks, compile)[0], positions)]
        for method, task in zip(methods, tasks, strict=True):
            check_table(method.members, task.train)
        pooled = cross_fits([Pooled(m) for m in methods], tasks, callbacks, compile)
        fitted = [calibrated_mean(fit, "pooled", len(task.train)) for fit, task in zip(pooled, tasks, strict=True)]
        refit = methods[0].refit
        chosen = list(pooled)
        noisy = [k for k, fit in enumerate(pooled) if refit and labels_differ(fit, len(tasks[k].train))]
        if noisy:
            rivals = [LabelNoisy(methods[k]) for k in noisy]
            found = cross_fits(rivals, [tasks[k] for k in noisy], callbacks, compile)
            for k, other in zip(noisy, found, strict=True):
                rival = calibrated_mean(other, "label noise", len(tasks[k].train))
                if rival.failure is None and (fitted[k].failure or preferable((other, rival), (pooled[k], fitted[k]))):
                    fitted[k], chosen[k] = rival, other
        if methods[0].members == ("network",):
            return list(fitted)
        triples = zip(methods, fitted, chosen, tasks, strict=True)
        return [blended(m.members, mixture, fit, len(t.train), t.seed) for m, mixture, fit, t in triples]
