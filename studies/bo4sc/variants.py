"""Define the variants of BO4SC and of the self-calibrated method that the ablation compares.

The name of a variant says how it differs from ``bo4sc`` at its default setting, or from ``self-calibrated``. All are
measured at their last epoch and compared by paired differences over seeds. Three variants change more than their names
say:

- "inner SGD" has its own step sizes on both levels, chosen on other seeds, because Adam's need not suit it.
- "restart, T = 100" has a longer inner loop and therefore fewer outer steps. With a short loop, a restart would train
  nothing.
- "without refit" is one network trained on the training part alone. The validation part serves its L2 and its
  calibration. It has no folds and no search for label noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from calibrant.methods import BO4SC, METHODS, Fitted, Method, Mixture, SelfCalibrated, Standard
from studies.common.keys import Key
from studies.common.records import Prepared, weight_shares
from studies.common.runs import FinishedRun
from studies.report import Record

OURS = "self-calibrated"
SGD, SGD_STEPS = "inner SGD", dict[str, Any](learning_rate=0.1, outer_learning_rate=1050.0)
"""Plain gradient descent as inner optimiser, and its step sizes. Of the learning rates 0.03, 0.1, 0.3 and 1 with
BO4SC's η_w and ten times it, these had the lowest held-out cross-entropy of the confidence over all sets, on the seeds
10,000 and 10,001."""
STILL = 1e-12
"""An outer step size so small that φ stays at its start; only the learning of L2 is switched off."""
STORY = ("misclassified_low_weight", "correct_high_weight", "weight_truth", "weight_auroc")
"""Fields of a record that describe the weights."""


@dataclass(frozen=True)
class Variant:
    """One row of the ablation: its name, its group, and its method.

    If ``after`` is given, it changes the trained model; other variants of the same method share that training.
    """

    name: str
    group: str
    method: Method
    after: Callable[[Fitted], Fitted] | None = None


def variants() -> list[Variant]:
    """All rows in the order of the table."""
    base, ours = default_bo4sc(), METHODS[OURS].method
    assert isinstance(ours, SelfCalibrated)
    rate = outer_learning_rate(base)
    rows = [
        Variant("standard", "baselines", METHODS["standard"].method),
        Variant("standard-stopped", "baselines", METHODS["standard-stopped"].method),
        Variant("standard-stopped, smooth units", "baselines", replace(_stopped(), activation="silu")),
        Variant("bo4sc", "baselines", base),
        Variant(SGD, "inner optimiser", replace(base, inner="sgd", **SGD_STEPS)),
    ]
    changes: list[tuple[str, str, dict[str, Any]]] = [
        *((f"T = {t}", "inner steps", {"steps": t}) for t in (1, 5, 20) if t != base.steps),
        *((f"η_w × {f:g}", "outer step size", {"outer_learning_rate": f * rate}) for f in (0.1, 10.0)),
        *((f"α = {a:g}", "smooth maximum", {"alpha": a}) for a in (5.0, 30.0, 100.0) if a != base.alpha),
        *((h, "hypergradient", {"hypergradient": h}) for h in ("truncated", "implicit")),
        *((f"outer {o.upper()}", "outer loss", {"outer_loss": o}) for o in ("nll", "brier", "sece", "dece")),
        *((f"weights: {w}", "weights", {"weights": w}) for w in ("prior", "neighbours")),
        ("weights: sigmoid", "weights", {"form": "sigmoid"}),
    ]
    for also in ("l2", "l2-unit", "label-smoothing", "label-noise"):
        changes += [
            (f"{also} alone", "other outer variables", {"weights": None, "also": (also,)}),
            (f"weights + {also}", "other outer variables", {"also": (also,)}),
        ]
    # Five inner steps from θ⁰ would not leave it. The same budget goes into fewer outer steps with longer inner loops.
    changes.append(("restart, T = 100", "restart", {"restart": True, "steps": 100}))
    rows += [Variant(name, group, replace(base, **change)) for name, group, change in changes]
    group = OURS
    return [
        *rows,
        Variant(OURS, group, ours),
        Variant("φ stays at its start", group, replace(ours, outer_learning_rate=STILL)),
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


def default_bo4sc() -> BO4SC:
    """BO4SC at its default setting."""
    base = METHODS["bo4sc"].method
    assert isinstance(base, BO4SC)
    return base


def _stopped() -> Standard:
    stopped = METHODS["standard-stopped"].method
    assert isinstance(stopped, Standard)
    return stopped


def outer_learning_rate(base: BO4SC, train: int = 700) -> float:
    """The value of η_w; None means 1.5·n."""
    return 1.5 * train if base.outer_learning_rate is None else base.outer_learning_rate


def _changed(**change: Any) -> Callable[[Fitted], Fitted]:
    """Combine the networks of a trained mixture differently, without fitting its calibration again."""
    return functools.partial(_with, change)


def _with(change: dict[str, Any], fitted: Fitted) -> Fitted:
    return replace(fitted, **change) if isinstance(fitted, Mixture) else fitted


def _one_network(fitted: Fitted) -> Fitted:
    return replace(fitted, networks=fitted.networks[:1]) if isinstance(fitted, Mixture) else fitted


def measure(key: Key, run: FinishedRun[Prepared]) -> Record:
    """One record; the variant's ``after`` is applied first."""
    variant = next(v for v in variants() if v.name == key["method"])
    if variant.after is not None and not run.fitted.failure:
        run = replace(run, fitted=variant.after(run.fitted))
    return run.record() | {"group": variant.group} | weight_story(run.fitted, run.prepared)


def weight_story(fitted: Fitted, prepared: Prepared) -> dict[str, float | None]:
    """How the weights relate to the noise in the labels.

    The first fields are those of :func:`~studies.common.records.weight_shares` (Fig. 3 in numbers).
    ``weight_truth`` is Spearman's ρ of w_i and the exact P(y_i | x_i). ``weight_auroc`` is the AUROC of 1 − w_i for
    labels that differ from the Bayes classifier's.
    """
    story: dict[str, float | None] = dict.fromkeys(STORY)
    weights = fitted.extras.get("sample_weights")
    if fitted.failure or weights is None or float(weights.std()) == 0:
        return story
    train, w = prepared.task.train, weights.double().numpy()
    story |= {name: value for name, value in weight_shares(fitted, train).items() if name in STORY}
    if not prepared.problem.noise_free:
        truth = prepared.problem.posterior(prepared.problem.train[0])
        labels = train.labels.numpy()
        story["weight_truth"] = float(spearmanr(w, truth[np.arange(len(labels)), labels]).statistic)
        story["weight_auroc"] = float(roc_auc_score(truth.argmax(1) != labels, -w))
    return story
