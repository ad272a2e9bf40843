"""Sections on the first paper: its choices, its tables, its claims, and the readings of Figure 3."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from calibrant.metrics import Estimate, excludes_zero, mean_interval, paired_difference
from calibrant.report import format_number
from docs.generate.stored import RESULTS, bullets, save_png, stored, words
from studies.bo4sc import figures
from studies.bo4sc.claims import claims, values_of
from studies.bo4sc.figures import WEIGHTS_SET
from studies.bo4sc.page import MATCHED, METRICS_SHOWN
from studies.bo4sc.table1 import PAPER
from studies.bo4sc.targets import OWN, self_calibrated_targets, verdicts
from studies.common.synthetic import POOLED
from studies.common.verdicts import HEADINGS, Records, datasets, difference, mean, methods, pivot, targets_table
from studies.common.words import LEFT_OPEN
from studies.report import by_seed, to_markdown, with_digits

TITLES = {
    "ece10": "Expected calibration error, 10 bins. The last row is the exact posterior's on the same samples:",
    "true_ece": "True calibration error, against the exact posterior on 20,000 further samples:",
    "nll": "Negative log-likelihood:",
    "accuracy": "Accuracy:",
}
SEEN = "On the seeds 0 to 19, which were seen during development"
UNSEEN = "On the hundred further seeds, which were not"
ALSO = "On these hundred seeds"


def choices() -> str:
    """What the paper leaves open, and what was chosen."""
    return to_markdown(["the paper leaves open", "chosen here"], [list(row) for row in LEFT_OPEN])


def all_seeds() -> Records:
    """The records of the seeds seen in development and of the further ones."""
    return [*stored("bo4sc").records, *stored("bo4sc-more-seeds").records]


def beside_printed(records: Records) -> str:
    """Table 1 of the paper beside the mean of these runs, and the distance between the two."""
    rows: list[list[object]] = []
    for dataset in datasets(records):
        for method in PAPER["ece"]:
            cells: list[object] = []
            for printed_metric, metric in (("ece", "ece10"), ("accuracy", "accuracy")):
                values = list(by_seed(records, metric, dataset=dataset, method=method).values())
                printed, average = PAPER[printed_metric][method][dataset], statistics.mean(values)
                cells += [printed, average, (printed - average) / statistics.stdev(values)]
            rows.append([dataset, f"`{method}`", *cells])
    columns = [*with_digits(3, "ECE, printed", "ECE, here"), *with_digits(1, "ECE, z")]
    columns += [*with_digits(3, "accuracy, printed", "accuracy, here"), *with_digits(1, "accuracy, z")]
    return to_markdown(["set", "method", *columns], rows)


def reproduced() -> str:
    """Which printed cells the runs do not reproduce, in sentences."""
    records = all_seeds()
    accuracies = {
        name: (PAPER["accuracy"]["standard"][name], mean(records, "accuracy", name, "standard").value)
        for name in datasets(records)
    }
    below = [f"{name} ({here:.3f}, printed {cell})" for name, (cell, here) in accuracies.items() if here < cell]
    hardest = "spirals-3.5"
    isotonic, standard = (by_seed(records, "ece10", dataset=hardest, method=m) for m in ("isotonic", "standard"))
    worse = sum(isotonic[seed] > standard[seed] for seed in isotonic)
    impossible = by_seed(records, "share_below_chance", dataset=hardest, method="isotonic").values()
    return bullets(
        [
            f"The mean accuracy of Standard is below the printed value on {words(below)}. The paper's "
            "data sets are probably easier than these; the paper does not give enough detail to draw the same ones.",
            f"Isotonic regression on {hardest} is not reproduced. The paper prints an ECE of "
            f"{PAPER['ece']['isotonic'][hardest]}, which is worse than Standard's {PAPER['ece']['standard'][hardest]}. "
            f"Here its mean ECE is {statistics.mean(isotonic.values()):.3f}, and it is worse than Standard in {worse} "
            f"of {len(isotonic)} runs.",
            "The paper's objection to isotonic regression is reproduced: some of its confidences lie below chance in "
            f"{sum(share > 0 for share in impossible)} of {len(impossible)} runs on {hardest}.",
        ]
    )


def draw(folder: Path) -> Iterator[Path]:
    """Figures 1 to 3, drawn from the stored runs of the lowest seed."""
    numbers = figures.read(RESULTS / "bo4sc.json")
    for number, (name, (draw_figure, _)) in enumerate(figures.FIGURES.items(), 1):
        yield save_png(draw_figure(numbers[name]), folder / f"first-paper-{number}")


def main_tables() -> str:
    """One table for each metric, methods down and sets across."""
    return _metric_tables("bo4sc", METRICS_SHOWN)


def unseen_tables() -> str:
    """ECE and NLL on the hundred further seeds."""
    return _metric_tables("bo4sc-more-seeds", ("ece10", "nll"))


def _metric_tables(name: str, metrics: Sequence[str]) -> str:
    parts = []
    for metric in metrics:
        table = pivot(stored(name).records, metric)
        parts += [TITLES.get(metric, HEADINGS[metric][0]), to_markdown(table.columns, table.rows, exempt=table.exempt)]
    return "\n\n".join(parts)


def targets() -> str:
    """Targets on the twenty seeds, and on the hundred further ones."""
    parts = []
    for name, title in (("bo4sc", "Seeds 0 to 19:"), ("bo4sc-more-seeds", "Seeds 1000 to 1099:")):
        parts += [title, targets_table(verdicts(stored(name).records))]
    return "\n\n".join(parts)


def lower_on(records: Records, metric: str, a: str, b: str) -> list[str]:
    """Sets on which method a has the lower mean."""
    return [
        name
        for name in datasets(records)
        if mean(records, metric, name, a).value < mean(records, metric, name, b).value
    ]


def significant(records: Records, metric: str, a: str, b: str, sign: int) -> dict[str, Estimate]:
    """Sets on which the paired difference a − b has this sign and its interval excludes zero."""
    gaps = {name: difference(records, metric, name, a, b) for name in datasets(records)}
    return {name: gap for name, gap in gaps.items() if excludes_zero(gap) == sign}


def sentences() -> list[str]:
    """What the records say about BO4SC, sentence by sentence."""
    records = stored("bo4sc").records
    total = len(datasets(records))
    raised = significant(records, "ece10", "bo4sc", MATCHED, 1)
    lowered = significant(records, "ece10", "bo4sc", MATCHED, -1)
    return [
        f"`bo4sc` has a lower mean ECE-10 than `standard` on {_of('standard', total)} sets. We train `standard` long "
        "past its best to reach the printed calibration errors. Stopped at its best validation loss "
        f"(`standard-stopped`), the same network has a lower mean ECE-10 than `bo4sc` on "
        f"{len(lower_on(records, 'ece10', 'standard-stopped', 'bo4sc'))} of {total} sets.",
        f"`{MATCHED}` has BO4SC's network, learning rate and number of epochs, but no weights. Paired by seed, the "
        f"weights raise ECE-10 significantly on {_with_sizes(raised)}. They lower it significantly on "
        f"{_with_sizes(lowered)}.",
        "`instance-weights`, after the earlier bilevel method of Jain and Shenoy (2022), has a lower mean ECE-10 than "
        f"`bo4sc` on {len(lower_on(records, 'ece10', 'instance-weights', 'bo4sc'))} of {total} sets. "
        "It is no longer in the library.",
        self_calibrated("bo4sc", SEEN),
        self_calibrated("bo4sc-more-seeds", UNSEEN),
        *pooled(),
        *_ablation(),
    ]


def _of(rival: str, total: int) -> str:
    return f"{len(lower_on(stored('bo4sc').records, 'ece10', 'bo4sc', rival))} of {total}"


def _with_sizes(gaps: dict[str, Estimate]) -> str:
    return words([f"{name} (by {abs(gap.value):.3f})" for name, gap in gaps.items()])


def self_calibrated(name: str, where: str, *, method: str = OWN) -> str:
    """How many targets a recommended method meets, and which it misses."""
    records = stored(name).records
    judged = self_calibrated_targets(records, method)
    held = [v for v in judged if v.holds]
    below = significant(records, "nll", method, "ensemble", -1)
    names = [f" Missed: {v.statement.removeprefix(f'{method}: ')}: {v.shown}." for v in judged if not v.holds]
    return (
        f"{where}, `{method}` meets {len(held)} of {len(judged)} targets, and its NLL is significantly below "
        f"the ensemble's on {len(below)} of {len(datasets(records))} sets.{''.join(names)}"
    )


def pooled() -> list[str]:
    """The same of the pool, where its runs are stored."""
    name = "bo4sc-more-seeds"
    if POOLED not in methods(stored(name).records):
        return []
    return [f"`{POOLED}` is the default of `SelfCalibratedClassifier`. {self_calibrated(name, ALSO, method=POOLED)}"]


def _ablation() -> list[str]:
    """Paired differences of each seed's mean over the sets."""
    records = stored("bo4sc-ablation").records
    sets = datasets(records)

    def over_sets(method: str, metric: str) -> dict[int, float]:
        each = [by_seed(records, metric, method=method, dataset=name) for name in sets]
        return {seed: sum(values[seed] for values in each) / len(sets) for seed in each[0]}

    def gap(method: str, against: str, metric: str) -> Estimate:
        return paired_difference(over_sets(method, metric), over_sets(against, metric))

    parts = {r["method"] for r in records if r["group"] == "self-calibrated"} - {"self-calibrated"}
    worth = {part: gap(part, "self-calibrated", "nll") for part in sorted(parts)}
    most = max(worth, key=lambda part: worth[part].value)
    learned, implicit = gap("l2 alone", "bo4sc", "true_ece"), gap("implicit", "bo4sc", "true_ece")
    return [
        "The ablation (`results/bo4sc-ablation.json`) changes one part of a method at a time; these are means over the "
        "sets. One learned L2 strength per layer instead of the weights changes the true ECE of `bo4sc` by "
        f"{format_number(learned, 4)}, the implicit hypergradient by {format_number(implicit, 4)}. Of the variants of "
        f"`self-calibrated`, `{most}` costs most: its NLL is higher by {format_number(worth[most], 4)}."
    ]


def claims_table() -> str:
    """Each claim of Section 4 with the printed values, ours, and the verdict."""
    rows = claims(all_seeds(), figures.read(RESULTS / "bo4sc.json"))
    columns = ["claim", "printed", "here", "z", "runs", "holds"]
    return to_markdown(["no.", *columns], [[n, *claim] for n, claim in enumerate(rows, 1)])


READINGS = ("misclassified_low_weight", "correct_high_weight", "ece10", "accuracy")


def _readings() -> dict[str, list[Estimate]]:
    """Means over seeds on the set of Figure 3, for each variant of BO4SC with one weight per sample."""
    records = [*stored("bo4sc-ablation").records, *stored("bo4sc-weight-start").records]
    names = [name for name in methods(records) if values_of(records, READINGS[0], WEIGHTS_SET, name)]
    return {
        name: [mean_interval(values_of(records, metric, WEIGHTS_SET, name).values()) for metric in READINGS]
        for name in names
    }


def figure3_table() -> str:
    """The weights of each variant of BO4SC on the set of Figure 3."""
    rows = sorted(_readings().items(), key=lambda row: -row[1][0].value)
    columns = [*with_digits(2, "misclassified, w < 0.5", "others, w > 0.5"), *with_digits(3, "ECE-10", "accuracy")]
    return to_markdown(["variant", *columns], [[f"`{name}`", *values] for name, values in rows])


def figure3() -> str:
    """Which variants have the weights of Figure 3, and at what calibration error."""
    readings = _readings()
    alike = [name for name, means in readings.items() if min(means[0].value, means[1].value) > 0.5]
    cell = PAPER["ece"]["bo4sc"][WEIGHTS_SET]
    errors = ", ".join(f"{format_number(readings[name][2], 3)} with `{name}`" for name in alike)
    lowest = min(readings, key=lambda name: readings[name][2].value)
    both = [f"`{name}`" for name in alike if readings[name][2].low <= cell]
    starts = {name: means[0].value for name, means in readings.items() if name.startswith("w⁰")}
    return bullets(
        [
            "Most misclassified samples end below 0.5, and most others above, with "
            f"{words([f'`{name}`' for name in alike])}.",
            f"ECE-10 is then {errors}. The paper prints {cell} for BO4SC on this set. The lowest of all variants is "
            f"{format_number(readings[lowest][2], 3)}, with `{lowest}`. "
            f"Variants that give both Figure 3 and the printed ECE: {words(both)}.",
            f"The start of the weights is not the reason: with {words([f'`{name}`' for name in starts])}, "
            f"{min(starts.values()):.0%} to {max(starts.values()):.0%} of the misclassified samples end below 0.5; the "
            f"ablation's `bo4sc`, which starts at 1, has {readings['bo4sc'][0].value:.0%}.",
        ]
    )


SECTIONS = {
    "first-paper-printed": lambda: beside_printed(all_seeds()),
    "first-paper-reproduced": reproduced,
    "first-paper-choices": choices,
    "first-paper-tables": main_tables,
    "first-paper-unseen": unseen_tables,
    "first-paper-targets": targets,
    "first-paper-sentences": lambda: bullets(sentences()),
    "first-paper-claims": claims_table,
    "first-paper-figure-3": figure3,
    "first-paper-figure-3-variants": figure3_table,
}
