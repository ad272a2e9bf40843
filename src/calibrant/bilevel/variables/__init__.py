"""Outer variables φ: modules that the outer level moves.

An outer variable acts on the inner objective through these hooks. Each hook is the identity by default.
:class:`OuterVariables` chains several variables::

    θ_0      = outer.initial(params)                        the starting point, Φ_0
    t        = outer.targets(labels, batch, n_classes)      soft targets from hard labels
    z        = outer.outputs(logits, batch)                 the logits that the training loss sees
    losses   = outer.weigh(loss(z, t), batch)               weighted per-sample losses
    L        = losses.mean() + outer.penalty(params)        a penalty on the network's parameters
    F        = outer loss + outer.prior()                   the outer loss uses the network's own output

``project(values)`` maps the values into their allowed set after an outer step, and ``quantities(hyper)`` gives the
quantities that φ represents. Any other ``nn.Module`` can be φ if your inner loss calls it
(:class:`calibrant.bilevel.Bilevel`). Constants that belong to the data (a neighbourhood) are passed
in ``batch.hyper``, so the members of a population can have different ones.
"""
