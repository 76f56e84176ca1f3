"""Synthetic runs over a stream: records that re-translation could have written, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specviz.trace import Recorder, Trace
from traces import HOSTILE

PIECES = [
    b"",
    b"<eos>",
    *(f" w{i}".encode() for i in range(30)),
    *HOSTILE,
    *("猫は座る。".encode()[i : i + 1] for i in range(15)),
]
OTHER = 0  # the target's second choice, everywhere
EOS, W, H, C = 1, 2, 32, 32 + len(HOSTILE)  # where words, hostile pieces and bytes of characters start


def stream(
    outputs: Sequence[Sequence[int]],
    mode: str = "ssbd",
    beta: float = 0.2,
    k: int = 0,
    mask: str = "display",
    sources: Sequence[str] | None = None,
    p: float = 0.9,
    streams: int = 1,
    shown: Sequence[int] | None = None,
    **more: Any,
) -> Trace:
    """A run whose updates write `outputs` (without their ends), each drafted by the previous one.

    A draft token that equals the output's is accepted with the target's probability `p`; the first other one
    is rejected with 0.3 against a best of 0.6.
    """
    run = {
        "run": f"{mode}-{beta}-{k}-{mask}", "method": "retranslate",
        "parameters": {"mode": mode, "beta": beta, "k": k, "mask": mask, "target_language": "German"},
        "sampling": {"temperature": 0.0, "max_new_tokens": 64},
        "exactness": "lossy" if mode != "rt" else "exact",
        "model": {"name": "town", "max_length": 512}, "draft": None, "tokenizer": "town", "eos": [EOS],
        "prompts": [{"tokens": [2, 3], "id": f"s{i}", "language": "en"} for i in range(streams)],
        "machine": {"processor": "a processor", "device": "cpu"}, "threads": 1, "dtype": "float32",
        "versions": {}, "created": "", "timing": "host clock", "peak_memory": {},
    }  # fmt: skip
    recorder = Recorder(run | more, None, "judged", piece=lambda token: PIECES[token])
    clock = 0.0
    for prompt in range(streams):
        before: list[int] = []
        for number, output in enumerate(outputs):
            if mode == "cd":  # continues after the previous output
                output = [*before, *output[len(before) :]]
            source = sources[number] if sources else " ".join(f"src{i}" for i in range(2 * number + 2))
            key = {"prompt": prompt, "update": number, "row": 0, "seed": 0}
            context, reused = 8 + 2 * number, 6 + 2 * number if number else 0
            carried = len(before) if mode == "cd" else 0
            recorder.add(
                key
                | {"cycle": 0, "context": context, "keep": 0, "start": clock, "duration": 0.01}
                | {"source": source, "arrival": 0.5 * number, "reused": reused}
                | {
                    "pass_model": ["target"],
                    "pass_rows": [1],
                    "pass_tokens": [context - reused - 1 + carried],
                }
                | {"pass_start": [clock], "pass_duration": [0.01], "forward_time": 0.01}
            )
            clock += 0.01
            out, done, cycle = [*output, EOS], 0, 0
            drafts = list(before) if mode != "rt" else []
            while done < len(out):
                cycle += 1
                row: dict[str, Any] = {"pass_model": ["target"], "pass_rows": [1], "pass_tokens": [1]}
                row |= {"top_k": 2, "pred_node": [-1], "pred_top_token": [out[done], OTHER]}
                row |= {"pred_top_p": [p, 0.01]}
                count, origin = 1, ["plain"]
                if cycle == 1 and drafts:
                    kept = 0
                    while kept < len(drafts) and (mode == "cd" or drafts[kept] == out[kept]):
                        kept += 1
                    n = len(drafts)
                    if mode == "cd":
                        count, origin, row = n, ["unreviewed"] * n, {}
                        status, node_p = origin, [float("nan")] * n
                    else:
                        count = kept + 1
                        origin = ["draft"] * kept + ["bonus" if kept == n else "correction"]
                        status = (["accepted"] * kept + ["rejected"] + ["unjudged"] * n)[:n]
                        node_p = ([p] * kept + [0.3] + [float("nan")] * n)[:n]
                        best = [*drafts[:kept], out[kept]]
                        row |= {"pass_tokens": [1 + n], "pred_node": list(range(-1, kept))}
                        row |= {"pred_top_token": [t for token in best for t in (token, OTHER)]}
                        row |= {"pred_top_p": [x for most in [p] * kept + [0.6] for x in (most, 0.01)]}
                    row |= {
                        "node_token": drafts, "node_parent": list(range(-1, n - 1)), "node_status": status,
                        "node_position": list(range(1, n + 1)), "node_source": ["previous"] * n,
                        "node_p": node_p,
                        "node_rank": [0 if s == "accepted" else 1 for s in status],
                    }  # fmt: skip
                if "pass_model" in row:
                    row |= {"pass_start": [clock], "pass_duration": [0.004]}
                ends = done + count >= len(out)
                hidden = 0 if number == len(outputs) - 1 else k
                seen = shown[number] if shown else max(0, len(output) - hidden)
                recorder.add(
                    key
                    | {
                        "cycle": cycle,
                        "context": context + done,
                        "keep": done,
                        "start": clock,
                        "duration": 0.005,
                    }
                    | {"forward_time": 0.004, "stop": "length", "depth": 1, "width": 1}
                    | {"out_token": out[done : done + count], "out_origin": origin}
                    | {"out_position": list(range(done, done + count))}
                    | ({"end": "eos", "shown": seen} if ends else {})
                    | row
                )
                clock += 0.005
                done += count
            before = list(output)
    return recorder.close()


# Grows, is rewritten from its second word on, shrinks; then the same again.
FLICKERS = [[W, W + 1, W + 2], [W, W + 5, W + 6, W + 7], [W, W + 5], [W, W + 5]]
