"""Define variants of the second paper's methods, each with one part changed."""

from __future__ import annotations

from dataclasses import replace

from calibrant.bilevel import OneStep
from calibrant.bilevel.variables.gamma import Positive
from calibrant.methods import Method
from calibrant.methods.catalogue import IMAGE_METHODS, SHARE
from calibrant.methods.confidence import LearnedConfidence
from calibrant.methods.image_networks import STRIDE
from calibrant.methods.meta_regularization import FocalControl, MetaRegularization

RATES = {"flg-sece-rate-0.1": 0.1, "flg-sece-rate-10": 10.0}
"""Multiples of the outer learning rate of ``flg-sece``. By the first target, the error must not depend on that rate."""
POSITIVE: tuple[Positive, ...] = ("min-max", "sigmoid", "relu", "softplus")
"""The alternatives to |·| that Section 4.1 of the paper names."""
AVERAGE = 0.98


def variants() -> dict[str, Method]:
    """Variants by id, with the default recipe. ``variants.toml`` says what each of them changes."""
    base, published = meta("flg-sece"), meta("flg-sece-published")
    recommended = IMAGE_METHODS["recommended"].method
    assert isinstance(recommended, LearnedConfidence)
    averaged = replace(base.recipe, average=AVERAGE)
    gamma = MetaRegularization(averaged, outer_variable="gamma", outer_loss="nll", outer_settings=())
    rate = base.outer_learning_rate
    one_step = OneStep(STRIDE, scope="head")
    with_rates: dict[str, Method] = {name: replace(base, outer_learning_rate=rate * f) for name, f in RATES.items()}
    return with_rates | {
        "flg-sece-one-step": replace(base, hypergradient=one_step),
        "flg-sece-alone": alone(base),
        "flg-sece-average": replace(base, recipe=averaged),
        "gamma-sece": replace(base, outer_variable="gamma"),
        **_on_the_whole_network(one_step),
        **{f"{name}-early": replace(meta(name), start=0.0) for name in ("ce-dece", "ce-sece")},
        **{f"published-{name}": replace(published, positive=name) for name in POSITIVE},
        "recommended-temperature": replace(recommended, hidden=0),
        "recommended-clean": replace(recommended, distorted=0.0),
        "recommended-brier": replace(recommended, outer_loss="brier"),
        "recommended-late": replace(recommended, start=0.9),
        "recommended-no-average": replace(recommended, recipe=replace(recommended.recipe, average=None)),
        "average-gamma": gamma,
        "average-gamma-one-step": replace(gamma, hypergradient=one_step),
        "average-gamma-net": replace(gamma, outer_variable="gamma-net"),
        "average-feedback": FocalControl(averaged),
    }


def _on_the_whole_network(one_step: OneStep) -> dict[str, Method]:
    """Variants in which the focal loss trains the whole network, and those on the way from there to ``flg-sece``."""
    base = whole(meta("flg-sece"))
    rate = base.outer_learning_rate
    fast = replace(base, outer_learning_rate=10 * rate)
    return {
        **{f"{name}-whole": whole(meta(name)) for name in ("flg", "flg-dece", "flg-sece", "focal-control")},
        **{f"flg-sece-whole-rate-{f:g}": replace(base, outer_learning_rate=f * rate) for f in (0.1, 10, 100)},
        "flg-sece-whole-one-step": replace(base, hypergradient=one_step),
        "flg-sece-whole-alone": alone(base),
        "flg-sece-whole-early": replace(fast, start=0.0),
        "flg-sece-whole-low-start": replace(fast, initial=0.1),
        "flg-sece-whole-last": replace(fast, start=0.7, initial=0.1),
        "flg-sece-whole-rescaled-rate-1": replace(base, rescaled=True),
        "flg-sece-whole-rescaled-rate-10": replace(fast, rescaled=True),
        **{
            f"flg-sece-half-rate-{f:g}": replace(base, body_share=SHARE, outer_learning_rate=f * rate)
            for f in (0.1, 1, 10)
        },
        "flg-sece-head-rate-10": replace(fast, body_share=0.0),
        "focal-control-whole-early": replace(whole(meta("focal-control")), start=0.0),
    }


def whole(method: MetaRegularization) -> MetaRegularization:
    """A method whose focal loss trains the whole network, with the rate and the largest γ that suit it."""
    rate = method.outer_learning_rate if isinstance(method, FocalControl) else 0.002
    return replace(method, body_share=1.0, largest=5.0, outer_learning_rate=rate)


def alone(method: MetaRegularization) -> MetaRegularization:
    """A method with SECE alone as outer loss, without cross-entropy."""
    settings = (("strength", None), *(pair for pair in method.outer_settings if pair[0] != "strength"))
    return replace(method, outer_settings=settings)


def meta(name: str) -> MetaRegularization:
    """A method that moves outer variables, by id."""
    method = IMAGE_METHODS[name].method
    assert isinstance(method, MetaRegularization)
    return method
