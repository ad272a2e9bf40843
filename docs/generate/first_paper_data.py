"""Sections on the first paper: the search for its data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from calibrant.report import format_number
from docs.generate.first_paper import beside_printed
from docs.generate.stored import bullets, signs, stored, words
from studies.bo4sc import same_search as same
from studies.bo4sc.data_search import COMMON_SEEDS, MORE_SPLITS, WIDTHS, printed
from studies.bo4sc.table1 import PAPER
from studies.common.verdicts import datasets
from studies.report import by_seed, to_markdown, with_digits

CELLS = ("accuracy", "ECE")


def fitting() -> str:
    """How many generators fit Standard's cells, in sentences."""
    records = stored("bo4sc-data").records
    blobs = [r for r in records if r["family"] == "blobs" and r["stage"] == "predicted"]
    fits = [r["seed"] for r in blobs if r["fits"]]
    common = [str(seed) for seed in COMMON_SEEDS if seed in fits]
    spirals = [r for r in records if r["family"] == "spirals" and r["stage"] != "confirmed"]
    near = [r for r in spirals if r["stage"] == "trained"]
    return bullets(
        [
            f"Blobs: {len(fits)} of {len(blobs):,} seeds of `make_blobs` fit. Of the seeds that people type most "
            f"({', '.join(map(str, COMMON_SEEDS))}), only {words(common)} do. {_confirmed(records, 'blobs')}",
            f"Spirals: {len(near)} of {len(spirals)} forms have a Bayes accuracy within reach, and "
            f"{sum(r['fits'] for r in near)} of these fit the mean of two samples. {_confirmed(records, 'spirals')}",
        ]
    )


def _confirmed(records: Sequence[dict[str, Any]], family: str) -> str:
    confirmed = [r for r in records if r["family"] == family and r["stage"] == "confirmed"]
    return f"Trained on {MORE_SPLITS} more splits, {sum(r['fits'] for r in confirmed)} of {len(confirmed)} still fit."


def candidates() -> str:
    """Both tables of candidates: those trained again, and the common seeds of blobs that were predicted only."""
    records = stored("bo4sc-data").records
    parts = []
    for family, widths in WIDTHS.items():
        candidates = [r for r in records if r["family"] == family]
        again = sorted((r for r in candidates if r["stage"] == "confirmed"), key=lambda r: r["distance"])
        names = {r["name"] for r in again}
        others = [r for r in candidates if r.get("seed") in COMMON_SEEDS and r["name"] not in names]
        bayes = [f"Bayes accuracy, {width}" for width in widths]
        columns = with_digits(3, *bayes, *(f"{cell}, {width}" for width in widths for cell in CELLS))
        rows: list[list[Any]] = [["printed", "", "", *(None for _ in widths), *printed(family), "", "", ""]]
        rows += [
            [r["name"], r["splits"] or "predicted", r["epochs"], *r["bayes"], *r["cells"]]
            + ["; ".join(format_number(z, 1) for z in r["z"]), f"{r['p']:.2g}", "yes" if r["fits"] else "no"]
            for r in (*again, *others)
        ]
        parts.append(to_markdown(["generator", "splits", "epochs", *columns, "z", "p", "fits"], rows))
    return "\n\n".join(parts)


def test_of_the_sets() -> str:
    """The cells of isotonic regression and BO4SC on the fitted sets that are far from the printed ones."""
    records = stored("bo4sc-fitted").records
    outside, total = [], 0
    for dataset in datasets(records):
        for method in ("isotonic", "bo4sc"):
            for printed_metric, metric in (("ece", "ece10"), ("accuracy", "accuracy")):
                if method == "isotonic" and metric == "accuracy":  # Standard's
                    continue
                total += 1
                values = list(by_seed(records, metric, dataset=dataset, method=method).values())
                z = (PAPER[printed_metric][method][dataset] - statistics.mean(values)) / statistics.stdev(values)
                if abs(z) > 2:
                    outside.append(
                        f"the {CELLS[metric == 'ece10']} of `{method}` on {dataset} (z = {format_number(z, 1)})"
                    )
    return bullets(
        [
            f"{total - len(outside)} of these {total} cells lie within two standard deviations. "
            f"Outside: {words(outside)}."
        ]
    )


def same_search() -> str:
    """The three methods after the same search, and what it changes."""
    records = stored("bo4sc-same-search").records
    chosen = same.choices(records)
    ends = [f"{', '.join(names)} of `{r['method']}` on {r['dataset']}" for r in chosen if (names := same.at_an_end(r))]
    gaps = same.differences(records)
    below = [
        f"{r['dataset']} ({average:.3f}, printed {cell})"
        for r in chosen
        if r["method"] == "standard"
        and (average := statistics.mean(_tested(records, r))) < (cell := PAPER["ece"]["standard"][r["dataset"]])
    ]
    return bullets(
        [
            f"Standard's mean ECE is then below the printed one on {words(below)}. The paper's Standard was therefore "
            "not chosen by this criterion on such data.",
            f"Compared with Standard, paired by seed, the ECE of BO4SC is {signs(gaps['standard'])}. Compared with "
            f"isotonic regression, it is {signs(gaps['isotonic'])}.",
            f"Settings at an end of what was searched: {words(ends)}.",
        ]
    )


def _tested(records: Sequence[dict[str, Any]], chosen: dict[str, Any]) -> list[float]:
    where = {"stage": "test", "dataset": chosen["dataset"], "method": chosen["method"]}
    return [r["ece10"] for r in records if where.items() <= r.items()]


SECTIONS = {
    "first-paper-same-search": same_search,
    "first-paper-same-search-table": lambda: same.table(stored("bo4sc-same-search").records),
    "first-paper-fitted": test_of_the_sets,
    "first-paper-fitted-printed": lambda: beside_printed(stored("bo4sc-fitted").records),
    "first-paper-data-fitting": fitting,
    "first-paper-data": candidates,
}
