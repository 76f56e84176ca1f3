"""A replayed setting as a trace, so that every view shows it; nothing in it is invented.

What the dense record says of a place stands where a run would have written it: candidates, ranks, tails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specviz.schema import UNKNOWN
from specviz.trace import Recorder
from specviz.whatifs.known import Known
from specviz.whatifs.walk import Step, Walk, copied

if TYPE_CHECKING:
    from specviz.trace import Trace


UNSENT = ("pruned", "unsent")
PIECE = "⟨?⟩"  # how a token looks of which nothing is known but that it was there


def build(
    trace: Trace, texts: list[Known], walks: list[Walk], method: str, parameters: dict[str, Any], label: str
) -> Trace:
    """The replayed cycles with the metadata of the run they are taken from.

    Times are left out, for none were measured. A token that was drafted and not recorded stands as
    `schema.UNKNOWN`; where the number of such is bounded, at least as many as there must be.
    """
    run = dict(trace.run)
    for name in ("machine", "threads", "created", "timing", "peak_memory", "stopped"):
        run[name] = None
    if method != run["method"]:
        lossy = method in ("specdec", "cm_asd")
        run |= {"exactness": "lossy" if lossy else "exact up to ties", "pseudocode": None}
    drafter = None if method in ("prompt_lookup", "unispec") else run["dense"] or run["draft"]
    eos = frozenset(run["eos"] or ())
    cycles = []
    for known, walk in zip(texts, walks):
        cycles.append(_prefill(known, drafter is not None))
        for i, step in enumerate(walk.steps):
            end = known.end if step is walk.steps[-1] else None
            if method == "unispec":
                cycles.append(_tree(known, step, walk.nodes[i], end))
            else:
                cycles.append(_cycle(known, step, method, parameters, eos, end))
    words = f"replayed from run {run['run']}; times were not measured"
    if blank := sum(cycle.get("node_token", []).count(UNKNOWN) for cycle in cycles):
        words += f"; {blank} drafted tokens were not recorded and stand as {PIECE}"
    if loose := sum(not step.certain for walk in walks for step in walk.steps):
        words += f"; in {loose} cycles more may have been drafted in vain than is shown"
    if models := sum(walk.modelled is not None for walk in walks):
        words += f"; in {models} of {len(walks)} texts the trees are a model of what would have grown"
    run |= {"run": label, "method": method, "parameters": parameters, "replayed": words, "dense": None}
    run["draft"] = drafter
    pieces = trace.pieces | {UNKNOWN: PIECE.encode()}
    recorder = Recorder(run, piece=lambda token: pieces.get(token, b""))
    for cycle in cycles:
        recorder.add(cycle)
    return recorder.close().select(prompt=[known.prompt for known in texts])


def _prefill(known: Known, drafter: bool) -> dict[str, Any]:
    """Cycle 0, which reads the prompt but its last token."""
    row: dict[str, Any] = {"prompt": known.prompt, "cycle": 0, "context": len(known.ids), "keep": 0}
    names = ["target", "draft"] if drafter else ["target"]
    if len(known.ids) > 1:
        row |= {"pass_model": names, "pass_rows": [1] * len(names)}
        row["pass_tokens"] = [len(known.ids) - 1] * len(names)
    return row


def _cycle(
    known: Known, step: Step, method: str, parameters: dict[str, Any], eos: frozenset[int], end: str | None
) -> dict[str, Any]:
    """A cycle as the recorder takes it."""
    start = step.start
    sent = step.unreviewed or step.sent
    unsent = step.drafted - sent if step.certain else 0
    n = sent + unsent
    lookup = method == "prompt_lookup"
    if lookup:
        names = ("ngram_max", "ngram_min", "draft_length")
        tokens = copied(known, eos, start, *(parameters[name] for name in names))[0].tolist()
        nodes: dict[str, Any] = {}
    else:
        tokens, nodes = _drafted(known, start, n)
    if step.unreviewed:
        status = ["unreviewed"] * sent
    else:
        behind = ["cut"] * step.cut or ["rejected"] + ["unjudged"] * sent
        status = (["accepted"] * step.accepted + behind)[:sent]
    status += ["unsent"] * unsent
    origin = ["unreviewed" if step.unreviewed else "draft"] * (step.accepted + step.unreviewed)
    if len(origin) < step.emitted:
        rejected = step.accepted < step.sent
        if method == "bild":
            word = "correction" if rejected else "fallback" if n or step.stop == "fallback" else "plain"
        else:
            word = "plain" if not step.sent else "correction" if rejected else "bonus"
        origin.append(word)
    read = [] if step.unreviewed else [i for i in range(step.accepted + 1) if start + i in known.wanted]
    row: dict[str, Any] = {
        "prompt": known.prompt,
        "cycle": step.cycle,
        "context": len(known.ids) + start,
        "keep": start,
        "depth": sent,
        "width": min(sent, 1),
        "stop": step.stop or None,
        "end": end,
        "node_token": tokens,
        "node_parent": list(range(-1, n - 1)),
        "node_position": list(range(1, n + 1)),
        "node_source": ["prompt" if lookup else "model"] * n,
        "node_status": status,
        "pred_node": [i - 1 for i in read],
        "out_position": list(range(start, start + step.emitted)),
        "out_token": known.text[start : start + step.emitted].tolist(),
        "out_origin": origin,
        "out_p": known.p[start : start + step.emitted].tolist(),
    }
    row |= nodes
    if known.wanted:
        row["top_k"] = known.top_k
        row |= _candidates("pred", [known.wanted[start + i] for i in read], known.top_k)
    passes = [] if lookup else ["draft"] * step.drafted
    fed = [1] * len(passes)
    if not step.unreviewed:
        passes, fed = [*passes, "target"], [*fed, 1 + sent]
    return row | {"pass_model": passes, "pass_tokens": fed, "pass_rows": [1] * len(passes)}


def _tree(known: Known, step: Step, nodes: dict[str, list], end: str | None) -> dict[str, Any]:
    """A cycle of UniSpec as the recorder takes it."""
    start, n = step.start, step.emitted
    origin = ["draft"] * step.accepted
    if len(origin) < n:
        kept = {i for i, word in enumerate(nodes["node_status"]) if word == "accepted"}
        last = max(kept, key=lambda i: nodes["node_position"][i], default=-1)
        pairs = zip(nodes["node_parent"], nodes["node_status"])
        refused = any(parent == last and word == "rejected" for parent, word in pairs)
        origin.append("plain" if not step.sent else "correction" if refused else "bonus")
    levels = [
        place for place, word in zip(nodes["node_position"], nodes["node_status"]) if word not in UNSENT
    ]
    return nodes | {
        "prompt": known.prompt,
        "cycle": step.cycle,
        "context": len(known.ids) + start,
        "keep": start,
        "depth": max(levels, default=0),
        "width": max((levels.count(level) for level in set(levels)), default=0),
        "stop": step.stop,
        "end": end,
        "out_position": list(range(start, start + n)),
        "out_token": known.text[start : start + n].tolist(),
        "out_origin": origin,
        "out_p": known.p[start : start + n].tolist(),
        "pass_model": ["target"],
        "pass_tokens": [1 + step.sent],
        "pass_rows": [1],
    }


def _drafted(known: Known, start: int, n: int) -> tuple[list[int], dict[str, Any]]:
    """The n tokens of the drafter's chain at a place, and what is known of each.

    Up to its first token that is not the text's they are the places' own; then comes that place's tail.
    """
    here = range(start, min(start + n, len(known.text)))
    wrong = next((at for at in here if known.draft[at] != known.text[at]), None)
    own = here if wrong is None else range(start, wrong + 1)
    tail = [] if wrong is None else known.tails.get(wrong, [])[: n - len(own)]
    blank = n - len(own) - len(tail)
    nan = float("nan")
    chain = [(int(known.draft[at]), float(known.sure[at]), float(known.gap[at])) for at in own]
    chain += [*tail, *[(UNKNOWN, nan, nan)] * blank]
    if not chain:
        return [], {}
    tokens, sure, lead = map(list, zip(*chain))
    p = [float((known.rated if at == wrong else known.p)[at]) for at in own]
    found: dict[str, Any] = {"node_confidence": sure, "node_margin": lead, "node_q": sure}
    found["node_p"] = p + [nan] * (n - len(own))
    if known.wanted:
        ranks = [[other for other, _ in known.wanted.get(at, [])] for at in own]
        found["node_rank"] = [x.index(t) if t in x else nan for x, t in zip(ranks, tokens)]
        found["node_rank"] += [nan] * (n - len(own))
    if known.drafted:
        said = [known.drafted.get(at, []) for at in own]
        said += [[(token, q)] for token, q, _ in tail] + [[]] * blank
        found |= _candidates("node", said, known.top_k)
    return tokens, found


def _candidates(group: str, said: list[list[tuple[int, float]]], k: int) -> dict[str, Any]:
    """Lists of candidates as the record's flat columns; where fewer than k are known, no probability."""
    full = [(each + [(0, float("nan"))] * k)[:k] for each in said]
    flat = [entry for each in full for entry in each]
    return {f"{group}_top_token": [t for t, _ in flat], f"{group}_top_p": [p for _, p in flat]}
