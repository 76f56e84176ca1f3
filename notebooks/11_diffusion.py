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
# # 11 · Writing in any order: diffusion models, and how they check themselves
#
# *45 minutes. Needs `torch`.*
#
# A masked-diffusion model does not write from left to right. Its answer is a row of masked cells, each pass tells all of
# them, and whoever decodes says which to believe. Gao et al. (2025), *Self Speculative Decoding for Diffusion Large
# Language Models* (SSD), make a draft of what is told and not yet believed. You will
#
# 1. watch a canvas fill, and learn what the model was trained for,
# 2. see two cells filled at once go wrong: by hand, then in a real text,
# 3. build the verification tree, and find the one word of its definition on which losslessness hangs,
# 4. count why drafts fail, and what a tree with twice the canvases buys,
# 5. keep keys and values that are no longer true, and say what "lossless" means then,
# 6. hold the paper's numbers against a bound that follows from its own settings.
#
# The model is `town-diffusion`: 2.3 M parameters, eight layers, Dream's form.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import specviz as sv
from specviz import metrics, view
from specviz.trace import written
from specviz.training.evaluate import drawn

torch.set_num_threads(1)
model = sv.load("town-diffusion")
texts = [{"turns": [each.turns[0][0]]} for each in drawn("translation", 16, language="en", target="de")]


def write(method="stepwise", of=texts, cells=48, batch=8, **options):
    """Texts that the model was not trained on, by a method's name (no cache, unless said) or a method."""
    if isinstance(method, str):
        options = {"cache": "none"} | options
    return sv.generate(model, of, method, max_new_tokens=cells, batch=batch, **options)


trace = write("ssd", of=texts[0])
trace

# %% [markdown]
# ## How it writes
#
# Behind the prompt stand $L$ masks (equation 1). A pass gives a distribution for every masked place $i$ (equation 2),
# each from the same canvas, prompt and all tokens so far, to its left *and* to its right:
#
# $$ p(x_i^{(t)} \mid x^{(t-1)}) = \text{Softmax}\bigl(f_\theta(x^{(t-1)})_i\bigr), \qquad i \in \mathcal M^{(t-1)}. $$
#
# Cells are grouped into blocks of $B = 8$ (equation 3), which are written one after the other:
# $\mathcal B_j = \{P + jB + 1, \dots, P + \min((j+1)B, L)\}$. Within the block in work the cell of which the model is
# *surest* gets its likeliest token, all the others are masked again, and the next pass begins from there: one token a
# pass, **stepwise** decoding with low-confidence remasking.
#
# **Predict.** In a block, is the surest cell usually the leftmost masked one? In a random order of eight cells it would be
# in $\frac18 (1 + \frac12 + \dots + \frac18)$ of the steps: 34 %.

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
print(stepwise.texts[0])
print(f"leftmost of its block: {np.mean(left):.0%} of {len(left)} steps; your guess {leftmost_guess:.0%}")

# %% [markdown]
# A row is a pass, a column a cell. It goes from left to right more often than chance would, and far from always: short words that grammar fixes, and
# the full stop, may stand before the noun they belong to. Behind the answer the model writes its end token, like
# any other token, to the end of the block.
#
# ## What it was trained for
#
# Draw a share $t$ evenly from (0, 1], mask each cell of a known answer with probability $t$, and ask for the masked ones
# (Nie et al. 2025):
#
# $$ \mathcal L = \mathbb E_{t,\,x_t} \Bigl[ \tfrac1t \sum_{i\ \text{masked}} -\log p_\theta(x_i \mid x_t) \Bigr]. $$
#
# The $\frac1t$ is no detail. A certain set of $k$ out of $L$ cells is masked with probability
# $\int_0^1 t^k (1-t)^{L-k} dt$, and with the $\frac1t$ inside it weighs
# $\int_0^1 t^{k-1} (1-t)^{L-k} dt = \frac{(k-1)!\,(L-k)!}{L!} = \frac1k \binom Lk^{-1}$:
# just the chance that, of a *random order*, these $k$ cells are the last ones and a given one of them is next. So $\mathcal L$ is
# the chain rule's loss, averaged over all $L!$ orders, and by Jensen's inequality a bound on $-\log p$.
#
# **Predict.** If that is right, two quite different estimates must agree: masks drawn with $t$ and weighed by $\frac1t$;
# and random orders, the loss summed cell by cell. Which will scatter more?

# %%
prompt = stepwise.run["prompts"][0]["tokens"]
answer = written(stepwise)[0]
answer = answer.token[np.argsort(answer.cell)]  # in the order of the cells
n, rng = len(answer), np.random.default_rng(0)


def loss(masked):
    """−log p of the answer's token in each masked cell, for each row of masks; elsewhere 0."""
    ids = np.concatenate((np.tile(prompt, (len(masked), 1)), np.where(masked, model.mask, answer)), 1)
    sees = torch.zeros(1, 1, ids.shape[1], ids.shape[1])  # everything sees everything
    told = []
    with torch.inference_mode():
        for some in torch.from_numpy(ids).split(25):
            logits = model.net(input_ids=some, attention_mask=sees).logits[:, len(prompt) - model.shift :]
            told.append(logits[:, :n].log_softmax(-1)[:, np.arange(n), answer])
    return -torch.cat(told).numpy() * masked


t = 1 - rng.random((400, 1))
by_share = (loss(rng.random((400, n)) < t) / t).sum(1)
by_order = []
for _ in range(10):
    rank = rng.permutation(n)  # the cell of rank k is written as the k-th
    by_order.append(loss(rank >= np.arange(n)[:, None])[np.arange(n), rank.argsort()].sum())
for name, found in (("masks by t, weighed by 1/t", by_share), ("random orders, cell by cell", by_order)):
    print(
        f"{name}: {np.mean(found):6.2f} ± {np.std(found) / len(found) ** 0.5:.2f} nats; a draw ± {np.std(found):.2f}"
    )

# %% [markdown]
# They agree within their errors, and the weighed one scatters far more a draw (it also costs one pass a draw, not $n$). A model that was trained so is at home in
# *any* order: it may be asked for the surest cell first. What it was not trained for is to tell two cells *together*.
#
# ## Two cells at once
#
# A world with three texts: "New York" with probability 0.4, "San Diego" 0.3, "San Jose" 0.3. Both cells are masked, and a
# perfect model tells each: first cell San 0.6, New 0.4; second cell York 0.4, Diego 0.3, Jose 0.3.
#
# **Predict.** What is written (a) if both cells get their likeliest token in one pass, (b) by stepwise decoding? How likely is each in that
# world?

# %%
first, second = ["San", "New"], ["York", "Diego", "Jose"]
joint = np.array([[0.0, 0.3, 0.3], [0.4, 0.0, 0.0]])
one, two = joint.sum(1), joint.sum(0)
product = np.outer(one, two)
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained", sharey=True)
for ax, table, title in zip(axes, (joint, product), ("joint", "product of what each cell is told")):
    ax.imshow(table, cmap="Blues", vmin=0, vmax=0.5)
    for place, p in np.ndenumerate(table):
        ax.text(*place[::-1], f"{p:.2f}", ha="center", va="center")
    ax.set_xticks(range(3), second)
    ax.set_yticks(range(2), first)
    ax.set_title(title, loc="left")
plt.show()

at_once = one.argmax(), two.argmax()
then = joint[one.argmax()] / one.max()  # the second cell, told again when the first stands
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
# (a) is a text that does not exist. Each cell was right about itself; the product of marginals is not the joint. (b) is
# a real one, though not the likeliest: stepwise decoding is greedy, a definition of the text and not its mode.
#
# How wrong can it be? The distance from the joint to the product is $\sum_i H_i - H(\text{joint})$, and since
# $H(\text{joint}) \ge \max_i H_i$ it is at most
#
# $$ \sum_i H_i - \max_i H_i \;\le\; \gamma, $$
#
# which is the rule of the *entropy-bounded* sampler (Ben-Hamu et al. 2025): fill the surest cells while that holds.
# *Fast-dLLM* (Wu et al. 2025) fills each cell whose probability exceeds a threshold $\tau$. For $n$ such cells the union bound gives the
# text of their favourites a joint probability of at least $1 - n(1-\tau)$: at τ = 0.9 that is more than one half, hence the likeliest, up to
# four cells. For a consistent model, that is; and it is not the text of stepwise decoding, which never had to be the likeliest.
#
# **Predict.** At τ = 0.9, how many of the 16 texts are stepwise decoding's? At which saving of passes?

# %%
lossy = {f"fast_dllm, τ = {value}": write("fast_dllm", threshold=value) for value in (0.95, 0.9, 0.8, 0.6)}
lossy |= {
    f"entropy_bounded, γ = {value}": write("entropy_bounded", bound=value) for value in (0.01, 0.1, 0.5)
}


def compared(run, base=stepwise):
    """A run beside stepwise decoding: the order of cells and tokens, the texts, the passes."""
    pairs = [(each.cell.tolist(), each.token.tolist()) for each in written(run)]
    return {
        "same order": sum(a == b for a, b in zip(pairs, ((each.cell.tolist(), each.token.tolist()) for each in written(base)))),
        "same text": sum(a == b for a, b in zip(run.texts, base.texts)),
        "passes": int(metrics.by_canvas(run)["passes"].sum()),
        "saved": metrics.step_reduction(run, base).median,
        "exactness": run.run["exactness"],
    }  # fmt: skip


pd.DataFrame({"stepwise": compared(stepwise)} | {name: compared(run) for name, run in lossy.items()}).T

# %% [markdown]
# Here is the first cell that went wrong, with all that stepwise decoding heard of the same cell.


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
    (name, found) for name, run in lossy.items() if (found := parting(run))
)
say = model.tokenizer.decode
rows = []
for state in range(each.start, int((narrow.cell == cell).argmax()) + 1):
    told = narrow.said[state]
    at = int((told.cell == cell).argmax())
    rows.append(
        (state, int(narrow.cell[state]), say(narrow.token[state]), say(told.token[at]), told.p[at, 0])
    )
print(f"{name}, text {wide.prompt}: {stepwise.texts[wide.prompt]!r}")
print(
    f"with {each.start} tokens standing, {each.placed} are placed in one pass; cell {cell} gets {rows[0][3]!r}\n"
)
print(
    pd.DataFrame(rows, columns=["state", "next cell", "its token", f"told of cell {cell}", "p"]).to_string(
        index=False
    )
)
