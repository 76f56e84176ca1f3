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
# ![Three timelines of one prompt: plain decoding, prompt lookup and UniSpec, each cycle a bar](stills/00.png)
#
# *10 minutes. Needs no model and no torch: everything here is computed from a trace on disk.*
#
# A language model writes one token for each pass over its weights. **Speculative decoding** lets something cheap
# write a few tokens ahead (the *draft*), and the large model (the *target*) checks them all in one pass (*verify*).
# The target keeps the draft up to its first mistake and puts its own token there. You will
#
# 1. see one such run, token by token,
# 2. read the four numbers by which the field judges it,
# 3. ask the record questions with plain pandas.
#
# The target is SmolLM2-135M-Instruct with 4-bit weights, dequantised to float32. It summarizes a short report. The
# drafter is **prompt lookup**, which needs no model: it finds the text's last tokens earlier in the text, and copies
# what followed them there. A summary repeats much of its document.

# %%
import specviz as sv

trace = sv.open(sv.example("prompt_lookup"))
one = trace.select(prompt=0)
one

# %% [markdown]
# Each colour shows where a token came from. Hover over one for its cycle and its probability under the target; tick
# *show dropped drafts* to see what else the drafter proposed.
#
# The trace holds three more answers: some code, an arithmetic problem and a piece of advice.
#
# **Predict.** A draft has at most 10 tokens, and the target adds one of its own. So a cycle emits at least 1 token and
# at most 11. How many does it emit on average, over all four answers? Write your guess down before you run the next
# cell.

# %%
guess = 3.0

# %%
numbers = trace.summary().iloc[0]
print(f"your guess {guess:.2f}, the record says {numbers['tau']:.2f}")

# %% [markdown]
# That number is **τ**: tokens emitted per cycle, including the target's own. Three more go with it:
#
# | | meaning |
# |---|---|
# | A/D | accepted draft tokens over those sent to the target: how little of the verified draft was wasted |
# | A/O | accepted draft tokens over output: how much of the text came from drafts |
# | tokens/s | speed, the goal |
#
# When each cycle ends with exactly one token of the target's own and nothing is cut off at the end of the text,
# τ and A/O are the same fact twice: A/O = 1 − 1/τ.

# %%
print(f"A/D {numbers['A/D']:.3f}   A/O {numbers['A/O']:.3f}   1 - 1/tau {1 - 1 / numbers['tau']:.3f}")

# %% [markdown]
# The last two differ a little: one of the four texts ends inside an accepted draft, so its last cycle has no token of
# the target's own.
#
# ## The record is a table
#
# One row is one cycle; cycle 0 is the prefill, the pass that reads the prompt. `stop` says what ended the draft: its
# greatest length, an end token, or no match. `nodes` unfolds the drafts, `outputs` the text, `passes` the forward passes.

# %%
columns = ["cycle", "context", "drafted", "accepted", "emitted", "stop", "draft_time", "forward_time"]
one.cycles[columns].head(8).round(4)

# %%
one.nodes[["cycle", "node", "text", "p", "rank", "status"]].query("cycle <= 2")

# %% [markdown]
# Times are in seconds. `p` is the probability of a drafted token under the target, `rank` its position in the
# target's list (0 is the top). In greedy decoding (the target always writes its likeliest token) a token is
# accepted exactly when its rank is 0 and everything before it was accepted. After a rejection nothing is
# judged. The record holds enough to check each of those decisions again:

# %%
import matplotlib.pyplot as plt

from specviz import metrics, view

again = metrics.recheck(trace)
print(f"{len(again)} decisions, {int(again['agrees'].sum())} come out as recorded")

# %% [markdown]
# **Predict.** Of the tokens that were judged, were those late in a draft accepted less often than the first ones?

# %%
metrics.by_depth(trace).drop(columns="rate").round(3)

# %% [markdown]
# Read the last two columns. `overall` counts all drafts, so it can only fall. `given` counts those in which the
# position was judged, because everything before it was accepted. It jumps after the first token and stays high
# (few drafts get that far). A copy that begins well is likely to continue well.
#
# ## Is the drafter's confidence justified?
#
# Prompt lookup gives its tokens no probability. **UniSpec** does. It remembers which tokens the target thought likely
# after each word, grows a *tree* of them, and scores each node by the product of the probabilities on its path. A tree
# holds several continuations at once. In the target's pass a node attends to the text and its own ancestors only (a
# *mask* hides the rest), so one pass checks them all; [06](06_training_free_drafters.ipynb) draws that mask.
#
# A node is kept only if its whole path is. So if the score were a perfectly calibrated probability, this share of all
# the nodes that were sent would be kept, and the points would lie on the diagonal. Nodes that were never judged,
# because an ancestor failed, count as not kept.
#
# **Predict.** Above the diagonal the drafter is underconfident, below it overconfident. Which is it at high
# scores?

# %%
kept = metrics.by_score(sv.open(sv.example("unispec")), reading="text").query("source == 'all'")
_, ax = view.subplots(figsize=(5.6, 4.2))
ends = kept["rate"] - kept["rate_lo"], kept["rate_hi"] - kept["rate"]
ax.errorbar((kept["low"] + kept["high"]) / 2, kept["rate"], ends, fmt="o", capsize=3)
ax.plot([0, 1], [0, 1], "--", color="#888888")
ax.set(xlabel="score", ylabel="share of the sent nodes that were kept", xlim=(0, 1), ylim=(0, 1))
plt.show()

# %% [markdown]
# Bars are 95 % intervals. A higher score does mean a better token, but of the nodes with a score near 1 only three in
# ten are kept: what is likely after a word depends on more than that word.
#
# ## Several methods side by side
#
# Here are the same prompts decoded one token at a time, by prompt lookup, and by UniSpec with trees of 5 nodes.
#
# **Predict.** Prompt lookup needs little more than half of the target's passes. Is it nearly twice as fast?

# %%
runs = {name: sv.open(sv.example(name)) for name in ("autoregressive", "prompt_lookup", "unispec")}
table = metrics.compare(runs, "autoregressive")
table[["name", "exactness", "tau", "A/D", "A/O", "tokens_per_second", "speedup"]].round(2)

# %%
_, axes = view.subplots(3, 1, figsize=(10, 4.6))
for ax, (name, run) in zip(axes, runs.items()):
    view.timeline(run, prompt=0, ax=ax).set_title(name, loc="left", size=9)
for ax in axes:  # one scale, so that lengths compare; the counts above the cycles have no room on it
    for label in list(ax.texts):
        label.remove()
    ax.set_xlim(0, max(other.get_xlim()[1] for other in axes))
plt.show()

# %% [markdown]
# No: about 1.6 times, because a pass over eleven tokens takes longer than a pass over one. UniSpec is nearly as fast
# (1.58 times) with a smaller τ, because on the machine that recorded it a pass over six tokens took no longer than one
# over a single token. The next two walkthroughs measure why, and when a draft pays.
#
# **A question for you.** Both drafters are marked *exact up to ties*. Did they change any of the four texts?

# %%
for name in ("prompt_lookup", "unispec"):
    same = sum(a == b for a, b in zip(runs["autoregressive"].texts, runs[name].texts))
    print(f"{name}: {same} of {len(runs[name].texts)} texts are the target's own")

# %% [markdown]
# The target decides every token, so a draft costs or saves time and never changes the text. A *tie* is the
# exception: two tokens whose scores agree to the last digits may swap when passes differ in shape. Lossy
# methods change the text on purpose, for speed; [03](03_bild.ipynb) runs one of them, BiLD.
#
# ## What this trace cannot show
#
# - The times are those of the machine that recorded it. Run `specviz demo` for yours.
# - The target's probabilities are recorded only where it judged. Its predictions after a rejected token
#   concern a text that was never written.
# - Another draft length would have given different cycles. A new run answers that, or [a
#   what-if](05_what_if.ipynb) that says how sure it is.
#
# Next: [01, why one token at a time is slow](01_autoregressive.ipynb).

# %% [markdown]
# ## Five questions
#
# <details><summary>1. What does the target do in one pass of a cycle?</summary>
#
# It reads the whole draft and predicts the next token at each position. The draft is kept up to its first
# mistake, and one token of the target's own follows.
# </details>
#
# <details><summary>2. What are τ, A/D and A/O?</summary>
#
# Tokens emitted per cycle; accepted draft tokens over those sent to the target; accepted draft tokens over output
# tokens.
# </details>
#
# <details><summary>3. A draft has at most ten tokens. Why is τ not near eleven?</summary>
#
# Everything after the first rejected token is dropped, so most drafts are kept only in part or not at all.
# </details>
#
# <details><summary>4. A pass yields nearly two tokens. Why was decoding only about 1.6 times as fast?</summary>
#
# A pass over eleven tokens takes longer than a pass over one.
# </details>
#
# <details><summary>5. Of the nodes with a score near 1 three in ten are kept. Is the score useless?</summary>
#
# No. A higher score still means a better token. The score ranks tokens, though its value is not a probability here.
# </details>
