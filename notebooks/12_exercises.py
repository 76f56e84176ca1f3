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
# # 12 · Exercises: write the verifiers yourself
#
# ![A decode whose colours the exercises' functions decide](stills/12.png)
#
# *55 minutes. Needs no model and no torch: NumPy and Python lists.*
#
# | | exercise | difficulty | time box |
# |---|---|---|---|
# | A | a greedy verifier | ●○○ | 10 minutes |
# | B | the rejection rule | ●●● | 20 minutes |
# | C | BiLD's rollback | ●●○ | 10 minutes |
# | D | a tree's mask | ●●○ | 15 minutes |
#
# Each has a prediction to make, a stub to fill in, and a check in the next cell. The check runs your function
# on a few hundred cases, says *what* is wrong, and shows the smallest example. Run it as often as you like:
# `specviz-exercises.json`, next to this notebook, keeps your best results. When you are stuck, open the hint.

# %% [markdown] tags=["solution"]
# **This is the teacher's copy.** A solution follows each stub, in a folded cell, so that every check passes.
# `specviz exercises` writes the students' copy, without them.

# %%
import matplotlib.pyplot as plt
import numpy as np

import specviz as sv
from specviz import view

trace = sv.open(sv.example("prompt_lookup")).select(prompt=0)
trace

# %% [markdown]
# A function of a dozen lines decided every colour above. You will write that one and three others.
#
# ## A · A greedy verifier &nbsp; ●○○ &nbsp; 10 minutes
#
# **Goal.** A drafter proposed $n$ tokens. One pass of the target over them yields $1 + n$ rows of scores: its own best
# token at the place of each drafted token, and one more after the last. Return the tokens that this cycle emits: the
# drafted tokens up to the first mismatch, then *one* token of the target's own. If the end-of-text token is among them,
# the text ends with it.
#
# **Predict.** `drafted = [7, 4, 9, 2]` and `best = [7, 4, 5, 2, 8]`. Which tokens are emitted?
#
# <details><summary>Answer</summary>
#
# `[7, 4, 5]`: two accepted, then the correction. The matching 2 is worth nothing: the target predicted it after the 9,
# which is not in the text. The 8 is not a bonus for the same reason.
#
# </details>


# %%
def greedy_verifier(drafted, best, eos):
    """The list of tokens that the cycle emits.

    drafted: list of n token ids.
    best:    list of 1 + n ids; best[i] is the target's token in the place of drafted[i],
             best[n] its token after the whole draft.
    eos:     the id that ends the text.
    """
    raise NotImplementedError("your turn")


# %% tags=["solution"] jupyter={"source_hidden": true}
def greedy_verifier(drafted, best, eos):
    kept = 0
    while kept < len(drafted) and drafted[kept] == best[kept]:
        kept += 1
    emitted = [*drafted[:kept], best[kept]]  # a correction if kept < n, the bonus if kept == n
    if eos in emitted:
        emitted = emitted[: emitted.index(eos) + 1]
    return emitted


# %%
sv.check.greedy_verifier(greedy_verifier)

# %% [markdown]
# <details><summary>Hint</summary>
#
# First count how many drafted tokens are kept; a wholly accepted draft must end the loop, too. The target's token is
# then the same entry of `best` in both cases, after a mismatch and after none. Handle the end of the text last.
#
# </details>

# %% [markdown] tags=["solution"]
# <details><summary>Solution, explained</summary>
#
# With `kept` counted, `best[kept]` is the target's token at the first open place: a correction if the draft
# was wrong, the bonus if nothing was. Rows after it concern a text that does not exist. Every cycle emits at
# least one token, so the loop always advances. The library's version is `verify_greedy` in
# `methods/speculative.py`; there the loop (`ending` in `loop/cycle.py`) cuts the text at its end, for all
# methods at once.
#
# </details>

# %% [markdown]
# ## B · The rejection rule &nbsp; ●●● &nbsp; 20 minutes
#
# The target *samples* from its distribution $p$; the draft token $x$ was drawn from $q$. It is accepted with
# probability $a(x)$; after a rejection the token is drawn from $r$. The output must have the law $p$:
#
# 1. What is accepted must not exceed $p$, and $a \le 1$; the most is $q(y)\,a(y) = \min(p(y), q(y))$, so
#    $a(y) = \min\big(1, \frac{p(y)}{q(y)}\big)$.
# 2. A rejection then has the probability $R = 1 - \sum_z \min(p(z), q(z)) = \sum_z \max(0, p(z) - q(z))$.
# 3. What is missing is $p(y) - \min(p(y), q(y)) = \max(0, p(y) - q(y)) = R\, r(y)$, so
#    $r(y) = \frac{\max(0, p(y) - q(y))}{R}$: the **residual**, divided by its sum.
#
# **Predict.** For the $p$ and $q$ below, what share of the drafts is accepted? Use step 2: one minus $R$.

# %%
guess = 0.5

# %%
p = np.array([0.50, 0.25, 0.15, 0.10, 0.00])
q = np.array([0.20, 0.45, 0.05, 0.10, 0.20])
accepted = np.minimum(p, q)
figure, ax = view.subplots(figsize=(7, 2.6))
ax.bar(range(5), accepted, color="#0072b2", label="accepted: min(p, q)")
ax.bar(range(5), p - accepted, bottom=accepted, color="#e69f00", hatch="//", label="missing: max(0, p - q)")
ax.step(np.arange(-0.5, 5.5), np.append(q, q[-1]), where="post", color="black", linewidth=1, label="q")
ax.set(xlabel="token", ylabel="probability")
ax.legend(frameon=False)
plt.show()
print(f"accepted {accepted.sum():.2f}, missing {(p - accepted).sum():.2f}, your guess {guess}")

# %% [markdown]
# **Goal.** Judge a block of $n$ drafted tokens. Both models are sampled at a temperature $T$, and you get their raw
# logits: $p$ and $q$ are `softmax(logits / temperature)`. Token $i$ is accepted if `u[i]` $< p_i(x_i) / q_i(x_i)$; the first
# rejection ends the block. Return how many tokens were accepted (`kept`), and the distribution of the token that
# comes next (`law`): the residual after a rejection, the target's own $p$ after a wholly accepted block (the bonus).


# %%
def softmax(logits):
    """Probabilities along the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


# %%
def rejection_rule(drafted, draft_logits, target_logits, temperature, u):
    """How many tokens are accepted, and the distribution of the next one: (kept, law).

    drafted:       list of n token ids, drawn from the draft model at the temperature.
    draft_logits:  array [n, vocabulary], row i for the place of drafted[i].
    target_logits: array [1 + n, vocabulary], the last row is for the place after the draft.
    temperature:   a number above 0.
    u:             list of n uniform numbers in [0, 1).
    """
    raise NotImplementedError("your turn")


# %% tags=["solution"] jupyter={"source_hidden": true}
def rejection_rule(drafted, draft_logits, target_logits, temperature, u):
    q = softmax(draft_logits / temperature)
    p = softmax(target_logits / temperature)
    for i, x in enumerate(drafted):
        if not u[i] * q[i, x] < p[i, x]:  # u < p / q, without a division
            rest = np.maximum(p[i] - q[i], 0)
            return i, rest / rest.sum()
    return len(drafted), p[len(drafted)]


# %%
sv.check.rejection_rule(rejection_rule)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Four steps: $q$ and $p$, both at the temperature; a loop over the drafted tokens that returns at the first rejection;
# there, the residual of *that* place, divided by its sum; after the loop, the last row of $p$. Write the test as
# `u * q < p`: it needs no division and is right when $q$ is 0.
#
# </details>

# %% [markdown] tags=["solution"]
# <details><summary>Solution, explained</summary>
#
# The temperature belongs to both distributions: $q$ is what the token was *really* drawn from. The comparison
# is strict, since `u` can be 0, and a token with $p = 0$ must never pass. The residual is reached only if
# $p < q$ for some token, so its sum is above 0. The library's versions are `accepts` and `residual` in
# `rules/speculative.py`.
#
# </details>

# %% [markdown]
# ## C · BiLD's rollback &nbsp; ●●○ &nbsp; 10 minutes
#
# **Goal.** The small model wrote a block of tokens, and the large one has read it. The distance of a token, in nats,
# comes from the large model's probability: $d(y_m) = -\ln p_m(y_m)$. At the first $m$ with $d > \alpha_{RB}$ the block
# is rolled back: that token and all after it are thrown away, and the large model's own token (greedy: the argmax of
# its row $m$) replaces it. If no token is that unlikely, the block stays and the large model's next token follows. (Kim
# et al. 2023, Algorithm 1, lines 9-16. The blocks here hold no end of text.)
#
# **Predict.** The large model gives the drafted tokens the probabilities 0.9, 0.2, 0.1, 0.8. How many of them stay at
# $\alpha_{RB} = 2$? At 1?
#
# <details><summary>Answer</summary>
#
# The distances are 0.11, 1.61, 2.30, 0.22. At 2 the first two stay ($e^{-2} = 0.135$ is the least probability that is
# kept), at 1 only the first ($e^{-1} = 0.368$). The last one is thrown away in both cases, although it is likely.
#
# </details>


# %%
def bild_rollback(drafted, p, threshold):
    """The list of tokens that take the block's place.

    drafted:   list of n token ids that the small model wrote.
    p:         array [1 + n, vocabulary]; p[m] is the large model's distribution in the place of
               drafted[m], p[n] its distribution after the block.
    threshold: α_RB, in nats.
    """
    raise NotImplementedError("your turn")


# %% tags=["solution"] jupyter={"source_hidden": true}
def bild_rollback(drafted, p, threshold):
    kept = 0
    while kept < len(drafted) and -np.log(p[kept, drafted[kept]]) <= threshold:
        kept += 1
    return [*drafted[:kept], int(p[kept].argmax())]


# %%
sv.check.bild_rollback(bild_rollback)

# %% [markdown]
# <details><summary>Hint</summary>
#
# It has the shape of exercise A: count what stays, then append one token. Only the test differs. Which row of `p` is the
# right one for the new token, and is it another one when the whole block stays?
#
# </details>

# %% [markdown] tags=["solution"]
# <details><summary>Solution, explained</summary>
#
# Greedy verification asks "is it the large model's favourite?", BiLD asks "is it likely enough?". All else is
# the same: the first failure ends the block, and row `kept` supplies the next token, as a rollback's
# replacement or as the fallback's token. That is why BiLD's text is not the large model's: likely enough is
# not best. The library's version is `BiLD.verify` in `methods/bild.py`.
#
# </details>

# %% [markdown]
# ## D · A tree's mask &nbsp; ●●○ &nbsp; 15 minutes
#
# **Goal.** A draft may branch. Its nodes are numbered so that a parent comes before its children, and `parents[i]` is
# the number of node i's parent, or -1 if node i hangs on the root, the last committed token. For one pass over the
# whole tree each node must attend to its ancestors and itself, and to nothing else of the draft. It also needs a
# position: the root's plus its **depth**, 1 on the first level. Return both.
#
# ```
#              root
#             /    \
#            0      1
#           / \      \
#          2   3      4          parents = [-1, -1, 0, 0, 1]
# ```
#
# **Predict.** How many entries of the 5 × 5 mask are true? Is there a relation to the depths?
#
# <details><summary>Answer</summary>
#
# 8. Row i has one true entry for each node on the path from the first level to node i, as many as its depth:
#    1 + 1 + 2 + 2 + 2. A chain of five would have 15.
#
# </details>


# %%
def tree_mask(parents):
    """What each node sees, and how deep it lies: (mask, depth).

    parents: list of n node numbers, parents[i] < i; -1 is the root.
    mask:    n rows of n truth values; mask[i][j] is true if node i sees node j.
    depth:   n whole numbers.
    """
    raise NotImplementedError("your turn")


# %% tags=["solution"] jupyter={"source_hidden": true}
def tree_mask(parents):
    mask = np.eye(len(parents), dtype=bool)
    depth = np.ones(len(parents), dtype=int)
    for i, parent in enumerate(parents):
        if parent != -1:
            mask[i] |= mask[parent]
            depth[i] = depth[parent] + 1
    return mask, depth


# %%
sv.check.tree_mask(tree_mask)

# %% [markdown]
# <details><summary>Hint</summary>
#
# A parent comes before its children, so at node i its parent's row is finished: node i attends to what its parent
# attends to, and to itself. Start from a mask in which each node attends to itself. What does `mask[-1]` mean in
# Python?
#
# </details>

# %% [markdown] tags=["solution"]
# <details><summary>Solution, explained</summary>
#
# One pass over the nodes in order; the row of the parent is copied into the child's. -1 needs a case of its
# own, because as an index it silently means the last row. If a sibling leaks in, a node is scored as the
# continuation of a text that nobody will ever write, and the output is wrong without an error. The library's
# versions are `Draft.mask` and `Draft.depths` in `draft.py`.
#
# </details>

# %% [markdown]
# ## Done?
#
# Each check that passes ends with a further question. A real method has the same two parts, a drafter and a
# verifier, in one file. `CONTRIBUTING.md` says how to add one.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. In greedy verification, which entry of <code>best</code> follows the kept tokens?</summary>
#
# <code>best[kept]</code>: the correction after a mismatch, the bonus after none.
# </details>
#
# <details><summary>2. Why is the test written u · q &lt; p and strict?</summary>
#
# It needs no division, and a token with p = 0 never passes, not even with u = 0.
# </details>
#
# <details><summary>3. How does BiLD's test differ from greedy verification?</summary>
#
# It asks whether the token is likely enough, not whether it is the favourite.
# </details>
#
# <details><summary>4. How many entries of a tree's mask are true in row i?</summary>
#
# As many as node i's depth: its ancestors and itself.
# </details>
#
# <details><summary>5. What happens if a sibling leaks into the mask?</summary>
#
# The node is scored as the continuation of a text that nobody writes, and the output is wrong without an error.
# </details>
