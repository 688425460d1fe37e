"""What PyTorch was told around a call: every public computation gives the same numbers, bit for bit, or raises."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nfd
from nfd.data.digits import digits
from nfd.experiment.config import SweepConfig  # noqa: F401
from nfd.experiment.kernel_facts import kernel_facts
from nfd.experiment.runs import train_group
from nfd.experiment.settings import RunConfig, StudyConfig
from nfd.experiment.study import Study

X = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (3, 4), generator=torch.Generator().manual_seed(1))
RUN = {"width": 16, "depth": 2, "steps": 3, "batch": 4}
