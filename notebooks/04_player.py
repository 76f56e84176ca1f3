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
# ![A decode by prompt lookup: each token coloured by how it came about, and its cycles in time](stills/04.png)
#
# *20 minutes. Needs no model and no torch, since everything here is computed from traces on disk; the players need
# anywidget (`pip install -e ".[lab]"`).*
#
# A number such as "A/D = 0.4" hides which words were easy, where the drafter went wrong, and what was computed for
# nothing. You will
#
# 1. step through a decode, cycle by cycle, and read every verdict with its numbers,
# 2. predict the verdicts before they are revealed, and learn how well you judge drafts,
# 3. find the three kinds of waste in a decode, and what each costs.
#
# The target is SmolLM2-135M-Instruct (4-bit weights, dequantised). It summarizes a short report, and prompt lookup
# drafts by copying from the text so far.

# %%
import specviz as sv

trace = sv.open(sv.example("prompt_lookup"))
one = trace.select(prompt=0)
one

# %% [markdown]
# That is the whole decode at a glance. Now take it apart. The player opens on a cycle that has both an accepted and a
# rejected token.

# %%
sv.player(one)

# %% [markdown]
# Click into the player and use the keys: `→` and `←` step, `space` plays, `home` and `end` jump, `?` lists
# the rest. From top to bottom you see the text so far, this cycle's draft, where the time went, and what
# happened to the KV cache (the stored keys and values of earlier tokens). Next to it is the method's own
# loop, with the current line highlighted. Point at a node: a sentence says why it was kept or dropped.
#
# **Predict.** Press `s` to step by phases, go to any cycle and stop at *draft*, before the verdict. Which nodes will
# survive? In a chain the question is only *how many*: after the first rejection nothing is judged any more.
#
# ## Be the target for a while
#
# In predict mode the verdicts are covered. Mark the nodes that you think will survive, then reveal them. The
# score counts correct predictions.

# %%
sv.player(one, predict=True)

# %% [markdown]
# Play ten cycles. Then look at three judges that never ask the target: one always accepts, one accepts only a
# draft's first two tokens, one rejects only the first. Their scores count judged nodes; yours counts unjudged
# ones, too, so do not compare them.

# %%
nodes = trace.nodes
judged = nodes[nodes["status"].isin(["accepted", "rejected"])]
kept = judged["status"].eq("accepted")
print(f"always 'accepted'         {kept.mean():.2f}")
print(f"'only the first two'      {(judged['depth'].le(2) == kept).mean():.2f}")
print(f"'all but the first'       {(judged['depth'].gt(1) == kept).mean():.2f}")

# %% [markdown]
# Position in the draft is a fair judge, and costs nothing. Most copies fail at once, because their match was
# a coincidence. A copy whose first token is right usually fits.
#
# ## Three kinds of waste
#
# A cycle spends its time on tokens that end up in the text, and on others that do not:
#
# | | what it cost |
# |---|---|
# | *rejected* | one more token for the target's pass to read: a *row* |
# | *unjudged*, after a rejection | the same, and it did not even get a verdict |
# | *below_budget*, in a tree that is cut to size; *unsent*, below BiLD's threshold | the drafter's time alone: the target never sees it |
#
# A fourth kind, *cut*, is after the end of the text; these traces have none. A draft model also pays for each
# token with a pass of its own.
#
# **Predict.** Of all tokens that prompt lookup drafted, what share was wasted? Was most of it rejected, or drafted
# after a rejection?

# %%
nodes["status"].value_counts(normalize=True).rename("share of drafted tokens").to_frame().round(3)

# %% [markdown]
# With a chain of $\gamma$ tokens and independent acceptances at rate $\alpha$, the first rejection is at
# position $k$ with probability $\alpha^{k-1}(1-\alpha)$, and then $\gamma-k$ tokens follow it. The expected
# number of unjudged tokens is $\sum_{k=1}^{\gamma} \alpha^{k-1}(1-\alpha)(\gamma-k)$. At most one token of a
# draft is rejected, with probability $1-\alpha^{\gamma}$, and the whole draft is accepted with probability
# $\alpha^{\gamma}$.

# %%
import numpy as np

alpha = kept.mean()
status = nodes.groupby(["prompt", "cycle"])["status"]
lengths = status.size()  # of each draft
places = [np.arange(1, length + 1) for length in lengths]
after = np.mean([(alpha ** (k - 1) * (1 - alpha) * (len(k) - k)).sum() for k in places])
whole = (alpha**lengths).sum()
count = status.value_counts().unstack(fill_value=0)
print(
    f"by the formula: {1 - whole / len(lengths):.2f} rejected and {after:.2f} unjudged a draft, {whole:.1f} drafts whole"
)
print(
    f"as recorded:    {count['rejected'].mean():.2f} rejected and {count['unjudged'].mean():.2f} unjudged a draft, "
    f"{(count['accepted'] == lengths).sum()} of {len(lengths)} drafts whole"
)

# %% [markdown]
# The means are close, though the formula assumes that all tokens are equally hard. The last number shows that they are
# not: twice as many drafts are accepted whole as independent tokens would allow. Easy tokens come in runs.
#
# ## Another method, the same player
#
# UniSpec drafts a *tree*. It remembers which tokens the target thought likely after each word, and scores
# every node. Only the 5 best nodes are sent. Siblings compete for one position, so at most one of them
# survives. Press `g` to see the tree grow.
#
# **Predict.** UniSpec grows many more nodes than the 5 that it sends. What share of all drafted nodes does the target
# never see?

# %%
tree = sv.open(sv.example("unispec"))
sv.player(tree.select(prompt=0), cycle=12)

# %%
body = tree.cycles.query("cycle > 0")
print(f"never seen: {1 - body['sent'].sum() / body['control_candidates'].sum():.0%}")
tree.nodes["status"].value_counts(normalize=True).rename("share of recorded nodes").to_frame().round(3)

# %% [markdown]
# The record keeps only the best twelve unsent nodes of a cycle (`below_budget`); `control_candidates` counts all that
# were grown. Those not sent were not among the best five: their scores were too low. Does the score deserve that trust?
#
# **Predict.** A judge accepts every node whose score is above a threshold; only judged nodes count. Does a high
# threshold judge well because it knows which nodes survive, or because few nodes do?

# %%
judged = tree.nodes[tree.nodes["status"].isin(["accepted", "rejected"])]
kept = judged["status"].eq("accepted")
print(f"never 'accepted'       {1 - kept.mean():.2f} right")
for threshold in (0.1, 0.3, 0.5, 0.7):
    above = judged["score"] > threshold
    print(
        f"'score above {threshold}'      {(above == kept).mean():.2f} right, {kept[above].mean():.2f} of these survive"
    )

# %% [markdown]
# In a tree most nodes must fail, so "never" is right for four judged nodes in five, and no threshold is clearly better:
# low ones are much worse. But the score ranks the nodes well: the higher it is, the more of them survive. To choose five
# nodes a drafter needs only a ranking.
#
# ## Side by side
#
# The race plays several methods on the same prompt, each by its own recorded clock.
#
# **Predict.** All three read the prompt first. Who is first to its first token, and who is first to finish?

# %%
names = ("autoregressive", "prompt_lookup", "unispec")
sv.race([sv.open(sv.example(name)).select(prompt=0) for name in names])

# %% [markdown]
# Reading the prompt takes as long in all three. Prompt lookup writes its first token a little later than the others,
# since that pass also reads ten drafted tokens, none of which is accepted. It still finishes first: a summary repeats
# its document. A drafter that is a model would have to read the prompt as well.
#
# ## Find, zoom and export
#
# In the player, `x` jumps to the next rejection and `w` to the next long wait; `/` finds a token by its text.
# `+` and `-` zoom the time line. `v` saves what you see as SVG, `Shift+v` as PNG.
#
# `to_html` writes the player as one file that opens without a server, a kernel or a network. Its address can
# name a cycle: `decode.html#cycle=7`. `to_gif` animates a range of cycles. `to_perfetto` writes the phases
# and passes for [ui.perfetto.dev](https://ui.perfetto.dev), where they share one clock with traces of other
# programs.

# %%
one.to_html("decode.html", force=True)
one.to_gif("decode.gif", range(9, 15), force=True)
one.to_perfetto("decode.json", force=True)

# %% [markdown]
# ## What the player cannot show
#
# - It shows what happened. What another draft length *would have done* is the next walkthrough's question.
# - The times are those of the machine that recorded the trace.
# - The target's predictions after a rejected token concern a text that was never written.
#
# Next: [05, what a trace can and cannot tell](05_what_if.ipynb).

# %% [markdown]
# ## Five questions
#
# <details><summary>1. In a chain, what happens to tokens after the first rejection?</summary>
#
# They are unjudged and dropped, though the target's pass computed a row for each.
# </details>
#
# <details><summary>2. Which kinds of waste does a cycle have, and what does each cost?</summary>
#
# Rejected and unjudged tokens cost rows of the target's pass; tokens that were drafted and not sent cost the
# drafter's time alone.
# </details>
#
# <details><summary>3. How many siblings of a tree can survive?</summary>
#
# At most one: they compete for one position.
# </details>
#
# <details><summary>4. A judge that never accepts is right for four judged nodes in five of a tree. Is the score useless?</summary>
#
# No. It ranks the nodes, and choosing which ones to send needs only a ranking.
# </details>
#
# <details><summary>5. What can the player not show?</summary>
#
# What another setting would have done, or what the target would predict for the real text after a rejected token.
# </details>
