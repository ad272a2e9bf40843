"""The mean of cross-fitted networks, calibrated on labels that the networks were not trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from calibrant.methods.base import failure
from calibrant.methods.crossfit import CrossFit
from calibrant.methods.fitted import Mixture
from calibrant.methods.held_out import LastStep, fit_last_step
from calibrant.methods.learned import read_outer, suspicion
from calibrant.methods.part import Part
from calibrant.methods.wrong_labels import flip_rate, wrong_label


def calibrated_mean(fit: CrossFit, candidate: str, train: int) -> Mixture:
    """The mean of the networks, with the last step (T, b and λ) fitted to held-out logits."""
    logits, data, head = fit.held_out_logits, fit.data, fit.heads[0]
    rows = fit.rows("judge")
    last = last_step(logits[rows], data, rows)
    extras: dict[str, Any] = {"candidate": candidate, "temperature": last.temperature, "lapse": last.lapse}
    extras["bias"] = torch.from_numpy(last.bias)
    with torch.no_grad():
        extras |= head.problem.outer_view.run(head.phi, read_outer)
    mixture = Mixture(
        fit.heads,
        last.temperature,
        extras["bias"],
        last.lapse,
        "logits",
        extras,
        failure=failure(*fit.heads),
        shares=fit.shares,
    )
    extras["held_out"] = mixture.calibrated(logits).cpu()
    return replace(mixture, extras=extras | _doubts(mixture, fit, train))


def last_step(logits: Tensor, data: Part, rows: Tensor) -> LastStep:
    """T, b and λ for the held-out logits of some rows."""
    weights = None if data.sample_weight is None else data.sample_weight[rows].double().cpu().numpy()
    groups = None if data.groups is None else data.groups[rows].cpu().numpy()
    return fit_last_step(logits.cpu().numpy(), data.labels[rows].cpu().numpy(), weights, groups=groups)


def _doubts(mixture: Mixture, fit: CrossFit, train: int) -> dict[str, Any]:
    """How wrong each training label looks, 0 to 1, and the rate of wrong labels if φ includes one.

    Each label is judged by networks that were not trained on it, if there are any. In the label-noise candidate all
    networks are trained on it, but with a loss that allows for wrong labels.
    """
    part, held = fit.data[slice(0, train)], mixture.extras["held_out"][:train]
    never_held_out = held.isnan().any(1)
    probs = held
    if never_held_out.any():
        probs = torch.where(never_held_out.unsqueeze(1), part.predicted(mixture.probs)[0], held)
    labels = part.labels.cpu()
    if "label_noise" not in mixture.extras:
        return {"suspicion": suspicion(torch.ones_like(probs[:, 0]), probs, labels)}
    rate = flip_rate(probs, labels, None if part.sample_weight is None else part.sample_weight.cpu())
    return {
        "suspicion": wrong_label(probs, labels, rate),
        "label_noise": torch.full((probs.shape[1],), rate, device="cpu"),
    }


def held_out_losses(fit: CrossFit, mixture: Mixture, rows: Tensor) -> Tensor:
    """The weighted held-out loss of each of some rows."""
    probs = mixture.calibrated(fit.held_out_logits[rows])
    losses = -probs.gather(1, fit.data.labels[rows].unsqueeze(1)).squeeze(1).clamp_min(1e-300).log()
    if fit.data.sample_weight is not None:
        losses = losses * fit.data.sample_weight[rows] / fit.data.sample_weight[rows].mean()
    return losses.cpu()
