"""Small tasks and networks of users, and a method that trains quickly."""

from __future__ import annotations

from calibrant.methods import CrossFitted, Standard
from studies.network_tasks import TASKS, Pair, classes_of

SHORT = CrossFitted(Standard(epochs=2, batch_size=32), folds=2)


def cut(pair, count):
    rows = slice(0, count)
    inputs = {k: v[rows] for k, v in pair.inputs.items()} if isinstance(pair.inputs, dict) else pair.inputs[rows]
    return Pair(inputs, pair.labels[rows])


def small(name, counts=(96, 64, 40)):
    """Few samples of a task, its loaders and its network."""
    task, splits = TASKS[name], TASKS[name].draw(3, "scratch")
    train, val, test = (cut(pair, count) for pair, count in zip(splits, counts, strict=True))
    loaders = task.loader(train, shuffle=True), task.loader(val, shuffle=False)
    return task.build(classes_of(splits), 0), loaders, test
