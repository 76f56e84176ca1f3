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
# # 11a · What a diffusion model does
#
# ![A canvas of a diffusion model: a row for each pass, a column for each cell, filled in any order](stills/11a.png)
#
# *25 minutes, about one of them computing. Needs `torch` (`pip install -e ".[run,lab]"` in a checkout).*
#
# A masked-diffusion model does not write from left to right. Its answer starts as a row of masked cells. Each pass
# predicts all of them, and the decoder decides which predictions to keep. You will
#
# 1. watch a canvas fill,
# 2. learn what such a model is trained for, and check it with two estimates,
# 3. see how filling two cells at once goes wrong: by hand, then in a real text.
#
# [11b](11b_self_drafting.ipynb) drafts with the predictions that were not kept, and
# [11c](11c_ssd_in_numbers.ipynb) is an appendix for specialists. The model is `town-diffusion`: 2.3 M
# parameters, eight layers, in the form of Dream, a published diffusion model.

# %%
import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import specviz as sv
from specviz import metrics, view
from specviz.trace import written

torch.set_num_threads(1)
model = sv.load("town-diffusion")
texts = [prompt for prompt in sv.suite("walkthroughs") if prompt["id"].startswith("translations")]


def write(method="stepwise", of=texts, **options):
    """Texts that the model was not trained on, without a cache."""
    return sv.generate(model, of, method, max_new_tokens=48, batch=8, cache="none", **options)


trace = write(of=texts[0])
trace

# %% [markdown]
# ## How it writes
#
# The prompt is followed by $L$ masks (equation 1 of Gao et al. 2025, the paper of 11b). A pass gives a
# distribution for every masked position $i$ (equation 2). All of them come from the same canvas: the prompt
# and all tokens so far, to the left *and* to the right:
#
# $$ p(x_i^{(t)} \mid x^{(t-1)}) = \text{Softmax}\bigl(f_\theta(x^{(t-1)})_i\bigr), \qquad i \in \mathcal M^{(t-1)}. $$
#
# Cells are grouped into blocks of $B = 8$ (equation 3), which are written one after the other. In the current
# block, the cell with the most *confident* prediction gets its likeliest token. All other cells stay masked,
# and the next pass starts from there. That is one token per pass: **stepwise** decoding. Cells that are
# almost certain ($p$ above 0.99995) count as equally confident, because their order hardly matters, and among
# equals the leftmost is next ([11c](11c_ssd_in_numbers.ipynb) has the details).
#
# **Predict.** The picture above shows one text. Over all sixteen: in how many steps is the most confident
# cell of a block the leftmost masked one? In a random order of eight cells the leftmost would be next in
# $\frac18 (1 + \frac12 + \dots + \frac18)$ of the steps: 34 %.

# %%
leftmost_guess = 0.6

# %%
stepwise = write()
view.lattice(stepwise, prompt=0)
plt.show()

left = []
for each in written(stepwise):
    masked = np.ones(each.length, bool)
    for cell in each.cell:
        left.append(cell == masked.argmax())
        masked[cell] = False
begun = stepwise.outputs[stepwise.outputs["prompt"] == 0].head(8)
print(stepwise.texts[0])
print(
    "the first block, as it was written:",
    ", ".join(f"{t.strip()} (cell {i})" for t, i in zip(begun["text"], begun["position"])),
)
print(f"leftmost of its block: {np.mean(left):.0%} of {len(left)} steps; your guess {leftmost_guess:.0%}")

# %% [markdown]
# A row is a pass, a column is a cell, and a thick frame marks the current block. The text grows from left to
# right more often than chance, but far from always. (Part of this comes from the tie rule and the end tokens,
# which it fills from left to right.) Pieces of one word tend to follow each other (the diagonals), a new word
# may begin anywhere, and an article may wait for its noun. After the answer the model writes its end token
# (■) to the end of the block.
#
# ## What it was trained for
#
# Draw a share $t$ uniformly from (0, 1], mask each cell of a known answer with probability $t$, and ask for
# the masked ones (Nie et al. 2025):
#
# $$ \mathcal L = \mathbb E_{t,\,x_t} \Bigl[ \tfrac1t \sum_{i\ \text{masked}} -\log p_\theta(x_i \mid x_t) \Bigr]. $$
#
# The $\frac1t$ matters. A given set of $k$ out of $L$ cells, and no other cell, is masked with probability
# $\int_0^1 t^k (1-t)^{L-k} dt$. With the $\frac1t$ inside, its weight is
# $\int_0^1 t^{k-1} (1-t)^{L-k} dt = \frac1k \binom Lk^{-1}$. That is the probability that, in a *random
# order*, these $k$ cells are the last ones (one of $\binom Lk$ sets, all equally likely) and a given one of
# them is next (one of $k$). So $\mathcal L$ is the chain rule's loss averaged over all $L!$ orders. It is
# also an upper bound: if the order is drawn at random the text's probability is the mean over orders, and
# $-\log$ of a mean is at most the mean of the $-\log$s (Jensen's inequality).
#
# **Predict.** If that is right, two different estimates must agree: masks drawn with $t$ and weighted by $\frac1t$; and
# random orders, with the loss summed cell by cell. Which one has the larger variance?

# %%
prompt = stepwise.run["prompts"][1]["tokens"]
answer = written(stepwise)[1]
answer = answer.token[np.argsort(answer.cell)]  # in the order of the cells
n, rng = len(answer), np.random.default_rng(0)


def loss(masked):
    """−log p of the answer's token in each masked cell, for each row of masks; elsewhere 0."""
    ids = np.concatenate((np.tile(prompt, (len(masked), 1)), np.where(masked, model.mask, answer)), 1)
    mask = torch.zeros(1, 1, ids.shape[1], ids.shape[1])  # everything attends to everything
    parts = []
    with torch.inference_mode():
        for some in torch.from_numpy(ids).split(50):
            logits = model.net(input_ids=some, attention_mask=mask).logits[:, len(prompt) - model.shift :]
            logits[..., model.mask] = -torch.inf  # no cell ends as a mask
            parts.append(logits[:, :n].log_softmax(-1)[:, np.arange(n), answer])
    return -torch.cat(parts).numpy() * masked


t = 1 - rng.random((800, 1))
by_share = (loss(rng.random((800, n)) < t) / t).sum(1)
by_order = []
for _ in range(50):
    rank = rng.permutation(n)  # the cell of rank k is written as the k-th
    by_order.append(loss(rank >= np.arange(n)[:, None])[np.arange(n), rank.argsort()].sum())
for name, values in (("masks by t, weighted by 1/t", by_share), ("random orders, cell by cell", by_order)):
    print(
        f"{name}: {np.mean(values):6.2f} ± {np.std(values) / len(values) ** 0.5:.2f} nats; each draw ± {np.std(values):.2f}"
    )

# %% [markdown]
# They agree within their errors. The weighted one has a far larger variance per draw, but a draw costs one
# pass, not $n$. A model trained in this way can write in *any* order, so it may be asked for its most
# confident cell first. It is not trained to predict two cells *jointly*.
#
# ## Two cells at once
#
# Take a world with three texts: "New York" with probability 0.4, "San Diego" 0.3, "San Jose" 0.3. Both cells
# are masked. A perfect model predicts, for the first cell, San 0.6 and New 0.4; for the second, York 0.4,
# Diego 0.3, Jose 0.3.
#
# **Predict.** Which text is written (a) if both cells get their likeliest token in one pass, (b) by stepwise
# decoding? How likely is each text in that world?

# %%
first, second = ["San", "New"], ["York", "Diego", "Jose"]
joint = np.array([[0.0, 0.3, 0.3], [0.4, 0.0, 0.0]])
one, two = joint.sum(1), joint.sum(0)
product = np.outer(one, two)
figure, axes = view.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for ax, table, title in zip(axes, (joint, product), ("joint", "product of the marginals")):
    ax.imshow(table, cmap="Blues", vmin=0, vmax=0.9)
    for place, p in np.ndenumerate(table):
        ax.text(*place[::-1], f"{p:.2f}", ha="center", va="center")
    ax.set_xticks(range(3), second)
    ax.set_yticks(range(2), first)
    ax.set_title(title, loc="left")
plt.show()

at_once = one.argmax(), two.argmax()
then = joint[one.argmax()] / one.max()  # the second cell, predicted again once the first is filled
print(
    f"(a) {first[at_once[0]]} {second[at_once[1]]}: probability {joint[at_once]:.1f}, by the product {product[at_once]:.2f}"
)
print(
    f"(b) {first[one.argmax()]} {second[then.argmax()]}: probability {joint[one.argmax(), then.argmax()]:.1f}"
)


def H(p):
    p = p[p > 0]
    return -(p * np.log(p)).sum()


dependence = H(one) + H(two) - H(joint)
print(
    f"KL(joint || product) = {dependence:.3f} nats, at most H1 + H2 − max(H1, H2) = {min(H(one), H(two)):.3f}"
)

# %% [markdown]
# (a) is a text that does not exist. Each marginal is right, but the product of marginals is not the joint
# distribution. (b) is a real text, though not the likeliest: stepwise decoding is greedy.
#
# How wrong can it be? The divergence of the joint from the product is $\sum_i H_i - H(\text{joint})$. Since
# $H(\text{joint}) \ge \max_i H_i$ (all cells together are at least as uncertain as one of them) it is at most
# $\sum_i H_i - \max_i H_i$. The *entropy-bounded* sampler (Ben-Hamu et al. 2025) fills the most confident
# cells while this bound stays below $\gamma$. *Fast-dLLM* (Wu et al. 2025) fills each cell whose likeliest
# token has a probability above a threshold $\tau$ (not the header's τ, tokens per pass); if there is none,
# the most confident cell alone.
#
# If the predictions are the marginals of one joint distribution, the favourites of $n$ cells above the
# threshold have a joint probability of at least $1 - n(1-\tau)$ (the union bound): for τ = 0.9 and up to four
# cells more than one half. So they are the likeliest *combination*. Yet stepwise decoding may write another
# text: it fills one cell and asks again, and what it fills meanwhile can change its mind.
#
# **Predict.** At τ = 0.9, how many of the 16 texts equal stepwise decoding's? How many passes are saved?

# %%
lossy = {f"fast_dllm, τ = {value}": write("fast_dllm", threshold=value) for value in (0.95, 0.9, 0.7)}
lossy |= {f"entropy_bounded, γ = {value}": write("entropy_bounded", bound=value) for value in (0.1, 0.5)}


metrics.compare_canvases({"stepwise": stepwise} | lossy, stepwise).round(3)

# %% [markdown]
# Move the threshold for the first text. How low can it go before the words change?


# %%
def filled(threshold):
    run = write("fast_dllm", of=texts[0], threshold=threshold)
    same = "the same text" if run.texts[0] == stepwise.texts[0] else "another text"
    print(f"{len(run.cycles) - 1} passes for {len(run.outputs)} tokens, {same}: {run.texts[0]}")


slider = ipywidgets.FloatSlider(0.9, min=0.3, max=1.0, step=0.05, continuous_update=False)
controls = ipywidgets.interact(filled, threshold=slider)

# %% [markdown]
# `same_order` counts the texts whose cells got the same tokens in the same order, `same_text` those that read
# the same; `saved` is the share of passes saved, pooled over texts. Below is the first cell that went wrong,
# with every prediction that stepwise decoding made for the same cell.


# %%
def parting(run):
    """The first pass that filled a cell otherwise than stepwise decoding, from a state that both share."""
    for wide, narrow in zip(written(run), written(stepwise)):
        final = dict(zip(narrow.cell.tolist(), narrow.token.tolist()))
        for each in wide.passes:
            stood = slice(0, each.start)
            if set(zip(wide.cell[stood], wide.token[stood])) != set(
                zip(narrow.cell[stood], narrow.token[stood])
            ):
                break
            for k in range(each.start, each.start + each.placed):
                if final.get(wide.cell[k]) not in (None, wide.token[k]):
                    return wide, narrow, each, int(wide.cell[k])
    return None


name, (wide, narrow, each, cell) = next(
    (name, place) for name, run in lossy.items() if (place := parting(run))
)
say = model.tokenizer.decode
rows = []
for state in range(each.start, int((narrow.cell == cell).argmax()) + 1):
    reading = narrow.readings[state]
    at = int((reading.cell == cell).argmax())
    rows.append(
        (state, int(narrow.cell[state]), say(narrow.token[state]), say(reading.token[at]), reading.p[at, 0])
    )
print(f"stepwise, text {wide.prompt}: {stepwise.texts[wide.prompt]}")
print(f"{name}: {lossy[name].texts[wide.prompt]}")
print(
    f"tokens that stand before: {each.start}; {each.placed} are placed in one pass; cell {cell} gets {rows[0][3]!r}\n"
)
columns = ["state", "next cell", "its token", f"predicted for cell {cell}", "p"]
pd.DataFrame(rows, columns=columns).set_index("state").round(3)

# %% [markdown]
# This is San York in a real text: each token fits the canvas, but they do not fit each other. In that pass the token
# printed above was its cell's favourite, and confident enough for the rule. By the time stepwise decoding reaches the
# cell, its neighbours are filled and the prediction has changed. A threshold asks what each cell would hold *if it were
# filled next*, and then fills several next.
#
# ## What parallel unmasking cannot do
#
# - It cannot know that two predictions depend on each other: both come from the same pass.
# - A stricter threshold makes it rarer, but never impossible. Only `threshold=1` is stepwise decoding: no
#   probability is above 1, so the most confident cell is filled alone.
# - It cannot detect that it went wrong. That needs another pass, and [11b](11b_self_drafting.ipynb) makes it.
#
# ## Five questions
#
# <details><summary>1. Which cell is filled next in stepwise decoding?</summary>
#
# The masked cell of the current block whose prediction is most confident; it gets its likeliest token. One
# cell per pass.
# </details>
#
# <details><summary>2. What does the factor 1/t in the training loss do?</summary>
#
# It makes the loss the chain rule's loss averaged over all orders in which the cells could be written.
# </details>
#
# <details><summary>3. Why may a diffusion model be asked for its cells in any order?</summary>
#
# It was trained on masks of every share, which is the same as all orders, so no order is special.
# </details>
#
# <details><summary>4. Cell 1 is San (0.6) and cell 2 is York (0.4). Why can San York have probability 0?</summary>
#
# These are marginals from one pass. Their product is not the joint distribution: San occurs only with Diego and Jose.
# </details>
#
# <details><summary>5. What do Fast-dLLM and the entropy-bounded sampler trade, and for what?</summary>
#
# They fill several cells in a pass. That saves passes, and the text may differ from that of stepwise decoding.
# </details>
