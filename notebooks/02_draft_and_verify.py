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
# # 02 · Draft and verify
#
# ![Speedup by acceptance and cost of a draft token, with the break-even line and this pair as a star](stills/02.png)
#
# *40 minutes, about three of them computing (half a minute on `town`). Needs `torch`, ipywidgets and plotly
# (`pip install -e ".[run,lab]"` in a checkout).*
#
# You will run speculative decoding greedily and with sampling. You will derive the rule of Leviathan, Kalman
# and Matias (2023) and Chen et al. (2023), by which sampled text follows the target's law (its distribution)
# *exactly*, break it, extend it from one token to a sequence, and learn when drafting pays.
#
# The target is **SmolLM2** (135 million parameters; 4-bit weights, dequantised) if
# `specviz models get smollm2` has downloaded it (93 MB). Its drafter `smollm2-draft` comes with the package:
# SmolLM2's own first two layers and its 8,192 most common tokens, trained on the target's answers. Otherwise
# the pair is `town` and `town-draft`, both bundled.

# %%
import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch

import specviz as sv
from specviz import view
from specviz.widgets.acceptance import Acceptance

torch.set_num_threads(1)
pair = "smollm2" if "smollm2" in sv.list_models() else "town"
target = sv.load(pair, dtype="float32", invariant=False)  # bfloat16 and invariant models: a section below
draft = sv.load(f"{pair}-draft")
if pair == "smollm2":
    draft = draft.on(target)  # it reads and writes by the target's own embedding
prompt = {
    "smollm2": "Why does the moon seem to change its shape during a month?",
    "town": "Translate into German: The teacher gave the child an old book in the library yesterday.",
}[pair]
trace = sv.generate(target, prompt, method="speculative", draft=draft, draft_length=4, max_new_tokens=48)
trace

# %% [markdown]
# ## Greedy decoding
#
# In each **cycle** the drafter guesses four tokens. The target reads the last token and these four in one
# pass, which often takes little longer than a pass over one token. So it learns its best token at five
# positions.
#
# **Predict.** Is the text the same as when the target writes alone: always, mostly, or seldom?

# %%
alone = sv.generate(target, prompt, method="autoregressive", max_new_tokens=48)
print("the same text:", alone.text == trace.text, "- exactness:", trace.run["exactness"])
print("passes of the target:", len(alone.cycles) - 1, "alone,", len(trace.cycles) - 1, "with drafts")

# %% [markdown]
# Always, up to ties. The longest prefix of the draft that equals the target's own tokens is kept. One token of the
# target's own follows: a **correction** after a mismatch, a **bonus** when all were right. The label says *up to ties*,
# because passes over five tokens and over one may round differently in the last digit. If the target's two best tokens
# agree to that digit, either may win. `specviz audit` finds every such place and says whether it was a tie, rounding,
# or a bug.
#
# Three cycles, with each token's probability under both models:

# %%
nodes = trace.nodes
shown = ["cycle", "text", "q", "p", "rank", "status"]
nodes[nodes["cycle"].isin([1, 2, 3])][shown].round(3)

# %% [markdown]
# ## How long should a draft be?
#
# **τ** is how many tokens a cycle writes on average, correction or bonus included. **A/D** is accepted draft
# tokens over those sent to the target: how little of the verified draft was wasted.
#
# **Predict.** As the draft length γ grows, which of τ, A/D and tokens/s rises, which falls, which has a maximum?

# %%
rows = []
lengths = [1, 2, 3, 4, 6, 8, 12]
for length in lengths:
    runs = [
        sv.generate(target, prompt, draft=draft, draft_length=length, max_new_tokens=48).summary().iloc[0]
        for _ in range({"smollm2": 1, "town": 3}[pair])
    ]
    rows.append((length, runs[0]["tau"], runs[0]["A/D"], np.median([r["tokens_per_second"] for r in runs])))
rows = np.array(rows)
figure, axes = view.subplots(1, 3, figsize=(10, 2.8))
for ax, column, name in zip(axes, (1, 2, 3), ("τ", "A/D", "tokens/s")):
    ax.plot(rows[:, 0], rows[:, column], "o-", color="#0072b2")
    ax.set(xlabel="draft length γ", title=name)
plt.show()

# %% [markdown]
# τ never falls: guesses depend only on the text, so longer drafts never lag. A/D usually falls: a later token
# counts only if all earlier ones were accepted. Speed usually peaks where one more draft token no longer pays.
#
# τ and A/D did not need those runs. The text is the target's own whatever is drafted, so one record can
# answer for other lengths if it holds what the drafter predicts at every position. The **dense record** adds
# that ([05](05_what_if.ipynb)).

# %%
dense = sv.generate(target, prompt, draft=draft, draft_length=4, max_new_tokens=48, record="dense")
answer = sv.whatif(dense).speculative(draft_length=lengths)
print("τ and A/D as in the runs:", np.allclose(answer.table[["tau", "A/D"]], rows[:, 1:3]))
answer.table[["draft_length", "cycles", "drafted", "accepted", "tau", "A/D", "badge"]].round(3)

# %% [markdown]
# ## Sampling: the rule for one token
#
# Now the target *samples* from its distribution $p$. The drafter samples $x$ from its own, $q$. We want a rule whose
# output has law $p$, whatever $q$ is, and which accepts as often as possible.
#
# Accept $x$ with probability $a(x)$; on rejection draw from some distribution $r$. The law of the output is
#
# $$ P(y) = q(y)\,a(y) + \Big(1 - \sum_x q(x)\,a(x)\Big)\, r(y). $$
#
# **First**, the accepted part alone must not exceed $p$: $q(y)\,a(y) \le p(y)$. With $a \le 1$ the most we can take is
#
# $$ a(y) = \min\!\Big(1, \frac{p(y)}{q(y)}\Big), \qquad q(y)\,a(y) = \min(p(y), q(y)). $$
#
# **Then** $r$ must supply what is missing, $p(y) - \min(p(y), q(y)) = \max(0, p(y) - q(y))$:
#
# $$ r(y) = \frac{\max(0, p(y) - q(y))}{\sum_z \max(0, p(z) - q(z))}. $$
#
# It fits: a rejection has probability $1 - \sum_x \min(p(x), q(x)) = \sum_x \max(0, p(x) - q(x))$, the
# denominator. So $P(y) = \min(p, q) + \max(0, p - q) = p(y)$. (If $p = q$, nothing is rejected and $r$ is not
# needed.) A draft is accepted with probability $\sum_x \min(p(x), q(x))$: one minus their total variation
# distance $\tfrac12 \sum_x |p(x) - q(x)|$.
#
# Drag it. On the left are $p$ and $q$; green is accepted. On the right is the output; the lines are $p$.
#
# **Predict.** Make $q$ as bad as you can. What happens to the green area, and to the bars on the right? Then
# run the cell again and choose each shortcut: (a) after a rejection draw from $p$ itself; (b) accept if and
# only if $p(x) \ge q(x)$; (c) draft the likeliest token, and use the drafter's softmax as $q$. Which of them
# keep the law?

# %%
Acceptance()

# %% [markdown]
# A bad $q$ only lowers acceptance; the output on the right still has law $p$. In general each of the three
# shortcuts gives another law. (Exceptions: (a) keeps $p$ if $q$ is a constant multiple of it wherever $p > 0$, (b)
# if $q$ exceeds $p$ only where $p = 0$, (c) if $p$ or $q$ is 1 on the drafted token, or $p$ is 0 there and (a)
# keeps it.) (a) favours what the drafter proposes too often: such a token has its full $p$ already, and gets more
# after rejections. (b) never writes a token with $p < q$: it is not accepted, and $r$ is 0 there. (c) has shipped in
# real libraries: $q$ must be what the draft was *really* drawn from, after temperature, top-k and top-p. If the draft
# is an argmax, $q$ is 1 on that token, and the rule accepts it with probability $p(x)$.
#
# In code:

# %%
rng = np.random.default_rng(0)
p = np.array([0.50, 0.25, 0.15, 0.10, 0.00])
q = np.array([0.20, 0.45, 0.05, 0.10, 0.20])


def accept_or_resample(p, q, rng):
    """One token with law p, given a drafter with law q; also whether the draft was accepted."""
    x = rng.choice(len(q), p=q)
    if rng.random() * q[x] < p[x]:  # u < p(x) / q(x)
        return x, True
    rest = np.maximum(p - q, 0)
    return rng.choice(len(p), p=rest / rest.sum()), False


draws = [accept_or_resample(p, q, rng) for _ in range(40_000)]
law = np.bincount([token for token, _ in draws], minlength=len(p)) / len(draws)
print(f"accepted {np.mean([ok for _, ok in draws]):.3f}, sum of minima {np.minimum(p, q).sum():.3f}")
print("p        ", p)
print("came out ", law.round(3))

# %% [markdown]
# ## From one token to a sequence
#
# A draft has γ tokens, and one pass of the target gives γ + 1 distributions. Row 1 is the law of the token
# after the text, row 2 that after the text *and* $x_1$, and so on.
#
# **Prefixes condition correctly.** $x_2$ is judged only if $x_1$ was accepted. Then $x_1$ is part of the
# text, so row 2 is the target's law at that position, and the one-token rule applies as before. If $x_1$ was
# rejected, a new cycle begins after its replacement, by the same rule. Either way the first token $y_1$ has
# law $p(\cdot \mid \text{text})$, the second, given the first, $p(\cdot \mid \text{text}, y_1)$, and the
# product of these is the target's law of the sequence.
#
# **Every token after a rejection is discarded.** If $x_1$ is rejected, another token $y_1$ takes its place.
# Row 2 was computed after $x_1$, which is gone, and $x_2$ was drafted after $x_1$, too. Neither $p$ nor $q$
# belongs to the text that is now being written.
#
# **The bonus comes from the last row.** If all γ tokens are accepted, row γ + 1 is the target's law after the
# whole draft, and it is already computed. One draw from it is a free token. After a rejection the draw from
# $r$ replaces it. So a cycle emits its accepted tokens and exactly one more, unless the text ends inside the
# draft.
#
# The next cell computes the law of *two* tokens over a vocabulary of three: with the rule, and keeping $x_2$
# after $x_1$ was rejected.
#
# **Predict.** Is the second law off in its first token, in its second, or in both?

# %%
chance = np.random.default_rng(3).dirichlet(np.ones(3), size=5)
p1, p2, q1 = chance[0], chance[1:4], chance[4]  # p2[u]: the law of the next token after u
# Whatever q2 is, a token judged by row 2 has law p2, so q2 does not appear.


def outcomes(p, q):
    """By the one-token rule: the probability that x is drafted and accepted, [3], and the law after a rejection."""
    rest = np.maximum(p - q, 0)
    return np.minimum(p, q), rest / rest.sum()


def law_of_pairs(keep):
    """The law of two tokens, [3, 3]; `keep`: x2 is judged by row 2 even after x1 was rejected."""
    accepted, residual = outcomes(p1, q1)
    law = accepted[:, None] * p2  # y1 = x1: row 2 is right, and the rule gives p2[x1]
    for x1 in range(3):
        rejected = q1[x1] - accepted[x1]
        for y1 in range(3):
            law[y1] += rejected * residual[y1] * p2[x1 if keep else y1]
    return law


target_law = p1[:, None] * p2
for name, keep in (("discard after a rejection", False), ("keep after a rejection", True)):
    law = law_of_pairs(keep)
    first, both = np.abs(law.sum(1) - p1).sum() / 2, np.abs(law - target_law).sum() / 2
    print(f"{name}: distance from the target's law: first token {first:.3f}, pairs {both:.3f}")

# %% [markdown]
# In its second: the second token follows a word that was never written.
#
# ## The same rule on the real pair
#
# The record keeps $p$, $q$ and the uniform number $u$ of every decision.

# %%
sampled = sv.generate(
    target, prompt, draft=draft, draft_length=4, temperature=0.9, top_p=0.95, seed=1, max_new_tokens=48
)
sampled

# %%
judged = sampled.nodes[sampled.nodes["status"].isin(["accepted", "rejected"])]
again = np.where(judged["u"] * judged["q"] < judged["p"], "accepted", "rejected")
print(f"{len(judged)} decisions, {(again == judged['status'].to_numpy()).sum()} come out as recorded")
judged[["text", "q", "p", "u", "status"]].head(10).round(3)

# %% [markdown]
# **Predict.** As the temperature rises, does the acceptance rate of this pair rise or fall?

# %%
draws = {"smollm2": 4, "town": 6}[pair]
for temperature in (0.3, 0.7, 1.0, 1.5):
    run = sv.generate(
        target, [prompt] * draws, draft=draft, temperature=temperature, max_new_tokens=48, batch=draws
    )
    sent = run.nodes[run.nodes["status"] != "cut"]
    rates = (sent["status"] == "accepted").groupby(sent["prompt"]).mean()
    error = f"± {rates.sem():.2f} (standard error of {draws} draws)"
    print(f"temperature {temperature:.1f}: A/D {rates.mean():.2f} {error}")

# %% [markdown]
# Both distributions flatten with temperature. A flat target accepts drafts that are not its top token, but a flat
# drafter also draws tokens to which the target gives almost no probability. Which effect wins depends on the pair.
#
# ## Exact up to ties, and exact
#
# In float32 a tie is rare. In bfloat16, where a number has eight significant bits, it is not: sums change
# with the order of their terms, which may change with the size of the pass. The next cells decode forty
# prompts on `town` by UniSpec ([07a](07a_unispec.ipynb)) twice: with passes as they come, and by an
# **invariant** model, which adds up each token's sums in one order, whatever the pass holds.
#
# **Predict.** How many of forty greedy texts of 64 tokens differ from those of autoregressive decoding, with each?

# %%
parted_guess = {"as they come": 4, "invariant": 1}  # put your own numbers here

# %%
ordinary = sv.load("town", dtype="bfloat16", invariant=False)
try:
    invariant = sv.load("town", dtype="bfloat16", invariant=True)
except sv.ModelError as why:  # whether torch's products keep their order is tried on each machine
    print(why)
    invariant = None
models = {"as they come": ordinary} | ({"invariant": invariant} if invariant else {})
forty = [entry["turns"][0] for entry in sv.suite("town")[:40]]
runs = {}
for name, model in models.items():
    methods = ("autoregressive", "unispec")
    own, drafted = runs[name] = [sv.generate(model, forty, method, max_new_tokens=64) for method in methods]
    parted = [i for i, (a, b) in enumerate(zip(own.texts, drafted.texts)) if a != b]
    label, guess = drafted.run["exactness"], parted_guess[name]
    print(f"{name}: labelled {label}, {len(parted)} of 40 texts differ (your guess {guess})")
    for number in parted[:3]:  # where they part, and how sure plain decoding was of its token there
        one, other = (run.outputs.query("prompt == @number and kept").reset_index() for run in (own, drafted))
        place = next(i for i, (a, b) in enumerate(zip(one["token"], other["token"])) if a != b)
        top = own.select(prompt=number).tops().query(f"cycle == {one['cycle'][place]} and place < 2")
        first, second = top["p"]
        print(
            f"  text {number}, token {place}: {one['text'][place]!r}, with drafts {other['text'][place]!r}; "
            f"the two likeliest lie {np.log(first / second):.3f} nats apart"
        )

# %% [markdown]
# The invariant model computes the same bits in every pass, so no draft can change the text, and the label
# says *exact*. That takes longer. Where the texts differ, rounding decided.
#
# ## When drafting pays
#
# Suppose each draft token is accepted with probability α, independently, and costs the fraction $c$ of a
# target pass. A cycle with γ draft tokens then writes
# $1 + \alpha + \dots + \alpha^\gamma = (1-\alpha^{\gamma+1})/(1-\alpha)$ tokens on average, because draft
# token $i$ counts only if $i$ in a row are accepted. It costs $\gamma c + 1$ passes (Leviathan et al.,
# Theorem 3.8):
#
# $$ \text{speedup} = \frac{1-\alpha^{\gamma+1}}{(1-\alpha)\,(\gamma c + 1)}. $$
#
# The star is this pair. A target pass over γ + 1 tokens is assumed to cost the same as one over one;
# [01](01_autoregressive.ipynb) measures how far that holds here.
#
# **Predict.** If γ grows from 1 to 12, does the thick break-even line rise or fall?

# %%
per_token = trace.cycles.iloc[1:]
c = float(
    (per_token["draft_time"] / per_token["drafted"].clip(lower=1)).median()
    / alone.cycles["duration"].iloc[1:].median()
)
alpha = float((trace.nodes.query("depth == 1")["status"] == "accepted").mean())
grid, costs = np.meshgrid(np.linspace(0.01, 0.99, 99), np.linspace(0, 0.6, 61))


def plane(γ):
    speed = (1 - grid ** (γ + 1)) / ((1 - grid) * (γ * costs + 1))
    figure, axes = view.subplots(figsize=(6.4, 3.6))
    levels = [0.25, 0.33, 0.5, 0.75, 1, 1.33, 2, 3, 4]
    shades = axes.contourf(grid, costs, speed, levels, cmap="RdBu", norm="log", extend="both")
    axes.contour(grid, costs, speed, levels=[1], colors="black", linewidths=2)
    axes.plot(alpha, min(c, 0.59), "*", ms=14, color="black", mec="white")
    axes.set(
        xlabel="acceptance α",
        ylabel="cost c of a draft token",
        title=f"speedup for γ = {γ}; thick line: break-even",
    )
    figure.colorbar(shades, ticks=levels, format="%g")
    plt.show()


print(
    f"this pair: α = {alpha:.2f}, c = {c:.2f}; 1 + α + ... + α^4 = {sum(alpha**i for i in range(5)):.2f}, "
    f"τ was {trace.summary().iloc[0]['tau']:.2f}"
)
plane(4)

# %%
controls = ipywidgets.interact(plane, γ=ipywidgets.IntSlider(4, min=1, max=12, continuous_update=False))
# %% [markdown]
# It falls: a longer draft needs a better or a cheaper drafter. With γ = 1 drafting pays if $c < \alpha$. If
# $c \ge \alpha$, no γ pays: each further token also costs $c$, and brings less than α.
#
# ## Four drafters in the plane of τ and cost
#
# Acceptance differs from position to position, so measured numbers are safer than α. The **cost** of a cycle
# is its time in units of a plain pass. τ over the cost is the speedup, and drafting pays above the line τ =
# cost. Below are four drafters: the draft model; **EAGLE**, one layer that continues from the target's own
# states ([07c](07c_eagle.ipynb)); **blockwise** decoding, in which small output layers (*heads*) on the target's
# last state guess the next tokens at once, or UniSpec on `town`; and **prompt lookup**, which copies from the text
# and costs next to nothing.
#
# **Predict.** Which has the largest τ? Which has the cheapest cycle? Is the larger τ always the faster method?

# %%
more = {
    "smollm2": {
        "eagle": {"draft": "smollm2-eagle3", "draft_size": 2, "depth": 2, "branches": 1},
        "blockwise": {"draft": "smollm2-heads", "k": 2},
    },
    "town": {
        "eagle": {"draft": "town-eagle", "draft_size": 2, "depth": 2, "branches": 1},
        "unispec": {"draft_size": 2},
    },
}[pair]
ways = {"speculative": {"draft": draft, "draft_length": 2}, **more, "prompt_lookup": {"draft_length": 2}}
entries = {"smollm2": sv.suite("everyday", each=1), "town": sv.suite("town", language="en", each=1)}[pair]
of_a_kind = {entry["kind"]: {"prompt": entry["turns"][0]} for entry in entries}
seven = list(of_a_kind.values())
length = {"smollm2": 32, "town": 48}[pair]
plain = sv.generate(target, seven, "autoregressive", max_new_tokens=length)
methods = {way: sv.generate(target, seven, way, max_new_tokens=length, **how) for way, how in ways.items()}
table = sv.metrics.break_even({"plain": plain, **methods}, baseline="plain").set_index("name")
print("every text is the target's own:", all(run.texts == plain.texts for run in methods.values()))
table[["exactness", "tau", "cost", "forward", "draft_cost", "rest", "speedup"]].round(2)

# %% [markdown]
# `forward` is the target's pass, `draft_cost` the drafter's, `rest` judging and committing. Each dotted
# line is one speedup, bars are 95 % intervals, small dots are prompts. Click on a method to open
# its trace.

# %%
runs = [plain, *methods.values()]
try:
    shown = sv.view.interactive.why_it_pays(runs, pages="pages/why-it-pays", force=True)
except sv.errors.ParameterError as why:  # plotly is not installed: the same figure as an image
    print(why)
    shown = sv.view.why_it_pays(runs)
shown

# %%
drafting = table.drop(index="plain")
for figure, best in (("τ", drafting["tau"].idxmax()), ("cycle", drafting["cost"].idxmin())):
    print(f"{'largest' if figure == 'τ' else 'cheapest'} {figure}: {best}")
above = drafting.index[drafting["speedup"] > 1]
print(f"fastest: {drafting['speedup'].idxmax()}; above the line here: {', '.join(above) or 'none'}")

# %% [markdown]
# A method with a larger τ can be slower, and be above the line on one machine and below it on another,
# because the cost of a pass over several tokens ([01](01_autoregressive.ipynb)) differs.
#
# ## What this method cannot do
#
# - It cannot make the target's text better, nor give another law than the target's. A *lossy* method such as BiLD
#   ([03](03_bild.ipynb)) trades exactness for speed.
# - A bad drafter costs more than none: τ near 1, and the draft's passes on top.
# - The two models should share token ids. If the drafter's ids mean other tokens, the text is still right,
#   but hardly any draft is accepted.
#
# ## Five questions
#
# <details><summary>1. Why does greedy decoding write the same text, however bad the drafter is?</summary>
#
# A draft token is kept only if it equals the target's own best token at that position. A bad drafter costs
# time, not text.
# </details>
#
# <details><summary>2. p = (0.7, 0.3) and q = (0.4, 0.6). How often is a draft accepted, and what is drawn after a rejection?</summary>
#
# min(p, q) = (0.4, 0.3), so 0.7 of the drafts. max(0, p − q) = (0.3, 0), so always the first token.
# </details>
#
# <details><summary>3. The third of five draft tokens is rejected. Which tokens does the cycle emit, and what happens to tokens four and five?</summary>
#
# The first two, and one drawn from the residual in place of the third. Four and five are discarded: they were
# drafted, and their rows computed, after a token that is not in the text.
# </details>
#
# <details><summary>4. Where does the bonus token come from, and why is it free?</summary>
#
# From the pass's last row, the target's law after the whole accepted draft. The pass computes it anyway.
# </details>
#
# <details><summary>5. Your τ doubled and decoding became slower. How?</summary>
#
# The cost of a cycle more than doubled: longer drafts, a more expensive drafter, or a target pass whose time
# grows with its rows.
# </details>
