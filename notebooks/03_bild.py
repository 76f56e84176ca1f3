# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · BiLD: a small model that knows when to stop, a large one that knows what to take back
#
# ![A decode by BiLD: tokens by the small and by the large model, the cycles, the drafter's confidence](stills/03.png)
#
# *40 minutes, about three of them computing (two on `town`). Needs `torch`; the quality scores need `sacrebleu`
# (`pip install -e ".[run,quality,lab]"`).*
#
# Kim et al. (2023), *Speculative Decoding with Big Little Decoder*. Speculative decoding keeps the target's
# text, or its law when sampling. BiLD gives that up on purpose: the small model's words stay unless the large
# one finds them *unlikely*. You will
#
# 1. watch its two policies, **fallback** and **rollback**, and set each threshold to its extremes,
# 2. translate, as the paper does: what does speed cost in quality, and what are alignment and each policy worth?
# 3. draft with the large model's own first layer, beside CALM, and count FLOPs and bytes,
# 4. measure on a language model what is lost and what is gained.
#
# The pair is **SmolLM2** (135 M, dequantised 4-bit weights) with `smollm2-draft` if
# `specviz models get smollm2` has downloaded SmolLM2 (93 MB), and otherwise `town` with `town-draft`. Parts 2
# and 3 use bundled translators in either case, because their texts have known answers.

# %%
import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch

import specviz as sv

torch.set_num_threads(1)
pair = "smollm2" if "smollm2" in sv.list_models() else "town"
large, small = sv.load(pair), sv.load(f"{pair}-draft")
if pair == "smollm2":
    small = small.on(large)  # it reads and writes by the large model's own embedding
prompt = {
    "smollm2": "My bicycle has stood in the garage all winter. What should I check before I ride it?",
    "town": "Translate into German: The farmer who sold the horse wants to buy a new car next week.",
}[pair]
trace = sv.generate(large, prompt, method="bild", draft=small, fallback=0.5, rollback=2.0, max_new_tokens=48)
trace

# %% [markdown]
# ## The two policies (sections 3.3 and 3.4, Algorithm 1)
#
# **Fallback.** The small model keeps writing while it is confident,
#
# $$ \max_y p_S(y \mid y_{1:n-1}) > \alpha_{FB}. $$
#
# When it is not, its token is *not* written: the large model writes that one (▾). It also takes over after 10
# tokens at the latest (appendix 7.1.2).
#
# **Rollback.** When the large model takes over, it reads in one pass all that the small one has written since. So it
# has a probability for every token. With $d$ the cross-entropy between the small model's token and the large model's
# distribution,
#
# $$ d(y_m) = -\log p_L(y_m \mid y_{1:m-1}), $$
#
# the first $y_m$ with $d > \alpha_{RB}$ and everything after it are thrown away, and the large model's token replaces
# $y_m$ (↶).
#
# The dashed line in the confidence lane is $\alpha_{FB}$. **Predict.** How many of the small model's tokens
# lie below it? Of those, how many does the large model write anyway?

# %%
nodes, outputs = trace.nodes, trace.outputs
below = nodes[nodes["confidence"] <= 0.5].set_index("cycle")
instead = outputs[outputs["origin"] == "fallback"].set_index("cycle")["token"]
needless = (below["token"] == instead.reindex(below.index)).sum()
print(f"below the threshold: {len(below)} of {len(nodes)} tokens, {' and '.join(below['status'].unique())}")
print(f"the large model wrote the same token {needless} times")

# %% [markdown]
# A token below the line is recorded as *unsent*. Each rollback can be checked from the record, which keeps the large
# model's probability of every token that it judged.

# %%
distance = -np.log(nodes["p"].clip(lower=1e-30))
shown = nodes.assign(distance=distance)[["cycle", "text", "confidence", "p", "distance", "status"]]
shown[nodes["status"] == "rejected"].round(3)

# %% [markdown]
# ## The extremes of both thresholds
#
# **Predict**, before each row is printed, whether the text is the large model's, the small model's, or
# something in between, and how often the large model runs:
#
# | | α_FB | α_RB |
# |---|---|---|
# | (a) | 1 | 2 |
# | (b) | 0 | 2 |
# | (c) | 0 | 1000 |
# | (d) | 0.5 | 0 |

# %%
texts = {
    "large alone": sv.generate(large, prompt, method="autoregressive", max_new_tokens=48).text,
    "small alone": sv.generate(small, prompt, method="autoregressive", max_new_tokens=48).text,
}
for name, fallback, rollback in (("a", 1, 2), ("b", 0, 2), ("c", 0, 1000), ("d", 0.5, 0)):
    run = sv.generate(
        large, prompt, method="bild", draft=small, fallback=fallback, rollback=rollback, max_new_tokens=48
    )
    equal = [who for who, text in texts.items() if text == run.text]
    row = run.summary().iloc[0]
    print(
        f"({name}) {run.run['exactness']:17s} τ {row['tau']:.2f}, large passes {int(row['target_passes'])}: {equal or 'neither'}"
    )
    print("    ", run.text)

# %% [markdown]
# (a) No probability exceeds 1, so every token is the large model's; drafting is wasted. (b) Only the cap of
# 10 and rollback remain: a fixed window, as in Figure 5's ablation. (c) Nothing is ever taken back; the large
# model still writes one token in eleven. (d) Distance zero means probability one; almost nothing is kept:
# again the large model's text. `lossy` stays: a last block may go unreviewed. Between the extremes, move
# the sliders.

# %%
language_model, drafter = large, small  # the next part has another pair


def between(fallback, rollback):
    values = {"fallback": fallback, "rollback": rollback}
    run = sv.generate(language_model, prompt, "bild", draft=drafter, max_new_tokens=48, **values)
    row = run.summary().iloc[0]
    print(f"τ {row['tau']:.2f}, large passes {int(row['target_passes'])}")
    print(run.text)


slide = ipywidgets.FloatSlider
controls = ipywidgets.interact(
    between,
    fallback=slide(0.5, min=0, max=1, step=0.05, description="α_FB", continuous_update=False),
    rollback=slide(2, min=0, max=8, step=0.5, description="α_RB", continuous_update=False),
)

# %% [markdown]
# ## With an encoder
#
# From here to *What it costs* the pair is different. The paper's models are encoder-decoders (mT5, T5): an
# encoder reads the source, and every decoder layer attends to it through *cross-attention*. The bundled pair
# has T5's architecture: 4 encoder and 8 decoder layers in the large model, 2 and 1 in the small one.
#
# **Predict.** In a translation of forty tokens, how many passes read the source? And which of three caches does a
# rollback cut: the encoder's output, the keys of cross-attention, the decoder's own keys?

# %%
from specviz import metrics, view
from specviz.measure.pairs import suite

large, small, aligned = sv.load("town-t5"), sv.load("town-t5-small"), sv.load("town-t5-small-aligned")
texts = suite("de-en", 40)  # German to English, two to four sentences each; up to eight right answers
options = {"max_new_tokens": 96}
bild = sv.generate(large, texts, method="bild", draft=small, fallback=0.6, rollback=1.0, **options)

one = bild.select(prompt=0)
passes = one.passes.assign(reads=lambda t: np.where(t["cycle"] == 0, "the source", "the text"))
print(f"{int(one.prompts['tokens'].iloc[0])} tokens of source, {len(one.outputs)} written")
passes.groupby(["model", "reads"], observed=True)["tokens"].agg(passes="size", tokens="sum", most="max")

# %% [markdown]
# Each model reads the source once. The encoder's output and the keys and values of cross-attention depend on the source
# alone, so a rollback cuts only the decoder's own cache.
#
# ## How little of the large model is needed
#
# Section 3.1: run both models at *every* token. Keep the small one's $y$ where $p_L(y) \ge$ `least`, and take the
# large one's otherwise. This saves nothing. It is an **oracle**: a real method can only guess where the large model is
# needed.
#
# **Predict.** The paper says that replacing about 20 % of the small models' inaccurate predictions is enough.
# Its Figure 2 plots the large model's share of the work, so we read it as 20 % of the tokens. What share is needed here?

# %%
engagement_guess = 0.2

# %%
plain = sv.generate(large, texts, method="autoregressive", **options)
alone = sv.generate(small, texts, method="autoregressive", **options)


def bleu(run):
    """BLEU by sacrebleu, 0 to 100: how many n-grams a text shares with the right answers."""
    return metrics.quality(run, resamples=1, scores=["bleu"])["bleu"].median


engaged = {"small alone": (0.0, bleu(alone))}
for least in (0.01, 0.05, 0.2, 0.6, 0.95):
    run = sv.generate(large, texts, method="oracle", draft=small, least=least, **options)
    engaged[f"least = {least:g}"] = (metrics.target_share(run), bleu(run))
for name, (share, score) in engaged.items():
    print(f"{name:12s} engaged {share:6.1%}   BLEU {score:.1f}")
print(f"large alone  engaged 100.0%   BLEU {bleu(plain):.1f}; your guess {engagement_guess:.0%}")

figure, ax = view.subplots(figsize=(6.2, 3.4))
ax.plot(*zip(*engaged.values()), "o-", color="#0072b2", label="oracle")
ax.axhline(bleu(plain), ls="--", color="#888888", lw=1, label="large model alone")
ax.axvline(0.2, ls=":", color="#888888", lw=1, label="20 % (our reading of the paper)")
ax.set(xlabel="share of the tokens that the large model wrote", ylabel="BLEU", xlim=(-0.005, None))
ax.legend(frameon=False, loc="lower right")
plt.show()

# %% [markdown]
# Three tokens in a hundred bring the small model within a point of the large one; eight close the gap. The
# small model is seldom wrong, but one wrong word spoils what follows; replaced in time, it costs one token.
#
# ## Alignment, and the trade-off (section 3.5.1; Figures 4 and 5)
#
# BiLD's policies make that guess: confidence replaces the oracle, and a review follows. Two models trained
# separately may prefer different words for one thing, *"hard"* and *"difficult"*, and the small one is rolled
# back for it. The remedy is to fine-tune it on texts that the large one wrote: `town-t5-small-aligned`.
#
# Below, the settings take turns on each text. Speed is relative to the large model's greedy decoding, encoders
# included. The last two groups drop one policy, as in Figure 5. Without fallback, the small model hands over after a
# fixed number of tokens (the cap). A name reads: α_FB, α_RB, cap.
#
# **Predict.** (1) Towards which corner does a larger α_FB move a point? A larger α_RB? (2) Does alignment change
# fallbacks, rollbacks, or both? (3) Which missing policy costs quality, and which costs speed?

# %%
import pandas as pd

from specviz.measure.sweep import Point, sweep

NEVER = 1e6  # nats: no token is that unlikely
ours = [("unaligned", small), ("aligned", aligned)]
settings = [(group, draft, f, r, 10) for group, draft in ours for r in (1.0, 4.0) for f in (0.3, 0.6, 0.9)]
settings += [("no rollback", aligned, f, NEVER, 10) for f in (0.1, 0.3, 0.6, 0.9)]
settings += [("no fallback", aligned, 0.0, 1.0, cap) for cap in (3, 5, 10)]

points = [Point("greedy", "autoregressive", model=large, base="greedy")]
points += [
    Point(each.name, "autoregressive", model=each, base="greedy", group="small alone")
    for each in (small, aligned)
]
for group, draft, fallback, rollback, cap in settings:
    values = {"fallback": fallback, "rollback": rollback, "cap": cap}
    label = f"{group}: {fallback:g}, {rollback:g}, {cap}"
    points.append(Point(label, "bild", values, large, draft, base="greedy", group=group))
measured = sweep(points, texts, **options)


def table(measured):
    """A row a setting: what it scored, lost and gained, and how often each policy acted."""
    rows = []
    for name, each in measured.items():
        base = measured[each.point.base]
        lost, speed = each.lost(base), each.over(base)
        policies = {
            "fallbacks": each.share("fallbacks", "tokens").median,
            "rollbacks": each.share("rollbacks", "tokens").median,
        }
        rows.append(
            {"setting": name, "group": each.point.group, **each.point.values, "quality": each.quality.median,
             "lost": lost.median, "lost from": lost.low, "lost to": lost.high, "speed": speed.median,
             "base": each is base, **policies}
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("setting")


swept = table(measured)
swept.drop(columns=["group", "base", "fallback", "rollback", "cap"]).round(3)

# %%
figure, axes = view.subplots(1, 2, figsize=(11, 4.4), sharey=True, sharex=True)
both = swept["base"] | swept["group"].isin(["unaligned", "aligned"])
ablated = swept["base"] | swept["group"].isin(["aligned", "no rollback", "no fallback"])
view.sweep(swept[both], curve="rollback", ax=axes[0])
view.sweep(swept[ablated], curve="group", ax=axes[1])
axes[0].set_title("Figure 4: unaligned and aligned", loc="left")
axes[1].set_title("Figure 5: without one policy (aligned)", loc="left")
plt.show()

# %% [markdown]
# The cross is the large model alone. The thick grey line joins settings that none beats in both speed and
# quality.
#
# (1) Falling back more is safer and slower. Rolling back less is faster and worse, and matters little once the small
# model hands over whatever it doubts. (2) Both: an aligned model doubts less and is taken back less often. When this
# was written, on one CPU thread, it was faster at every pair of thresholds and as good or better; look at your table.
# (3) Without rollback quality falls at α_FB = 0.3 and 0.6: nothing takes back a confident mistake. At 0.9 little is
# left to take back. Without fallback a short window keeps the quality but costs speed.
#
# `lost from` and `lost to` are a 95 % interval over the texts. If it contains 0, forty texts cannot show
# whether anything was lost.
#
# ## What the large model wrote (Figure 9)
#
# **Predict.** Which words of a translation does the small model hand over or get wrong: names, verbs, endings?

# %%
view.examples({"BiLD": bild}, large=plain, small=alone, most=3)

# %% [markdown]
# The large model's words are underlined: solid after a fallback, dashed after a rollback.
#
# Algorithm 1 (line 2) stops as soon as the text ends, so the large model never checks the last block if the small
# model ended the text. `review_end=True` adds that check. **Predict.** Does the unreviewed end cost quality?

# %%
reviewed = sv.generate(
    large, texts, method="bild", draft=small, fallback=0.6, rollback=1.0, review_end=True, **options
)
for name, run in (("as printed", bild), ("end reviewed", reviewed)):
    same = np.mean([a == b for a, b in zip(run.texts, plain.texts)])
    print(
        f"{name:12s} {same:.0%} of the texts are the large model's, BLEU {bleu(run):.1f}, {metrics.target_passes(run):.0f} large passes"
    )

# %% [markdown]
# It does with the unaligned model. About one more pass per text brings its BLEU to the large model's.
#
# ## One model: its first layer drafts (section 4.4, Figure 6)
#
# The small model may be the large one's own first layer. After the first decoder layer the head already gives
# a distribution; while it is confident, the token is written without the other seven layers. At a fallback
# the *whole* model reads the block, and computes the true keys and values of every layer. The model must be
# tuned for this: `town-t5-exit` was, on $\mathcal L = \tfrac12(\mathcal L_1 + \mathcal L_L)$, where
# $\mathcal L_i$ is the loss of the head after layer $i$ of $L$.
#
# **CALM** (Schuster et al. 2022; Figure 7) stops after *any* layer $i$ that makes it confident: either the
# hidden state $h$ has stopped changing, or the softmax has a clear winner. So $\cos(h_i, h_{i-1})$ or
# $p^{(1)} - p^{(2)}$ must exceed $0.9\lambda + 0.1$ (without the paper's decay). Later tokens that go deeper
# need keys and values of the skipped layers, so CALM computes them from $h_i$, the state at the exit.
# `town-t5-calm` was tuned on $\mathcal L = \sum_i w_i \mathcal L_i$ with $w_i = i / \sum_j j$.

# %%
exits, calm = sv.load("town-t5-exit"), sv.load("town-t5-calm")
left = sv.generate(calm, texts[:6], method="calm", threshold=0.9, **options)
view.exit_layers(left, prompt=0)
plt.show()

# %% [markdown]
# **Predict.** (1) With half of the layers skipped, is CALM twice as fast? (2) At the same speed, which loses more
# quality: early exit, which can take tokens back, or CALM, which cannot?

# %%
calm_speed_guess = 2.0

# %%
points = []
for own, model in (("early exit", exits), ("CALM", calm)):
    points.append(Point(f"{own}, greedy", "autoregressive", model=model, base=f"{own}, greedy", group=own))
for fallback in (0.3, 0.6, 0.9):
    values = {"fallback": fallback, "rollback": 1.0}
    points.append(
        Point(
            f"early exit {fallback:g}",
            "early_exit",
            values,
            exits,
            base="early exit, greedy",
            group="early exit",
        )
    )
for measure, thresholds in (("state", (0.7, 0.8, 0.9)), ("softmax", (0.3, 0.9))):
    for threshold in thresholds:
        values = {"measure": measure, "threshold": threshold}
        points.append(
            Point(
                f"CALM, {measure} {threshold:g}",
                "calm",
                values,
                calm,
                base="CALM, greedy",
                group=f"CALM, {measure}",
            )
        )
leaving = table(sweep(points, texts, **options))
leaving[["quality", "lost", "lost from", "lost to", "speed"]].round(2)

# %%
figure, ax = view.subplots(figsize=(6.2, 3.6))
for (group, rows), hue, mark in zip(
    leaving[~leaving["base"]].groupby("group"), ("#d55e00", "#e69f00", "#0072b2"), "s^o"
):
    rows = rows.sort_values("speed")
    ax.plot(rows["speed"], -rows["lost"], marker=mark, color=hue, label=group)
ax.plot(1, 0, "x", color="black", ms=9, mew=2, label="each model alone")
ax.axhline(-1, ls=":", color="black", lw=0.8)
ax.set(xlabel="speed, times the same model's greedy decoding", ylabel="BLEU won or lost")
ax.legend(frameon=False, loc="lower left")
plt.show()
depth = exits.layers
print(
    f"CALM at λ = 0.9 ran {metrics.mean_layers(left):.1f} of {depth} layers a token: {depth / metrics.mean_layers(left):.1f} times fewer,"
)
print(f"and was {leaving.loc['CALM, state 0.9', 'speed']:.2f} times as fast; your guess {calm_speed_guess:g}")

# %% [markdown]
# (1) No. A test follows each layer that runs, skipped layers still need keys and values, and embedding, head and loop
# cost the same. The softmax measure pays for a head after every layer.
#
# (2) CALM. When this was written, near 1.6 times the speed, early exit lost a point or two and CALM about
# ten. The paper gives two reasons: early exit takes wrong tokens back, and it keeps no key or value computed
# from an early state.
#
# ## What it costs (appendix 7.5.1, Figure 8)
#
# FLOPs and the minimum bytes to move are counted from the record and the models' shapes. *Arithmetic
# intensity* is FLOPs over bytes.
#
# **Predict.** FLOPs, bytes moved, intensity, speed: which of the four rises under BiLD, and which falls?

# %%
fitted = sv.generate(large, texts, method="bild", draft=aligned, fallback=0.6, rollback=1.0, **options)
runs = {"autoregressive": plain, "BiLD, unaligned": bild, "BiLD, aligned": fitted}
view.costs_figure(runs)
plt.show()
print(view.costs_words(runs))
for name in ("unaligned", "aligned"):
    print(f"speed by the sweep's clock, {name}: {swept.loc[f'{name}: 0.6, 1, 10', 'speed']:.2f}")

# %% [markdown]
# Bytes fall, the other three rise. FLOPs rise a little: rejected tokens were computed for nothing, and the
# small model's passes are added. Bytes fall to about a third, because a pass over ten tokens reads the
# weights once. (The paper: to a fifth, at 1.85 times the speed.) Speed rises less than bytes fall: these
# weights fit into the processor's cache, and much of a pass is overhead. The printed
# speeds are the sweep's.
#
# ## On a language model: what is lost, and what is gained
#
# Back to the first pair. Two measures replace BLEU: how many kept tokens are not the large model's first choice,
# and how many *sums*, whose answers are known, come out right.
#
# The small models are the first section's drafter and one **aligned** with greedy answers. The third is
# speculative decoding with the first drafter.
#
# **Predict.** (1) Does alignment change how often the small model falls back, how often it is rolled back, or both? (2)
# Which of the three is fastest? (3) Of the sums that the large model gets right, how many does BiLD lose?

# %%
import re

sums = {
    "smollm2": list(sv.suite("sums", limit=8)),
    "town": list(sv.suite("town", kind="arithmetic"))[:8],
}[pair]
small_ones = {"first drafter": drafter, "aligned": sv.load(f"{pair}-draft-aligned")}
settings = {"max_new_tokens": 48}
greedy = sv.generate(language_model, sums, "autoregressive", **settings)
ways = {"speculative": sv.generate(language_model, sums, draft=drafter, draft_length=2, **settings)}
for group, each in small_ones.items():
    ways[f"bild, {group}"] = sv.generate(
        language_model, sums, "bild", draft=each, fallback=0.5, rollback=2.0, **settings
    )


def right(run):
    """Which sums come out right: by the last number that was written, which is the result of a right answer, too."""
    last = lambda text: (re.findall(r"\d+", text) or [""])[-1]
    return np.array([last(text) in map(last, each["reference"]) for text, each in zip(run.texts, sums)])


rows = {}
for way, run in {"autoregressive": greedy, **ways}.items():
    kept = run.nodes[run.nodes["status"] == "accepted"]
    rows[way] = {
        "exactness": run.run["exactness"],
        "fallbacks a token": metrics.fallback_share(run) if "bild" in way else None,
        "rollbacks a token": metrics.rollback_share(run) if "bild" in way else None,
        "not the first choice": (kept["rank"] > 0).sum() / metrics.output(run),
        "sums right": f"{right(run).sum()} of {len(sums)}",
        "lost of greedy's": int((right(greedy) & ~right(run)).sum()),
    }
pd.DataFrame.from_dict(rows, orient="index").round(3)

# %%
view.why_it_pays({"autoregressive": greedy, **ways})
plt.show()
paid = metrics.break_even({"autoregressive": greedy, **ways}, "autoregressive").set_index("name")["speedup"]
print(", ".join(f"{way} {speed:.2f}" for way, speed in paid.items()), f"; fastest: {paid.idxmax()}")

# %% [markdown]
# A hollow mark is a lossy method. BiLD keeps a token that the large model finds likely enough, so its τ may
# be larger. But its small model drafts one more token at each doubt, which is then thrown away. The picture
# shows which counts more here. With so few sums, intervals are wide; `specviz bench drafters`
# counts forty.
#
# With SmolLM2 both are aligned to a degree: the first learnt the target's sampled answers; the second was trained
# longer.
#
# ## What BiLD cannot do
#
# - It cannot promise the large model's text. Its label is `lossy`, and its quality must be measured for every task.
# - The thresholds depend on the task: the paper uses fallback thresholds of 0.5 to 0.9 for translation, 0.2
#   to 0.6 for summaries.
# - With sampling, the law of its output is neither model's.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. What does each of BiLD's two policies decide?</summary>
#
# Fallback: when the small model hands over, because its largest probability is too low. Rollback: which of
# its tokens are taken back, because the large model finds one too unlikely.
# </details>
#
# <details><summary>2. What is the text with a fallback threshold of 1? With a rollback threshold that nothing reaches?</summary>
#
# The large model's own text; the small model's confident tokens, the large model's elsewhere.
# </details>
#
# <details><summary>3. What does alignment train, and on what?</summary>
#
# The small model, on texts that the large one wrote, so that the two disagree less.
# </details>
#
# <details><summary>4. Why is CALM with half of its layers skipped not twice as fast?</summary>
#
# It tests after every layer whether to stop, computes keys and values for skipped layers, and pays for
# embedding, head and loop.
# </details>
#
# <details><summary>5. Why must BiLD's quality be measured for each task?</summary>
#
# It is lossy: its text is not the large model's, and how much is lost depends on thresholds and task.
# </details>
