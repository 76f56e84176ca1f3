# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · BiLD: a small model that knows when to stop, a large one that knows when to take back
#
# *25 minutes. Needs `torch`; the quality scores need `sacrebleu` (`pip install "specviz-lm[run,quality]"`).*
#
# Kim et al. (2023), *Speculative Decoding with Big Little Decoder*. Speculative decoding keeps the target's text to the
# letter. BiLD gives that up on purpose: the small model's words stay unless the large one finds them *unlikely*. You
# will
#
# 1. watch its two policies, **fallback** and **rollback**, at work,
# 2. turn each threshold to its ends and predict what is left of the method,
# 3. draw the trade-off between speed and quality, with a small model that was *aligned* and one that was not.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import specviz as sv

torch.set_num_threads(1)
large, small, aligned = sv.load("town"), sv.load("town-draft"), sv.load("town-draft-aligned")
prompt = {"turns": ["Translate into German: The farmer who sold the horse wants to buy a new car next week."]}
trace = sv.generate(large, prompt, method="bild", draft=small, fallback=0.5, rollback=2.0, max_new_tokens=48)
trace

# %% [markdown]
# ## The two policies (sections 3.3 and 3.4, Algorithm 1)
#
# **Fallback.** The small model writes on while it is confident,
#
# $$ \max_y p_S(y \mid y_{1:n-1}) > \alpha_{FB}. $$
#
# Where it is not, its token is *not* written: the large model makes that one (▾). It also takes over after 10 tokens at
# the latest (appendix 7.1.2).
#
# **Rollback.** When the large model takes over, it reads all that the small one wrote since, in one pass, and so has
# an opinion on every token. With $d$ the cross-entropy between the small model's token and the large model's
# distribution,
#
# $$ d(y_m) = -\log p_L(y_m \mid y_{1:m-1}), $$
#
# the first $m$ with $d > \alpha_{RB}$ and everything behind it are thrown away, and the large model's token takes
# the place of $y_m$ (↶).
#
# The dashed line in the lane of confidence is $\alpha_{FB}$. **Predict.** Can a token that was sent to the large model
# stand below it?

# %%
nodes = trace.nodes
below = nodes[nodes["confidence"] <= 0.5]
print("below the threshold:", below["status"].value_counts().to_dict(), "of", len(nodes), "nodes")

# %% [markdown]
# None of those that were sent: a candidate below the line is recorded as *unsent*, and the large model writes in its
# place. Each rollback can be checked from the record, because it keeps the large model's probability of every token
# that it judged.

# %%
distance = -np.log(nodes["p"].clip(lower=1e-30))
shown = nodes.assign(distance=distance)[["cycle", "text", "confidence", "p", "distance", "status"]]
shown[nodes["status"] == "rejected"].round(3)

# %% [markdown]
# ## Both ends of both thresholds
#
# **Predict**, before each row is printed, whether the text is the large model's, the small model's, or something
# between, and how often the large model runs:
#
# | | α_FB | α_RB |
# |---|---|---|
# | (a) | 1 | 2 |
# | (b) | 0 | 2 |
# | (c) | 0 | 1000 |
# | (d) | 0.5 | 0 |

# %%
texts = {
    "large alone": sv.generate(large, prompt, method="autoregressive", max_new_tokens=48).text,
    "small alone": sv.generate(small, prompt, method="autoregressive", max_new_tokens=48).text,
}
for name, fallback, rollback in (("a", 1, 2), ("b", 0, 2), ("c", 0, 1000), ("d", 0.5, 0)):
    run = sv.generate(large, prompt, method="bild", draft=small, fallback=fallback, rollback=rollback, max_new_tokens=48)
    equal = [who for who, text in texts.items() if text == run.text]
    row = run.summary().iloc[0]
    print(f"({name}) {run.run['exactness']:17s} τ {row['tau']:.2f}, large passes {int(row['target_passes'])}: {equal or 'neither'}")
    print("    ", run.text)

# %% [markdown]
# (a) No probability exceeds 1, so every token is the large model's: the slowest possible way to be exact. (b) Only the
# cap of 10 and rollback are left: a fixed window, as in the ablation of Figure 5. (c) Nothing is ever taken back; the
# large model still writes one token in eleven. (d) A distance of zero means a probability of one, so rollback keeps
# hardly anything.
#
# Zero is a legal threshold. It is worth saying, since programs that write `value or default` make it impossible.
#
# ## Alignment (section 3.5.1)
#
# Two models trained apart may prefer different words for the same thing, *"hard"* and *"difficult"*, and be rolled back
# for it. The remedy is to fine-tune the small model on texts that the large one wrote. `town-draft-aligned` is that
# model: the same network, tuned on the greedy outputs of `town`.
#
# **Predict.** Does alignment change fallbacks, rollbacks, or both?

# %%
from specviz.bench.prompts import spread, suite

prompts = spread(suite("town"), 21)
plain_all = sv.generate(large, prompts, method="autoregressive", max_new_tokens=64)
rows = []
for name, draft in (("not aligned", small), ("aligned", aligned)):
    run = sv.generate(large, prompts, method="bild", draft=draft, fallback=0.5, rollback=2.0, max_new_tokens=64)
    row = run.summary().iloc[0]
    rows.append((name, row["fallback_share"], row["rollback_share"], row["A/D"], row["tau"]))
print(f"{'':12s} {'fallback':>9s} {'rollback':>9s} {'A/D':>6s} {'τ':>6s}")
for name, fall, roll, rate, tau in rows:
    print(f"{name:12s} {fall:9.1%} {roll:9.1%} {rate:6.2f} {tau:6.2f}")

# %% [markdown]
# The shares are of generated tokens. The paper's Table 4 prints such percentages without naming their denominator;
# this is our reading, and the record holds the counts for any other.
#
# ## The trade-off
#
# Quality against speed, one curve for each rollback threshold, one point for each fallback threshold, as in the paper's
# Figure 10. Quality here is chrF against the corpus's references, on translations only; speed is the time of the large
# model alone over BiLD's, measured beside it, prompt by prompt.
#
# **Predict.** Towards which corner does a larger α_FB move a point? And a larger α_RB?

# %%
try:
    from sacrebleu.metrics import CHRF
except ImportError:
    CHRF = None
    print("sacrebleu is not installed: quality is the share of texts that equal the large model's own")

tasks = spread([p for p in suite("town") if p["kind"] == "translation"], 6)
options = {"max_new_tokens": 64}
plain = sv.generate(large, tasks, method="autoregressive", **options)


def quality(run):
    if CHRF is None:
        return 100 * np.mean([a == b for a, b in zip(run.texts, plain.texts)])
    most = max(len(p["reference"]) for p in tasks)  # every accepted way to say it; the last one again as padding
    references = [[p["reference"][min(i, len(p["reference"]) - 1)] for p in tasks] for i in range(most)]
    return CHRF().corpus_score(run.texts, references).score


def speed(run):
    return run.summary().iloc[0]["tokens_per_second_with_prefill"]


base = quality(plain)
curves = {}
for name, draft in (("not aligned", small), ("aligned", aligned)):
    for rollback in (1.0, 3.0, 10.0):
        points = []
        for fallback in (0.3, 0.6, 0.9):
            beside = sv.generate(large, tasks, method="autoregressive", **options)
            run = sv.generate(
                large, tasks, method="bild", draft=draft, fallback=fallback, rollback=rollback, **options
            )
            points.append((speed(run) / speed(beside), quality(run), fallback))
        curves[name, rollback] = points

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True, layout="constrained")
for ax, name in zip(axes, ("not aligned", "aligned")):
    for rollback, hue in zip((1.0, 3.0, 10.0), ("#0072b2", "#e69f00", "#d55e00")):
        x, y, f = zip(*curves[name, rollback])
        ax.plot(x, y, "-", color=hue, label=f"α_RB = {rollback:g}")
        ax.scatter(x, y, s=[160 * v for v in f], color=hue)
    ax.axhline(base, ls="--", color="#888888", lw=1)
    ax.set(title=name, xlabel="speedup over the large model alone", ylabel="quality")
    ax.legend(frameon=False, title="dot size: α_FB")
plt.show()

# %% [markdown]
# The dashed line is the large model alone. Rolling back less is faster and worse; falling back more is safer and
# slower, until it is not even safer: a token that the large model writes anyway need not be taken back.
#
# The paper reports that BiLD can be *better* than the large model alone, an effect of mixing two models. With six short
# texts a difference of a point or two means nothing either way; take more prompts before you believe one.
#
# ## Nucleus sampling (appendix 7.4)
#
# The same two rules with sampled tokens: the small model's confidence is still its largest probability, the distance
# is still that of the token it drew.

# %%
sv.generate(large, prompt, method="bild", draft=aligned, temperature=1.0, top_p=0.8, seed=3, max_new_tokens=48)

# %% [markdown]
# ## One line, two readings
#
# Algorithm 1 (line 2) stops as soon as the text ends, so an end that the *small* model wrote is never reviewed.
# `review_end=False`, the default, is the algorithm as printed; `review_end=True` has the large model look at that block
# too. And line 4 falls back at equality (`max(p_S) > α_FB`), where section 3.3 writes $<$ for the fallback, so that
# equality goes on: we follow the algorithm. How often does the unreviewed end matter?

# %%
for review in (False, True):
    run = sv.generate(large, prompts, method="bild", draft=small, review_end=review, max_new_tokens=64)
    same = np.mean([a == b for a, b in zip(run.texts, plain_all.texts)])
    row = run.summary().iloc[0]
    print(f"review_end={review!s:5}: {same:.0%} of the texts are the large model's, {int(row['target_passes'])} large passes")

# %% [markdown]
# ## What BiLD cannot do
#
# - It cannot promise the large model's text. `lossy` is its label, and its quality must be measured for every task.
# - The thresholds depend on the task: the paper uses 0.5 to 0.9 for translation and 0.2 to 0.6 for summaries.
# - With sampling, the law of its output is neither model's.
