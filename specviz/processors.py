"""How many threads this machine can compute on."""

from __future__ import annotations

import os

from specviz.errors import ParameterError


def check_threads(threads: int) -> int:
    """A number of threads that this machine has processors for.

    More than that never computes faster, and far more of them end the process where no error can be caught.

    Raises
    ------
    ParameterError
        If it is below 1, or above the number of logical processors.
    """
    most = os.cpu_count() or 1
    if not 1 <= threads <= most:
        raise ParameterError(
            f"threads must be from 1 to {most}, the number of processors of this machine; got {threads}"
        )
    return threads
