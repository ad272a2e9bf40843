"""Where the time of `calibrant.fit` goes, next to the usual loop: ``recipes --profile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as recorder

from calibrant.bilevel import Callback
from studies.benchmarks import recipes
from studies.benchmarks.recipe_tasks import CHOOSING, case_of

WARM_UP, TIMED, COUNTED = 40, 200, 40
"""Steps before the measurement, steps that are timed, and steps whose CUDA calls are counted."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")


class Watch:
    """Called after training steps: times some of them, and then counts the CUDA calls of some more."""

    def __init__(self, device: str, begin: float) -> None:
        self.device, self.begin = device, begin
        self.first: tuple[int, float] | None = None
        self.step_seconds: float | None = None
        self._since: tuple[int, float] | None = None
        self._recorder: Any = None
        self._recorded: tuple[Any, int] | None = None

    def __call__(self, step: int) -> None:
        if self.first is None:
            self.first = step, recipes.clock(self.device) - self.begin
        elif self._since is None and step >= WARM_UP:
            self._since = step, recipes.clock(self.device)
        elif self._since is not None and self.step_seconds is None and step >= self._since[0] + TIMED:
            self.step_seconds = (recipes.clock(self.device) - self._since[1]) / (step - self._since[0])
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device != "cpu" else [])]
            self._recorder, self._since = recorder(activities=activities), (step, 0.0)
            self._recorder.start()
        elif self._recorder is not None and self._since is not None and step >= self._since[0] + COUNTED:
            recipes.clock(self.device)
            self._recorder.stop()
            self._recorded, self._recorder = (self._recorder, step - self._since[0]), None

    def calls(self) -> tuple[dict[str, float], str]:
        """CUDA calls and milliseconds of kernels per step, and the operations that take longest."""
        if self._recorded is None:
            return {}, ""
        events, steps = self._recorded[0].key_averages(), self._recorded[1]
        counts = {
            kind: sum(event.count for event in events if event.key in names) / steps
            for kind, names in (("waits", WAITS), ("launches", LAUNCHES))
        }
        counts["kernel_ms"] = sum(event.self_device_time_total for event in events) / 1e3 / steps
        return counts, events.table(sort_by="self_cpu_time_total", row_limit=18, max_name_column_width=50)


class Steps(Callback):
    """Tells a watch how many training steps a run has taken, and times looks at the validation part."""

    last = True

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.started = self.ended = 0.0
        self.looks: list[float] = []

    def on_start(self, run: Any) -> None:
        for callback in run.callbacks:
            if hasattr(callback, "look"):
                callback.look = _timed(callback.look, self.looks, self.watch.device)
        self.started = recipes.clock(self.watch.device)

    def on_step(self, run: Any) -> None:
        self.watch(run.step * run.hypergradient.steps)

    def on_end(self, run: Any) -> None:
        self.ended = recipes.clock(self.watch.device)


def profile(task: str, options: recipes.Options) -> str:
    """Train by `calibrant.fit`, eager and compiled, and by the rivals' loops; return what each spent."""
    lines = [f"## {task}, {options.epochs_of(task)} epochs, {options.device}, torch {torch.__version__}"]
    tables = []
    for who in ("fit", *recipes.GPU_RIVALS) if options.device == "cpu" else recipes.GPU_WHO:
        watch, parts = _watched(task, who, options)
        first = "" if watch.first is None else f"first {watch.first[0]} steps {watch.first[1]:.2f} s"
        step = "" if watch.step_seconds is None else f"{1e3 * watch.step_seconds:.3f} ms a step"
        counts, operations = watch.calls()
        numbers = [f"{value:.2f} {name}" for name, value in counts.items()]
        seconds = [f"{name} {value:.2f} s" for name, value in parts.items()]
        lines.append(f"{who}: " + ", ".join(filter(None, [step, first, *numbers, *seconds])))
        tables.append(f"### {task}, {who}\n{operations}")
    return "\n".join([*lines, *tables])


def _watched(task: str, who: str, options: recipes.Options) -> tuple[Watch, dict[str, float]]:
    device, epochs = options.device, options.epochs_of(task)
    case = case_of(task, CHOOSING, device, options.subset)
    if device != "cpu":
        recipes.begin_on_gpu(case, device)
    begin = recipes.clock(device)
    watch = Watch(device, begin)
    if who not in recipes.FITS:
        _, seconds = recipes.train_rival(case, who, epochs, device, watch)
        return watch, {"whole": seconds}
    steps, settings = Steps(watch), options.settings | recipes.FITS[who]
    _, seconds = recipes.train_fit(case, CHOOSING, epochs, device, callbacks=[steps], **settings)
    parts = {"whole": seconds, "before training": steps.started - begin, f"{len(steps.looks)} looks": sum(steps.looks)}
    return watch, parts | {"after training (calibration)": begin + seconds - steps.ended}


def _timed(function: Callable[..., Any], seconds: list[float], device: str) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        begin = recipes.clock(device)
        result = function(*arguments)
        seconds.append(recipes.clock(device) - begin)
        return result

    return timed
