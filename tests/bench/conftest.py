"""Tiny checkpoints on disk, as a person would bring them."""

from __future__ import annotations

import pytest
from checkpoints import write


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A target, a good draft of it, and one with another vocabulary."""
    root = tmp_path_factory.mktemp("models")
    return write(root)
