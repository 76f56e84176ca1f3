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
# # 05 · What if: what a trace can tell, and what it cannot
#
# *25 minutes. Needs no model and no torch: everything here is computed from traces on disk.*
#
# You have recorded one decode. What would another draft length have done? Another method? Must you run it all again? Often
# not: a trace holds more answers than it seems, if one is strict about which. You will
#
# 1. get exact answers about runs that never happened, and see why they are exact,
# 2. meet an answer that is only bounded, one that is only modelled, and one that is refused,
# 3. find this drafter's best setting without running a model.

# %%
import pandas as pd

import specviz as sv

trace = sv.open(sv.example("speculative"))
one = trace.select(prompt=0)
one

# %% [markdown]
# ## Why another draft length needs no rerun
#
# In greedy decoding the text is the target's own, *whatever is drafted*. So the text under any other draft length is known
# already: it is this one. All that is missing is what the drafter would have said at places where no draft began. That is
# the **dense record**: one more pass of each model over the finished text, made when the trace was recorded
# (`sv.generate(..., record="dense")`, or `sv.densify` for a trace that is there already). And wherever the drafter's own
# token is not the text's, the record follows it for a while, to see what it would have gone on to write.

# %%
ask = sv.whatif(trace)
ask

# %% [markdown]
# **Predict.** The run drafted 4 tokens a cycle. With 8, the drafter writes twice as much. Does τ, the tokens emitted a
# cycle, double too? And what becomes of A/D, the share of drafted tokens that are accepted? Write down both.

# %%
tau_guess, share_guess = 8.0, 0.5

# %%
answer = ask.speculative(draft_length=[1, 2, 4, 8, 16], stop=0)
row = answer.table.loc[answer.row(draft_length=8)]
print(
    f"τ: your guess {tau_guess:.2f}, answer {row['tau']:.2f}   A/D: your guess {share_guess:.2f}, answer {row['A/D']:.2f}"
)
answer

# %% [markdown]
# A longer draft is accepted to the same first mistake and no further: what stands behind it is wasted. So τ grows ever more
# slowly, while the drafter's passes grow all the time.
#
# The badge says `exact`: a rerun would have these very cycles. Not the same averages, the same *cycles*, token by token. So
# one can look at them. This decode was never run:

# %%
answer.trace(draft_length=8).select(prompt=0)

# %% [markdown]
# It has no times, for nobody measured any. Where a drafted token stands as `⟨?⟩`, it was certainly drafted, and nobody wrote
# it down.
#
# ## What was drafted in vain
#
# Now let the drafter stop when its largest probability falls below a threshold. Up to its first mistake it follows the text,
# so where it would have stopped there is known. *Behind* the mistake it writes about a text that never was, and the target
# throws that away unread: the emitted text, the cycles and τ do not depend on it. But the drafter's passes do. How many
# tokens were drafted in vain?
#
# What it writes there follows from the text before the mistake and from the mistake, and from nothing else: not from where
# the draft began. So it can be written down once for each place, the place's **tail**.
#
# **Predict.** Which of these numbers can be exact, then: cycles, accepted, drafted, the target's passes, the drafter's
# passes?

# %%
stops = [0, 0.2, 0.4, 0.6, 0.8]
known = ask.speculative(draft_length=8, stop=stops)
known.table[["stop", "cycles", "accepted", "drafted", "target_passes", "draft_passes", "A/D", "badge"]].round(
    3
)

# %% [markdown]
# All of them. `ask.trace.tails` shows what they rest on.
#
# ## Bounded: what nobody saw
#
# The same texts were also decoded without a draft, and there the record follows the drafter for three tokens only.
#
# **Predict.** Which thresholds can that trace still answer exactly, the low ones or the high ones?

# %%
poorer = sv.whatif(sv.open(sv.example("autoregressive"))).speculative(draft_length=8, stop=stops)
columns = ["stop", "cycles", "accepted", "drafted_lo", "drafted_hi", "A/D_lo", "A/D_hi", "badge"]
poorer.table[columns].assign(exact=known.table["drafted"]).round(3)

# %% [markdown]
# A strict threshold stops the drafter soon after its mistake, within the three tokens; a lax one lets it run on, out of
# sight. Then the answer is an interval. The last column is what the richer record knows: it lies inside.
#
# ## Prompt lookup, from the tokens alone
#
# Prompt lookup copies what followed the last few words when they stood there before. It needs no draft model, so its
# every draft follows from the text: from *any* exact greedy trace one can tell what it would have done.
#
# **Predict.** The texts are short answers to short questions. Will looking for longer runs of words help?

# %%
ask.prompt_lookup(ngram_max=[1, 2, 3, 4], draft_length=[3, 10]).table[
    ["ngram_max", "draft_length", "cycles", "drafted", "accepted", "tau", "A/D", "badge"]
].round(3)

# %% [markdown]
# No: with runs of two words or more the drafts hardly change, and a single word finds a little more.
#
# ## Modelled: time
#
# No trace can say how long a run *would have* taken. But it says what a pass costs, by the number of tokens in it, and the
# replay says which passes there would be. Multiplying is a model, and a model owes you its error: here, what the passes of
# one half of the run make of the other half's time.
#
# **Predict.** τ grows with every longer draft. At which of the five lengths are the tokens/s highest?

# %%
timed = ask.clock(answer)
print(timed.why.replace("; ", ";\n"))
timed.table[
    ["draft_length", "tau", "target_passes", "draft_passes", "seconds", "tokens_per_second", "badge"]
].round({"tau": 3, "seconds": 3, "tokens_per_second": 0})

# %% [markdown]
# Another device? Measure its passes there (`specviz bench passes --json gpu.json`) and price this run with them:
# `ask.clock(answer, Costs.read("gpu.json"))`. Here is one that is made up: a target for which every pass costs the same, up
# to 64 tokens, and a drafter at a tenth of it.

# %%
from specviz.whatifs import Costs

made_up = Costs({1: 0.020, 64: 0.020}, {1: 0.002}, rest=0.0, source="a made-up device")
ask.clock(answer, made_up).table[["draft_length", "tokens_per_second"]].round(0)

# %% [markdown]
# ## A map of two parameters
#
# **Predict.** Draft length goes to the right, the threshold goes up. Where on the map is τ largest? And where is speed?
# They need not be the same place.

# %%
import matplotlib.pyplot as plt

from specviz import view

grid = ask.speculative(draft_length=range(1, 13), stop=[0, 0.2, 0.4, 0.6, 0.8, 0.9])
_, axes = plt.subplots(2, 1, figsize=(10, 6.4), layout="constrained")
view.heat_map(grid, ax=axes[0])
view.heat_map(ask.clock(grid, made_up), value="tokens_per_second", ax=axes[1])
plt.show()

# %% [markdown]
# τ cannot fall with more drafting, so its best corner is always the greediest. Speed pays for what is drafted in vain, and
# so a threshold helps it. On a map, `±` marks a bounded number, `~` a modelled one.
#
# ## Needs a rerun: where the text would part
#
# BiLD is lossy. Its thresholds decide *which text* is written. Ask for other ones, and the replay goes on as long as the
# text stays the same; at the first place where another token would stand, everything after it is another text, about which
# this record says nothing. Then the answer stops, and names the place.

# %%
bild = sv.whatif(sv.open(sv.example("bild")))
parted = bild.bild(fallback=[0.3, 0.5, 0.7, 0.9], rollback=2.0)
parted.table[["fallback", "rollback", "texts", "cycles", "emitted", "tau", "badge"]].round(3)

# %%
pd.set_option("display.max_colwidth", None)  # whole sentences
parted.places[["fallback", "prompt", "cycle", "position", "text", "why"]].drop_duplicates(
    ["prompt", "position"]
)

# %% [markdown]
# `texts` counts those that could be told to their end; the other columns count the cycles up to where each text would part.
# They are exact as far as they go.
#
# ## What no trace can tell
#
# | question | answer |
# |---|---|
# | another draft length, exact greedy method | `exact`, with a dense record |
# | a confidence threshold | `exact` as far as the tails go; beyond, cycles `exact` and wasted drafts `bounded` |
# | prompt lookup on the same text | `exact`, from the tokens |
# | BiLD with other thresholds | `exact` up to the first other token, then `needs a rerun` |
# | time, here or elsewhere | `modelled`, with its error |
# | another drafter | `needs a rerun` of that drafter over the text: `sv.densify(trace, model, other)` |
# | another temperature, another prompt, another target | `needs a rerun` |
#
# **A question for you.** Two tokens of the target may tie to the last digit, and then a pass over five tokens and a pass
# over nine may choose differently. What should an answer marked `exact` do at such a place?
#
# <details><summary>What it does here</summary>
# It refuses: the replay stops there, the badge becomes <code>needs a rerun</code>, and the place is named. How near is too
# near is measured: wherever the run and the dense record asked the same question, their answers differ by rounding, and
# three times the largest such difference counts as a tie (<code>ask.rounding</code>).
# </details>
#
# Every `exact` answer of this kind is held against real reruns by `specviz bench whatif`, cycle for cycle.
