"""Fast steps: traced graphs, CUDA graphs, and training in place.

The engine's steps are pure functions that run eagerly. This package replaces them by faster ones with the same
results. The rest of :mod:`calibrant.bilevel` imports only the names below.

* :class:`TracedDerivatives` records the operations of a step once and replays them (``compile="trace"`` and
  ``"inductor"``).
* :class:`Replay` records whole outer steps of a single problem as CUDA graphs (``compile="inductor"`` on a GPU, and
  ``"graphs"`` for plain training there).

Tracing has conditions. Python values that a loss reads (attributes, globals) keep the value of the first call, so
whatever varies must be in the batch, in φ or in ``Batch.hyper``. Control flow and shapes that depend on tensor values
raise an error. Each new shape is traced again.

The package relies on parts of torch that have no guarantee of stability. ``tests/package/private_parts.txt`` lists them
with their purpose, and a test checks that each of them exists.
"""

from calibrant.bilevel.compiled.cuda_graphs import Replay, can_replay
from calibrant.bilevel.compiled.traced_derivatives import Compiler, TracedDerivatives

__all__ = ["Compiler", "Replay", "TracedDerivatives", "can_replay"]
