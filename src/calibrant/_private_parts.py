"""The parts of torch and scikit-learn without a guarantee of stability that the package uses, each with its purpose.

When one of them moves, ``tests/package/test_private_parts.py`` names it, and says which files to change. The same test
fails for a private part that is used and not listed here.
"""

from __future__ import annotations

PRIVATE_PARTS: dict[str, str] = {
    # tracing/traced_level.py
    "torch.fx.experimental.proxy_tensor.make_fx": "records the operations of a step (tracing/traced_level.py)",
    "torch._guards.TracingContext": "shares one fake mode between operations; optional (tracing/traced_level.py)",
    "torch._guards.tracing": "shares one fake mode between operations; optional (tracing/traced_level.py)",
    "torch._subclasses.fake_tensor.FakeTensorMode": "the shared fake mode; optional (tracing/traced_level.py)",
    "torch.func.functionalize": "removes mutations from a recorded graph (tracing/traced_level.py)",
    # tracing/passes.py and tracing/graph_functions.py, on recorded graphs
    "torch._ops.OpOverload": "the type of the operators in a graph (tracing/passes.py, tracing/cuda_graph.py)",
    "torch.ops.aten.add.Tensor._schema.is_mutable": "whether an operator mutates inputs (tracing/graph_functions.py)",
    "torch.ops.aten.add.Tensor._op": "an operator without its Python layer (tracing/graph_functions.py)",
    "torch.ops.aten.add.Tensor.tags": "the tags of an operator (tracing/passes.py, tracing/cuda_graph.py)",
    "torch.Tag.data_dependent_output": "marks operators that read values (tracing/recorder.py)",
    "torch.Tag.dynamic_output_shape": "marks operators whose shapes depend on values (tracing/graph_functions.py)",
    "torch.Tag.nondeterministic_seeded": "marks operators that draw random numbers (tracing/passes.py)",
    "torch.ops.aten._to_copy.default": "makes a tensor of a number (tracing/passes.py)",
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
    "torch.utils._python_dispatch.TorchDispatchMode": "sees operations (tracing/recorder.py, footprint.py and others)",
    "torch.utils.weak.WeakTensorKeyDictionary": "which node made which tensor (tracing/recorder.py)",
    "torch.overrides.TorchFunctionMode": "sees every detach() of a loss (detached.py, recorder.py, models/kernels.py)",
    "torch._weight_norm": "the fused kernel of weight normalisation (models/kernels.py)",
    "torch._C._set_grad_enabled": "what torch.no_grad() calls (detached.py)",
    "torch.multiprocessing.reductions.StorageWeakRef": "measures memory without keeping it alive (footprint.py)",
    "torch.nn.modules.batchnorm._BatchNorm": "the base class of BatchNorm (checks.py, models/pure_layers.py)",
    "torch.nn.modules.batchnorm._NormBase": "the base class of norms (models/pure_layers.py, methods)",
    "torch.nn.modules.instancenorm._InstanceNorm": "the base class of InstanceNorm (checks.py, models/pure_layers.py)",
    "torch.nn.modules.dropout._DropoutNd": "the base class of dropout layers (models/pure_layers.py)",
    "torch.nn.BatchNorm1d._check_input_dim": "BatchNorm's check of shapes (models/pure_layers.py)",
    "torch.nn.InstanceNorm1d._get_no_batch_dim": "inputs without a batch axis (models/pure_layers.py)",
    "torch.nn.MultiheadAttention._reset_parameters": "draws new parameters of attention (models/architecture.py)",
    "torch.nn.Module._modules": "replaces the head in a shallow copy (models/heads.py)",
    "torch.nn.Module._parameters": "absent parameters (estimators/networks.py, methods/plain_modules.py)",
    "torch._dynamo.eval_frame.OptimizedModule._orig_mod": "the network inside torch.compile (models/given.py)",
    # calibrant.experiments
    "torch._foreach_add": "moves all parameters at once (experiments/meta_reg/readings.py)",
    "torch._foreach_add_": "moves all parameters at once (experiments/meta_reg/readings.py)",
    "torch._foreach_mul": "moves all parameters at once (experiments/meta_reg/readings.py)",
    "torch._foreach_mul_": "moves all parameters at once (experiments/meta_reg/readings.py)",
    "torch._foreach_sub_": "moves all parameters at once (experiments/meta_reg/readings.py)",
    # calibrant.methods and calibrant.data
    "torch.nn.modules.conv._ConvNd": "the base class of convolutions (methods/newness.py)",
    "torch.nn.init._calculate_fan_in_and_fan_out": "bounds of fresh parameters (methods/newness.py)",
    "torch.utils.data.dataloader._BaseDataLoaderIter._next_index": "skips batches without reading (data/loaders.py)",
    "torch._standard_gamma": "Gamma draws from a given generator, for mixup (data/vision/augment.py)",
    # scikit-learn
    "sklearn.utils._safe_indexing": "rows of any table (estimators/cross_calibrated.py, estimators/fold_models.py)",
    "sklearn.utils._metadata_requests._routing_enabled": "metadata routing (estimators/cross_calibrated.py)",
    "sklearn.utils.validation._check_method_params": "rows of fit parameters (estimators/fold_models.py)",
    "sklearn.utils.validation._num_samples": "rows of any table (estimators/fold_models.py)",
    "sklearn.utils.validation._check_sample_weight": "the usual checks of weights (estimators/reading.py)",
    "sklearn.utils.validation._check_y": "the usual checks of labels (estimators/reading.py)",
    "sklearn.utils.validation._check_feature_names_in": "the usual checks of column names (data/encoder.py)",
    "sklearn.ensemble._hist_gradient_boosting.common.PREDICTOR_RECORD_DTYPE": "nodes of a tree (methods/forest.py)",
    "sklearn.utils._openmp_helpers._openmp_effective_n_threads": "threads (methods/forest.py, methods/mean_trees.py)",
    "sklearn.tree._tree.NODE_DTYPE": "nodes of a tree (methods/mean_trees.py)",
    "sklearn.tree._tree.Tree": "a compiled tree, made from nodes (methods/mean_trees.py)",
    "sklearn.ensemble.HistGradientBoostingClassifier._predictors": "the trees of a model (methods/forest.py)",
    "sklearn.ensemble.HistGradientBoostingClassifier._baseline_prediction": "its constant part (methods/trees.py)",
}
"""Dotted names, and what each of them is used for."""
