"""Define variants of the second paper's methods, each with one part changed."""

from __future__ import annotations

from dataclasses import replace

from calibrant.bilevel import OneStep
from calibrant.bilevel.outer_variables.gamma_net import Positive
from calibrant.methods import Method
from calibrant.methods.confidence import LearnedConfidence
from calibrant.methods.images import IMAGE_METHODS
from calibrant.methods.meta_regularization import FocalControl, MetaRegularization
from calibrant.methods.networks import STRIDE

RATES = {"flg-sece-rate-0.1": 0.1, "flg-sece-rate-10": 10.0}
"""Multiples of the outer learning rate of ``flg-sece``. By the first target, the error must not depend on that rate."""
POSITIVE: tuple[Positive, ...] = ("min-max", "sigmoid", "relu", "softplus")
"""The alternatives to |·| that Section 4.1 of the paper names."""
AVERAGE = 0.98


def variants() -> dict[str, Method]:
    """Variants by id, with the default recipe.

    ==========================  ===================================================================================
    ``flg-sece-rate-…``         the outer learning rate times 0.1, 10 and 100
    ``flg-sece-one-step``       one look-ahead step of the head instead of the solved head
    ``flg-sece-alone``          SECE without cross-entropy as outer loss
    ``flg-sece-average``        with a moving average of the weights
    ``flg-sece-early``          ten times the outer learning rate, and held-out data move γ from the start of the run
    ``flg-sece-low-start``      ten times the outer learning rate, and γ = 0.1 instead of 1 until held-out data move it
    ``flg-sece-last``           the same, and γ moves in the last 30 % of the run only
    ``flg-sece-rescaled-…``     the gradient keeps the mean size of cross-entropy's, at 1 and 10 times the rate
    ``flg-sece-head-rate-10``   the focal loss trains the head only, and cross-entropy the layers before it
    ``flg-sece-half-…``         the mean of both losses trains the layers before the head, at several rates
    ``…-mixed``                 the same with 10 as largest γ and five times the outer learning rate
    ``focal-control-early``     the held-out gap moves γ from the start of the run
    ``ce-dece-early``           held-out data move the L2 strengths from the start of the run
    ``ce-sece-early``           the same for SECE
    ``gamma-sece``              one γ for all, moved by the same hypergradient
    ``published-…``             the published γ-Net with another way to keep γ positive
    ``recommended-temperature`` one temperature instead of the map
    ``recommended-clean``       no distorted images
    ``recommended-brier``       the Brier score as outer loss
    ``recommended-late``        the map moves only in the last tenth of the run
    ``recommended-no-average``  without the moving average
    ``average-gamma``           one γ instead of the map, moved by the held-out NLL with a solved head
    ``average-gamma-one-step``  the same with one look-ahead step of the head
    ``average-gamma-net``       one γ per sample
    ``average-feedback``        γ moved by the held-out gap, without a gradient
    ==========================  ===================================================================================
    """
    base, published = meta("flg-sece"), meta("flg-sece-published")
    recommended = IMAGE_METHODS["recommended"].method
    assert isinstance(recommended, LearnedConfidence)
    averaged = replace(base.recipe, average=AVERAGE)
    gamma = MetaRegularization(averaged, outer_variable="gamma", outer_loss="nll", outer_settings=())
    alone = (("strength", None), *(pair for pair in base.outer_settings if pair[0] != "strength"))
    rate = base.outer_learning_rate
    fast = replace(base, outer_learning_rate=10 * rate)
    found: dict[str, Method] = {name: replace(base, outer_learning_rate=rate * f) for name, f in RATES.items()}
    return found | {
        "flg-sece-rate-100": replace(base, outer_learning_rate=100 * rate),
        "flg-sece-one-step": replace(base, hypergradient=OneStep(STRIDE, scope="head")),
        "flg-sece-alone": replace(base, outer_settings=alone),
        "flg-sece-average": replace(base, recipe=averaged),
        "flg-sece-early": replace(fast, start=0.0),
        "flg-sece-low-start": replace(fast, initial=0.1),
        "flg-sece-last": replace(fast, start=0.7, initial=0.1),
        "flg-sece-rescaled-rate-1": replace(base, rescaled=True),
        "flg-sece-rescaled-rate-10": replace(fast, rescaled=True),
        "flg-sece-head-rate-10": replace(fast, body_share=0.0),
        "flg-sece-half-rate-0.1": replace(base, body_share=0.5, outer_learning_rate=0.1 * rate),
        "flg-sece-half-rate-1": replace(base, body_share=0.5),
        "flg-sece-half-rate-10": replace(fast, body_share=0.5),
        **{f"{name}-mixed": mixed(meta(name), 5 * rate) for name in ("flg", "flg-dece", "flg-sece")},
        **{f"flg-sece-mixed-rate-{f:g}": mixed(base, 5 * f * rate) for f in RATES.values()},
        "focal-control-mixed": mixed(meta("focal-control")),
        "focal-control-early": FocalControl(),
        **{f"{name}-early": replace(meta(name), start=0.0) for name in ("ce-dece", "ce-sece")},
        "gamma-sece": replace(base, outer_variable="gamma"),
        **{f"published-{name}": replace(published, positive=name) for name in POSITIVE},
        "recommended-temperature": replace(recommended, hidden=0),
        "recommended-clean": replace(recommended, distorted=0.0),
        "recommended-brier": replace(recommended, outer_loss="brier"),
        "recommended-late": replace(recommended, start=0.9),
        "recommended-no-average": replace(recommended, recipe=replace(recommended.recipe, average=None)),
        "average-gamma": gamma,
        "average-gamma-one-step": replace(gamma, hypergradient=OneStep(STRIDE, scope="head")),
        "average-gamma-net": replace(gamma, outer_variable="gamma-net"),
        "average-feedback": FocalControl(averaged),
    }


def mixed(method: MetaRegularization, outer_learning_rate: float | None = None) -> MetaRegularization:
    """A method with half the weight of cross-entropy in the body's loss, which needs a larger γ."""
    rate = method.outer_learning_rate if outer_learning_rate is None else outer_learning_rate
    return replace(method, body_share=0.5, largest=10.0, outer_learning_rate=rate)


def meta(name: str) -> MetaRegularization:
    """A method that moves outer variables, by id."""
    method = IMAGE_METHODS[name].method
    assert isinstance(method, MetaRegularization)
    return method
