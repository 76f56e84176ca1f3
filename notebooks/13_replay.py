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
# # 13 · Replay: a paper's table next to yours
#
# ![A summary decoded by UniSpec: its text, its cycles in time, and the score of each drafted node](stills/13.png)
#
# *30 minutes. Needs plotly, and no torch: it reads the recorded results in `data/runs`. Measuring them on your machine
# needs it (`pip install -e ".[run,calibrate,lab]"`).*
#
# "And on my laptop?" You will
#
# 1. read a printed table next to what was measured for it,
# 2. find which of its numbers carry over to another machine,
# 3. see two averages name different winners.
#
# The table is UniSpec's Table 3 (Do et al., section 5.2). It compares a drafter that was trained on one language
# (EAGLE) with one that was not trained at all (UniSpec).

# %%
import tempfile
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display

import specviz as sv
from specviz import metrics, view
from specviz.replays.recorded import list_recorded

trace = sv.open(sv.example("unispec")).select(prompt=0)
trace

# %% [markdown]
# This is UniSpec on SmolLM2: each cycle drafts a tree, and the target accepts one path of it.
#
# ## What is recorded
#
# Each file in `data/runs` is a run or a set of replays. It names the processor, the number format, the kernels and the
# weights that it was measured with. *Here* means that machine, until you set `own = True` below.

# %%
recorded = list_recorded()
for name, file in recorded.items():
    results = sv.results(file)
    print(
        f"{name}: {file.stat().st_size // 1024} kB",
        *(results.places() if hasattr(results, "places") else [f"{len(results.tables)} tables replayed"]),
    )

# %% [markdown]
# ## What was printed
#
# `sv.published` holds every number of the five papers' tables, as printed; `sv.list_published()` lists the tables.

# %%
printed = sv.published("unispec/table3")
print(printed.attrs["caption"], printed.attrs["place"], printed["model"][0], sep=" · ")
wide = printed.pivot(index="method", columns=["metric", "language"], values="value")
wide[[(m, lang) for m in ("tau", "speedup") for lang in ("EN", "DE", "JA")]]

# %% [markdown]
# $\tau$ is tokens per cycle, including the target's own. The speedup is over autoregressive decoding.
#
# Each of the six columns allows three pairwise comparisons of methods: 18 in all. A replay asks of each whether it has
# the same sign here.
#
# **Predict.** The paper's target has 8 B parameters and ran on a GPU. Ours has 2.3 M and ran on a processor.
# How many of the 18 will agree with the paper? And how many of the nine speedups will be above 1 here? In the
# paper, seven are.

# %%
agree_guess, above_guess = 12, 5

# %%
own = False  # True: measure it on this machine, which takes half a minute to two and needs torch
out = Path(tempfile.mkdtemp())
replayed = next(x for x in sv.results(recorded["replays-toys"]).tables if x.table == "unispec/table3")
if own:
    replayed = sv.replay("unispec/table3", quick=True, out=out / "table3")
frame = replayed.frame()
print(replayed.summary)
print(f"took {replayed.seconds:.0f} s on {replayed.device}")
order = [(metric, language) for metric in ("tau", "speedup") for language in ("EN", "DE", "JA")]
cells = frame.assign(
    cell=[f"{x.printed} → {x.measured:.2f} [{x.low:.2f}, {x.high:.2f}]" for x in frame.itertuples()]
)
print("printed → measured here [95 % interval]")
display(cells.pivot(index=["metric", "language"], columns="method", values="cell").loc[order])

speedups = frame[frame["metric"] == "speedup"]
counts = replayed.counts()
judged = counts["agrees"] + counts["against"]
print(f"comparisons the paper's way: your guess {agree_guess}, measured {counts['agrees']} of {judged}")
print(
    f"speedups above 1: your guess {above_guess}, measured {(speedups['measured'] > 1).sum()} of {len(speedups)}"
)
print(f"                  in the paper {(speedups['value'] > 1).sum()}")

# %% [markdown]
# *The order agrees* and *it pays* are different claims. A table can be reproduced in the first sense and fail in the
# second.
#
# ## What a count of agreements is worth
#
# **Predict.** Suppose the table is replayed with random numbers. How many of the 18 comparisons agree with the paper?

# %%
chance_guess = 9

# %%
rng = np.random.default_rng(0)
columns = [column.to_numpy() for _, column in wide.items()]


def agreeing(theirs, ours):
    """Of all pairs of a column, how many stand in the same order."""
    return sum((a - b) * (c - d) > 0 for (a, c), (b, d) in combinations(list(zip(theirs, ours)), 2))


chance = [sum(agreeing(column, rng.random(3)) for column in columns) for _ in range(5000)]
print(f"random numbers agree in {np.mean(chance):.1f} of 18 (your guess {chance_guess}); ", end="")
print(f"in one of twenty such replays in {np.quantile(chance, 0.95):.0f} or more")

# %% [markdown]
# Half agree by chance. Nor are the 18 independent: a speedup follows its $\tau$, and the three pairs of three numbers
# constrain each other. So look at each comparison with its noise. An interval is a 95 % bootstrap over the prompts. It
# shows what other prompts of this kind would have given, and nothing about other machines or models. A comparison is
# *clear* if the paired *difference* over the same prompts has a p-value of at most 0.05 after correction for all
# comparisons. A difference of speeds must also exceed the control's: one decoder that ran twice, under two names.

# %%
pairs = replayed.compared()
pairs["pair"] = pairs["first"] + " minus " + pairs["second"]
signs = {"agrees": "✓", "against": "✕"}
pairs["cell"] = [
    f"{x.printed:+.2f} → {x.measured:+.2f} {signs.get(x.verdict, '·')}{' clear' if x.clear else ''}".replace(
        "-", "−"
    )
    for x in pairs.itertuples()
]


def tint(cell):
    """Blue goes the paper's way, vermilion the other; what is clear is darker."""
    hue = "0, 114, 178" if "✓" in cell else "213, 94, 0" if "✕" in cell else "128, 128, 128"
    return f"background: rgba({hue}, {0.35 if 'clear' in cell else 0.1}); white-space: nowrap"


print("printed → measured; ✓ the paper's way, ✕ the other way; clear: beyond chance and control")
pairs.pivot(index=["metric", "language"], columns="pair", values="cell").loc[order].style.map(tint)

# %%
names = list(wide.index)
colours = dict(zip(names, ("#0072b2", "#d55e00", "#009e73")))
figure, axes = view.subplots(1, 2, figsize=(11, 3.8))
for ax, metric in zip(axes, ("tau", "speedup")):
    for i, name in enumerate(names):
        rows = frame[(frame["metric"] == metric) & (frame["method"] == name)].set_index("language")
        rows = rows.loc[["EN", "DE", "JA"]]
        x = np.arange(3) + (i - 1) * 0.22
        ax.plot(x - 0.05, rows["value"], "o", mfc="none", color=colours[name], ms=7)
        low, high = rows["measured"] - rows["low"], rows["high"] - rows["measured"]
        ax.errorbar(
            x + 0.05, rows["measured"], [low.clip(0), high.clip(0)], fmt="o", color=colours[name], label=name
        )
    label = {"tau": "τ, tokens a cycle", "speedup": "speedup over autoregressive decoding"}[metric]
    ax.set(ylabel=label, xlabel="language", xticks=range(3), xticklabels=("EN", "DE", "JA"))
    ax.set_ylim(0)
axes[1].axhline(1, color="#888888", lw=1, ls=":")
axes[0].plot([], [], "o", mfc="none", color="black", label="printed")
axes[0].errorbar([], [], [], fmt="o", color="black", label="measured here, 95 %")
axes[0].legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# A replay judges each claim of the paper: it holds here, fails here, or cannot be judged here. The order, whether
# drafting pays, and by how much are separate claims.

# %%
for verdict in replayed.verdicts:
    print(f"{verdict.verdict} ({verdict.question}): {verdict.claim}\n    {verdict.numbers}; {verdict.reason}")

# %% [markdown]
# How many claims hold, fail or cannot be judged here, in the tables of each of the five papers:

# %%
shown = {
    "holds": "hold here", "fails": "fail here", "open": "cannot be judged here",
    "measured": "printed figures measured here", "cells": "printed figures",
}  # fmt: skip
every = sv.results(recorded["replays"]).frame().set_index("table")
every = every[every.index.isin(sv.list_published()["name"])]  # not the points read off drawn curves
claims = every[list(shown)].dropna().astype(int).rename(columns=shown).rename_axis("paper")
claims.groupby(lambda table: table.partition("/")[0], sort=False).sum()

# %% [markdown]
# Back to our table. The distance between a hollow dot and a filled one compares two models, two machines and two sets
# of prompts at once. That is why the set-up is printed:


# %%
def to_read(frame, columns):
    """A table whose columns of words begin on the left."""
    left = [{"selector": "", "props": "text-align: left; white-space: pre-wrap"}]
    return frame.style.set_table_styles(dict.fromkeys(columns, left)).format(precision=2, escape="html")


print(*replayed.notes, sep="\n")
setup = pd.DataFrame(replayed.setup)
to_read(setup, setup.columns).hide()

# %% [markdown]
# One difference matters most. UniSpec's draft size is calibrated here ([08](08_calibrate.ipynb)), and a
# processor wants small drafts; EAGLE's is 24 nodes. So these $\tau$ do not compare drafters at equal draft size.
#
# ## What carries over
#
# Let a cycle cost $C$ autoregressive steps (02's *cost*; its $c$ was one draft token's). It emits $\tau$ tokens, so, the
# prefill aside,
#
# $$ \text{speedup} \approx \frac{\tau}{C}, \qquad C \approx \frac{\tau}{\text{speedup}}. $$
#
# The table has both, so it also gives $C$, for the paper's machine and for ours. $\tau$ depends on the model, the
# drafter and the text. $C$ depends on the machine, the model's size and the draft, and hardly on the language.
#
# **Predict.** In the paper's first language EAGLE-2's $C$ is 3.86 / 1.86. Is it the same in the other two? How much
# larger is $C$ here?

# %%
times_guess = 2.0

# %%
cost = {}
for where, column in (("paper", "value"), ("here", "measured")):
    made = frame.pivot(index=["method", "language"], columns="metric", values=column)
    cost[where] = (made["tau"] / made["speedup"]).unstack()[["EN", "DE", "JA"]]
both = pd.concat(cost, axis=1).round(2)
mean = {where: made.mean(axis=1) for where, made in cost.items()}
print("EAGLE-2 here over the paper: your guess", times_guess, end="; ")
print(f"measured {mean['here']['EAGLE-2'] / mean['paper']['EAGLE-2']:.1f}")
both

# %% [markdown]
# In the paper each method's $C$ is constant to within 5 %, though EAGLE-3's $\tau$ differs 3.5-fold between
# languages. So the table is consistent with itself, and no machine was needed to check that. (Here $C$ varies
# more: the answers are short, and the prefill counts in the seconds but not in $\tau$.)
#
# So $\tau$ and $C$ can come from different sources. What speedup would the paper's $\tau$ give *here*? And
# which $\tau$ does a method need here? Drafting pays if $\tau > C$:

# %%
need = pd.DataFrame(
    {
        "τ needed to break even here": mean["here"],
        "best τ printed": wide["tau"].max(axis=1),
        "its speedup with the C here": wide["tau"].max(axis=1) / mean["here"],
        "τ needed in the paper": mean["paper"],
    }
)
need.round(2)

# %% [markdown]
# The third column is *modelled*: it combines one machine's cost with another model's text, and holds as far as $C$ is
# constant. [01](01_autoregressive.ipynb) shows what a pass costs, the largest part of $C$ (01's own $C$ is another
# number: operations per second), and [14](14_your_model.ipynb) decides with it.
#
# ## One table, two averages
#
# A run has texts $i = 1, \dots, n$ with $E_i$ tokens in $S_i$ cycles. Its mean $\tau$ has two definitions:
#
# $$ \text{pooled: } \frac{\sum_i E_i}{\sum_i S_i} \qquad\qquad \text{per request: } \frac1n \sum_i \frac{E_i}{S_i} $$
#
# EAGLE and Spec-Bench pool, and so do the logs of vLLM and SGLang. What vLLM and SGLang return with each
# request is that request's own figure, which a client averages. AIPerf prints both. The pooled figure is
# itself a weighted mean of the requests' figures, $\sum_i w_i E_i / S_i$ with $w_i = S_i / \sum_j S_j$. Each
# text is weighted by its *cycles*, so long texts and badly drafted ones count most. Per request every text
# has weight $1/n$.
#
# An example: two drafters write a text of 5 tokens and one of 18. Drafter A needs 1 and 9 cycles, drafter B 3 and 6.
#
# | | A | B | better |
# |---|---|---|---|
# | pooled | (5 + 18) / (1 + 9) = 2.30 | (5 + 18) / (3 + 6) = 2.56 | B |
# | per request | (5/1 + 18/9) / 2 = 3.50 | (5/3 + 18/6) / 2 = 2.33 | A |
#
# And on real texts? A recorded run decoded English and Japanese texts of four kinds of work with three drafters and
# without any, and kept its traces.

# %%
file = recorded["town-two-averages"]
run = sv.results(file)
everything = sv.open(file.with_suffix(""))
traces = {name: everything.select(method=name) for name in ("prompt_lookup", "unispec", "eagle")}
plain = everything.select(method="autoregressive")

rows = run.rows().pivot(index=["prompt", "kind", "language", "tokens"], columns="method", values="steps")
rows = rows.reset_index(["kind", "language", "tokens"])  # the four decoded the same texts
E, S = rows["tokens"], rows[list(traces)]
texts = range(len(rows))
print("tokens of each text, and the cycles in which each drafter's decode wrote them:")
rows[["kind", "language", "tokens", *traces]].rename_axis(columns=None)

# %% [markdown]
# Take two of these texts: the English one that EAGLE writes in the fewest cycles, and the Japanese one on which it
# needs the most extra cycles compared with UniSpec.

# %%
two = [
    int(rows[rows["language"] == "en"]["eagle"].idxmin()),
    int((rows["eagle"] - rows["unispec"])[rows["language"] == "ja"].idxmax()),
]
rows.loc[two, ["kind", "language", "tokens", "eagle", "unispec"]].rename_axis(columns=None)

# %% [markdown]
# **Predict** by hand, from the table, $\tau$ of both drafters over these two texts, pooled and per request. Which wins?

# %%
pooled_winner, request_winner = "eagle", "eagle"

# %%
winner = {"pooled": {}, "per request": {}}
for name in ("eagle", "unispec"):
    (e1, e2), (s1, s2) = E[two], S.loc[two, name]
    winner["pooled"][name] = (e1 + e2) / (s1 + s2)
    winner["per request"][name] = (e1 / s1 + e2 / s2) / 2
    print(f"{name:8} pooled ({e1} + {e2}) / ({s1} + {s2}) = {winner['pooled'][name]:.2f}", end="    ")
    print(f"per request ({e1}/{s1} + {e2}/{s2}) / 2 = {winner['per request'][name]:.2f}")
for average, guess in (("pooled", pooled_winner), ("per request", request_winner)):
    print(f"{average}: {max(winner[average], key=winner[average].get)} wins (your guess: {guess})")

# %% [markdown]
# Both are right. The drafter that knows English writes a short English answer in very few cycles. That answer is half
# of the mean over requests and next to nothing in the pool; the other drafter saves more passes. A user who waits for
# an answer cares about requests. Whoever rents the machine by the hour cares about passes.
#
# `metrics.rosetta` computes every definition from a trace, and names who uses it:

# %%
rosetta = {name: metrics.rosetta(each, plain) for name, each in traces.items()}
values = pd.DataFrame({name: each["value"] for name, each in rosetta.items()})
about = rosetta["eagle"]
lengths = about[about["quantity"] == "acceptance length"][["who", "average", "formula", "counts"]]
lengths["formula"] = lengths["formula"].str.replace(" ", "\N{NO-BREAK SPACE}")
to_read(lengths.join(values), lengths.columns)

# %% [markdown]
# (Per request: $S$ cycles, $N$ of them with a draft, $D$ drafted tokens, $A$ accepted, $E$ emitted, $O$ tokens of the
# answer; $\Sigma$ over requests. *Whole steps* and *emitted tokens* differ if a text ends inside a draft.)
#
# **Predict.** These two texts were chosen. For what share of all pairs do the two averages name different winners? And
# for what share of random sets of eight texts, the size of a quick test?

# %%
pairs_guess, eights_guess = 0.05, 0.02


# %%
def flips(chosen, one="eagle", other="unispec"):
    """Whether the two averages of τ name different winners on some texts."""
    e, s = E.to_numpy()[chosen], S.iloc[list(chosen)]
    pooled = e.sum() / s[one].sum() - e.sum() / s[other].sum()
    request = (e / s[one].to_numpy()).mean() - (e / s[other].to_numpy()).mean()
    return pooled * request < -1e-12


share = np.mean([flips(list(pair)) for pair in combinations(range(len(texts)), 2)])
eights = np.mean([flips(rng.choice(len(texts), 8, replace=False)) for _ in range(2000)])
print(f"pairs: your guess {pairs_guess:.0%}, measured {share:.0%}")
print(f"eights: your guess {eights_guess:.0%}, measured {eights:.0%}")

# %% [markdown]
# The mean over requests favours a drafter whose $\tau$ differs from text to text, because $E_i / S_i$ is large where
# $S_i$ is small. (For equal $E_i$ the pooled figure is the harmonic mean of the requests', which never exceeds the
# arithmetic mean.) Pooling favours a steady drafter.
#
# ## Three drafters, two winners
#
# The same words also *count* different things. An acceptance rate may divide by drafted tokens, by the budget, by
# judged tokens, or by the answer. A cycle without a draft may count or not.
#
# **Predict.** Prompt lookup drafts a few tokens, only where the text repeats itself. EAGLE and UniSpec send
# trees of 24. By which definitions is prompt lookup the best of the three? By which is UniSpec? (Each name in
# the figure is defined below it.)

# %%
nothing = values.loc["nothing accepted"]  # small is good there: not in the figure
values = values.drop(index="nothing accepted")
relative = values.div(values.max(axis=1), axis=0)
looks = dict(zip(traces, (("^", "#cc79a7"), ("s", "#009e73"), ("o", "#0072b2"))))
groups = about.loc[values.index, "quantity"]
figure, axes = view.subplots(1, 3, figsize=(12, 4.6))
for ax, (quantity, part) in zip(axes, relative.groupby(groups, sort=False)):
    for y, (_, row) in enumerate(part.iterrows()):
        ax.plot([row.min(), 1], [y, y], color="#dddddd", lw=1, zorder=0)
        for method, x in row.items():
            marker, hue = looks[method]
            ax.plot(x, y, marker, color=hue, ms=10 if x == 1 else 5, clip_on=False)
    ax.set(title=quantity, xlim=(0, 1.06), xlabel="share of the best of the three")
    ax.set_yticks(range(len(part)), part.index, fontsize=8)
    ax.invert_yaxis()
for method, (marker, hue) in looks.items():
    axes[0].plot([], [], marker, color=hue, ms=7, label=method)
figure.legend(loc="outside upper left", ncols=3, frameon=False)
plt.show()
best = values.idxmax(axis=1).groupby(groups, sort=False).value_counts().unstack(fill_value=0)
best = best.reindex(columns=list(traces), fill_value=0).rename_axis(
    columns="definitions by which it is the best"
)
display(best)
print("nothing accepted:", ", ".join(f"{name} {share:.0%}" for name, share in nothing.items()))
defined = about.loc[values.index[groups != "acceptance length"], ["quantity", "formula", "counts"]]
to_read(defined, defined.columns)

# %% [markdown]
# All three wrote the same texts, token for token. By the definitions in the figure UniSpec is never the best: EAGLE
# writes more tokens per cycle, and prompt lookup wastes fewer drafts. By one that the figure leaves out, because small
# is good there, it is: the share of cycles in which nothing was accepted is 54 % for UniSpec, 69 % for EAGLE and 72 %
# for prompt lookup. Rates over *drafted* tokens measure how little a drafter wastes, and a tree wastes by design: only
# one path of its 24 nodes can be accepted. The lengths "1 + accepted a draft" leave out the cycles in which prompt
# lookup drafted nothing; τ counts them. And no acceptance figure includes the cost of a cycle, as the right panel
# shows. (That panel is the least certain: it uses wall-clock times.)
#
# The longest text: τ against the cost of a cycle. Below the solid line, plain decoding is faster. A click opens the decode.

# %%
longest = [run.split()[rows["tokens"].argmax()] for run in (plain, *traces.values())]
view.interactive.why_it_pays(longest, pages="pages/drafters", force=True)

# %% [markdown]
# By hand, for prompt lookup:

# %%
cycles = traces["prompt_lookup"].cycles
cycles = cycles[cycles["cycle"] > 0]  # cycle 0 is the prefill
n = cycles[["emitted", "accepted"]].sum()
n["steps"], n["drafts"] = len(cycles), (cycles["sent"] > 0).sum()
print(f"tau: {n.emitted} / {n.steps} = {n.emitted / n.steps:.2f}")
print(f"a draft (vLLM): 1 + {n.accepted} / {n.drafts} = {1 + n.accepted / n.drafts:.2f}")
print(f"cycles without a draft: {1 - n.drafts / n.steps:.0%}")

# %% [markdown]
# ## What a tool's number leaves out
#
# | number | who | what it does not say |
# |---|---|---|
# | τ, pooled | EAGLE, Spec-Bench | what a cycle costs; how uneven the texts are |
# | 1 + accepted a draft | vLLM, AIPerf, llama.cpp | how often there was no draft at all |
# | accepted / drafted | vLLM, AIPerf, llama.cpp | how many tokens a cycle gave: one sure token in a hundred cycles gives 100 % |
# | accepted / budget | SGLang | whether the budget was used |
# | accepted a step | gpt-fast, transformers-style | the target's own token: it is τ − 1 |
# | mean tokens/s | Spec-Bench, EAGLE | that long answers take most of the time |
# | throughput | vLLM, SGLang, SpecForge | what any one user waited |
# | time per input | transformers-style | that a shorter answer is not a faster one |
#
# ## What a replay cannot show
#
# - That a paper is wrong. Another model, other prompts and another machine are three reasons for another number, and a
#   replay changes all three unless you run the paper's own.
# - That a paper is right. Agreement in order is weak evidence: half of it comes by chance.
# - How large an effect is *there*, from how large it is here.
# - Anything about rows that cannot run here. `replayed.missing()` lists them with the reason.
#
# A replay can show which claims survive a change of everything else. Here one does: a drafter that was trained on one
# language loses its drafts in another. The interval of EAGLE's τ in English lies above those in German and Japanese.
#
# `specviz replay --all --quick --out DIR` replays all tables of the five papers. `sv.compare(MyMethod)` decodes the
# prompts of a recorded run with a method of yours.
#
# ## Five questions
#
# <details><summary>1. Half of a table's comparisons agree with the paper. What does that show?</summary>
#
# Nothing: random numbers agree in half of them, and the comparisons are not independent.
# </details>
#
# <details><summary>2. Which of τ and C can be taken from a paper, and how do you predict your speedup?</summary>
#
# τ, for the same model, drafter and kind of text. C belongs to the machine: measure it, and divide τ by it.
# </details>
#
# <details><summary>3. A tool reports an acceptance rate of 0.9 (accepted of drafted) and a τ of 1.1 for the same run. How can both be true?</summary>
#
# Few cycles had a draft, and nine in ten of the few drafted tokens were accepted.
# </details>
#
# <details><summary>4. All texts have equally many tokens. Can the two averages of τ still name different winners?</summary>
#
# Yes. Pooled is then the harmonic mean, per request the arithmetic one: τ of 1 and 6 (1.71 and 3.5) against 2 and 2.
# </details>
#
# <details><summary>5. A hundred comparisons are tested at p ≤ 0.05 without correction, and no difference is real. How many come out clear?</summary>
#
# About five. That is why p is corrected for all comparisons.
# </details>
