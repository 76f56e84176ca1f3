"""A replayed setting as a trace, so that every view shows it; nothing in it is invented."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.replay.known import Known
from specviz.replay.walk import Step, Walk, copied
from specviz.trace import Recorder

if TYPE_CHECKING:
    from specviz.trace import Trace


def build(
    trace: Trace, texts: list[Known], walks: list[Walk], method: str, parameters: dict[str, Any], label: str
) -> Trace:
    """The replayed cycles with the metadata of the run they are taken from.

    Times are left out, for none were measured; so are drafted tokens that nobody saw, which the controller
    value ``unseen`` counts; where their number is bounded, at least.
    """
    run = dict(trace.run)
    for name in ("machine", "threads", "created", "timing", "peak_memory", "stopped"):
        run[name] = None
    if method != run["method"]:
        run |= {"exactness": "exact up to ties", "pseudocode": None}
    unseen = sum(_unseen(known, step, method) for known, walk in zip(texts, walks) for step in walk.steps)
    words = f"replayed from run {run['run']}; times were not measured"
    if unseen:
        words += f"; {unseen} or more drafted tokens behind a rejection were not recorded and are left out"
    drafter = run["dense"] or run["draft"]
    run |= {"run": label, "method": method, "parameters": parameters, "replayed": words, "dense": None}
    run["draft"] = None if method == "prompt_lookup" else drafter
    pieces = trace.pieces
    recorder = Recorder(run, piece=lambda token: pieces.get(token, b""))
    for known, walk in zip(texts, walks):
        recorder.add({"prompt": known.prompt, "cycle": 0, "context": len(known.ids), "keep": 0})
        for step in walk.steps:
            last = step is walk.steps[-1]
            recorder.add(
                _cycle(
                    known, step, method, parameters, frozenset(run["eos"] or ()), known.end if last else None
                )
            )
    return recorder.close().select(prompt=[known.prompt for known in texts])


def _seen(known: Known, step: Step, method: str) -> int:
    """How many of the drafted tokens are known, an unsent one with them."""
    if method == "prompt_lookup":
        return step.drafted
    text = known.text[step.start :]
    right = next(
        (i for i in range(min(step.drafted, len(text))) if known.draft[step.start + i] != text[i]), None
    )
    if right is None:  # it followed the text; behind its end nothing is known
        return min(step.drafted, len(text))
    tail = len(known.tails.get(step.start + right, ()))
    return min(step.drafted, right + 1 + tail)


def _unseen(known: Known, step: Step, method: str) -> int:
    return step.drafted - _seen(known, step, method)


def _cycle(
    known: Known, step: Step, method: str, parameters: dict[str, Any], eos: frozenset[int], end: str | None
) -> dict[str, Any]:
    """A cycle as the recorder takes it."""
    start, seen = step.start, _seen(known, step, method)
    at = np.arange(start, min(start + seen, len(known.text)))
    lookup = method == "prompt_lookup"
    if lookup:
        names = ("ngram_max", "ngram_min", "draft_length")
        tokens = copied(known, eos, start, *(parameters[name] for name in names))[0].tolist()
        sure, lead, p = [], [], []
    else:
        tokens, sure, lead = (list(x[at]) for x in (known.draft, known.sure, known.gap))
        right = next((i for i, t in enumerate(tokens) if t != known.text[start + i]), len(tokens))
        p = [float(known.p[i]) if i < start + right else float(known.rated[i]) for i in at[: right + 1]]
        tokens, sure, lead = tokens[: right + 1], sure[: right + 1], lead[: right + 1]
        for token, q, gap in known.tails.get(start + right, [])[: seen - len(tokens)]:
            tokens, sure, lead = [*tokens, token], [*sure, q], [*lead, gap]
        p += [np.nan] * (len(tokens) - len(p))
    unsent = step.drafted - step.sent if step.certain and seen == step.drafted and not step.unreviewed else 0
    n = len(tokens) - unsent
    if step.unreviewed:
        status = ["unreviewed"] * n
    else:
        status = (["accepted"] * step.accepted + ["rejected"] + ["unjudged"] * n)[:n]
    status += ["unsent"] * unsent
    own = step.emitted - step.accepted - step.unreviewed
    origin = ["unreviewed" if step.unreviewed else "draft"] * (step.emitted - own)
    if own:
        rejected = "rejected" in status or step.accepted < step.sent
        if method == "bild":
            word = "correction" if rejected else "fallback" if n or step.stop == "fallback" else "plain"
        else:
            word = "plain" if not step.sent else "correction" if rejected else "bonus"
        origin.append(word)
    row: dict[str, Any] = {
        "prompt": known.prompt,
        "cycle": step.cycle,
        "context": len(known.ids) + start,
        "keep": start,
        "depth": len(tokens),
        "width": min(len(tokens), 1),
        "stop": step.stop or None,
        "end": end,
        "node_token": tokens,
        "node_parent": list(range(-1, len(tokens) - 1)),
        "node_position": list(range(1, len(tokens) + 1)),
        "node_source": ["prompt" if lookup else "model"] * len(tokens),
        "node_status": status,
        "out_position": list(range(start, start + step.emitted)),
        "out_token": known.text[start : start + step.emitted].tolist(),
        "out_origin": origin,
        "out_p": known.p[start : start + step.emitted].tolist(),
    }
    if not lookup and tokens:
        row |= {"node_confidence": sure, "node_margin": lead, "node_q": sure, "node_p": p}
    passes = [] if lookup else ["draft"] * step.drafted
    passes += [] if step.unreviewed else ["target"]
    fed = [1] * (len(passes) - (not step.unreviewed)) + ([] if step.unreviewed else [1 + step.sent])
    row |= {"pass_model": passes, "pass_tokens": fed, "pass_rows": [1] * len(passes)}
    row |= {"control_name": ["unseen"], "control_value": [float(step.drafted - seen)]}
    return row
