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
# # 05 · What if: what a trace can and cannot answer
#
# ![A decode with drafts of at most three tokens, computed from another run's trace: it has no times](stills/05.png)
#
# *25 minutes. Needs no model and no torch, since everything here is computed from traces on disk; the sliders need
# ipywidgets (`pip install -e ".[lab]"`).*
#
# You have recorded one decode. What would another draft length have done? Another method? Must you run it all again?
# Often not. You will
#
# 1. get exact answers about runs that never happened, and see why they are exact,
# 2. meet answers that are only modelled, and one that is refused,
# 3. find this drafter's best setting without running a model.
#
# The traces are of SmolLM2-135M-Instruct (4-bit weights, dequantised), which answers four prompts. The drafter of the
# first is prompt lookup.

# %%
import ipywidgets
import pandas as pd

import specviz as sv

trace = sv.open(sv.example("prompt_lookup"))
one = trace.select(prompt=0)
one

# %% [markdown]
# ## Why another draft length needs no rerun
#
# In greedy decoding the text is the target's own, *whatever is drafted*. So the text under any other draft
# length is known already: it is this one. All that is missing is what the drafter would have drafted at
# positions where no draft began. Prompt lookup copies what followed the text's last tokens where they
# occurred before. Its drafts follow from the text, and the text is in the trace.

# %%
ask = sv.whatif(trace)
ask

# %% [markdown]
# **Predict.** The run drafted up to 10 tokens per cycle. With 20, does τ, the tokens emitted per cycle,
# double? And what becomes of A/D, accepted draft tokens over those sent to the target? Write down both.

# %%
tau_guess, share_guess = 3.8, 0.15

# %%
answer = ask.prompt_lookup(draft_length=[1, 2, 3, 5, 7, 10, 20])
row = answer.table.loc[answer.row(draft_length=20)]
print(
    f"τ: your guess {tau_guess:.2f}, answer {row['tau']:.2f}   A/D: your guess {share_guess:.2f}, answer {row['A/D']:.2f}"
)
answer

# %% [markdown]
# A longer draft is accepted up to the same first mistake, and everything after it is wasted. So τ grows ever more
# slowly, while the share of useful tokens falls.
#
# The badge says `exact`: a rerun would have these very cycles, token by token, not only the same averages. So you can
# look at them. This decode was never run:

# %%
answer.trace(draft_length=3).select(prompt=0)

# %% [markdown]
# It has no times, because nobody measured any.
#
# ## How long a match?
#
# Prompt lookup looks for the longest run of final tokens, up to `ngram_max` of them, that also occurs earlier in the text.
#
# **Predict.** Will it help to look for longer runs? A longer match is rarer, but a copy after it is safer.

# %%
ngrams = ask.prompt_lookup(ngram_max=[1, 2, 3, 4], draft_length=[3, 10])
ngrams.table[["ngram_max", "draft_length", "cycles", "drafted", "accepted", "tau", "A/D", "badge"]].round(3)

# %% [markdown]
# It helps up to two tokens, and very little after that. Looking for longer runs never loses a draft, because shorter
# ones are tried next. It only chooses a better place to copy from.
#
# **Predict.** The same texts were also decoded without any draft. Can that trace answer the same question?

# %%
plain = sv.whatif(sv.open(sv.example("autoregressive")))
again = plain.prompt_lookup(ngram_max=[1, 2, 3, 4], draft_length=[3, 10])
print("the same table:", again.table.equals(ngrams.table), " badge:", again.badge)

# %% [markdown]
# Yes: *any* exact greedy trace of these texts can, because they hold the same tokens. So both parameters can
# be moved without decoding. Which setting has the largest τ, and which wastes least?


# %%
def lookup(draft_length, ngram_max):
    row = plain.prompt_lookup(draft_length=draft_length, ngram_max=ngram_max).table.iloc[0]
    print(
        f"τ {row['tau']:.3f}   {row['accepted']:.0f} of {row['drafted']:.0f} drafted tokens accepted, A/D {row['A/D']:.2f}"
    )


slide = ipywidgets.IntSlider
controls = ipywidgets.interact(
    lookup, draft_length=slide(10, min=1, max=20), ngram_max=slide(3, min=1, max=6)
)

# %% [markdown]
# ## Modelled: time
#
# No trace can show how long a run *would have* taken. But it shows what a pass costs, by the number of tokens in it,
# and the replay shows which passes there would be. Their product is a model, and a model must state its error. Here one
# half of the run predicts the other half's time, and the difference is the error.
#
# **Predict.** τ grows with every longer draft. At which of the seven lengths are the tokens/s highest?

# %%
timed = ask.clock(answer)
print(timed.why.replace("; ", ";\n"))
timed.table[["draft_length", "tau", "sent", "target_passes", "seconds", "tokens_per_second", "badge"]].round(
    {"tau": 3, "seconds": 2, "tokens_per_second": 1}
)

# %% [markdown]
# The speed is highest at five. On the machine that recorded the trace, a pass over up to six tokens takes no longer
# than a pass over one: the five drafted tokens are free. Seven tokens and more cost extra.
#
# Another device? Measure its passes there (`specviz bench passes -m smollm2 --device cuda --json gpu.json`)
# and price this run with them: `ask.clock(answer, Costs.read("gpu.json"))`. Here is an invented one: every
# pass costs the same, up to 64 tokens.

# %%
from specviz.whatifs import Costs

made_up = Costs({1: 0.020, 64: 0.020}, {}, rest=0.0, source="a made-up device")
ask.clock(answer, made_up).table[["draft_length", "tokens_per_second"]].round(1)

# %% [markdown]
# There a wasted token costs nothing, and the longest draft wins.
#
# ## A map of two parameters
#
# **Predict.** Draft length increases to the right, the longest match upwards. Where on the map is τ largest? And where
# is speed highest on the machine that recorded the trace?

# %%
import matplotlib.pyplot as plt

from specviz import view

grid = ask.prompt_lookup(draft_length=range(1, 11), ngram_max=[1, 2, 3, 4])
_, axes = view.subplots(2, 1, figsize=(10, 5.6))
view.heat_map(grid, "draft_length", "ngram_max", ax=axes[0])
view.heat_map(ask.clock(grid), "draft_length", "ngram_max", "tokens_per_second", ax=axes[1])
plt.show()

# %% [markdown]
# More drafting raises τ, except for small dips: a longer draft ends at another place, and the next match begins there.
# So τ is best where drafts are longest. Speed pays for rejected tokens, and is best at five. On a map, `~` marks a
# modelled number and `±` a bounded one.
#
# ## Modelled: a tree that learns
#
# UniSpec drafts from a *store*: what the target thought likely after each word, in every row of every pass so far. The
# trace was recorded with `record="all"`, which keeps these rows, so a replay can fill a store of its own. But another
# size sends other nodes, and so teaches the store other rows.
#
# **Predict.** The run sent 5 nodes per cycle. Which can be answered exactly: a smaller tree, a larger one,
# both or neither?

# %%
trees = sv.whatif(sv.open(sv.example("unispec")))
sizes = trees.unispec(draft_size=[1, 2, 3, 4, 5, 6, 8, 12, 24])
print(sizes.why.replace("; ", ";\n"))
sizes.table[["draft_size", "cycles", "sent", "accepted", "tau", "A/D", "badge"]].round(3)

# %% [markdown]
# Neither: only the run's own size is exact. Sooner or later a cycle begins where none of the run's did, or
# sends a node that the run never sent. Then the store would hold rows that nobody recorded. From there on the
# replay continues with what it has and says `modelled`. `places` names the first such cycle of each text:

# %%
sizes.places[["draft_size", "prompt", "cycle", "position"]].query("draft_size in [4, 6]")

# %% [markdown]
# The store is kept from text to text, so a later text has no exact start at all.
#
# ## Needs a rerun: what this trace does not hold
#
# **Predict.** Can the trace show what a *draft model* would have done? And what BiLD, a lossy method, would have
# written?

# %%
pd.set_option("display.max_colwidth", None)  # whole sentences
refused = {"speculative": ask.speculative(draft_length=4), "bild": ask.bild(fallback=0.5)}
pd.DataFrame({name: {"badge": each.badge, "why": each.why} for name, each in refused.items()}).T

# %% [markdown]
# A draft model makes predictions of its own, and no run recorded any here. If a trace has a draft model,
# `sv.generate(..., record="dense")` or `sv.densify(trace, model, draft)` adds one more pass of each model
# over the finished text. Then another draft length is exact. A confidence threshold is exact too, as far as
# the record follows the drafter after a mistake; beyond that, the number of wasted drafts is only *bounded*:
# it lies in an interval. [02](02_draft_and_verify.ipynb) does the first, live.
#
# A lossy method's thresholds decide *which text* is written. Its own trace answers up to the first token that
# would differ. [10](10_confidence.ipynb) asks this of CM-ASD, another lossy method, live, and [03](03_bild.ipynb) runs
# BiLD.
#
# ## Which question needs what
#
# | question | answer |
# |---|---|
# | prompt lookup on the same text | `exact` up to a tie, from the tokens |
# | a draft model's other draft length | `exact`, with a dense record |
# | its confidence threshold | `exact` as far as the record follows it; beyond that, cycles `exact` and wasted drafts `bounded` |
# | UniSpec with another size or threshold | `exact` until its store would differ, then `modelled` |
# | BiLD or CM-ASD with other thresholds | `exact` up to the first different token, then `needs a rerun` |
# | time, here or elsewhere | `modelled`, with its error |
# | another drafter | `needs a rerun` of that drafter over the text: `sv.densify(trace, model, other)` |
# | another temperature, another prompt, another target | `needs a rerun` |
#
# **A question for you.** Two tokens of the target may tie to the last digit, and then a pass over five tokens and a pass
# over nine may choose differently. What should an answer marked `exact` do at such a place?
#
# <details><summary>What it does here</summary>
# It refuses: the replay stops there, the badge becomes <code>needs a rerun</code>, and the place is named.
# What counts as a tie is measured: where the run and the dense record hold the same prediction, they differ
# by rounding, and anything within three times the largest such difference is a tie
# (<code>ask.rounding</code>). Without a dense record a small fixed difference is used.
# </details>
#
# `python -m tests.benchmarks whatif` checks every `exact` answer of this kind against real reruns, cycle for cycle.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. Why can one greedy trace answer for another draft length of prompt lookup?</summary>
#
# The text is the same, and prompt lookup's drafts follow from the text alone.
# </details>
#
# <details><summary>2. What do exact, bounded and modelled mean?</summary>
#
# A rerun would have these very cycles; the true value lies in the interval; a model computed it, with a stated error.
# </details>
#
# <details><summary>3. Why is the time of a replayed run modelled?</summary>
#
# Nobody measured it. It is the sum of measured costs of passes by their size.
# </details>
#
# <details><summary>4. Why does another tree size of UniSpec become modelled?</summary>
#
# It would send other nodes, and so its store would learn rows that the record does not hold.
# </details>
#
# <details><summary>5. Which questions always need a rerun?</summary>
#
# Another target, prompt or temperature, and a lossy method's other thresholds after the first token that differs.
# </details>
