"""Tests of the public names: CONTRIBUTING's vocabulary, one spelling, and one meaning for each class name."""

import functools
import importlib
import inspect
import pkgutil
import re
from collections import defaultdict

from sklearn.base import BaseEstimator

import calibrant

FORBIDDEN = {
    "lr": "learning_rate",
    "weight_lr": "outer_learning_rate",
    "outer_lr": "outer_learning_rate",
    "outer_rate": "outer_learning_rate",
    "also_rate": "also_learning_rate",
    "meta_rate": "outer_learning_rate",
    "meta_batch": "outer_batch_size",
    "num_classes": "n_classes",
    "nb_classes": "n_classes",
    "sample_weights": "sample_weight",
    "optimiser": "optimizer",
    "n_epochs": "epochs",
    "num_epochs": "epochs",
    "rng": "seed or generator",
    "probabilities": "probs",
}
"""Argument names that are never used, and the name to use instead."""
LEARNED = {"BO4SC", "suspicion", "bound"}
"""Classes and functions whose argument ``weights`` holds learned weights or says how weights are learned."""
AMERICAN = re.compile(
    r"(?<!s)iz(e|ed|er|ers|es|ing|ation|ations)(?![a-z])|color|center|behavior|neighbor|labeled", re.IGNORECASE
)
TAKEN_OVER = {"optimizer", "colorbar", "linearize", "linearization"}
"""Words of PyTorch and Matplotlib, which keep their spelling."""
SAME_QUANTITY = {"brier", "mmce", "nll", "sece"}
"""A metric and a loss of one quantity share its name."""


def public():
    """Yield (module, name, object) for the public names of all packages."""
    packages = [m.name for m in pkgutil.walk_packages(calibrant.__path__, "calibrant.") if m.ispkg]
    modules = [importlib.import_module(name) for name in ("calibrant", *packages)]
    for module in modules:
        for name in getattr(module, "__all__", ()):
            if not hasattr(module, name):  # a module of the package that nothing has imported yet
                importlib.import_module(f"{module.__name__}.{name}")
            yield module.__name__, name, getattr(module, name)


def own(value):
    return (getattr(value, "__module__", None) or "").startswith("calibrant")


def callables(name, value):
    """Yield (name, callable) for a public function, or for a public class and its public methods."""
    if inspect.isclass(value):
        yield name, value
        for method in (m for m in dir(value) if not m.startswith("_") or m == "__call__"):
            found = inspect.getattr_static(value, method)
            found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            if inspect.isfunction(found):
                yield f"{name}.{method}", found
    elif callable(value):
        yield name, value


@functools.cache
def signatures():
    """(where, class or None, parameter) for all arguments of the public functions, classes and methods."""
    found = []
    for module, name, value in public():
        cls = value if inspect.isclass(value) else None
        for called, function in callables(name, value):
            if not own(function):
                continue
            try:
                parameters = inspect.signature(function).parameters.values()
            except (TypeError, ValueError):
                continue
            for parameter in parameters:
                found.append((f"{module}.{called}", cls, parameter))
    return found


def wrong_name(where, cls, parameter):
    """What is wrong with the name of an argument, or None."""
    name, annotation = parameter.name, str(parameter.annotation)
    estimator = cls is not None and issubclass(cls, BaseEstimator)
    if name in FORBIDDEN:
        return f"use {FORBIDDEN[name]}"
    if name == "classes" and "int" in annotation:
        return "use n_classes for a number of classes"
    if name == "seed" and estimator:
        return "use random_state in an estimator"
    if name == "random_state" and not estimator:
        return "use seed outside estimators"
    if name == "weights" and not LEARNED & set(where.split(".")):
        return "use sample_weight for given weights"
    if AMERICAN.search(name) and not any(word in name.lower() for word in TAKEN_OVER):
        return "use British spelling"
    return None


def test_arguments_keep_to_the_vocabulary():
    found = signatures()
    assert len(found) > 1000
    wrong = {f"{where}({p.name}): {why}" for where, cls, p in found if (why := wrong_name(where, cls, p))}
    assert sorted(wrong) == []


def test_public_names_have_british_spelling():
    names = {name for _, name, _ in public()}
    wrong = {n for n in names if AMERICAN.search(n) and not any(word in n.lower() for word in TAKEN_OVER)}
    assert wrong == set()


def test_public_names_mean_one_thing():
    found = defaultdict(set)
    for module, name, value in public():
        if inspect.isclass(value) or (inspect.isfunction(value) and name not in SAME_QUANTITY):
            found[name].add((getattr(value, "__module__", module), getattr(value, "__qualname__", name)))
    assert {name: homes for name, homes in found.items() if len(homes) > 1} == {}
