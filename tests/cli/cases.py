"""Files of predictions, and commands of the command line that read them."""

import json

import numpy as np
import pytest
from scipy.special import log_softmax

NAMES = np.array(["cat", "dog", "emu"])


def logits_and_labels(n=600, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, n_classes)) * 2
    return log_softmax(2.0 * truth, axis=1), (truth + rng.gumbel(size=truth.shape)).argmax(axis=1)


def invoke(*arguments):
    testing = pytest.importorskip("typer.testing")
    from calibrant.cli import commands

    return testing.CliRunner().invoke(commands.app, [str(a) for a in arguments])


def as_json(*arguments):
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
