"""A picture as plain text for a terminal."""

from __future__ import annotations

from specviz.view.picture import KINDS, PHASES, Picture, visible

COLOURS = {
    "plain": "",
    "draft": "34",
    "bonus": "32",
    "correction": "33;1",
    "rollback": "33;1",
    "resampled": "35",
    "fallback": "33",
}


def block(picture: Picture, colour: bool = False) -> str:
    """One prompt: headline, text with marks, cycles as one line each of the first twenty.

    Parameters
    ----------
    picture : Picture
    colour : bool
        Use ANSI colours; the marks are there either way.

    Returns
    -------
    str
    """

    def paint(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text

    names = " ← ".join(filter(None, (picture.model, picture.draft)))
    lines = [
        f"{paint(picture.method, '1')}  {visible(names)}  [{picture.exactness}]",
        "  ".join(f"{name} {value}" for name, value, _ in picture.headline),
    ]
    if picture.of > 1:
        lines.append(f"prompt {picture.index + 1} of {picture.of}")
    if picture.note:
        lines.append(picture.note)
    body: list[str] = []
    for span in picture.spans:
        kind = KINDS[span.kind]
        bar = "|" if span.opens and not colour and span.kind != "plain" and body else ""
        body.append(bar + paint(kind.mark + visible(span.text), COLOURS[span.kind]))
    lines += ["", "".join(body), ""]
    used = [k for k in KINDS if any(s.kind == k for s in picture.spans)]
    counts = {k: sum(len(s.tokens) for s in picture.spans if s.kind == k) for k in used}
    lines.append(
        "  ".join(paint(f"{KINDS[k].mark}{KINDS[k].word}", COLOURS[k]) + f" {counts[k]}" for k in used)
    )
    if any(c.drafted for c in picture.cycles):
        strip = " ".join(f"{c.accepted}/{c.drafted}" for c in picture.cycles[:32])
        more = " …" if len(picture.cycles) > 32 else ""
        lines.append(f"accepted/drafted by cycle: {strip}{more}")
    if picture.cycles:
        total = [sum(c.times[i] for c in picture.cycles) for i in range(len(PHASES))]
        if whole := sum(total):
            lines.append("time: " + ", ".join(f"{n} {t / whole:.0%}" for n, t in zip(PHASES, total)))
    return "\n".join(lines)
