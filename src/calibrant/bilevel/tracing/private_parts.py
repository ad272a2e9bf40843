"""The parts of torch without a guarantee of stability that the engine uses, each with its purpose.

When one of them moves, ``tests/bilevel/test_structure.py`` names it, and says which files to change.
"""

from __future__ import annotations

PRIVATE_PARTS: dict[str, str] = {
    # tracing/traced_level.py
    "torch.fx.experimental.proxy_tensor.make_fx": "records the operations of a step (tracing/traced_level.py)",
    "torch._guards.TracingContext": "shares one fake mode between operations; optional (tracing/traced_level.py)",
    "torch._guards.tracing": "shares one fake mode between operations; optional (tracing/traced_level.py)",
    "torch._subclasses.fake_tensor.FakeTensorMode": "the shared fake mode; optional (tracing/traced_level.py)",
    "torch.func.functionalize": "removes mutations from a recorded graph (tracing/traced_level.py)",
    # tracing/passes.py, on recorded graphs
    "torch._ops.OpOverload": "the type of the operators in a graph (tracing/passes.py, tracing/cuda_graph.py)",
    "torch.ops.aten.add.Tensor._schema.is_mutable": "whether an operator writes into its inputs (tracing/passes.py)",
    "torch.ops.aten.add.Tensor._op": "an operator without its Python layer (tracing/passes.py)",
    "torch.ops.aten.add.Tensor.tags": "the tags of an operator (tracing/passes.py, tracing/cuda_graph.py)",
    "torch.Tag.nondeterministic_seeded": "marks operators that draw random numbers (tracing/passes.py)",
    "torch.ops.aten._unsafe_view.default": "a view in backward graphs (tracing/passes.py)",
    "torch.fx.Graph.node_copy": "cuts a graph in two (tracing/passes.py)",
    "torch.fx.Graph.python_code": "the source code of a graph (tracing/passes.py)",
    "torch.fx.map_arg": "evaluates a node's arguments (tracing/passes.py)",
    # tracing/cuda_graph.py
    "torch.cuda.CUDAGraph": "a recorded sequence of kernels (tracing/cuda_graph.py)",
    "torch.cuda.graph": "records kernels (tracing/cuda_graph.py)",
    "torch.Tensor._version": "whether a tensor has changed since the last call (tracing/cuda_graph.py)",
    # Used by several files of calibrant.bilevel and calibrant.models
    "torch.utils._pytree.tree_flatten": "nested structures of tensors (tracing, features.py, crowd.py and others)",
    "torch.utils._pytree.tree_unflatten": "nested structures of tensors (tracing)",
    "torch.utils._pytree.tree_map": "nested structures of tensors (features.py, crowd.py and others)",
    "torch.utils._pytree.tree_leaves": "nested structures of tensors (footprint.py, checks.py and others)",
    "torch.utils._python_dispatch.TorchDispatchMode": "sees operations (footprint.py, checks.py, models/kernels.py)",
    "torch.overrides.TorchFunctionMode": "sees every detach() of a loss (detached.py)",
    "torch._C._set_grad_enabled": "what torch.no_grad() calls (detached.py)",
    "torch.multiprocessing.reductions.StorageWeakRef": "measures memory without keeping it alive (footprint.py)",
    "torch.nn.modules.batchnorm._BatchNorm": "the base class of BatchNorm (checks.py, models/pure_layers.py)",
    "torch.nn.modules.batchnorm._NormBase": "the base class of norms (models/pure_layers.py)",
    "torch.nn.modules.instancenorm._InstanceNorm": "the base class of InstanceNorm (checks.py, models/pure_layers.py)",
    "torch.nn.modules.dropout._DropoutNd": "the base class of dropout layers (models/pure_layers.py)",
}
"""Dotted names, and what each of them is used for."""
