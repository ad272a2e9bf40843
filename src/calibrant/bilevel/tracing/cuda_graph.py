"""A function as a CUDA graph: hundreds of small kernels with one launch.

With small networks a GPU waits while Python launches kernels. A CUDA graph is recorded once, on its own tensors, and
then replayed. Inputs are copied into these tensors and outputs are cloned, so callers notice only the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from calibrant._warnings import warn

_WARM_UP = 2
"""Calls before recording. Libraries choose and load their kernels in these calls; a recording must not do so."""


def recordable(module: fx.GraphModule, device: torch.device) -> bool:
    """Whether a traced module can be recorded: it runs on a GPU and draws no random numbers."""
    if device.type != "cuda":
        return False
    operators = [node.target for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return not any(torch.Tag.nondeterministic_seeded in operator.tags for operator in operators)


class Captured:
    """A pure function of CUDA tensors of fixed shapes. It is recorded in the third call and replayed from then on.

    If recording fails (an operation waits for the GPU), or with ``record=False``, every call runs ``fn`` itself.
    """

    def __init__(self, fn: Callable[..., Sequence[Any]], *, record: bool = True) -> None:
        self.fn, self.record = fn, record
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.outputs: list[Any] = []
        self.given: list[tuple[Tensor, int]] = []

    def __call__(self, *tensors: Tensor) -> Sequence[Any]:
        self.calls += 1
        if self.graph is None and not (self.record and self.calls == _WARM_UP + 1 and self._record(tensors)):
            return self.fn(*tensors)
        for k, (own, given) in enumerate(zip(self.inputs, tensors, strict=True)):
            last, version = self.given[k]
            if given is not last or given._version != version:  # a full batch is the same tensor in every step
                own.copy_(given)
                self.given[k] = (given, given._version)
        assert self.graph is not None
        self.graph.replay()
        return [self._hand_out(output, tensors) for output in self.outputs]

    def _record(self, tensors: Sequence[Tensor]) -> bool:
        self.inputs = [t.detach().clone() for t in tensors]
        self.given = [(t, t._version) for t in tensors]
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self.inputs[0].device), torch.cuda.graph(graph):
                self.outputs = list(self.fn(*self.inputs))
        except RuntimeError as error:
            warn(
                "A step could not be recorded as a CUDA graph, so it runs operation by operation, which is slower. "
                f"The error was: {str(error).splitlines()[0]}"
            )
            self.inputs, self.outputs, self.given = [], [], []
            return False
        self.graph = graph
        return True

    def _hand_out(self, output: Any, tensors: Sequence[Tensor]) -> Any:
        """A copy that the next replay does not change. For an output that is an input, the caller's own tensor."""
        if not isinstance(output, Tensor):
            return output
        for own, given in zip(self.inputs, tensors, strict=True):
            if output is own:
                return given
        return output.clone()
