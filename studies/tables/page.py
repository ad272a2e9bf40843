"""The report of `studies bench tables`: targets, ranks over tables, costs, and every table's scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from calibrant.methods import METHODS
from studies.common import words
from studies.common.shared import count, failures, foot
from studies.report import Record, Report, Results, Verdict, to_markdown
from studies.tables.compared import Compared, compared, earlier
from studies.tables.costs import PREDICTED, THREADS, is_cost
from studies.tables.data import DEVELOPMENT
from studies.tables.peers import OWN, PEERS, STORIES
from studies.tables.sheets import Sheet, copy_sheet, cost_sheet, rank_sheet, rival_sheet, score_sheet
from studies.tables.targets import cost_targets, score_targets

OVERLAP = (
    "Splits of one table overlap. The variance of a mean over n splits is therefore (1/n + n_test/n_train)·s² instead "
    "of s²/n (Nadeau & Bengio 2003), where n_train counts the training and validation parts."
)
TIMES = (
    "The seconds are those of one run. Several runs were measured at the same time, and our methods were trained as "
    "populations."
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


def summary(results: Results) -> list[str | Sheet]:
    """Return ranks, best rivals, costs and targets: sentences and tables, for the terminal and for the page."""
    scores, overlap = compared(results), overlap_of(results)
    parts: list[str | Sheet] = [rank_sheet(scores), *_missing_or_old(scores, results.config)]
    if (others := scores.untried()) is not None and OWN in scores.methods:
        tables = list(dict.fromkeys(r["table"] for r in others.records))
        parts.append(
            f"Settings of {OWN} were tried on development splits of some of the tables. Separate columns show the "
            f"ranks on the {len(tables)} tables where no setting was tried: {', '.join(tables)}."
        )
    titled = {
        RIVALS: rival_sheet(scores, overlap),
        COPIED: copy_sheet(scores, overlap),
        SINGLE: cost_sheet(results.records),
    }
    for title, sheet in titled.items():
        parts += [title, sheet] if sheet[1] else []
    old = [r for r in earlier(results.records, results.config.get("made_by", {})) if is_cost(r) and not r["failure"]]
    if tables := [r["table"] for r in old if r["method"] == OWN]:
        parts.append(f"The costs of {OWN} were measured with an earlier version of the code on {', '.join(tables)}.")
    for what, verdicts in targets(results).items():
        rows = [[v.statement, v.shown, v.word, v.note] for v in verdicts if v.holds is not None]
        parts += [([what, "measured", "verdict", "95 % interval, and details"], rows)] if rows else []
    return parts


def to_terminal(results: Results) -> str:
    """Return the summary as Markdown, for a terminal or the documentation."""
    parts = [part if isinstance(part, str) else to_markdown(*part) for part in summary(results)]
    return "\n\n".join([*parts, ""])


def targets(results: Results) -> dict[str, list[Verdict]]:
    """Return the targets on all tables, including costs, and those on tables that no setting was tried on."""
    scores, overlap = compared(results), overlap_of(results)
    if OWN not in scores.methods:
        return {}
    verdicts = {"target": [*score_targets(scores, overlap), *cost_targets(results.records)]}
    if others := scores.untried():
        verdicts["target, tables that no setting was tried on"] = score_targets(others, overlap)
    return verdicts


def make_report(results: Results) -> Report:
    """Return the report: the summary, the effort of each method, and the scores on each table."""
    scores, config = compared(results), results.config
    records, methods = scores.records, [*scores.methods, *scores.partial]
    tables, seeds = list(dict.fromkeys(r["table"] for r in records)), sorted({r["seed"] for r in records})
    report = Report(
        "Calibrated classifiers on tables",
        f"{count(len(methods), 'method')}, {count(len(tables), 'table')}, {count(len(seeds), 'seed')}: each seed "
        f"gives a stratified split ({', '.join(f'{100 * s:g} %' for s in config['split'])}) and initial networks.",
    )
    report.section("Results", _explained(records, config))
    for part in summary(results):
        if isinstance(part, str):
            report.text(part)
        else:
            report.table(*part)
    report.section("Costs", words.UNEQUAL + words.UNEQUAL_PEERS)
    if DEVELOPMENT.intersection(tables):
        report.section("How the defaults were found", words.DEFAULTS)
    _every_table(report, results, methods)
    failures(report, records, "A method that failed on a table is ranked last there.")
    _methods(report, config, methods)
    foot(report, results, hidden=("methods", "tables", "made_by", "costs", "left_out", "notes", "unsuitable"))
    return report


def _every_table(report: Report, results: Results, methods: list[str]) -> None:
    config = results.config
    report.section("Every table", f"Mean over seeds with its 95 % interval (Student's t). {OVERLAP}\n\n{TIMES}")
    if unsuitable := config.get("unsuitable"):
        report.text(" ".join(["Left out:", *(f"{name} ({why})" for name, why in unsuitable.items())]))
    scores = [r for r in results.records if not is_cost(r)]
    for table in dict.fromkeys(r["table"] for r in scores):
        about = config["tables"][table]
        size = (count(about[what], noun) for what, noun in (("rows", "row"), ("columns", "column")))
        with report.details(f"{table}: {', '.join(size)}, {about['classes']} classes"):
            if notes := config.get("notes", {}).get(table):
                report.text(" ".join(notes))
            report.table(*score_sheet(scores, table, methods, overlap_of(results)))


def _methods(report: Report, config: dict[str, Any], methods: list[str]) -> None:
    absent = [f"{name}: {why}." for name, why in config.get("left_out", {}).items()]
    report.section("Methods", " ".join(["Left out:", *absent]) if absent else "")
    stories = {name: entry.summary for name, entry in METHODS.items()} | STORIES | PEERS
    made_by = config.get("made_by", {})
    rows = [[m, stories.get(m), config["methods"][m], made_by.get(m)] for m in methods]
    report.table(["method", "what it is", "settings", "made by"], rows)


def _missing_or_old(scores: Compared, config: dict[str, Any]) -> list[str]:
    """Return sentences about runs that are missing or old."""
    lacking = [f"{method} ({number} splits)" for method, number in scores.partial.items()]
    old = Counter(r["method"] for r in earlier(scores.records, config.get("made_by", {})))
    runs = [f"{method} ({number} of its runs)" for method, number in old.items()]
    sentences = [f"Not ranked, because runs are missing: {', '.join(lacking)}."] if lacking else []
    return sentences + (
        [f"These runs were measured with an earlier version of the code: {', '.join(runs)}."] if runs else []
    )


def overlap_of(results: Results) -> float:
    """Return n_test/n_train of the splits; all rows outside the test part count as training rows."""
    *training, test = results.config["split"]
    return float(test / sum(training))


def _explained(records: Sequence[Record], config: dict[str, Any]) -> str:
    clipped = pd.DataFrame(records).astype({"clipped": float}).fillna({"clipped": 0.0}).groupby("method", sort=False)
    shares = clipped["clipped"].mean()
    changed = [f"{method} ({100 * share:.3f} % of test samples)" for method, share in shares.items() if share > 0]
    return (
        "On each table, methods are ranked by their mean over the seeds that all of them were measured with; ties "
        "share their ranks. Tables without such seeds are left out.\n\nFor the NLL, probabilities below "
        f"{config['nll_floor']:g} are raised to this value, and all are divided by their sum. "
        + (
            f"This changed the probability of a true class for: {', '.join(changed)}."
            if changed
            else "It changed nothing."
        )
    )
