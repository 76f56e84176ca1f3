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
# # 07b · What each part of UniSpec is worth
#
# ![A problem decoded by UniSpec: its text, its cycles in time, and the score of each drafted node](stills/07b.png)
#
# *25 minutes, two to five of them computing. Needs `torch` (`pip install -e ".[run,lab]"` in a checkout).
# [07a](07a_unispec.ipynb) comes first.*
#
# You will measure what each part of UniSpec is worth, and compare with the paper: the two open readings, the score, the
# threshold, the size of the tree, and the ablation of Table 2.
#
# The model is **SmolLM2** (135 million, dequantised 4-bit weights) if `specviz models get smollm2` has
# downloaded it (93 MB), and otherwise the bundled `town` (2 million). SmolLM2 decodes fewer prompts, to save
# time.

# %%
import tempfile
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import specviz as sv
from specviz import metrics, view
from specviz.measure.benches.passes import measure
from specviz.suites import spread, suite

torch.set_num_threads(1)
target = "smollm2" if "smollm2" in sv.list_models() else "town"
model = sv.load(target)
if target == "smollm2":
    prompts = [p for p in spread(suite("everyday"), 21) if p["kind"] not in ("translation", "qa")]
    studied, sample, new_tokens, large = prompts[:5], prompts[5:11], 24, 48
else:
    prompts = spread(suite("town"), 63)
    studied, sample, new_tokens, large = prompts[:14], prompts[49:], 48, 96

# Let a drafter learn from some texts, and keep what it learnt in a file.
student = sv.method("unispec")
sv.generate(model, studied, student, max_new_tokens=new_tokens, record=None)
learnt = student.save(Path(tempfile.mkdtemp()) / f"{target}.store", model)


def decode(warm=True, record="judged", **options):
    """The sample, each prompt from the same store: `keep="prompt"` forgets what one prompt taught."""
    method = sv.method("unispec", keep="prompt", **options)
    if warm:
        method.load(learnt, model)
    return sv.generate(model, sample, method, record=record, max_new_tokens=new_tokens)


base = decode()
sums = base.prompts[base.prompts["kind"] == "arithmetic"]  # a conversation counts once a turn there
trace = base.select(prompt=int(sums["prompt"].iloc[0]))
trace

# %% [markdown]
# ## Two readings, decoded
#
# Only decoding shows which of the two open readings drafts better. Every run from here on writes the same
# texts and starts each prompt from the same store, `learnt` or empty, so differences come from the setting,
# and from what it lets the store learn within a prompt. The sample is small. `metrics.tau_difference`
# resamples the prompts, with repeats, and gives the range of 95 % of the results; a difference whose interval
# contains zero is not established.
#
# **Predict.** Does `score="least"` in place of products change the mean level of the nodes sent? Does it change τ?

# %%
size = lambda run: run.cycles.loc[run.cycles["cycle"] > 0, "sent"].mean()
deep = lambda run: run.nodes.loc[~run.nodes["status"].isin(["below_budget", "unsent"]), "depth"].mean()
rows = [("product, root dropped", size(base), deep(base), metrics.tau(base), "")]
for name, options in {"least": {"score": "least"}, "root kept": {"root_token": "keep"}}.items():
    other = decode(**options)
    rows.append(
        (name, size(other), deep(other), metrics.tau(other), str(metrics.tau_difference(other, base)))
    )
columns = ["", "nodes sent", "their mean level", "τ", "against the first [95 %]"]
pd.DataFrame(rows, columns=columns).set_index("").round(2)

# %% [markdown]
# Compare the mean levels over all texts. The intervals show whether either reading drafts better.
#
# ## Does the score predict acceptance? (Figure 3)
#
# A score may answer two different questions:
#
# - the **path's** score: with what probability is this node kept at all, its ancestors included?
# - the **last step's** probability, score over the parent's score: with what probability is it kept *once its parent was*?
#
# A score is *calibrated* if of the nodes that score 0.3, 30 % are kept: its points lie on the diagonal. Neither
# calibration implies the other. Both follow if a step's probability is right whatever the path above it. But the
# store's probability is from another place.
#
# **Predict.** Will the curves lie above the diagonal (underconfident) or below it (overconfident)? Which of the two is
# further off?

# %%
nodes = base.nodes
above = nodes[["prompt", "cycle", "node", "score"]].rename(columns={"node": "parent", "score": "above"})
nodes = nodes.merge(above, how="left", on=["prompt", "cycle", "parent"])
nodes["step"] = nodes["score"] / nodes["above"].fillna(1.0)
tested = nodes[
    nodes["status"].isin(["accepted", "rejected", "unjudged"])
]  # neither held back nor after the end
judged = tested[tested["status"] != "unjudged"]
distance = {}
edges = np.linspace(0, 1, 11)
figure, axes = view.subplots(1, 2, figsize=(10, 3.6), sharey=True)
for ax, part, column, name in (
    (axes[0], tested, "score", "score of the path, against being kept"),
    (axes[1], judged, "step", "last step, against being kept once the parent was"),
):
    value, took = part[column].to_numpy(float), part["status"].eq("accepted").to_numpy(float)
    bin = np.clip(np.digitize(value, edges) - 1, 0, 9)
    count = np.bincount(bin, minlength=10)
    full = count > 0
    share = np.bincount(bin, took, 10)[full] / count[full]
    mean = np.bincount(bin, value, 10)[full] / count[full]
    ax.bar((edges[:-1] + 0.05), count / count.sum(), 0.09, color="#bbbbbb", label="share of all nodes")
    ax.plot(mean, share, "o-", color="#0072b2", label="kept")
    ax.plot([0, 1], [0, 1], "--", color="#888888", lw=1)
    ax.set(title=name, xlim=(0, 1), ylim=(0, 1))
    off = distance[name] = (np.abs(share - mean) * count[full]).sum() / count.sum()
    side = "overconfident" if (mean * count[full]).sum() > (share * count[full]).sum() else "underconfident"
    print(
        f"{name}: on average {side}, {off:.3f} off the diagonal; mean value {value.mean():.3f}, kept {took.mean():.3f}"
    )
print(f"further off the diagonal: {max(distance, key=distance.get).partition(',')[0]}")
axes[0].set(xlabel="score of the path", ylabel="share")
axes[1].set_xlabel("probability of the last step")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# The paper's Figure 3 shows both in one picture: acceptance rises with the score, and most nodes have low
# scores. Here it is with intervals, by the source of a node, and how often nodes of each level are right.

# %%
figure, axes = view.subplots(1, 2, figsize=(10, 3.6))
view.acceptance_by_score(base, ax=axes[0], reading="text")
view.right_by(base, ax=axes[1])
plt.show()

# %% [markdown]
# The cut needs only the *order* of the nodes of one tree: any score that rises with acceptance chooses the same nodes.
# How good is the order? Of two nodes sent in the same cycle, one kept and one not, how often does the kept one have the
# higher score?

# %%
kept = tested["status"].eq("accepted")
rated = tested[["prompt", "cycle", "score"]]
pairs = rated[kept].merge(rated[~kept], on=["prompt", "cycle"], suffixes=("", "_lost"))
order = (pairs["score"] > pairs["score_lost"]).mean() + (pairs["score"] == pairs["score_lost"]).mean() / 2
print(f"the kept one scores higher in {order:.0%} of {len(pairs)} pairs of one tree; a coin would say 50 %")
by = judged.groupby("source", observed=True)["status"].agg(
    judged="size", kept=lambda s: s.eq("accepted").mean()
)
by.round(3)

# %% [markdown]
# ## The threshold
#
# Table 12 has τ *rise* from r = 0 to r = 0.05. With the same store the nodes of score r or more are the same in both trees
# ([07a](07a_unispec.ipynb)).
#
# **Predict.** Does τ rise here, too?

# %%
sweep_r = {0.05: base} | {r: decode(threshold=r) for r in (0.0, 0.2)}
# Table 12 (Llama-3-8B, RTX 3090): τ of seven kinds of work, at r = 0, 0.05 and 0.2.
table_12 = {
    0.0: [2.40, 2.31, 2.38, 2.27, 2.59, 2.76, 2.39],
    0.05: [2.58, 2.48, 2.59, 2.46, 2.74, 3.00, 2.59],
    0.2: [2.46, 2.37, 2.46, 2.34, 2.66, 2.88, 2.47],
}
rows = []
for r, run in sorted(sweep_r.items()):
    change = "" if run is base else str(metrics.tau_difference(run, base))
    rows.append((r, metrics.tau(run), change, size(run), np.mean(table_12[r])))
columns = ["r", "τ here", "against r = 0.05 [95 %]", "nodes sent", "τ, mean of Table 12"]
pd.DataFrame(rows, columns=columns).set_index("r").round(2)

# %% [markdown]
# Compare the last column with `against r = 0.05`: the paper's rise would show as a negative number in the row
# r = 0. An interval that contains zero neither confirms nor refutes it. By the scores alone no rise is to be
# expected: a threshold only takes candidates away, so the other places get nodes of lower or equal score.
#
# ## How large a tree?
#
# **Predict.** From the smallest $g$ below, 8, to the largest, the pass reads six or twelve times as many nodes. Does τ
# grow more, or the time of the pass? And which gains more from a larger tree, a store that has learnt or an empty one?

# %%
sizes = (8, 24, large)
warm = {g: base if g == 24 else decode(draft_size=g) for g in sizes}
cold = {g: decode(warm=False, record="all", draft_size=g) for g in sizes}
alone = sv.generate(model, sample, method="autoregressive", max_new_tokens=new_tokens)


def speed(run):
    """Tokens a second over autoregressive decoding's, by the median cycle: prefill and interruptions left out."""
    usual = lambda run: run.cycles.loc[run.cycles["cycle"] > 0, "duration"].median()
    return metrics.tau(run) * usual(alone) / usual(run)


pass_ms = {
    row["g"] - 1: row["median"] for row in measure(model, [1, *(g + 1 for g in sizes)], context=96, rounds=15)
}
figure, axes = view.subplots(1, 2, figsize=(10, 3.8))
for by_size, style, hue, name in (
    (warm, "o-", "#0072b2", "warm: has learnt from other texts"),
    (cold, "s--", "#e69f00", "cold: empty at every prompt"),
):
    axes[0].plot(sizes, [metrics.tau(by_size[g]) for g in sizes], style, color=hue, label=name)
# Table 16: Llama-3-8B-Instruct.
table_16 = {25: 2.24, 50: 2.56, 75: 2.74, 100: 2.83, 125: 2.94}
axes[0].plot(table_16.keys(), table_16.values(), "^:", color="#888888", label="the paper's Table 16")
axes[0].axhline(1, color="#bbbbbb", lw=1)
axes[0].set(xlabel="draft size g", ylabel="τ, tokens a cycle", ylim=(0.9, None))
axes[0].legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
axes[1].plot(pass_ms.keys(), pass_ms.values(), "o-", color="#d55e00")
axes[1].set(xlabel="draft size g (0: autoregressive)", ylabel="ms a pass over g + 1 tokens", ylim=(0, None))
plt.show()


rows = []
for g in sizes:
    for name, run in (("warm", warm[g]), ("cold", cold[g])):
        ratio = pass_ms[g] / pass_ms[0]
        tau, rate = metrics.tau(run), metrics.acceptance_rate(run)
        rows.append((g, name, tau, rate, ratio, tau / ratio, speed(run)))
columns = ["g", "store", "τ", "A/D", "s(g + 1)", "τ/s(g + 1), modelled", "speed, measured"]
pd.DataFrame(rows, columns=columns).set_index(["g", "store"]).round(2)

# %% [markdown]
# Compare the two slopes: on SmolLM2, when this was written, τ grew by 0.3 from 8 to 48 nodes with either store. As long
# as two stores are the same, a larger tree contains the smaller one and is accepted at least as far, with
# diminishing returns. Where weights come from memory, a pass over one token mostly waits for them, and reads
# them once for any number of nodes; every node costs time once arithmetic takes longer. When that happens
# depends on kernel and device: one CPU thread is busy long before a GPU is, and sooner in one layout of the
# weights than in another. As in [01](01_autoregressive.ipynb), $s(g+1)$ is the time of a pass over $g$ nodes and
# the root, in units of a plain pass. The best $g$ has the largest $\tau(g)/s(g+1)$ (equation 2). It depends on the
# machine, the kernel and the texts. Measure it again when one of them changes. For an A100 the paper finds 110 (Table
# 13). Measured points scatter, so [08](08_calibrate.ipynb) fits curves through them and looks for the best
# $g$ on these, within the sizes that were measured: nothing is known beyond. The equation assumes that every
# tree is full and that drafting is free. A cold store's trees are small and their passes cheaper than $s(g+1)$,
# so there it can underestimate the speed.
#
# The paper starts with an empty store and does not say whether it is kept from prompt to prompt. Compare the
# warm column with the cold one, and remember that so few prompts give no interval.
#
# **Predict.** The cold column took three runs. Could the other two be computed from the record of the run with
# $g = 24$, as [05](05_what_if.ipynb) does for chains?

# %%
answer = sv.whatif(cold[24]).unispec(draft_size=list(sizes))
print(answer.why)
answer.table[["draft_size", "tau", "badge"]].assign(rerun=[metrics.tau(cold[g]) for g in sizes]).round(3)

# %% [markdown]
# For its own size the answer is exact, unless two choices are closer than rounding, which is common in 16-bit
# formats: then the column `badge` asks for a rerun. Another size is exact as long as its store is known. The
# text is the same, but a smaller tree teaches less and a larger one more. From the first cycle that needs a
# row which this run never read, the answer is an estimate. Move the size, and see what it reads and what that
# buys.


# %%
def sized(draft_size):
    row = sv.whatif(cold[24]).unispec(draft_size=draft_size).table.iloc[0]
    print(f"τ {row['tau']:.3f} ({row['badge']}); {row['sent'] / row['cycles']:.1f} nodes sent a cycle")


slider = ipywidgets.IntSlider(8, min=1, max=24, continuous_update=False)
controls = ipywidgets.interact(sized, draft_size=slider)

# %% [markdown]
# ## Ablation (Table 2)
#
# Take away one part at a time. *Without scores*: the rank in the row, 1 for the first, replaces the
# probability ($2^{-\text{rank}}$, multiplied along the path as before), and there is no threshold. *Without
# expansion*: no cache $C$ at the first level (`neighbours=False`), no threshold. *Without calibration*: a
# fixed large size. (The paper's UniSpec has a calibrated size, ours 24 nodes.)
#
# **Predict.** In the paper's Table 2, two of the three removals *raise* τ. Which?

# %%
parts = {
    "UniSpec (g = 24)": (base, 2.58, 1.96),
    f"without calibration (g = {large})": (warm[large], 2.76, 1.61),
    "without scores": (decode(scores=False), 2.62, 1.48),
    "without expansion": (decode(neighbours=False, threshold=0), 2.20, 1.66),
}
rows = []
for name, (run, theirs, fast) in parts.items():
    change = "" if run is base else str(metrics.tau_difference(run, base))
    costs = np.interp(size(run), list(pass_ms), list(pass_ms.values())) / pass_ms[0]
    rows.append((name, metrics.tau(run), change, size(run), metrics.tau(run) / costs, theirs, fast))
same = [a == b for run, *_ in parts.values() for a, b in zip(run.texts, alone.texts)]
print(f"{sum(same)} of {len(same)} texts are autoregressive decoding's own")
columns = [
    "",
    "τ here",
    "against UniSpec [95 %]",
    "nodes sent",
    "τ/s here, modelled",
    "τ in Table 2",
    "speed in Table 2",
]
pd.DataFrame(rows, columns=columns).set_index("").round(2)

# %% [markdown]
# In Table 2 (RTX 3090, conversation) a fixed size and rank scores both have a *higher* τ and a lower speed.
# So by its own table the score gains time, not τ, though its text infers "stronger draft candidates". A
# reason may be that without scores there is no threshold: every tree is full, so drafting and passes take
# longer. The intervals show whether τ rises here, too. (Speeds of single runs include whatever else the machine
# did, so this table uses the measured pass at the nodes sent.)
#
# ## Where it fails, and what each part costs
#
# **Predict.** Which kind of work gains most from a store that has learnt, and which least?

# %%
by_kind = {}
for name, run in (("warm", base), ("cold", cold[24])):
    sums = metrics.by_prompt(run).groupby("kind")[["emitted", "steps"]].sum()
    by_kind[f"τ {name}"] = sums["emitted"] / sums["steps"]
by_kind["tokens a text"] = metrics.by_prompt(base).groupby("kind")["emitted"].mean()
frame = pd.DataFrame(by_kind)
frame["gain"] = frame["τ warm"] / frame["τ cold"]
frame = frame.sort_values("gain", ascending=False)
print(f"gains most: {frame.index[0]}; least: {frame.index[-1]}")
frame.round(2)

# %% [markdown]
# The gain is usually small for repetitive texts, which fill a cold store quickly, and large for texts that repeat the
# words of those that were learnt from, such as the code on `town`.
#
# **Predict.** What share of a cycle's time goes into growing the tree and learning? The paper's equation 2 assumes
# none.

# %%
spent = base.cycles.loc[
    base.cycles["cycle"] > 0, ["draft_time", "forward_time", "verify_time", "commit_time", "duration"]
].sum()
own = spent["draft_time"] + spent["verify_time"] + spent["commit_time"]
print(
    f"drafting {spent['draft_time'] / spent['duration']:.1%}, verdict {spent['verify_time'] / spent['duration']:.1%}, "
    f"commit and learning {spent['commit_time'] / spent['duration']:.1%}, together {own / spent['duration']:.1%} of a cycle"
)
figure, axes = view.subplots(2, 1, figsize=(9, 2.8), sharex=True)
for ax, run in zip(axes, (base, alone)):
    view.phases(run, ax=ax)
    ax.legend().remove() if run is alone else ax.set_xlabel("")
plt.show()

# %% [markdown]
# Growing a tree takes a few array operations a level, however large the model. With a target of 2 M parameters they are
# visible, with one of 135 M barely; on a GPU even 8 B may not hide them. The ratio of the two *forward* parts is $s$ of
# the nodes sent and the root; τ must exceed the ratio of whole cycles.

# %% [markdown]
# ## What these numbers cannot say
#
# - Differences of a few hundredths mean nothing: another `learnt` would shift them all.
# - τ is not the speed. UniSpec never pays if a pass over $g + 1$ tokens costs more than τ passes over one;
#   measure that first ([08](08_calibrate.ipynb)). A cycle writes at most $g + 1$ tokens, so if the cost grows
#   in proportion to the tokens, no drafter pays.
# - These are single runs on few short prompts. `specviz replay unispec/table2 --quick` measures the paper's tables with
#   intervals.
#
# ## Five questions
#
# <details><summary>1. A score may answer two questions. Which?</summary>
#
# How likely the whole path is kept; and how likely the node is kept once its parent was.
# </details>
#
# <details><summary>2. What does the cut need of a score?</summary>
#
# Only its order within one tree: any score that rises with acceptance chooses the same nodes.
# </details>
#
# <details><summary>3. Why can a higher threshold not give better nodes with the same store and size?</summary>
#
# Every node of score r or more is in both trees; only the rest of the places is filled differently, with
# lower or equal scores.
# </details>
#
# <details><summary>4. How do a warm and a cold store differ, and which does a larger tree help more?</summary>
#
# A warm store has learnt from other texts. A larger tree helps a cold store only as far as it has candidates
# to fill the tree; on SmolLM2 both gained about the same.
# </details>
#
# <details><summary>5. In Table 2 two of three removals raise τ and lower the speed. How?</summary>
#
# More is accepted, but the larger or fuller tree costs more drafting and pass time than that brings.
# </details>
