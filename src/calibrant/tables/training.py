"""Training on a table: a calibrated classifier, its scores on held-out rows, and a report; see `calibrant train`.

A run can be killed at any moment. All files are written to a hidden folder and moved at the end, `metrics.json` last,
so a folder with that file is complete.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from calibrant.base.atomic_write import usable_folder
from calibrant.base.locks import try_lock
from calibrant.base.settings import check_number
from calibrant.base.words import count, listed
from calibrant.bilevel import NonFiniteError
from calibrant.data.columns.column_format import formats_to_json
from calibrant.report.template import need_jinja
from calibrant.tables.describe import TableDescription, describe
from calibrant.tables.methods import choose_rule, find_method
from calibrant.tables.model import TableModel, load_model, save_model
from calibrant.tables.order import Order
from calibrant.tables.read import Labelled, read
from calibrant.tables.results import MODEL, TrainingResult, judge, publish
from calibrant.tables.split import TableParts, split

WORK = ".unfinished"

Tell = Callable[[str], None]


def train(order: Order, tell: Tell = lambda line: None, *, show_progress: bool = False) -> TrainingResult:
    """Train on a table and write model, metrics, predictions, suspects and report into ``order.out``.

    Parameters
    ----------
    order : Order
        The table, its target and all options.
    tell : callable
        Called with each message for the user, such as ``print``. By default, messages are not shown.
    show_progress : bool
        Show the time left on standard error.

    Returns
    -------
    TrainingResult

    Raises
    ------
    ValueError
        If the order or the table is not valid; the message says what to do.
    """
    if not isinstance(order, Order):
        raise TypeError(f"order must be an Order; got {order!r}. Pass Order(table, target, out).")
    find_method(order.method)
    if not 0 < check_number("risk", order.risk) < 1:
        raise ValueError(f"--risk must be a share of errors between 0 and 1, such as 0.05; got {order.risk:g}.")
    need_jinja()
    new = not Path(order.out).exists()
    folder = usable_folder(order.out)
    try:
        with try_lock(folder / ".train.lock") as locked:
            if not locked:
                raise ValueError(
                    f"Another `calibrant train` is writing to {folder}. Wait until it ends, or choose another --out."
                )
            work = folder / WORK
            shutil.rmtree(work, ignore_errors=True)  # a killed run may have left it
            work.mkdir()
            try:
                return _train(order, work, tell, show_progress)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except (ValueError, OSError, ImportError):
        if new:
            with suppress(OSError):  # a folder with files stays
                folder.rmdir()
        raise


def _train(order: Order, work: Path, tell: Tell, show_progress: bool) -> TrainingResult:
    table = read(order)
    parts = split(table, order)
    described = describe(parts, order)
    for line in _opening(table, parts, described):
        tell(line)
    save_model(_fit(order, parts, described, show_progress), work / MODEL)
    model = load_model(work / MODEL)  # what is judged is what is stored
    for note in model.about["notes"]:
        tell(f"Note: {note}")
    result = judge(order, model, parts, described)
    publish(order, result, parts, described, work)
    return result


def _opening(table: Labelled, parts: TableParts, described: TableDescription) -> Iterator[str]:
    """What is told before training."""
    yield f"{table.file}: {count(len(table), 'row')}, {count(len(table.columns), 'column')}."
    yield from described.sentences()
    if formats := table.declared_formats:
        yield f"Formats: {formats}."
    yield f"Predicts {table.target!r}: {listed([f'{n} ({k:,})' for n, k in table.classes.items()])}."
    yield from (f"Note: {note}" for note in (*parts.notes, *described.notes))
    yield f"Training on {count(len(parts.train), 'row')}: networks first, then any other members and the calibration."


def _fit(order: Order, parts: TableParts, described: TableDescription, show_progress: bool) -> TableModel:
    """Train the members of the pool, pool and calibrate them, and choose the rejection rule."""
    method, train, val, aside = find_method(order.method), parts.train, parts.val, parts.aside
    classifier = method.make(verbose=show_progress, random_state=order.seed, device=order.device, **order.settings)
    validation = {}
    if val is not None:
        validation = {"X_val": described.inputs(val), "y_val": val.labels, "sample_weight_val": val.weights}
    inputs, begin = described.inputs(train), time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            classifier.fit(inputs, train.labels, sample_weight=train.weights, groups=train.groups, **validation)
        except NonFiniteError as error:
            raise ValueError(f"Training failed: {error} Try another --seed or --method.") from error
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
            raise ValueError("Training ran out of memory; use --device cpu, or fewer rows.") from error
    seconds = time.perf_counter() - begin
    classifier.set_params(verbose=False)  # so that the stored model is the same with and without progress
    rule = choose_rule(classifier, order.risk, None if aside is None else (described.inputs(aside), aside.labels))
    about = {
        "target": order.target,
        "file": train.file,
        "method": order.method,
        "kinds": described.kinds,
        "dates": described.dates,
        "formats": formats_to_json(train.formats),
        "encoding": order.encoding,
        "notes": list(dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))),
        "seconds": seconds,
    }
    return TableModel(classifier, rule, about)
