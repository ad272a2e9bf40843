"""The methods of the second paper by id, for image networks; used by the experiment, the command line and the tests."""

from __future__ import annotations

from dataclasses import replace

from calibrant.bilevel import OneStep
from calibrant.losses import LOSSES
from calibrant.methods.base import Method
from calibrant.methods.baselines import Calibrated
from calibrant.methods.confidence import LearnedConfidence
from calibrant.methods.meta_regularization import FocalControl, MetaRegularization, gamma_of
from calibrant.methods.networks import RECIPES, NetworkTraining, Recipe
from calibrant.methods.registry import Entry

__all__ = ["IMAGE_METHODS", "RECIPES", "TABLE_3", "Recipe", "gamma_of", "with_recipe"]

CE = NetworkTraining()
AVERAGED = NetworkTraining(Recipe(average=0.98))
DECE = (("strength", 0.5),)
PUBLISHED = MetaRegularization(
    form="published",
    outer_settings=(("strength", None),),
    hypergradient=OneStep(1, scope="head"),
    outer_learning_rate=1e-4,
)

LATE = 0.5
"""The share of the run before held-out data move γ or the L2 strengths.

While the learning rate is high, held-out data favour a γ of about 4 (``flg-sece-whole-early``), which slows learning.
The confidence of the final network depends on γ in the second half. L2 strengths that move from the start can diverge
(``ce-dece-early`` on CIFAR-10).
"""
SHARE, LARGEST = 0.5, 10.0
"""The share of the focal loss in the loss of the layers before the head, and the largest γ.

A focal loss for the whole network costs accuracy (``flg-sece-whole``): it harms the features, not the head. With a
smaller share, a calibrated network needs a larger γ.
"""
GAMMA_NET = MetaRegularization(outer_learning_rate=0.01, start=LATE, body_share=SHARE, largest=LARGEST)
"""γ-Net in its dependable form."""
STRENGTHS = MetaRegularization(outer_variable="l2-units", outer_learning_rate=0.05, start=LATE)
"""L2 strengths of the head's units."""

IMAGE_METHODS: dict[str, Entry] = {
    "ce": Entry(CE, "cross-entropy"),
    "ce-ts": Entry(Calibrated("temperature", CE), "cross-entropy, then temperature scaling"),
    "ce-average": Entry(AVERAGED, "cross-entropy with a moving average of the weights"),
    "ce-average-ts": Entry(Calibrated("temperature", AVERAGED), "the same, then temperature scaling"),
    "focal": Entry(NetworkTraining(loss=LOSSES["focal"](gamma=1.0)), "focal loss, γ = 1"),
    "flsd": Entry(NetworkTraining(loss=LOSSES["flsd"]()), "focal loss with the scheduled γ of FLSD-53"),
    "ls-0.05": Entry(NetworkTraining(loss=LOSSES["label-smoothing"](epsilon=0.05)), "smoothed labels, ε = 0.05"),
    "ls-0.1": Entry(NetworkTraining(loss=LOSSES["label-smoothing"](epsilon=0.1)), "smoothed labels, ε = 0.1"),
    "mixup": Entry(NetworkTraining(mixup=1.0), "mixup, α = 1"),
    "mmce": Entry(NetworkTraining(loss=LOSSES["mmce"]()), "cross-entropy and MMCE"),
    "ce-dece": Entry(
        replace(STRENGTHS, outer_loss="dece", outer_settings=DECE),
        "meta-calibration: L2 strengths of the head's units moved by CE + DECE",
    ),
    "ce-sece": Entry(
        STRENGTHS,
        "L2 strengths of the head's units moved by CE + SECE",
    ),
    "flg": Entry(replace(GAMMA_NET, outer_loss="nll", outer_settings=()), "γ-Net moved by the held-out NLL"),
    "flg-dece": Entry(replace(GAMMA_NET, outer_loss="dece", outer_settings=DECE), "γ-Net moved by CE + DECE"),
    "flg-sece": Entry(GAMMA_NET, "γ-Net moved by CE + squared SECE, with the head treated as solved"),
    "flg-sece-published": Entry(
        PUBLISHED,
        "near the paper's text: published γ-Net, one step ahead, SECE alone; outer batch of 1,024 and Adam at 1e-4",
    ),
    "focal-control": Entry(
        FocalControl(start=LATE, body_share=SHARE, largest=LARGEST),
        "one γ moved by the held-out gap between confidence and accuracy",
    ),
    "recommended": Entry(
        LearnedConfidence(Recipe(average=0.98)),
        "cross-entropy with a moving average of the weights, and a confidence map learned from held-out images",
    ),
}
"""Methods by id; ``recommended`` is compared with ``ce-average-ts``."""

TABLE_3: dict[str, Entry] = {
    "mdca": Entry(NetworkTraining(loss=LOSSES["mdca"]()), "cross-entropy and MDCA (Hebbalaguppe et al. 2022)"),
    "focal-mdca": Entry(NetworkTraining(loss=LOSSES["mdca"](gamma=1.0)), "focal loss and MDCA"),
    "mbls": Entry(NetworkTraining(loss=LOSSES["mbls"]()), "margin-based label smoothing (Liu et al. 2022)"),
    "mbls-0": Entry(NetworkTraining(loss=LOSSES["mbls"](margin=0.0)), "the same without a margin"),
    "focal-sb-ece": Entry(NetworkTraining(loss=LOSSES["sb-ece"](gamma=1.0)), "focal loss and soft-binned ECE"),
    "focal-sb-avuc": Entry(NetworkTraining(loss=LOSSES["sb-avuc"](gamma=1.0)), "focal loss and soft-binned AvUC"),
}
"""Methods of Table 3 of the paper that are trained here."""


def with_recipe(method: Method, recipe: Recipe) -> Method:
    """An image method with another recipe. A calibrated method passes the recipe on to its base."""
    if isinstance(method, Calibrated):
        return replace(method, base=with_recipe(method.base, recipe))
    assert isinstance(method, NetworkTraining)
    return method.with_recipe(recipe)
