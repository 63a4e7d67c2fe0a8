"""Devices to test on."""

from __future__ import annotations

import pytest
import torch

NEEDS_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

#: A GPU if there is one; and the CPU by a name that is not `HOST`'s, so that weights there are
#: tensors beside a copy, as on a GPU.
DEVICES = ["cpu:0", pytest.param("cuda", marks=NEEDS_A_GPU)]
