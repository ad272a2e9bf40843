"""One thread for small tensors: parallel test workers would only wait for each other."""

import torch

torch.set_num_threads(1)
