"""``calibrant.fit``: any method on a network of your own, with tensors or loaders."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from calibrant.bilevel import Callback
from calibrant.data.batch import map_tensors
from calibrant.methods.base import Compile, Method
from calibrant.methods.default import default_method
from calibrant.methods.fitted import Trained
from calibrant.methods.loaded import as_part, checked
from calibrant.methods.registry import METHODS
from calibrant.methods.task import Model, Part, Task, Unchanged
from calibrant.models.outputs import call, logits_of


def fit(
    model: Model,
    train: Any,
    val: Any = None,
    *,
    method: Method | str | None = None,
    callbacks: Sequence[Callback] = (),
    seed: int = 0,
    compile: Compile = "auto",
    labels: str | None = None,
    redraw: bool = True,
) -> Trained:
    """Train a network of your own with any method of :mod:`calibrant.methods`.

    Parameters
    ----------
    model : nn.Module, or ``callable(seed) -> nn.Module``
        Inputs to logits, (n, C). A module is copied; its present parameters are the start, and their device is where
        training runs. Methods that train several networks (``SelfCalibrated``, ``Ensemble``) draw the parameters of
        each anew, as its layers do; a function builds each network itself.
    train, val : ``(inputs, labels)`` as tensors or arrays, or a loader
        Labels are whole numbers from 0 to C − 1. Inputs may be a mapping, whose entries the model takes by name. A
        loader must be iterable again for each epoch; its batches are ``(inputs, labels)``, or mappings such as
        ``{"input_ids": …, "attention_mask": …, "labels": …}``. A loader without a length is read once to count its
        batches. For weights of single samples the batches must say which samples they hold:
        ``DataLoader(calibrant.data.Indexed(dataset), …)``. Methods that deal out folds read a loader into memory.
        ``val`` is the outer level's data; not all methods need it. It also chooses the state and fits the temperature
        where a method does so: no further part is split off.
    method : Method, or its name in ``calibrant.methods.METHODS``
        Default: :func:`calibrant.methods.default_method`. ``hidden`` and ``activation`` of a method are not used, nor
        its ``batch_size`` where loaders are given.
    callbacks : sequence of :class:`calibrant.bilevel.Callback`
    seed : int
        Order of batches, dropout, augmentation, and parameters that are drawn anew.
    compile : {"auto", None, "trace", "inductor"}
        See :func:`calibrant.bilevel.solve`. ``"auto"`` leaves it to the method, which runs modules of your own eagerly
        unless it says otherwise. ``"trace"`` is faster for small networks and long runs.
    labels : str, optional
        The name of the labels where a loader gives mappings. Default: the first of "labels", "label", "targets",
        "target" and "y".
    redraw : bool
        False starts every network of a method from the given parameters: for a pretrained model.

    Examples
    --------
    >>> import torch, calibrant
    >>> x = torch.randn(120, 2); y = (x[:, 0] > 0).long()
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> method = calibrant.methods.BO4SC(steps=5, epochs=20)
    >>> result = calibrant.fit(net, (x[:80], y[:80]), (x[80:], y[80:]), method=method)
    >>> result.sample_weights.shape, result.probs(x).shape
    (torch.Size([80]), torch.Size([120, 2]))
    """
    example = model if isinstance(model, nn.Module) else model(seed)
    first = as_part(train, example, labels)
    classes = count_classes(example, first)
    second = None if val is None else checked(as_part(val, example, labels), classes)
    start = Unchanged(model) if isinstance(model, nn.Module) and not redraw else model
    task = Task(checked(first, classes), second, classes, seed, start)
    fitted = chosen(method, task).fit(task, callbacks=callbacks, compile=compile)
    modules = [network.export(copy.deepcopy(example)).eval() for network in fitted.networks]
    return Trained(fitted, tuple(modules))


def chosen(method: Method | str | None, task: Task) -> Method:
    """The method that is meant: a value, a name in the table of methods, or the default."""
    if method is None:
        return default_method(task.model, task)
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, or a Method; got {method!r}.")
        return METHODS[method].method
    if not isinstance(method, Method):
        raise TypeError(f"method must be a value such as calibrant.methods.Standard(); got {method!r}.")
    return method


def count_classes(model: nn.Module, part: Part) -> int:
    """How many logits the network gives. A copy is called, so that nothing in the given one changes."""
    inputs = map_tensors(lambda t: t[:2], part.inputs)
    inputs = inputs if part.prepare is None else part.prepare(inputs)
    with torch.no_grad():
        logits = logits_of(call(copy.deepcopy(model).eval(), inputs))
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(
            "The model must give one row of logits for each sample, one for each of two or more classes; got "
            f"{tuple(logits.shape)}."
        )
    return logits.shape[1]
