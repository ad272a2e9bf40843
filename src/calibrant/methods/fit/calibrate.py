"""``calibrant.calibrate``: fit a temperature, a confidence map or another calibrator to a trained network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.methods.confidence import check_calibrator, recalibrated
from calibrant.methods.core.results import Mixture, held_out_logits
from calibrant.methods.core.samples import as_part, checked, few_inputs
from calibrant.methods.fit.checks import count_classes
from calibrant.methods.fit.fit import example_of, other_models
from calibrant.methods.fit.plain_module import form_of
from calibrant.methods.fit.trained import Calculated, Trained
from calibrant.models.functional.user_modules import copied


def calibrate(
    model: nn.Module,
    val: Any,
    *,
    calibrator: str = "temperature",
    head: str | None = None,
    device: str | torch.device | None = None,
    labels: str | None = None,
    gather: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
) -> Trained:
    """Calibrate a trained network on data that it was not trained on. Its parameters are not changed.

    For arrays of logits, use the calibrators of :mod:`calibrant.posthoc`.

    Parameters
    ----------
    model : nn.Module
        Maps inputs to logits, (n, C). It is copied.
    val : ``(inputs, labels)`` or a loader
        Data that the network was not trained on, in a form that :func:`calibrant.fit` accepts. In a
        ``torch.distributed`` group, pass all of the data to each process, or ``gather``.
    calibrator : str
        A name in :data:`calibrant.posthoc.CALIBRATORS`; "auto" for :class:`calibrant.posthoc.Auto`; or "map" for the
        choice of :func:`calibrant.fit` between a confidence map and a temperature
        (:func:`calibrant.methods.confidence.choose_map`). The result has a ``module`` only with "temperature" and
        "map".
    head, device, labels
        As in :func:`calibrant.fit`.
    gather : callable ``(logits, labels) -> (logits, labels)``, optional
        Joins the outputs of several processes, each of which has a part of the data.

    Returns
    -------
    Trained
        The calibrated classifier, as from :func:`calibrant.fit`.

    Examples
    --------
    >>> import torch, calibrant
    >>> x, y = torch.randn(50, 4), torch.arange(50) % 2
    >>> result = calibrant.calibrate(torch.nn.Linear(4, 2), (x, y))
    >>> torch.allclose(result.module(x).softmax(1).double(), result.probs(x), atol=1e-5)
    True
    """
    if not isinstance(model, nn.Module):
        advice = other_models(model)
        raise TypeError(f"model must be a trained nn.Module; got {type(model).__name__}.{advice}")
    check_calibrator(calibrator)
    twin = copied(example_of(model, 0, device)).eval()
    part = as_part(val, twin, labels, "val")
    few = few_inputs(part)
    part = checked(part, count_classes(twin, {"val": few}, trained=True), "val")
    plain = Mixture((Calculated(twin),))
    logits, targets, weights = held_out_logits(plain, part)
    if gather is not None:
        logits, targets = gather(logits, targets)
    fitted = recalibrated(plain, logits, targets, weights, calibrator)
    return Trained(fitted, (twin,), form_of(twin, few, head))
