"""From a table to a calibrated classifier, its scores on held-out rows, and a report: the work of `calibrant train`.

A run may be killed at any moment. Everything is written whole into a hidden folder and moved to its place at the end,
`metrics.json` last, so that a folder with that file is complete. A rerun of the same command goes on from the trained
model where there is one, and ends with the same result.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from calibrant._locks import try_lock
from calibrant._whole import usable_folder
from calibrant._words import count, duration, listed
from calibrant.bilevel import NonFiniteError
from calibrant.report.builder import need_jinja
from calibrant.tables.describing import Description, describe
from calibrant.tables.estimate import estimate, slowness
from calibrant.tables.methods import choose_rule, find_method
from calibrant.tables.model import TableModel, load_model, save_model
from calibrant.tables.order import Order
from calibrant.tables.parts import Parts, divide, set_apart
from calibrant.tables.progress import FitProgress
from calibrant.tables.reading import Labelled, need_column, read_labelled
from calibrant.tables.results import MODEL, Trained, judged, publish

WORK = ".unfinished"
FROM_TRAIN, FROM_VAL = 0.2, 1 / 3
"""The share of training rows, or of validation rows, that choose the rejection rule where none is cross-fitted."""

Tell = Callable[[str], None]


def train(order: Order, tell: Tell = lambda line: None, *, show_progress: bool = False) -> Trained:
    """Train on a table and write model, metrics, predictions, suspects and report into ``order.out``.

    ``tell`` is given what a user should know on the way. Whatever is wrong with the order is a ValueError.
    """
    find_method(order.method)
    if not 0 < order.risk < 1:
        raise ValueError(f"--risk must be a share of errors between 0 and 1, such as 0.05; got {order.risk:g}.")
    need_jinja()
    folder = usable_folder(order.out)
    with try_lock(folder / ".train.lock") as mine:
        if not mine:
            raise ValueError(
                f"Another `calibrant train` is writing to {folder}. Wait until it ends, or choose another --out."
            )
        return _train(order, folder, tell, show_progress)


def _train(order: Order, folder: Path, tell: Tell, show_progress: bool) -> Trained:
    table = read_labelled(order.table, order.target, groups=order.groups, drop=order.drop)
    for name in order.categorical:
        need_column(table.columns, name, table.file)
    parts = divide(table, val=order.val, test=order.test, seed=order.seed)
    described = describe(parts.train, list(order.categorical))
    tell(f"{table.file}: {count(len(table), 'row')}, {count(len(table.columns), 'column')}.")
    for sentence in described.sentences():
        tell(sentence)
    tell(f"Predicts {table.target!r}: {listed([f'{n} ({k:,})' for n, k in table.classes.items()])}.")
    work, run = folder / WORK, order.run_id()
    model = None if order.fresh else _found(run, work / MODEL, folder / MODEL)
    for note in (*parts.notes, *described.warnings):
        tell(f"Note: {note}")
    if model is None:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        model = _fitted(order, parts, described, run, tell, show_progress)
        save_model(model, work / MODEL)
        model = load_model(work / MODEL)  # what a rerun would go on with
    else:
        tell("The model of this very command is there already and is not trained again (--fresh trains it anew).")
        work.mkdir(exist_ok=True)
        save_model(model, work / MODEL)
    for note in model.about["notes"]:
        tell(f"Note: {note}")
    result = judged(order, model, parts, described)
    publish(order, result, parts, work, folder)
    return replace(result, folder=folder)


def _found(run: str, *places: Path) -> TableModel | None:
    """A whole model of this run, if there is one."""
    for place in places:
        try:
            model = load_model(place)
        except (ValueError, OSError):
            continue
        if model.about.get("run") == run:
            return model
    return None


def _fitted(
    order: Order, parts: Parts, described: Description, run: str, tell: Tell, show_progress: bool
) -> TableModel:
    """Train the classifier and choose its rejection rule."""
    method = find_method(order.method)
    train, val, aside = parts.train, parts.val, None
    if val is not None:
        val, aside = _split(val, FROM_VAL, order.seed)
    elif not method.cross_fitted:
        train, aside = _split(train, FROM_TRAIN, order.seed)
    names, codes = described.used, order.categorical
    inputs = sum(
        int(k.partition("(")[2].rstrip(")") or 1) if k.startswith("cat") else 1 for k in described.kinds.values()
    )
    expected = estimate(
        order.method,
        len(train),
        min(inputs, 64 * len(names)),
        len(train.classes),
        val=val is not None,
        slower=slowness(),
    )
    low, high = expected.range
    tell(f"Training on {count(len(train), 'row')} will take about {duration(low)} to {duration(high)}.")
    classifier = method.make(random_state=order.seed, device=order.device, **order.settings)
    held = {} if val is None else {"X_val": val.frame(names, codes), "y_val": val.labels}
    progress, begin = FitProgress(expected), time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            if show_progress:
                progress.__enter__()
            classifier.fit(train.frame(names, codes), train.labels, groups=train.groups, callbacks=[progress], **held)
        except NonFiniteError as error:
            raise ValueError(f"Training failed: {error} Try another --seed or --method.") from error
        finally:
            if show_progress:
                progress.__exit__()
    seconds = time.perf_counter() - begin
    told = {note.removesuffix(".") for note in described.warnings}
    notes = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    rule = choose_rule(classifier, order.risk, None if aside is None else (aside.frame(names, codes), aside.labels))
    about = {
        "run": run,
        "target": order.target,
        "file": train.file,
        "method": order.method,
        "kinds": described.kinds,
        "notes": [
            note for note in dict.fromkeys(notes) if note.removesuffix(".") not in told and "Column " not in note
        ],
        "seconds": seconds,
    }
    return TableModel(classifier, rule, about)


def _split(part: Labelled, share: float, seed: int) -> tuple[Labelled, Labelled]:
    """Some rows of a part set aside, for the rejection rule."""
    codes = np.unique(part.labels, return_inverse=True)[1]
    groups = None if part.groups is None else np.unique(part.groups, return_inverse=True)[1]
    if len(part) < 4 or (groups is not None and groups.max() < 1):
        raise ValueError(f"{part.file}: {count(len(part), 'row')} are too few to set some aside; give more.")
    own, other = set_apart(codes, share, seed, groups)
    return part.take(own), part.take(other)
