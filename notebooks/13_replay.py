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
# # 13 · Replay: a paper's table beside yours
#
# *30 minutes. It reads recorded results, `data/runs`, and needs no torch; measuring the same on your machine does
# (`pip install -e ".[run,calibrate]"`).*
#
# "And on my laptop?" You will read a printed table beside what was measured for it, find what travels between machines, and
# see two averages name different winners.
#
# The table is UniSpec's Table 3 (Do et al., section 5.2): a drafter that was trained on one language (EAGLE) against
# one that was not trained at all (UniSpec).

# %%
import tempfile
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import specviz as sv
from specviz import metrics
from specviz.replays.recorded import list_recorded

trace = sv.open(sv.example("unispec")).select(prompt=0)
trace

# %% [markdown]
# A cycle of UniSpec on SmolLM2: a tree is drafted, the target accepts a path of it. Does that pay, and what did others print?
#
# ## What is recorded
#
# Each file in `data/runs` is a run or a set of replays, with the processor, the number format, the kernels and the weights
# that it was measured with. *Here* means that machine, until you set `own = True` below.

# %%
recorded = list_recorded()
for name, file in recorded.items():
    found = sv.results(file)
    print(
        f"{name}: {file.stat().st_size // 1024} kB",
        *(found.places() if hasattr(found, "places") else [found]),
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
# $\tau$ is tokens a cycle, the target's own one counted; the speedup is over autoregressive decoding.
#
# Within each of the six columns three methods can be compared two by two: 18 comparisons. A replay asks of each
# whether it goes the same way here.
#
# **Predict.** The paper's target has 8 B parameters and stood on a GPU. Ours has 2.3 M and stands on a processor. How
# many of the 18 will go the paper's way? And how many of the nine speedups will be above 1 here, as seven are there?

# %%
agree_guess, above_guess = 12, 5

# %%
own = False  # True: measure it on this machine, which takes a minute and needs torch
out = Path(tempfile.mkdtemp())
every = sv.results(recorded["replays"])
replayed = {each.table: each for each in every.tables}["unispec/table3"]
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
cells.pivot(index=["metric", "language"], columns="method", values="cell").loc[order]

# %%
speedups = frame[frame["metric"] == "speedup"]
counts = replayed.counts()
judged = counts["agrees"] + counts["against"]
print(f"comparisons the paper's way: your guess {agree_guess}, measured {counts['agrees']} of {judged}")
print(
    f"speedups above 1: your guess {above_guess}, measured {(speedups['measured'] > 1).sum()} of {len(speedups)}"
)
print(f"                  in the paper {(speedups['value'] > 1).sum()}")

# %% [markdown]
# *The order agrees* and *it pays* are different claims, and a table that is reproduced in
# the first sense can fail in the second.
#
# ## What a count of agreements is worth
#
# **Predict.** Somebody replays the table with random numbers. How many of the 18 comparisons go the paper's way?

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
# Half agree for nothing, and the 18 are not 18 observations: a speedup follows its $\tau$, and three pairs of three
# numbers are tied to each other. So look at each, with what is known of its noise. An interval is a 95 % bootstrap over
# the prompts: it says what other prompts of this kind would have given, and nothing about other machines or models.
# A comparison is *clear* where the *difference*, both sides drawn on the same prompts, has a p, corrected for all that were made,
# of at most 0.05. A difference of speeds must also exceed the control's: one decoder that ran twice, under two names.

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
figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
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
# A replay puts it in sentences: each claim of the paper's holds here, fails here, or cannot be judged here. The order,
# whether it pays and how large it is are claims of their own.

# %%
for verdict in replayed.verdicts:
    print(f"{verdict.verdict} ({verdict.question}): {verdict.claim}\n    {verdict.numbers}; {verdict.reason}")

# %% [markdown]
# The same for every claim of the five papers, table by table: how many hold here, fail here, cannot be judged here.

# %%
claims = every.frame()[["table", "holds", "fails", "open", "measured", "cells"]].dropna()
claims[claims[["holds", "fails", "open"]].sum(axis=1) > 0].astype(
    {"holds": int, "fails": int, "open": int}
).set_index("table")

# %% [markdown]
# Back to the one table: read filled dots with their intervals first, then the order of the hollow ones. The distance between
# them compares two models, machines and sets of prompts at once. That is what the set-up is printed for:


# %%
def to_read(frame, columns):
    """A table whose columns of words begin on the left."""
    left = [{"selector": "", "props": "text-align: left; white-space: pre-wrap"}]
    return frame.style.set_table_styles(dict.fromkeys(columns, left)).format(precision=2, escape="html")


print(*replayed.notes, sep="\n")
setup = pd.DataFrame(replayed.setup)
to_read(setup, setup.columns).hide()

# %% [markdown]
# One difference decides: UniSpec's draft size is calibrated on this machine (walkthrough 08), EAGLE's is 24 nodes.
# A processor wants small drafts, so UniSpec's $\tau$ here is that of a small tree: these $\tau$ do not compare drafters at equal
# draft size.
#
# ## What travels
#
# Let a cycle cost $c$ autoregressive steps. It emits $\tau$ tokens, so, the prefill aside,
#
# $$ \text{speedup} \approx \frac{\tau}{c}, \qquad c \approx \frac{\tau}{\text{speedup}}. $$
#
# Both are in the table, so $c$ is too, for the paper's machine and for yours. $\tau$ depends on the model, the drafter
# and the text; $c$ on the machine, the size of the model and the draft, and hardly on the language.
#
# **Predict.** EAGLE-2's $c$ in the paper's three languages: 3.86 / 1.86 is the first. Are the other two equal to it? How
# much larger is $c$ here?

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
# In the paper $c$ is a constant of each method, to a few per cent, over languages in which $\tau$ differs twofold. That
# is a check on the paper which needs no machine at all, and it passes. (Here it may move more: a few short answers,
# with the prefill in the seconds and not in $\tau$.)
#
# So $\tau$ and $c$ can be taken from different places. What would *your* machine have made of the paper's $\tau$? And
# which $\tau$ does a method need here before it pays? As $\tau > c$ is the condition, the table of $c$ is the answer:

# %%
need = pd.DataFrame(
    {
        "τ needed to break even here": mean["here"],
        "best τ printed": wide["tau"].max(axis=1),
        "its speedup with your c": wide["tau"].max(axis=1) / mean["here"],
        "τ needed in the paper": mean["paper"],
    }
)
need.round(2)

# %% [markdown]
# The third column is *modelled*: it puts one machine's cost under another model's text, and holds as far as $c$ is a
# constant. Walkthrough 01 shows where $c$ comes from (what a pass over many tokens costs is also the doing of the kernel;
# and a drafter's layer costs about as much as one of the target's, which has few here); walkthrough 14 decides with it.
#
# ## One table, two averages
#
# A mean of what? Say a run has texts $i = 1, \dots, n$ with $E_i$ tokens in $S_i$ cycles.
#
# $$ \text{pooled: } \frac{\sum_i E_i}{\sum_i S_i} \qquad\qquad \text{per request: } \frac1n \sum_i \frac{E_i}{S_i} $$
#
# EAGLE, Spec-Bench, vLLM and SpecForge pool; SGLang's request statistics are averaged over requests, and AIPerf prints both.
# The pooled figure is itself a mean of the requests' figures, $\sum_i w_i E_i / S_i$ with $w_i = S_i / \sum_j S_j$: each text
# weighs by its *cycles*, so those on which the drafter does badly weigh most. (Per request every text weighs $1/n$.)
#
# With small numbers: two drafters write a text of 5 tokens and one of 18. Drafter A needs 1 and 9 cycles, drafter B 3 and 6.
#
# | | A | B | better |
# |---|---|---|---|
# | pooled | (5 + 18) / (1 + 9) = 2.30 | (5 + 18) / (3 + 6) = 2.56 | B |
# | per request | (5/1 + 18/9) / 2 = 3.50 | (5/3 + 18/6) / 2 = 2.33 | A |
#
# And on real texts? A recorded run decoded English and Japanese texts of four kinds of work with three drafters and without
# any, prompt by prompt in turn, and kept its traces. (With torch you decode them yourself:
# `sv.run(recordings.plan("town-two-averages"), traces=True, out="both")`, `recordings` being in `specviz.replays`.)

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
# Take two of these texts: the English one that EAGLE writes in the fewest cycles, and the Japanese one on which it needs
# the most cycles beyond UniSpec's.

# %%
two = [
    int(rows[rows["language"] == "en"]["eagle"].idxmin()),
    int((rows["eagle"] - rows["unispec"])[rows["language"] == "ja"].idxmax()),
]
rows.loc[two, ["kind", "language", "tokens", "eagle", "unispec"]].rename_axis(columns=None)

# %% [markdown]
# **Predict**, by hand, from the table: $\tau$ of either drafter over these two texts, pooled and per request. Who wins?

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
# Both are right. The drafter that knows English writes a short English answer in one go, which counts half of the mean
# over requests and next to nothing in the pool; the other saves more passes. Which one is *the* number depends on who pays: a
# user who waits for an answer meets requests, and a machine that is rented by the hour meets passes.
#
# `metrics.rosetta` computes every definition from a trace, and says who uses it:

# %%
rosetta = {name: metrics.rosetta(each, plain) for name, each in traces.items()}
values = pd.DataFrame({name: each["value"] for name, each in rosetta.items()})
about = rosetta["eagle"]
told = about[about["quantity"] == "acceptance length"][["who", "average", "formula", "counts"]]
told["formula"] = told["formula"].str.replace(" ", "\N{NO-BREAK SPACE}")
to_read(told.join(values), told.columns)

# %% [markdown]
# (Symbols, of a request: $S$ cycles, $N$ of them with a draft, $D$ drafted tokens, $A$ accepted, $E$ emitted, $O$ tokens of
# the answer; $\Sigma$ over requests. *Whole steps* and *emitted tokens* differ where a text ended in mid-draft.)
#
# **Predict.** These two texts were picked. Of all pairs among the texts, on what share do the two averages name
# different winners, EAGLE or UniSpec? And of random sets of eight texts, the size of a quick test?

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
# It takes no malice: a drafter whose $\tau$ differs from text to text gains by the mean over requests, as
# $E_i / S_i$ is large where $S_i$ is small. (For equal $E_i$ the pooled figure is the harmonic mean of the requests', which
# is never above the arithmetic one.) So a steady drafter should ask to be pooled, and an uneven one not to be.
#
# ## Three drafters, all the best
#
# The same words also *count* different things. An acceptance rate may divide by what was drafted, by what could have been,
# by what was judged, or by the answer; a cycle without a draft may count or not.
#
# **Predict.** Prompt lookup drafts only where the text repeats itself, a few tokens each time; EAGLE and UniSpec send
# trees of 24. By which definitions is prompt lookup the best of the three? By which one is UniSpec?

# %%
values = values.drop(index=["nothing accepted"])  # small is good there
relative = values.div(values.max(axis=1), axis=0)
looks = dict(zip(traces, (("^", "#cc79a7"), ("s", "#009e73"), ("o", "#0072b2"))))
groups = about.loc[values.index, "quantity"]
figure, axes = plt.subplots(1, 3, figsize=(12, 4.6), layout="constrained")
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
values.idxmax(axis=1).groupby(groups, sort=False).value_counts().unstack(fill_value=0)

# %% [markdown]
# One decode of the same texts, which all three left token for token as they were. The rates over *drafted* tokens ask how
# little a drafter wastes, and a tree is made to waste: of 24 nodes one path can be accepted. The lengths "1 + accepted
# a draft" leave out the cycles in which prompt lookup stayed silent; τ counts them. And no acceptance figure knows what
# a cycle costs, as the right-hand panel shows. (It is the least certain of the three: a trace keeps the time of the wall's
# clock, and whatever else the machine does is in it.)
#
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
# The four speedups of the run's own table have intervals, and on a CPU the clock of the process, which stands still while
# others work. Do they agree on a winner, and on whether anything pays?

# %%
speeds = run.table().set_index("method")
ways = ("pooled", "request", "paired", "decode")
said = {}
for name in traces:
    row = speeds.loc[name]
    said[name] = [
        f"{row[f'{way}_speedup']:.2f} [{row[f'{way}_speedup_low']:.2f}, {row[f'{way}_speedup_high']:.2f}]"
        for way in ways
    ]
said["best"] = [speeds.loc[list(traces), f"{way}_speedup"].idxmax() for way in ways]
pd.DataFrame.from_dict(said, orient="index", columns=["pooled", "per request", "paired", "decoding alone"])

# %% [markdown]
# ## What a tool's number leaves out
#
# | number | who | what it does not say |
# |---|---|---|
# | τ, pooled | EAGLE, Spec-Bench | what a cycle costs; how uneven the texts are |
# | 1 + accepted a draft | vLLM, AIPerf, llama.cpp | how often there was no draft at all |
# | accepted of drafted | vLLM, AIPerf, llama.cpp | how many tokens a cycle gave: one sure token in a hundred cycles gives 100 % |
# | accepted of the budget | SGLang | whether the budget was used |
# | accepted a step | gpt-fast, transformers-style (matches a round) | the target's own token: it is τ less one |
# | mean tokens/s | Spec-Bench, EAGLE | that long answers take most of the time |
# | throughput | vLLM, SGLang, SpecForge | what any one user waited |
# | time per input | transformers-style | that a shorter answer is not a faster one |
#
# Other tools' files can be read, too: `sv.read_counts("answers.jsonl", "spec-bench")`, also `"vllm"` and `"aiperf"`.
#
# ## What a replay cannot tell
#
# - That a paper is wrong. Another model, other prompts and another machine are three reasons for another number, and
#   a replay changes all three unless you have the paper's own: `sv.replay("unispec/table3",
#   model="hf:...", draft={"eagle": "hf:...", "eagle3": "hf:..."}, suite="mt-bench", device="cuda")`.
# - That a paper is right. Agreement in order is weak evidence; a half of it is free.
# - How large an effect is *there*, from how large it is here.
# - Anything about rows that nothing here can run. They are listed with the reason, `replayed.missing()`, and not
#   dropped.
#
# What a replay can do is to show which claim survives a change of everything else: here, that a drafter which was
# trained on one language loses its drafts in another.
#
# `sv.compare(MyMethod)` decodes the prompts of a recorded run by a method of yours and sets it beside the recorded
# contenders, prompt by prompt. On another processor, in another number format or with other kernels it says no, and how to
# record the run there.
#
# `specviz replay --all --quick --out DIR` does this for all tables of the five papers, and `specviz bench report DIR
# --html` makes one page of it.
#
# **Questions for you.**
#
# 1. A tool reports an acceptance rate of 0.9 and an acceptance length of 1.1 for the same run. How can both be true?
# 2. All texts have equally many tokens. Can the two averages of τ still name different winners?
# 3. Two intervals overlap by a half, and the comparison is clear. Another pair's hardly touch, and it is not. What do the
#    two pairs differ in?
# 4. Of a hundred comparisons nothing is true. How many will be *clear* all the same, and what follows for a report with
#    three thousand?
#
# <details><summary>Answers</summary>
# (1) Few cycles had a draft, or the drafts were one token long and mostly absent: nine in ten of few. (2) Yes: pooled
# is then the harmonic mean and per request the arithmetic one; τ of 1 and 6 (1.71 and 3.5) against 2 and 2. (3) In how far
# the same prompts are good for both. What the two have in common leaves the difference, and the first pair has much in
# common; in the second one side is good where the other is bad, and their noise adds. (4) About five, so count the clear
# ones for the paper against the clear ones against it, and do not pick one of them; those of one table are not independent
# either.
# </details>
