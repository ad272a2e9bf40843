"""Training on a table: a calibrated classifier, its scores on held-out rows, and a report; see `calibrant train`.

A run can be killed at any moment. All files are written to a hidden folder and moved at the end, `metrics.json` last,
so a folder with that file is complete. A rerun of the same command continues from the trained model if there is one, or
else from the last checkpoint of its networks, and gives the same result.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from calibrant._locks import try_lock
from calibrant._settings import check_number
from calibrant._whole import usable_folder
from calibrant._words import count, duration, listed
from calibrant.bilevel import NonFiniteError
from calibrant.report.builder import need_jinja
from calibrant.tables.describing import TableDescription, describe
from calibrant.tables.estimate import estimate, slowness
from calibrant.tables.methods import choose_rule, find_method
from calibrant.tables.model import TableModel, load_model, save_model
from calibrant.tables.order import Order
from calibrant.tables.parts import TableParts, divide, with_aside
from calibrant.tables.progress import FitProgress
from calibrant.tables.reading import need_column, read_labelled
from calibrant.tables.results import MODEL, TrainingResult, judged, publish
from calibrant.tables.resuming import fit_resumably, prepared

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
        with try_lock(folder / ".train.lock") as mine:
            if not mine:
                raise ValueError(
                    f"Another `calibrant train` is writing to {folder}. Wait until it ends, or choose another --out."
                )
            return _train(order, folder, tell, show_progress)
    except (ValueError, OSError):
        if new:
            with suppress(OSError):  # a folder with files stays
                folder.rmdir()
        raise


def _train(order: Order, folder: Path, tell: Tell, show_progress: bool) -> TrainingResult:
    table = read_labelled(
        order.table, order.target, groups=order.groups, drop=order.drop, categorical=(*order.categorical, *order.text)
    )
    for name in (*order.categorical, *order.text):
        need_column(table.columns, name, table.file)
    parts = divide(table, val=order.val, test=order.test, seed=order.seed)
    if parts.val is not None or not find_method(order.method).cross_fitted:
        parts = with_aside(parts, order.seed)
    described = describe(parts.train, order.categorical, order.text)
    tell(f"{table.file}: {count(len(table), 'row')}, {count(len(table.columns), 'column')}.")
    for sentence in described.sentences():
        tell(sentence)
    tell(f"Predicts {table.target!r}: {listed([f'{n} ({k:,})' for n, k in table.classes.items()])}.")
    work, run = folder / WORK, order.run_id()
    model = None if order.fresh else _found(run, work / MODEL, folder / MODEL)
    for note in (*parts.notes, *described.warnings):
        tell(f"Note: {note}")
    if model is None:
        checkpoints = prepared(work, run, fresh=order.fresh)
        model = _fitted(order, parts, described, run, checkpoints, tell, show_progress)
        save_model(model, work / MODEL)
        model = load_model(work / MODEL)  # as in a rerun
    else:
        tell("The model of this command already exists and is not trained again; use --fresh to train it again.")
        work.mkdir(exist_ok=True)
        save_model(model, work / MODEL)
    for note in model.about["notes"]:
        tell(f"Note: {note}")
    result = judged(order, model, parts, described)
    publish(order, result, parts, work, folder)
    return replace(result, folder=folder)


def _found(run: str, *places: Path) -> TableModel | None:
    """Return a complete model of this run, if there is one."""
    for place in places:
        try:
            model = load_model(place)
        except (ValueError, OSError):
            continue
        if model.about.get("run") == run:
            return model
    return None


def _fitted(
    order: Order,
    parts: TableParts,
    described: TableDescription,
    run: str,
    checkpoints: Path,
    tell: Tell,
    show_progress: bool,
) -> TableModel:
    """Train the classifier and choose its rejection rule."""
    method = find_method(order.method)
    train, val, aside = parts.train, parts.val, parts.aside
    names, codes = described.used, order.categorical
    expected = estimate(
        order.method, len(train), described.inputs, len(train.classes), val=val is not None, slower=slowness()
    )
    low, high = expected.range
    tell(f"Training on {count(len(train), 'row')} will take about {duration(low)} to {duration(high)}.")
    if any(checkpoints.glob("*.safetensors")):
        tell("An interrupted run of this command is continued; use --fresh to start again.")
    text = [name for name in order.text if name in names]
    classifier = method.make(random_state=order.seed, device=order.device, text_columns=text, **order.settings)
    held = {} if val is None else {"X_val": val.frame(names, codes), "y_val": val.labels}
    progress, begin = FitProgress(expected), time.perf_counter()
    with warnings.catch_warnings(record=True) as caught, progress if show_progress else nullcontext():
        warnings.simplefilter("always", UserWarning)
        try:
            fit_resumably(
                lambda saving: classifier.fit(
                    train.frame(names, codes), train.labels, groups=train.groups, callbacks=[*saving, progress], **held
                ),
                checkpoints,
            )
        except NonFiniteError as error:
            raise ValueError(f"Training failed: {error} Try another --seed or --method.") from error
        except RuntimeError as error:
            if "out of memory" not in str(error).lower():
                raise
            raise ValueError("Training ran out of memory; use --device cpu, or fewer rows.") from error
    seconds = time.perf_counter() - begin
    notes = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))
    rule = choose_rule(classifier, order.risk, None if aside is None else (aside.frame(names, codes), aside.labels))
    about = {
        "run": run,
        "target": order.target,
        "file": train.file,
        "method": order.method,
        "kinds": described.kinds,
        "marks": train.marks.to_json(),
        "notes": [note for note in notes if note not in described.notes],
        "seconds": seconds,
    }
    return TableModel(classifier, rule, about)
