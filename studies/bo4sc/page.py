"""The report on the first paper's experiments, made from a result file and its figure data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from calibrant.metrics import excludes_zero
from calibrant.report import format_number
from studies.bo4sc import figures, table1
from studies.bo4sc.targets import CANDIDATES, OWN, bo4sc_targets, self_calibrated_targets
from studies.common import words
from studies.common.shared import QUICK_SEEDS, SEEDS, add_targets, count, failures, foot, screen
from studies.common.synthetic import POOLED
from studies.common.verdicts import ENSEMBLE, HEADINGS, Records, cell, datasets, difference, mean, methods, pivot
from studies.report import Column, Report, Results, Table, Verdict

MATCHED = "standard-matched"
"""The id of BO4SC's control: the same training without the weights."""
BESIDE = "Not judged: NLL minus the ensemble's, paired by seed."
WEIGHTS = {-1: "significantly lower on", 1: "significantly higher on", 0: "not shown to differ on"}
"""How BO4SC's ECE-10 compares with its control's, by the sign of `excludes_zero`."""
METRICS_SHOWN = ("ece10", "true_ece", "nll", "accuracy")


def verdicts(records: Records) -> list[Verdict]:
    """The targets that these records can decide."""
    judged: dict[str, Callable[[Records], list[Verdict]]] = {
        "bo4sc": bo4sc_targets,
        OWN: self_calibrated_targets,
        POOLED: partial(self_calibrated_targets, own=POOLED),
    }
    return [verdict for name in methods(records) if name in judged for verdict in judged[name](records)]


def make_report(content: Results, numbers: figures.Numbers) -> Report:
    """Build the report."""
    records = content.records
    size = f"{count(len(datasets(records)), 'set')} with {count(_seeds(records), 'seed')}"
    report = Report(
        "BO4SC: Table 1 and Figures 1 to 3 again",
        f"The experiments of Sanguin, Pakrashi, Viola and Rinaldi (2024) on {size}. Every seed has its own 700 "
        "training, 300 validation and 1,000 test samples. Values are means with 95 % intervals over seeds. The best "
        "value of each column is marked; the ensemble of five and the exact posterior do not take part.",
    )
    report.section("Targets", caveats(content))
    add_targets(report, verdicts(records), judged=enough(records))
    if ENSEMBLE in methods(records):
        _table(report, table1.beside_ensemble(records), f"{BESIDE} Negative is better.")
    if recommended := [m for m in (OWN, POOLED) if m in methods(records)]:
        report.text(words.FLOORS)
    for method in recommended:
        about = f"ECE-15 of {method}, the noise floors, and the ratios to these floors."
        _table(report, table1.beside_floors(records, method), about)
    report.text(words.UNEQUAL)
    report.text(words.DEFAULTS)
    failures(report, records, "These runs failed, so their means are missing.")
    report.section(
        "Table 1",
        "The paper's three methods, with the printed values beside ours. The row of the exact "
        "posterior is the noise floor: the score of perfect confidence on the same test samples.",
    )
    _table(report, table1.beside_paper(records))
    report.section("Every method", "One table for each of four metrics. The folded tables below show all others.")
    for metric in METRICS_SHOWN:
        name, _, _, meaning = HEADINGS[metric]
        _table(report, pivot(records, metric), f"{name}. {meaning}".strip())
    with report.details("All metrics"):
        for dataset in datasets(records):
            _table(report, table1.everything(records, dataset), dataset)
    report.section(
        "Paired differences",
        "The difference of two methods on the same samples, seed by seed. Negative is better, except for accuracy.",
    )
    for method in (m for m in CANDIDATES if m in methods(records)):
        with report.details(f"{method} against every other method"):
            _table(report, table1.paired(records, method))
    _figures(report, numbers, records)
    report.section("What the paper leaves open, and our choices")
    report.table(["left open", "our choice"], words.LEFT_OPEN)
    _settings(report, content.config["settings"], origin(content))
    report.section("The methods, and the reasons for their settings")
    settings = content.config.get("methods", {})
    report.table(
        ["method", "reason"],
        [[name, words.BASELINES.get(name, "")] for name in methods(records)],
        "The methods compared.",
    )
    with report.details("All settings"):
        report.table(
            ["method", "set", "settings"], [row for m in methods(records) for row in _settings_of(m, settings)]
        )
    if {"standard", "standard-stopped", MATCHED, "bo4sc"} <= set(methods(records)):
        report.section("What the printed comparison hides", words.HIDDEN.format(**_over_sets(records)))
        _table(
            report,
            hidden(records),
            "ECE-10: the effect of early stopping, the effect of the learning rate, and the noise floor.",
        )
    report.section(
        "Costs",
        "Seeds and sets of one shape train as one population, whose time is divided by the number of its members. On a "
        "GPU, sets of different shapes train at the same time, so their seconds are upper bounds.",
    )
    _table(report, table1.costs(records))
    foot(report, content, hidden=("settings", "methods"))
    return report


def origin(content: Results) -> str:
    """The origin of BO4SC's settings, in words."""
    found = content.config.get("settings_origin")
    if not isinstance(found, dict):
        return str(found or "of unknown origin")
    return (
        f"chosen on validation data by `{found['command']}` ({count(len(found['seeds']), 'seed')} from "
        f"{found['seeds'][0]}, lowest {found['criterion']}, calibrant {found['calibrant']}, {found['date']})"
    )


def enough(records: Records) -> bool:
    """Whether there are more seeds than in a quick run, so that the targets can be judged."""
    return _seeds(records) > QUICK_SEEDS


def caveats(content: Results) -> str:
    """What a reader must know to interpret the verdicts."""
    text = "“Significantly” means that the 95 % interval of the paired difference over seeds excludes zero."
    seeds = _seeds(content.records)
    if not enough(content.records):
        text = (
            f"The targets are set for {SEEDS} seeds. This run has {seeds}, which cannot decide them, so they are not "
            "judged here."
        )
    elif seeds < SEEDS:
        text += (
            f" The targets are set for {SEEDS} seeds, and this run has {seeds}. Its intervals are wide: “not "
            "significantly worse” is then easy to reach, and a mean can meet or miss a limit by chance."
        )
    return f"{text} {seen(content)} BO4SC's settings were {origin(content)}."


def seen(content: Results) -> str:
    """Whether these seeds were used while the methods were developed, including the search for settings."""
    found = content.config.get("settings_origin")
    tried = words.SEEN | set(found["seeds"] if isinstance(found, dict) else ())
    own = sorted({record["seed"] for record in content.records})
    if met := [seed for seed in own if seed in tried]:
        which = "These seeds were" if met == own else f"{len(met)} of these seeds {'was' if len(met) == 1 else 'were'}"
        return f"{which} used while the methods were developed; {words.FURTHER} holds seeds that were not."
    span = str(own[0]) if len(own) == 1 else f"{own[0]} to {own[-1]}"
    return f"These seeds ({span}) were not used while the methods were developed."


def hidden(records: Records) -> Table:
    """ECE-10 of standard training, of early stopping, of BO4SC with its control, and the noise floor."""
    rows = [
        [
            name,
            *(cell(records, "ece10", name, method) for method in ("standard", "standard-stopped", MATCHED, "bo4sc")),
            cell(records, "floor_posterior10", name, "standard"),
            table1.PAPER["ece"]["bo4sc"].get(name),
        ]
        for name in datasets(records)
    ]
    heads = ("set", "standard", "standard-stopped", MATCHED, "bo4sc", "exact posterior", "bo4sc, printed")
    return Table([Column(head) for head in heads], rows)


def _over_sets(records: Records) -> dict[str, str]:
    """Values for the placeholders of ``words.HIDDEN``: mean ECE-10 over the sets, and the effect of the weights."""
    names = {"standard": "standard", "stopped": "standard-stopped", "matched": MATCHED, "bo4sc": "bo4sc"}
    sets = datasets(records)
    means = {key: [mean(records, "ece10", name, method).value for name in sets] for key, method in names.items()}
    found = {key: format_number(sum(values) / len(sets)) for key, values in means.items()}
    return found | {"weights": weights_doing(records)}


def weights_doing(records: Records) -> str:
    """The sets on which BO4SC's ECE-10 is lower, higher, or not shown to differ from its control's."""
    found = {name: difference(records, "ece10", name, "bo4sc", MATCHED) for name in datasets(records)}
    parts = []
    for sign, words_for_it in WEIGHTS.items():
        own = [f"{name} ({format_number(d)})" for name, d in found.items() if excludes_zero(d) == sign]
        parts += [f"{words_for_it} {', '.join(own)}"] if own else []
    return "; ".join(parts)


def to_terminal(content: Results) -> str:
    """Table 1 beside ours, and how BO4SC compares with its rivals: one screen of a terminal."""
    records, seeds = content.records, count(_seeds(content.records), "seed")
    compared = "; ".join(_below(records, rival) for rival in ("standard", "isotonic") if rival in methods(records))
    sentence = f"Mean ECE of bo4sc: {compared}. " if compared and "bo4sc" in methods(records) else ""
    if not enough(records):
        sentence += f"{seeds.capitalize()} cannot decide the targets; a run without --quick judges them."
    title = f"Table 1 of Sanguin et al. 2024, and the means of {seeds} here with 95 % intervals"
    return screen(title, table1.in_short(records), sentence or "The page has the targets and their verdicts.")


def _below(records: Records, rival: str) -> str:
    """The number of sets on which BO4SC's mean ECE is below a rival's, here and in the paper."""
    sets, paper = datasets(records), table1.PAPER["ece"]
    here = sum(difference(records, "ece10", name, "bo4sc", rival).value < 0 for name in sets)
    printed = sum(paper["bo4sc"][name] < paper[rival][name] for name in sets)
    return f"below {rival}'s on {here} of {count(len(sets), 'set')} (in the paper: {printed})"


def _figures(report: Report, numbers: figures.Numbers, records: Records) -> None:
    report.section("Figures")
    if not numbers:
        report.text("There are no figures, because the result file has no figure data (`….figures.json`) beside it.")
    if "map" in numbers:
        report.figure(
            figures.draw_maps(numbers["map"]),
            f"Figure 1. Confidence over the input space, {numbers['map']['dataset']}, seed {numbers['map']['seed']}. "
            "The line encloses confidence above 0.9. The last panel is the exact posterior.",
            "figure-1",
        )
    if "reliability" in numbers:
        report.figure(
            figures.draw_reliability(numbers["reliability"]),
            f"Figure 2. Confidence histograms and reliability diagrams (10 bins), {numbers['reliability']['dataset']}, "
            f"seed {numbers['reliability']['seed']}. Isotonic regression of the confidence can give values below "
            "chance; the maximum of class probabilities cannot.",
            "figure-2",
        )
    if "weights" in numbers:
        report.figure(
            figures.draw_weights(numbers["weights"]),
            f"Figure 3. BO4SC's sample weights during training and at the end, {numbers['weights']['dataset']}, seed "
            f"{numbers['weights']['seed']}. Misclassified training samples are red.",
            "figure-3",
        )
    report.text(
        "Figure 3 in numbers. From it, the paper concludes that most weights of misclassified samples end between 0 "
        "and 0.5, and most others above. Our runs confirm this if both shares exceed one half. The shares are those "
        "of the last step; if the weights oscillate, another step gives other shares."
    )
    _table(report, table1.weights(records), "BO4SC's final weights, as shares of training samples.")


def _settings(report: Report, settings: dict[str, dict[str, Any]], source: str) -> None:
    names = list(next(iter(settings.values()))) if settings else []
    rows = [[dataset, *(_plain(own.get(name)) for name in names)] for dataset, own in settings.items()]
    report.table(
        ["set", *names], rows, f"BO4SC's settings for each set, {source}. T is steps, η_w is outer_learning_rate."
    )


def _settings_of(method: str, settings: dict[str, Any]) -> list[list[str]]:
    """The rows of one method: one for all sets, or one per set."""
    found = settings.get(method, "")
    return (
        [[method, name, text] for name, text in found.items()] if isinstance(found, dict) else [[method, "all", found]]
    )


def _table(report: Report, table: Table, caption: str = "") -> None:
    report.table(table.columns, table.rows, caption, group=table.group, exempt=table.exempt)


def _seeds(records: Records) -> int:
    return len({record["seed"] for record in records})


def _plain(value: Any) -> str:
    return (
        " × ".join(map(str, value))
        if isinstance(value, list)
        else format_number(value, 4 if value and value < 1 else 0)
    )
