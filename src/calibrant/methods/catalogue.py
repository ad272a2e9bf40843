"""The methods by name: those of the first paper, those of the second for image networks, and all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from calibrant.bilevel import OneStep
from calibrant.losses import LOSSES
from calibrant.methods.bo4sc import BO4SC
from calibrant.methods.confidence import LearnedConfidence
from calibrant.methods.core.method import Method
from calibrant.methods.image_networks import RECIPES, NetworkTraining, Recipe, Reweighting
from calibrant.methods.meta_regularization import FocalControl, MetaRegularization
from calibrant.methods.self_calibrated import SelfCalibrated
from calibrant.methods.standard import STOPPED, Calibrated, Ensemble, Standard

__all__ = ["ALL_METHODS", "IMAGE_METHODS", "METHODS", "RECIPES", "TABLE_3", "Entry", "Recipe", "with_recipe"]


@dataclass(frozen=True)
class Entry:
    """A method with its settings, and a one-line summary."""

    method: Method
    summary: str


METHODS: dict[str, Entry] = {
    "standard": Entry(Standard(), "cross-entropy for a fixed number of epochs, as published"),
    "standard-stopped": Entry(STOPPED, "cross-entropy, returned to its best validation loss"),
    "isotonic": Entry(
        Calibrated("isotonic-confidence"),
        "standard, then isotonic regression of the confidence on the validation part, as published",
    ),
    "temperature": Entry(Calibrated("temperature"), "standard, then temperature scaling on the validation part"),
    "isotonic-stopped": Entry(
        Calibrated("isotonic-confidence", STOPPED), "standard-stopped, then isotonic regression of the confidence"
    ),
    "temperature-stopped": Entry(Calibrated("temperature", STOPPED), "standard-stopped, then temperature scaling"),
    "label-smoothing": Entry(
        Standard(patience=200, smoothing=0.05), "smoothed labels (ε = 0.05), returned to the best validation loss"
    ),
    "focal": Entry(Standard(patience=200, gamma=1.0), "focal loss (γ = 1), returned to the best validation loss"),
    "ensemble": Entry(Ensemble(), "the mean of five stopped networks"),
    "bo4sc": Entry(BO4SC(), "a weight per training sample, learned by hypergradients (Sanguin et al. 2024)"),
    "self-calibrated": Entry(
        SelfCalibrated(embedding=None),
        "cross-fitted networks with learned regularisation and, where needed, label noise",
    ),
}
"""``self-calibrated`` uses plain networks, because the data sets of the first paper have two columns and its results
were measured that way. On tables, the networks embed columns and are members of a pool
(:mod:`studies.tables`)."""


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
    "ce-sece": Entry(STRENGTHS, "L2 strengths of the head's units moved by CE + SECE"),
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
    """An image method with another recipe; its moving average and choice of the best state are kept.

    A calibrated method passes the recipe on to its base.
    """
    if isinstance(method, Calibrated):
        return replace(method, base=with_recipe(method.base, recipe))
    assert isinstance(method, NetworkTraining)
    own = method.recipe
    select = recipe.select if own.select == "last" else own.select
    return replace(method, recipe=replace(recipe, average=own.average, select=select))


ALL_METHODS: dict[str, Entry] = {
    **IMAGE_METHODS,
    **TABLE_3,
    "weights": Entry(Reweighting(), "one weight per training sample, learned from clean held-out labels"),
    **METHODS,
}
"""Methods by name. ``focal`` is the one of the first paper.

The second paper's methods train by SGD with a recipe for image networks. For other networks, choose ``epochs`` and
``learning_rate``.
"""
