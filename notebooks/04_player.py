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
# # 04 · Reading a decode: the player
#
# *20 minutes. Needs no model and no torch: everything here is computed from traces on disk.*
#
# A number such as "A/D = 0.6" hides a story: which words were easy, where the drafter was sure and wrong, what was
# computed in vain. You will
#
# 1. step through a decode, cycle by cycle, and read every verdict with its numbers,
# 2. call the verdicts before they are revealed, and learn how good a judge of drafts you are,
# 3. find the three kinds of waste in a decode, and what each costs.

# %%
import specviz as sv

trace = sv.open(sv.example("speculative"))
one = trace.select(prompt=0)
one

# %% [markdown]
# That is the whole decode at a glance. Now take it apart.

# %%
sv.player(one, cycle=2)

# %% [markdown]
# Click into the player and use the keys: `→` and `←` step, `space` plays, `home` and `end` jump, `?` lists the rest.
# From top to bottom you see the text so far, this cycle's draft as a tree, the drafter's confidence, where the time
# went, and what happened to the KV cache. On the side stands the method's own loop, with the line lit that is running.
# Point at a node: the sentence says why it was kept or dropped.
#
# **Predict.** Step to any cycle and stop at *draft*, before the verdict. Which nodes will survive? In a chain the
# question is only *how many*: after the first rejection nothing is judged any more.
#
# ## Be the target for a while
#
# In predict mode the verdicts are covered. Mark the nodes that you think survive, then reveal them. The score counts
# nodes called right; someone who always says "all survive" is right as often as A/D.

# %%
sv.player(one, predict=True)

# %% [markdown]
# Play ten cycles. Then compare yourself with three judges that know nothing of the target: one always accepts, one
# goes by the drafter's confidence, and one goes by the place in the draft.

# %%
nodes = trace.nodes
judged = nodes[nodes["status"].isin(["accepted", "rejected"])]
kept = judged["status"].eq("accepted")
print(f"always 'accepted'          {kept.mean():.2f}")
for threshold in (0.3, 0.5, 0.7):
    right = (judged["confidence"] > threshold) == kept
    print(f"'confidence above {threshold}'     {right.mean():.2f}")
print(f"'only the first two'       {(judged['depth'].le(2) == kept).mean():.2f}")

# %% [markdown]
# The drafter's own confidence is a fair judge, and it costs nothing: it is known before the target is asked. That is
# why so many methods stop drafting, fall back or prune by it.
#
# ## Three kinds of waste
#
# A cycle spends its time on tokens that end up in the text, and on three kinds that do not:
#
# | | what was paid for it |
# |---|---|
# | *rejected* | a drafter's pass and a row of the target's |
# | *unjudged*, behind a rejection | the same, and nothing was learnt from it |
# | *cut*, behind the end of the text | the same |
#
# **Predict.** Of all drafted tokens, what share was in vain? Of these, is the larger part rejected, or behind a
# rejection?

# %%
nodes["status"].value_counts(normalize=True).rename("share of drafted tokens").to_frame().round(3)

# %% [markdown]
# With a chain of $\gamma$ tokens and independent acceptances at rate $\alpha$, the first rejection stands at place $k$
# with probability $\alpha^{k-1}(1-\alpha)$, and then $\gamma-k$ tokens stand behind it. The expected number behind is
# $\sum_{k=1}^{\gamma} \alpha^{k-1}(1-\alpha)(\gamma-k)$, while at most one token a cycle is rejected, with probability
# $1-\alpha^{\gamma}$.

# %%
gamma, alpha = 4, kept.mean()
behind = sum(alpha ** (k - 1) * (1 - alpha) * (gamma - k) for k in range(1, gamma + 1))
cycles = len(nodes.groupby(["prompt", "cycle"]))
rejected, unjudged, cut = (nodes["status"].eq(s).sum() / cycles for s in ("rejected", "unjudged", "cut"))
print(f"a cycle, by the formula: {1 - alpha**gamma:.2f} rejected, {behind:.2f} behind")
print(f"a cycle, as recorded:    {rejected:.2f} rejected, {unjudged:.2f} behind, and {cut:.2f} cut")

# %% [markdown]
# Close, though the formula takes every token for equally hard, and in the player you saw that they are not. What it leaves
# out is the end of the text: it falls into the middle of a draft, and such short texts end often.
#
# ## Another method, the same player
#
# BiLD drafts as long as it is confident, and lets the large model take over where it is not.
#
# **Predict.** Which statuses will you *not* see here that speculative decoding had?

# %%
sv.player(sv.open(sv.example("bild")).select(prompt=0))

# %%
sv.open(sv.example("bild")).nodes["status"].value_counts().rename("drafted tokens").to_frame()

# %% [markdown]
# ## Side by side
#
# The race plays several methods on the same prompt, each by its own recorded clock.
#
# **Predict.** Which method waits longest for its first token, and why?

# %%
names = ("autoregressive", "speculative", "bild")
sv.race([sv.open(sv.example(name)).select(prompt=0) for name in names])

# %% [markdown]
# Both models must read the prompt before the first cycle: whoever uses a drafter prefills twice. On short texts that
# alone can eat what drafting saves.
#
# ## Take it along
#
# `to_html` writes the player as one file that opens without a server, a kernel or a network.

# %%
one.to_html("decode.html", force=True)

# %% [markdown]
# ## What the player cannot tell you
#
# - It shows what happened. What another draft length *would have done* is the next walkthrough's question.
# - The times are those of the machine that recorded the trace.
# - Where a draft was rejected, the drafter's further words are about a text that was never written.
#
# Next: [05, what a trace can and cannot tell](05_what_if.ipynb).
