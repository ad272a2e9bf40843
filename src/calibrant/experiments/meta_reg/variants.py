"""Variants of the second paper's methods: other meta rates, and one part changed at a time."""

from __future__ import annotations

from dataclasses import replace

from calibrant.bilevel import OneStep
from calibrant.bilevel.outer_variables.gamma_net import Positive
from calibrant.methods import Method
from calibrant.methods.images import IMAGE_METHODS
from calibrant.methods.meta_regularization import FocalControl, MetaRegularization
from calibrant.methods.networks import STRIDE

RATES = {"flg-sece-rate-0.1": 0.1, "flg-sece-rate-10": 10.0}
"""``flg-sece`` with a multiple of its meta rate: the first target asks for errors that do not depend on it."""
POSITIVE: tuple[Positive, ...] = ("min-max", "sigmoid", "relu", "softplus")
"""The alternatives to |·| that Section 4.1 of the paper names."""
AVERAGE = 0.98


def variants() -> dict[str, Method]:
    """Variants by id, with the default recipe.

    ==========================  ===================================================================================
    ``flg-sece-rate-…``         the meta rate times 0.1 and 10
    ``flg-sece-one-step``       one look-ahead step of the head for the solved head
    ``flg-sece-alone``          SECE without cross-entropy as outer loss
    ``flg-sece-average``        with a moving average of the weights
    ``gamma-sece``              one γ for all, moved by the same hypergradient
    ``published-…``             the published γ-Net with another way to keep γ positive
    ``recommended-no-average``  without the moving average
    ``recommended-sece``        CE + squared SECE as outer loss, as ``flg-sece`` has it
    ``recommended-one-step``    one look-ahead step of the head for the solved head
    ``recommended-feedback``    γ moved by the held-out gap, without any gradient
    ``recommended-gamma-net``   a γ for each sample
    ``recommended-scale``       a factor of the training logits beside γ
    ==========================  ===================================================================================
    """
    base, published = meta("flg-sece"), meta("flg-sece-published")
    recommended = meta("recommended")
    averaged = replace(base.recipe, average=AVERAGE)
    alone = (("strength", None), *(pair for pair in base.outer_settings if pair[0] != "strength"))
    found: dict[str, Method] = {name: replace(base, meta_rate=base.meta_rate * f) for name, f in RATES.items()}
    return found | {
        "flg-sece-one-step": replace(base, hypergradient=OneStep(STRIDE, scope="head")),
        "flg-sece-alone": replace(base, outer_settings=alone),
        "flg-sece-average": replace(base, recipe=averaged),
        "gamma-sece": replace(base, outer_variable="gamma"),
        **{f"published-{name}": replace(published, positive=name) for name in POSITIVE},
        "recommended-no-average": replace(recommended, recipe=replace(recommended.recipe, average=None)),
        "recommended-sece": replace(
            recommended, outer_loss=base.outer_loss, outer_settings=base.outer_settings, meta_rate=base.meta_rate
        ),
        "recommended-one-step": replace(recommended, hypergradient=OneStep(STRIDE, scope="head")),
        "recommended-feedback": FocalControl(averaged),
        "recommended-gamma-net": replace(recommended, outer_variable="gamma-net"),
        "recommended-scale": replace(recommended, outer_variable="gamma+scale"),
    }


def meta(name: str) -> MetaRegularization:
    """A method that moves outer variables, by id."""
    method = IMAGE_METHODS[name].method
    assert isinstance(method, MetaRegularization)
    return method
