"""Synthetic traces: records that a run of each method could have written, without a model.

They satisfy the record's identities and decisions, and their token table contains what breaks careless
code: Chinese characters split over tokens, HTML, quotes, control characters, bytes that are no UTF-8.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from specviz.trace import Recorder, Trace

HOSTILE = [
    b"</script><img src=x onerror=alert(1)>",
    b"<b>&amp;",
    b"\"'`${x}",
    b"\x00\x07\n\t",
    b"\xff\xfe",
    "\u202eabc".encode(),
    b"$\\frac{1}{2}$",
]
WORDS = [b" the", b" cat", b" sat", b" on", b" a", b" mat", b".", b" and", b" saw", b"Die", b" Katze", b"ing"]
WHOLE = [c.encode() for c in "日本語中文字"]
HALVES = [half for c in "猫座席" for half in (c.encode()[:2], c.encode()[2:])]  # pairs: first, then rest
PIECES: list[bytes] = [b"", b"<eos>", *WORDS, *WHOLE, *HALVES, *HOSTILE]
EOS = 1
FIRST_HALF = 2 + len(WORDS) + len(WHOLE)
SIMPLE = range(2, FIRST_HALF)  # tokens that are whole characters and harmless
SECONDS = range(FIRST_HALF + 1, FIRST_HALF + len(HALVES), 2)  # only ever after their first half
K = 3
SHAPE = {
    "layers": 2, "hidden": 16, "heads": 4, "kv_heads": 2, "head_dim": 4, "feed_forward": 24, "gated": True,
    "vectors": 32, "last": 16, "vocabulary": len(PIECES), "tied": False, "weight_bytes": 4, "cache_bytes": 4,
    "activation_bytes": 4,
}  # fmt: skip


def piece(token: int) -> bytes:
    """Bytes of a token of the synthetic vocabulary."""
    return PIECES[token] if token < len(PIECES) else b" t%d" % token


def metadata(method: str = "speculative", seed: int = 0, prompts: int = 1, **more: Any) -> dict[str, Any]:
    """Run metadata as a loop would write it."""
    rng = np.random.default_rng(seed)
    parameters: dict[str, Any] = {
        "autoregressive": {},
        "speculative": {"length": 4},
        "bild": {"fallback": 0.6, "rollback": 2.0, "cap": 10},
        "tree": {"nodes": 12},
        "unispec": {"nodes": 64, "depth": 10, "neighbours": 10, "threshold": 0.05},
        "cm_asd": {"k_max": 8, "k_min": 1, "alpha": 1.0, "tau_base": 0.1, "gamma": 0.5, "gap": "as_written"},
    }[method]
    sampling = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": seed, "max_new_tokens": 64}
    return {
        "run": f"{method}-{seed}",
        "method": method,
        "parameters": parameters,
        "sampling": sampling,
        "exactness": "lossy" if method in ("bild", "cm_asd") else "exact up to ties",
        "model": {"name": "town", "parameters": 3_000_000},
        "draft": None
        if method == "autoregressive"
        else {"name": "town-draft", "parameters": 500_000, "shape": SHAPE},
        "tokenizer": "town",
        "eos": [EOS],
        "prompts": [
            {
                "tokens": rng.choice(SIMPLE, 7).tolist(),
                "id": f"q{i}",
                "kind": "translation",
                "language": "de",
                "reference": "Die Katze.",
            }
            for i in range(prompts)
        ],
        "machine": {"processor": "a processor", "device": "cpu", "system": "Linux on secret-host"},
        "threads": 1,
        "dtype": "float32",
        "versions": {"python": "3.11", "specviz": "0"},
        "created": "2026-11-20T00:00:00Z",
        "timing": "host clock",
        "peak_memory": {"process": 123_456_789, "device": None},
        **more,
    }


def cycles(
    method: str = "speculative",
    prompts: int = 1,
    tokens: int = 40,
    seed: int = 0,
    temperature: float = 0.0,
    hostile: bool = True,
    vocabulary: int = len(PIECES),
    top_k: int = K,
    cut: bool = True,
    nodes: int = 64,
) -> list[dict[str, Any]]:
    """Cycles of a run: prefill, then verified drafts, then end of text or the limit.

    Without `cut` every text ends with an end token, and no step lacks its bonus or correction. `nodes` is the
    number of nodes of a ``unispec`` tree that are sent; those cut by its threshold and budget follow them.
    """
    rng = np.random.default_rng(seed)
    made: list[dict[str, Any]] = []
    clock = 0.0

    def draw(before: int | None) -> int:
        if before is not None and before + 1 in SECONDS:
            return before + 1
        token = int(rng.integers(2, vocabulary)) if hostile else int(rng.choice(SIMPLE))
        return token - 1 if token in SECONDS else token

    for prompt in range(prompts):
        context, emitted, number = 7, 0, 0
        made.append(
            {
                "prompt": prompt,
                "cycle": 0,
                "context": 0,
                "keep": 0,
                "start": clock,
                "duration": 0.02,
                "pass_model": ["target"],
                "pass_rows": [1],
                "pass_tokens": [6],
                "pass_start": [clock],
                "pass_duration": [0.02],
            }
        )
        clock += 0.02
        last: int | None = None
        done = False
        while not done:
            number += 1
            grown = grow(rng, nodes) if method == "unispec" else None
            sure = doubt(rng, 8) if method == "cm_asd" else None
            sizes = {"autoregressive": 0, "speculative": 4, "tree": 12, "cm_asd": 8}
            sizes["bild"] = int(rng.integers(0, 11))
            n = len(grown["parent"]) if grown else sizes[method]
            parent = grown["parent"] if grown else np.arange(-1, n - 1)
            if method == "tree":
                parent = np.array([-1, -1, -1, 0, 0, 1, 3, 3, 4, 6, 6, 9])
            token = np.zeros(n, np.int64)
            for i in range(n):
                token[i] = draw(int(token[parent[i]]) if parent[i] >= 0 else last)
                while token[i] in token[:i][parent[:i] == parent[i]]:  # siblings differ
                    token[i] = draw(None)
            q = rng.uniform(0.2, 1.0, n)
            p = np.where(rng.random(n) < 0.75, rng.uniform(0.5, 1.0, n), rng.uniform(0.001, 0.3, n))
            u = rng.random(n)
            if sure:
                good = sure["gap"] <= sure["threshold"]
            elif method == "bild":
                good = -np.log(p.astype(np.float32)) <= 2.0
            elif temperature:
                good = u < np.minimum(1, p / q)
            else:
                good = p > 0.5
            status = grown["status"].copy() if grown else np.full(n, "unjudged", object)
            if sure:
                status[sure["window"] :] = "unsent"
            sent = status == "unjudged"
            path: list[int] = []
            here, walking = -1, True
            while walking:
                walking = False
                for child in np.flatnonzero((parent == here) & sent):
                    status[child] = "rejected"
                    if good[child]:
                        status[child] = "accepted"
                        path.append(int(child))
                        here, walking = int(child), True
                        break
            rejected = bool((status == "rejected").any())
            # The target's own token is never one that it just rejected.
            here = path[-1] if path else -1
            refused = {int(token[i]) for i in np.flatnonzero(parent == here) if status[i] == "rejected"}
            offered = {int(token[i]) for i in np.flatnonzero(parent == here)} if grown else set()
            refused |= offered
            final = draw(int(token[here]) if path else last)
            while final in refused:
                final = draw(None)
            origin = "correction" if rejected else "bonus"
            if rejected and temperature:
                origin = "resampled"
            if method == "bild" and not rejected:
                origin = "fallback"
            if method == "autoregressive":
                origin = "plain"
            out = [int(token[i]) for i in path] + [final]
            origins = ["draft"] * len(path) + [origin]
            end = None
            full = emitted + len(out) >= tokens
            if full and cut:
                room = tokens - emitted
                for i in path[room:]:
                    status[i] = "cut"
                out, origins, end = out[:room], origins[:room], "length"
            elif full or (number * 4 > tokens and rng.random() < 0.3):
                out[-1], end = EOS, "eos"
            done = end is not None
            # The target's candidates at each prediction; the first is the greedy choice.
            top = rng.integers(2, vocabulary, (n + 1, top_k))
            for i in range(n):
                if status[i] in ("accepted", "cut"):  # its siblings were rejected
                    top[parent[i] + 1, 0] = token[i]
            if out and len(out) > len(path):
                top[(path[-1] if path else -1) + 1, 0] = out[-1]
            rank = np.array([0 if top[parent[i] + 1, 0] == token[i] else 2 for i in range(n)], np.int64)
            judged = np.isin(status, ["accepted", "rejected", "cut"])
            times = [0.0005 * n, 0.006, 0.0002, 0.0003]
            shape = 3 if method == "tree" else int(n > 0)
            made.append(
                {
                    "prompt": prompt,
                    "cycle": number,
                    "context": context,
                    "keep": emitted,
                    "depth": int(np.max(_depth(parent), initial=0)),
                    "width": int(np.bincount(_depth(parent)).max(initial=0)) if grown else shape,
                    "stop": "none" if not n else ("fallback" if method == "bild" and n < 10 else "length"),
                    "end": end,
                    "control_name": ["window", "confidence"] if sure else ["window"],
                    "control_value": [sure["window"], sure["score"].mean()] if sure else [float(n)],
                    "start": clock,
                    "duration": sum(times),
                    "draft_time": times[0],
                    "forward_time": times[1],
                    "verify_time": times[2],
                    "commit_time": times[3],
                    "node_token": token,
                    "node_parent": parent,
                    "node_position": _depth(parent),
                    "node_source": grown["source"] if grown else ["model"] * n,
                    "node_score": grown["score"] if grown else None,
                    "node_status": status.tolist(),
                    "node_q": None if grown else q,
                    "node_p": np.where(judged, p, np.nan),
                    "node_rank": np.where(judged, rank, np.nan),
                    "node_u": u if temperature else None,
                    "node_confidence": grown["confidence"] if grown else np.maximum(q, 0.5),
                    "node_entropy": None if grown else 1 - q,
                    "node_margin": None if grown else q / 2,
                    "node_met": grown["score"] >= 0.05 if grown else q > 0.1,
                    "node_top_token": None if grown else rng.integers(2, vocabulary, (n, top_k)),
                    "node_top_p": None if grown else np.sort(rng.random((n, top_k)))[:, ::-1],
                    **(signals_of(sure, judged) if sure else {}),
                    "pred_node": np.arange(-1, n),
                    "pred_entropy": rng.random(n + 1),
                    "pred_top_token": top,
                    "pred_top_p": np.sort(rng.random((n + 1, top_k)))[:, ::-1],
                    "top_k": top_k,
                    "out_position": np.arange(emitted, emitted + len(out)),
                    "out_token": out,
                    "out_origin": origins,
                    "out_p": rng.random(len(out)),
                    "out_u": None,
                    "pass_model": ["draft"] * (n > 0) + ["target"],
                    "pass_rows": [1] * (n > 0) + [1],
                    "pass_tokens": [n] * (n > 0) + [int(sent.sum()) + 1],
                    "pass_start": [clock] * (n > 0) + [clock + times[0]],
                    "pass_duration": [times[0]] * (n > 0) + [times[1]],
                }
            )
            last = out[-1]
            clock += sum(times)
            context += len(out)
            emitted += len(out)
    return made


def _depth(parent: np.ndarray) -> np.ndarray:
    depth = np.zeros(len(parent) + 1, np.int64)
    for i, above in enumerate(parent):
        depth[i] = depth[above] + 1
    return depth[:-1]


def doubt(rng: np.random.Generator, n: int, tau_base: float = 0.1, gamma: float = 0.5) -> dict[str, Any]:
    """A drafter's confidence in `n` tokens, and the target's distance from each: the surer, the nearer."""
    size = len(PIECES)
    latent = rng.beta(1.6, 1.0, n)
    logits = np.zeros((n, size))
    logits[:, 0], logits[:, 1] = 9 * latent, 5 * latent * rng.random(n)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    first, second = p[:, 0], p[:, 1]
    entropy, margin = -(p * np.log(p)).sum(1), logits[:, 0] - logits[:, 1]
    parts = [
        1 - entropy / np.log(size),
        1 / (1 + np.exp(-margin)),
        np.minimum(1, (first - second) / (1 - 1 / size)),
    ]
    score = np.mean(parts, axis=0)
    gap = np.where(rng.random(n) < 0.25 + 0.7 * latent, 0.0, rng.exponential(1.5, n))
    return {
        "confidence": first, "entropy": entropy, "margin": first - second, "logit_margin": margin,
        "variance": logits.var(1), "score": score, "gap": gap, "threshold": tau_base + gamma * (1 - score),
        "window": int(np.clip(np.floor(score.mean() * n), 1, n)),
    }  # fmt: skip


def signals_of(sure: dict[str, Any], judged: np.ndarray) -> dict[str, Any]:
    """The node columns of `doubt`; the target's are missing for nodes that were not verified."""
    names = ("confidence", "entropy", "margin", "logit_margin", "variance", "score", "threshold")
    found = {f"node_{name}": sure[name] for name in names}
    found["node_threshold"] = np.where(np.arange(len(judged)) < sure["window"], sure["threshold"], np.nan)
    found["node_gap"] = np.where(judged, sure["gap"], np.nan)
    found["node_rank"] = np.where(judged, np.where(sure["gap"] > 0, 2, 0), np.nan)
    return found


SOURCES = ("store", "neighbour", "prompt", "ngram", "datastore")


def grow(rng: np.random.Generator, nodes: int, deepest: int = 10, threshold: float = 0.05) -> dict[str, Any]:
    """A tree that is grown level by level: each node's score is its path's product of confidences.

    A child below `threshold` grows no further; of the others the `nodes` best are sent, and the rest is
    ``below_budget``. Nodes are ordered level by level, best first among siblings.
    """
    parent, score, confidence, source = [], [], [], []
    status: list[str] = []
    level = [(-1, 1.0)]
    for depth in range(deepest):
        below = []
        for above, path_score in level:
            # a store's confidences are per token: they need not add up to one
            for k, share in enumerate(rng.uniform(0.6, 0.97) * rng.uniform(0.3, 0.6) ** np.arange(10)):
                met = path_score * share >= threshold
                if not met and k and status[-1] == "below_budget":
                    break  # of the cut children only the best is recorded
                parent.append(above)
                confidence.append(share)
                score.append(path_score * share)
                likely = [0.1, 0.6, 0.1, 0.1, 0.1] if not depth else [0.7, 0.0, 0.1, 0.1, 0.1]
                source.append(SOURCES[rng.choice(5, p=likely)])
                status.append("unjudged" if met else "below_budget")
                if met:
                    below.append((len(parent) - 1, path_score * share))
        level = sorted(below, key=lambda pair: -pair[1])[: nodes // 7]
    scores, words = np.array(score), np.array(status, object)
    met = np.flatnonzero(words == "unjudged")
    words[met[np.argsort(-scores[met], kind="stable")[nodes:]]] = "below_budget"
    return {
        "parent": np.array(parent), "score": scores, "confidence": np.array(confidence),
        "source": source, "status": words,
    }  # fmt: skip


def build(
    method: str = "speculative",
    prompts: int = 1,
    tokens: int = 40,
    seed: int = 0,
    temperature: float = 0.0,
    hostile: bool = True,
    path: Path | None = None,
    record: str | None = "judged",
    cut: bool = True,
    nodes: int = 64,
    **more: Any,
) -> Trace:
    """A synthetic trace: ``autoregressive``, ``speculative``, ``bild``, ``cm_asd``, ``tree``, ``unispec``."""
    run = metadata(method, seed, prompts, **more)
    run["sampling"]["temperature"] = temperature
    recorder = Recorder(run, path, record, piece=piece)
    for cycle in cycles(method, prompts, tokens, seed, temperature, hostile, cut=cut, nodes=nodes):
        recorder.add(cycle)
    return recorder.close()
