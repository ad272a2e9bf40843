"""Which method trains a network of your own when none is named."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from calibrant.methods.averaged import Averaged
from calibrant.methods.base import Method
from calibrant.methods.baselines import Calibrated
from calibrant.methods.cross_fitted import CrossFitted
from calibrant.methods.images import IMAGE_METHODS
from calibrant.methods.loaded import Loaded
from calibrant.methods.networks import NetworkTraining, Recipe, head_and_width
from calibrant.methods.newness import is_new
from calibrant.methods.standard import Standard
from calibrant.methods.task import FULL_BATCH, Model, Part, Task, Unchanged
from calibrant.models.functional import FunctionalModule

PARAMETERS = 1_000_000
"""The largest network that the default trains several times."""
PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128)
BEST = Standard(epochs=None, learning_rate=0.001, batch_size=128, best=True)
STEPS, PASSES = 1200, 20
RATES = {"new": 0.003, "small": 0.001, "large": 0.0001}
"""Largest learning rates: of new networks, and of trained ones with up to a million parameters and with more."""
ANY_NETWORK = Recipe(batch_size=128, learning_rate=RATES["new"], adam=True, select="nll", eager=True)
LOOKED_AT = 4
"""Samples of a loader's data set that are read twice to see whether they change."""


def default_method(model: Model | None, task: Task) -> Method:
    """The method for a model and a task that name none.

    * :class:`CrossFitted`, five networks, where there are at most 4,096 training samples and the model has at most a
      million parameters. The samples are in memory, or in a loader that can be read into memory without changing what
      it gives (:func:`can_be_read`). New networks are drawn anew for each fold; trained ones start as they are;
    * :func:`recommended`, one network, where more samples are in memory, there is a validation part, and the model is
      new and has a head (one linear layer that gives the logits);
    * else :class:`Averaged`, one network, followed by temperature scaling on the validation part if there is one.
    """
    if small(task) and (model is None or trains_again(model)):
        return CrossFitted()
    in_memory = not any(part.loaded for part in _parts(task))
    many = len(task.train) > FULL_BATCH if in_memory else False
    if in_memory and many and task.val is not None and model is not None and starts_anew(model, task):
        return recommended(task)
    return one_network(model, task)


def one_network(model: Model | None, task: Task) -> Method:
    """One network with averaged weights, and a temperature where there is a validation part."""
    base = Averaged(learning_rate=learning_rate(model, task))
    return base if task.val is None else Calibrated("temperature", base)


def learning_rate(model: Model | None, task: Task) -> float:
    """The largest learning rate: lower for a network that was trained before, and for a large one lower still."""
    module = _example(model, task)
    if module is None or is_new(module):
        return RATES["new"]
    return RATES["small" if _size(module) <= PARAMETERS else "large"]


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
    module = copy.deepcopy(_example(model, task))
    if module is None or isinstance(model, Unchanged) or not is_new(module):
        return False
    try:
        head_and_width(module, task)
    except ValueError:
        return False  # no single linear layer gives the logits
    return True


def trains_again(model: Model) -> bool:
    """Whether several networks may be trained in the place of this one: it is small, and copies of it can be made."""
    if isinstance(model, Unchanged):
        return _size(model.module) <= PARAMETERS
    if not isinstance(model, nn.Module):
        return _size(model(0)) <= PARAMETERS
    if _size(model) > PARAMETERS or not is_new(model):
        return False
    try:
        FunctionalModule(model).draw(0)
    except ValueError:
        return False  # a layer that does not say how to draw its parameters
    return True


def small(task: Task) -> bool:
    """Whether there are few training samples, in memory or in loaders that can be read into memory."""
    for part in _parts(task):
        if isinstance(part, Loaded) and not can_be_read(part):
            return False
    if len(task.train) > FULL_BATCH or any(len(part) > FULL_BATCH for part in _parts(task) if part.loaded):
        return False
    try:
        task.read()
    except ValueError:
        return False  # batches that are padded to different lengths
    return True


def can_be_read(part: Loaded) -> bool:
    """Whether a loader gives every sample once in an epoch, the same at every look, so that memory can stand for it.

    A few samples are read twice: random augmentation shows. Samplers of other kinds than sequential and random order
    may leave out or repeat samples on purpose.
    """
    loader = part.source
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    if type(loader.batch_sampler) is not BatchSampler or type(loader.sampler) not in (SequentialSampler, RandomSampler):
        return False
    if isinstance(loader.sampler, RandomSampler) and loader.sampler.replacement:
        return False
    try:
        count = len(loader.dataset)
    except (TypeError, NotImplementedError):
        return False
    if not 0 < count <= FULL_BATCH:
        return False
    rows = range(min(LOOKED_AT, count))
    with torch.random.fork_rng(devices=[]):
        return all(_same(loader.dataset[row], loader.dataset[row]) for row in rows)


def _same(first: Any, second: Any) -> bool:
    """Whether two looks at a sample gave the same values."""
    a, b = pytree.tree_leaves(first), pytree.tree_leaves(second)
    if len(a) != len(b):
        return False
    for one, two in zip(a, b, strict=True):
        try:
            if not bool(torch.equal(torch.as_tensor(one), torch.as_tensor(two))):
                return False
        except (TypeError, ValueError, RuntimeError):
            if one is not two and one != two:
                return False
    return True


def _parts(task: Task) -> list[Part]:
    return [part for part in (task.train, task.val) if part is not None]


def _example(model: Model | None, task: Task) -> nn.Module | None:
    if model is None or isinstance(model, nn.Module):
        return model
    return model.module if isinstance(model, Unchanged) else model(task.seed)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
