"""``calibrant.fit``: train your own network with any method, on tensors or loaders."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from calibrant.base.device import resolve_device
from calibrant.base.settings import shown
from calibrant.bilevel import Callback, NonFiniteError
from calibrant.bilevel.callbacks import as_callbacks
from calibrant.bilevel.running.solver import check_one_process
from calibrant.methods.averaged import Precision, UserSchedule
from calibrant.methods.catalogue import ALL_METHODS
from calibrant.methods.core.method import Compile, Method
from calibrant.methods.core.samples import as_part, checked, few_inputs
from calibrant.methods.core.task import Model, Task
from calibrant.methods.fit.checks import check_precision, count_classes, not_finite, warn_about, warn_at_chance
from calibrant.methods.fit.defaults import Calibration, default_method, story_of
from calibrant.methods.fit.guards import Interruptible, Opening, Progress, Resumable, ValidationScores
from calibrant.methods.fit.plain_module import Freeze, form_of, frozen
from calibrant.methods.fit.trained import Trained
from calibrant.methods.fit.untrained import is_untrained
from calibrant.methods.recipes import as_optimizer
from calibrant.models.functional.global_state import generators_restored
from calibrant.models.functional.user_modules import check_module, copied, unwrapped


def fit(
    model: Model,
    train: Any,
    val: Any = None,
    *,
    method: Method | str | None = "auto",
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
    calibration: Calibration | None = None,
    redraw: bool | None = None,
    pretrained: bool | None = None,
    optimizer: Any = None,
    schedule: UserSchedule | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    precision: Precision = "auto",
) -> Trained:
    """Train your own network and calibrate it.

    Parameters
    ----------
    model : nn.Module, or ``callable(seed) -> nn.Module``
        Maps inputs to logits, (n, C). A module is copied and never changed. Training starts from its parameters, so a
        pretrained network is fine-tuned. Parameters with ``requires_grad=False`` are not trained. If a method trains
        several networks from a new module, it redraws the parameters of each as the layers do (see ``redraw``). A
        function is called once per network. ``DataParallel`` and ``torch.compile`` are removed: the network inside is
        trained and returned. Training uses one process; in a ``torch.distributed`` group of several it is an error.
    train, val : ``(inputs, labels)`` as tensors or arrays, or a loader
        Labels are integers from 0 to C − 1. Inputs may be a mapping, which is passed to the model by name, or a tuple,
        which is passed by position. It must be possible to iterate over a loader once per epoch. Its batches are
        ``(inputs, labels)``, ``((ids, mask), labels)``, ``(ids, mask, labels)`` for a model with two arguments, or
        mappings such as ``{"input_ids": …, "attention_mask": …, "labels": …}``. A loader without a length is read once
        to count its batches. To learn a weight for each sample, batches must contain sample indices: use
        ``DataLoader(calibrant.data.Indexed(dataset), …)``. Methods with folds read a loader into memory. ``val`` is
        used to select the best state, to fit the temperature, and for the outer level of bilevel methods. Not all
        methods need it. Keep separate data for testing.
    method : Method, or its name in ``calibrant.methods.catalogue.ALL_METHODS``
        "auto", the default: :func:`calibrant.methods.default_method`. ``extras["method"]`` of the result says in one
        line what it took and why, and ``verbose=True`` prints it. The fields ``hidden`` and ``activation`` of a method
        are not used. ``batch_size`` is not used with loaders. The second paper's methods, such as "flg-sece",
        "focal-control", "ce" and "recommended", use SGD with a learning rate for image networks; set ``learning_rate``
        for others.
    epochs : int, optional
        Passes over the training data. Default: the method's.
    freeze : "backbone", optional
        Train the head only; all other layers run in evaluation mode. To freeze other parts, set ``requires_grad=False``
        on their parameters and call ``eval()`` on their layers.
    head : str, optional
        The name of the layer that computes the logits. Needed only if it cannot be found automatically.
    device : str, optional
        "cpu", "cuda", "cuda:1" or "auto". Default: the device of the model.
    verbose : bool
        Show progress on standard error: one line on a terminal, otherwise a new line every few seconds.
    callbacks : sequence of :class:`calibrant.bilevel.Callback`
        For example :class:`calibrant.integrations.Tracker`.
    checkpoint : path, optional
        A folder for checkpoints. After a crash, the same call resumes from them and gives the same result. The files
        are removed when training ends.
    checkpoint_seconds : float
        Time between two checkpoints.
    seed : int
        Seed for the order of batches, dropout, augmentation, and redrawn parameters.
    compile : {"auto", None, "trace", "inductor", "graphs"}
        See :func:`calibrant.bilevel.solve`. On a GPU, ``"auto"`` replays the training steps of the default method as
        CUDA graphs if the network allows that; elsewhere it runs your modules eagerly. None never records.
        ``"trace"`` is faster for small networks and long runs. On a GPU, ``"inductor"`` makes the methods of
        :mod:`calibrant.methods.catalogue` use bfloat16 and the channels-last format, too. This is faster, but not every
        module allows it: with channels last, ``view`` fails where ``reshape`` works.
    labels : str, optional
        The key of the labels if a loader yields mappings. Default: the first of "labels", "label", "targets", "target"
        and "y" that is present.
    learning_rate : float, optional
        The largest learning rate. Default: the method's.
    networks : int, optional
        The number of networks to train, with ``val`` at most 10. Predictions are the mean of all of them, or of the
        subset with the lowest loss on ``val``. With 1, training is faster. By default
        :func:`calibrant.methods.default_method` decides. ``networks`` cannot be combined with ``method``.
    calibration : {"auto", "temperature"}, optional
        How the default method calibrates the network on ``val``. "auto", the default, chooses between a confidence map
        and a temperature (:func:`calibrant.methods.confidence.choose_map`); ``extras["confidence"]`` of the result
        tells which. With "temperature" and one network, ``module`` always has the class of your model. It cannot be
        combined with ``method``.
    redraw : bool, optional
        Whether methods that train several networks redraw the parameters of each. Default: they do if the parameters
        look freshly initialised by torch. Otherwise every network starts from the given parameters.

    pretrained : bool, optional
        Whether the network is fine-tuned, with a low learning rate and few steps. Default: the parameters tell
        (:func:`calibrant.methods.fit.untrained.is_pretrained`).
    optimizer : Optimizer, optional
        Your own optimiser instead of the recipe's: one of :mod:`calibrant.bilevel`, such as ``SGD(0.1, momentum=0.9)``,
        or an SGD, Adam or AdamW of ``torch.optim``, of which the settings are used. Its groups of parameters may differ
        in ``lr`` and ``weight_decay``; parameters of the model that it leaves out are not trained. One network is then
        trained, with averaged weights and a calibrated result. This also holds for ``schedule`` and ``loss``.
    schedule : {"one-cycle", "cosine", "constant"} or callable, optional
        The course of the learning rate. A function gets the share of the run that is over, from 0 to 1, and returns a
        factor of the learning rate.
    loss : callable ``(logits, labels) -> losses``, optional
        Your own training loss with one value per sample, or a ``torch.nn.CrossEntropyLoss``, which may have class
        weights and label smoothing. Calibration always minimises the plain log-loss on ``val``.
    precision : {"auto", "float32"}
        "auto" lets the recipes use bfloat16 and the channels-last format on a GPU. If the network fails with these, a
        warning says so and it is trained without them.

    Returns
    -------
    Trained
        ``probs``, ``predict`` and ``confidence`` accept inputs or a loader. ``module`` is a plain torch module with
        calibrated logits. ``save`` and ``load`` use a single file.

    Notes
    -----
    Ctrl-C stops training and returns the best state so far, with a warning. A second Ctrl-C raises KeyboardInterrupt.

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
    check_one_process("calibrant.fit")
    if not isinstance(seed, Integral) or seed < 0:
        raise ValueError(f"seed must be a whole number, 0 or above; got {shown(seed)}.")
    callbacks = as_callbacks(callbacks)
    example = example_of(model, seed, device)
    check_precision(example)
    first = as_part(train, example, labels)
    second = None if val is None else as_part(val, example, labels, "val")
    few = few_inputs(first)
    n_classes = count_classes(example, {"train": few} | ({} if second is None else {"val": few_inputs(second)}))
    first = checked(first, n_classes)
    second = None if second is None else checked(second, n_classes, "val")
    warn_about(train, val, first, n_classes)
    start: Model = model
    if isinstance(model, nn.Module):
        start = frozen(example, freeze, few, head)
        redraw = is_untrained(example) if redraw is None else redraw
    elif freeze is not None:
        raise ValueError("freeze needs a module; got a function. Freeze the parts inside that function instead.")
    form = form_of(example, few, head)
    task = Task(first, second, n_classes, seed, start, head=head, redraw=redraw is not False)
    method = None if isinstance(method, str) and method == "auto" else method
    own_recipe = {"schedule": schedule, "loss": loss}
    own_recipe["optimizer"] = None if optimizer is None else as_optimizer(optimizer, model)
    if method is None and networks is None and any(value is not None for value in own_recipe.values()):
        networks = 1
    if epochs is not None and (not isinstance(epochs, Real) or epochs < 1 or epochs % 1):
        raise ValueError(f"epochs must be at least 1 and a whole number; got {shown(epochs)}.")
    settings = {"epochs": epochs, "learning_rate": learning_rate, **own_recipe}
    settings = {name: value for name, value in settings.items() if value is not None}
    settings |= {} if precision == "auto" else {"precision": precision}
    without = chosen(method, task, networks, calibration, pretrained)
    wanted: Method | None = with_settings(without, settings)
    if wanted is None:
        kind, names = type(without).__name__, " and ".join(settings)
        raise ValueError(f"{kind} has no {names}; leave {names} out and set the fields of the method.")
    story = story_of(wanted, example) if method is None else ""
    if verbose and story:
        print(story, file=sys.stderr)
    if compile != "inductor" and not type(example).__module__.startswith("calibrant.models."):
        wanted = with_settings(wanted, {"eager": True}) or wanted  # only our networks run in any format and precision
    resumable = None if checkpoint is None else Resumable(checkpoint, checkpoint_seconds)
    interrupt = Interruptible()
    checkpoints: list[Callback] = [] if resumable is None else [Opening(resumable), resumable]
    guards = [*checkpoints, interrupt, *([Progress()] if verbose else [])]
    watchers = [callback for callback in (*guards, *callbacks) if isinstance(callback, ValidationScores)]
    for watcher in watchers:
        watcher.watch(second)
    with interrupt.listening(), generators_restored(next(example.parameters())), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        try:
            (fitted,) = wanted.fit_group([wanted], [task], callbacks=[*guards, *callbacks], compile=compile)
            if fitted.failure:
                raise NonFiniteError(fitted.failure)
        except NonFiniteError as error:
            hint = not_finite(first, "train") + not_finite(second, "val")
            raise NonFiniteError(f"{error}{hint}") from error
        except RuntimeError as error:
            if not isinstance(error, CheckpointError) and "use_reentrant=True" not in str(error):
                raise
            raise ValueError(
                f"Gradient checkpointing cannot be combined with {type(wanted).__name__}, which differentiates through "
                "training steps. Turn it off in the network."
            ) from error
    if interrupt.pressed and not any(getattr(network, "outer_steps", 1) for network in fitted.networks):
        raise KeyboardInterrupt
    interrupt.tell()
    if resumable is not None and not interrupt.pressed:
        resumable.clear()
    modules = [network.export(copied(example)).eval() for network in fitted.networks]
    if story:
        in_full = all(getattr(network.problem, "autocast", None) is None for network in fitted.networks)
        fitted.extras["method"] = story.removesuffix(", bfloat16") if in_full else story
    if not interrupt.pressed:
        with generators_restored(next(example.parameters())):
            warn_at_chance(fitted.probs, first if second is None else second)
    result = Trained(fitted, tuple(modules), form)
    for watcher in watchers:
        watcher.finish(result)
    return result


def example_of(model: Model, seed: int, device: str | torch.device | None) -> nn.Module:
    """The network, or one built by the given function, on the training device."""
    is_class = isinstance(model, type) and issubclass(model, nn.Module)
    if is_class or not callable(model):
        advice = " Pass an instance of the class." if is_class else other_models(model)
        raise TypeError(f"model must be an nn.Module or a function from a seed to an nn.Module; got {model!r}.{advice}")
    example = model if isinstance(model, nn.Module) else model(seed)
    if not isinstance(example, nn.Module) or next(example.parameters(), None) is None:
        raise TypeError(f"model must be an nn.Module with trainable parameters; got {type(example).__name__}.")
    example = unwrapped(example)
    check_module(example)
    if device is None:
        if next(example.parameters()).device.type == "mps":
            raise ValueError(
                'model must be on the CPU or a CUDA device, because "mps" has no float64. Pass device="cpu".'
            )
        return example
    where = device if isinstance(device, torch.device) else resolve_device(device)
    return copied(example).to(where)


def other_models(model: Any) -> str:
    """What to use for a classifier of scikit-learn, or for arrays, as the end of a message; empty for others."""
    if hasattr(model, "fit") and hasattr(model, "predict"):
        return " For a classifier of scikit-learn, use calibrant.CrossCalibrated or calibrant.posthoc.CalibratedModel."
    return " For arrays of logits, use calibrant.posthoc." if hasattr(model, "shape") else ""


def chosen(
    method: Method | str | None,
    task: Task,
    networks: int | None = None,
    calibration: Calibration | None = None,
    pretrained: bool | None = None,
) -> Method:
    """The method to use: a given method, one named in ``ALL_METHODS``, or the default."""
    if networks is not None and (method is not None or networks < 1):
        raise ValueError(f"networks must be at least 1, and is for the default method only; got {networks}.")
    if calibration not in (None, "auto", "temperature") or (calibration is not None and method is not None):
        raise ValueError(
            "calibration must be 'auto' or 'temperature', and is for the default method only; got "
            f"{calibration!r}{'' if method is None else ' with a method'}."
        )
    if method is None:
        return default_method(task.model, task, calibration or "auto", pretrained, networks)
    if isinstance(method, str):
        if method not in ALL_METHODS:
            near = get_close_matches(method.lower().replace("_", "-"), ALL_METHODS, n=1, cutoff=0.75)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            names = ", ".join(map(repr, ALL_METHODS))
            raise ValueError(f"method must be one of {names}, or a Method; got {method!r}.{hint}")
        return ALL_METHODS[method].method
    if not isinstance(method, Method):
        raise TypeError(f"method must be a value such as calibrant.methods.Standard(); got {method!r}.")
    return method


def with_settings(method: Any, settings: dict[str, Any]) -> Any:
    """The same method with other settings. A method without such fields passes them on to its recipe or base method.

    None if these do not have them either.
    """
    if settings.keys() <= {field.name for field in dataclasses.fields(method)}:
        return dataclasses.replace(method, **settings)
    for name in ("recipe", "base"):
        inner = getattr(method, name, None)
        changed = with_settings(inner, settings) if dataclasses.is_dataclass(inner) else None
        if changed is not None:
            return dataclasses.replace(method, **{name: changed})
    return None
