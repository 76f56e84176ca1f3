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
# # 15 · Should I draft?
#
# ![A short text decoded by prompt lookup: only its last cycle has a draft](stills/15.png)
#
# *30 minutes, four to eight of them computing (half a minute on `town`). Needs `torch` (`pip install -e ".[run,lab]"`).*
#
# A draft model must be downloaded, loaded and kept in memory, and it can make decoding slower. You will
#
# 1. look at two texts by one model, one that quotes and one that does not,
# 2. predict what would pay on each kind, before anything is deployed: `sv.advise`,
# 3. check the answer against runs: tokens exactly, speed with its interval,
# 4. see why a run was fast or slow: `sv.explain`,
# 5. predict the speedup on a device that you do not have.
#
# The model is SmolLM2 (4-bit weights, dequantised) with the drafters in this package if
# `specviz models get smollm2` has downloaded it, and the bundled `town` (2 M parameters) if not.

# %%
import matplotlib.pyplot as plt
import pandas as pd
import torch

import specviz as sv
from specviz import metrics, view

torch.set_num_threads(1)
YOURS = "smollm2" if "smollm2" in sv.list_models() else "town"
SUITE, DRAFTS, NUMBER = {
    "smollm2": ("everyday", ["smollm2-draft", "smollm2-heads"], 6),
    "town": ("town", ["town-draft", "town-draft-aligned"], 8),
}[YOURS]
LENGTH = 40
model = sv.load(YOURS)
QUOTING, PROSE = {
    "smollm2": (["summarization", "rag", "code"], ["conversation", "qa", "arithmetic"]),
    "town": (["summarization", "rag", "qa"], ["conversation", "translation", "arithmetic"]),
}[YOURS]
quoting, prose = list(sv.suite(SUITE, kind=QUOTING)), sv.suite(SUITE, kind=PROSE)
if YOURS == "smollm2":
    quoting = [entry for entry in quoting if entry["id"] != "code-0"]  # it holds no program
    # six to advise on, six to confirm on: fewer give no interval
    quoting += [*sv.suite("demo", kind=["summarization", "rag", "editing"]), *sv.suite("passages", limit=1)]
pd.set_option("display.max_colwidth", None)
trace = sv.generate(model, [quoting[0]], "prompt_lookup", max_new_tokens=LENGTH)
trace

# %% [markdown]
# This prompt holds a text to quote. Prompt lookup searches the text so far for its last one to three tokens and drafts what
# followed them there: no draft model, no training. The next prompt holds nothing to quote.
#
# In a *cycle* the drafter guesses tokens, and one pass of the large model, the *target*, keeps the right ones
# and adds one of its own. τ is the mean number of tokens that a cycle writes: 1 without drafts, never less.
#
# **Predict.** What is prompt lookup's τ there?

# %%
free = sv.generate(model, [prose[0]], "prompt_lookup", max_new_tokens=LENGTH)
print(f"τ with a text to quote {metrics.tau(trace):.2f}, without {metrics.tau(free):.2f}")
free

# %% [markdown]
# ## Before: advise
#
# Whether drafting pays is one division,
#
# $$\text{speedup} = \frac{\tau}{\text{forward} + \text{drafting} + \text{rest}},$$
#
# the tokens of a cycle over its time. *forward* is the target's pass over the draft and the text's last token,
# which no pass has read yet; *drafting* is the time of the draft model's passes; *rest* is everything else, including
# the drafting of methods without a draft model. The unit is a cycle without drafts, whose *forward* and *rest* add up to 1. No setting has to be decoded to know these:
#
# - The target writes its own text once, without drafts. Target and drafters then read that text once, at
#   every position. What a drafter would have drafted at a position follows from the text alone, so each
#   method's cycles can be counted without a run: from where one ends, the next begins.
# - Passes of several sizes are timed, and a few short runs measure the rest: a minute or less in all.
#
# **Predict.** For the prompts with something to quote: a draft model or prompt lookup? Which draft length? What speedup?
# The three best are also measured on other prompts: how many will lie within the predicted interval?

# %%
my_method, my_length, my_speedup = "prompt_lookup", 4, 1.5
covered_guess = 3

quiet = {"number": NUMBER, "max_new_tokens": LENGTH}
quotes = sv.advise(model, DRAFTS, quoting, confirm=True, **quiet)
print(quotes.sentence, *quotes.warnings, sep="\nwarning: ")
print(f"you said: {my_method}, {my_length} tokens, {my_speedup} times")

# %%
COLUMNS = ["method", "draft", "setting", "tau", "badge", "cycle", "speedup", "low", "high"]


def best_of_each(advice):
    """The best setting of every method and drafter."""
    table = advice.table.assign(setting=[each.candidate.setting for each in advice.predictions])
    return table.groupby(["method", "draft"], sort=False).head(1)


best_of_each(quotes)[COLUMNS].round(2)

# %% [markdown]
# A row is the best setting of a method and its drafter (`draft`); `cycle` is the divisor above, and
# `quotes.table` has every setting. In 19 runs out of 20 on as many *other* texts like these, the speedup of a
# setting named beforehand is between `low` and `high`. These rows were chosen because they did best here, so
# expect less. (On Spec-Bench ten of ten intervals held the measured speedup.) An interval that contains 1
# means *undecided*; so does a measurement on fewer than six texts. If the best speedup is not above 1, the
# sentence says *do not draft*: plain decoding is then the fastest. In a setting, `stop=0.8` ends a draft
# before the first token to which the drafter gives a probability below 0.8.
#
# **Predict.** The same question for the prompts without anything to quote.

# %%
free_advice = sv.advise(model, DRAFTS, prose, **quiet)
print(free_advice.sentence, *free_advice.warnings, sep="\nwarning: ")
best_of_each(free_advice)[COLUMNS].round(2)

# %%
figure, axes = view.subplots(1, 2, figsize=(10, 3.8), sharey=True)
for ax, advice, title in zip(axes, (quotes, free_advice), ("something to quote", "nothing to quote")):
    view.advice(advice.table, advice.confirmed, ax)
    ax.set_title(title)
plt.show()

# %% [markdown]
# Every line shows the best that a method and its drafter reach at each draft length. It rises while another token
# brings more than it costs, and falls once it costs more than it brings. Compare the line of prompt lookup in the two
# panels: it has little to copy where nothing is quoted, while a draft model guesses prose, too. Crosses are measured
# (below).
#
# If you serve both kinds, add their times, not their speedups: requests that take equally long and become
# twice as fast and half as fast need $(0.5 + 2)/2 = 1.25$ times the time together. Drafting only for the
# first kind needs $0.75$.
#
# `quotes.notes` also names an **oracle**: the speedup if every cycle used the drafter and the draft length
# that turn out best for it. No method knows that in advance, so with these drafters no rule that adapts the
# length can be faster.
#
# ## τ is exact, or says that it is not
#
# `badge` says how far τ can be trusted:
#
# | badge | τ of a run on these prompts |
# |---|---|
# | exact | is this number |
# | bounded | is between two bounds: somewhere the target's two likeliest tokens have nearly the same score, and passes of different size, which round differently, may choose either |
# | modelled | may differ: the texts are not the target's own, or a draft is a tree whose nodes nearly tie |
#
# **Predict.** Take prompt lookup with drafts of at most four tokens, decode the same prompts, and count. How
# far is the run's τ from the one that was computed?

# %%
label = "prompt_lookup ngram_max=3 ngram_min=1 draft_length=4"
row = quotes.table.set_index("label").loc[label]
chosen = {entry["id"] for entry in quotes.setting["prompts"]}
advised = [entry for entry in quoting if entry["id"] in chosen]
values = {"ngram_max": 3, "ngram_min": 1, "draft_length": 4}
run = sv.generate(model, advised, "prompt_lookup", max_new_tokens=LENGTH, **values)
print(f"τ computed {row['tau']:.4f} ({row['badge']}), of the run {metrics.tau(run):.4f}")
inside = row["tau_low"] - 1e-9 <= metrics.tau(run) <= row["tau_high"] + 1e-9
print(f"within the bounds: {inside}")

# %% [markdown]
# The computed τ needed no run of prompt lookup. A greedy, exact method never changes the text (up to ties):
# each cycle starts somewhere in the text that was written without drafts, and what prompt lookup drafts there
# depends on nothing else.
#
# ## Where a cycle's time goes

# %%
rows = best_of_each(quotes)
names = [f"{m}\n{d}" if d else m for m, d in zip(rows["method"], rows["draft"])]
figure, ax = view.subplots(figsize=(8, 3.2))
start = 0 * rows["forward"]
for part, hue, hatch in (
    ("forward", "#0072b2", ""),
    ("drafting", "#e69f00", "//"),
    ("rest", "#bbbbbb", ".."),
):
    words = {"forward": "the target's pass", "drafting": "drafting", "rest": "the rest"}[part]
    wide = rows[part].fillna(0).clip(lower=0)
    ax.barh(names, wide, left=start, color=hue, hatch=hatch, edgecolor="white", label=words)
    start = start + wide
ax.plot(rows["cycle"], names, "|", color="black", ms=18, mew=2, label="a whole cycle")
ax.plot(rows["tau"], names, "kD", label="τ, tokens a cycle")
ax.axvline(1, color="#888888", ls=":")
ax.set(xlabel="times a cycle without drafts")
ax.invert_yaxis()
figure.legend(loc="outside right upper", frameon=False)
plt.show()

# %% [markdown]
# Drafting pays if the diamond is right of the line that marks a whole cycle. Their quotient is the speedup.
# Passes are timed separately; the rest is what else a cycle takes, and all drafting except the draft model's.
# If the bar exceeds the line, other work ran while passes were timed.
#
# ## After: confirm
#
# The advice chose the best of many settings on some prompts, and the best on these need not be best on others.
# `confirm=True` ran the three best settings on other prompts, in turns with decoding without drafts, so that other load
# on the machine affected all alike.

# %%
confirmed = pd.DataFrame(quotes.confirmed)
shown = confirmed[["label", "tau", "tau_measured"]].round(2)
for name in ("predicted", "measured"):
    shown[name] = [f"{value:.2f} [{low:.2f}, {high:.2f}]" for value, low, high in confirmed[name]]
shown["off by"] = [f"{off:+.0%}" for off in confirmed["off"]]
print(f"in the interval: {confirmed['covered'].sum()} of {len(confirmed)}; your guess {covered_guess}")
shown

# %% [markdown]
# The table separates the causes of a miss. If the measured τ is off as well, the other prompts are easier or
# harder to draft: more texts help. If only the speed is off, so is the time of a cycle: another program ran,
# or these contexts are longer. And one miss in twenty is chance, or more, since these settings were chosen.
#
# ## Why: explain
#
# A run's record shows where its speed came from. `sv.explain` needs the run and one without drafts over the same
# prompts.

# %%
plain = sv.generate(model, advised, "autoregressive", max_new_tokens=LENGTH)
why = sv.explain(run, plain)  # two runs one after the other: other load may have slowed one of them
print(why.sentence)

# %% [markdown]
# The figure begins with plain decoding, which is 1. With τ tokens per cycle, decoding would be τ times as
# fast if a cycle cost as much as a plain one. Then each part of a cycle takes some of that away, and the
# speedup is left. These two runs came one after the other, so load on the machine may have slowed one of
# them: if the cost of a cycle is far from the advice's, trust the confirmed figures, which were measured in
# turns.
#
# **Predict.** The figure's right part counts the positions of a draft. At what share of the first positions
# was the token accepted? And at what share of all positions that were judged, that is, up to the first wrong
# token of each draft? Which is higher?

# %%
print(why.selection)
why.figure()

# %% [markdown]
# Hard places come in stretches. After a wrong token the target corrects it and a new cycle begins, often
# still within a hard stretch; easy stretches are passed in one long draft, and only their first token is at a
# first position. So the first position meets more than its share of hard places. Longer drafts pass easy
# stretches in fewer cycles, which lowers the first position's rate although no token became harder.
#
# `sv.explain` also reads what llama.cpp, SGLang, vLLM and Spec-Bench write. And `specviz audit --answers FILE` checks
# whether another tool's texts are the target's own.
#
# ## Another device
#
# The texts and the acceptance stay; only the costs change. `quotes.on(device)` decodes nothing. It takes the
# costs from a roofline: a pass takes as long as moving its bytes or computing its FLOPs, whichever is longer,
# plus a launch per layer. A device is a name or three numbers: bytes per second, FLOPs per second, seconds
# per launch. Reading the weights costs the same for any number of tokens, so a wider pass is nearly free
# until its arithmetic takes longer than the reading: with weights of 16 bits on an H100 from about 300 tokens
# on (989e12 FLOPs over 3.35e12 bytes per second).
#
# **Predict.** An H100 reads 3.35 TB per second from its memory. Does drafting gain more there, or less? With
# one text at a time, and with 64 or 512? And if a pass is captured as one graph (a CUDA graph), so that
# launches cost nothing?

# %%
DEVICES = {"H100": "h100", "H100, no launches": "3.35e12,989e12,0", "L4, no launches": "300e9,121e12,0"}
rows = [("here", 1, quotes.best.candidate.label, quotes.best.speedup)]
for name, device in DEVICES.items():
    there = quotes.on(device, batch=[64, 512])
    rows += [
        (name, change["batch"], change["best"], change["speedup"])
        for change in there.changes
        if "batch" in change
    ]
pd.DataFrame(rows, columns=["device", "batch", "best", "speedup"]).round(2)

# %% [markdown]
# All of it is *modelled*, and optimistic: real kernels reach neither rate, and a loop takes time outside its
# passes.
#
# - **At one text** a wider pass is nearly free, with launches or without. So drafting gains.
# - **In a batch** it gains less with every text: the texts share one reading of the weights, the arithmetic
#   fills up, and a wider pass is no longer free. That is a server's usual case. A large model's caches (not
#   in the table) are smaller relative to its weights, so its gain falls faster.
# - **The exception is a small model or a long context.** Each text has a cache of its own, which a pass reads
#   once for a whole draft. If the caches are larger than the weights, as those of the toy `town` are at 64
#   texts, drafting still pays in a batch.
#
# `advice.surface()` has sliders for the same question, over what was timed here: context, batch, the cost of a drafted
# token, and its acceptance. A click on a point decodes a prompt with that setting.

# %%
quotes.surface()

# %% [markdown]
# ## What this cannot do
#
# - **Other texts.** Intervals cover other texts *of the same kind*. The two panels above are two kinds. Run it on your
#   own prompts, or on answers that you already have (`answers="file.jsonl"`).
# - **Methods that learn from what was rejected.** Stores such as Token Recycling's depend on their own past drafts, so
#   one reading of the text does not say what they hold. `stores=True` decodes the prompts with four of them instead.
# - **Lossy methods.** BiLD (walkthrough 03) and CM-ASD (10) change the text, so a text without drafts says
#   nothing about them.
# - **Sampling.** At a temperature a run writes other texts each time; τ is then bounded, by chance and by the choice of
#   texts.
# - **A server under load.** Passes of a batch are timed; requests that come and go are not.
# - **Quality.** An exact method has the target's quality, good or bad.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. A drafter is right at 80 % of all positions, each with the same chance. Why is τ with drafts of 4 tokens not
# 4.2?</summary>
#
# A draft counts only up to its first wrong token: 1 + 0.8 + 0.64 + 0.51 + 0.41 = 3.36.
# </details>
#
# <details><summary>2. Two settings have predicted speedups 1.31 [0.95, 1.80] and 1.22 [1.12, 1.33]. Which do you
# deploy?</summary>
#
# The second, unless you can measure more texts: the first may be slower than no draft, and the second is
# faster in nearly all cases.
# </details>
#
# <details><summary>3. Prompt lookup needs no draft model. How can it be slower than decoding without drafts?</summary>
#
# When it drafts wrongly, the pass is wider than a plain one, and searching takes time too.
# </details>
#
# <details><summary>4. The oracle in <code>quotes.notes</code> is barely above the best setting. What does that say about controllers that
# adapt the length?</summary>
#
# There is little to gain by adapting, with these drafters on these texts: not even the oracle's foresight finds more.
# </details>
#
# <details><summary>5. Your confirming run has the predicted τ and 15 % less speed. Where do you look first?</summary>
#
# At the time of a cycle: τ is right, so the texts are drafted as predicted, and a cycle took longer. Compare
# `cycle` with `sv.explain`'s parts, and look at what else ran.
# </details>
