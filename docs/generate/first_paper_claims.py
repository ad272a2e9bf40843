"""Sections on the first paper: its claims one by one, and the readings of Figure 3."""

from __future__ import annotations

from calibrant.metrics import Estimate, mean_interval
from calibrant.report import format_number
from docs.generate.first_paper import all_seeds
from docs.generate.stored import RESULTS, bullets, stored, words
from studies.bo4sc import figures
from studies.bo4sc.claims import claims, values_of
from studies.bo4sc.figures import WEIGHTS_SET
from studies.bo4sc.table1 import PAPER
from studies.common.verdicts import methods
from studies.report import Column, to_markdown


def claims_table() -> str:
    """Each claim of Section 4 with the printed values, ours, and the verdict."""
    found = claims(all_seeds(), figures.read(RESULTS / "bo4sc.json"))
    columns = ["claim", "printed", "here", "z", "runs", "holds"]
    return to_markdown(["no.", *columns], [[n, *claim] for n, claim in enumerate(found, 1)])


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
    heads = ("misclassified, w < 0.5", "others, w > 0.5", "ECE-10", "accuracy")
    columns = [Column(head, digits=digits) for head, digits in zip(heads, (2, 2, 3, 3), strict=True)]
    return to_markdown(["variant", *columns], [[f"`{name}`", *own] for name, own in rows])


def figure3() -> str:
    """Which variants have the weights of Figure 3, and at what calibration error."""
    readings = _readings()
    alike = [name for name, own in readings.items() if min(own[0].value, own[1].value) > 0.5]
    cell = PAPER["ece"]["bo4sc"][WEIGHTS_SET]
    errors = ", ".join(f"{format_number(readings[name][2], 3)} with `{name}`" for name in alike)
    lowest = min(readings, key=lambda name: readings[name][2].value)
    both = [f"`{name}`" for name in alike if readings[name][2].low <= cell]
    starts = {name: own[0].value for name, own in readings.items() if name.startswith("w⁰")}
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
    "first-paper-claims": claims_table,
    "first-paper-figure-3": figure3,
    "first-paper-figure-3-variants": figure3_table,
}
