"""The choice of a default method for your own network."""

from __future__ import annotations

from typing import Literal

from torch import nn

from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.confidence import WithConfidenceMap
from calibrant.methods.core.method import Method
from calibrant.methods.core.samples import FULL_BATCH
from calibrant.methods.core.task import Model, Task, Unchanged
from calibrant.methods.fit.untrained import is_untrained
from calibrant.methods.recipes import recipe_for
from calibrant.methods.standard import MOST, CrossFitted, Ensemble, Standard, VariedRates
from calibrant.models.functional.user_modules import unwrapped

Calibration = Literal["auto", "temperature"]

PARAMETERS = 1_000_000
"""The largest network that the default trains several times."""
NETWORKS = 3
"""The number of networks for small data in a loader."""
PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128)
BEST = Standard(epochs=None, learning_rate=0.001, batch_size=128, best=True)
"""Plain training, with the last or the best state: the rivals of the default in its test and benchmark."""
NEW = AveragedNetwork()
TUNED = AveragedNetwork(steps=800, passes=4)
"""How to train each of several networks: new, or pretrained. One network is trained by its recipe."""


def default_method(
    model: Model | None, task: Task, calibration: Calibration = "auto", pretrained: bool | None = None
) -> Method:
    """The default method for a model and a task.

    "Small data" means at most 4,096 training samples and a model with at most a million parameters.

    * Small data in memory and a new model: :class:`CrossFitted`, five networks on folds of all samples. Each network is
      evaluated on its held-out fold, so no labels are set aside for validation.
    * Small data with a validation part, in a loader or with a pretrained model: :class:`VariedRates`, three networks
      with different learning rates. The subset with the lowest validation loss is kept.
    * Otherwise one network, :class:`AveragedNetwork`, with the recipe for its kind
      (:data:`calibrant.methods.recipes.RECIPES`).

    In the last two cases, with a validation part, a confidence map follows
    (:class:`calibrant.methods.confidence.WithConfidenceMap`). One network with averaged weights and a confidence
    map is the second paper's ``recommended`` for any module, with two differences. The map is fitted after training,
    because training does not depend on it. No held-out inputs are distorted, because the inputs need not be images. The
    map is a temperature if the validation part has fewer than 1,000 rows, or if cross-validation finds no gain above
    its standard error. ``calibration="temperature"`` always gives a temperature.

    ``pretrained`` says whether a model that is trained alone is fine-tuned; None: its parameters tell.
    """
    if few(task) and (model is None or size_of(example_of(model, task)) <= PARAMETERS):
        loaded = any(part.loaded for part in (task.train, task.val) if part is not None)
        if not loaded and (
            model is None or (not isinstance(model, Unchanged) and is_untrained(example_of(model, task)))
        ):
            return CrossFitted()
        if task.val is not None and model is not None:
            return several_networks(model, task, NETWORKS, calibration)
    return one_network(model, task, calibration, pretrained)


def one_network(
    model: Model | None, task: Task, calibration: Calibration = "auto", pretrained: bool | None = None
) -> Method:
    """One network, trained by the recipe for its kind, and calibrated if there is a validation part."""
    base = NEW if model is None else recipe(model, task, pretrained)
    return base if task.val is None else calibrated(base, calibration)


def several_networks(model: Model, task: Task, count: int, calibration: Calibration = "auto") -> Method:
    """The calibrated mean of several networks. Without a validation part: cross-fitting or a plain ensemble."""
    if task.val is not None:
        if count > MOST:
            raise ValueError(
                f"networks must be at most {MOST} with validation data, because all subsets are compared; got {count}."
            )
        module = example_of(model, task)
        base = (NEW if is_untrained(module) else TUNED) if few(task) else recipe(model, task)
        return calibrated(VariedRates(base, count), calibration)
    return Ensemble(recipe(model, task), count) if task.train.loaded else CrossFitted(folds=count)


def recipe(model: Model, task: Task, pretrained: bool | None = None) -> AveragedNetwork:
    """The recipe for a model and for the size of the task's batches."""
    return recipe_for(example_of(model, task), pretrained, task.train.batch_size(NEW.batch_size) or len(task.train))


def calibrated(base: Method, calibration: Calibration) -> Method:
    """A method followed by a confidence map or a temperature."""
    return WithConfidenceMap(base) if calibration == "auto" else WithConfidenceMap(base, hidden=0)


def story_of(method: Method, module: nn.Module) -> str:
    """What a default method trains and why, in one line."""
    if isinstance(method, WithConfidenceMap):
        return story_of(method.base, module)
    if isinstance(method, AveragedNetwork):
        description = f"{method.kind}: {method.story}" if method.kind else method.story
        return f"{description}, bfloat16" if method.uses_bfloat16(module) else description
    if isinstance(method, VariedRates):
        first = "searched learning rates" if not method.base.kind else f"learning rates around {method.base.rate:g}"
        return f"{'few samples' if not method.base.kind else method.base.kind}: {method.members} networks, {first}"
    if isinstance(method, CrossFitted):
        return f"few samples in memory and a new network: {method.folds} networks on folds of all samples"
    return repr(method)


def few(task: Task) -> bool:
    """Whether there are few training samples. A loader of unknown size is assumed to have many."""
    try:
        return len(task.train) <= FULL_BATCH
    except ValueError:
        return False


def example_of(model: Model, task: Task) -> nn.Module:
    """The module, or one built by a factory."""
    if isinstance(model, Unchanged):
        return model.module
    return model if isinstance(model, nn.Module) else unwrapped(model(task.seed))


def size_of(module: nn.Module) -> int:
    """The number of parameters of a module."""
    return sum(p.numel() for p in module.parameters())
