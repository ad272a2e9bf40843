"""A picture of what the library computes, to compare two versions of the code.

``python -m tests.picture FILE`` writes the predictions of every method and classifier, the numbers of every metric,
loss, calibrator and rule, the steps of the engine, the answers of stored files, and the output of the commands, all on
small fixed data. ``python -m tests.picture BEFORE AFTER`` compares two pictures; a third argument is a tolerance.
``make picture BASE=<commit>`` does both for two versions on one machine, where they must agree to the bit.

Only public names are used, so files may move between the two versions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import json
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

import calibrant
from calibrant import bilevel, losses, methods, metrics, posthoc, selective

CLASSES, COLUMNS = 3, 4
STORED = Path(__file__).parent / "base"
SECTIONS = {}


def section(function):
    """Enter a function in the picture, by its name."""
    SECTIONS[function.__name__] = function
    return function


def plain(value):
    """A result as JSON: arrays as lists, dataclasses and named tuples as dictionaries."""
    if isinstance(value, torch.Tensor):
        return plain(value.detach().cpu().numpy())
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | type(None)) else type(value).__name__


def attempt(function, *args, **kwargs):
    """The result of a call as JSON; an error is part of the picture too."""
    try:
        return plain(function(*args, **kwargs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@functools.cache
def samples(rows=96, seed=0):
    """Three overlapping classes with four columns, in float32, and their labels."""
    random = np.random.default_rng(seed)
    labels = np.arange(rows) % CLASSES
    inputs = random.normal(size=(rows, COLUMNS))
    inputs[:, 0] += 1.5 * np.cos(2 * labels)
    inputs[:, 1] += 1.5 * np.sin(2 * labels)
    return inputs.astype(np.float32), labels


@functools.cache
def scores(rows=90):
    """Logits of an overconfident classifier with some equal rows, and labels."""
    random = np.random.default_rng(1)
    labels = random.integers(CLASSES, size=rows)
    logits = (2 * np.eye(CLASSES)[labels] + 2 * random.normal(size=(rows, CLASSES))).round(1)
    return logits, labels


def network(seed=0, sizes=(COLUMNS, 6, CLASSES)):
    """A small network with parameters that depend on the seed alone."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(sizes[0], sizes[1]), nn.Tanh(), nn.Linear(sizes[1], sizes[2]))


def image_network(seed=0):
    """A convolutional network with BatchNorm."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def parts(convolutional=False):
    """Training and held-out samples of `calibrant.fit`."""
    inputs, labels = (torch.from_numpy(array) for array in samples())
    if convolutional:
        inputs = torch.nn.functional.pad(inputs.reshape(-1, 1, 2, 2), (1, 1, 1, 1))
    return (inputs[:64], labels[:64]), (inputs[64:], labels[64:])


def shortened(method):
    """A method with few epochs or steps, its members too."""
    changes = {
        field.name: shortened(value)
        for field in dataclasses.fields(method)
        if dataclasses.is_dataclass(value := getattr(method, field.name)) and isinstance(value, methods.Method)
    }
    limits = {"epochs": 3, "outer_epochs": 3, "steps": 3, "repeats": 1, "folds": 2, "members": 2, "batch_size": 32}
    for name, limit in limits.items():
        if isinstance(getattr(method, name, None), int):
            changes[name] = limit
    return dataclasses.replace(method, **changes)


@section
def table_methods():
    """The methods of the first paper, in groups and alone."""
    inputs, labels = (torch.from_numpy(array) for array in samples())
    train, held_out = (methods.Samples(inputs[rows], labels[rows]) for rows in (slice(64), slice(64, 96)))
    task = methods.Task(train, held_out, n_classes=CLASSES)
    jobs = [
        (shortened(entry.method), dataclasses.replace(task, seed=s))
        for entry in methods.METHODS.values()
        for s in (0, 1)
    ]
    results = methods.fit_all(jobs)
    return {
        f"{name} seed {seed}": attempt(result.probs, inputs[:4])
        for (name, seed), result in zip([(n, s) for n in methods.METHODS for s in (0, 1)], results, strict=True)
    }


@section
def fitted_networks():
    """`calibrant.fit` with each method by name, and the default."""
    from calibrant.methods.catalogue import ALL_METHODS

    probs = {}
    for name, entry in ALL_METHODS.items():
        convolutional = name not in methods.METHODS
        train, held_out = parts(convolutional)
        module = image_network() if convolutional else network()
        probs[name] = attempt(
            lambda module=module, train=train, held_out=held_out, entry=entry, name=name: calibrant.fit(
                module,
                train,
                held_out,
                method=shortened(entry.method) if name in methods.METHODS else name,
                **({} if name in methods.METHODS else {"epochs": 2}),
            ).probs(held_out[0][:4])
        )
    train, held_out = parts()
    probs["default"] = attempt(lambda: calibrant.fit(network(), train, held_out, epochs=3).probs(held_out[0][:4]))
    probs["calibrate"] = attempt(lambda: calibrant.calibrate(network(), held_out).probs(held_out[0][:4]))
    return probs


@section
def classifiers():
    """The scikit-learn classifiers: predictions, saved and loaded."""
    from sklearn.linear_model import LogisticRegression

    inputs, labels = samples()
    weights = np.linspace(0.5, 1.5, len(labels))
    quick = {"epochs": 4, "learning_rate": 0.05, "random_state": 0}
    several = {"folds": 2, "repeats": 1, "steps": 2, **quick}
    kinds = {
        "bo4sc": calibrant.BO4SCClassifier((4,), **quick),
        "self-calibrated": calibrant.SelfCalibratedClassifier((4,), **several),
        "cross-calibrated": calibrant.CrossCalibrated(LogisticRegression(), cv=2, random_state=0),
    }
    probs = {}
    for name, classifier in kinds.items():
        probs[name] = attempt(lambda c=classifier: c.fit(inputs, labels).predict_proba(inputs[:5]))
        probs[f"{name}, weights"] = attempt(
            lambda c=classifier: c.fit(inputs, labels, sample_weight=weights).predict_proba(inputs[:5])
        )
    holes = np.where(np.random.default_rng(2).random(inputs.shape) < 0.1, np.nan, inputs)
    names = np.array(["low", "mid", "high"])[labels]
    missing = calibrant.SelfCalibratedClassifier((4,), **several).fit(holes, names)
    probs["missing values"] = [missing.predict_proba(holes[:5]).tolist(), missing.predict(holes[:5]).tolist()]
    with tempfile.TemporaryDirectory() as folder:
        missing.save(Path(folder) / "model.calibrant")
        loaded = calibrant.estimators.load_classifier(Path(folder) / "model.calibrant")
        probs["loaded"] = loaded.predict_proba(holes[:5]).tolist()
    return probs


NAMED = ({"probs", "logits", "labels"}, {"confidence", "correct"})
"""The two forms of predictions; a function that accepts both is called with each."""


def of_predictions(module, *, skip=()):
    """Every function of a module that takes predictions and labels."""
    logits, labels = scores()
    probs = torch.softmax(torch.from_numpy(logits), 1).numpy()
    values = {"logits": torch.from_numpy(logits), "probs": probs, "labels": labels}
    values |= {"confidence": probs.max(1), "correct": probs.argmax(1) == labels}
    numbers = {"gamma": 1.5, "risk": 0.2, "coverage": 0.8, "strength": 0.5, "bandwidth": 0.1, "temperature": 0.1}
    numbers |= {"error_cost": 5.0, "rejection_cost": 1.0, "epsilon": 0.1, "targets": torch.from_numpy(labels)}
    numbers |= {"alpha": 4.0, "a": probs[:, 0], "b": probs[:, 1], "difference": probs[:, 0], "posterior": probs[::-1]}
    numbers |= {"folds": np.arange(len(labels)) % 3, "oof_probs": probs}
    results = {}
    for name in module.__all__:
        function = getattr(module, name)
        if not inspect.isfunction(function) or name in skip:
            continue
        parameters = inspect.signature(function).parameters
        for form in [form for form in NAMED if form & set(parameters)] or [set()]:
            arguments = {}
            for parameter in parameters.values():
                if parameter.name in form or parameter.name in values.keys() - NAMED[0] - NAMED[1]:
                    value = values[parameter.name]
                    as_tensor = module is losses and isinstance(value, np.ndarray)
                    arguments[parameter.name] = torch.from_numpy(value) if as_tensor else value
                elif parameter.default is parameter.empty and parameter.name in numbers:
                    arguments[parameter.name] = numbers[parameter.name]
            results[f"{name}({', '.join(arguments)})"] = attempt(function, **arguments)
    return results


@section
def metric_values():
    """Every metric on the same predictions, and the streaming ones."""
    logits, labels = scores()
    results = of_predictions(metrics, skip=("bootstrap_interval", "asymptotic_interval"))
    probs = torch.softmax(torch.from_numpy(logits), 1).numpy()
    for name in ("ece", "nll", "brier", "smooth_ece"):
        measure = getattr(metrics, name)
        results[f"bootstrap {name}"] = attempt(
            metrics.bootstrap_interval, probs, labels, metric=measure, n_resamples=40, seed=0
        )
    for name in ("StreamingECE", "StreamingMCE", "StreamingClasswiseECE"):
        stream = getattr(metrics, name)
        results[name] = attempt(streamed, stream, probs, labels)
    results["noise_floor"] = attempt(lambda: metrics.noise_floor(probs, seed=0))
    return results


def streamed(stream, probs, labels):
    """A streaming metric after two batches."""
    measure = stream(n_classes=CLASSES) if "n_classes" in inspect.signature(stream).parameters else stream()
    for rows in (slice(50), slice(50, None)):
        measure.update(probs[rows], labels[rows])
    return measure.compute()


@section
def loss_values():
    """Every loss, and the gradients of the training losses."""
    logits, labels = (torch.from_numpy(array) for array in scores())
    results = of_predictions(losses)
    for name, loss in losses.LOSSES.items():
        free = logits.clone().requires_grad_()

        def gradient(loss=loss, free=free):
            return torch.autograd.grad(loss()(free, labels).sum(), free)[0][:3]

        results[f"gradient of {name}"] = attempt(gradient)
    return results


@section
def rules():
    """Rejection, conformal sets and risk bounds."""
    return of_predictions(selective)


@section
def calibrators():
    """Every calibrator fitted with and without weights; saved and loaded."""
    logits, labels = scores()
    results = {}
    for name in [*posthoc.CALIBRATORS, "auto"]:
        fresh = functools.partial(posthoc.make_calibrator, name)
        results[name] = attempt(lambda fresh=fresh: fresh().fit(logits, labels).predict_proba(logits[:4]))
        results[f"{name}, two classes"] = attempt(
            lambda fresh=fresh: fresh().fit(logits[:, :2], labels % 2).predict_proba(logits[:4, :2])
        )
    return results


@section
def engine():
    """Outer variables and hypergradients of the engine: φ and the parameters after three outer steps."""
    inputs, labels = samples()
    train, held_out = (
        (torch.from_numpy(inputs[r]).double(), torch.from_numpy(labels[r])) for r in (slice(40), slice(40, 70))
    )
    outers = {
        "weights": lambda net: bilevel.SampleWeights(40, initial_weight=0.7),
        "weights, sigmoid": lambda net: bilevel.SampleWeights(40, form="sigmoid", initial_weight=0.6),
        "l2": lambda net: bilevel.L2(net, initial=0.05),
        "l2 units": lambda net: bilevel.L2(net, per="unit", initial=0.05),
        "smoothing": lambda net: bilevel.LabelSmoothing(40, initial=0.1),
        "noise": lambda net: bilevel.LabelNoise(CLASSES, per="class", initial=0.2),
    }
    ways = {
        "unrolled": bilevel.Unrolled(5),
        "checkpoints": bilevel.Unrolled(5, memory="checkpoints"),
        "truncated": bilevel.Truncated(5, 2),
        "forward": bilevel.Forward(5),
        "one step": bilevel.OneStep(),
        "one step of the head": bilevel.OneStep(scope="head"),
        "implicit, CG": bilevel.Implicit(5, solve=bilevel.CG()),
        "implicit, Neumann": bilevel.Implicit(5, solve=bilevel.Neumann()),
        "implicit, Nyström": bilevel.Implicit(5, solve=bilevel.Nystrom()),
        "plain": bilevel.Plain(5),
    }
    optimizers = {
        "sgd": bilevel.SGD(0.1, momentum=0.9, weight_decay=0.01),
        "adam": bilevel.Adam(0.02),
        "adamw": bilevel.AdamW(0.02, weight_decay=0.1),
    }

    def solved(outer, way, optimizer, batch_size):
        net = network().double()
        variables = outers[outer](net).double()
        problem = bilevel.Bilevel(net, variables, train=train, val=held_out, batch_size=batch_size, seed=3)
        solution = bilevel.solve(
            problem,
            hypergradient=ways[way],
            inner_optimizer=optimizers[optimizer],
            outer_optimizer=bilevel.SGD(0.5),
            outer_steps=3,
        )
        return {"phi": solution.phi, "params": solution.params.flatten()[:8]}

    cases = [(outer, "unrolled", "adam", 16) for outer in outers]
    cases += [("weights", way, "sgd", None) for way in ways]
    cases += [("l2", "truncated", "adamw", 8), ("l2", "one step", "adam", 8)]
    return {" | ".join(map(str, case)): attempt(solved, *case) for case in cases}


@section
def stored_files():
    """The answers of stored models of all versions of the format."""
    from tests.base.test_samples import SAMPLES, answers

    return {path.stem: attempt(lambda path=path: answers(path)[0]) for path in SAMPLES}


@section
def onnx_files():
    """What an exported graph answers."""
    try:
        import onnxruntime
    except ImportError:
        return {}
    inputs, labels = samples()
    classifier = calibrant.SelfCalibratedClassifier((4,), folds=2, repeats=1, steps=2, epochs=4, random_state=0)
    classifier.fit(inputs, labels)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        calibrant.export.to_onnx(classifier, path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return {"probabilities": session.run(["probabilities"], {"X": inputs[:5]})[0].tolist()}


@section
def commands():
    """The output of the commands on a small table."""
    from calibrant.cli import main as run_command

    inputs, labels = samples()
    logits, truth = scores()
    probs = torch.softmax(torch.from_numpy(logits), 1).numpy()
    results, before, arguments = {}, os.getcwd(), sys.argv
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            write_csv("table.csv", "a,b,c,d,label", inputs.round(3), np.array(["low", "mid", "high"])[labels])
            write_csv("probs.csv", "prob_0,prob_1,prob_2,label", probs, truth)
            for line in (
                "train table.csv --target label --method self-calibrated-network --out out",
                "predict out/model.calibrant table.csv --out predictions.csv",
                "evaluate probs.csv --out page.html",
                "calibrate probs.csv --method vector --out calibrator.calibrant",
                "apply calibrator.calibrant probs.csv --out applied.csv",
            ):
                sys.argv = ["calibrant", *line.split()]
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    results[line] = [attempt(ended, run_command), steady(output.getvalue())]
            for file in sorted(Path().rglob("*")):
                if file.suffix in (".csv", ".json") and file.name not in ("table.csv", "probs.csv"):
                    results[str(file)] = without_run(file)
        finally:
            os.chdir(before)
            sys.argv = arguments
    return results


def write_csv(path, header, numbers, last):
    """Write rows of numbers, each with a last cell."""
    lines = [",".join([*map(str, row), str(cell)]) for row, cell in zip(numbers, last, strict=True)]
    Path(path).write_text("\n".join([header, *lines]) + "\n")


def ended(command):
    """The exit status of a command."""
    try:
        command()
    except SystemExit as stop:
        return stop.code


def steady(text):
    """The lines of an output, without those that say how long something took."""
    return [line for line in text.splitlines() if not re.search(r"\d+ s\b", line)]


VARYING = ("seconds", "versions", "machine", "provenance", "commit", "date", "device", "command", "memory")
"""Parts of names of entries that differ between runs."""


def without_run(file):
    """The content of a result file without its times and places."""
    if file.suffix == ".csv":
        return file.read_text().splitlines()[:6]

    def cleaned(value):
        if isinstance(value, dict):
            return {k: cleaned(v) for k, v in value.items() if not any(part in k for part in VARYING)}
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return cleaned(json.loads(file.read_text()))


def picture():
    """All sections, in one thread."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return {name: make() for name, make in SECTIONS.items()}


def differences(before, after, tolerance=0.0, place=""):
    """The places where two pictures differ by more than the tolerance."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            if key not in before or key not in after:
                yield f"{place}/{key} is only in the {'second' if key in after else 'first'} picture"
            else:
                yield from differences(before[key], after[key], tolerance, f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, tolerance, f"{place}/{index}")
    elif isinstance(before, float) and isinstance(after, int | float):
        same = before == after or (math.isnan(before) and math.isnan(after))
        if not same and not math.isclose(before, after, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{place}: {before!r}, then {after!r}"
    elif before != after:
        yield f"{place}: {str(before)[:100]!r}, then {str(after)[:100]!r}"


def main(arguments):
    """Write a picture, or compare two."""
    if len(arguments) == 1:
        Path(arguments[0]).write_text(json.dumps(picture(), indent=0) + "\n")
        return 0
    before, after = (json.loads(Path(path).read_text()) for path in arguments[:2])
    places = list(differences(before, after, *map(float, arguments[2:])))
    print("\n".join(places[:50] + [f"{len(places)} differences" if places else "The pictures agree."]))
    return bool(places)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
