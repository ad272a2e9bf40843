"""A run of the solver: the loop, its state, one outer step, checkpoints and the result."""
