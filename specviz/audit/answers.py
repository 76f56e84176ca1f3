"""Is another program's text the target's own? One teacher-forced pass and one verdict per answer.

A greedy answer is the target's own if each of its tokens, and its end, is the first choice after the tokens
before it. Another engine computes the same weights with other roundings, so a token may be slightly below the
first choice; how far is measured on honest answers of that engine, or a stated default. If a token is not the
first choice, its margin (first choice's logit minus its own) is computed in float64.

An answer without token ids is tokenised by the model's own tokenizer. The engine may have spelled the same
text with other tokens, so if a token is too far from the first choice, near choices that spell the same bytes
are followed instead. Sampled answers are tested as a set, by their likelihood.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import ParameterError, PromptError, SpecvizError
from ..loop.drafters import Loadable
from ..loop.machine import number_format
from ..methods.sampling import Sampling, TemperatureLast
from ..models import load
from ..models.protocols import Model
from ..models.text import Text
from ..paths import expanded
from . import setup
from .answer_files import Answer, Given, read, to_its_end, tokenised
from .answer_report import (
    FLOOR,
    FOREIGN,
    NOISE,
    OTHER,
    OWN,
    UNSURE,
    AnswersResult,
    Envelope,
    Likelihood,
    Sibling,
    TextVerdict,
)
from .law import spell
from .reference import Reference, Stepwise, reference_of

DEFAULT = 0.5  # logits, if no honest answers of the engine are given
# The same for llama.cpp, which rounds the inputs of products to 8 bits; one of 100 honest answers had a
# margin of 0.518. The value was set after that answer and was not tried on others.
LLAMA_CPP = 0.75
# A part of the names of engines that run llama.cpp, in small letters and with hyphens.
RUN_LLAMA_CPP = (
    "llama.cpp", "llama-server", "llama-cpp-python", "llamafile", "koboldcpp", "lm-studio", "lmstudio",
    "ollama",
)  # fmt: skip
TEMPER_FIRST = ("vllm", "sglang", "transformers", "text-generation-inference", "specviz")  # before top-p
FACTOR = 2.0  # the envelope is this many times the largest margin of the honest answers ...
HONEST = 8  # minimum number of honest answers for an envelope
TIE = 1e-6  # float64 margin below which two tokens tie
SPELLINGS = 12  # maximum number of spellings of an answer that are tried
BLOCK = 1024  # tokens of an answer whose logits are held at once
MISSING = 4  # tokens that a cut answer's text may lack: blanks and half characters are left out
NEAR = 8  # likeliest tokens at a place that are tried for another spelling


def run(
    answers: Given,
    model: Loadable,
    *,
    honest: Given | None = None,
    envelope: float | None = None,
    sibling: Loadable | str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    kernels: str | None = None,
    invariant: bool | None = None,
    threads: int | None = None,
    progress: setup.Progress = None,
) -> AnswersResult:
    """Audit answers that another program wrote: are they this model's own?

    Parameters
    ----------
    answers : str, Path or list of dict
        JSON lines, or such objects: see `specviz.audit.answer_files.read`.
    model : Model or what `specviz.load` takes
        Loaded in float32 unless `dtype` is given.
    honest : str, Path or list of dict, optional
        Greedy answers that are certainly this model's, at least 8 of each engine: twice their largest margin,
        at most 2, is the engine's envelope. Those that name no engine count for all engines without any,
        except those that run llama.cpp; with `envelope`, only for answers that name none.
    envelope : float, optional
        In logits, for engines without honest answers. Default: 0.5, and 0.75 for llama.cpp and engines that
        run it, which round the inputs of products to 8 bits.
    sibling : Model, what `specviz.load` takes, or ``template:FILE``, optional
        Another quantisation of the weights, or another chat template, to test which one the set is nearer to.
    dtype, device : str, optional
    kernels, invariant : str, bool, optional
        The model's, as for `specviz.load`; the kernels not ``int8``, ``int4`` or ``w8a8``.
    threads : int, optional
        Threads of the backend during the audit.
    progress : callable, optional
        Called with (answers done, answers to do).

    Returns
    -------
    AnswersResult

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work, except for a PromptError about honest answers or the sibling.
    """
    lines, sure = read(answers), [] if honest is None else read(honest)
    if envelope is not None and not 0 < envelope < 100:
        raise ParameterError(f"envelope must be a margin in logits above 0 and below 100, got {envelope:g}")
    with setup.on_backend(threads):
        target = _loaded(model, device, dtype, kernels, invariant)
        other = None if sibling is None else _sibling(target, sibling, device, dtype)
        steps = len(lines) * (1 if other is None else 2) + len(sure)
        tick = setup.counter(progress, steps)
        judge = _Judge(target)
        envelopes = judge.measured(sure, tick)
        if envelope is None:
            measured = {each.engine for each in envelopes}
            named = dict.fromkeys(line.engine for line in lines if _runs_llama_cpp(line.engine))
            envelopes = [Envelope(name, LLAMA_CPP) for name in named if name not in measured] + envelopes
        if envelope is not None or not envelopes or envelopes[-1].engine:
            envelopes = [replace(each, others=False) for each in envelopes]
            envelopes.append(Envelope("", envelope or DEFAULT, stated=envelope is not None))
        # Of two for answers that name no engine, the first was measured.
        by_engine = {each.engine: each.value for each in reversed(envelopes)}
        texts, readings = [], []
        for line in lines:
            verdict, reading = judge.verdict(line, by_engine.get(line.engine, envelopes[-1].value))
            texts.append(verdict)
            readings.append(reading)
            tick()
        drawn = _likelihoods(lines, readings)
        compared = None
        if other is not None:
            compared = _compared(target, other, lines, texts, readings, tick)
    against = _against(target)
    chat = getattr(target.text.tokenizer, "chat_template", None) is not None
    foreign = [text for text in texts if text.verdict == OTHER]
    if chat and foreign and len(foreign) == len(texts) and all(
        text.place == 0 and not line.chat for text, line in zip(texts, lines)
    ):  # fmt: skip
        against["hint"] = (
            "every answer diverges at its first token, and each 'prompt' was read without the template: if "
            "the prompts were sent as chat messages, give them as 'messages'"
        )
    return AnswersResult(against, envelopes, texts, drawn, compared)


def _runs_llama_cpp(engine: str) -> bool:
    """Whether an engine's name says that it runs llama.cpp; LM Studio also runs MLX."""
    return "mlx" not in engine.lower() and _named(engine, RUN_LLAMA_CPP)


def _named(engine: str, parts: Sequence[str]) -> bool:
    name = re.sub(r"[\s_]", "-", engine.lower())
    return any(part in name for part in parts)


def sampling_of(answer: Answer) -> Sampling:
    """How an answer was sampled, in its engine's order of temperature and top-p; first if it is not known."""
    if not answer.temperature:
        return Sampling()
    settings = answer.temperature, answer.top_k, answer.top_p
    last = _order_matters(answer) and _tempers_last(answer.engine)
    return TemperatureLast(*settings) if last else Sampling(*settings)


def _tempers_last(engine: str) -> bool:
    """Whether an engine samples in llama.cpp's order; Ollama's own engine does not."""
    return _runs_llama_cpp(engine) and not _named(engine, ("ollama",))


def _order_matters(answer: Answer) -> bool:
    return answer.temperature not in (0, 1) and answer.top_p < 1


def order_unknown(answer: Answer) -> bool:
    """Whether it matters which of temperature and top-p came first, and the engine's name does not say."""
    known_order = _tempers_last(answer.engine) or _named(answer.engine, TEMPER_FIRST)
    return _order_matters(answer) and not known_order


@dataclass
class Reading:
    """An answer's tokens after a prompt, and what was computed from them.

    Parameters
    ----------
    prompt, ids : list of int
    mean_margin : float
    moments : tuple of float, optional
        For a sampled answer: tokens, and sums of the log probabilities, their expectations and variances.
    """

    prompt: list[int]
    ids: list[int]
    mean_margin: float = 0.0
    moments: tuple[float, float, float, float] | None = None


@dataclass
class Places:
    """The margins of an answer's tokens, and of its end.

    Parameters
    ----------
    margin : array [tokens]
        The first choice's logit minus the token's.
    first : array [tokens + 1]
        The first choice in place of each token, and at the answer's end.
    end : float
        The first choice's logit at the end minus the largest of an end token.
    near : array [tokens + 1, NEAR]
        The likeliest tokens at each place, best first, and `gap`, how far they are below the first.
    """

    margin: np.ndarray
    first: np.ndarray
    end: float
    near: np.ndarray
    gap: np.ndarray

    def worst(self, end: str) -> float:
        """The largest margin of the tokens and, if the answer ended by itself, of its end."""
        return max(float(self.margin.max(initial=0.0)), self.end if end == "stop" else 0.0)


class _Judge:
    """Reads answers with one model."""

    def __init__(self, target: Model, text: Text | None = None, name: str = "") -> None:
        self.target, self.name = target, name or target.name
        self.text = target.text if text is None else text  # a sibling may have another template
        self.reference: Reference | Stepwise = reference_of(target)
        self.ends = sorted(set(target.eos))

    # -- passes ------------------------------------------------------------------------------------

    def blocks(
        self, read: Callable[[list[int], list[int]], Tensor], prompt: list[int], ids: list[int]
    ) -> Iterator[Tensor]:
        """Logits after the prompt and each token, in blocks: tensors [n, vocabulary]."""
        fed = [*ids, self.ends[0] if self.ends else 0]  # the last one is not read, only predicted
        # An encoder-decoder's prompt is its source, which the answer's tokens do not extend.
        block = len(fed) if self.target.kind == "encoder-decoder" else BLOCK
        for start in range(0, len(fed), block):
            yield read([*prompt, *fed[:start]], fed[start : start + block])

    def places(self, prompt: list[int], ids: list[int], double: bool = False) -> Places:
        """The margins of an answer, from one pass over it."""
        read = self.reference.double if double else self.reference.rows
        margin, first, near, gap, end = [], [], [], [], float("inf")
        start = 0
        for rows in self.blocks(read, prompt, ids):
            own = torch.tensor(ids[start : start + len(rows)], device=rows.device)
            top = rows.topk(min(NEAR, rows.shape[-1]), dim=-1)
            best = top.values[:, 0]
            margin.append(best[: len(own)] - rows[: len(own)].gather(1, own[:, None])[:, 0])
            near.append(top.indices)
            gap.append(best[:, None] - top.values)
            first.append(top.indices[:, 0])
            if self.ends:
                end = float(best[-1] - rows[-1, self.ends].max())  # that of the last block is the end's
            start += len(rows)
        joined = [torch.cat(each).cpu().numpy() for each in (margin, first, near, gap)]
        return Places(joined[0].astype(np.float64), joined[1], end, joined[2], joined[3])

    def moments(
        self, prompt: list[int], ids: list[int], sampling: Sampling, ended: bool, envelope: float
    ) -> tuple[tuple[float, float, float, float], int | None]:
        """Sums of tokens, log probabilities, expectations and variances; and the first impossible token."""
        count = total = expected = variance = 0.0
        start, impossible = 0, None
        for rows in self.blocks(self.reference.rows, prompt, ids):
            logits = rows.cpu().double()  # MPS has no float64
            p = sampling.probabilities(logits)
            log = p.clamp_min(1e-300).log()
            mean = (p * log).sum(-1)
            spread = (p * log**2).sum(-1) - mean**2
            own = ids[start : start + len(rows)]
            if start + len(rows) > len(ids) and ended and self.ends:  # the end token was drawn, too
                own = [*own, max(self.ends, key=lambda token: float(logits[-1, token]))]
            at = torch.tensor(own)[:, None]
            n = len(own)
            least = logits[:n].masked_fill(p[:n] == 0, torch.inf).amin(-1)  # of the tokens that are kept
            below = least - logits[:n].gather(1, at)[:, 0]
            outside = torch.nonzero(below > envelope)[:, 0]
            if impossible is None and len(outside):
                impossible = start + int(outside[0])
            floor = log[:n].masked_fill(p[:n] == 0, 0.0).amin(-1)
            total += float(torch.maximum(log[:n].gather(1, at)[:, 0], floor).sum())
            expected += float(mean[:n].sum())
            variance += float(spread[:n].clamp_min(0).sum())
            count += n
            start += len(rows)
        return (count, total, expected, variance), impossible

    # -- spellings ---------------------------------------------------------------------------------

    @cached_property
    def pieces(self) -> dict[bytes, int]:
        """The tokens that are not special, by the bytes that they spell."""
        special = self.target.text.special
        return {self.target.piece(i): i for i in range(self.target.vocabulary) if i not in special}

    @cached_property
    def puts_blank(self) -> bool:
        """Whether the tokenizer puts a blank in front of a text, as SentencePiece does."""
        return b"".join(map(self.target.piece, self.target.text.plain("a"))) == b" a"

    def continued(self, text: str) -> list[int] | None:
        """Tokens of a continuation, without the tokenizer's blank in front; None if there are none."""
        ids = self.target.text.plain(text)
        if self.target.text.special & set(ids):
            return None
        if b"".join(map(self.target.piece, ids)) != b" " + text.encode():
            return ids
        first = self.target.piece(ids[0]).removeprefix(b" ")
        if not first:
            return ids[1:]
        if first in self.pieces:
            return [self.pieces[first], *ids[1:]]
        alone = [self.pieces.get(first[i : i + 1]) for i in range(len(first))]
        return None if None in alone else [*[each for each in alone if each is not None], *ids[1:]]

    def tokens(self, rest: bytes) -> list[int] | None:
        """Tokenise bytes; those of an incomplete character in front one by one. None if impossible."""
        ids: list[int] = []
        while rest:
            try:
                more = self.continued(rest.decode())
                return None if more is None else [*ids, *more]
            except UnicodeDecodeError as error:
                if error.start > 0:
                    head = self.continued(rest[: error.start].decode())
                    if head is None:
                        return None
                    ids, rest = [*ids, *head], rest[error.start :]
                    continue
                if rest[:1] not in self.pieces:
                    return None
                ids, rest = [*ids, self.pieces[rest[:1]]], rest[1:]
            except PromptError:
                return None
        return ids

    def respelled(
        self, ids: list[int], places: Places, last: int, envelope: float, ended: bool
    ) -> list[list[int]]:
        """The same text in other tokens, each spelling with a near choice at one of the first places.

        A blank in front or at the end, which engines strip, may be restored.
        """
        result = []
        for place in range(min(last, len(ids)), -1, -1):
            rest = b"".join(self.target.piece(token) for token in ids[place:])
            own = ids[place] if place < len(ids) else None
            if place == 0 and self.puts_blank and rest[:1] == b" ":
                rest, own = rest[1:], None  # the tokenizer may have added this space
            for token, gap in zip(places.near[place].tolist(), places.gap[place].tolist()):
                if gap > envelope or token == own:
                    continue
                if token in self.target.text.special:
                    continue
                piece = self.target.piece(token)
                after = self._after(piece, rest, place == 0, ended)
                if after is not None and (more := self.tokens(after)) is not None:
                    result.append([*ids[:place], token, *more])
        return result

    def _after(self, piece: bytes, rest: bytes, first: bool, ended: bool) -> bytes | None:
        """The part of `rest` after a piece that begins it; None if the piece does not."""
        if piece and rest.startswith(piece):
            return rest[len(piece) :]
        if first and piece[:1].isspace() and not rest[:1].isspace() and rest.startswith(piece.lstrip()):
            return rest[len(piece.lstrip()) :]
        if ended and len(piece) > len(rest) and piece.startswith(rest) and piece[len(rest) :].isspace():
            return b""
        return None

    def best(
        self, prompt: list[int], ids: list[int], envelope: float, end: str
    ) -> tuple[list[int], Places, bool]:
        """The spelling of an answer nearest to the target's own; and whether others were left untried."""
        open_ones = [ids]
        tried: set[tuple[int, ...]] = set()
        nearest: tuple[int, list[int], Places] | None = None
        while open_ones and len(tried) < SPELLINGS:
            ids = open_ones.pop(0)
            if tuple(ids) in tried:
                continue
            tried.add(tuple(ids))
            places = self.places(prompt, ids)
            wrong = np.flatnonzero(places.margin > envelope)
            last = int(wrong[0]) if len(wrong) else len(ids)
            ended = end != "stop" or places.end <= envelope
            reach = len(b"".join(map(self.target.piece, ids[:last]))) + (not len(wrong)) + ended
            if nearest is None or reach > nearest[0]:
                nearest = reach, ids, places
            if not len(wrong) and ended:
                return ids, places, False
            open_ones = self.respelled(ids, places, last, envelope, end == "stop") + open_ones
        assert nearest is not None
        return nearest[1], nearest[2], any(tuple(ids) not in tried for ids in open_ones)

    # -- verdicts ----------------------------------------------------------------------------------

    def measured(self, answers: Sequence[Answer], tick: Callable[[], None]) -> list[Envelope]:
        """Measure the envelope of each engine that has honest answers."""
        groups: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for answer in answers:
            if answer.temperature:
                raise PromptError(f"{answer.where} was sampled: honest answers must be greedy")
            answer, past = to_its_end(answer, self.target)
            prompt, ids, why = tokenised(answer, self.target)
            why = why or _uncomputed(answer)
            if past is not None:
                why = why or "it continues after its end token"
            if why:
                raise PromptError(f"{answer.where} is not an honest answer: {why}")
            spelled = ids
            # A wide envelope accepts the first spelling that is tried, so a narrow one comes first.
            for width in (FLOOR, DEFAULT, FOREIGN) if answer.ids is None else ():
                spelled, places, _ = self.best(prompt, ids, width, answer.end)
                if places.worst(answer.end) <= width:
                    break
            worst = self.places(prompt, spelled, double=True).worst(answer.end)
            if worst > FOREIGN:
                raise PromptError(
                    f"{answer.where} is not an honest answer of {self.target.name}: one of its tokens or its "
                    f"end is {worst:.1f} logits below the top token"
                )
            groups[answer.engine].append((worst, len(spelled)))
            tick()
        result = []
        for engine, some in groups.items():
            worsts, sizes = zip(*some)
            if (count := len(sizes) - sizes.count(0)) < HONEST:
                of = f" of {engine}" if engine else ""
                raise PromptError(
                    f"{count} honest answers{of} with tokens are too few to measure: give at least {HONEST}"
                )
            value = min(max(FACTOR * max(worsts), FLOOR), FOREIGN)
            result.append(Envelope(engine, value, max(worsts), len(some), sum(sizes)))
        return sorted(result, key=lambda each: not each.engine)

    def verdict(self, answer: Answer, envelope: float) -> tuple[TextVerdict, Reading | None]:
        """The verdict on one answer, and its reading."""
        begun, past = to_its_end(answer, self.target)
        result, reading = self._judged(begun, envelope)
        if past is None or answer.ids is None or reading is None or result.verdict == OTHER:
            return result, reading
        words = self._words(answer.ids[past])
        why = f"it continues after its end token: token {past} is {words!r}"
        result = replace(result, verdict=OTHER, reason=why, tokens=len(answer.ids), place=past)
        return replace(result, actual=words, expected="", margin=None), reading

    def _judged(self, answer: Answer, envelope: float) -> tuple[TextVerdict, Reading | None]:
        """The verdict on an answer that has no token after its end token."""
        prompt, ids, why = tokenised(answer, self.target)
        why = why or _uncomputed(answer)
        blank = TextVerdict(answer.where, UNSURE, why, answer.engine, len(ids))
        if why:
            return blank, None
        if answer.temperature:
            return self._sampled(answer, envelope, prompt, ids, blank)
        untried = False
        if answer.ids is None:
            ids, places, untried = self.best(prompt, ids, envelope, answer.end)
        else:
            places = self.places(prompt, ids)
        reading = Reading(prompt, ids, float(places.margin.mean()) if len(ids) else 0.0)
        # The end of an answer that was cut off does not count, and float64 is slow.
        if places.margin.any() or (answer.end in ("stop", "") and places.end > 0):
            places = self.places(prompt, ids, double=True)
        result = replace(
            blank,
            tokens=len(ids),
            largest=float(places.margin.max(initial=0.0)),
            mean_margin=reading.mean_margin,
        )
        off = np.flatnonzero(places.margin > TIE)
        if len(off):
            result = self._at(result, ids, places, int(off[0]))
        wrong = np.flatnonzero(places.margin > envelope)
        if len(wrong):
            result = self._at(result, ids, places, int(wrong[0]))
            why = f"{_differs(result)}; the envelope is {envelope:.3g}"
            if untried:
                return replace(
                    result, verdict=UNSURE, reason=f"it may have been written with other tokens: {why}"
                ), reading
            return replace(result, verdict=OTHER, reason=why), reading
        if answer.end == "stop" and places.end > envelope:
            result = self._at(result, ids, places, len(ids))
            why = f"it is marked as ended, but the target continues with {result.expected!r}"
            why += f" ({places.end:.3g} logits above an end token; the envelope is {envelope:.3g})"
            return replace(result, verdict=UNSURE if untried else OTHER, reason=why), reading
        if doubt := self._doubt(answer, ids, places):
            return replace(result, verdict=UNSURE, reason=doubt), reading
        ended = places.end if answer.end == "stop" else 0.0
        if len(off) or ended > TIE:
            if not len(off):
                result = self._at(result, ids, places, len(ids))
            return replace(result, verdict=NOISE, reason=_differs(result)), reading
        return replace(result, verdict=OWN), reading

    def _doubt(self, answer: Answer, ids: list[int], places: Places) -> str:
        """Why the end of an answer whose tokens are all the target's is in doubt; empty if it is not."""
        if answer.end == "" and places.end > TIE:
            return "no finish_reason says whether it ended or was cut off, and the target continues"
        if answer.end == "other":
            return "its finish_reason does not depend on the target: every token is the target's own"
        if answer.end == "length" and answer.limit is not None:
            slack = 0 if answer.ids is not None else MISSING
            if not answer.limit - slack <= len(ids) <= answer.limit:
                return f"it is marked as cut off at {answer.limit} tokens, but it has {len(ids)}"
        return ""

    def _at(self, result: TextVerdict, ids: list[int], places: Places, place: int) -> TextVerdict:
        """The verdict, with the place and the tokens there."""
        end = place == len(ids)
        words = "the end" if end else self._words(ids[place])
        margin = places.end if end else float(places.margin[place])
        expected = self._words(int(places.first[place]))
        return replace(result, place=place, margin=margin, actual=words, expected=expected)

    def _words(self, token: int) -> str:
        if token in self.target.eos:
            return self.target.text.name(token) or "the end token"
        return self.target.piece(token).decode("utf8", "backslashreplace")

    def _sampled(
        self, answer: Answer, envelope: float, prompt: list[int], ids: list[int], blank: TextVerdict
    ) -> tuple[TextVerdict, Reading]:
        sampling = sampling_of(answer)
        moments, place = self.moments(prompt, ids, sampling, answer.end == "stop", envelope)
        reading = Reading(prompt, ids, moments=moments)
        if place is None:
            return replace(
                blank, reason="sampled: a single text shows little; the set is tested below"
            ), reading
        words = "the end" if place == len(ids) else repr(self._words(ids[place]))
        why = f"token {place}, {words}, cannot be drawn there ({spell(sampling)})"
        sure = answer.ids is not None
        why = why if sure else f"{why}, if these are its tokens: give token_ids to be sure"
        return replace(blank, verdict=OTHER if sure else UNSURE, reason=why, place=place), reading


def _uncomputed(answer: Answer) -> str:
    """Why an answer's settings prevent a verdict; empty if they do not."""
    if not answer.altered:
        if not order_unknown(answer):
            return ""
        return (
            f"whether {answer.engine or 'its engine'} applies the temperature before or after top-p is not "
            "known: name an engine whose order is, or sample with top_p 1 or temperature 1"
        )
    return (
        f"it was decoded with {answer.altered}, but only temperature, top_p and top_k are supported: "
        "switch the rest off"
    )


def _differs(result: TextVerdict) -> str:
    return (
        f"token {result.place} is {result.actual!r}, where the target has {result.expected!r}, "
        f"{result.margin:.3g} logits above it in float64"
    )


def _likelihoods(lines: Sequence[Answer], readings: Sequence[Reading | None]) -> list[Likelihood]:
    """Test the sampled answers of each engine and setting as a set."""
    groups: dict[tuple[str, float, float, int], list[tuple[float, float, float, float]]] = defaultdict(list)
    for line, reading in zip(lines, readings):
        if reading is not None and reading.moments is not None:
            groups[line.engine, line.temperature, line.top_p, line.top_k].append(reading.moments)
    result = []
    for (engine, temperature, top_p, top_k), moments in groups.items():
        count, total, expected, variance = np.sum(moments, axis=0).tolist()
        n = max(count, 1.0)
        z = (total - expected) / np.sqrt(variance) if variance > 0 else 0.0
        p = math.erfc(abs(z) / math.sqrt(2))
        row = (len(moments), int(count), total / n, expected / n, float(z), p)
        result.append(Likelihood(temperature, top_p, top_k, *row, engine))
    return result


# ---------------------------------------------------------------- models


def _loaded(
    model: Loadable, device: str | None, dtype: str | None, kernels: str | None = None,
    invariant: bool | None = None,
) -> Model:  # fmt: skip
    """Load the model to compare with; a named one in float32, unless `dtype` is given."""
    named = isinstance(model, str | Path) and not str(model).startswith("gguf:")
    number = dtype or ("float32" if named else None)
    target = load(model, device, number, kernels=kernels, invariant=invariant)
    target = setup.audited_model(target, None, None)
    setup.check_causal(target)
    return target


def _sibling(target: Model, sibling: Loadable, device: str | None, dtype: str | None) -> _Judge:
    """A judge with the sibling's weights or its template."""
    if not (isinstance(sibling, str) and sibling.startswith("template:")):
        other = _loaded(sibling, device, dtype)
        target.check_vocabulary(other)
        return _Judge(other)
    path = expanded(sibling.removeprefix("template:"), ParameterError)
    try:
        template = path.read_text("utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot read the template {path}: {error}") from None
    tokenizer = getattr(target, "tokenizer", None)
    if getattr(target, "net", None) is None or tokenizer is None:
        raise ParameterError(
            "a sibling with another template needs weights that run on torch and a tokenizer"
        )
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = template
    text = Text(tokenizer, target.vocabulary, target.eos, target.text.source)
    return _Judge(target, text, f"the template {path.name}")


def _compared(
    target: Model, other: _Judge, lines: Sequence[Answer], texts: Sequence[TextVerdict],
    readings: Sequence[Reading | None], tick: Callable[[], None],
) -> Sibling:  # fmt: skip
    """Test whether the greedy answers are nearer to the target or to the sibling."""
    margins, others = [], []
    for line, text, reading in zip(lines, texts, readings):
        if reading is not None and reading.moments is None and reading.ids and text.mean_margin is not None:
            try:
                prompt = other.text.encode(line.prompt, other.name, raw=True)
            except SpecvizError as error:
                raise PromptError(f"{line.where}: {other.name} cannot read its prompt: {error}") from None
            margins.append(text.mean_margin)
            others.append(float(other.places(prompt, reading.ids).margin.mean()))
        tick()
    if not margins:
        raise PromptError("no greedy answer could be read, so none can be compared with the sibling")
    name = other.name
    name = f"{name} (the sibling)" if name == target.name else name
    return Sibling.of(name, target.name, margins, others)


def _against(target: Model) -> dict[str, str]:
    """Describe what the answers are compared with."""
    tokenizer = target.text.tokenizer
    template = getattr(tokenizer, "chat_template", None)
    backend = getattr(target, "backend", {})
    computed = f"{number_format(target)}, {backend.get('name', 'torch')}"
    computed += f", {target.kernels} kernels" if hasattr(target, "kernels") else ""
    ends = ", ".join(f"{token} {target.text.name(token)}".strip() for token in target.eos) or "none"
    described = {
        "model": target.name,
        "weights": f"SHA-256 {getattr(target, 'content', 'not known')}",
        "format": getattr(target, "source", None) or f"{number_format(target)}, as stored",
        "computed": f"{computed}; margins in {'float64' if hasattr(target, 'net') else 'the same passes'}",
        "template": _digest(str(template)) if template else "none: messages cannot be read",
        "tokenizer": f"{type(tokenizer).__name__}, {target.vocabulary:,} ids",
        "end tokens": ends,
    }
    opening = _opening(target) if template else ""
    defaults = (
        "greedy if a line states no temperature; 'messages' go through the template, a 'prompt' is used "
        "unchanged"
    )
    return described | {"defaults": defaults + (f"; the template starts with {opening!r}" if opening else "")}


def _digest(text: str) -> str:
    return f"SHA-256 {hashlib.sha256(text.encode('utf8', 'replace')).hexdigest()}"


def _opening(target: Model) -> str:
    """The text that the template puts in front of a user's first words, often a system message."""
    mark = "QUESTION"
    try:
        ids = target.encode([{"role": "user", "content": mark}])
    except PromptError:
        return ""
    whole = b"".join(map(target.piece, ids)).decode("utf8", "replace")
    return whole.partition(mark)[0][:300]
