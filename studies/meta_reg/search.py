"""`studies sweep meta-reg`: change one setting of the paper's method at a time, judged on validation data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant.methods import Method
from calibrant.report import Report, Results
from studies.common.command import usable_folder
from studies.meta_reg.groups import groups
from studies.meta_reg.noisy import has_noisy_labels
from studies.meta_reg.plan import Setup, runs
from studies.meta_reg.quick import Sizes, chosen_dataset, quick_sizes
from studies.meta_reg.searched import BASES, CAPTION, HEADINGS, best, rows
from studies.meta_reg.study import NAME, data_folder, make_runs, tell_plan, write_report
from studies.meta_reg.variants import meta

BANDWIDTHS, STRENGTHS, RATES = (0.005, 0.01, 0.02, 0.05), (10.0, 40.0), (0.1, 1.0, 10.0)
"""For ``flg-sece``: h and the strength of SECE in the outer loss, and multiples of the outer learning rate.

The paper has h = 0.01.
"""
TEMPERATURES = (0.001, 0.01, 0.1)
"""For ``flg-sece-published``: τ of γ-Net."""
SEEDS = 2
SUMMARY = """
One setting is changed at a time. For `flg-sece`, it is h (the bandwidth of SECE), the strength of SECE beside
cross-entropy in the outer loss, or the outer learning rate; for `flg-sece-published`, it is τ. Settings are compared
on the validation part, which neither trains the network nor moves outer variables. Test images are not used. The best
setting has the lowest NLL on the validation part.
"""


def settings(
    bandwidths: Sequence[float] = BANDWIDTHS,
    temperatures: Sequence[float] = TEMPERATURES,
    rates: Sequence[float] = RATES,
    strengths: Sequence[float] = STRENGTHS,
) -> dict[str, Method]:
    """The methods of a search by name: the two defaults, and one method for each other value."""
    for what, values in (
        ("--bandwidth", bandwidths),
        ("--tau", temperatures),
        ("--outer-learning-rate", rates),
        ("--strength", strengths),
    ):
        if wrong := [value for value in values if not value > 0]:
            raise ValueError(f"{what} must be positive; got {wrong[0]:g}.")
    base, published = meta("flg-sece"), meta("flg-sece-published")
    own = dict(base.outer_settings)
    found: dict[str, Method] = {"flg-sece": base, "flg-sece-published": published}
    for axis, name, values in (("h", "bandwidth", bandwidths), ("strength", "strength", strengths)):
        for value in values:
            if value != own[name]:
                outer = tuple((own | {name: value}).items())
                found[f"flg-sece-{axis}-{value:g}"] = replace(base, outer_settings=outer)
    for tau in temperatures:
        if tau != published.temperature:
            found[f"flg-sece-published-tau-{tau:g}"] = replace(published, temperature=tau)
    for factor in rates:
        if factor != 1:
            found[f"flg-sece-rate-{factor:g}"] = replace(base, outer_learning_rate=base.outer_learning_rate * factor)
    return found


def sweep(
    *,
    bandwidths: Sequence[float] | None = None,
    temperatures: Sequence[float] | None = None,
    rates: Sequence[float] | None = None,
    strengths: Sequence[float] | None = None,
    dataset: str | None = None,
    data: str | Path | None = None,
    model: str | None = None,
    recipe: str = "short",
    seeds: int | None = None,
    epochs: int | None = None,
    limit: int | None = None,
    quick: bool = False,
    out: str | Path | None = None,
    source: Sequence[str | Path] | None = None,
    export: str | Path | None = None,
    download: bool = False,
    dry_run: bool = False,
    fresh: bool = False,
    **how: Any,
) -> Path | str:
    """Try values of h, τ, the outer learning rate and the strength of SECE, one at a time; returns the report's path.

    ``rates`` are multiples of the default outer learning rate. ``quick`` uses one seed, three epochs and small-cnn,
    with 600 of scikit-learn's digits, or 2,000 training images of another data set. The other arguments are those of
    :func:`studies.meta_reg.reproduce`, which has the same kind of store.
    """
    folder = Path("out") / f"{NAME}-sweep" if out is None else Path(out)
    paths = [Path(path) for path in source or ()]
    if paths and not dry_run:
        return write_report(paths, usable_folder(folder), make_report=tell, export=export)
    dataset = chosen_dataset(dataset, data, quick)
    if has_noisy_labels(dataset):
        raise ValueError(f"--dataset must have its published labels in a search; got {dataset!r}.")
    if quick:
        model, seeds, epochs, limit = quick_sizes(dataset, Sizes(model, seeds, epochs, limit), trial=True)
    if not dry_run:
        usable_folder(folder)
    setup = Setup(dataset, data_folder(dataset, data, download and not dry_run), model, recipe, epochs, limit)
    methods = settings(bandwidths or BANDWIDTHS, temperatures or TEMPERATURES, rates or RATES, strengths or STRENGTHS)
    planned = runs(setup, list(methods), seeds or SEEDS, methods)
    if dry_run:
        return tell_plan(planned, folder, paths, fresh=fresh)
    return write_report(
        [make_runs(setup, planned, folder, fresh=fresh, **how)], folder, make_report=tell, export=export
    )


def tell(results: Results) -> Report:
    """Build the report: one table per method and setup."""
    report = Report("Meta-regularisation: a search over settings", SUMMARY)
    for group in groups(results.records):
        report.section(group.label)
        for base in BASES:
            if tried := rows(group, base):
                report.text(f"`{base}`, best: {best(group, base)}")
                report.table(HEADINGS, tried, CAPTION)
    return report
