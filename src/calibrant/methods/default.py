"""Which method trains a network of your own when none is named."""

from __future__ import annotations

import torch
from torch import nn

from calibrant.bilevel import Population
from calibrant.bilevel.level import Level
from calibrant.methods.base import Method, build
from calibrant.methods.baselines import Calibrated
from calibrant.methods.self_calibrated import Pooled, SelfCalibrated
from calibrant.methods.standard import Standard
from calibrant.methods.task import FULL_BATCH, Task

MEMORY = 2 * 2**30
"""Bytes that the activations of cross-fitted networks may take for the default to choose them."""
PLAIN = Standard(epochs=None, learning_rate=0.001, batch_size=128)
CHOSEN = Standard(epochs=None, learning_rate=0.001, batch_size=128, best=True)


def default_method(task: Task) -> Method:
    """The method for a task that names none.

    * :class:`SelfCalibrated` where at most 4,096 training samples are in memory, the networks of its folds fit into 2 GiB
      side by side, and the model can be drawn anew and was not trained before;
    * else, with a validation part, plain training (Adam, 1,200 steps or 20 epochs where those are more) that returns to
      its best validation loss, followed by temperature scaling on that part;
    * else plain training of that length.
    """
    if not task.train.loaded and len(task.train) <= FULL_BATCH and cross_fits(task):
        return SelfCalibrated()
    return PLAIN if task.val is None else Calibrated("temperature", CHOSEN)


def cross_fits(task: Task, method: SelfCalibrated | None = None) -> bool:
    """Whether the folds' networks can be drawn anew and trained side by side, within the memory."""
    method = SelfCalibrated() if method is None else method
    if isinstance(task.model, nn.Module) and was_trained(task.model):
        return False
    if task.val is not None and task.val.loaded:
        return False
    folds = Pooled(method).parts(task)
    try:
        problems = build([Pooled(method)] * 2, folds[:2])
        crowd, batch = Population(problems), problems[0].train_batch(0)
        crowd.inner(
            crowd.initial_params(crowd.initial_phi()),
            crowd.initial_buffers(),
            crowd.initial_phi(),
            crowd.train_batch(0),
        )
        level = Level(problems[0].inner, problems[0].view.differentiable_buffers)
        each = level.measure(problems[0].start, problems[0].initial_buffers(), problems[0].initial_phi(), batch)
    except (RuntimeError, ValueError, NotImplementedError):
        return False  # a layer that has no draw of its own, or does not run under vmap
    return each * len(folds) * min(method.last, method.steps) <= MEMORY


def was_trained(model: nn.Module) -> bool:
    """Whether a module shows that it was trained before: frozen parameters, or norms that have seen batches."""
    if any(not p.requires_grad for p in model.parameters()):
        return True
    counts = [b for name, b in model.named_buffers() if name.endswith("num_batches_tracked")]
    return any(bool(torch.as_tensor(count) > 0) for count in counts)
