"""The readings of the second paper beside its printed numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.generate.stored import bullets, stored, with_digits, words
from studies.common.verdicts import mean
from studies.meta_reg.paper import printed
from studies.meta_reg.readings import READINGS
from studies.report import to_markdown

DATASET = "cifar10"
PRINTED = {"flg-sece": 1, "flg-dece": 1, "flg": 2, "ce-dece": 1, "ce-sece": 1, "ce": 1, "focal": 1}
"""Rows of the paper that have a reading, with the table that prints them."""
FAR = 0.05
"""A reading whose error is this far above the printed one has not learned to classify as the paper's network has."""
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
    told = [*_nearest(records, epochs), *_terms(records)]
    if "ce-code" in records and "focal-code" in records:
        ours = mean([r for r in stored("meta-reg-350").records if r["method"] == "ce"], "ece", DATASET, "ce").value
        told.append(
            "Summed and clipped losses on 45,000 images give calibration errors near the paper's: `ce-code` has "
            f"{_scores(records['ce-code'])}, `focal-code` {_scores(records['focal-code'])}; the paper prints an ECE of "
            f"{in_percent(_said('ce', 'ece'))} and {in_percent(_said('focal', 'ece'))}. With mean losses, our `ce` has "
            f"{in_percent(ours)} after 350 epochs."
        )
    rivals = [n for n, reading in READINGS.items() if n in records and reading.outer and not reading.outer_rate]
    if rivals:
        scores = words([f"`{name}` has {_scores(records[name])}" for name in rivals])
        told.append(f"With the term in the network's own loss and no outer level, {scores}.")
    if missing := [f"`{name}`" for name in READINGS if name not in records]:
        told.append(f"Not run: {words(missing)}.")
    return told


def _nearest(records: Records, epochs: int) -> list[str]:
    """The reading of FLγ-SECE whose error is nearest to the printed one, and those that are far above it."""
    said = _said("flg-sece", "error")
    errors = {n: r["selected"]["error"] for n, r in records.items() if base_of(n) == "flg-sece"}
    learned = {name: error for name, error in errors.items() if error is not None}
    name = min(learned, key=lambda own: abs(learned[own] - said))
    told = (
        f"Of {len(errors)} readings of FLγ-SECE, `{name}` comes nearest to the printed error: {_scores(records[name])} "
        f"after {epochs} epochs, where the paper prints an error of {in_percent(said)} and an ECE of "
        f"{in_percent(_said('flg-sece', 'ece'))} after 350."
    )
    told += f" On the validation part, its mean γ ends at {records[name]['curve']['gamma_mean'][-1]:.2g}."
    validation = {own: min(filter(None, records[own]["curve"]["error"])) for own in learned}
    if min(validation, key=lambda own: validation[own]) == name:
        told += " It also has the lowest validation error of them."
    rival = f"focal-{READINGS[name].form}"
    if rival in records:
        told += f" A fixed γ = 1 in the same form and more training images (`{rival}`) has {_scores(records[rival])}."
    far = [own for own, error in learned.items() if error > said + FAR]
    about = words([f"`{own}` ({in_percent(learned[own], 1)}; {_gamma(records[own])})" for own in far])
    above = f"More than {100 * FAR:.0f} points above the printed error, in spite of the selection by validation error"
    return [told, *([f"{above}: {about}."] if far else [])]


def _terms(records: Records) -> list[str]:
    """Whether SECE has the lowest ECE of the outer losses, form by form, among the networks that have learned."""
    told = []
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
            told.append(f"In the form of the {form}, {methods}: {words(listed)}.")
    return told


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


SECTIONS = {
    "second-paper-readings": table,
    "second-paper-readings-sentences": lambda: bullets(sentences()),
}
