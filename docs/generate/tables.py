"""Sections on wrong labels, on tables and on speed."""

from __future__ import annotations

from benchmarks.harness import markdown
from docs.generate.stored import bullets, stored, words

from calibrant.experiments.common.summary import pivot
from calibrant.experiments.common.verdicts import Records, datasets, difference
from calibrant.experiments.tables.data import DEVELOPMENT
from calibrant.experiments.tables.ranks import Ranking, against, ranking
from calibrant.report import Column, excludes_zero, to_markdown
from calibrant.report.results import Record

RIVALS = ("standard-stopped", "temperature-stopped", "ensemble", "bo4sc")
JUDGED = {"nll": "NLL", "smooth_ece": "smooth ECE"}
OWN = "self-calibrated"
LEVEL = 0.05


def noise_tables() -> str:
    """NLL on clean test samples, one table for each share of flipped labels."""
    results = stored("bo4sc-noise")
    parts = []
    for rate in results.config["rates"]:
        table = pivot([r for r in results.records if r["rate"] == rate], "nll")
        parts += [
            f"{100 * rate:g} % of the training labels flipped:" if rate else "Clean labels:",
            to_markdown(table.columns, table.rows, exempt=table.exempt),
        ]
    return "\n\n".join(parts)


def noise_sentences() -> list[str]:
    """On how many sets `self-calibrated` is significantly better, rival by rival."""
    results = stored("bo4sc-noise")
    found = []
    for rate in filter(None, results.config["rates"]):
        own = [r for r in results.records if r["rate"] == rate]
        numbers = {f"`{rival}`": _better(own, rival) for rival in RIVALS}
        than = [words([r for r, n in numbers.items() if n == k]) + f" on {k}" for k in sorted(set(numbers.values()))]
        found.append(
            f"With {100 * rate:g} % of the training labels flipped, `self-calibrated` has a significantly lower NLL "
            f"than {', than '.join(than)} of {len(datasets(own))} sets."
        )
    return found


def _better(records: Records, rival: str) -> int:
    gaps = [difference(records, "nll", name, "self-calibrated", rival) for name in datasets(records)]
    return sum(excludes_zero(gap) == -1 for gap in gaps)


def ranked(name: str, records: list[Record] | None = None) -> dict[str, Ranking]:
    """Ranks by each judged metric, among the methods that were measured on every split."""
    results = stored(name)
    splits = {
        m: {(r["table"], r["seed"]) for r in results.records if r["method"] == m} for m in results.config["methods"]
    }
    whole = set.union(*splits.values())
    methods = [m for m, own in splits.items() if own == whole]
    return {metric: ranking(records or results.records, metric, methods) for metric in JUDGED}


def rank_table(name: str) -> str:
    """Mean ranks over tables, and on how many tables a method is first."""
    found = ranked(name)
    columns: list[Column | str] = ["method"]
    for title in JUDGED.values():
        columns += [Column(f"mean rank, {title}", better="low", digits=2), Column(f"first, {title}", better="high")]
    rows = []
    for method in found["nll"].mean_ranks:
        cells = [(each.mean_ranks[method], each.wins(method)) for each in found.values()]
        rows.append([f"`{method}`", *(cell for pair in cells for cell in pair)])
    return to_markdown(columns, rows)


def rank_sentences(name: str) -> list[str]:
    """Mean ranks and tests on all tables, and on those that no setting was tried on."""
    records = stored(name).records
    found = [_in_words(ranked(name), "On all {n} tables")]
    if others := [r for r in records if r["table"] not in DEVELOPMENT]:
        found.append(_in_words(ranked(name, others), "On the {n} tables on which no setting was tried"))
    return found


def _in_words(found: dict[str, Ranking], where: str) -> str:
    told = []
    for metric, each in found.items():
        means = each.mean_ranks
        rival = min((m for m in means if not m.startswith(OWN)), key=means.__getitem__)
        tests = [p for m, p in against(each, OWN).items() if p is not None and not m.startswith(OWN)]
        told.append(
            f"{means[OWN]:.2f} in {JUDGED[metric]} (best rival: `{rival}`, {means[rival]:.2f}; significantly different "
            f"from {sum(p < LEVEL for p in tests)} of {len(tests)} rivals)"
        )
    number = len(found["nll"].tables)
    return f"{where.format(n=number)}, the mean rank of `{OWN}` is {' and '.join(told)}."


def speed() -> str:
    """The benchmark, as ``python -m benchmarks --markdown`` prints it."""
    return markdown(stored("bench").records)


SECTIONS = {
    "noise-tables": noise_tables,
    "noise-sentences": lambda: bullets(noise_sentences()),
    "tables-pool": lambda: rank_table("tables-pool") + "\n\n" + bullets(rank_sentences("tables-pool")),
    "tables-networks": lambda: rank_table("bo4sc-tables") + "\n\n" + bullets(rank_sentences("bo4sc-tables")),
    "bench": speed,
}
