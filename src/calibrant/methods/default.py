"""Which method trains a network of your own when none is named."""

from __future__ import annotations

import torch
from torch import nn

from calibrant.methods.base import Method
from calibrant.methods.baselines import Calibrated
from calibrant.methods.cross_fitted import CrossFitted
from calibrant.methods.standard import Standard
from calibrant.methods.task import FULL_BATCH, Model, Task, Unchanged
from calibrant.models.functional import FunctionalModule

PARAMETERS = 1_000_000
"""The largest network that the default trains several times."""
PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128)
BEST = Standard(epochs=None, learning_rate=0.001, batch_size=128, best=True)


def default_method(model: Model | None, task: Task) -> Method:
    """The method for a model and a task that name none.

    * :class:`CrossFitted` where at most 4,096 training samples are in memory, and the model has at most a million
      parameters, can be drawn anew and was not trained before;
    * else, with a validation part, plain training (Adam, 1,200 steps or 20 epochs where those are more) that returns to
      its best validation loss, followed by temperature scaling on that part;
    * else plain training of that length.
    """
    parts = [part for part in (task.train, task.val) if part is not None]
    small = not any(part.loaded for part in parts) and len(task.train) <= FULL_BATCH
    if small and (model is None or trains_again(model)):
        return CrossFitted()
    return PLAIN if task.val is None else Calibrated("temperature", BEST)


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
