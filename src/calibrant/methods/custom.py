"""``calibrant.fit``: any method on a network of your own, with tensors or loaders."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant._device import resolve_device
from calibrant.bilevel import Callback
from calibrant.data.batch import map_tensors
from calibrant.methods.base import Compile, Method
from calibrant.methods.default import default_method, one_network, several_networks
from calibrant.methods.freezing import Freeze, frozen
from calibrant.methods.loaded import as_part, checked
from calibrant.methods.newness import is_new
from calibrant.methods.plain_modules import form_of
from calibrant.methods.registry import METHODS
from calibrant.methods.safeguards import Interruptible, Opening, Progress, Resumable
from calibrant.methods.task import Model, Part, Task, Unchanged
from calibrant.methods.trained import Trained
from calibrant.methods.watching import Watcher
from calibrant.models.outputs import call, logits_of


def fit(
    model: Model,
    train: Any,
    val: Any = None,
    *,
    method: Method | str | None = None,
    epochs: int | None = None,
    freeze: Freeze | None = None,
    head: str | None = None,
    device: str | torch.device | None = None,
    verbose: bool = False,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 30.0,
    seed: int = 0,
    compile: Compile = "auto",
    labels: str | None = None,
    learning_rate: float | None = None,
    networks: int | None = None,
    redraw: bool | None = None,
) -> Trained:
    """Train a network of your own and calibrate it.

    Parameters
    ----------
    model : nn.Module, or ``callable(seed) -> nn.Module``
        Inputs to logits, (n, C). A module is copied and never changed; its present parameters are the start, so that a
        pretrained network is fine-tuned. Parameters with ``requires_grad=False`` stay as they are. Where several
        networks are trained, those of a new model are drawn anew, as its layers do (see ``redraw``); a function builds
        each network itself.
    train, val : ``(inputs, labels)`` as tensors or arrays, or a loader
        Labels are whole numbers from 0 to C − 1. Inputs may be a mapping, whose entries the model takes by name, or a
        tuple, whose entries it takes by position. A loader must be iterable again for each epoch; its batches are
        ``(inputs, labels)``, ``((ids, mask), labels)``, ``(ids, mask, labels)`` for a model with two arguments, or
        mappings such as ``{"input_ids": …, "attention_mask": …, "labels": …}``. A loader without a length is read once
        to count its batches. For weights of single samples the batches must say which samples they hold:
        ``DataLoader(calibrant.data.Indexed(dataset), …)``. Methods that deal out folds read a loader into memory.
        ``val`` chooses the state and fits the temperature, and is the outer level's data where a method has one. Not
        all methods need it. Keep other data for testing.
    method : Method, or its name in ``calibrant.methods.METHODS``
        Default: :func:`calibrant.methods.default_method`. ``hidden`` and ``activation`` of a method are not used, nor
        its ``batch_size`` where loaders are given.
    epochs : int, optional
        Passes over the training data. Default: the method's.
    freeze : "backbone" or names of submodules and parameters, optional
        What training leaves as it is. "backbone" is everything but the head. Frozen layers run in evaluation mode.
    head : str, optional
        The name of the layer that gives the logits, where it cannot be found.
    device : str, optional
        "cpu", "cuda", "cuda:1" or "auto". Default: the device of the model.
    verbose : bool
        Show progress on standard error: a bar on a terminal, else a line every few seconds.
    callbacks : sequence of :class:`calibrant.bilevel.Callback`
        For example :class:`calibrant.integrations.Tracker`.
    checkpoint : path, optional
        A folder for checkpoints. The same call goes on from them after a crash or a kill, and ends with the same
        result. The files are removed when training ends.
    checkpoint_seconds : float
        Time between two checkpoints.
    seed : int
        Order of batches, dropout, augmentation, and parameters that are drawn anew.
    compile : {"auto", None, "trace", "inductor"}
        See :func:`calibrant.bilevel.solve`. ``"auto"`` leaves it to the method, which runs modules of your own eagerly
        unless it says otherwise. ``"trace"`` is faster for small networks and long runs.
    labels : str, optional
        The name of the labels where a loader gives mappings. Default: the first of "labels", "label", "targets",
        "target" and "y".
    learning_rate : float, optional
        The largest learning rate. Default: the method's.
    networks : int, optional
        How many networks are trained; the answer is their mean. 1 trains faster, and ``module`` is then of your class.
        By default :func:`calibrant.methods.default_method` decides. It cannot be combined with ``method``.
    redraw : bool, optional
        Whether methods that train several networks draw the parameters of each anew. Default: a network whose
        parameters look as torch draws them is drawn anew, and one that was trained before is the start of each.

    Returns
    -------
    Trained
        ``probs``, ``predict`` and ``confidence`` take inputs or a loader; ``module`` is a plain torch module with
        calibrated logits; ``save`` and ``load`` use one file.

    Notes
    -----
    Ctrl-C ends training and returns the best state so far, with a warning. A second Ctrl-C raises KeyboardInterrupt.

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
    given = example_of(model, seed, device)
    first = as_part(train, given, labels)
    second = None if val is None else as_part(val, given, labels, "val")
    few = few_inputs(first)
    classes = count_classes(given, few)
    first = checked(first, classes)
    second = None if second is None else checked(second, classes, "val")
    warn_about(train, val, first)
    start: Model = model
    if isinstance(model, nn.Module):
        start = frozen(given, freeze, few, head)
        again = is_new(given) if redraw is None else redraw
        start = start if again else Unchanged(start)
    elif freeze is not None:
        raise ValueError("freeze needs a module; let the function that builds the model freeze its parts.")
    form = form_of(given, few, head)
    task = Task(first, second, classes, seed, start)
    settings = {"epochs": epochs, "learning_rate": learning_rate}
    wanted = with_settings(chosen(method, task, networks), {k: v for k, v in settings.items() if v is not None})
    resumable = None if checkpoint is None else Resumable(checkpoint, checkpoint_seconds)
    interrupt = Interruptible()
    guards: list[Callback] = [Opening(resumable), *([resumable] if resumable else []), interrupt, Progress(verbose)]
    watchers = [callback for callback in callbacks if isinstance(callback, Watcher)]
    for watcher in watchers:
        watcher.watch(second)
    with interrupt.listening():
        fitted = wanted.fit(task, callbacks=[*guards, *callbacks], compile=compile)
    if interrupt.pressed and not any(getattr(network, "outer_steps", 1) for network in fitted.networks):
        raise KeyboardInterrupt
    interrupt.tell()
    if resumable is not None and not interrupt.pressed:
        resumable.clear()
    modules = [network.export(copy.deepcopy(given)).eval() for network in fitted.networks]
    result = Trained(fitted, tuple(modules), form)
    for watcher in watchers:
        watcher.finish(result)
    return result


def example_of(model: Model, seed: int, device: str | torch.device | None) -> nn.Module:
    """The network, or one that a function builds, on the device where training runs."""
    if not isinstance(model, nn.Module) and not callable(model):
        raise TypeError(f"model must be an nn.Module, or a function of a seed that gives one; got {model!r}.")
    given = model if isinstance(model, nn.Module) else model(seed)
    if not isinstance(given, nn.Module) or next(given.parameters(), None) is None:
        raise TypeError(f"model must be an nn.Module with parameters to train; got {type(given).__name__}.")
    if device is None:
        return given
    where = device if isinstance(device, torch.device) else resolve_device(device)
    return copy.deepcopy(given).to(where)


def chosen(method: Method | str | None, task: Task, networks: int | None = None) -> Method:
    """The method that is meant: a value, a name in the table of methods, or the default."""
    if networks is not None and (method is not None or networks < 1):
        raise ValueError(f"networks must be at least 1, and is for the default method only; got {networks}.")
    if networks == 1:
        return one_network(task.model, task)
    if networks is not None:
        assert task.model is not None
        return several_networks(task.model, task, networks)
    if method is None:
        return default_method(task.model, task)
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, or a Method; got {method!r}.")
        return METHODS[method].method
    if not isinstance(method, Method):
        raise TypeError(f"method must be a value such as calibrant.methods.Standard(); got {method!r}.")
    return method


def with_settings(method: Method, settings: dict[str, Any]) -> Method:
    """The same method with other settings; a method that is made of others, or has a recipe, passes them on."""
    if not settings:
        return method
    if settings.get("epochs", 1) < 1:
        raise ValueError(f"epochs must be at least 1; got {settings['epochs']}.")
    fields = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    if settings.keys() <= fields.keys():
        return dataclasses.replace(method, **settings)
    if dataclasses.is_dataclass(recipe := fields.get("recipe")) and not isinstance(recipe, type):
        return dataclasses.replace(method, recipe=dataclasses.replace(recipe, **settings))  # type: ignore[call-arg]
    if isinstance(base := fields.get("base"), Method):
        return dataclasses.replace(method, base=with_settings(base, settings))  # type: ignore[call-arg]
    names = " and ".join(settings)
    raise ValueError(f"{type(method).__name__} has no {names}; leave {names} out and set the method's own fields.")


def few_inputs(part: Part) -> Any:
    """Two inputs of a part, as the network takes them."""
    inputs = map_tensors(lambda t: t[:2], part.inputs)
    return inputs if part.prepare is None else part.prepare(inputs)


def count_classes(model: nn.Module, inputs: Any) -> int:
    """How many logits the network gives. A copy is called, so that nothing in the given one changes."""
    with torch.no_grad():
        logits = logits_of(call(copy.deepcopy(model).eval(), inputs))
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(
            "The model must give one row of logits for each sample, one for each of two or more classes; got "
            f"{tuple(logits.shape)} for two samples. For two classes let the last layer have two outputs."
        )
    return logits.shape[1]


def warn_about(train: Any, val: Any, part: Part) -> None:
    """Warn about data that cannot give a good or an honest result."""
    if val is not None and val is train:
        warnings.warn(
            "train and val are the same data. The temperature is then fitted to samples that the network has learned, "
            "and the probabilities will be over-confident. Hold out some samples for val.",
            UserWarning,
            stacklevel=3,
        )
    if part.loaded and len(part.labels) >= 8 and len(part.labels.unique()) == 1:
        warnings.warn(
            f"All {len(part.labels)} samples of the first training batch are of one class. If the data are sorted by "
            "class, shuffle them: DataLoader(…, shuffle=True).",
            UserWarning,
            stacklevel=3,
        )
