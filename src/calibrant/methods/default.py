"""Which method trains a network of your own when none is named."""

from __future__ import annotations

from torch import nn

from calibrant.methods.averaged import Averaged
from calibrant.methods.base import Method
from calibrant.methods.baselines import Calibrated, Ensemble
from calibrant.methods.cross_fitted import CrossFitted
from calibrant.methods.newness import is_new
from calibrant.methods.standard import Standard
from calibrant.methods.task import FULL_BATCH, Model, Task, Unchanged
from calibrant.methods.varied_rates import VariedRates

PARAMETERS = 1_000_000
"""The largest network that the default trains several times."""
NETWORKS = 3
"""How many networks small data in a loader get."""
PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128)
BEST = Standard(epochs=None, learning_rate=0.001, batch_size=128, best=True)
NEW = Averaged()
TUNED = Averaged(steps=800, passes=4)
TUNED_LARGE = Averaged(learning_rate=0.0001, steps=400, passes=4)
"""How one network is trained: a new one, and one that was trained before, with up to a million parameters or more."""


def default_method(model: Model | None, task: Task) -> Method:
    """The method for a model and a task that name none.

    Small data are at most 4,096 training samples, for a model of at most a million parameters.

    * Small data in memory and a new model: :class:`CrossFitted`, five networks on folds of all samples, which judge one
      another, so that no label is given up for validation.
    * Small data in a loader, or a model that was trained before, with a validation part: :class:`VariedRates`, three
      networks at different learning rates, of which the validation part keeps those that are best together; their mean
      probability has a temperature fitted on that part.
    * Else one network, :class:`Averaged`, with a temperature fitted on the validation part if there is one. The
      temperature can be moved into the network, so that the result is a module of the model's own class.

    A model that was trained before (:func:`calibrant.methods.newness.is_new` says no) is fine-tuned in fewer steps, and
    a large one at a lower learning rate.
    """
    if few(task) and (model is None or size_of(example_of(model, task)) <= PARAMETERS):
        loaded = any(part.loaded for part in (task.train, task.val) if part is not None)
        if not loaded and (model is None or (not isinstance(model, Unchanged) and is_new(example_of(model, task)))):
            return CrossFitted()
        if task.val is not None and model is not None:
            return several_networks(model, task, NETWORKS)
    return one_network(model, task)


def one_network(model: Model | None, task: Task) -> Method:
    """One network with averaged weights, and a temperature where there is a validation part."""
    base = training(model, task)
    return base if task.val is None else Calibrated("temperature", base)


def several_networks(model: Model, task: Task, count: int) -> Method:
    """The mean of some networks, with a temperature; without a validation part those of folds, or of a plain mean."""
    if task.val is not None:
        return Calibrated("temperature", VariedRates(training(model, task), count))
    return Ensemble(training(model, task), count) if task.train.loaded else CrossFitted(folds=count)


def training(model: Model | None, task: Task) -> Averaged:
    """How each network is trained: one that was trained before in fewer steps, a large one at a lower rate as well."""
    module = None if model is None else example_of(model, task)
    if module is None or is_new(module):
        return NEW
    return TUNED if size_of(module) <= PARAMETERS else TUNED_LARGE


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
