"""Tests replay on the bundled models, whatever this machine has downloaded."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def bundled_models(monkeypatch, request):
    """Hide every recipe's real model, unless a test requests `real_models`."""
    from specviz.replays import running

    if "real_models" not in request.fixturenames:
        monkeypatch.setattr(running, "on_real", lambda recipe: recipe)


@pytest.fixture
def real_models():
    """Let a test use the real models, if they are installed."""
