"""The second paper: its readings beside the printed numbers, the confidence map, and one γ beside one per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from calibrant.metrics import Estimate, paired_difference
from docs.generate.stored import bullets, stored, words
from studies.common.verdicts import difference, mean
from studies.meta_reg.data import DATASETS
from studies.meta_reg.groups import times
from studies.meta_reg.paper import printed
from studies.meta_reg.readings import READINGS
from studies.report import to_markdown, with_digits

DATASET = "cifar10"
PRINTED = {"flg-sece": 1, "flg-dece": 1, "flg": 2, "ce-dece": 1, "ce-sece": 1, "ce": 1, "focal": 1}
"""Rows of the paper that have a reading, with the table that prints them."""
FAR = 0.05
"""A reading whose error is this far above the printed one has not learned to classify as the paper's network has."""
MAPS = {"learned": "learned in training", "temperature": "temperature", "auto": "`posthoc.Auto`"}
GAMMAS = ("focal", "focal-control", "flg-sece", "flg-sece-one-step", "gamma-sece")
MEASURED_SETS = ("digits", "cifar10", "cifar100")
Records = Mapping[str, Mapping[str, Any]]


def table() -> str:
    """All readings, each paper's row above them; a reading without a run is shown as not run."""
    records = by_method()
    rows: list[list[object]] = []
    for method, number in PRINTED.items():
        error, nll, ece = (_said(method, metric, number) for metric in ("error", "nll", "ece"))
        rows.append([f"{method}, printed", 100 * error, nll, 100 * ece, *[None] * 4])
        rows += [_row(name, records) for name in READINGS if base_of(name) == method]
    rows += [_row(name, records) for name in READINGS if base_of(name) not in PRINTED]
    columns = [*with_digits(2, "error %"), *with_digits(3, "NLL")]
    columns += with_digits(2, "ECE %", "floor %", "last error %", "last ECE %", "last γ")
    return to_markdown(["reading", *columns], rows)


def base_of(name: str) -> str:
    """The paper's method that a reading reads: "flg-sece" of "flg-sece-code-1e-4"."""
    return name.partition("-code")[0].partition("-text")[0]


def by_method() -> Records:
    """The stored runs by the id of the reading."""
    return {record["method"]: record for record in stored("readings").records}


def _row(name: str, records: Records) -> list[object]:
    if name not in records:
        return [f"`{name}`", "not run", *[None] * 6]
    selected, last = records[name]["selected"], records[name]["last"]
    gamma = records[name]["curve"].get("gamma_mean", [None])[-1]
    scores = [_percent(selected["error"]), selected["nll"], _percent(selected["ece"]), _percent(selected.get("floor"))]
    return [f"`{name}`", *scores, _percent(last["error"]), _percent(last["ece"]), gamma]


def in_percent(value: float, digits: int = 2) -> str:
    """A fraction in per cent: "5.43 %"."""
    return f"{100 * value:.{digits}f} %"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def sentences() -> list[str]:
    """Which reading comes nearest to the paper, and which of its statements the runs do not bear out."""
    records = by_method()
    (epochs,) = {r["epochs"] for r in records.values()}
    sentences = [*_nearest(records, epochs), *_terms(records)]
    if "ce-code" in records and "focal-code" in records:
        ours = mean([r for r in stored("meta-reg-350").records if r["method"] == "ce"], "ece", DATASET, "ce").value
        sentences.append(
            "Summed and clipped losses on 45,000 images give calibration errors near the paper's: `ce-code` has "
            f"{_scores(records['ce-code'])}, `focal-code` {_scores(records['focal-code'])}; the paper prints an ECE of "
            f"{in_percent(_said('ce', 'ece'))} and {in_percent(_said('focal', 'ece'))}. With mean losses, our `ce` has "
            f"{in_percent(ours)} after 350 epochs."
        )
    rivals = [n for n, reading in READINGS.items() if n in records and reading.outer and not reading.outer_rate]
    if rivals:
        scores = words([f"`{name}` has {_scores(records[name])}" for name in rivals])
        sentences.append(f"With the term in the network's own loss and no outer level, {scores}.")
    if missing := [f"`{name}`" for name in READINGS if name not in records]:
        sentences.append(f"Not run: {words(missing)}.")
    return sentences


def _nearest(records: Records, epochs: int) -> list[str]:
    """The reading of FLγ-SECE whose error is nearest to the printed one, and those that are far above it."""
    printed_error = _said("flg-sece", "error")
    errors = {n: r["selected"]["error"] for n, r in records.items() if base_of(n) == "flg-sece"}
    learned = {name: error for name, error in errors.items() if error is not None}
    name = min(learned, key=lambda reading: abs(learned[reading] - printed_error))
    sentence = (
        f"Of {len(errors)} readings of FLγ-SECE, `{name}` comes nearest to the printed error: {_scores(records[name])} "
        f"after {epochs} epochs, where the paper prints an error of {in_percent(printed_error)} and an ECE of "
        f"{in_percent(_said('flg-sece', 'ece'))} after 350."
    )
    sentence += f" On the validation part, its mean γ ends at {records[name]['curve']['gamma_mean'][-1]:.2g}."
    validation = {reading: min(filter(None, records[reading]["curve"]["error"])) for reading in learned}
    if min(validation, key=lambda reading: validation[reading]) == name:
        sentence += " It also has the lowest validation error of them."
    rival = f"focal-{READINGS[name].form}"
    if rival in records:
        sentence += (
            f" A fixed γ = 1 in the same form and more training images (`{rival}`) has {_scores(records[rival])}."
        )
    far_above = [reading for reading, error in learned.items() if error > printed_error + FAR]
    about = words(
        [f"`{reading}` ({in_percent(learned[reading], 1)}; {_gamma(records[reading])})" for reading in far_above]
    )
    above = f"More than {100 * FAR:.0f} points above the printed error, in spite of the selection by validation error"
    return [sentence, *([f"{above}: {about}."] if far_above else [])]


def _terms(records: Records) -> list[str]:
    """Whether SECE has the lowest ECE of the outer losses, form by form, among the networks that have learned."""
    sentences = []
    limit = _said("flg-sece", "error") + FAR
    for form in ("code", "text"):
        names = [f"{method}-{form}" for method in ("flg-sece", "flg-dece", "flg", "ce-sece", "ce-dece")]
        states = {name: records[name]["selected"] for name in names if name in records}
        eces = {
            n: state["ece"] for n, state in states.items() if state["error"] is not None and state["error"] <= limit
        }
        if len(eces) > 1 and names[0] in eces:
            listed = [f"`{name}` {in_percent(eces[name])}" for name in sorted(eces, key=lambda name: eces[name])]
            has = "has" if min(eces, key=lambda name: eces[name]) == names[0] else "does not have"
            methods = f"`{names[0]}` {has} the lowest ECE of the bilevel methods"
            sentences.append(f"In the form of the {form}, {methods}: {words(listed)}.")
    return sentences


def _scores(record: Mapping[str, Any]) -> str:
    error, ece = (record["selected"][name] for name in ("error", "ece"))
    return "diverged" if error is None else f"an error of {in_percent(error)} and an ECE of {in_percent(ece)}"


def _said(method: str, metric: str, table: int = 1) -> float:
    cell = printed(DATASET, method, metric, table=table)
    assert cell is not None
    return cell.mean


def _gamma(record: Mapping[str, Any]) -> str:
    values = [value for value in record["curve"]["gamma_mean"] if value is not None]
    return f"mean γ up to {max(values):.3g}"


def maps() -> str:
    """NLL and ECE of each map and the paired differences; data sets without runs are shown as not run."""
    rows: list[list[object]] = []
    for name in (*MEASURED_SETS, "tiny-imagenet"):
        runs = [record for record in stored("learned-map").records if record["dataset"] == name]
        if not runs:
            rows.append([DATASETS[name].title, "not run", *[None] * 6])
            continue
        for which, description in MAPS.items():
            nll, ece, floor = (sum(run[which][m] for run in runs) / len(runs) for m in ("nll", "ece", "floor"))
            differences = [None, None]
            if which != "learned":
                differences = [_gap(runs, which, "nll"), times(_gap(runs, which, "ece"), 100)]
            rows.append([DATASETS[name].title, description, str(len(runs)), nll, 100 * ece, 100 * floor, *differences])
    columns = [*with_digits(4, "NLL"), *with_digits(2, "ECE %", "floor %")]
    gaps = [*with_digits(4, "learned minus this: NLL"), *with_digits(2, "ECE, points")]
    return to_markdown(["data set", "map", "seeds", *columns, *gaps], rows)


def _gap(runs: list[Mapping[str, Any]], which: str, metric: str) -> Estimate:
    return paired_difference(*([run[map_name][metric] for run in runs] for map_name in ("learned", which)))


def gammas() -> str:
    """One γ moved by the hypergradient of `flg-sece`, and one look-ahead step, beside the methods of the study."""
    rows: list[list[object]] = []
    for name in MEASURED_SETS:
        file = "second-paper-digits" if name == "digits" else f"meta-reg-{name}"
        records = [r for r in stored(file).records if not r["failure"]]
        for method in GAMMAS:
            runs = [r for r in records if r["method"] == method]
            title = [DATASETS[name].title, f"`{method}`"]
            if not runs:
                rows.append([*title, "not run", *[None] * 6])
                continue
            nll, ece, floor = (mean(records, metric, name, method) for metric in ("nll", "ece", "floor"))
            gamma, spread = pd.DataFrame(runs)[["gamma_mean", "gamma_std"]].astype(float).mean()
            gap = None if method == "flg-sece" else difference(records, "nll", name, method, "flg-sece")
            rows.append([*title, str(len(runs)), nll.value, 100 * ece.value, 100 * floor.value, gamma, spread, gap])
    columns = [*with_digits(3, "NLL"), *with_digits(2, "ECE %", "floor %", "γ", "γ std")]
    return to_markdown(["data set", "method", "seeds", *columns, *with_digits(4, "NLL minus flg-sece's")], rows)


SECTIONS = {
    "second-paper-readings": table,
    "second-paper-readings-sentences": lambda: bullets(sentences()),
    "learned-map": maps,
    "one-gamma": gammas,
}
