"""One thread: the ops under test are small, and threads that wait for each other on a busy machine are not."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
