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
# # 00 · Quickstart: reading a recorded run
#
# *10 minutes. Needs no model and no torch: everything here is computed from a trace on disk.*
#
# A language model writes one token for each pass over its weights. **Speculative decoding** lets something cheap
# write a few tokens ahead (the *draft*) and the large model check them all in one pass (*verify*). What survives
# is kept; at the first mistake the large model's own token is used instead. You will
#
# 1. see one such run, token by token,
# 2. read the four numbers by which the field judges it,
# 3. ask the record questions with plain pandas.

# %%
import specviz as sv

trace = sv.open(sv.example("speculative"))
one = trace.select(prompt=0)
one

# %% [markdown]
# Each colour says how a token came about. Hover over one for its cycle and its probability under the target; tick
# *show dropped drafts* to see what the drafter had wanted to write.
#
# **Predict.** The draft model wrote 4 tokens a cycle. How many tokens did a cycle emit on average, over all the
# recorded prompts? The least it can be is 1, the most 5. Write your guess down before you run the next cell.

# %%
guess = 3.0

# %%
numbers = trace.summary().iloc[0]
print(f"your guess {guess:.2f}, the record says {numbers['tau']:.2f}")

# %% [markdown]
# That number is **τ**: tokens emitted per cycle, the target's own token counted. Three more belong to it:
#
# | | meaning |
# |---|---|
# | A/D | accepted draft tokens over drafted ones: how good the draft is |
# | A/O | accepted draft tokens over output: how much of the text came from drafts |
# | tokens/s | what one does it all for |
#
# When each cycle ends with exactly one token of the target's own and nothing is cut off at the end of the text,
# τ and A/O are the same fact twice: A/O = 1 − 1/τ.

# %%
print(f"A/D {numbers['A/D']:.3f}   A/O {numbers['A/O']:.3f}   1 - 1/tau {1 - 1 / numbers['tau']:.3f}")

# %% [markdown]
# The last two differ where a text ends in the middle of an accepted draft, for such a cycle has no token of the target's
# own. These texts are short, so that happens often.
#
# ## The record is a table
#
# One row is one cycle. `nodes` unfolds the drafts, `outputs` the text, `passes` the forward passes.

# %%
columns = ["cycle", "context", "drafted", "accepted", "emitted", "stop", "draft_time", "forward_time"]
one.cycles[columns].head(8).round(4)

# %%
one.nodes[["cycle", "node", "text", "q", "p", "rank", "confidence", "status"]].head(12).round(3)

# %% [markdown]
# Times are in seconds. `q` is what the drafter believed of its token, `p` what the target thinks of it, `rank` its place in the target's
# list (0 is the top). In greedy decoding a token is accepted exactly when its rank is 0 and everything before it was
# accepted. The record holds enough to check each of those decisions again:

# %%
from specviz import metrics

again = metrics.recheck(trace)
print(f"{len(again)} decisions, {int(again['agrees'].sum())} come out as recorded")

# %% [markdown]
# **Predict.** Is a token that stands later in the draft accepted less often? By how much, from the first to the
# fourth place?

# %%
metrics.by_depth(trace).round(3)

# %% [markdown]
# Two rates stand side by side: `overall`, among all drafts that reach that place, and `given`, among those in which the
# place was judged at all, everything before it having been accepted. The first must fall; the second need not.
#
# ## Was the drafter right to be sure?
#
# Its confidence is its largest probability. If it were perfectly calibrated, the points would lie on the diagonal.
#
# **Predict.** Above the diagonal it is too modest, below it too sure. Which is it, where it is nearly certain?

# %%
from specviz import view

view.reliability(trace, "confidence")
# %% [markdown]
# Bars are 95 % intervals, hollow marks have fewer than ten tokens: of those nothing can be said. Where it is nearly
# certain it is right as often as it says.
#
# ## Several methods side by side
#
# Here are the same prompts decoded one token at a time, by speculative decoding, and by BiLD.
#
# **Predict.** Speculative decoding needs a quarter of the target's passes. Is it four times as fast?

# %%
runs = {name: sv.open(sv.example(name)) for name in ("autoregressive", "speculative", "bild")}
table = metrics.compare(runs, "autoregressive")
table[["name", "exactness", "tau", "A/D", "A/O", "tokens_per_second", "speedup"]].round(2)

# %%
import matplotlib.pyplot as plt

_, axes = plt.subplots(3, 1, figsize=(10, 4.6), layout="constrained")
for ax, (name, run) in zip(axes, runs.items()):
    view.timeline(run, prompt=0, ax=ax).set_title(name, loc="left", size=9)
for ax in axes:  # one scale, so that lengths compare
    ax.set_xlim(0, max(other.get_xlim()[1] for other in axes))
plt.show()

# %% [markdown]
# A quarter of the cycles, yet nowhere near a quarter of the time: the drafter's own passes are not free. The
# next two walkthroughs measure why, and when it pays.
#
# **A question for you.** `bild` is marked *lossy*. Which texts did it change?

# %%
for number, (a, b) in enumerate(zip(runs["autoregressive"].texts, runs["bild"].texts)):
    if a != b:
        print(f"prompt {number}\n  target: {a[:150]!r}\n  bild:   {b[:150]!r}")

# %% [markdown]
# ## What this trace cannot tell you
#
# - The times are those of the machine that recorded it. Run `specviz demo` for yours.
# - The target's probabilities are recorded where it judged. What it would have said after a rejected token it did
#   say, but those rows are about a text that was never written.
# - Another draft length would have given other cycles; only a new run, or a what-if that says how sure it is, can
#   answer that.
#
# Next: [01, why one token at a time is slow](01_autoregressive.ipynb).
