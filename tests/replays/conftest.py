"""Replays in tests are on the bundled models, whatever this machine has downloaded."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def bundled_models(monkeypatch, request):
    """Without `real_models` no recipe's real model is there."""
    from specviz.replays import running

    if "real_models" not in request.fixturenames:
        monkeypatch.setattr(running, "on_real", lambda recipe: recipe)


@pytest.fixture
def real_models():
    """A test with this takes the real models where they are there."""
