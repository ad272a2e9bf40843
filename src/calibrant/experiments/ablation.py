"""What each choice in BO4SC, and each piece of the self-calibrated method, is worth: one row for each variant.

Every variant differs from ``bo4sc`` at its default setting, or from ``self-calibrated``, in what its name says, and is
taken at its last epoch. Three change more. "inner SGD" has step sizes of its own on both levels, chosen on other seeds,
because Adam's need not suit it. "restart, T = 100" has the longer inner loop without which a restart trains nothing,
and so fewer outer steps. "without refit" is one network that learns from the training part alone, with the validation
part for its L2 and its calibration, without folds and without a search for label noise. Rows are compared by paired
differences over seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from calibrant.data import SETS
from calibrant.experiments.grid import FIRST_SEED, score, search_task
from calibrant.experiments.parts import in_parts
from calibrant.experiments.records import Prepared, prepare, resolve_device, weight_shares
from calibrant.experiments.runs import few_threads, progress, run_all
from calibrant.experiments.shared import SEEDS, failures, foot, made, read_own
from calibrant.methods import BO4SC, METHODS, Fitted, Method, Mixture, Part, SelfCalibrated, Standard, fit_all
from calibrant.report import (
    Column,
    Report,
    Results,
    by_seed,
    mean_interval,
    paired_difference,
    write_results,
)

OURS = "self-calibrated"
SGD = "inner SGD"
SGD_RATES, SGD_FACTORS = (0.03, 0.1, 0.3, 1.0), (1.0, 10.0)
"""Candidates for plain descent inside: learning rates, and multiples of η_w."""
SEARCH_SEEDS = 2
STILL = 1e-12
"""An outer step size that leaves φ where it starts: everything but the learning of L2 stays as it is."""

STORY = {
    "misclassified_low_weight": Column("wrong, w < ½", digits=2),
    "correct_high_weight": Column("right, w > ½", digits=2),
    "weight_truth": Column("ρ(w, P(y|x))", digits=2),
    "weight_auroc": Column("AUROC of 1 − w", digits=2),
}
METRICS = {
    "ece15": Column("ECE-15", "low", 4),
    "true_ece": Column("true ECE", "low", 4),
    "nll": Column("NLL", "low", 4),
    "accuracy": Column("accuracy", "high", 4),
}


@dataclass(frozen=True)
class Variant:
    """One row: its name, the question that it belongs to, and how it is had.

    ``after`` makes it of another row's trained model instead of training anew.
    """

    name: str
    group: str
    method: Method
    after: Callable[[Fitted], Fitted] | None = None


def variants() -> list[Variant]:
    """All rows, in the order of the table; plain descent's step sizes are yet to be chosen."""
    base, ours = _base(), METHODS[OURS].method
    assert isinstance(ours, SelfCalibrated)
    rate = _outer_rate(base)
    rows = [
        Variant("standard", "baselines", METHODS["standard"].method),
        Variant("standard-stopped", "baselines", METHODS["standard-stopped"].method),
        Variant("standard-stopped, smooth units", "baselines", replace(_stopped(), activation="silu")),
        Variant("bo4sc", "baselines", base),
        Variant(SGD, "inner optimiser", replace(base, inner="sgd")),
    ]
    changes: list[tuple[str, str, dict[str, Any]]] = [
        *((f"T = {t}", "inner steps", {"steps": t}) for t in (1, 5, 20) if t != base.steps),
        *((f"η_w × {f:g}", "outer step size", {"outer_rate": f * rate}) for f in (0.1, 10.0)),
        *((f"α = {a:g}", "smooth maximum", {"alpha": a}) for a in (5.0, 30.0, 100.0) if a != base.alpha),
        *((h, "hypergradient", {"hypergradient": h}) for h in ("truncated", "implicit")),
        *((f"outer {o.upper()}", "outer loss", {"outer_loss": o}) for o in ("nll", "brier", "sece", "dece")),
        *((f"weights: {w}", "weights", {"weights": w}) for w in ("prior", "neighbours", "network")),
        ("weights: sigmoid", "weights", {"form": "sigmoid"}),
    ]
    for also in ("l2", "l2-unit", "label-smoothing", "label-noise"):
        changes += [
            (f"{also} alone", "other outer variables", {"weights": None, "also": (also,)}),
            (f"weights + {also}", "other outer variables", {"also": (also,)}),
        ]
    # From θ⁰ again each time, five inner steps would never leave it: the same budget in fewer, longer outer steps.
    changes.append(("restart, T = 100", "restart", {"restart": True, "steps": 100}))
    rows += [Variant(name, group, replace(base, **change)) for name, group, change in changes]
    group = OURS
    return [
        *rows,
        Variant(OURS, group, ours),
        Variant("φ stays at its start", group, replace(ours, outer_rate=STILL)),
        Variant("without refit", group, replace(ours, refit=False)),
        Variant("two folds", group, replace(ours, folds=2)),
        Variant("folds dealt once", group, replace(ours, repeats=1)),
        Variant("rectified units", group, replace(ours, activation="relu")),
        Variant("constant lr", group, replace(ours, decay=False)),
        Variant("all steps unrolled", group, replace(ours, last=ours.steps)),
        Variant("mean of probabilities", group, ours, _changed(pool="probs")),
        Variant("without biases", group, ours, _changed(bias=None)),
        Variant("without lapses", group, ours, _changed(lapse=0.0)),
        Variant("without the last step", group, ours, _changed(temperature=1.0, bias=None, lapse=0.0)),
        Variant("one of its networks", group, ours, _one_network),
    ]


def _base() -> BO4SC:
    base = METHODS["bo4sc"].method
    assert isinstance(base, BO4SC)
    return base


def _stopped() -> Standard:
    stopped = METHODS["standard-stopped"].method
    assert isinstance(stopped, Standard)
    return stopped


def _outer_rate(base: BO4SC, train: int = 700) -> float:
    """η_w in numbers: None means 1.5·n."""
    return 1.5 * train if base.outer_rate is None else base.outer_rate


def _changed(**change: Any) -> Callable[[Fitted], Fitted]:
    """A trained mixture put together in another way; the last step is as it was fitted for this one."""
    return functools.partial(_with, change)


def _with(change: dict[str, Any], fitted: Fitted) -> Fitted:
    return replace(fitted, **change) if isinstance(fitted, Mixture) else fitted


def _one_network(fitted: Fitted) -> Fitted:
    return replace(fitted, networks=fitted.networks[:1]) if isinstance(fitted, Mixture) else fitted


def run(
    *,
    seeds: int = SEEDS,
    out: str | Path = "out/bo4sc-ablation",
    device: str = "auto",
    sets: Sequence[str] = tuple(SETS),
    only: Sequence[str] | None = None,
    source: str | Path | None = None,
) -> Path:
    """Train and measure every variant; returns the path of the report.

    ``only`` names the variants to run (all by default); ``bo4sc`` is always among them, as what the others are held
    against. ``source`` is a result file of this experiment: the report is made from it, and nothing is trained.
    """
    if source is not None:
        return write_report(Path(source), Path(out))
    where = resolve_device(device)
    wanted = [v for v in variants() if only is None or v.name in {*only, "bo4sc"}]
    unknown = sorted(set(only or ()) - {v.name for v in wanted})
    if unknown:
        raise ValueError(
            f"There is no variant {', '.join(unknown)}; there are {', '.join(v.name for v in variants())}."
        )
    config: dict[str, Any] = {"experiment": "bo4sc-ablation", "seeds": list(range(seeds)), "sets": list(sets)}
    if any(v.name == SGD for v in wanted):
        config["inner_sgd"] = found = choose_sgd(sets, device=where)
        wanted = [replace(v, method=replace(v.method, **found)) if v.name == SGD else v for v in wanted]
    parts = in_parts(train_and_measure, sets, device=where, seeds=seeds, wanted=wanted)
    config["variants"] = {v.name: dataclasses.asdict(v.method) for v in wanted}
    config |= {"device": str(where), **made()}
    records = [record for part in parts for record in part]
    return write_report(write_results(Path(out) / "results.json", config, records), Path(out))


def train_and_measure(
    *, sets: Sequence[str], device: torch.device, seeds: int, wanted: Sequence[Variant]
) -> list[dict[str, Any]]:
    """Records of these sets, variant by variant."""
    prepared = [prepare(name, seed) for name in sets for seed in range(seeds)]
    plan = [(variant, p) for variant in wanted for p in prepared]
    runs = run_all([(v.name, v.method, p) for v, p in plan], device=device)
    records = []
    with few_threads():
        for (variant, _), trained in zip(plan, runs, strict=True):
            if variant.after is not None and not trained.fitted.failure:
                trained = replace(trained, fitted=variant.after(trained.fitted))
            story = weight_story(trained.fitted, trained.prepared)
            records.append(trained.record() | {"group": variant.group} | story)
    return records


def write_report(results: Path, out: Path) -> Path:
    """Make ``report.html`` and ``report.md`` from a result file alone, and print the latter."""
    report = tell(read_own(results, "bo4sc-ablation"))
    page, text = report.write(out), report.to_markdown()
    (out / "report.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return page


def choose_sgd(sets: Sequence[str], *, device: Any = None) -> dict[str, Any]:
    """Step sizes of both levels for plain descent inside, one choice for all sets: Adam's need not suit it.

    The least confidence's cross-entropy on validation points that did not move the weights, as in the grid search.
    """
    base = _base()
    settings: list[dict[str, Any]] = [
        {"learning_rate": lr, "outer_rate": factor * _outer_rate(base)}
        for lr, factor in itertools.product(SGD_RATES, SGD_FACTORS)
    ]
    tasks = [search_task(name, FIRST_SEED + k) for name in sets for k in range(SEARCH_SEEDS)]
    jobs = [(replace(base, inner="sgd", **setting), task) for setting in settings for task, _ in tasks]
    fitted = iter(fit_all(jobs, device=device, callbacks=progress))
    losses = [sum(_held_out_loss(next(fitted), part) for _, part in tasks) for _ in settings]
    if np.isnan(losses).all():
        raise ValueError("plain descent broke down with every learning rate and step size that was tried.")
    return settings[int(np.nanargmin(losses))]


def _held_out_loss(fitted: Fitted, part: Part) -> float:
    logits = fitted.probs(part.inputs).clamp_min(1e-300).log()
    return float("nan") if fitted.failure else score(logits.unsqueeze(0), part.labels.unsqueeze(0))["bce"]


def weight_story(fitted: Fitted, prepared: Prepared) -> dict[str, float | None]:
    """What the weights have to do with the noise in the labels.

    The shares of :func:`calibrant.experiments.records.weight_shares` (Fig. 3 in numbers). ``weight_truth``: Spearman's
    ρ of w_i and the exact P(y_i | x_i). ``weight_auroc``: how well 1 − w_i finds the labels that the Bayes classifier
    would not have given.
    """
    found: dict[str, float | None] = dict.fromkeys(STORY)
    weights = fitted.extras.get("sample_weights")
    if fitted.failure or weights is None or float(weights.std()) == 0:
        return found
    train, w = prepared.task.train, weights.double().numpy()
    found |= {name: value for name, value in weight_shares(fitted, train).items() if name in STORY}
    if not prepared.problem.noise_free:
        truth = prepared.problem.posterior(prepared.problem.train[0])
        labels = train.labels.numpy()
        found["weight_truth"] = float(spearmanr(w, truth[np.arange(len(labels)), labels]).statistic)
        found["weight_auroc"] = float(roc_auc_score(truth.argmax(1) != labels, -w))
    return found


def tell(results: Results) -> Report:
    """The table over all sets, one for each set, and the weights' story."""
    records, config = results.records, results.config
    sets, names = config["sets"], list(config["variants"])
    group = {r["method"]: r["group"] for r in records}
    report = Report(
        "BO4SC: what each choice is worth",
        f"{len(config['seeds'])} seeds, last epoch, mean and 95 % interval. Each variant differs from bo4sc, or from "
        "self-calibrated, in what its name says, and Δ is its paired difference to that one. Where a variant puts "
        "trained networks together in another way, the last step is as it was fitted before. Two change more than "
        "their names say: a restart has longer inner loops and fewer outer steps, and without refit there is one "
        "network of the training part alone, without folds and without a search for label noise.",
    )
    if "inner_sgd" in config:
        found = config["inner_sgd"]
        report.text(
            f"Plain descent inside has learning rate {found['learning_rate']:g} and η_w = {found['outer_rate']:g}, "
            f"chosen once for all sets on validation data of {SEARCH_SEEDS} seeds that are not reported."
        )

    def table(values: Callable[[str, str], dict[Any, float]]) -> None:
        rows = []
        for name in names:
            own = {metric: values(name, metric) for metric in METRICS}
            other = OURS if group[name] == OURS and OURS in names else "bo4sc"
            gaps = [paired_difference(own[m], values(other, m)) for m in ("true_ece", "nll")]
            found = [*(mean_interval(v.values()) for v in own.values()), *gaps]
            # A failed training leaves no mean, and the row empty.
            rows.append([name, group[name], *(None if np.isnan(e.value) else e for e in found)])
        heads = [*METRICS.values(), Column("Δ true ECE", digits=4), Column("Δ NLL", digits=4)]
        report.table(["variant", "what", *heads], rows)

    def on(dataset: str) -> Callable[[str, str], dict[Any, float]]:
        return lambda name, metric: by_seed(records, metric, dataset=dataset, method=name)

    def over_sets(name: str, metric: str) -> dict[Any, float]:
        each = [on(dataset)(name, metric) for dataset in sets]
        return {s: float(np.mean([np.nan if v[s] is None else v[s] for v in each])) for s in each[0]}

    report.section("All sets", "Each seed's mean over the sets.")
    table(over_sets)
    for dataset in sets:
        report.section(dataset)
        table(on(dataset))
    report.section(
        "Weights and noise",
        "Share of misclassified training samples with w < 0.5 and of right ones with w > 0.5; rank correlation of a "
        "sample's weight with the exact probability of its label; AUROC of low weights for labels that the Bayes "
        "classifier would not have given. Means over sets and seeds where there is a value.",
    )
    rows = [[name, *(_mean(r[key] for r in records if r["method"] == name) for key in STORY)] for name in names]
    report.table(["variant", *STORY.values()], [row for row in rows if row[1] is not None])
    failures(report, records, "Their rows are empty.")
    foot(report, results)
    return report


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None
