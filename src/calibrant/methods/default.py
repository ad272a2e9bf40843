"""Which method trains a network of your own when none is named."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import nn

from calibrant.methods.averaged import Averaged
from calibrant.methods.base import Method
from calibrant.methods.baselines import Calibrated, Ensemble
from calibrant.methods.cross_fitted import CrossFitted
from calibrant.methods.images import IMAGE_METHODS
from calibrant.methods.networks import NetworkTraining, Recipe, head_and_width
from calibrant.methods.newness import is_new
from calibrant.methods.standard import Standard
from calibrant.methods.task import FULL_BATCH, Model, Task, Unchanged

PARAMETERS = 1_000_000
"""The largest network that the default trains several times."""
NETWORKS = 3
"""How many networks small data get."""
PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128)
BEST = Standard(epochs=None, learning_rate=0.001, batch_size=128, best=True)
STEPS, PASSES = 1200, 20
NEW = Averaged(steps=STEPS, passes=PASSES)
TUNED = Averaged(steps=400, passes=4)
TUNED_LARGE = Averaged(learning_rate=0.0001, steps=400, passes=4)
"""How one network is trained: a new one, and one that was trained before, with up to a million parameters or more."""
ANY_NETWORK = Recipe(batch_size=128, learning_rate=0.003, adam=True, select="nll", eager=True)


def default_method(model: Model | None, task: Task) -> Method:
    """The method for a model and a task that name none.

    * Small data, at most 4,096 training samples, for a model of at most a million parameters: with a validation part
      three networks, each trained as below; their mean probability has a temperature fitted on the validation part.
      Without a validation part :class:`CrossFitted`, whose networks judge one another on folds; the samples must be in
      memory.
    * More samples in memory, a validation part, and a new model with a head (one linear layer that gives the logits):
      :func:`recommended`, one network.
    * Else one network, :class:`Averaged`, with a temperature fitted on the validation part if there is one.

    A model that was trained before (:func:`calibrant.methods.newness.is_new` says no) is fine-tuned in fewer steps, and
    a large one at a lower learning rate.
    """
    if few(task) and (model is None or size_of(example_of(model, task)) <= PARAMETERS):
        return several_networks(model, task, None)
    if model is None:
        return one_network(model, task)
    in_memory = not any(part.loaded for part in (task.train, task.val) if part is not None)
    if in_memory and len(task.train) > FULL_BATCH and task.val is not None and starts_anew(model, task):
        return recommended(task)
    return one_network(model, task)


def one_network(model: Model | None, task: Task) -> Method:
    """One network with averaged weights, and a temperature where there is a validation part."""
    base = training(model, task)
    return base if task.val is None else Calibrated("temperature", base)


def several_networks(model: Model | None, task: Task, count: int | None) -> Method:
    """The mean of some networks. Without a validation part they are trained on folds, or judged by nobody."""
    if task.val is not None and model is not None:
        return Calibrated("temperature", Ensemble(training(model, task), count or NETWORKS))
    if task.train.loaded:
        return one_network(model, task) if count is None else Ensemble(training(model, task), count)
    return CrossFitted() if count is None else CrossFitted(folds=count)


def training(model: Model | None, task: Task) -> Averaged:
    """How each network is trained: one that was trained before in fewer steps, a large one at a lower rate as well."""
    module = None if model is None else example_of(model, task)
    if module is None or is_new(module):
        return NEW
    return TUNED if size_of(module) <= PARAMETERS else TUNED_LARGE


def recommended(task: Task) -> Method:
    """``recommended`` of the second paper's study, with a recipe for any network, and a temperature.

    The regularisation is moved by the validation part while the network is trained. The same part chooses the state
    and fits the temperature: outer variables act on validation samples only through the training of the network, so
    that they can hardly fit single ones, and a further part would cost labels. Training is Adam with a one-cycle
    schedule, 1,200 steps or 20 epochs where those are more, in the place of an image network's SGD; the state of least
    validation NLL takes the place of the moving average.
    """
    method = IMAGE_METHODS["recommended"].method
    base = method.base if isinstance(method, Calibrated) else method
    assert isinstance(base, NetworkTraining)
    epochs = max(PASSES, -(-STEPS // (len(task.train) // ANY_NETWORK.batch_size)))
    return Calibrated("temperature", replace(base, recipe=replace(ANY_NETWORK, epochs=epochs)))


def starts_anew(model: Model, task: Task) -> bool:
    """Whether a model has a head and random initial parameters."""
    module = copy.deepcopy(example_of(model, task))
    if isinstance(model, Unchanged) or not is_new(module):
        return False
    try:
        head_and_width(module, task)
    except ValueError:
        return False  # no single linear layer gives the logits
    return True


def few(task: Task) -> bool:
    """Whether there are few training samples; a loader that does not say how many it has may have many."""
    try:
        return len(task.train) <= FULL_BATCH
    except ValueError:
        return False


def example_of(model: Model, task: Task) -> nn.Module:
    """The module, or one that a factory builds."""
    if isinstance(model, nn.Module):
        return model
    return model.module if isinstance(model, Unchanged) else model(task.seed)


def size_of(module: nn.Module) -> int:
    """How many parameters a module has."""
    return sum(p.numel() for p in module.parameters())
