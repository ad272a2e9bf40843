"""The results in README.md and docs/results.md: small tables from the stored results, each with a few sentences."""

from __future__ import annotations

import numpy as np

from calibrant.metrics import mean_interval
from docs.generate import alternatives, first_paper, images, tables
from docs.generate.stored import paragraph, signs, stored, words
from studies.bo4sc.page import MATCHED
from studies.common.synthetic import POOLED
from studies.common.verdicts import POSTERIOR, Records, datasets, difference, methods, pivot
from studies.label_noise import JUDGED as SETS
from studies.report import by_seed, to_markdown
from studies.tables.peers import CROSSED, OURS, OWN
from studies.tables.ranks import Ranking
from studies.tables.sheets import rank_columns
from studies.tables.targets import interval

BEST = 3
"""A rival is shown if it is among this many best rivals in one of the columns."""
PAPER, NOISE = "bo4sc-more-seeds", "bo4sc-noise-more-seeds"
"""Result files of seeds that were not used in development."""
SHOWN = ("standard", "isotonic", "bo4sc", "standard-stopped", MATCHED, "ensemble", POOLED, POSTERIOR)
"""The rows of the first paper: its three methods, two controls, an ensemble, our default and the exact posterior."""

MEANING = paragraph(
    "± is half of a 95 % interval over seeds (Student's t). A difference is significant if its 95 % interval, paired "
    "by seed, excludes zero."
)


def on_tables() -> str:
    """Mean ranks of our classifiers and of the best rivals, and the sizes that ranks do not show."""
    columns = rank_columns(tables.on_tables(), ", all {n}", ", {n} untried")
    everywhere = next(iter(columns.values()))
    shown = {OWN, CROSSED}.union(*([m for m in each.mean_ranks if m not in OURS][:BEST] for each in columns.values()))
    rows = [
        [f"`{method}`", *(_rank(each, method) for each in columns.values())]
        for method in everywhere.mean_ranks
        if method in shown
    ]
    different = [tables.tests(each) for each in columns.values()]
    ratios = list(alternatives.best_rival_ratios().values())
    return "\n\n".join(
        [
            paragraph(
                "`SelfCalibratedClassifier` with its defaults, compared with boosted trees and networks of other "
                f"libraries, alone and calibrated, on {len(everywhere.tables)} tables:"
            ),
            to_markdown(["mean rank", *columns], rows),
            paragraph(
                f"1 is the best of {len(everywhere.methods)} ranks; brackets are 95 % intervals over tables. NLL is "
                "the log-loss. No setting was tried on the untried tables ([with one "
                f"exception](docs/reproducing.md#twenty-tables)). `{OWN}` is `SelfCalibratedClassifier`, `{CROSSED}` "
                "is `CrossCalibrated` with scikit-learn's boosted trees. Rivals shown: the best "
                f"{BEST} of each column."
            ),
            paragraph(
                f"Column by column, `{OWN}` differs significantly from {words([str(n) for n, _ in different])} of "
                f"{max(n for _, n in different)} rivals. Its NLL is {min(ratios):.2f} to {max(ratios):.2f} times that "
                f"of the best rival of each table, and above it on {sum(r > 1 for r in ratios)} of {len(ratios)} "
                "tables. [All rows and targets](docs/reproducing.md#twenty-tables)."
            ),
        ]
    )


def _rank(each: Ranking, method: str) -> str:
    column = each.ranks[:, each.methods.index(method)]
    low, high = interval(column, np.mean)
    return f"{column.mean():.1f} [{low:.1f}, {high:.1f}]"


def results() -> str:
    """The other studies, for a page in the folder ``docs``: a heading, a table and a few sentences for each."""
    parts = {"Images": images.images, "Wrong labels": noise, "The first paper": paper}
    text = "\n\n".join([MEANING, *(f"## {title}\n\n{part()}" for title, part in parts.items()), speed()])
    return text.replace("](docs/", "](")


def noise() -> str:
    """NLL with wrong training labels, as a mean over the judged sets."""
    content = stored(NOISE)
    rates = content.config["rates"]
    rows, seeds = [], set()
    for method in methods(content.records):
        values = [_over_sets([r for r in content.records if r["rate"] == rate], method) for rate in rates]
        seeds |= {len(own) for own in values}
        rows.append([f"`{method}`", *(mean_interval(own) for own in values)])
    columns = [f"{100 * rate:g} % wrong labels" if rate else "clean labels" for rate in rates]

    def compared(method: str, rival: str, rate: float) -> str:
        own = [r for r in content.records if r["rate"] == rate]
        gaps = {name: difference(own, "nll", name, method, rival) for name in SETS}
        return f"the NLL of `{method}`, compared with `{rival}`, is {signs(gaps)}"

    return "\n\n".join(
        [
            to_markdown(["NLL", *columns], rows),
            paragraph(
                f"Means over {words(list(SETS))} and {words(sorted(map(str, seeds)))} seeds that were not used in "
                "development. Shown: all methods that were run on these seeds. Validation labels are clean. "
                f"`{POOLED}` is the default of `SelfCalibratedClassifier`."
            ),
            paragraph(
                f"With {100 * max(rates):g} % wrong labels, {compared(POOLED, 'bo4sc', max(rates))}.",
                f"With clean labels, {compared('bo4sc', 'standard-stopped', min(rates))}.",
                images.noisy(),
                "[All tables](docs/reproducing.md#wrong-labels).",
            ),
        ]
    )


def _over_sets(records: Records, method: str) -> list[float]:
    """The mean over the sets, for each seed that was run on all of them."""
    each = [by_seed(records, "nll", method=method, dataset=name) for name in SETS]
    return [sum(own[seed] for own in each) / len(each) for seed in each[0] if all(seed in own for own in each)]


def paper() -> str:
    """ECE of the first paper's methods and of controls, and what its weights change."""
    records = stored(PAPER).records
    sets, table = datasets(records), pivot(records, "ece10")
    rows = {row[0]: [row[0] if row[0] == POSTERIOR else f"`{row[0]}`", *row[1:]] for row in table.rows}

    def lower(a: str, b: str) -> str:
        return f"{len(first_paper.lower_on(records, 'ece10', a, b))} of {len(sets)} sets"

    weights = {name: difference(records, "ece10", name, "bo4sc", MATCHED) for name in sets}
    return "\n\n".join(
        [
            to_markdown(["ECE-10", *sets], [rows[name] for name in SHOWN if name in rows]),
            paragraph(
                f"Means over {len({r['seed'] for r in records})} seeds that were not used in development. Shown: the "
                "paper's three methods, two controls, an ensemble, our default, and the exact posterior, whose ECE is "
                "the noise floor."
            ),
            paragraph(
                "The mean ECE of `bo4sc` is below that of `standard` on "
                f"{lower('bo4sc', 'standard')}. We train `standard` long past its best to reach the calibration errors "
                "that the paper prints: stopped in time "
                "(`standard-stopped`), its mean ECE is below that of `bo4sc` on "
                f"{lower('standard-stopped', 'bo4sc')}. Compared with the same training without sample weights "
                f"(`{MATCHED}`), the ECE of `bo4sc` is {signs(weights)}. [All tables and "
                "targets](docs/reproducing.md#the-first-paper)."
            ),
        ]
    )


def speed() -> str:
    """Time of two metrics compared with other libraries."""
    ratios = {r["name"]: r["value"] for r in stored("bench").records}
    ece, smooth = (ratios[f"metrics/{name}"] for name in ("ece time over torchmetrics", "smooth_ece time over relplot"))
    return paragraph(
        f"**Speed.** On ten million predictions `ece` takes {ece:.2g} of the time of torchmetrics, and `smooth_ece` "
        f"{smooth:.2g} of that of relplot. [All measurements](docs/reproducing.md#speed-and-memory)."
    )


SECTIONS = {"readme-tables": on_tables, "results": results}
