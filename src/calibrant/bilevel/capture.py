"""A traced function as a CUDA graph: hundreds of small kernels, launched as one.

Networks of this size leave a GPU idle while Python launches kernels. A graph is recorded once, from tensors of its own,
and replayed: what comes in is copied into these, what goes out is cloned, so that callers notice nothing but the speed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

_WARM_UP = 2
"""Calls before recording: libraries choose and load their kernels then, which a recording may not."""


def recordable(module: fx.GraphModule, device: torch.device) -> bool:
    """Whether a traced module can be recorded: on a GPU, and without random numbers of its own."""
    if device.type != "cuda":
        return False
    operators = [node.target for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    return not any(torch.Tag.nondeterministic_seeded in operator.tags for operator in operators)


class Captured:
    """``fn``, a pure function of CUDA tensors of fixed shapes, replayed from a recording after two calls.

    Where recording fails (an operation that waits for the GPU), ``fn`` itself goes on being called.
    """

    def __init__(self, fn: Callable[..., Sequence[Any]]) -> None:
        self.fn = fn
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.outputs: list[Any] = []
        self.given: list[tuple[Tensor, int]] = []

    def __call__(self, *tensors: Tensor) -> Sequence[Any]:
        self.calls += 1
        if self.graph is None and (self.calls != _WARM_UP + 1 or not self._record(tensors)):
            return self.fn(*tensors)
        for k, (own, given) in enumerate(zip(self.inputs, tensors, strict=True)):
            last, version = self.given[k]
            if given is not last or given._version != version:  # a full batch is the same tensor at every step
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
            warnings.warn(
                "A step could not be recorded as a CUDA graph and runs operation by operation, which is slower: "
                f"{str(error).splitlines()[0]}",
                stacklevel=2,
            )
            self.inputs, self.outputs, self.given = [], [], []
            return False
        self.graph = graph
        return True

    def _hand_out(self, output: Any, tensors: Sequence[Tensor]) -> Any:
        """A copy that the next replay leaves alone; inputs that are passed through are the caller's own."""
        if not isinstance(output, Tensor):
            return output
        for own, given in zip(self.inputs, tensors, strict=True):
            if output is own:
                return given
        return output.clone()
