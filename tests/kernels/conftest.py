"""One thread, because the ops under test are small and synchronising threads on a busy machine is slow."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
