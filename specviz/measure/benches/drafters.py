"""Trained drafters by the protocol of `specviz.measure.benches.speed`: each method at its best setting.

Every method that drafts with a model, with heads or with an EAGLE layer runs with each drafter that fits it.
Its setting is chosen on prompts that are not timed: the fastest one, or for a lossy method the fastest one
that writes few tokens other than the target's. The target reads each lossy text to measure its loss, and word
problems with known answers show its effect. Installed engines decode the same prompts without drafts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

import torch

from specviz import methods, metrics, schema
from specviz.draft import Draft
from specviz.errors import ParameterError, PromptError, near
from specviz.loop import Run
from specviz.loop.machine import computed_by, identity
from specviz.measure import timing
from specviz.measure.benches import speed
from specviz.measure.benches.speed import PLAIN, Contender, Results, Selection, Stage
from specviz.measure.report import Bar, Entry, Part, Report, Row, Settings, Tick
from specviz.measure.timing import BASELINE
from specviz.methods.sampling import Sampling
from specviz.models.protocols import Model
from specviz.rules.parameters import Value
from specviz.suites import suite

Values = tuple[tuple[str, Value], ...]
LENGTHS = (1, 2, 3, 4, 6)
EAGLE_SIZES = (2, 2, 1), (3, 1, 3), (3, 2, 2), (4, 2, 3), (6, 2, 4), (8, 3, 4), (12, 4, 3), (20, 5, 4)
# Settings to try, by method.
GRIDS: dict[str, list[dict[str, Value]]] = {
    "speculative": [{"draft_length": n} for n in LENGTHS],
    "specdec": [{"draft_length": n, "tau_base": gap} for n, gap in product((2, 4, 6), (0.1, 0.5, 1.0))],
    "bild": [
        {"fallback": fallback, "rollback": rollback}
        for fallback, rollback in product((0.3, 0.5, 0.7), (1.0, 2.0, 4.0))
    ],
    "cm_asd": [
        {"k_max": most, "tau_base": gap, "gamma": 0.1, "controller": "early_stop"}
        for most, gap in product((2, 4, 6), (0.0, 0.3, 1.0))
    ],
    "blockwise": [{"k": n} for n in (2, 3, 4, 5)],
    "eagle": [
        {"draft_size": size, "depth": depth, "branches": branches} for size, depth, branches in EAGLE_SIZES
    ],
}
ALIGNED = "-aligned"
SUMS, SUM_TOKENS = 40, 64  # word problems for lossy methods, and tokens for each
NUMBER = re.compile(r"\d(?:[\d,]*\d)?(?:\.\d+)?")
LOSS = 0.03  # the largest share of a lossy method's tokens that are not the target's argmax
BARS = {"eagle": (1.6, 2.2), "speculative": (1.25, 1.6), "bild": (1.35, 1.8), "cm_asd": (1.3, 1.7)}
PHASES = ("prefill", *schema.PHASES, "between")
COLUMNS = [
    ("contender", "contender", ""), ("setting", "setting", ""), ("tau", "τ", "{:.2f}"),
    ("speed", "tokens/s", "{:,.1f}"), ("ratio", "ratio [95%]", ""), ("same", "same text", ""),
    ("others", "not argmax", "{:.1%}"), ("lost", "nats lost", "{:.3f}"), ("shown_sums", "sums right", ""),
]  # fmt: skip
SPLIT = [
    ("contender", "contender", ""), ("A/D", "A/D", "{:.3f}"), *((name, name, "{:.0%}") for name in PHASES),
]  # fmt: skip
TRIED = [
    ("contender", "contender", ""), ("setting", "setting", ""), ("speed", "tokens/s", "{:,.1f}"),
    ("others", "not argmax", "{:.1%}"), ("chosen", "", ""),
]  # fmt: skip
NOTES = [
    "ratio: autoregressive decoding's time divided by the contender's, each summed over prompts and rounds, "
    "without the prefill, its 95 % interval by bootstrap over prompts; if a text's length differs from "
    "autoregressive decoding's, the latter's time is scaled to it. same text: prompts whose output is "
    "autoregressive decoding's in every round.",
    "not argmax: output tokens that are not the target's greedy choice; nats lost: how much less likely "
    "they are than its top token, averaged over all tokens. For an exact method these may be near ties.",
    "sums right: correct answers on the suite of that name, by the last number of each answer. For a lossy "
    "method also how many it lost and gained relative to greedy decoding. Exact methods write greedy "
    "decoding's text.",
    "A/D and the time shares come from a recorded run over the prompts on which settings were chosen.",
    "The limits were set for SmolLM2 on 24 questions of Spec-Bench.",
]


class Loss(NamedTuple):
    """Deviation of a text from the target's greedy choice at each position."""

    tokens: int
    others: int  # tokens that the target would not choose greedily
    lost: float  # nats

    @classmethod
    def of(cls, model: Model, prompt: Sequence[int], answer: Sequence[int]) -> Loss:
        """Loss of an answer, which the target reads in one pass."""
        if not answer:
            return cls(0, 0, 0.0)
        context = model.open([list(prompt)], len(answer))
        scores = context.forward([Draft.chain(list(answer[:-1]))]).logits[0].log_softmax(-1)
        context.close()
        written = scores.gather(1, torch.tensor(answer, device=scores.device)[:, None])[:, 0]
        gaps = scores.max(1).values - written
        return cls(len(answer), int((gaps > 0).sum()), float(gaps.sum()))

    def __add__(self, other: object) -> Loss:
        """Loss of both texts."""
        assert isinstance(other, Loss)
        return Loss(self.tokens + other.tokens, self.others + other.others, self.lost + other.lost)

    @property
    def share(self) -> float:
        """Share of tokens that the target would not choose greedily."""
        return self.others / self.tokens if self.tokens else 0.0


def bench(
    model: Model,
    drafts: Sequence[Model],
    entries: Sequence[Entry],
    *,
    source: str = "",
    number: Annotated[int, "How many prompts to time."] = 24,
    max_new_tokens: Annotated[int, "Maximum number of tokens per prompt."] = 96,
    rounds: Annotated[int, "Number of rounds over all prompts."] = 3,
    ids: Annotated[Path | None, "A JSON file that lists the questions of --prompts to time."] = None,
    only: Annotated[Sequence[str] | None, "Methods, such as eagle,bild."] = None,
    loss: Annotated[float, "Largest share of a lossy method's tokens that are not the target's."] = LOSS,
    sums: Annotated[int, "How many word problems lossy methods and greedy decoding answer; 0: none."] = SUMS,
    rounds_file: Path | None = None,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Measure trained drafters: every method with each drafter that fits it, at its best setting.

    Decoding is greedy, from token ids to token ids; only the first turn of a conversation is used.

    Parameters
    ----------
    model : Model
    drafts : sequence of Model
        Drafters of any kind, bound to the model.
    entries : sequence of dict
        Prompts: the timed ones, and five others on which settings are chosen.
    source : str
        The prompts' file, or NAME=FILE, whose digest `ids` may state.
    number, max_new_tokens, rounds, ids, rounds_file, tick
        As for `specviz.measure.benches.speed.bench`.
    only : sequence of str, optional
        Methods. Default: all of `GRIDS` for which there is a drafter.
    loss : float
        Largest share of a lossy method's tokens that are not the target's greedy choice, in [0, 1].
    sums : int
        Untimed word problems from the suite ``sums``, 60 at most; an encoder-decoder answers none.

    Bars on ratios of summed times without the prefill: `BARS`, for each method's best drafter, and BiLD with
    an aligned draft over BiLD with the unaligned draft of the same name; another bar on the ratio of these
    two's A/D. Exact methods must write autoregressive decoding's texts, and lossy ones stay within `loss`.

    Raises
    ------
    ParameterError, PromptError
        Before any work, with one line that says what to do.
    """
    if not 0 <= loss <= 1:
        raise ParameterError(f"loss must lie in 0 .. 1, got {loss}")
    questions = list(suite("sums"))
    if not 0 <= sums <= len(questions):
        raise ParameterError(f"sums must lie in 0 .. {len(questions)}, got {sums}")
    by_name = {draft.name: draft for draft in drafts}
    pairs = _pairs(drafts, only)
    chosen = speed.chosen_ids(ids, source) if ids is not None else None
    selection = Selection.of(entries, number, chosen, speed.leaves_room(model, max_new_tokens))
    texts = speed.encoded(model, selection.timed, max_new_tokens)
    others = [*selection.calibration, *selection.warm]
    if not others:
        raise PromptError(
            "settings are chosen on prompts that are not timed, and none are left: lower --number"
        )
    practice = speed.encoded(model, others[: speed.CALIBRATION], max_new_tokens)
    grid = [Contender(f"{name}, {draft}", name, draft=draft) for name, draft in pairs]
    lacking = speed.lacking_engines(model)
    engines = [Contender(name) for name in PLAIN if name not in lacking]
    plan = speed.plan_of(model, [*grid, *engines], texts, practice, max_new_tokens)
    plan |= {"loss": loss, "grid": {name: GRIDS[name] for name in sorted(GRIDS)}}
    plan |= {"drafters": [identity(draft) | computed_by(draft) for draft in drafts]}
    state = speed.State(rounds_file, plan, calibration={})
    content = state.content
    calibration, answers = content["calibration"], content.setdefault("sums", {})
    with state.going_on(rounds):
        for contender in grid:
            if contender.name not in calibration:
                calibration[contender.name] = _tried(
                    model, by_name, contender, practice, max_new_tokens, loss, tick
                )
                state.keep()
        lineup = [Contender(BASELINE, BASELINE)]
        lineup += [replace(each, values=_best(calibration[each.name])) for each in grid]
        stage = Stage(model, [*lineup, *engines], texts, practice, max_new_tokens, by_name)
        speed.run_rounds(stage, state, rounds, tick)
        if sums and model.kind == "causal":
            answering = [
                contender for contender in lineup if contender.name == BASELINE or _lossy(contender.method)
            ]
            for number, contender in enumerate(answering if len(answering) > 1 else []):
                tick(number, len(answering), f"sums, {contender.label}")
                if len(answers.get(contender.label, [])) != sums:
                    answers[contender.label] = _answered(model, by_name, contender, questions[:sums])
                    state.keep()
        about = {"best_exact": None, "left_out": {name: lacking[name] for name in PLAIN if name in lacking}}
        return _report(
            model, lineup, engines, by_name, selection, texts, practice, content, max_new_tokens, loss, about
        )


def _answered(
    model: Model, drafts: Mapping[str, Model], contender: Contender, questions: Sequence[Entry]
) -> list[bool]:
    """Let a contender answer the word problems; return whether each answer is right."""
    run = Run(
        model, list(questions), contender.build(), draft=drafts.get(contender.draft), record=None,
        max_new_tokens=SUM_TOKENS,
    )  # fmt: skip
    trace = timing.finish(run)
    return [last_number(text) == entry["reference"][0] for text, entry in zip(trace.texts, questions)]


def last_number(text: str) -> str | None:
    """The last number of a text, without thousands separators or a fraction of zeros."""
    numbers = NUMBER.findall(text)
    if not numbers:
        return None
    whole, _, rest = str(numbers[-1]).replace(",", "").partition(".")
    return whole if not rest.strip("0") else f"{whole}.{rest}"


def _pairs(drafts: Sequence[Model], only: Sequence[str] | None) -> list[tuple[str, str]]:
    """Each method with each drafter that fits it.

    Raises
    ------
    ParameterError
        If a name is not a method of `GRIDS`, or no drafter fits.
    """
    names = list(GRIDS) if only is None else [methods.name_of(name) for name in only]
    for name in names:
        if name not in GRIDS:
            raise ParameterError(f"no contender {name!r}" + near(name, GRIDS))
    pairs = [
        (name, draft.name)
        for name in names
        for draft in methods.find(name).suited(drafts)
        if draft is not None
    ]
    if not pairs:
        raise ParameterError("no drafter fits: name one with --draft")
    return pairs


def _tried(
    model: Model, drafts: Mapping[str, Model], contender: Contender, texts: list[list[int]], most: int,
    loss: float, tick: Tick,
) -> Settings:  # fmt: skip
    """Measure speed and loss of every setting of the grid, and choose one."""
    draft = drafts[contender.draft]
    grid = [values for values in GRIDS[contender.method] if _fits(values, draft)]
    clock = timing.clock_of(model)[0]
    prompts = [texts[0], *texts]  # the first one warms up
    decoders = [
        speed.Ours(
            Run(model, [{"prompt": ids} for ids in prompts], methods.find(contender.method)(**values),
                draft=draft, record=None, max_new_tokens=most), clock,
        )
        for values in grid
    ]  # fmt: skip
    step, what = timing.counter(tick, len(prompts) * len(grid)), f"choosing {contender.name}"
    times = timing.paired(dict(enumerate(decoders)), len(prompts), model.device, lambda _: step(what), clock)
    points: list[Row] = []
    for values, decode, timed in zip(grid, decoders, times.values()):
        losses = [Loss.of(model, ids, answer) for ids, answer in zip(texts, timed.texts[1:])]
        total, seconds = sum(losses, Loss(0, 0, 0.0)), sum(timed.seconds[1:]) - sum(decode.prefills[1:])
        points.append({"values": values, "speed": total.tokens / seconds, "others": total.share})
    good = [point for point in points if point["others"] <= loss or not _lossy(contender.method)]
    best = max(good or points, key=lambda point: point["speed"] if good else -point["others"])
    return {"values": best["values"], "points": points, "within": bool(good)}


def _fits(values: Mapping[str, Value], draft: Model) -> bool:
    """Whether a drafter predicts as many tokens as the setting needs."""
    return int(values.get("k", 1)) <= getattr(draft, "most", math.inf)


def _lossy(name: str) -> bool:
    kind = methods.find(name)
    return kind(**GRIDS[name][0]).exactness(Sampling(), "float32") == "lossy"


def _best(tried: Settings) -> Values:
    return tuple(tried["values"].items())


def _shown(values: Mapping[str, Value] | Values) -> str:
    return " ".join(f"{name}={value}" for name, value in dict(values).items())


def _report(
    model: Model, lineup: list[Contender], engines: list[Contender], drafts: Mapping[str, Model],
    selection: Selection, texts: list[list[int]], practice: list[list[int]], state: Settings, most: int,
    loss: float, about: Settings,
) -> Report:  # fmt: skip
    results = Results(state["rounds"])
    rows = [_row(model, results, each, texts) for each in [*lineup, *engines]]
    for row in rows:
        row |= _sums(state["sums"], row["contender"])
    exact = [each.label for each in lineup[1:] if not _lossy(each.method)]
    best = speed.best_over_plain(results, exact)
    if best is not None:
        about["best_exact"] = asdict(best)
    split = [_split(model, drafts, each, practice, most) for each in lineup[1:]]
    loads = [each["others"] for each in state["rounds"]]
    circumstances = timing.setting(
        model, list(drafts.values()), prompts=len(texts), max_new_tokens=most, rounds=len(state["rounds"]),
        clock=timing.clock_of(model)[1], others=loads,
        quiet=speed.quietness(loads), wall=[each["wall"] for each in state["rounds"]],
        calibration=state["calibration"], sums=state["sums"], **about,
        questions=[{"id": entry.get("id"), "kind": entry.get("kind")} for entry in selection.timed],
    )  # fmt: skip
    title = f"Drafters of {model.name}: {len(texts)} prompts, {most} new tokens, greedy, without the prefill"
    parts = [
        Part("Where the time goes", SPLIT, split),
        Part("Settings tried", TRIED, list(_points(state["calibration"]))),
    ]
    minutes = sum(circumstances["wall"]) / 60
    notes = [*NOTES, f"{circumstances['quiet']}; {minutes:.0f} minutes of rounds"]
    notes += [best.line] if best is not None else []
    notes += [f"skipped: {name} ({why})" for name, why in about["left_out"].items()]
    notes += [
        f"{name}: no setting of the grid stayed within the loss limit; the least lossy one runs"
        for name, tried in state["calibration"].items()
        if not tried["within"]
    ]
    bars = [*_bars(results, lineup, {row["contender"]: row["A/D"] for row in split}), *_losses(rows, loss)]
    return Report(
        "drafters", title, circumstances, COLUMNS, rows, bars, notes, ("lost",), parts, state["rounds"]
    )


def _row(model: Model, results: Results, contender: Contender, texts: list[list[int]]) -> Row:
    name, base = contender.label, contender.name == BASELINE
    measured = results.rounds[0]["measurements"][name]
    total = Loss(0, 0, 0.0)
    for ids, each in zip(texts, measured):
        total += Loss.of(model, ids, each["tokens"])
    same = results.same(name)
    return {
        "contender": name, "method": contender.method or None, "draft": contender.draft or None,
        "setting": _shown(contender.values), "tau": results.tau(name), "speed": results.speed(name, False),
        "ratio": None if base else results.ratio(name), "same": f"{sum(same)}/{len(same)}",
        "others": total.share, "lost": total.lost / max(total.tokens, 1),
    }  # fmt: skip


def _sums(answers: Mapping[str, list[bool]], name: str) -> Row:
    """How many word problems are right, and how many were lost and gained relative to greedy decoding."""
    own, greedy = answers.get(name), answers.get(BASELINE)
    if own is None or greedy is None:
        return {"sums": None, "right": None, "shown_sums": None}
    lost, won = (sum(map(int.__gt__, a, b)) for a, b in ((greedy, own), (own, greedy)))
    change = "" if name == BASELINE else f" (−{lost} +{won})"
    return {"sums": len(own), "right": sum(own), "shown_sums": f"{sum(own)}/{len(own)}{change}"}


def _split(
    model: Model, drafts: Mapping[str, Model], contender: Contender, texts: list[list[int]], most: int
) -> Row:
    """Acceptance, and each phase's share of the time, in a recorded run."""
    run = Run(
        model, [{"prompt": ids} for ids in texts], contender.build(), draft=drafts[contender.draft],
        max_new_tokens=most,
    )  # fmt: skip
    trace = timing.finish(run)
    shares = timing.phases(trace)
    return {
        "contender": contender.label, "A/D": metrics.acceptance_rate(trace),
        **{name: shares[name] for name in PHASES},
    }  # fmt: skip


def _points(calibration: Mapping[str, Settings]) -> Iterator[Row]:
    for name, tried in calibration.items():
        for i, point in enumerate(tried["points"]):
            yield {
                "contender": name if i == 0 else "", "setting": _shown(point["values"]),
                "speed": point["speed"], "others": point["others"],
                "chosen": "chosen" if point["values"] == tried["values"] else "",
            }  # fmt: skip


def _bars(results: Results, lineup: list[Contender], accepted: Mapping[str, float]) -> list[Bar]:
    """The bars of the methods that ran; `accepted` has each contender's A/D."""
    bars = []
    for name, (limit, goal) in BARS.items():
        ratios = {each.label: results.ratio(each.label).median for each in lineup if each.method == name}
        if ratios:
            best = max(ratios, key=lambda label: ratios[label])
            bars.append(Bar(f"{best} over {BASELINE}", ratios[best], limit, goal=goal))
    labels: Callable[[str], str] = lambda draft: f"bild, {draft}"
    for each in lineup:
        plain = each.draft.removesuffix(ALIGNED)
        if each.method == "bild" and plain != each.draft and labels(plain) in results.names:
            ratio = results.ratio(each.label, labels(plain)).median
            bars.append(Bar(f"{each.label} over {labels(plain)}", ratio, 1.0, "more than"))
            own, base = accepted[each.label], accepted[labels(plain)]
            gain = own / base if base else math.nan
            bars.append(Bar(f"{each.label} over {labels(plain)}: A/D", gain, 1.0, "more than"))
    for each in lineup[1:]:
        if not _lossy(each.method):
            same = results.same(each.label)
            title = f"{each.label}: texts equal to {BASELINE}'s ({sum(same)} of {len(same)})"
            bars.append(Bar(title, sum(same) / len(same), 1.0))
    return bars


def _losses(rows: list[Row], loss: float) -> Iterator[Bar]:
    """Bars that hold lossy methods to the loss limit on the timed prompts, too."""
    for row in rows[1:]:
        if row["method"] and _lossy(row["method"]):
            yield Bar(f"{row['contender']}: tokens that are not the target's", row["others"], loss, "at most")
