"""Types of the rules' arguments: NumPy arrays or tensors, and for `Number` also single numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Array = TypeVar("Array", np.ndarray, "Tensor")
Number = TypeVar("Number", float, np.ndarray, "Tensor")
