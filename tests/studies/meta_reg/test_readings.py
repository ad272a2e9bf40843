"""The readings of the second paper: each step is that of a plain implementation, and a stopped run continues."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from calibrant.losses import dece, mmce, sece
from studies.meta_reg import readings
from studies.meta_reg.data import prepare
from studies.meta_reg.readings import DECAY, MOMENTUM, READINGS, STRENGTH, ReadingRun

pytestmark = pytest.mark.filterwarnings("ignore:.*images, but .*CIFAR-10 has")
BATCH = 16
FORMS = ("flg-sece-code", "flg-dece-text", "ce-sece-code", "ce-dece-text", "flg-text", "focal-code", "ce-held-out-mmce")


def training(name: str, images: Path) -> ReadingRun:
    """A reading in double precision, whose first learning rate is 0.1."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found = ReadingRun(READINGS[name], prepare("cifar10", images, 0, model="small-cnn"), batch=BATCH)
    finally:
        torch.set_default_dtype(before)
    found.rate.fill_(0.1)
    found.shuffle(1)
    return found


def by_hand(own: ReadingRun) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters and φ after one step, with the whole network differentiated at once and no cut at the features."""
    reading, model = own.reading, own.model
    parameters = list(model.parameters())
    outer = [p.detach().clone() for p in own.outer]
    images, labels = own.train_batch()
    features = model.body(images).mean((2, 3))
    logits = model.fc(features)

    def training_loss(phi: list[torch.Tensor]) -> torch.Tensor:
        p = logits.softmax(1).gather(1, labels[:, None]).squeeze(1)
        if reading.inner == "gamma-net":
            attention, weight = phi
            x = features.detach()
            gamma = (((x @ attention).softmax(1) @ attention.T) @ weight / 0.01).abs()
            losses = -((1 - p) ** gamma) * p.log()
        else:
            losses = -((1 - p) ** (1.0 if reading.inner == "focal" else 0.0)) * p.log()
        total = losses.sum() if reading.form == "code" else losses.mean()
        if reading.inner == "l2":
            total = total + sum((s * p**2).sum() for s, p in zip(phi, model.fc.parameters(), strict=True))
        return total

    def term(held: torch.Tensor) -> torch.Tensor:
        names = {"sece": sece, "dece": dece, "mmce": mmce, "nll": F.cross_entropy}
        return names[reading.outer](held, held_labels)

    def moved(values: list[torch.Tensor], slopes: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        # the momentum buffers are 1 before the step
        return [p - 0.1 * (MOMENTUM + g + DECAY * p) for p, g in zip(values, slopes, strict=True)]

    def adam(slopes: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        return [p - reading.outer_rate * g / (g.abs() + 1e-8) for p, g in zip(outer, slopes, strict=True)]

    def clipped(slopes: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        norm = torch.cat([g.flatten() for g in slopes]).norm()
        return tuple(g * min(1.0, 2.0 / (float(norm) + 1e-6)) for g in slopes)

    held, held_labels = own.held_batch()
    phi = [p.clone().requires_grad_() for p in outer]
    if reading.outer is None:
        return moved(parameters, clipped(torch.autograd.grad(training_loss(phi), parameters))), outer
    if reading.outer_rate is None:
        loss = training_loss(phi) + BATCH * STRENGTH * term(model(held))
        return moved(parameters, clipped(torch.autograd.grad(loss, parameters))), outer
    slopes = torch.autograd.grad(training_loss(phi), parameters, create_graph=True)
    if reading.form == "text":
        ahead = moved(parameters, slopes)
        names = [name for name, _ in model.named_parameters()]
        # only the head's step depends on φ here: the body's step is a constant
        value = term(F.linear(_features(model, names, ahead, held).detach(), *ahead[-2:]))
        return ahead, adam(torch.autograd.grad(value, phi))
    ahead = [p - 0.1 * g for p, g in zip(parameters[-2:], slopes[-2:], strict=True)]
    held_logits = F.linear(model.body(held).mean((2, 3)), *ahead)
    value = F.cross_entropy(held_logits, held_labels)
    value = value if reading.outer == "nll" else value + 0.5 * term(held_logits)
    of_value = torch.autograd.grad(value, [*phi, *parameters], retain_graph=True)
    after = adam(of_value[: len(phi)])
    of_loss = torch.autograd.grad(training_loss(after), parameters)
    sums = tuple(a + b for a, b in zip(of_value[len(phi) :], of_loss, strict=True))
    return moved(parameters, clipped(sums)), after


def _features(model, names, values, images):
    swapped = dict(zip(names, values, strict=True))
    body = {name.removeprefix("body."): value for name, value in swapped.items() if name.startswith("body.")}
    return torch.func.functional_call(model.body, body, (images,)).mean((2, 3))


@pytest.mark.parametrize("name", FORMS)
def test_a_step_equals_that_of_a_plain_implementation(name: str, images: Path) -> None:
    own, twin = training(name, images), training(name, images)
    for momentum in own.momenta.values():
        momentum.fill_(1.0)
    expected, outer = by_hand(twin)
    own.step()
    for found, right in zip(own.model.parameters(), expected, strict=True):
        torch.testing.assert_close(found.detach(), right.detach(), rtol=1e-7, atol=1e-9)
    for found, right in zip(own.outer, outer, strict=True):
        torch.testing.assert_close(found.detach(), right.detach(), rtol=1e-7, atol=1e-9)


def test_a_run_that_was_cut_off_continues_where_it_stopped(images: Path, tmp_path: Path) -> None:
    def finish(out: Path, until: float | None) -> bool:
        prepared = prepare("cifar10", images, 0, model="small-cnn")
        return readings.run("flg-sece-code", prepared, out, epochs=3, until=until)

    assert finish(tmp_path / "whole", None)
    assert not finish(tmp_path / "cut", time.time())
    assert not (tmp_path / "cut" / "flg-sece-code.json").exists()
    assert finish(tmp_path / "cut", None)
    whole, cut = (json.loads((tmp_path / name / "flg-sece-code.json").read_text()) for name in ("whole", "cut"))
    assert whole["curve"]["epoch"] == cut["curve"]["epoch"] == [1, 2, 3]
    assert cut["last"]["nll"] == pytest.approx(whole["last"]["nll"], rel=1e-4)
    assert cut["curve"]["gamma_mean"] == pytest.approx(whole["curve"]["gamma_mean"], rel=1e-4)
    assert not list((tmp_path / "cut" / "states").glob("*"))


def test_readings_start_as_the_page_says(images: Path) -> None:
    prepared = prepare("cifar10", images, 0, model="small-cnn")
    plain, own = (ReadingRun(READINGS[name], prepared, batch=BATCH) for name in ("ce-code", "flg-sece-text"))
    assert (len(plain.part), len(own.part)) == (180, 160)  # without held-out terms, there are more images
    with torch.no_grad():
        own.shuffle(0)
        assert float(own.net(own.features(own.train_batch()[0])).mean()) == pytest.approx(1.0, rel=1e-3)


def test_the_queue_merges_what_is_finished(images: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    arguments = ["--data", str(images), "--model", "small-cnn", "--epochs", "1", "--work", str(work)]
    arguments += ["--out", str(tmp_path), "--methods", "ce-code", "focal-code"]
    readings.main([*arguments, "--until", str(time.time() + 600)])  # a worker
    readings.main([*arguments, "--workers", "0"])
    content = json.loads((tmp_path / "readings.json").read_text())
    assert [r["method"] for r in content["records"]] == ["ce-code", "focal-code"]
    with np.load(tmp_path / "readings-logits.npz") as stored:
        logits, labels = stored["ce-code/last_test"], stored["test_labels"]
    assert np.mean(logits.argmax(1) != labels) == pytest.approx(content["records"][0]["last"]["error"], abs=0.02)
