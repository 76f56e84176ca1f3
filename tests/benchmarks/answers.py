"""The audit of third-party answers: honest ones, tampered ones, and those of another quantisation.

Honest answers come from transformers' ``generate`` and from llama.cpp on the same file, each with its own
template and tokenizer; some are cut by length. Tampered ones have one token replaced, a moved end, or another
system prompt. The sibling is the same file requantised to Q4_0.
"""

from __future__ import annotations

import ctypes
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from specviz import audit
from specviz.audit.answer_report import NOISE, OTHER, OWN, UNSURE, AnswersResult
from specviz.audit.answers import HONEST
from specviz.errors import PromptError
from specviz.measure.report import Bar, Report
from specviz.measure.timing import setting
from specviz.models.llamacpp.library import ends_the_process, special_kernels

TARGET = "smollm2"
SUITES = ("everyday", "demo", "narrow", "sums")
SYSTEM = "You are a pirate. Answer every question in one short line of pirate talk."
LENGTHS = (24, 32, 48)  # token limits of answers
LONGEST = 120  # most tokens of a prompt
COLUMNS = [
    ("answers", "answers", ""),
    ("number", "number", "{:,}"),
    ("own", OWN, "{:,}"),
    ("noise", NOISE, "{:,}"),
    ("other", OTHER, "{:,}"),
    ("unsure", UNSURE, "{:,}"),
    ("largest", "largest margin", "{:.3f}"),
]
Line = dict[str, Any]


def bench(
    target: Any, entries: Sequence[Any], *, number: int = 100, sampled: int = 24,
    tick: Callable[[int, int, str], None] = lambda *_: None,
) -> Report:  # fmt: skip
    """Audit `number` honest answers per engine, `2 * number` tampered ones, and a sibling's answers.

    `sampled` answers are drawn at temperature 0.8 and top-p 0.95, and tested as a set against that and
    another temperature.
    """
    prompts = _prompts(target, entries, number)
    total, done = 7 * number + number // 2 + sampled, 0

    def step(what: str) -> None:
        nonlocal done
        done += 1
        tick(done, total, what)

    llama = _llama(target.path)
    stock, theirs = [], []
    for i, prompt in enumerate(prompts):
        limit = LENGTHS[i % len(LENGTHS)]
        stock.append(_stock(target, prompt, limit))
        step("transformers")
        theirs.append(_asked(llama, prompt, limit))
        step("llama.cpp")
    tampered = _tampered(target, stock, prompts, 2 * number, step)
    results: dict[str, AnswersResult] = {}
    for name, lines in (("transformers", stock), ("llama.cpp", theirs), *tampered.items()):
        results[name] = audit.answers(lines, target, progress=lambda *_: step("audit"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sibling-Q4_0.gguf"
        _requantised(target.path, path)
        other = _llama(path)
        lines = [_asked(other, p, LENGTHS[i % 3]) for i, p in enumerate(prompts[: max(8, number // 2)])]
        import specviz as sv

        sibling = sv.load(f"gguf:{path}", backend="torch", dtype="float32")
        compared = {
            "the Q4_0 sibling's": audit.answers(lines, target, sibling=sibling),
            "llama.cpp's own": audit.answers(theirs[: len(lines)], target, sibling=sibling),
        }
    sure = theirs[: max(HONEST, number // 2)]
    measured = None
    if len(sure) >= HONEST and len(theirs) > len(sure):
        measured = audit.answers(theirs[len(sure) :], target, honest=sure)
    drawn = _drawn(target, prompts[:sampled], step)
    tests = [
        audit.answers([line | {"temperature": said} for line in drawn], target).drawn[0]
        for said in (0.8, 1.2)
    ]
    honest = [results[name] for name in ("transformers", "llama.cpp")]
    caught = sum(results[name].count(OTHER) for name in tampered)
    many = sum(len(lines) for lines in tampered.values())
    named = compared["the Q4_0 sibling's"].sibling
    bars = [
        Bar("honest answers called not the target's", sum(r.count(OTHER) for r in honest), 0, "at most"),
        Bar("share of tampered answers called not the target's", caught / many, 0.95),
        Bar("the sibling's set is named", float(named is not None and named.like == named.name), 1),
        Bar("error rate of that", 1.0 if named is None else named.error, 0.01, "at most"),
    ]
    if measured is not None:
        bars.append(Bar("honest answers beyond the measured envelope", measured.count(OTHER), 0, "at most"))
    notes = [f"{whose}: {result.sibling}" for whose, result in compared.items()]
    if measured is not None:
        notes.append(f"envelope measured on honest answers: {measured.envelopes[0]}")
    notes += [f"said to be at temperature {t.temperature:g}: {t}" for t in tests]
    rows = [_row(name, result) for name, result in results.items()]
    about = setting(target, [], prompts=number, max_new_tokens=max(LENGTHS))
    missed = [str(text) for name in tampered for text in results[name].texts if text.verdict != OTHER]
    return Report(
        "answers", f"audit of answers against {target.name}", about, COLUMNS, rows, bars, notes,
        measurements=[{"missed": missed}],
    )  # fmt: skip


def _row(name: str, result: AnswersResult) -> Line:
    numbers = {
        key: result.count(v)
        for key, v in zip(("own", "noise", "other", "unsure"), (OWN, NOISE, OTHER, UNSURE))
    }
    largest = max((text.largest or 0.0 for text in result.texts), default=0.0)
    return {"answers": name, "number": len(result.texts), **numbers, "largest": largest}


def _prompts(target: Any, entries: Sequence[Any], number: int) -> list[list[Line]]:
    """Pick short questions, each a one-turn chat."""
    texts = [(each.get("turns") or [each.get("prompt")])[0] for each in entries]
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in texts]
    chats = [[{"role": "user", "content": text}] for text in dict.fromkeys(texts)]
    short = [chat for chat in chats if len(target.encode(chat)) <= LONGEST]
    if len(short) < number:
        raise PromptError(f"{number} prompts are wanted, and {len(short)} are short enough: lower --number")
    return random.Random(0).sample(short, number)


@torch.inference_mode()
def _stock(target: Any, messages: list[Line], limit: int, **sampling: Any) -> Line:
    """Decode an answer with transformers' ``generate``, as a line of an answers file."""
    prompt = target.encode(messages)
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None} | sampling
    out = target.net.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, eos_token_id=list(target.eos),
        pad_token_id=target.eos[0], **options,
    )[0, len(prompt) :].tolist()  # fmt: skip
    ended = bool(out) and out[-1] in target.eos
    return {
        "messages": messages, "answer": target.decode(out), "finish_reason": "stop" if ended else "length",
        "max_tokens": limit, "engine": "transformers", "ids": out,
    }  # fmt: skip


def _llama(path: Path) -> Any:
    from llama_cpp import Llama

    threads = torch.get_num_threads()
    with special_kernels(not ends_the_process(whole=False)):
        # Without n_threads_batch, prompts are read on all cores, and threads that wait for a busy core spin.
        return Llama(str(path), n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)


def _asked(llama: Any, messages: list[Line], limit: int) -> Line:
    """Decode an answer with llama.cpp, through its own template."""
    out = llama.create_chat_completion(messages, max_tokens=limit, temperature=0.0)["choices"][0]
    return {
        "messages": messages, "answer": out["message"]["content"], "finish_reason": out["finish_reason"],
        "max_tokens": limit, "engine": "llama.cpp",
    }  # fmt: skip


def _tampered(
    target: Any, honest: list[Line], prompts: list[list[Line]], number: int, step: Callable[[str], None]
) -> dict[str, list[Line]]:
    """Tampered answers, of three kinds.

    An answer that the other system prompt leaves unchanged is replaced by the next one that it changes.
    """
    rng, kinds = random.Random(1), {"one token replaced": [], "an end moved": [], "another system prompt": []}
    reference = audit.reference.Reference(target)
    others = _under_another_prompt(target, honest)
    for i in range(number):
        line = dict(honest[i % len(honest)])
        ids = [token for token in line.pop("ids") if token not in target.eos]
        kind = list(kinds)[i % 3]
        if kind == "another system prompt":
            kinds[kind].append(next(others))
        elif kind == "an end moved":
            kept = ids[: max(1, len(ids) - rng.randint(1, 6))]
            kinds[kind].append(line | {"answer": target.decode(kept), "finish_reason": "stop"})
        else:
            place = rng.randrange(len(ids))
            row = reference.rows(target.encode(line["messages"]), ids)[place]
            # A plausible choice: the best-ranked token whose margin exceeds the envelope.
            order = row.argsort(descending=True).tolist()
            whole = (t for t in order if row.max() - row[t] > 0.6 and target.decode([t]).strip("\ufffd "))
            changed = [*ids[:place], next(whole), *ids[place + 1 :]]
            more = {"token_ids": changed} if i % 2 else {}
            kinds[kind].append(line | {"answer": target.decode(changed), **more})
        step("tampered")
    return kinds


def _under_another_prompt(target: Any, honest: list[Line]) -> Iterator[Line]:
    """Answers to the same questions after another system prompt, if they differ from the honest ones."""
    for line in honest:
        messages = [{"role": "system", "content": SYSTEM}, *line["messages"]]
        other = _stock(target, messages, line["max_tokens"]) | {"messages": line["messages"]}
        if other.pop("ids") != line["ids"]:
            yield other


def _drawn(target: Any, prompts: list[list[Line]], step: Callable[[str], None]) -> list[Line]:
    """Draw sampled answers."""
    torch.manual_seed(0)
    lines = []
    for prompt in prompts:
        line = _stock(target, prompt, max(LENGTHS), do_sample=True, temperature=0.8, top_p=0.95, top_k=0)
        lines.append(line | {"token_ids": line.pop("ids"), "temperature": 0.8, "top_p": 0.95})
        step("sampled")
    return lines


def _requantised(source: Path, path: Path) -> None:
    """Requantise the file to Q4_0 with llama.cpp's quantizer."""
    import llama_cpp

    given = llama_cpp.llama_model_quantize_default_params()
    given.ftype, given.nthread, given.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, 1, True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(given)):
        raise RuntimeError("llama.cpp could not quantize the file")
