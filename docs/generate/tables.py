"""Sections on wrong labels, on tables and on speed."""

from __future__ import annotations

from benchmarks.harness import markdown
from docs.generate.stored import bullets, stored

from calibrant.experiments.common.summary import pivot
from calibrant.experiments.common.verdicts import Records, datasets, difference
from calibrant.experiments.tables.page import APART, JUDGED, LEVEL, OWN, rankings, to_terminal, untried
from calibrant.experiments.tables.ranks import against
from calibrant.report import Results, excludes_zero, to_markdown

RIVALS = ("standard-stopped", "temperature-stopped", "ensemble", "bo4sc")
NAMED = {"tables-pool": "the pool", "bo4sc-tables": "networks alone"}


def noise_tables() -> str:
    """NLL on clean test samples, one table for each share of flipped labels."""
    results = stored("bo4sc-noise")
    parts = []
    for rate in results.config["rates"]:
        table = pivot([r for r in results.records if r["rate"] == rate], "nll")
        parts += [
            f"{rate:.0%} of the training labels flipped:" if rate else "Clean labels:",
            to_markdown(table.columns, table.rows, exempt=table.exempt),
        ]
    return "\n\n".join(parts)


def noise_sentences() -> list[str]:
    """On how many sets `self-calibrated` is significantly better, rival by rival."""
    results = stored("bo4sc-noise")
    found = []
    for rate in filter(None, results.config["rates"]):
        own = [r for r in results.records if r["rate"] == rate]
        beaten = [f"{_better(own, rival)} (`{rival}`)" for rival in RIVALS]
        found.append(
            f"With {rate:.0%} of the training labels flipped, `self-calibrated` has a significantly lower NLL on "
            f"{', '.join(beaten)} of {len(datasets(own))} sets."
        )
    return found


def _better(records: Records, rival: str) -> int:
    gaps = [difference(records, "nll", name, "self-calibrated", rival) for name in datasets(records)]
    return sum(excludes_zero(gap) == -1 for gap in gaps)


def ranks(name: str) -> str:
    """The table of mean ranks, as ``calibrant bench tables --from`` prints it."""
    return to_terminal(stored(name)).split("\n\n")[0]


def rank_sentences(name: str) -> list[str]:
    """Mean ranks and tests on all tables, and on those that no setting was tried on."""
    results = stored(name)
    found = [_ranked(results.records, results, "On all {n} tables")]
    if others := untried(results.records):
        found.append(_ranked(others, results, "On the {n} tables on which no setting was tried"))
    return found


def _ranked(records: list, results: Results, where: str) -> str:
    measured = {r["method"] for r in results.records}
    methods = [m for m in results.config["methods"] if m in measured and m != APART]
    told = []
    for metric, ranked in rankings(records, methods).items():
        means = ranked.mean_ranks
        rival = min((m for m in means if m != OWN), key=means.__getitem__)
        tests = [p for p in against(ranked, OWN).values() if p is not None]
        told.append(
            f"{means[OWN]:.2f} in {JUDGED[metric]} (best rival: `{rival}`, {means[rival]:.2f}; significantly different "
            f"from {sum(p < LEVEL for p in tests)} of {len(tests)} rivals)"
        )
    number = len({r["table"] for r in records})
    return f"{where.format(n=number)} the mean rank of `{OWN}` is {' and '.join(told)}."


def speed() -> str:
    """The benchmark, as ``python -m benchmarks --markdown`` prints it."""
    return markdown(stored("bench").records)


SECTIONS = {
    "noise-tables": noise_tables,
    "noise-sentences": lambda: bullets(noise_sentences()),
    "tables-pool": lambda: ranks("tables-pool") + "\n\n" + bullets(rank_sentences("tables-pool")),
    "tables-networks": lambda: ranks("bo4sc-tables") + "\n\n" + bullets(rank_sentences("bo4sc-tables")),
    "bench": speed,
}
