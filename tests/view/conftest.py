"""What the figures' tests share."""

from __future__ import annotations

import pytest


@pytest.fixture
def drawn_words(monkeypatch) -> list[str]:
    """The texts that matplotlib's renderer has drawn since the list was last cleared."""
    from matplotlib.backends.backend_agg import RendererAgg

    words: list[str] = []
    draw = RendererAgg.draw_text
    monkeypatch.setattr(
        RendererAgg,
        "draw_text",
        lambda self, gc, x, y, s, *more, **by: words.append(s) or draw(self, gc, x, y, s, *more, **by),
    )
    return words
