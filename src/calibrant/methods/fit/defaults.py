"""The choice of a default method for your own network."""

from __future__ import annotations

from typing import Literal

from torch import nn

from calibrant.methods.averaged import AveragedNetwork
from calibrant.methods.core.method import Method
from calibrant.methods.core.samples import FULL_BATCH
from calibrant.methods.core.task import Model, Task
from calibrant.methods.fit.untrained import is_untrained
from calibrant.methods.recipes import recipe_for
from calibrant.methods.standard import MOST, Calibrated, CrossFitted, Ensemble, VariedRates
from calibrant.models.functional.user_modules import unwrapped

Calibration = Literal["auto", "temperature"]

PARAMETERS = 1_000_000
"""The largest network that the default trains several times."""
NETWORKS = 3
"""The number of networks for small data in a loader."""
NEW = AveragedNetwork()
TUNED = AveragedNetwork(steps=800, passes=4)
"""How to train each of several networks: new, or pretrained. One network is trained by its recipe."""


def default_method(
    model: Model | None,
    task: Task,
    calibration: Calibration = "auto",
    pretrained: bool | None = None,
    networks: int | None = None,
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
    (:func:`calibrant.methods.confidence.choose_map`). One network with averaged weights and a confidence
    map is the second paper's ``recommended`` for any module, with two differences. The map is fitted after training,
    because training does not depend on it. No held-out inputs are distorted, because the inputs need not be images. The
    map is a temperature if the validation part has fewer than 1,000 rows, or if cross-validation finds no gain above
    its standard error. ``calibration="temperature"`` always gives a temperature.

    ``pretrained`` says whether a model that is trained alone is fine-tuned; None: its parameters tell. ``networks`` is
    a number of networks for the model instead of the choice above.
    """
    module = None if model is None else model if isinstance(model, nn.Module) else unwrapped(model(task.seed))
    small = few(task)
    if networks is None:
        networks = 1
        if small and (module is None or sum(p.numel() for p in module.parameters()) <= PARAMETERS):
            loaded = any(part.loaded for part in (task.train, task.val) if part is not None)
            if not loaded and (module is None or (task.redraw and is_untrained(module))):
                return CrossFitted()
            networks = 1 if task.val is None else NETWORKS
    base: Method
    if module is None:
        base = NEW
    elif networks == 1:
        base = recipe(module, task, pretrained)
    elif task.val is None:
        return Ensemble(recipe(module, task), networks) if task.train.loaded else CrossFitted(folds=networks)
    elif networks > MOST:
        raise ValueError(
            f"networks must be at most {MOST} with validation data, because all subsets are compared; got {networks}."
        )
    elif small:
        base = VariedRates(NEW if is_untrained(module) else TUNED, networks)
    else:
        base = VariedRates(recipe(module, task), networks)
    if task.val is None:
        return base
    return Calibrated("map" if calibration == "auto" else "prior-temperature", base)


def recipe(module: nn.Module, task: Task, pretrained: bool | None = None) -> AveragedNetwork:
    """The recipe for a network and for the size of the task's batches."""
    batch_size = task.train.batch_size(NEW.batch_size) or len(task.train)
    return recipe_for(module, pretrained, batch_size, few=few(task))


def story_of(method: Method, module: nn.Module) -> str:
    """What a default method trains and why, in one line."""
    if isinstance(method, Calibrated):
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
