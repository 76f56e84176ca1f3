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
# # 11b · Self-drafting: a diffusion model as its own drafter
#
# ![The canvases of one verification tree: what each fills next, accepted or rejected](stills/11b.png)
#
# *30 minutes, about one of them computing. Needs `torch` (`pip install -e ".[run,lab]"` in a checkout).*
#
# A pass of a diffusion model predicts every masked cell, and stepwise decoding keeps one prediction. Gao et
# al. (2025), *Self Speculative Decoding for Diffusion Large Language Models* (SSD), use the others as a
# draft. You will
#
# 1. measure how good that free draft is,
# 2. build the verification tree, and find the detail of its definition on which losslessness depends,
# 3. count why drafts fail, and what a tree with up to twice the drafts gains,
# 4. see which keys and values of a cache are fresh and which are stale, and what "lossless" then means.
#
# [11a](11a_diffusion.ipynb) comes first. The model is `town-diffusion`: 2.3 M parameters.

# %%
import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from IPython.display import display

import specviz as sv
from specviz import audit, metrics, view
from specviz.trace import written

torch.set_num_threads(1)
model = sv.load("town-diffusion")
texts = [prompt for prompt in sv.suite("walkthroughs") if prompt["id"].startswith("translations")]


def write(method="stepwise", of=texts, **options):
    """Texts that the model was not trained on, by a method's name (no cache, unless named) or a method."""
    if isinstance(method, str):
        options = {"cache": "none"} | options
    return sv.generate(model, of, method, max_new_tokens=48, batch=8, **options)


stepwise = write()
trace = write("ssd", of=texts[0])
trace

# %% [markdown]
# ## A free draft
#
# The predictions of the other cells are guesses. They need no second model. Equation 4 takes them, with their
# confidence, from a pass after each verification. The verifying pass already holds them, so we run no other.
# SSD orders them as it expects them to be filled: the current block first, then the next one, each by
# confidence (section 3.2.2).
#
# **Predict.** How often is a pass's guess right for the cell that is filled $k = 4$ steps later? How often are its next
# four guesses all right, *and* filled in the drafted order?

# %%
right_guess, chain_guess = 0.8, 0.4

# %%
reach = 8
count, token, tokens, chain = np.zeros((4, reach + 1))
for each in written(stepwise):
    for state, reading in each.readings.items():
        ahead = reading.cell // each.block - each.work(state)
        drafted = reading.cell[np.lexsort((-reading.rank, ahead))]
        guess = dict(zip(reading.cell.tolist(), reading.token.tolist()))
        all_right = in_order = True
        for k in range(1, min(reach, len(each) - 1 - state) + 1):
            cell = int(each.cell[state + k])
            right = guess.get(cell) == each.token[state + k]
            all_right &= right
            in_order &= right and k < len(drafted) and drafted[k] == cell
            count[k] += 1
            token[k] += right
            tokens[k] += all_right
            chain[k] += in_order
steps = np.arange(1, reach + 1)
figure, ax = view.subplots(figsize=(6.6, 3.2))
for counts, label, style in (
    (token, "the k-th cell's token is right", "o-"),
    (tokens, "the first k tokens are all right", "s-"),
    (chain, "and come in the drafted order", "^-"),
):
    ax.plot(steps, (counts / np.maximum(count, 1))[1:], style, label=label)
ax.set(xlabel="k, steps ahead of the pass", ylabel="share of states", ylim=(0, 1))
ax.legend(frameon=False)
plt.show()
print(f"k = 4: token {token[4] / count[4]:.0%}, your guess {right_guess:.0%}; "
      f"chain of 4 {chain[4] / count[4]:.0%}, your guess {chain_guess:.0%}")  # fmt: skip

# %% [markdown]
# Single guesses are often right. A chain is right only while *everything* is, and the gap between the two lower curves
# is a second loss: the right tokens in another order.
#
# ## The verification tree
#
# The pass that verifies also supplies the next drafts: what it predicts on the last canvas that it reaches.
# So the first pass fills one cell, and nothing is drafted yet. The root is the current canvas. Node $k$ is
# its parent's canvas with the $k$-th draft filled in. All $N + 1$ canvases are one batch (equation 5), and
# each is *the very canvas that stepwise decoding would read next* if everything before it was right.
#
# Verification starts at the root. If a canvas confirms its child's draft, the child is accepted and judges
# the next. The last canvas that is reached fills one cell itself, so a pass places up to $N + 1$ tokens.
#
# A run that places $m$ tokens per pass saves $1 - 1/m$ of stepwise decoding's passes, at most $N/(N+1)$. If
# its passes cost $c$ passes over one canvas, it is $m/c$ times as fast.

# %%
cycles = trace.cycles.iloc[:-1]
most = int(cycles.loc[cycles["accepted"].idxmax(), "cycle"])  # the first of those that accepted most
view.canvases(trace, cycle=most)
plt.show()
print(view.canvases_words(trace, cycle=most))

# %% [markdown]
# A solid frame is what a verified canvas fills next. A dashed frame is a draft that was rejected, a dotted
# one was never judged.
#
# The paper says: "we compare each parent node's prediction with its child node's draft token. If a match is
# found, we proceed." That has two readings. A node is verified if its parent's pass
#
# - (a) has the drafted token as the favourite *of that cell*, or
# - (b) would fill *this cell with this token next*.
#
# **Predict.** Which accepts more? Which leaves the text as it was?

# %%
SSD = type(sv.method("ssd"))


class AnyOrder(SSD):
    """Reading (a): a child's cell need not be its parent's surest."""

    def judge(self, draft, reading):
        surest = reading.surest

        def matching(canvas):
            for node in np.flatnonzero(draft.parents == canvas):
                same = (reading.cell == draft.positions[node]) & (reading.token == draft.tokens[node])
                if len(places := np.flatnonzero(same & (reading.canvas == canvas))):
                    return int(places[0])
            return surest(canvas)

        reading.surest = matching
        return super().judge(draft, reading)


ssd = write("ssd")
loose = write(AnyOrder(cache="none"))
metrics.compare_canvases({"(a) this token": loose, "(b) this cell, this token, next": ssd}, stepwise).round(3)

# %% [markdown]
# Reading (a) fills whatever the chain proposed, in the chain's order. Each token was its canvas's favourite, and still
# most texts differ: after one cell that stepwise decoding would have left for later, everything that follows is read
# from canvases that it never had. Reading (b) is the definition. A canvas names its most confident cell and that cell's
# token; if they are its child's, the child is accepted. The *order* is the same, and therefore the text.
#
# Reading (a) is still labelled `exact up to ties`, because the class inherits the label. The audit checks that claim,
# with both candidates' log-odds computed again in float64:

# %%
for method in (AnyOrder(cache="none"), sv.method("ssd", cache="none")):
    row = audit.canvases(model, texts[1:3], [method], max_new_tokens=48).rows[0]
    print(
        type(method).__name__,
        row.verdict,
        *[each.reason.split(";")[0] for each in row.differences],
        sep="\n    ",
    )

# %% [markdown]
# Here are stepwise decoding and SSD, state by state. A filled square is a pass of stepwise decoding; an empty
# one is a pass that SSD saved.

# %%
view.aligned(stepwise, ssd, prompt=0)
plt.show()

# %% [markdown]
# ## Why a chain ends
#
# A chain ends because every draft was accepted (`short`: fewer than $N$ were sent), or because something
# other than the next draft was filled. That has three causes. Another *token* was placed in that cell, or
# another cell came first (the *order*). Or the chain had crossed a block's *border*: its drafts for the next
# block came from a pass in which that block was not yet the current one. Such an end counts as the border's,
# whatever was filled instead.
#
# **Predict.** The paper finds "out-of-order generation ... the most common failure". Is it here?

# %%
why = metrics.failures(ssd)
figure, ax = view.subplots(figsize=(6.6, 2.4))
ends = why[why["chains"] > 0].replace({"cause": {"none": "every draft accepted"}})
ax.barh(ends["cause"], ends["share"], color="#0072b2")
ax.errorbar(ends["share"], ends["cause"], xerr=(ends["share"] - ends["share_lo"], ends["share_hi"] - ends["share"]),
            fmt="none", color="black", capsize=3)  # fmt: skip
ax.invert_yaxis()
ax.set(xlabel="share of the chains that ended so (95 % over texts)", xlim=(0, 1))
plt.show()
out_of_order = why.set_index("cause").loc["order"]
print(
    f"out of order: {int(out_of_order['chains'])} chains; in {int(out_of_order['held'])} of them the chain held this cell and its token, further down"
)

# %% [markdown]
# Compare the two intervals: sixteen texts may not decide it, and the cached texts of
# [11c](11c_ssd_in_numbers.ipynb) need not agree. In most chains that fail by order, the right draft was
# there, only later.
#
# The *mix-order* tree (Figure 4b) helps where the right draft comes one step too late. The root and the nodes
# of the chain get a second child, the draft *after* next, from which nothing grows. The last node of the
# chain has no draft after it; the one before it has one, already its child. These two get no second child.
#
# **Predict.** (1) How many canvases does it have for $N = 4$, root included? The paper says $2N - 1$ in the text, and
# 6, 8, 10 in Table 3 for $N$ = 3, 4, 5. (2) From the same state, can it ever accept less than the chain? (3) Can it
# need *more* passes for a whole text?

# %%
ask = sv.whatif(stepwise)
replayed = {(n, tree): ask.ssd(draft_length=n, tree=tree) for n in (3, 4, 5) for tree in ("chain", "mix")}
rows = {}
for (n, tree), answer in replayed.items():
    run = answer.table.iloc[0]
    rows[n, tree] = {
        "canvases, at most": 1 + n if tree == "chain" else 2 * n,
        "canvases a pass": 1 + run["sent"] / run["cycles"],
        "passes": run["cycles"],
        "saved": 1 - run["cycles"] / run["emitted"],
        "badge": run["badge"],
    }
print("stepwise decoding:", len(stepwise.outputs), "passes")
display(pd.DataFrame(rows).T.rename_axis(["N", "tree"]).style.format(precision=2))


def drafting(draft_length, tree):
    run = ask.ssd(draft_length=draft_length, tree=tree).table.iloc[0]
    print(
        f"{1 + run['sent'] / run['cycles']:.1f} canvases a pass save {1 - run['cycles'] / run['emitted']:.0%} of the passes"
    )


slider = ipywidgets.IntSlider(4, min=1, max=8, description="N", continuous_update=False)
controls = ipywidgets.interact(drafting, draft_length=slider, tree=["chain", "mix"])

# %%
by_text = {
    tree: metrics.by_canvas(replayed[4, tree].trace()).set_index("prompt")["passes"]
    for tree in ("chain", "mix")
}
more = by_text["mix"] - by_text["chain"]
for less, count in more.value_counts().sort_index().items():
    print(f"{less:+d} passes by mix-order: {count} of {len(more)} texts")
best = int(more.idxmin())
mix = write("ssd", of=texts[best], tree="mix")
print(f"rerun of text {best}: {len(mix.cycles) - 1} passes, predicted {by_text['mix'][best]}")

nodes = mix.nodes
skip = nodes.duplicated(["cycle", "position"])  # of two nodes for one cell the later is the skip
kept = nodes[skip & (nodes["status"] == "accepted")]
print(f"skips: {int(skip.sum())} sent, {len(kept)} accepted")
view.canvases(mix, cycle=int(kept["cycle"].iloc[0]) if len(kept) else None)
plt.show()

# %% [markdown]
# (1) A root, $N$ of the chain, and a skip for each of these $N + 1$ but the last two: $2N$, as in Table 3.
# (The text's $2N - 1$ would leave the root out, though its $N + 1$ for the chain counts it.) (2) No: the
# chain is part of the tree, and a canvas does not depend on its siblings. A skip counts only where the chain
# has failed, and gains one token. (3) Yes, in principle: with one token more the next drafts come from
# another state, and may be worse there.
#
# The table needed no run of its settings. A verified canvas is one that stepwise decoding reads, too, so its
# record holds all predictions that decide how far a chain gets. Hence the badge `exact`.
#
# The paper concludes that 2.5 to 3.1 points fewer passes than with a chain do not pay for the tree's 50 to 67
# % more canvases. That depends on what a canvas costs: nothing while a pass spends its time reading the
# weights (*bound by memory*), its full share where it spends it multiplying (*bound by computing*).
#
# ## Fresh and stale
#
# A causal model's cache is exact: what is on the left never changes. Here every token attends to every other
# one, so each filled cell makes the keys and values of all positions a little wrong. The **dual cache**, an
# idea of Fast-dLLM, keeps them anyway. A *refresh* computes every position. The passes between two refreshes
# compute only the current block and reuse the rest. A refresh is due after $R$ tokens, whether or not a block
# ends there; the paper's $R$ is 8.
#
# The rule above is ours, the default (`cache_rule="predictor"`). In this model the place before a cell predicts
# it, so our passes also compute the place before the block while the block's first cell is masked.
# `cache_rule="fast_dllm"` follows Fast-dLLM's published code instead: it refreshes when a block begins, whatever
# $R$ is, fills the first cell there, and then computes the block alone. The two rules may write different texts.
#
# **Predict.** The picture below has a row for each pass and a column for each cell. In which columns does the colour
# change from row to row, and in which does it not?

# %%
cached = write(of=texts[0], cache="dual")  # B = 8, R = 8
passes = cached.cycles.iloc[1:]
cells = int(passes["block"].max() + 1) * 8
filled = next(iter(written(cached))).cell  # in order, one a pass
age, ages = np.zeros(cells), []
for number, (block, refreshed) in enumerate(zip(passes["block"].astype(int), passes["refreshed"])):
    age = np.zeros(cells) if refreshed else age + 1
    age[8 * block : 8 * block + 8] = 0  # the block in work is computed in every pass
    if block and 8 * block not in filled[:number]:
        age[8 * block - 1] = 0  # the cell that predicts the block's first one
    ages.append(age.copy())
figure, ax = view.subplots(figsize=(8, 3.4))
shades = ax.imshow(np.array(ages), aspect="auto", cmap="YlOrRd", interpolation="none")
ax.set(
    xlabel="cell of the canvas", ylabel="pass", title="passes since a cell's keys and values were computed"
)
figure.colorbar(shades)
plt.show()

# %% [markdown]
# The current block's columns stay at 0, because every pass computes them and, until the block's first cell is
# filled, the cell before it. All other cells age by one per pass, until a refresh sets them to 0.
#
# So stepwise decoding with a cache is *another reference*: some of its texts differ from those without. SSD
# is lossless relative to the stepwise decoding whose policy it shares (block, cache, $R$, which of two equal
# cells comes first), and to no other. A refresh also cuts a chain: if six tokens have been placed since the
# last one and $R$ is 8, at most two more are placed. The canvas after these would be read with keys that
# stepwise decoding has discarded by then.

# %%
reference, cached_ssd = write(cache="dual"), write("ssd", cache="dual")
pd.concat(
    [
        metrics.compare_canvases({"stepwise with a cache, against one without": reference}, stepwise),
        metrics.compare_canvases({"SSD with a cache, against stepwise with the same": cached_ssd}, reference),
    ]
).drop(columns="exactness").round(3)

# %% [markdown]
# ## A model of 135 million parameters
#
# `smollm2-diffusion` is SmolLM2 with thin matrices added to its own, trained for an hour on one core to fill
# masked cells (`specviz models diffusion`). It has learnt what answers look like, but not to copy from the
# prompt: **its text is poor**, and nothing here says how well such a model can write. Its passes cost what
# those of a real model cost. If SmolLM2 has not been downloaded, the cell below prints the command that does it,
# and shows `town-diffusion` alone.
#
# **Predict.** What share of the passes does SSD save, and what does a pass over five canvases cost in passes over one?
# With both models: on which is the share larger, and on which the cost?

# %%
large = sv.load("smollm2-diffusion") if "smollm2" in sv.list_models() else None
if large is None:
    print("SmolLM2 is not downloaded yet; run: specviz models get smollm2")
sides = {}
for name, side in (("town-diffusion", model), ("smollm2-diffusion", large)):
    if side is None:
        continue
    prompts = texts[:2] if side is model else list(sv.suite("narrow"))[:2]
    given = {"cache": "dual", "max_new_tokens": 32, "whole": True}
    slow = sv.generate(side, prompts, "stepwise", **given)
    fast = sv.generate(side, prompts, "ssd", **given)
    per_pass = [run.passes.query("cycle > 0")["duration"].median() for run in (slow, fast)]
    sides[name] = {
        "parameters": f"{side.parameters / 1e6:.0f} M",
        "text": fast.texts[0][:50],
        "same text": fast.texts == slow.texts,
        "passes saved": f"{1 - len(fast.passes) / len(slow.passes):.0%}",
        "ms a pass of one canvas": round(1e3 * per_pass[0], 1),
        "ms per pass, one to five canvases": round(1e3 * per_pass[1], 1),
    }
pd.DataFrame(sides)

# %% [markdown]
# If drafting saves a fifth of the passes, a pass may take at most $1/(1-0.2) = 1.25$ times as long: compare the
# last three rows of a column. The share depends on how often the model's own guesses hold, and on how
# much of the canvas is left after the text and is filled with end tokens. The cost of five canvases depends on
# model *and* device. `specviz bench canvases -m smollm2-diffusion --prompts narrow` (or `-m town-diffusion`)
# measures both. It also gives the speedup on a device where five canvases would cost as much as one.

# %% [markdown]
# ## What SSD cannot do
#
# - It cannot draft what the model does not predict yet. All drafts are one pass's marginals, which is what makes
#   parallel unmasking wrong. SSD does not make them better; it checks them.
# - It is greedy, with one order and one text as its reference. With sampled tokens the order would be random,
#   too, and a rule would have to keep the distribution of both.
# - *Lossless* refers to a reference: stepwise decoding with one block size, one cache policy, one rule for
#   equal cells. Another policy has another text.
# - It saves passes, not work. With $N = 4$ more cells are computed for each token than in stepwise decoding.
#   Without a cache, in a large batch or on a few cores it may be slower.
# - The figures here are a small model's on short texts. `python -m tests.benchmarks diffusion` repeats them on 8 to 60
#   prompts, and the check of exactness on 200.
#
# ## Five questions
#
# <details><summary>1. Where does SSD's draft come from, and what does it cost?</summary>
#
# From the pass that is run anyway: the predictions for the cells that are not filled. It costs no pass and no second model.
# </details>
#
# <details><summary>2. What exactly must match for a child to be accepted?</summary>
#
# Its parent's canvas must name the child's cell as the next one, and the child's token as that cell's token.
# </details>
#
# <details><summary>3. Why does it change the text to accept a right token in another order?</summary>
#
# All later canvases then differ from those that stepwise decoding reads, so their predictions may differ.
# </details>
#
# <details><summary>4. How many canvases does the mix-order tree have for N = 3, root included, and what is the extra child?</summary>
#
# 2N = 6. Each node but the chain's last two gets the draft after next as a second child, from which nothing grows.
# </details>
#
# <details><summary>5. A run with a dual cache writes another text than one without. Is SSD then not lossless?</summary>
#
# It is lossless against stepwise decoding with the same cache policy. The cached reference itself writes another text.
# </details>
