"""One token per pass: the reference for every method that writes masked canvases.

LLaDA's sampling (Nie et al. 2025): blocks from left to right, and within a block the token of the most
confident cell; the others stay masked ("low-confidence remasking"). With ``cache="dual"`` it is the baseline
of SSD (Gao et al. 2025, section 4.1): the keys and values of all positions are recomputed after every
``refresh`` decoded tokens.
"""

from __future__ import annotations

from .unmasking import Unmasking


class Stepwise(Unmasking):
    """In each pass the most confident cell of the current block gets its most likely token."""

    name = "stepwise"
    title = "Stepwise unmasking"
    paper = "Nie et al. 2025; Wu et al. 2025"
    pseudocode = (
        ("", "x = prompt + L masks; blocks of B cells"),
        ("", "until no mask is left, or a complete block holds an end token:"),
        ("forward", "    p = model(x), at the masked cells of the current block"),
        ("verify", "    c_i = log-odds of argmax p_i"),
        ("verify", "    i = the cell of the largest c_i, the leftmost of equals"),
        ("commit:plain", "    x_i = argmax p_i"),
    )
