"""`calibrant.evaluate`: judge the predictions of a model in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from calibrant.base.inputs import check_weights
from calibrant.base.labels import class_names, warn_of_other_order
from calibrant.base.settings import shown
from calibrant.report.evaluation.mistakes import check_numbers, check_rows
from calibrant.report.evaluation.numbers import measure_model, paired_differences
from calibrant.report.evaluation.reading import Sample, columns_by_name, read_matrix, read_pairs
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
    n = len(next(iter(samples.values())))
    if sample_weight is not None:
        samples = {key: replace(sample, weight=_check_weights(sample_weight, n)) for key, sample in samples.items()}
    grouped = None if groups is None else _check_groups(groups, n)
    row_values = check_rows(rows, n)
    models = {
        key: measure_model(key, sample, grouped, level=level, bins=bins, resamples=n_resamples, seed=seed)
        for key, sample in samples.items()
    }
    (first, reference), *rest = samples.items()
    differences = [paired_differences(key, sample, first, reference, level=level, bins=bins) for key, sample in rest]
    return Evaluation(models, differences, samples, row_values, check_numbers(row_numbers, n))


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
    pairs = confidence is not None or correct is not None
    if pairs == (probs is not None or labels is not None):
        raise ValueError(
            f"Give either probs and labels, or confidence= and correct=; got {'both' if pairs else 'neither'}."
        )
    if pairs:
        if confidence is None or correct is None:
            raise ValueError("confidence= and correct= must be given together; got only one of them.")
        models = confidence if isinstance(confidence, Mapping) else {name: confidence}
        hits = correct if isinstance(correct, Mapping) else dict.fromkeys(models, correct)
        if set(models) != set(hits):
            raise ValueError(
                f"confidence= and correct= must name the same models; got {list(models)} and {list(hits)}."
            )
        samples = {str(key): read_pairs(models[key], hits[key]) for key in models}
    else:
        if probs is None or labels is None:
            raise ValueError("probs and labels must be given together; got only one of them.")
        models = probs if isinstance(probs, Mapping) else {name: probs}
        for model in models.values():
            warn_of_other_order(model, labels, "probs and labels")
        if classes is None:
            models, classes = columns_by_name(models, labels)
        options: dict[str, Any] = {"from_logits": from_logits, "classes": classes}
        samples = {
            str(key): read_matrix(p, labels, **options, predicted=predicted.get(key)) for key, p in models.items()
        }
    if unknown := [str(key) for key in predicted if pairs or str(key) not in samples]:
        raise ValueError(f"predicted must name models with probs; got {', '.join(unknown)}.")
    if not samples:
        raise ValueError("probs must hold at least one model; got an empty dict.")
    if len({len(sample) for sample in samples.values()}) > 1:
        sizes = ", ".join(f"{key} {len(sample)}" for key, sample in samples.items())
        raise ValueError(f"All models must predict the same rows; got different numbers of rows: {sizes}.")
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
