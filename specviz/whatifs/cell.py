"""Turn a replayed setting into a trace, so that every view shows it; nothing in it is invented.

The dense record's candidates, ranks and tails of a position are put where a run would have written them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from specviz.rules.bild import guarantee
from specviz.rules.gap import lossless
from specviz.rules.speculative import chain_status, next_origin
from specviz.schema import UNKNOWN
from specviz.trace import Recorder, Trace
from specviz.whatifs.texts import Candidates, Rounding, Row, Setting, TextRecord, positive
from specviz.whatifs.walk import PromptLookupReplay, Step, Walk

UNSENT = ("below_budget", "unsent")
LIMITS = ("top_beta", "tau_base", "gamma", "adaptive_verification")  # decide whether a gap is accepted
PIECE = "⟨?⟩"  # stands for a token that was drafted but not recorded


def replayed_run(trace: Trace) -> Row:
    """The metadata of the run from which a replay is taken, without its times, as none were measured."""
    run = dict(trace.run)
    for name in ("machine", "threads", "created", "timing", "peak_memory", "stopped"):
        run[name] = None
    return run | {"replayed": f"replayed from run {run['run']}; times were not measured"}


def build(
    trace: Trace, texts: list[TextRecord], walks: list[Walk], method: str, parameters: Setting,
    label: str,
) -> Trace:  # fmt: skip
    """The replayed cycles as a trace.

    A token that was drafted but not recorded becomes `schema.UNKNOWN`; if the number of these is only
    bounded, there are as many as the lower bound.
    """
    run = replayed_run(trace)
    if method != run["method"]:
        run |= {"exactness": "exact up to ties", "pseudocode": None}
    if method in ("specdec", "cm_asd"):
        limits = {name: parameters[name] for name in LIMITS if name in parameters}
        run["exactness"] = "exact up to ties" if lossless(**limits) else "lossy"
    if method == "bild":
        run["exactness"] = guarantee(parameters["fallback"], parameters["rollback"], parameters["review_end"])
    drafter = None
    if method not in ("prompt_lookup", "unispec"):
        own, dense = run["draft"] or {}, run["dense"] or {}
        # For the same model, the run says more than its dense record: also its shape and kind.
        drafter = own if own and dense.get("name") in (None, own.get("name")) else dense or None
    prefixes = {"target": prefix_of(run["model"])}
    if drafter:  # a dense record does not say its drafter's; its outputs begin like the target's
        prefixes["draft"] = prefix_of(drafter if "kind" in drafter else run["model"])
    cell = Cell(method, parameters, frozenset(run["eos"] or ()))
    cycles = []
    for record, walk in zip(texts, walks):
        cycles.append(_prefill(record, prefixes))
        read = -1  # how much of the text the drafter has read; at first not even the prompt's last token
        for i, step in enumerate(walk.steps):
            end = record.end if step is walk.steps[-1] else None
            if method == "unispec":
                cycles.append(_tree(record, step, walk.nodes[i], end))
                continue
            cycles.append(cell.cycle(record, step, end, step.start - read))
            if step.drafted:  # the drafter does not read the last token of its own draft
                read = step.start + min(step.drafted - 1, step.accepted + step.unreviewed)
    words = run["replayed"]
    if unrecorded := sum(cycle.get("node_token", []).count(UNKNOWN) for cycle in cycles):
        words += f"; {unrecorded} drafted tokens were not recorded and are shown as {PIECE}"
    if loose := sum(not step.certain for walk in walks for step in walk.steps):
        words += f"; in {loose} cycles more rejected tokens may have been drafted than are shown"
    if models := sum(walk.modelled is not None for walk in walks):
        words += f"; in {models} of {len(walks)} texts the trees are only modelled"
    run |= {"run": label, "method": method, "parameters": parameters, "replayed": words, "dense": None}
    run["draft"] = drafter
    return recorded(run, trace.pieces | {UNKNOWN: PIECE.encode()}, cycles)


def recorded(run: Row, pieces: Mapping[int, bytes], cycles: Iterable[Row]) -> Trace:
    """Make a trace of replayed cycles, limited to their prompts."""
    recorder = Recorder(run, piece=lambda token: pieces.get(token, b""))
    prompts: dict[int, None] = {}
    for cycle in cycles:
        recorder.add(cycle)
        prompts[cycle["prompt"]] = None
    return recorder.close().select(prompt=list(prompts))


def prefix_of(model: Row | None) -> int:
    """Length of an encoder-decoder's output prefix; the prefill reads all of it but the last token."""
    return positive((model or {}).get("prefix")) or 0


def _prefill(record: TextRecord, prefixes: dict[str, int]) -> Row:
    """Cycle 0, in which each model reads the prompt and its prefix except for the last token."""
    row: Row = {"prompt": record.prompt, "cycle": 0, "context": len(record.ids), "keep": 0}
    fed = {model: len(record.ids) + prefix - 1 for model, prefix in prefixes.items()}
    if all(fed.values()):
        row |= {"pass_model": list(fed), "pass_rows": [1] * len(fed), "pass_tokens": list(fed.values())}
    return row


class Cell(NamedTuple):
    """A setting; converts its cycles to the recorder's form."""

    method: str
    parameters: Setting
    eos: frozenset[int]

    def cycle(self, record: TextRecord, step: Step, end: str | None, unread: int) -> Row:
        """A cycle of a chain; `end` says what ended the text with it.

        The drafter's first pass reads its `unread` tokens: after a fully accepted draft, these include the
        draft's last token.
        """
        start = step.start
        sent = step.unreviewed or step.sent
        unsent = step.drafted - sent if step.certain else 0
        n = sent + unsent
        lookup = self.method == "prompt_lookup"
        if lookup:
            replay = PromptLookupReplay(record, self.eos, Rounding(0.0, 0.0), **self.parameters)
            tokens = replay.draft(start)[0].tolist()
            nodes: Row = {}
        else:
            tokens, nodes = _drafted(record, start, n)
        if step.unreviewed:
            status = ["unreviewed"] * sent
        elif step.cut:
            status = ["accepted"] * step.accepted + ["cut"] * step.cut
        else:
            status = chain_status(sent, step.accepted)
        judged = [] if step.unreviewed else range(step.accepted + 1)
        rows = [i for i in judged if start + i in record.target_top]
        row: Row = {
            "prompt": record.prompt, "cycle": step.cycle, "context": len(record.ids) + start, "keep": start,
            "depth": sent, "width": min(sent, 1), "stop": step.stop or None, "end": end,
            "node_token": tokens, "node_parent": list(range(-1, n - 1)),
            "node_position": list(range(1, n + 1)),
            "node_source": ["prompt" if lookup else "model"] * n, "node_status": status + ["unsent"] * unsent,
            "pred_node": [i - 1 for i in rows],
        } | _outputs(record, step, self.origins(step, n)) | nodes  # fmt: skip
        if record.target_top:
            row["top_k"] = record.top_k
            row |= _candidates("pred", [record.target_top[start + i] for i in rows], record.top_k)
        passes = [] if lookup else ["draft"] * step.drafted
        fed = [unread, *[1] * (len(passes) - 1)] if passes else []
        if not step.unreviewed:
            passes, fed = [*passes, "target"], [*fed, 1 + sent]
        return row | {"pass_model": passes, "pass_tokens": fed, "pass_rows": [1] * len(passes)}

    def origins(self, step: Step, n: int) -> list[str]:
        """The origin of each emitted token of a cycle with n nodes."""
        origins = ["unreviewed" if step.unreviewed else "draft"] * (step.accepted + step.unreviewed)
        if len(origins) < step.emitted:
            rejected = step.accepted < step.sent
            if self.method == "bild":
                word = "correction" if rejected else "fallback" if n or step.stop == "fallback" else "plain"
            else:
                word = next_origin(step.sent, rejected)
            origins.append(word)
        return origins


def _outputs(record: TextRecord, step: Step, origins: list[str]) -> Row:
    """The columns for what a cycle emits."""
    places = slice(step.start, step.start + step.emitted)
    return {
        "out_position": list(range(places.start, places.stop)),
        "out_token": record.text[places].tolist(),
        "out_origin": origins,
        "out_p": record.p[places].tolist(),
    }


def _tree(record: TextRecord, step: Step, nodes: dict[str, list], end: str | None) -> Row:
    """A cycle of UniSpec in the recorder's form."""
    origins = ["draft"] * step.accepted
    if len(origins) < step.emitted:
        kept = {i for i, word in enumerate(nodes["node_status"]) if word == "accepted"}
        last = max(kept, key=lambda i: nodes["node_position"][i], default=-1)
        pairs = zip(nodes["node_parent"], nodes["node_status"])
        rejected = any(parent == last and word == "rejected" for parent, word in pairs)
        origins.append(next_origin(step.sent, rejected))
    levels = [
        place for place, word in zip(nodes["node_position"], nodes["node_status"]) if word not in UNSENT
    ]
    return nodes | _outputs(record, step, origins) | {
        "prompt": record.prompt, "cycle": step.cycle, "context": len(record.ids) + step.start,
        "keep": step.start, "depth": max(levels, default=0),
        "width": max((levels.count(level) for level in set(levels)), default=0),
        "stop": step.stop, "end": end,
        "pass_model": ["target"], "pass_tokens": [1 + step.sent], "pass_rows": [1],
    }  # fmt: skip


def _drafted(record: TextRecord, start: int, n: int) -> tuple[list[int], Row]:
    """The n tokens of the drafter's chain at a position, and what the record says about each.

    Up to the drafter's first token that differs from the text, they are the predictions recorded at each
    position; that position's tail follows.
    """
    here = range(start, min(start + n, len(record.text)))
    wrong = next((at for at in here if record.draft[at] != record.text[at]), None)
    own = here if wrong is None else range(start, wrong + 1)
    tail = [] if wrong is None else record.tails.get(wrong, [])[: n - len(own)]
    missing = n - len(own) - len(tail)
    nan = float("nan")
    chain = [(int(record.draft[at]), float(record.draft_p[at]), float(record.draft_lead[at])) for at in own]
    chain += [*tail, *[(UNKNOWN, nan, nan)] * missing]
    if not chain:
        return [], {}
    tokens, draft_p, lead = map(list, zip(*chain))
    p = [float((record.draft_target_p if at == wrong else record.p)[at]) for at in own]
    columns: Row = {"node_confidence": draft_p, "node_margin": lead, "node_q": draft_p}
    columns["node_p"] = p + [nan] * (n - len(own))
    if record.target_top:
        ranks = [[other for other, _ in record.target_top.get(at, [])] for at in own]
        columns["node_rank"] = [x.index(t) if t in x else nan for x, t in zip(ranks, tokens)]
        columns["node_rank"] += [nan] * (n - len(own))
    if record.draft_top:
        top = [record.draft_top.get(at, []) for at in own]
        top += [[(token, q)] for token, q, _ in tail] + [[]] * missing
        columns |= _candidates("node", top, record.top_k)
    return tokens, columns


def _candidates(group: str, top: list[Candidates], k: int) -> Row:
    """Lists of candidates as the record's flat columns, padded to k without probabilities."""
    full = [(each + [(0, float("nan"))] * k)[:k] for each in top]
    flat = [entry for each in full for entry in each]
    return {f"{group}_top_token": [t for t, _ in flat], f"{group}_top_p": [p for _, p in flat]}
