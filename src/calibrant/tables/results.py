"""The results of training: scores on held-out rows, and five files that are published together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.base.atomic_write import write_text_whole
from calibrant.base.words import count, duration, listed
from calibrant.data.columns.parquet import need_pandas
from calibrant.data.columns.write import table_writer
from calibrant.report import versions
from calibrant.report.evaluation import Evaluation, evaluate
from calibrant.tables.describe import TableDescription
from calibrant.tables.methods import LEVEL, find_method
from calibrant.tables.model import TableModel
from calibrant.tables.order import Order
from calibrant.tables.read import Labelled
from calibrant.tables.split import TableParts

MODEL, METRICS, REPORT = "model.calibrant", "metrics.json", "report.html"
PREDICTIONS, SUSPECTS = "predictions.csv", "suspects.csv"
UNLIKELY = 0.05
"""A training label with a lower probability counts as very doubtful."""


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run."""

    folder: Path
    """Where the files were written."""
    model: TableModel
    evaluation: Evaluation
    """The scores on the test rows."""
    metrics: dict[str, Any]
    """The content of metrics.json."""
    probs: np.ndarray = field(repr=False)
    """The class probabilities of the test rows."""
    suspects: Any = field(repr=False)
    """The training rows whose labels are doubtful, as in suspects.csv: a data frame."""


def judge(order: Order, model: TableModel, parts: TableParts, described: TableDescription) -> TrainingResult:
    """Score the test rows, and collect the content of `metrics.json`."""
    test, train = parts.test, parts.train
    probs = model.probs(test.columns, test.file)
    evaluation = evaluate(
        probs,
        test.label_names,
        classes=model.classes,
        sample_weight=test.weights,
        rows=test.columns if order.rows else None,
        row_numbers=test.numbers,
        name=order.method,
        seed=order.seed,
    )
    assert model.rule is not None
    predictions, suspect_rows = model.predictions(probs), suspects(model, train, values=order.rows)
    accepted, correct = ~predictions["withheld"], predictions["predicted"] == test.label_names
    metrics = {
        "config": order.config,
        "versions": versions(),
        "data": {
            "file": train.file,
            "target": order.target,
            "classes": train.classes,
            "rows": {name: len(getattr(parts, name) or ()) for name in ("train", "val", "aside", "test")},
            "columns": described.kinds,
            "left_out": described.encoder.dropped_,
            "notes": [*parts.notes, *described.notes, *model.about["notes"]],
        },
        "model": model_facts(model.classifier),
        "rule": {
            "found": model.rule.found,
            "summary": model.rule.summary(),
            "threshold": None if model.rule.window is None else max(0.0, model.rule.window.high),
            "risk": order.risk,
            "level": LEVEL,
            "test_kept": float(accepted.mean()),
            "test_errors_among_kept": float(1 - correct[accepted].mean()) if accepted.any() else None,
        },
        "test": evaluation.to_dict(rows=order.rows)["models"][0],
        "suspects": len(suspect_rows),
        "very_suspect": int((suspect_rows["probability_of_label"] < UNLIKELY).sum()),
        "seconds": {"training": round(model.about["seconds"], 2)},
    }
    return TrainingResult(order.out, model, evaluation, metrics, probs, suspect_rows)


def model_facts(classifier: Any) -> dict[str, Any]:
    """Return facts about a fitted classifier as plain values."""
    facts: dict[str, Any] = {"classifier": type(classifier).__name__, "learned": classifier.learned_}
    if hasattr(classifier, "members_"):
        weights = np.asarray(classifier.pool_weights_).tolist()
        facts["members"] = dict(zip(classifier.members_, weights, strict=False))
        facts["candidate"] = classifier.candidate_
        facts["label_noise"] = classifier.label_noise_
    return facts


def suspects(model: TableModel, train: Labelled, *, values: bool) -> Any:
    """Return training rows whose label is less likely than another class, most suspect first, as a data frame.

    With ``values``, it holds the values of these rows too.
    """
    rows, suspicions = model.classifier.suspects(return_scores=True)
    out_of_fold = getattr(model.classifier, "oof_proba_", None)
    if out_of_fold is not None and np.isfinite(out_of_fold[rows]).all():
        probs = np.asarray(out_of_fold[rows])
    else:
        probs = model.probs({name: column[rows] for name, column in train.columns.items()}, train.file)
    classes = np.array(model.classes, dtype=object)
    labels, likely = train.label_names[rows], classes[probs.argmax(axis=1)]
    of_label = (probs * (labels[:, None] == classes)).sum(axis=1)
    entries = {"row": train.numbers[rows], "label": labels, "likely": likely, "suspicion": suspicions}
    entries["probability_of_label"] = of_label
    copied = {f"{name} (table)" if name in entries else name: column[rows] for name, column in train.columns.items()}
    frame = need_pandas().DataFrame(entries | copied if values else entries)
    return frame[labels != likely].reset_index(drop=True)


def publish(order: Order, result: TrainingResult, parts: TableParts, described: TableDescription, work: Path) -> None:
    """Write all files to the hidden folder, then move them; `metrics.json` is removed first and moved last."""
    model, metrics, test = result.model, result.metrics, parts.test
    with table_writer(work / PREDICTIONS) as write:
        write({"row": test.numbers, "label": test.label_names} | model.predictions(result.probs))
    with table_writer(work / SUSPECTS) as write:
        write(dict(result.suspects))
    title = f"{order.target} in {parts.train.file}"
    result.evaluation.to_html(work / REPORT, title=title, card=card(order, result, parts, described), rule=model.rule)
    write_text_whole(work / METRICS, json.dumps(metrics, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
    (order.out / METRICS).unlink(missing_ok=True)
    for name in (MODEL, PREDICTIONS, SUSPECTS, REPORT, METRICS):
        (work / name).replace(order.out / name)


def card(order: Order, result: TrainingResult, parts: TableParts, described: TableDescription) -> dict[str, str]:
    """Return the model and data card of the report."""
    data, model = result.metrics["data"], result.metrics["model"]
    rows = data["rows"]
    members = ", ".join(f"{name} (weight {weight:.2f})" for name, weight in model.get("members", {}).items())
    facts = {
        "table": data["file"],
        "predicts": f"{order.target}: {listed([f'{name} ({number:,})' for name, number in data['classes'].items()])}",
        "trained on": f"{rows['train']:,} rows"
        + (f", {rows['val']:,} for validation" if rows["val"] else "")
        + (f", {rows['aside']:,} to choose when predictions are withheld" if rows["aside"] else ""),
        "judged on": f"{rows['test']:,} held-out rows"
        + (f" of {parts.test.file}" if not isinstance(order.test, float) else "")
        + (f", the newest by {order.time!r}" if order.time is not None else "")
        + (f", weighted by {order.weight!r}" if order.weight is not None else ""),
        "columns": " ".join(described.sentences()),
        "method": f"{order.method}: {find_method(order.method).summary}",
        "members": members,
        "rejection rule": result.metrics["rule"]["summary"],
        "doubtful labels": doubtful(result.metrics),
        "notes": " ".join(data["notes"]),
        "training": f"{duration(result.metrics['seconds']['training'])}, seed {order.seed}",
    }
    return {name: fact for name, fact in facts.items() if fact}


def doubtful(metrics: dict[str, Any]) -> str:
    """Say how many training labels are less likely than another class; empty if there are none.

    If nothing was learned, say so.
    """
    if not metrics["model"].get("learned", True):
        return (
            "Nothing was learned: on held-out training rows, the probabilities are no better than the shares of the "
            f"classes (95 % interval of the log-loss). {SUSPECTS} is therefore empty."
        )
    if not metrics["suspects"]:
        return ""
    rows, sure = count(metrics["suspects"], "training row"), f"{metrics['very_suspect']:,}"
    return (
        f"{SUSPECTS} lists {rows} for which another class is more likely than the label; in {sure} of them the label "
        f"has a probability below {UNLIKELY:.0%}. Where classes overlap, correct labels are among them."
    )
