"""Settings that make tests give the same result on every machine."""

import torch
from hypothesis import settings

torch.set_num_threads(1)  # small tensors and parallel test workers: threads would only wait for one another

# No deadline: a busy machine must not fail a test. The same examples each time: a failure can be repeated anywhere.
settings.register_profile("everywhere", deadline=None, derandomize=True)
settings.load_profile("everywhere")
