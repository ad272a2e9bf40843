"""The report of `studies bench tables`: targets, ranks over tables, tests, costs, and every table's scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant.methods import METHODS
from calibrant.plots.style import GREY, INK, PALETTE, context
from studies.common import words
from studies.common.shared import count, failures, foot
from studies.report import Column, Record, Report, Results, Verdict, to_markdown
from studies.tables.compared import JUDGED, Compared, compared, earlier, earlier_costs
from studies.tables.costs import PREDICTED, THREADS
from studies.tables.data import DEVELOPMENT
from studies.tables.peers import OWN, PEERS, STORIES
from studies.tables.ranks import Ranking, critical_difference, friedman
from studies.tables.sheets import (
    copy_sheet,
    cost_sheet,
    effort_sheet,
    partial_sheet,
    rank_sheet,
    rival_sheet,
    score_sheet,
    significance_sheet,
)
from studies.tables.targets import cost_targets, score_targets

OVERLAP = (
    "Splits of one table overlap. The variance of a mean over n splits is therefore (1/n + n_test/n_train)·s² instead "
    "of s²/n (Nadeau & Bengio 2003), where n_train counts the training and validation parts."
)
PARTIAL = (
    f"These methods were not measured on every split and are not ranked. They count as rivals of {OWN} on tables where "
    "they were measured on every split. The last column compares all tables on which both were measured, on their "
    "common splits."
)
RIVALS = f"NLL of {OWN} and of the best rival on each table; ratios with 95 % intervals over splits."
COPIED = (
    "Some test rows have an exact copy among the training rows. For tables with many copies, this table shows the "
    f"ratio of the NLL to the best rival's on all test rows, and on test rows without a copy. {OWN} holds out the "
    "copies of a row together, so it is calibrated for rows that it has not seen; the rivals are not."
)
SINGLE = (
    f"One fit on the first split of each table, with {THREADS} threads in one process: seconds, the peak memory in "
    f"megabytes without the data, and seconds to predict {PREDICTED:,} rows."
)


def to_terminal(results: Results) -> str:
    """Return ranks, best rivals, costs and targets as Markdown, for a terminal or the documentation."""
    found, overlap = compared(results), _overlap(results.config["split"])
    parts = [to_markdown(*rank_sheet(found))]
    if found.partial:
        parts += [PARTIAL, to_markdown(*partial_sheet(found))]
    parts += _told(found, results.config)
    if (others := found.untried()) is not None and OWN in found.methods:
        parts.append(_untried(others))
    for title, sheet in (
        (RIVALS, rival_sheet(found, overlap)),
        (COPIED, copy_sheet(found, overlap)),
        (SINGLE, cost_sheet(results.records)),
    ):
        parts += [title, to_markdown(*sheet)] if sheet[1] else []
    parts += _old_costs(results)
    for what, verdicts in targets(results).items():
        rows = [[v.statement, v.shown, v.word, v.note] for v in verdicts if v.holds is not None]
        parts += [to_markdown([what, "measured", "verdict", "95 % interval, and details"], rows)] if rows else []
    return "\n\n".join([*parts, ""])


def targets(results: Results) -> dict[str, list[Verdict]]:
    """Return the targets on all tables, including costs, and those on tables that no setting was tried on."""
    found, overlap = compared(results), _overlap(results.config["split"])
    if OWN not in found.methods:
        return {}
    verdicts = {"target": [*score_targets(found, overlap), *cost_targets(results.records)]}
    if others := found.untried():
        verdicts["target, tables that no setting was tried on"] = score_targets(others, overlap)
    return verdicts


def make_report(results: Results) -> Report:
    """Return the report: targets, ranks, tests, costs, and the scores on each table."""
    found, config = compared(results), results.config
    records, methods = found.records, [*found.methods, *found.partial]
    tables, seeds = list(dict.fromkeys(r["table"] for r in records)), sorted({r["seed"] for r in records})
    overlap = _overlap(config["split"])
    report = Report(
        "Calibrated classifiers on tables",
        f"{count(len(methods), 'method')}, {count(len(tables), 'table')}, {count(len(seeds), 'seed')}: each seed "
        f"gives a stratified split ({', '.join(f'{100 * s:g} %' for s in config['split'])}) and initial networks.",
    )
    for what, verdicts in targets(results).items():
        report.text(f"{what[0].upper()}{what[1:]}:")
        report.verdicts(verdicts)
    _ranks(report, found, config)
    if (sheet := rival_sheet(found, overlap))[1]:
        report.section("Comparison with the best rival", RIVALS)
        report.table(*sheet)
    if (sheet := copy_sheet(found, overlap))[1]:
        report.table(*sheet, COPIED)
    report.section("Costs", words.UNEQUAL + words.UNEQUAL_PEERS)
    if (sheet := cost_sheet(results.records))[1]:
        report.table(*sheet, " ".join([SINGLE, *_old_costs(results)]))
    report.text(
        "The seconds below are means over all tables and seeds of a method. Several runs were measured at the same "
        "time, and our methods were trained as populations."
    )
    report.table(*effort_sheet(records, config, methods))
    if DEVELOPMENT.intersection(tables):
        report.section("How the defaults were found", words.DEFAULTS)
    _every_table(report, records, config, methods)
    failures(report, records, "A method that failed on a table is ranked last there.")
    _methods(report, config, methods)
    foot(report, results, hidden=("methods", "tables", "made_by", "costs", "left_out", "notes", "unsuitable"))
    return report


def _ranks(report: Report, found: Compared, config: dict[str, Any]) -> None:
    ranked, others = found.rankings(), found.untried()
    report.section("Ranks", _explained(found.records, config))
    report.table(*rank_sheet(found), _untried(others) if others is not None and OWN in found.methods else "")
    if found.partial:
        report.table(*partial_sheet(found), PARTIAL)
    for sentence in _told(found, config):
        report.text(sentence)
    for metric, each in ranked.items():
        if each.tables and len(each.methods) > 1:
            report.figure(rank_figure(each), f"Mean ranks in {JUDGED[metric]}; 1 is best.", f"ranks-{metric}")
    if OWN in found.methods and len(found.methods) > 1:
        report.section("Tests", _tests(ranked))
        report.table(*significance_sheet(found))


def _every_table(report: Report, records: list[Record], config: dict[str, Any], methods: list[str]) -> None:
    overlap = _overlap(config["split"])
    report.section("Every table", f"Mean over seeds with its 95 % interval (Student's t). {OVERLAP}")
    if unsuitable := config.get("unsuitable"):
        report.text(" ".join(["Left out:", *(f"{name} ({why})" for name, why in unsuitable.items())]))
    for table in dict.fromkeys(r["table"] for r in records):
        about = config["tables"][table]
        size = (count(about[what], noun) for what, noun in (("rows", "row"), ("columns", "column")))
        with report.details(f"{table}: {', '.join(size)}, {about['classes']} classes"):
            if notes := config.get("notes", {}).get(table):
                report.text(" ".join(notes))
            report.table(*score_sheet(records, table, methods, overlap))


def _methods(report: Report, config: dict[str, Any], methods: list[str]) -> None:
    absent = [f"{name}: {why}." for name, why in config.get("left_out", {}).items()]
    report.section("Methods", " ".join(["Left out:", *absent]) if absent else "")
    stories = {name: entry.summary for name, entry in METHODS.items()} | STORIES | PEERS
    made_by = config.get("made_by", {})
    rows = [[m, stories.get(m), config["methods"][m], made_by.get(m)] for m in methods]
    report.table([Column(name) for name in ("method", "what it is", "settings", "made by")], rows)


def rank_figure(ranked: Ranking) -> Any:
    """Draw each method's mean rank as a dot, its ranks on tables as ticks, and the critical difference as a bar."""
    mean = ranked.mean_ranks
    with context() as plt:
        figure, ax = plt.subplots(figsize=(6.2, 0.8 + 0.26 * len(mean)), layout="constrained")
        for position, (method, rank) in enumerate(mean.items()):
            column = ranked.ranks[:, ranked.methods.index(method)]
            own = method == OWN
            ax.plot(column, np.full(len(column), position), "|", color=GREY, alpha=0.5, markersize=7)
            ax.plot(rank, position, "o", color=PALETTE[1] if own else PALETTE[0], markersize=7 if own else 5.5)
        if len(ranked.tables) > 1:
            best, width = min(mean.values()), critical_difference(len(ranked.tables), len(mean))
            ax.plot([best, best + width], [-1, -1], color=INK, linewidth=2.5, solid_capstyle="butt")
            ax.text(best, -1.25, f"critical difference {width:.2f}", va="bottom", fontsize=8.5)
        ax.set(yticks=range(len(mean)), yticklabels=list(mean), xlabel=f"rank in {JUDGED[ranked.metric]}")
        ax.set(ylim=(len(mean) - 0.4, -2.2), xlim=(0.5, len(mean) + 0.5))
        plt.close(figure)
    return figure


def _told(found: Compared, config: dict[str, Any]) -> list[str]:
    """Return sentences about runs that are missing or old."""
    absent = found.absent()
    old = earlier(found.records, config.get("made_by", {}))
    runs = [f"{method} ({number} of its runs)" for method, number in old.items()]
    told = [f"Not measured: {', '.join(absent)}."] if absent else []
    told += [f"These runs were measured with an earlier version of the code: {', '.join(runs)}."] if runs else []
    return told


def _old_costs(results: Results) -> list[str]:
    """Return a sentence about costs of our method that are old."""
    old = earlier_costs(results.records, OWN, results.config.get("made_by", {}))
    return [f"The costs of {OWN} were measured with an earlier version of the code on {', '.join(old)}."] if old else []


def _untried(others: Compared) -> str:
    tables = list(dict.fromkeys(r["table"] for r in others.records))
    return (
        f"Settings of {OWN} were tried on development splits of some of the tables. Separate columns show the ranks on "
        f"the {len(tables)} tables where no setting was tried: {', '.join(tables)}."
    )


def _overlap(split: Sequence[float]) -> float:
    """Return n_test/n_train of a split; all rows outside the test part count as training rows."""
    return split[-1] / sum(split[:-1])


def _explained(records: list[Record], config: dict[str, Any]) -> str:
    bitten = {r["method"] for r in records if r["clipped"]}
    clipped = [
        f"{m} ({100 * np.mean([r['clipped'] or 0.0 for r in records if r['method'] == m]):.3f} % of test samples)"
        for m in config["methods"]
        if m in bitten
    ]
    return (
        "On each table, methods are ranked by their mean over the seeds that all of them were measured with; ties "
        "share their ranks. Tables without such seeds are left out.\n\nFor the NLL, probabilities below "
        f"{config['nll_floor']:g} are raised to this value, and all are divided by their sum. "
        + (
            f"This changed the probability of a true class for: {', '.join(clipped)}."
            if clipped
            else "It changed nothing."
        )
    )


def _tests(ranked: dict[str, Ranking]) -> str:
    found = [f"{JUDGED[m]} p = {p:.2g}" for m, each in ranked.items() if (p := friedman(each)) is not None]
    alike = f"Friedman's test of the hypothesis that all methods are equal: {', '.join(found)}. " if found else ""
    return (
        f"{alike}Each method is compared with {OWN} by Wilcoxon's signed-rank test over tables, with Holm's correction "
        "for the number of methods. With fewer than six tables, this test cannot be significant."
    )
