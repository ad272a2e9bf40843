"""Which method trains a network of your own when none is named."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from calibrant.methods.base import Method
from calibrant.methods.baselines import Calibrated
from calibrant.methods.cross_fitted import CrossFitted
from calibrant.methods.images import IMAGE_METHODS
from calibrant.methods.networks import NetworkTraining, Recipe, head_and_width
from calibrant.methods.standard import Standard
from calibrant.methods.task import FULL_BATCH, Model, Task, Unchanged
from calibrant.models.functional import FunctionalModule

PARAMETERS = 1_000_000
"""The largest network that the default trains several times."""
PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128)
BEST = Standard(epochs=None, learning_rate=0.001, batch_size=128, best=True)
STEPS, PASSES = 1200, 20
ANY_NETWORK = Recipe(batch_size=128, learning_rate=0.003, adam=True, select="nll", eager=True)


def default_method(model: Model | None, task: Task) -> Method:
    """The method for a model and a task that name none.

    * :class:`CrossFitted` where at most 4,096 training samples are in memory, and the model has at most a million
      parameters, can be drawn anew and was not trained before;
    * :func:`recommended` where more samples are in memory, there is a validation part, and the model has a head (one
      linear layer that gives the logits) and was not trained before;
    * else, with a validation part, plain training (Adam, 1,200 steps or 20 epochs where those are more) that returns to
      its best validation loss, followed by temperature scaling on that part;
    * else plain training of that length.
    """
    parts = [part for part in (task.train, task.val) if part is not None]
    in_memory = not any(part.loaded for part in parts)
    small = in_memory and len(task.train) <= FULL_BATCH
    if small and (model is None or trains_again(model)):
        return CrossFitted()
    if task.val is None:
        return PLAIN
    if in_memory and not small and model is not None and starts_anew(model, task):
        return recommended(task)
    return Calibrated("temperature", BEST)


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
    if isinstance(model, Unchanged):
        return False
    module = copy.deepcopy(model) if isinstance(model, nn.Module) else model(task.seed)
    if was_trained(module):
        return False
    try:
        head_and_width(module, task)
    except ValueError:
        return False  # no single linear layer gives the logits
    return True


def trains_again(model: Model) -> bool:
    """Whether several networks may be trained in the place of this one: it is small, and its start is a random one."""
    if isinstance(model, Unchanged):
        return False
    if not isinstance(model, nn.Module):
        return sum(p.numel() for p in model(0).parameters()) <= PARAMETERS
    if was_trained(model) or sum(p.numel() for p in model.parameters()) > PARAMETERS:
        return False
    try:
        FunctionalModule(model).draw(0)
    except ValueError:
        return False  # a layer that does not say how to draw its parameters
    return True


def was_trained(model: nn.Module) -> bool:
    """Whether a module shows that it was trained before: frozen parameters, or norms that have seen batches."""
    if any(not p.requires_grad for p in model.parameters()):
        return True
    counts = [b for name, b in model.named_buffers() if name.endswith("num_batches_tracked")]
    return any(bool(torch.as_tensor(count) > 0) for count in counts)
