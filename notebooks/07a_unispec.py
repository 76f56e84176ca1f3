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
# # 07a · UniSpec, line by line
#
# ![Algorithm 1 of UniSpec as seven boxes in a loop: store, root, first level, next levels, cut, pass, learn](stills/07a.png)
#
# *30 minutes, about one of them computing. Needs `torch` (`pip install -e ".[run,lab]"` in a checkout).
# [06](06_training_free_drafters.ipynb) explains trees and stores; this one takes a method apart.*
#
# Do, Nguyen and Nguyen, *UniSpec: Training-Free Speculative Decoding for Robust LLM Acceleration Across
# Languages and Hardware*. The drafter is a table of the target's own earlier predictions **with their
# probabilities**. They score every path, so the tree can be cut to the size that a device verifies cheaply.
# You will
#
# 1. see Algorithm 1 as one figure,
# 2. stop a decode before one of its cycles and run that cycle by hand,
# 3. try both readings of what the paper leaves open.
#
# [07b](07b_unispec_worth.ipynb) asks what each part is worth, and [07c](07c_eagle.ipynb) compares UniSpec with EAGLE.
#
# The model is **SmolLM2** (135 million, dequantised 4-bit weights) if `specviz models get smollm2` has
# downloaded it (93 MB), and otherwise the bundled `town` (2 million, a small world). SmolLM2 decodes fewer
# prompts, to save time.

# %%
import tempfile
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import specviz as sv
from specviz import view
from specviz.suites import spread, suite

torch.set_num_threads(1)
target = "smollm2" if "smollm2" in sv.list_models() else "town"
model = sv.load(target)
if target == "smollm2":
    prompts = [p for p in spread(suite("everyday"), 21) if p["kind"] not in ("translation", "qa")]
    studied, sample = prompts[:5], prompts[5:11]  # five kinds of work
    new_tokens, first_tokens, large = 24, 48, 48
else:
    prompts = spread(suite("town"), 63)
    studied, sample = prompts[:14], prompts[49:]  # seven kinds of work each, in English and German
    new_tokens, first_tokens, large = 48, 64, 96

# Let a drafter learn from some texts, and keep what it learnt in a file.
student = sv.method("unispec")
sv.generate(model, studied, student, max_new_tokens=new_tokens, record=None)
learnt = student.save(Path(tempfile.mkdtemp()) / f"{target}.store", model)

# This one starts every prompt from that file: `keep="prompt"` forgets what it learns from one to the next.
drafter = sv.method("unispec", keep="prompt")
drafter.load(learnt, model)
prompt = next(p for p in sample if p["kind"] == "arithmetic")
trace = sv.generate(model, prompt, drafter, max_new_tokens=first_tokens)
trace

# %% [markdown]
# ## Algorithm 1 in one figure
#
# Blue is the drafter; green is the target's pass and what is learnt from it. Each section below is one box.
#
# The paper writes a child's score as its parent's score $\oplus$ the child's probability $p$, and does not
# define $\oplus$. We read it as a **product**: the probability of the whole path, if the store's
# probabilities held here. The other reading, the *least* probability on the path, is tried at the end.

# %% jupyter={"source_hidden": true}
steps = [
    ("store  (lines 1-2)", "S: each token's k likeliest\nsuccessors with their p"),
    ("root and cache  (19)", "x: the text's last token\nC: the k likeliest at its place"),
    ("first level  (20)", "S[x] and C; a token in\nboth: its better score"),
    ("next levels  (22-29)", "expand k nodes, score ≥ r (0.05)\nscore = parent's ⊕ p"),
    ("cut  (30)", "send the g nodes\nof highest score"),
    ("pass and verdict  (32-37)", "keep the path that the target\nwrites, and one token more"),
    ("learn  (39-47)", "each row that was read goes\ninto S; a new C"),
]
figure, ax = view.subplots(figsize=(10, 3.2))
places = [(0, 1), (1, 1), (2, 1), (3, 1), (3, 0), (2, 0), (1, 0)]
WIDE, TALL = 0.42, 0.27  # half of a box
for n, ((x, y), (title, words)) in enumerate(zip(places, steps)):
    face, edge = ("#e8f1fa", "#0072b2") if n < 5 else ("#e6f5ee", "#009e73")
    ax.add_patch(plt.Rectangle((x - WIDE, y - TALL), 2 * WIDE, 2 * TALL, fc=face, ec=edge))
    ax.text(x, y + 0.15, title, ha="center", va="center", size=9, weight="bold", color=edge)
    ax.text(x, y - 0.08, words, ha="center", va="center", size=8.5)
for (a, b), (c, d) in zip(places, [*places[1:], places[0]]):
    side, up = (c > a) - (c < a), (d > b) - (d < b)
    if up > 0:  # back to the store
        begin, end = (a - WIDE, b), (c, d - TALL)
    else:
        begin, end = (a + side * WIDE, b + up * TALL), (c - side * WIDE, d - up * TALL)
    ax.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": "#555555"})
ax.set(xlim=(-0.5, 3.5), ylim=(-0.5, 1.5))
ax.axis("off")
plt.show()

# %% [markdown]
# ## The store (lines 1 and 2)
#
# Two arrays of shape $[V, k]$: for each of the $V$ tokens of the vocabulary the $k = 10$ tokens that the
# target thought likeliest *when it last read that token*, and their probabilities. Each token has one row,
# whatever stood before it. A prompt fills none: with an empty store the first cycle drafts nothing, and its
# pass gives the first row and the first $C$.
#
# **Predict.** A few short answers were studied. Of the vocabulary's tokens, how many have a row by now: 1 %, 10 %, 30 %
# or nearly all? Remember that every *drafted* token is read by the target too, the rejected ones included.

# %%
guess = 0.10


# %%
def word(token):
    """A token as a person reads it, its blanks visible."""
    return model.piece(int(token)).decode("utf8", "backslashreplace").replace("\n", "↵").replace(" ", "␣")


store = student.store
print(
    f"{store.entries} of {model.vocabulary} tokens have a row: {store.entries / model.vocabulary:.0%}, your guess {guess:.0%}"
)
print(
    f"memory {store.bytes / 1e6:.2f} MB here; at V = 150,000 it would be {150_000 * 10 * (4 + 4) / 1e6:.0f} MB (an id and a probability, 4 bytes each), and never more"
)

for t in list(dict.fromkeys(trace.outputs["token"].tolist()))[:8]:
    successors = zip(store.tokens[t][:6], store.p[t])
    print(
        f"{word(t):>10}  ", " · ".join(f"{word(s)} {p:.2f}" for s, p in successors if s >= 0 and p >= 0.005)
    )

# %% [markdown]
# A row comes from *another* place. Its probability says how sure the target was there, not here.
#
# ## Stop before a cycle
#
# `sv.stream` yields a decode cycle by cycle. Of the cycles that accepted two tokens or more we take the one with the
# most candidates above the threshold, stop the decode just before it, and look into the drafter: its store, the
# **root** $x_t$ (the last token of the text), and the cache $C$ that line 19 will need.

# %%
body = trace.cycles[(trace.cycles["cycle"] >= 3) & trace.cycles["end"].isna()]
several = body["accepted"] >= min(2, body["accepted"].max())
good = trace.nodes[trace.nodes["score"] >= 0.05].groupby("cycle").size()
number = int(good.reindex(body.loc[several, "cycle"]).idxmax())

run = sv.stream(model, prompt, drafter, max_new_tokens=first_tokens)
text = []
while (cycle := next(run)).number < number - 1:
    text += cycle.tokens
text += cycle.tokens
root, near, store = drafter.root, drafter.near, drafter.store
print(f"before cycle {number}: {model.decode(text)!r}, root {word(root)!r}")

# %% [markdown]
# ## The first level (lines 19 and 20)
#
# A first-level node that is wrong takes its whole subtree with it, so UniSpec widens this level. Candidates are
#
# - the store's row of the root, $S[x_t]$: what followed this token the last time, and
# - the cache $C$: the $k$ likeliest tokens **at the root's own position**: the last pass's prediction, from
#   which the root was taken.
#
# The reasoning (from LogitSpec, Liu et al. 2025): a token that was nearly chosen here may well come next.
#
# **Predict.** In greedy decoding, which token is always first in $C$?

# %%
first = pd.DataFrame(
    {
        "S[xₜ]": [word(t) if t >= 0 else "" for t in store.tokens[root]],
        "p in S": store.p[root],
        "C": [word(t) if t >= 0 else "" for t in near[0]],
        "p in C": near[1],
    },
    index=pd.RangeIndex(1, len(near[0]) + 1, name="rank"),
)
print("first in C:", repr(word(near[0][0])), "and the root is", repr(word(root)))
first.style.format({"p in S": "{:.1g}", "p in C": "{:.1g}"}, escape="html")

# %% [markdown]
# The root itself: the target chose it *because* it was the likeliest there. The paper leaves open whether the root may
# follow itself; the default here drops it from $C$, not from its successors in the store. A token in both lists is kept
# once, with its better score.
#
# ## The next levels (lines 22 to 29)
#
# Each level expands at most $k$ nodes of the one above, and none whose score is below the threshold $r$. A
# node of the first level has its probability in $S[x_t]$ or $C$, the better of the two, as its score. Below
# it, with $\oplus$ read as a product,
#
# $$ \mathrm{score}(u) = \mathrm{score}(\text{parent of } u) \cdot p(u), \qquad p(u) \text{ from the parent's row of } S. $$
#
# The loop as the paper writes it, slow and plain:

# %%
R, K, DEPTH, G = 0.05, 10, 10, 24
ROOT = ()


def entries(token):
    """The store's row of a token: its successors and their probabilities."""
    return [(int(s), float(p)) for s, p in zip(store.tokens[token], store.p[token]) if s >= 0]


def algorithm_1(r=R, product=True, drop_root=True):
    """Lines 16 to 29: every candidate as {path of tokens: score}, and one row of figures a level."""
    level = {}
    neighbours = [(int(t), float(p)) for t, p in zip(*near) if t >= 0 and not (drop_root and t == root)]
    for token, p in entries(root) + neighbours:  # lines 19-20
        level[(token,)] = max(p, level.get((token,), 0.0))
    tree, figures = dict(level), []
    for depth in range(1, DEPTH + 1):
        ranked = sorted(level, key=level.get, reverse=True)
        leaves = ranked[:K]  # line 27
        kept = [path for path in leaves if level[path] >= r]  # line 28
        figures.append((depth, len(level), max(level.values()), len(leaves) - len(kept), len(kept)))
        if depth == DEPTH or not kept:
            break
        above, level = level, {}
        for path in kept:
            for token, p in entries(path[-1]):  # lines 24-25
                level[(*path, token)] = above[path] * p if product else min(above[path], p)
        if not level:
            break
        tree |= level
    return tree, figures


candidates, figures = algorithm_1()
columns = ["level", "candidates", "best score", f"below r, of the best {K}", "expanded"]
pd.DataFrame(figures, columns=columns).set_index("level").round(3)

# %% [markdown]
# The package does the same with arrays, a level at a time. They must agree, path by path:

# %%
from specviz import Draft
from specviz.rules.store import Growth, grow

grown = grow(store, root, near, Growth(DEPTH, K, R))
shape = Draft(grown.tokens, grown.parents)
theirs = {tuple(grown.tokens[shape.path(i)].tolist()): s for i, s in enumerate(grown.score)}
print("the same candidates:", theirs.keys() == candidates.keys())
print(f"largest difference of scores: {max(abs(theirs[path] - candidates[path]) for path in theirs):.1e}")

# %% [markdown]
# ## The cut (line 30)
#
# The $g$ candidates with the highest score are sent. Does anything ensure that they form a tree?
#
# **Predict.** Can a node be among the best $g$ without its parent? And can a node *below* the threshold $r$ be sent?

# %%
best = sorted(candidates, key=candidates.get, reverse=True)
sent = best[:G]
print("sent without their parent:", sum(path[:-1] != ROOT and path[:-1] not in sent for path in sent))
for g in (G, large):
    low = sum(candidates[path] < R for path in best[:g])
    print(f"sent although below r:     {low} of {len(best[:g])} at g = {g}")

scores = np.array([candidates[path] for path in best])
level = np.array([len(path) for path in best])
figure, ax = view.subplots(figsize=(9, 3))
dots = ax.scatter(np.arange(1, len(best) + 1), scores, c=level, s=14, cmap="viridis_r", vmin=1, vmax=DEPTH)
ax.axhline(R, ls="--", color="#d55e00", lw=1, label=f"r = {R}: nothing grows from below")
ax.axvline(G + 0.5, ls="-", color="#888888", lw=1, label=f"g = {G}: sent, to the left")
ax.set(yscale="log", xlabel="candidates, best first", ylabel="score")
ax.legend(frameon=False)
figure.colorbar(dots, label="level")
plt.show()

# %% [markdown]
# No probability exceeds 1, so a child's product is at most its parent's, and a node's ancestors are sent whenever it
# is. (Of equal scores the earlier node wins, and parents come earlier.) And $r$ is a rule about *expanding*: a node
# below it has no children, but is sent if $g$ leaves room. With a mean over the path instead of a product the nodes
# need not form a tree: below 0.2, a child of probability 0.9 would have 0.55.
#
# **Predict.** Which of $r$ and $g$ changes the number of candidates, and which only what is sent?


# %%
def cut(r, g):
    tree, _ = algorithm_1(r=r)
    sent = sorted(tree, key=tree.get, reverse=True)[:g]
    widths = np.bincount([len(path) for path in sent], minlength=DEPTH + 1)[1:]
    low = sum(tree[path] < r for path in sent)
    print(f"{len(tree)} candidates; {len(sent)} sent, {low} of them below r; by level: {widths.tolist()}")


threshold = ipywidgets.FloatSlider(R, min=0.0, max=0.5, step=0.01, continuous_update=False)
size = ipywidgets.IntSlider(G, min=1, max=large, continuous_update=False)
controls = ipywidgets.interact(cut, r=threshold, g=size)

# %% [markdown]
# Only $r$ changes the candidates. Both change what is sent: $g$ how many, $r$ which nodes below it fill the places left.
#
# ## The pass and the verdict (lines 32 to 37)
#
# The target reads the root and all $g$ nodes in one pass. A node's position is its parent's plus one, and it
# sees the text, its ancestors and itself. An ordinary causal mask would show it the branches that precede it
# in the list, and its prediction would belong to no text. In greedy decoding, go from the root to the child
# that is the target's own choice, as long as there is one, and add the target's choice after the last. So the
# text is the one that the target writes alone, up to ties (two tokens so close that rounding decides). Keys
# and values of the kept path stay in the cache; the others are dropped. In sampling the children of the node
# that was reached are tried one after another by the rule of [06](06_training_free_drafters.ipynb),
# Algorithm 4. If one is accepted, the path continues there; if none is, a token is drawn from what they left
# of $p$, and the cycle ends. So one of them is accepted with the sum of their probabilities under $p$, and
# every token has the target's own distribution. No $q$ is needed, because the store's nodes are not drawn
# ([07c](07c_eagle.ipynb) has a drafter that draws its nodes).
#
# Here is this cycle in the player. Each `→` grows one level; then come the cut to $g$ nodes and the verdict.
# Point at a node for its source and its score. The kept path is drawn on top.
#
# **Predict.** Before the verdict: how many tokens of the path on top are kept? What stops it there?

# %%
sv.player(trace, cycle=number, phase="draft", substeps=True, growth=True)

# %% [markdown]
# The same as a table. The path ends where the target's choice is none of the children sent, or where the tree
# ends. Next to each kept node is its number of siblings sent. A node is *rejected* if the target chose one of
# its siblings, or a token that was not drafted; whatever is below a rejected node is *unjudged*. Of the
# candidates that were not sent, the record keeps the best few (`below_budget`).

# %%
nodes = trace.nodes
here = nodes[nodes["cycle"] == number].set_index("node")
sent_nodes = here[here["status"] != "below_budget"]
kept = here[here["status"] == "accepted"]
shown = pd.DataFrame(
    {
        "token": [word(t) for t in kept["token"]],
        "from": kept["source"],
        "score": kept["score"],
        "target's p": kept["p"],
        "siblings": [int((sent_nodes["parent"] == p).sum()) - 1 for p in kept["parent"]],
    }
)
fates = here["status"].value_counts().loc[lambda n: n > 0]
print("what became of the candidates:", ", ".join(f"{n} {fate}" for fate, n in fates.items()))
shown.set_index(kept["depth"].rename("level")).round(3)

# %% [markdown]
# ## What is learnt (lines 39 to 47)
#
# The pass computed the target's prediction after *every* node, the wrong ones included. All are written into
# the store, without another pass.
#
# **Predict.** The pass read $g + 1$ tokens. How many rows of the store does it write: all $g + 1$, or fewer?


# %%
def row(tokens):
    """The first three of a store's row."""
    return " · ".join(word(t) for t in tokens[:3] if t >= 0) or "(nothing)"


old = store.tokens.copy()
cycle = next(run)  # runs the cycle we have taken apart
words = [root, *np.asarray(cycle.draft.tokens).tolist()]
changed = [t for t in dict.fromkeys(words) if (old[t] != store.tokens[t]).any()]
print(
    f"{len(words)} tokens read; {len(set(words))} different ones, so as many rows written; {len(changed)} hold other tokens than before"
)
print(f"new root {word(drafter.root)!r}; first in the new C: {word(drafter.near[0][0])!r}")

table = {word(t): [row(old[t]), row(store.tokens[t]), words.count(t)] for t in changed[:8]}
columns = ["likeliest before", "likeliest after", "times read"]
pd.DataFrame.from_dict(table, orient="index", columns=columns).rename_axis("token")

# %% [markdown]
# If a token occurs at several nodes, each has its own prediction, but the row can hold only one: the last is
# kept (lines 41 to 44, in order). An end token keeps no row. A store with one row for each token remembers no context.
#
# A store that starts empty fills text by text. **Predict.** Does it fill at a constant pace, and does τ (the
# tokens that a cycle writes) rise with it?

# %%
filling = sv.generate(model, studied + sample, "unispec", max_new_tokens=new_tokens)
figure, axes = view.subplots(1, 2, figsize=(10, 3.6))
view.store_growth(filling, ax=axes[0])
view.warm_up(filling, ax=axes[1])
plt.show()

# %% [markdown]
# It fills fast at first and then ever more slowly: common tokens are learnt in the first texts, and new ones
# become rare. How τ develops also depends on the texts: each kind of work has its own τ, so the comparisons
# in [07b](07b_unispec_worth.ipynb) decode the same texts from the same store.
#
# ## Two open readings
#
# The paper leaves open what $\oplus$ is, and whether the root may follow itself. Both are options: `score="product"` or
# `"least"` (the least probability on the path) or `"edge"` (the node's own), `root_token="drop"` or `"keep"`.
#
# **Predict.** With `"least"` scores, is the tree deeper or broader than with products? Why?

# %%
run.close()
drafter.load(learnt, model)  # then up to the same cycle again, for the state before it
run = sv.stream(model, prompt, drafter, max_new_tokens=first_tokens)
while next(run).number < number - 1:
    pass
root, near, store = drafter.root, drafter.near, drafter.store

for name, how in {
    "product, root dropped": {},
    "least": {"product": False},
    "root kept": {"drop_root": False},
}.items():
    tree, _ = algorithm_1(**how)
    chosen = sorted(tree, key=tree.get, reverse=True)[:G]
    depth = np.array([len(path) for path in chosen])
    widths = np.bincount(depth, minlength=DEPTH + 1)[1:]
    own = sum(path[0] == root for path in chosen)
    print(
        f"{name:22s} nodes on levels 1 to {DEPTH}: {widths.tolist()}, on average {depth.mean():.1f}, below the root's own token {own}"
    )
run.close()

# %% [markdown]
# The tree of `least` scores is usually deeper: a product falls with every step, a minimum only where the
# store is unsure, so long confident paths keep their score ([07b](07b_unispec_worth.ipynb) counts over many
# texts). The closer the probabilities are to 1, the less the two trees differ. (A child's minimum is at most its
# parent's, too, so both are trees.) Keeping the root token gives the first level a node with the
# highest score of $C$, and that node gets the root's own successors once more, as its children.
#
# ## What the threshold does
#
# **Predict.** In Table 12 of the paper τ *rises* from r = 0 to r = 0.05. At a fixed $g$ and with the same
# store, can leaving nodes unexpanded give the target better nodes to judge?

# %%
with_r, without = algorithm_1(r=R)[0], algorithm_1(r=0)[0]
top = lambda tree: sorted(tree, key=tree.get, reverse=True)[:large]
good = lambda tree: {path for path in top(tree) if tree[path] >= R}
rest = lambda tree: [tree[path] for path in top(tree) if tree[path] < R]
print(f"with room for {large} nodes, those that score r or more are the same:", good(with_r) == good(without))
for name, tree in ((f"r = {R}", with_r), ("r = 0", without)):
    print(
        f"{name:8s} {len(tree)} candidates; below {R} are {len(rest(tree))} of the nodes sent, their scores sum to {sum(rest(tree)):.3f}"
    )

# %% [markdown]
# Not by its own measure. Every descendant of a node under $r$ scores less than $r$, so every node of score
# $r$ or more is in both trees. Only the *rest* of the $g$ places is filled differently, and without the
# threshold it has nodes of equal or higher score. So the threshold saves drafting work, as the numbers of
# candidates show, and cannot improve the tree as it is scored. If τ rises anyway, low scores were in a wrong
# order, the stores diverged, or the paper's ⊕ is another: with `edge` scores $r$ can change the best nodes.

# %% [markdown]
# ## What UniSpec cannot do
#
# - It has no context beyond one token: *"the"* has one row, whatever the sentence. Numbers, names and rare words fail.
# - A stored probability belongs to another place in the text. Scores treat it as valid here, so the tree can
#   be the wrong one.
# - It needs logits, so it cannot work through an interface that only returns text (the paper says so too).
# - With a short answer from a cold start the store holds little yet.
#
# ## Five questions
#
# <details><summary>1. What does the store hold, and how large can it get?</summary>
#
# For each token of the vocabulary the k tokens that the target thought likeliest when it last read it, and
# their probabilities: [V, k] ids and numbers, never more.
# </details>
#
# <details><summary>2. Which two sources fill the first level?</summary>
#
# The store's row of the root, and the cache C: the likeliest tokens at the root's own position in the last
# pass.
# </details>
#
# <details><summary>3. What is ⊕, and what does our reading make of a path's score?</summary>
#
# The paper's undefined way to combine a parent's score with a child's probability. Read as a product, the
# score is the product along the path.
# </details>
#
# <details><summary>4. Can a node be sent without its parent?</summary>
#
# No. With products a child's score is at most its parent's, so the g best nodes form a tree.
# </details>
#
# <details><summary>5. Which rows of the store does a pass write?</summary>
#
# One for each different token that it read, the rejected nodes included. If a token occurs at several nodes,
# the last one is kept.
# </details>
