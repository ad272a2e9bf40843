"""`calibrant.evaluate`: judge the predictions of a model in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from calibrant.base.inputs import check_weights
from calibrant.base.labels import class_names, column_names, warn_of_other_order
from calibrant.base.settings import shown
from calibrant.metrics.predictions import check_form
from calibrant.report.evaluation.numbers import Settings, measure_model, paired_differences
from calibrant.report.evaluation.reading import Sample, read_matrix, read_pairs
from calibrant.report.evaluation.result import Evaluation


def evaluate(
    probs: Any = None,
    labels: Any = None,
    *,
    confidence: Any = None,
    correct: Any = None,
    predicted: Any = None,
    from_logits: bool = False,
    classes: Sequence[Any] | None = None,
    groups: Any = None,
    sample_weight: Any = None,
    rows: Any = None,
    row_numbers: Any = None,
    name: str = "model",
    level: float = 0.95,
    bins: int = 15,
    n_resamples: int = 200,
    seed: int = 0,
) -> Evaluation:
    """Judge predictions on data that the model has not seen: is the confidence right, and where is it wrong?

    Parameters
    ----------
    probs : array or tensor of shape (n, C) or (n,), or a dict of these
        Class probabilities; (n,) for the probability of class 1 of two; or a dict from model names to these, to compare
        several models on the same rows. Differences are relative to the first.
    labels : array of shape (n,)
        True classes: columns 0..C-1, or text or other numbers that `classes` names in the order of the columns. Without
        `classes`, the columns of a data frame are matched by their names if these are the labels; otherwise such labels
        are assigned to the columns in sorted order.
    confidence, correct : arrays of shape (n,), or dicts of these
        Predictions in another form: the probability of the predicted class, and whether it was right. Both may be dicts
        for several models.
    predicted : array of shape (n,) or a dict of these, optional
        The column of the class that the model predicts, if that is not always the one with the largest probability:
        some calibrators change the confidence in a class and keep the class. A dict for several models.
    from_logits : bool
        Whether `probs` holds logits.
    classes : sequence, optional
        The classes in the order of the columns, if the labels are text or other numbers. If no class is a number, they
        can also just name the columns 0..C-1.
    groups : array of shape (n,), optional
        A group for each row; calibration is shown for each group.
    sample_weight : array of shape (n,), optional
        Positive weights, such as the number of people that a row represents. Scores, reliability, classes, groups and
        differences are weighted. Risk against coverage and the rejection window of the page count rows: their bounds
        are not known for weighted ones.
    rows : sequence or table of n rows, optional
        Information about each prediction. Only the rows of the most confident mistakes are shown.
    row_numbers : array of shape (n,), optional
        The number of each row in your data, for the list of mistakes; by default 0, 1, 2, …
    name : str
        Name of a single model.
    level : float
        Level of the intervals, noise floors and bounds.
    bins : int
        Number of bins of ECE and MCE.
    n_resamples : int
        Number of draws for noise floors; large samples use fewer.
    seed : int
        Seed of these draws.

    Returns
    -------
    Evaluation
        ``print`` shows the verdict and the numbers, ``to_html(path)`` writes a page, ``to_dict()`` gives plain values,
        and ``plot()`` draws the figures.

    Raises
    ------
    ValueError
        If the predictions or labels are not valid; the message says what is wrong.

    Examples
    --------
    >>> import numpy as np
    >>> import calibrant
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(1000, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> result = calibrant.evaluate(3 * logits, labels, from_logits=True)
    >>> result.verdict.kind
    'over-confident'
    """
    if not isinstance(n_resamples, Integral) or n_resamples < 0:
        raise ValueError(f"n_resamples must be a whole number, 0 or above; got {shown(n_resamples)}.")
    answers = predicted if isinstance(predicted, Mapping) else {} if predicted is None else {name: predicted}
    samples = _read_models(probs, labels, confidence, correct, answers, from_logits, classes, name)
    return judge_samples(samples, groups, sample_weight, rows, row_numbers, Settings(level, bins, n_resamples, seed))


def judge_samples(
    samples: Mapping[str, Sample], groups: Any, sample_weight: Any, rows: Any, row_numbers: Any, settings: Settings
) -> Evaluation:
    """`evaluate` for predictions that have been read; the columns are put into the order of the first model."""
    reference = next(iter(samples.values()))
    n = len(reference)
    if any(len(sample) != n for sample in samples.values()):
        sizes = ", ".join(f"{key} {len(sample)}" for key, sample in samples.items())
        raise ValueError(f"All models must predict the same rows; got different numbers of rows: {sizes}.")
    samples = {key: sample.in_order_of(reference.classes) for key, sample in samples.items()}
    if sample_weight is not None:
        samples = {key: replace(sample, weight=_check_weights(sample_weight, n)) for key, sample in samples.items()}
    grouped = None if groups is None else _check_groups(groups, n)
    row_values, numbers = _check_rows(rows, n), _check_numbers(row_numbers, n)
    models = {key: measure_model(key, sample, grouped, settings) for key, sample in samples.items()}
    (first, reference), *others = samples.items()
    differences = [paired_differences(key, sample, first, reference, settings) for key, sample in others]
    return Evaluation(models, differences, samples, row_values, numbers)


def _read_models(
    probs: Any,
    labels: Any,
    confidence: Any,
    correct: Any,
    predicted: Mapping[str, Any],
    from_logits: bool,
    classes: Any,
    name: str,
) -> dict[str, Sample]:
    pairs = check_form(probs, labels, confidence, correct)
    if pairs:
        models = confidence if isinstance(confidence, Mapping) else {name: confidence}
        hits = correct if isinstance(correct, Mapping) else dict.fromkeys(models, correct)
        if set(models) != set(hits):
            raise ValueError(
                f"confidence= and correct= must name the same models; got {list(models)} and {list(hits)}."
            )
        samples = {str(key): read_pairs(models[key], hits[key]) for key in models}
    else:
        models = probs if isinstance(probs, Mapping) else {name: probs}
        for model in models.values():
            warn_of_other_order(model, labels, "probs and labels")
        columns = [names for model in models.values() if (names := column_names(model)) is not None]
        if any(set(names) != set(columns[0]) for names in columns):
            raise ValueError(f"All models must have the same columns; got {' and '.join(map(str, columns))}.")
        samples = {
            str(key): read_matrix(p, labels, from_logits, classes, predicted.get(key)) for key, p in models.items()
        }
    if unknown := [str(key) for key in predicted if pairs or str(key) not in samples]:
        raise ValueError(f"predicted must name models with probs; got {', '.join(unknown)}.")
    if not samples:
        raise ValueError("probs must hold at least one model; got an empty dict.")
    return samples


def _check_weights(sample_weight: Any, n: int) -> np.ndarray:
    weights = check_weights(sample_weight, n).cpu().numpy()
    if not weights.all():
        raise ValueError(
            f"sample_weight must be positive; got {int((weights == 0).sum())} rows of weight 0. Leave them out."
        )
    return np.asarray(weights)


def _check_groups(groups: Any, n: int) -> np.ndarray:
    names = class_names(groups, "groups")
    if names.shape != (n,):
        raise ValueError(f"groups must be 1-D with {n} entries, one per prediction; got shape {names.shape}.")
    if names.dtype == object or names.dtype.kind == "f":
        names = np.array(["missing" if v is None or v != v else str(v) for v in names.tolist()])
    return names


def _check_rows(rows: Any, n: int) -> Any:
    """`rows` as a list with one entry per row, or as a table with named columns."""
    if rows is None:
        return None
    if hasattr(rows, "columns") and hasattr(rows, "iloc"):
        rows = {str(name): rows[name].to_numpy() for name in rows.columns}
    if isinstance(rows, Mapping):
        lengths = {len(column) for column in rows.values()}
        if lengths - {n}:
            raise ValueError(f"rows must have {n} rows, one per prediction; got {sorted(lengths)}.")
        return dict(rows)
    if len(rows) != n:
        raise ValueError(f"rows must have {n} entries, one per prediction; got {len(rows)}.")
    return list(rows)


def _check_numbers(numbers: Any, n: int) -> np.ndarray | None:
    """The numbers of the rows as an array; None if they are counted from 0."""
    if numbers is None:
        return None
    array = np.asarray(numbers)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ValueError(f"row_numbers must be {n} whole numbers, one per prediction; got {array.dtype} {array.shape}.")
    return array
