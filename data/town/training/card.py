"""Model cards in Markdown: the facts a user needs about a bundled model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from town.corpus import tasks
from town.training.recipes import Recipe, recipe

_BARS = "▁▂▃▄▅▆▇█"
WHAT = {
    "town": "The target: a causal language model of a small made-up world in seven languages.",
    "town-draft": "The draft of `town`: two thin layers, the same tokenizer, visibly weaker.",
    "town-draft-aligned": "`town-draft`, fine-tuned on the greedy answers of `town` to training prompts "
    "(BiLD, section 3.5.1).",
}


def sparkline(values: Sequence[float]) -> str:
    """A curve as one line of text."""
    low, high = min(values), max(values)
    return "".join(_BARS[round((v - low) / (high - low or 1) * (len(_BARS) - 1))] for v in values)


def shape(made: Recipe) -> str:
    """A model's shape in words."""
    layers = f"{made.layers} layer{'s' * (made.layers > 1)} × {made.width}"
    if made.part == "heads":
        return f"{made.ahead} heads besides the target's own, × {made.width}, inner layer {made.feed_forward}"
    if made.part == "slots":
        return (
            f"T5 decoder, {layers}, {made.heads} heads, feed-forward {made.feed_forward}, {made.ahead} slots"
        )
    if made.part == "eagle":
        states = f"states of layers {', '.join(map(str, made.states))}" if made.states else "the last states"
        return (
            f"EAGLE-{made.generation}, {layers}, {made.heads} heads ({made.kv_heads} for keys and values), "
            f"feed-forward {made.feed_forward}, reads {states}"
        )
    if made.encoder:
        return (
            f"T5, {made.encoder} encoder and {made.layers} decoder layer{'s' * (made.layers > 1)} "
            f"× {made.width}, {made.heads} heads, feed-forward {made.feed_forward}, tied embeddings"
        )
    family = "Qwen2 read both ways" if made.part == "diffusion" else "Llama"
    return (
        f"{family}, {layers}, {made.heads} heads ({made.kv_heads} for keys and values), "
        f"feed-forward {made.feed_forward}, tied embeddings"
    )


def head(
    name: str, parameters: int, training: dict[str, Any], made: Recipe, what: str, knows: str
) -> list[str]:
    """The opening lines of every card: what the model is, how it was made, its loss curve."""
    planned = recipe(name)
    given = [n for n in ("tokens", "step", "rate") if getattr(made, n) != getattr(planned, n)]
    options = "".join(f" --{n} {getattr(made, n)}" for n in given)
    curve = training["curve"]
    shown = curve[:: max(1, len(curve) // 6)]
    if shown[-1] is not curve[-1]:
        shown.append(curve[-1])
    languages = "en, de" if made.encoder else "en, de, fr, es, zh, ja, vi"
    if made.texts == "english":
        languages = "en"
    unit = "a cell, padding included" if made.part == "diffusion" else "an answer token"
    return [
        "---", "license: apache-2.0", f"language: [{languages}]",
        "library_name: transformers",
        "---", "", f"# {name}", "", what, "",
        f"{knows} It is meant for teaching and tests, not for real text.", "",
        "| | |", "| --- | --- |",
        f"| parameters | {parameters:,} |",
        f"| shape | {shape(made)} |",
        "| tokenizer | byte-level BPE, 3,072 pieces |",
        *([] if made.encoder else [f"| context | {made.context} |"]),
        f"| tokens seen | {training['tokens']:,} in {training['updates']:,} updates of about {made.step:,} |",
        f"| training time | {training['seconds'] / 60:.0f} minutes, {training['where']} |",
        f"| seed | {made.seed} |", "| weights | float16 safetensors |", "| licence | Apache-2.0 |",
        f"| rebuild | `PYTHONPATH=data python -m town.training {name}{options}` |", "",
        *([training["note"], ""] if "note" in training else []),
        "## Loss curve", "",
        f"Dev loss after the first twentieth: `{sparkline([c[2] for c in curve[1:]])}`", "",
        f"| tokens | dev loss (nats {unit}) |", "| ---: | ---: |",
        *(f"| {t:,} | {dev:.3f} |" for t, _, dev in shown), "",
    ]  # fmt: skip


def card(name: str, parameters: int, training: dict[str, Any], found: dict[str, Any]) -> str:
    """The text of a model card."""
    knows = (
        "It knows only the texts that `town.corpus` generates (seven kinds of work: "
        f"{', '.join(tasks.KINDS)})."
    )
    lines = [
        *head(name, parameters, training, Recipe(**training["recipe"]), WHAT[name], knows),
        "## Scores on the test split", "",
        "Greedy translations (sacrebleu; German `13a`, Japanese by characters). The paraphrase is the "
        "generator's own second way of saying it, against the same reference.", "",
        "| | BLEU | paraphrase | share | right word for word |", "| --- | ---: | ---: | ---: | ---: |",
        *(f"| {p} | {t['bleu']:.1f} | {t['paraphrase']:.1f} | {t['share']:.2f} | {t['accepted']:.0%} |"
          for p, t in found["translation"].items()), "",
        "Losses of the last answer, and the entropy of the generator's free choices in it "
        "(no model can be lower for long).", "",
        "| kind | nats a token | bits a character | choices, bits a character | right word for word |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for kind, row in found["losses"].items():
        right = found["answered"].get(kind)
        lines.append(
            f"| {kind} | {row['nats_per_token']:.3f} | {row['bits_per_character']:.3f} "
            f"| {row['choice_bits_per_character']:.3f} | {'' if right is None else f'{right:.0%}'} |"
        )
    if "acceptance" in found:
        lines += ["", "## As a draft of `town`", "",
                  "Accepted over drafted tokens (A/D), greedy, 4 drafted, suite `town`, every turn of it; "
                  "`specviz generate speculative --prompts town` prints the same.",
                  "", "| kind | A/D |", "| --- | ---: |",
                  *(f"| {kind} | {rate:.2f} |" for kind, rate in found["acceptance"].items())]  # fmt: skip
    return "\n".join(lines) + "\n"
