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
# ![Acceptance against UniSpec's score, beside the diagonal](stills/07b.png)
#
# *25 minutes, about two of them computing. Needs `torch` (`pip install -e ".[run]"` in a checkout). [07a](07a_unispec.ipynb) comes
# first.*
#
# You will ask of each part of UniSpec what it is worth, and set the answer beside what the paper reports: the two open readings, the
# score, the threshold, the size of the tree, and the ablation of Table 2.
#
# The model is **SmolLM2** (135 million parameters) if `specviz models get smollm2` has downloaded it (93 MB), and otherwise the bundled
# `town` (2 million, a small world). SmolLM2 decodes fewer prompts, so that it ends soon.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import specviz as sv
from specviz import view
from specviz.measure.benches.passes import measure
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
# ## Two readings, decoded
#
# Which reading of the open places is the better *drafter*, only decoding can say. Every run from here on writes the same texts and
# starts each prompt from the same state, `learnt` or nothing, so differences come from the setting alone. The sample is small. The
# interval comes from resampling its prompts, and a difference whose interval holds zero is not one.
#
# **Predict.** Does `score="least"` in place of products change the mean level of the nodes sent? Does it change τ?


# %%
def decode(warm=True, record="judged", **options):
    method = sv.method("unispec", keep="prompt", **options)
    if warm:
        method.load(learnt, model)
    return sv.generate(model, sample, method, record=record, max_new_tokens=new_tokens)


def counts(run):
    """Emitted tokens and cycles of each text."""
    cycles = run.cycles[run.cycles["cycle"] > 0].groupby("prompt")
    return cycles["emitted"].sum().to_numpy(), cycles.size().to_numpy()


def tau(run):
    emitted, cycles = counts(run)
    return emitted.sum() / cycles.sum()


def against(run, other, draws=2000):
    """How much larger the first one's τ is, and where 95 % of resamples of the prompts put that."""
    (e, a), (f, b) = counts(run), counts(other)
    chosen = np.random.default_rng(0).integers(len(e), size=(draws, len(e)))
    change = e[chosen].sum(1) / a[chosen].sum(1) - f[chosen].sum(1) / b[chosen].sum(1)
    low, high = np.quantile(change, [0.025, 0.975])
    return f"{tau(run) - tau(other):+.2f} [{low:+.2f}, {high:+.2f}]"


base = decode()
size = lambda run: run.cycles.loc[run.cycles["cycle"] > 0, "sent"].mean()
deep = lambda run: run.nodes.loc[~run.nodes["status"].isin(["below_budget", "unsent"]), "depth"].mean()
rows = [("product, root dropped", size(base), deep(base), tau(base), "")]
for name, options in {"least": {"score": "least"}, "root kept": {"root_token": "keep"}}.items():
    other = decode(**options)
    rows.append((name, size(other), deep(other), tau(other), against(other, base)))
columns = ["", "nodes sent", "their mean level", "τ", "against the first [95 %]"]
pd.DataFrame(rows, columns=columns).set_index("").round(2)

# %% [markdown]
# Compare the mean levels over all texts; whether either reading drafts better, the intervals say.
#
# ## Does the score predict acceptance? (Figure 3)
#
# A score may be asked two different questions:
#
# - the **path's** score: with what probability is this node kept at all, its ancestors included?
# - the **last step's** probability, score over the parent's score: with what probability is it kept *once its parent was*?
#
# A perfect drafter would lie on the diagonal in both. But the store's probability is from another place.
#
# **Predict.** Will the curves lie above the diagonal (too modest) or below it (too sure)? In which of the two is it
# further off?

# %%
nodes = base.nodes
above = nodes[["prompt", "cycle", "node", "score"]].rename(columns={"node": "parent", "score": "above"})
nodes = nodes.merge(above, how="left", on=["prompt", "cycle", "parent"])
nodes["step"] = nodes["score"] / nodes["above"].fillna(1.0)
tested = nodes[
    nodes["status"].isin(["accepted", "rejected", "unjudged"])
]  # neither held back nor behind the end
judged = tested[tested["status"] != "unjudged"]
edges = np.linspace(0, 1, 11)
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
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
    off = (np.abs(share - mean) * count[full]).sum() / count.sum()
    side = "too sure" if (mean * count[full]).sum() > (share * count[full]).sum() else "too modest"
    print(
        f"{name}: on average {side}, {off:.3f} off the diagonal; mean value {value.mean():.3f}, kept {took.mean():.3f}"
    )
axes[0].set(xlabel="score of the path", ylabel="share")
axes[1].set_xlabel("probability of the last step")
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# The paper's Figure 3 has the same two things in one picture: acceptance that rises with the score, and most of the nodes
# at low scores. Here it is with intervals, by where a node comes from, and beside it how often nodes of each level are
# right.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
view.acceptance_by_score(base, ax=axes[0])
view.right_by(base, ax=axes[1])
plt.show()

# %% [markdown]
# What the cut needs is only the *order*: any score that rises with acceptance chooses the same nodes. How
# good is the order? Of two nodes judged, one kept and one not, how often does the kept one have the higher score?

# %%
yes, no = (judged.loc[judged["status"] == s, "score"].to_numpy() for s in ("accepted", "rejected"))
order = (yes[:, None] > no).mean() + (yes[:, None] == no).mean() / 2
print(f"the kept one scores higher in {order:.0%} of {len(yes)} x {len(no)} pairs; a coin would say 50 %")
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
    change = "" if run is base else against(run, base)
    rows.append((r, tau(run), change, size(run), np.mean(table_12[r])))
columns = ["r", "τ here", "against r = 0.05 [95 %]", "nodes sent", "τ, mean of Table 12"]
pd.DataFrame(rows, columns=columns).set_index("r").round(2)

# %% [markdown]
# Hold the last column against the third: an interval that reaches zero confirms the paper's rise as little as it denies it.
#
# ## How large a tree?
#
# **Predict.** From the smallest $g$ below, 8, to the largest, the pass reads six or twelve times as many nodes. Does τ grow more, or the time of the
# pass? And who gains more from a larger tree, a store that has learnt or an empty one?

# %%
sizes = (8, 24, large)
warm = {g: base if g == 24 else decode(draft_size=g) for g in sizes}
cold = {g: decode(warm=False, record="all", draft_size=g) for g in sizes}
alone = sv.generate(model, sample, method="autoregressive", max_new_tokens=new_tokens)


def speed(run):
    """Tokens a second over autoregressive decoding's, by the median cycle: prefill and interruptions left out."""
    usual = lambda run: run.cycles.loc[run.cycles["cycle"] > 0, "duration"].median()
    return tau(run) * usual(alone) / usual(run)


pass_ms = {
    row["g"] - 1: row["median"] for row in measure(model, [1, *(g + 1 for g in sizes)], context=96, rounds=15)
}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for by_size, style, hue, name in (
    (warm, "o-", "#0072b2", "warm: has learnt from other texts"),
    (cold, "s--", "#e69f00", "cold: empty at every prompt"),
):
    axes[0].plot(sizes, [tau(by_size[g]) for g in sizes], style, color=hue, label=name)
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
        rows.append((g, name, tau(run), run.summary().iloc[0]["A/D"], ratio, tau(run) / ratio, speed(run)))
columns = ["g", "store", "τ", "A/D", "s(g)", "τ/s(g), modelled", "speed, measured"]
pd.DataFrame(rows, columns=columns).set_index(["g", "store"]).round(2)

# %% [markdown]
# On the same store a larger tree holds the smaller one and can only be accepted further, but ever more slowly so; and every
# node costs time once the machine is busy. How many nodes that takes depends on kernel and device: one CPU thread is busy
# long before a GPU, and with one layout of the weights long before it is with another
# ([01](01_autoregressive.ipynb), [08](08_calibrate.ipynb)). The best $g$ is where $\tau(g)/s(g)$ is largest (equation 2): a
# property of machine and kernel. For an A100 the paper finds 110 (Table 13). The
# equation takes every tree for full and drafting for free; a cold store's trees are small, so there it says too little.
#
# The paper starts with an empty store and does not say whether it lives on from prompt to prompt. Texts this short make
# the difference large.
#
# **Predict.** The cold column took three runs. From the record of the run with $g = 24$ alone, could the other two be computed,
# as [05](05_what_if.ipynb) does for chains?

# %%
answer = sv.whatif(cold[24]).unispec(draft_size=list(sizes))
print(answer.why)
answer.table[["draft_size", "tau", "badge"]].assign(rerun=[tau(cold[g]) for g in sizes]).round(3)

# %% [markdown]
# Its own exactly, unless two choices lie nearer than the number format rounds: then the badge asks for a rerun, in bfloat16 often.
# Another one as long as its store is known. The text is the same, but a smaller tree teaches less and a
# larger one more, and from the first cycle that needs a row which this run never read the answer is a model.
#
# ## Ablation (Table 2)
#
# Take away one part at a time. *Without scores*: rank in the row stands for the probability ($2^{-\text{rank}}$) and
# there is no threshold. *Without expansion*: no neighbours, no threshold. *Without calibration*: a fixed large size.
#
# **Predict.** In the paper's Table 2, two of the three removals *raise* τ. Which?

# %%
parts = {
    "UniSpec": (base, 2.58, 1.96),
    f"without calibration (g = {large})": (warm[large], 2.76, 1.61),
    "without scores": (decode(scores=False), 2.62, 1.48),
    "without neighbours, threshold": (decode(neighbours=False, threshold=0), 2.20, 1.66),
}
rows = []
for name, (run, theirs, fast) in parts.items():
    change = "" if run is base else against(run, base)
    costs = np.interp(size(run), list(pass_ms), list(pass_ms.values())) / pass_ms[0]
    rows.append((name, tau(run), change, size(run), tau(run) / costs, theirs, fast))
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
# In Table 2 (RTX 3090, conversation) a fixed size and rank scores both have a *higher* τ and a lower speed. So the gain
# of the score is claimed in time, not in τ. Whether it shows here, read off the intervals. Here every variant but the
# second sends at most the same $g$, so a pass costs about the same in each and τ decides. (The speeds of single runs stand
# in the table above; whatever else the machine did is in them, so here the measured pass is taken at the nodes sent.)
#
# ## Where it fails, and what costs what
#
# **Predict.** Several kinds of work. Which of them gains most from a store that has learnt, and which hardly anything?

# %%
kinds = base.prompts["kind"].to_numpy()
table = {}
for name, run in (("warm", base), ("cold", cold[24])):
    emitted, cycles = counts(run)
    for kind in dict.fromkeys(kinds):
        of = kinds == kind
        table.setdefault(kind, {})[f"τ {name}"] = emitted[of].sum() / cycles[of].sum()
        table[kind]["tokens a text"] = emitted[of].mean()
frame = pd.DataFrame.from_dict(table, orient="index")[["τ warm", "τ cold", "tokens a text"]]
frame.sort_values("τ warm", ascending=False).round(2)

# %% [markdown]
# Look at the two ends, and at the length of their texts: what is written to a pattern comes back to its own words, and a
# short answer ends before it could.
#
# **Predict.** Of a cycle's time, what share goes into growing the tree and learning? The paper's equation 2 takes it to be
# nothing.

# %%
spent = base.cycles.loc[
    base.cycles["cycle"] > 0, ["draft_time", "forward_time", "verify_time", "commit_time", "duration"]
].sum()
own = spent["draft_time"] + spent["verify_time"] + spent["commit_time"]
print(
    f"drafting {spent['draft_time'] / spent['duration']:.1%}, verdict {spent['verify_time'] / spent['duration']:.1%}, "
    f"commit and learning {spent['commit_time'] / spent['duration']:.1%}, together {own / spent['duration']:.1%} of a cycle"
)
figure, axes = plt.subplots(2, 1, figsize=(9, 2.8), sharex=True, layout="constrained")
for ax, run in zip(axes, (base, alone)):
    view.phases(run, ax=ax)
    ax.legend().remove() if run is alone else ax.set_xlabel("")
plt.show()

# %% [markdown]
# Growing a tree is a few array operations a level, however large the model: with a target of 2 M parameters they show, with
# one of 135 M they hardly do, and with one of 8 B they would not. Compare the two *forward* parts: that is $s(g)$, and τ has to be larger.

# %% [markdown]
# ## What these numbers cannot say
#
# - Differences of a few hundredths mean nothing: another `learnt` would shift everything.
# - τ is not the speed. UniSpec never pays where a pass over $g + 1$ tokens costs more than τ passes over one; measure that first
#   ([08](08_calibrate.ipynb)).
# - These are single runs on few short prompts. `specviz replay unispec/table2 --quick` measures the paper's tables with intervals.
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
# Only its order: any score that rises with acceptance chooses the same nodes.
# </details>
#
# <details><summary>3. Why can a higher threshold not give better nodes with the same store and size?</summary>
#
# Every node of score r or more is in both trees; only the rest of the places is filled differently, with lower or equal scores.
# </details>
#
# <details><summary>4. What is the difference of a warm and a cold store, and whom does a larger tree help more?</summary>
#
# A warm store has learnt from other texts. A larger tree helps the warm one more: a cold store has few candidates to fill it.
# </details>
#
# <details><summary>5. In Table 2 removing a part raises τ and lowers the speed. How?</summary>
#
# More or deeper nodes are accepted, and the pass over them costs more than they bring.
# </details>
