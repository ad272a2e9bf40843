"""Optimisers as pure maps: an update, and its exact derivative.

An optimiser is a value (its hyperparameters) with these methods::

    moments            = opt.init(params)
    params', moments'  = opt.update(params, moments, grad, step)
    opt.update_(...)     the same update in place, for training that is not differentiated
    opt.pull(...)        the transpose of the update's derivative, for reverse sweeps

A subclass of :class:`Optimizer` must define ``init`` and ``update``. If it has no formulas for its derivative, autograd
differentiates its update.

All operations are elementwise over the last axis, so a leading population axis needs no special treatment.
``learning_rate`` is a number, a schedule ``step -> number``, or a tensor with one value per member. In float64 the
trajectories equal those of ``torch.optim``; tests compare them to 1e-8 over 200 steps.
"""
