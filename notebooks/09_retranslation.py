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
# # 09 · Re-translation: the last answer as the draft of the next
#
# ![A translation that is written again at each word of the source](stills/09.png)
#
# *40 minutes. Needs `torch` and sacrebleu (`pip install -e ".[run,quality,lab]"`).*
#
# Live captions in another language: someone speaks, and every few words the text so far is translated *again*. Zeng,
# Deng, Shu and Wang, *Self-Speculative Biased Decoding for Faster Re-translation* (SSBD), use the previous translation
# as the draft of the next one. No drafter is cheaper. You will
#
# 1. count what re-translation writes twice, and what it takes back while someone reads,
# 2. verify one draft by hand, with the paper's bias β, and find the β from which nothing changes,
# 3. sweep β, mask the unstable end, and change the target language and the model's training,
# 4. examine two pairs of rows in the paper's tables that do not fit each other.
#
# The first section and the last run on a real translator, once `specviz models get bergamot-en-pt` has
# downloaded it (35 MB). The others run on bundled models, for which the right translations are known. `MODEL`
# may also be a GGUF file (`"gguf:PATH"`), which runs on llama.cpp.

# %%
MODEL, PREFIX = "town-translator", "town-translator-prefix"

from itertools import pairwise, zip_longest

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sacrebleu
import torch
from IPython.display import display

import specviz as sv
from specviz import metrics, view
from specviz.replays.translations import streams, texts

torch.set_num_threads(1)
pd.options.display.max_colwidth = 120
if "bergamot-en-pt" in sv.list_models():
    real, into = sv.load("bergamot-en-pt"), "Portuguese"
    sentences = [
        "After the long dry summer the tired farmers finally sold their two oldest cows to a rich man from the city.",
        "The old painter, who never sold a picture, left his small red house to the girl who had fed his cats.",
        "He promised to write every week, but after three months his letters became shorter and then stopped.",
    ]
else:
    real, into = sv.load(MODEL), "German"
    sentences = [text.source for text in texts("de", 60) if 12 <= len(text.source.split()) <= 24][:3]


def translate(mode="ssbd", beta=0.0, k=0, sentence=sentences[0]):
    """A sentence, translated again at each word."""
    heard = sv.streams.fixed_lag(sentence, words=1)
    return sv.generate(real, heard, "retranslate", mode=mode, beta=beta, k=k, target_language=into)


trace = translate(beta=0.2)
trace

# %% [markdown]
# ## Word by word
#
# Somebody speaks. The downloaded translator hears: *After the long dry summer the tired farmers finally sold
# their two oldest cows to a rich man from the city.* English puts adjectives before the noun. Portuguese puts
# most of them after it, and they agree with it. (The bundled one translates another sentence into German,
# which moves its verbs.)
#
# Above, the translator was biased towards its last output. **Predict.** If each update is written from scratch, at
# which words will the reader see something taken back?

# %%
scratch, unbiased, calm = translate("rt"), translate(beta=0.0), trace
sv.flicker([scratch, calm])

# %% [markdown]
# On the left every update is written from scratch. On the right the previous output is the **draft**: one pass of the
# model verifies all of it, with a small bias towards what is already on the screen.

# %%
rows = {}
for name, run in (("from scratch", scratch), ("verified, β = 0", unbiased), ("verified, β = 0.2", calm)):
    row = metrics.by_stream(run).iloc[0]
    passes = int((run.passes["model"] == "target").sum()) - len(run.updates)
    rows[name] = {"passes": passes, "tokens written": row["emitted"], "words taken back": row["erased"]}
    rows[name]["the last text"] = run.updates["text"].iloc[-1]
pd.DataFrame(rows).T

# %% [markdown]
# Verification takes a fraction of the passes. With a bias most sentences are calmer, but not all: it can also delay
# a correction, which then takes back more. The last text may differ. How much bias is best, and how many of the
# last tokens should be hidden? Move the sliders. (A/D is accepted draft tokens over those sent to the model, A/O
# accepted draft tokens over output.) The record of the β = 0 run answers as long as the text stays the same;
# otherwise the sentence is decoded again.

# %%
recorded = {}


def answer(sentence, beta, k):
    if sentence not in recorded:
        recorded[sentence] = sv.whatif(translate(beta=0.0, sentence=sentence))
    reply = recorded[sentence].retranslate(beta=beta, k=k)
    exact = reply.badge == "exact"
    run = reply.trace(0) if exact else translate(beta=beta, k=k, sentence=sentence)
    row = metrics.by_stream(run).iloc[0]
    first = reply.table["updates"].iloc[0]
    how = "read off the record" if exact else f"decoded again: the texts part at update {first}"
    print(f"{how}; {row['erased']:.0f} words taken back, A/D {row['accepted'] / row['drafted']:.2f}")
    display(sv.flicker(run))


controls = ipywidgets.interact(
    answer,
    sentence=sentences,
    beta=ipywidgets.FloatSlider(0.2, min=0, max=0.6, step=0.05, description="β", continuous_update=False),
    k=ipywidgets.IntSlider(0, min=0, max=6, description="hide k", continuous_update=False),
)

# %% [markdown]
# From some β on, nothing is ever taken back, and every first guess stays. Find it; a section below derives
# it.
#
# Here is what is saved against what is lost, over all three sentences. BLEU compares the last texts with those written
# from scratch.

# %%
several = [sv.streams.fixed_lag(sentence, words=1) for sentence in sentences]
base, points = None, []
for beta in (None, 0.0, 0.1, 0.2, 0.3, 0.5):
    mode = "rt" if beta is None else "ssbd"
    run = sv.generate(real, several, "retranslate", mode=mode, beta=beta or 0.0, target_language=into)
    last = run.updates.groupby("prompt")["text"].last().tolist()
    base = base or (run, last)
    kept = sacrebleu.corpus_bleu(last, [base[1]]).score
    points.append((beta, metrics.normalized_erasure(run), metrics.speedup(run, base[0]).median, kept))
figure, ax = view.subplots(figsize=(6.4, 3.6))
for marker, (beta, ne, speed, kept) in zip("Xos^Dv", points):
    label = "from scratch" if beta is None else f"β = {beta:g}"
    dots = ax.scatter(speed, ne, s=90, c=[kept], vmin=0, vmax=100, marker=marker, label=label)
figure.colorbar(dots, label="BLEU of the last texts")
figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
ax.set(xlabel="times the tokens/s of writing from scratch", ylabel="words taken back for each one left")
ax.margins(0.2)
plt.show()

# %% [markdown]
# Lower and further right is better, as long as BLEU stays near 100. From here on the model is the small one.

# %%
model = sv.load(MODEL)
made = [text for text in texts("de", 60) if 12 <= len(text.source.split()) <= 24][
    :10
]  # of one to three sentences
given = streams(made)  # each arrives three words at a time


def decode(mode="ssbd", beta=0.2, of=given, by=model, language="German", **options):
    return sv.generate(by, of, "retranslate", mode=mode, beta=beta, target_language=language, **options)


decode(of=given[:1])

# %% [markdown]
# ## What is wasted
#
# *Re-translation* (RT) forgets everything at each update and translates the source so far from scratch.
#
# **Predict.** Of all the tokens that RT writes during a stream, what share is still there at the end? And what share
# repeats the beginning of the previous output?

# %%
final_guess, again_guess = 0.5, 0.5

# %%
rt = decode("rt")


def shared(one, other):
    """How many tokens two outputs begin with in common."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


written = sum(map(len, rt.updates["ids"]))
last = sum(len(ids) for ids in rt.updates.groupby("prompt")["ids"].last())
again = sum(shared(a, b) for _, stream in rt.updates.groupby("prompt") for a, b in pairwise(stream["ids"]))
print(
    f"{written} tokens written, {last} of them in the last outputs: {last / written:.0%}, your guess {final_guess:.0%}"
)
print(f"written again, the same as before: {again / written:.0%}, your guess {again_guess:.0%}")

first = rt.updates[rt.updates["prompt"] == 0]
again = [0] + [shared(a, b) for a, b in pairwise(first["ids"])]
first[["source", "text"]].assign(tokens=first["ids"].str.len(), again=again).set_index("source")

# %% [markdown]
# Rewriting the same tokens wastes *time*. Replacing tokens disturbs the reader: words that were on the screen are gone.
# Arivazhagan et al. (2020) count them. With $o_j$ the displayed output of update $j$ and $\mathrm{LCP}$ the longest
# common prefix,
#
# $$ \mathrm{NE} = \frac{1}{|o_J|} \sum_{j=1}^{J-1} \bigl( |o_j| - |\mathrm{LCP}(o_j, o_{j+1})| \bigr), $$
#
# is the **normalized erasure**: words taken back for each one left at the end. It counts words of the
# language, not the model's tokens, so that models can be compared. For several texts we sum first and divide
# once.


# %%
def erasure(displays):
    """NE over streams, each a list of displayed texts."""
    cut = metrics.tokenizer(rt.run)
    erased = final = 0
    for shown in displays:
        outputs = [cut(text) for text in shown]
        erased += sum(len(a) - shared(a, b) for a, b in pairwise(outputs))
        final += len(outputs[-1])
    return erased / final


displays = rt.updates.groupby("prompt")["shown_text"].agg(list)
print(f"NE of re-translation: {erasure(displays):.3f}; the package says {metrics.normalized_erasure(rt):.3f}")
print("the paper's (Flores, Tower+ 2B): German 1.17, Chinese 1.72, Japanese 2.06")

# %% [markdown]
# ## One update by hand
#
# In SSBD (section 3.2, Algorithm 1) the previous output $y_0 \dots y_{m-1}$ is the draft. *One* pass over it, after the
# new prompt, gives $p_i$, the model's prediction at each place. The draft is kept up to the first token that the model
# would not write, and decoding continues from there.
#
# With the bias, verification uses (equation 3)
#
# $$ p'_i = (1 - \beta)\, p_i + \beta\, \delta_{y_i}, \qquad y_i \text{ is kept iff it is the argmax of } p'_i. $$
#
# Only $y_i$ gains, so its rival is the likeliest token of $p_i$. For β < 1 it is kept iff
# $(1-\beta) \max p_i \le (1-\beta)\, p_i(y_i) + \beta$, or
#
# $$ \max p_i - p_i(y_i) \;\le\; \frac{\beta}{1-\beta}. $$
#
# **Predict.** The left side is a difference of probabilities. From which β on is *every* token kept, even one
# of probability 0?

# %%
beta_guess = 0.9

# %%
from specviz import Draft
from specviz.models.template import Template

plain = decode(beta=0.0, record="all")
# Of all updates the one whose refused token the model finds likeliest.
refused = plain.nodes[plain.nodes["status"] == "rejected"]
prompt, update = refused.loc[refused["p"].idxmax(), ["prompt", "update"]]
now = plain.updates.set_index(["prompt", "update"]).loc[(prompt, update)]
before = plain.updates.set_index(["prompt", "update"]).loc[(prompt, update - 1)]
print("heard before:", before["source"], "\nsaid before: ", before["text"], "\nheard now:   ", now["source"])

template = Template(model, *sv.method("retranslate").wording())
draft = before["ids"]  # the end token is not part of it
context = model.open([template(now["source"])], len(draft) + 1)
context.prefill()
logits = context.forward(Draft.chain(torch.tensor(draft))).logits[0]  # row i predicts y_i
context.close()
p = logits.float().softmax(-1)[: len(draft)]
rows = pd.DataFrame(
    {
        "draft": [model.decode([t]) for t in draft],
        "p(y)": p[range(len(draft)), draft],
        "likeliest": [model.decode([t]) for t in p.argmax(-1).tolist()],
        "max p": p.amax(-1),
    }
)
rows["max p - p(y)"] = rows["max p"] - rows["p(y)"]
rows["kept if β ≥"] = rows["max p - p(y)"] / (1 + rows["max p - p(y)"])
rows.round(3)

# %% [markdown]
# The last column solves the inequality for β: a token with gap $g$ is kept iff $\beta \ge g/(1+g)$. Verification stops
# at the first row whose threshold exceeds β. Does the package's own loop agree?

# %%
needed = rows["kept if β ≥"].to_numpy()
for beta in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5):
    kept = int(np.argmax(needed > beta)) if (needed > beta).any() else len(needed)
    print(f"β = {beta}: {kept} of {len(draft)} draft tokens kept")
print(f"the run with β = 0 kept {now['accepted']}")
print(f"from β = 0.5 on everything is kept; your guess {beta_guess}")

# The inequality, and where this update's tokens lie.
figure, ax = view.subplots(figsize=(6.4, 3.4))
beta = np.linspace(0, 1, 201)[:-1]
ax.plot(beta, np.minimum(beta / (1 - beta), 1.15), color="#0072b2", label="β / (1 − β)")
ax.axhline(1, color="#888888", lw=1, ls="--")
ax.axvspan(0.5, 1, color="#0072b2", alpha=0.08, lw=0)
ax.plot(needed, rows["max p - p(y)"], "o", color="#d55e00", label="this update's tokens")
ax.set(xlabel="β", ylabel="largest gap max p − p(y) that is kept", ylim=(-0.03, 1.15), xlim=(-0.02, 1))
ax.text(0.75, 0.5, "everything\nis kept", ha="center", color="#0072b2")
ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.9))
plt.show()

# %% [markdown]
# A gap is at most 1, and $\beta/(1-\beta) = 1$ at $\beta = \tfrac12$. From there on no token is ever rejected. That is
# the plateau of the paper's Table 3, whose rows for β = 0.5 and β = 1 are the same.
#
# **Predict.** The previous output ended with an end token. What would happen, at β = 0.5, if it stayed in the draft?

# %%
from specviz.methods.retranslate import Retranslate


class Frozen(Retranslate):
    """The draft keeps its end token."""

    def _draft(self, previous):
        return list(previous)


frozen = sv.generate(model, given[:1], Frozen(beta=0.5))
print("\n".join(frozen.updates["text"]))

# %% [markdown]
# An accepted end token ends the text, so the first translation would never change. The end token is therefore removed
# from the draft, and the model decides anew where to stop.
#
# ## β from 0 to 1
#
# **Predict.** As β grows, three things change: how much of the draft is kept (A/D), how much is taken back (NE), and
# how good the *last* translation is (BLEU). Which change from the first step on, and which only near the middle?

# %%
betas = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
runs = {f"β = {beta:g}": plain if beta == 0 else decode(beta=beta) for beta in betas}
runs = {"RT": rt} | runs | {"CD": decode("cd")}


def bleu(run, of=made):
    """BLEU of the last outputs against up to eight right translations each."""
    last = run.updates.groupby("prompt")["text"].last().tolist()
    columns = list(zip_longest(*(text.references for text in of)))
    return sacrebleu.corpus_bleu(last, columns, tokenize=metrics.tokenizer(run.run).name).score


def figures(run, base=rt, of=made):
    """A row of Table 3; as there, what CD keeps without a look counts as drafted and accepted."""
    table = metrics.by_stream(run)
    kept = table["accepted"] + table["unreviewed"]
    drafted = table["drafted"].fillna(0) + table["unreviewed"]
    return {
        "BLEU": bleu(run, of),
        "NE": metrics.normalized_erasure(run),
        "A/D": kept.sum() / drafted.sum() if drafted.sum() else np.nan,
        "A/O": kept.sum() / table["emitted"].sum() if drafted.sum() else np.nan,
        "speedup": metrics.speedup(run, base).median,
        "with prompts": metrics.speedup(run, base, prefill=True).median,
    }


# Table 3: English to Chinese, Tower+ 2B. NE, A/D, speedup.
table_3 = {
    "RT": (1.72, None, 1.00), "β = 0": (1.53, 0.538, 1.28), "β = 0.1": (1.19, 0.662, 1.40),
    "β = 0.2": (1.01, 0.717, 1.48), "β = 0.3": (0.83, 0.773, 1.58), "β = 0.4": (0.57, 0.850, 1.70),
    "β = 0.5": (0, 1, 2.10), "β = 1": (0, 1, 2.10), "CD": (0, 1, 2.60),
}  # fmt: skip
swept = pd.DataFrame({name: figures(run) for name, run in runs.items()}).T
paper = pd.DataFrame(table_3, index=["NE, paper (zh)", "A/D, paper (zh)", "speedup, paper (zh)"]).T
swept.join(paper).astype(float).round(2)

# %%
names = [f"β = {beta:g}" for beta in betas]
figure, axes = view.subplots(1, 3, figsize=(10.5, 3.2))
for ax, column, hue in zip(axes, ("BLEU", "NE", "speedup"), ("#009e73", "#d55e00", "#0072b2")):
    ax.plot(betas, swept.loc[names, column], "o-", color=hue)
    ax.axhline(swept.loc["RT", column], color="#888888", lw=1, ls="--", label="RT")
    ax.axhline(swept.loc["CD", column], color="#888888", lw=1, ls=":", label="continuous decoding")
    ax.axvspan(0.5, 1, color="#0072b2", alpha=0.06, lw=0)
    ax.set(xlabel="β", title=column, ylim=(0, None))
axes[0].legend(frameon=False, loc="lower left")
plt.show()

# %% [markdown]
# What is kept and what is taken back change from the first step on. Quality holds until the bias outweighs what the
# model *knows*, and then it collapses: an output that can only be continued keeps its first guesses.
#
# **Continuous decoding** (CD) is that limit without the pass: it does not verify the draft at all.
#
# BLEU and NE are the same each time you run this. The speedups are not: each run was timed once.
#
# ## Two rows that do not fit
#
# **RT and β = 0.** In Table 3 their NE is 1.72 and 1.53.
#
# **Predict.** How many of the updates above differ between RT and β = 0? How close must two tokens be for rounding to
# explain a difference, and how often are they that close?

# %%
differ = sum(a != b for a, b in zip(rt.updates["ids"], plain.updates["ids"]))
print(
    f"{differ} of {len(rt.updates)} updates differ; NE {swept.loc['RT', 'NE']:.3f} and {swept.loc['β = 0', 'NE']:.3f}"
)

tops = rt.tops("pred")
pair = tops[tops["place"] < 2].pivot_table(index=["prompt", "update", "cycle"], columns="place", values="p")
ratio = np.log(pair[0] / pair[1].clip(lower=1e-12))  # how far apart two logits are
near = pd.DataFrame(
    {
        "two best logits nearer than": (0.001, 0.01, 0.1, 0.5),
        "tokens": [f"{(ratio < e).mean():.1%}" for e in (0.001, 0.01, 0.1, 0.5)],
        "updates with such a token": [
            f"{(ratio < e).groupby(['prompt', 'update']).any().mean():.1%}" for e in (0.001, 0.01, 0.1, 0.5)
        ],
    }
)
near.set_index("two best logits nearer than")

# %% [markdown]
# Without a bias a draft token is kept iff it is the argmax, and RT writes the argmax. So the texts must be the same,
# update for update, up to rounding. Another order of summation moves a logit by about $10^{-5}$ in float32, and by far
# more in narrow formats. Near-ties exist, and each can change an output. But they fall to either side: a changed output
# may agree with the previous one *less* as well as more. For NE to drop by a ninth, ties would have to favour the draft
# again and again, and that is a bias.
#
# **β = 1 and CD.** They write the same text token for token, yet the paper gives a speedup of 2.10 for one and 2.60 for
# the other.

# %%
same = [a == b for a, b in zip(runs["β = 1"].updates["ids"], runs["CD"].updates["ids"])]
print(f"the same text in {sum(same)} of {len(same)} updates")
rows = []
for name in ("RT", "β = 1", "CD"):
    updates = runs[name].updates
    rows.append((name, 1e3 * updates["duration"].mean(), 1e3 * updates["prefill"].mean()))
clock = pd.DataFrame(
    rows, columns=["", "ms an update, from the first token on", "ms of its prompt"]
).set_index("")
clock["together"] = clock.sum(axis=1)
clock.round(2)

# %% [markdown]
# The clock starts when the prompt has been read, as in the paper. CD emits its draft without a pass, but later tokens
# *attend* to the draft, so its keys and values are needed. CD computes them with the prompt, before the clock starts. β
# = 1 computes the same rows in its verification pass, after the clock has started. The last column is what a person
# waits for.
#
# ## Masks: hide the end, or throw it away
#
# The end of an output is its least stable part. *Mask-k* (Arivazhagan et al.) leaves out the last k tokens until the
# source is complete. The paper separates what is *shown* from what is *drafted*.
#
# **Predict.** With k = 5, how do A/D and A/O change when the draft is masked as well? (One rises, one falls.)

# %%
masked = {"k = 0": runs["β = 0.2"]}
for k in (3, 5):
    masked[f"draft and display, k = {k}"] = decode(k=k, mask="draft")
    masked[f"display, k = {k}"] = decode(k=k)
table = pd.DataFrame({name: figures(run) for name, run in masked.items()}).T
table["lag, words"] = [metrics.lagging(run)["AL"].mean() for run in masked.values()]
table.round(2)

# %% [markdown]
# A mask cuts the doubtful tokens off the draft. The rest is accepted more often (A/D), but there is less of it to
# accept (A/O), and each token that would have been right is written again. Masking the display alone avoids that.
#
# It does not affect the decode at all, so **one** record gives every k exactly. (*k = 0* and the two *display* rows are
# the same decode; their speedups differ by your machine's noise.)

# %%
one = runs["β = 0.2"]


def hidden(k):
    """What a reader sees with the last k tokens masked, update by update."""
    for _, stream in one.updates.groupby("prompt"):
        outputs = stream["ids"].tolist()
        cut = [ids[: max(0, len(ids) - k)] for ids in outputs[:-1]]
        yield [model.decode(ids) for ids in [*cut, outputs[-1]]]


for k in (0, 1, 2, 3, 5, 8):
    measured = f"; decoded with it: {table.loc[f'display, k = {k}', 'NE']:.3f}" if k in (3, 5) else ""
    print(f"k = {k}: NE {erasure(hidden(k)):.3f}{measured}")

# %% [markdown]
# It still costs delay: *lag, words* is the average lagging (Ma et al. 2019).
#
# ## Word order
#
# The same texts into four languages. German moves its verbs to the end, Japanese puts nearly everything before the
# verb, and *Control* is an artificial language: German words in English order.
#
# **Predict.** Rank the four by NE.

# %%
CODES = {"xx": "Control", "de": "German", "zh": "Chinese", "ja": "Japanese"}
which = {text.source for text in made}
there = {name: [t for t in texts(code, 60) if t.source in which] for code, name in CODES.items()}
by_language = {"German": {"rt": rt, "ssbd": runs["β = 0.2"]}}
for name in ("Control", "Chinese", "Japanese"):
    by_language[name] = {
        mode: decode(mode, of=streams(there[name]), language=name) for mode in ("rt", "ssbd")
    }
by_language = {name: by_language[name] for name in CODES.values()}

for name, pair in by_language.items():
    stream = pair["rt"].updates[pair["rt"].updates["prompt"] == 0]
    print(f"{name}\n   " + "\n   ".join(stream["text"].head(4)))

# %%
figure, axes = view.subplots(1, 2, figsize=(9.5, 3.2))
for i, pair in enumerate(by_language.values()):
    for mode, hue, shift in (("rt", "#888888", -0.18), ("ssbd", "#0072b2", 0.18)):
        by = metrics.by_stream(pair[mode])
        ne = metrics.pooled(by["erased"], by["tokens"])
        axes[0].bar(i + shift, ne.median, 0.34, color=hue, label=mode.upper() if i == 0 else None)
        axes[0].plot([i + shift] * 2, [ne.low, ne.high], color="black", lw=1)
    ad = metrics.pooled(by["accepted"], by["drafted"].fillna(0))
    axes[1].bar(i, ad.median, 0.5, color="#0072b2")
    axes[1].plot([i, i], [ad.low, ad.high], color="black", lw=1)
for ax, title in zip(axes, ("NE (less is calmer)", "A/D at β = 0.2")):
    ax.set_xticks(range(len(CODES)), CODES.values())
    ax.set_title(title)
axes[0].legend(frameon=False)
plt.show()
table_2 = {
    "Control": (np.nan,) * 3,
    "German": (1.17, 0.77, 0.790),
    "Chinese": (1.72, 1.01, 0.717),
    "Japanese": (2.06, 1.49, 0.604),
}
rows = {name: (metrics.normalized_erasure(pair["rt"]), metrics.normalized_erasure(pair["ssbd"]), figures(pair["ssbd"], pair["rt"], there[name])["A/D"], *table_2[name]) for name, pair in by_language.items()}  # fmt: skip
columns = ["NE, RT", "NE, SSBD", "A/D", "NE, RT (paper)", "NE, SSBD (paper)", "A/D (paper)"]
pd.DataFrame.from_dict(rows, orient="index", columns=columns).round(2)

# %% [markdown]
# Control and German differ in word order alone; look at the intervals before you believe a difference. NE for
# Chinese and Japanese has other units (characters, if no dictionary splits words). Erasure has two sources:
# words that move because the language orders them differently, and words that the model *guessed* before they
# were said. The next section removes the second.
#
# ## Trained on whole texts or on prefixes
#
# The paper's models were trained on whole sentences. Asked to translate *"Paul's brother does"*, such a model completes
# the thought, and takes it back two words later. The second bundled translator was also trained on texts cut in the
# middle, whose right answer covers only what was said so far. The paper leaves this to future work.
#
# **Predict.** How does that change NE, A/D, and BLEU of the last output?

# %%
careful = sv.load(PREFIX)
for who, name in ((model, "whole"), (careful, "prefixes")):
    shown = decode("rt", of=given[:1], by=who).updates["text"]
    print(f"{name}:\n   " + "\n   ".join(shown.head(3)))
rows = {}
for name in ("Control", "German", "Japanese"):
    of = streams(there[name])
    trained = {mode: decode(mode, of=of, by=careful, language=name) for mode in ("rt", "ssbd")}
    for how, pair in (("whole texts", by_language[name]), ("prefixes", trained)):
        calm = figures(pair["ssbd"], pair["rt"], there[name])
        rows[name, how] = {"NE, RT": metrics.normalized_erasure(pair["rt"])} | calm
pd.DataFrame(rows).T.rename(columns={"NE": "NE, SSBD"}).round(2)

# %% [markdown]
# A model that waits has little to take back, and its drafts hold. Acceptance measured on such a model reflects its
# training as much as SSBD.
#
# ## Where it fails
#
# **Predict.** At how many updates is SSBD *slower* than writing from scratch?

# %%
ssbd, scratch = runs["β = 0.2"].updates, rt.updates
cost = ssbd["duration"] / scratch["duration"]
share = (ssbd["accepted"] / ssbd["drafted"].where(ssbd["drafted"] > 0)).fillna(-0.1)
verified = ssbd["drafted"] > 0
rare = ssbd["accepted"][verified] == 0
print(f"slower at {(cost > 1).mean():.0%} of {len(cost)} updates")
print(
    f"{(~verified).sum()} had no draft yet; of the other {verified.sum()} drafts {rare.sum()} were refused whole"
)
figure, ax = view.subplots(figsize=(6.4, 3.2))
ax.plot(share, cost, "o", color="#0072b2", alpha=0.6)
ax.axhline(1, color="#888888", lw=1, ls="--")
ax.set(
    xlabel="share of the draft that was kept (left: no draft yet)", ylabel="time over RT's", ylim=(0, None)
)
plt.show()

# %% [markdown]
# - **The first update** has no draft. (Both runs do the same there: the scatter on the left is your machine's noise.)
# - **Early disagreement.** A draft whose second token is rejected costs a pass over all of it and saves one
#   token. Expect it if a sentence's beginning depends on its end.
# - **A source that takes words back**, as speech recognition does, changes the prompt in the middle. The cache is valid
#   only up to there, and the draft may be about something that was never said.
# - **A wrong start under a strong bias** stays: the higher β, the longer (from 0.5 on, for ever).
# - **The prompt after the source** is computed again at every update. The cache keeps only the template's beginning and
#   the source's unchanged words (the note to the paper's Table 5). This cell measures it on the small model. Cache reuse
#   cannot be judged on Bergamot, because an encoder-decoder encodes each source again.

# %%
kept = one.updates[["source", "prompt_tokens", "reused"]].head(6).astype({"reused": int})
print(
    f"of all prompt tokens {one.updates['reused'].sum() / one.updates['prompt_tokens'].sum():.0%} came from the cache"
)
kept.set_index("source")

# %% [markdown]
# ## As you speak
#
# Type an English sentence. The translation below it is written again at each word: kept, new, taken back, masked. Move
# β and k while you type. (Without the downloaded translator, use the bundled model's few words: *Paul's brother does
# not write the book and we run fast.*)

# %%
sv.live(real, into, beta=0.2, k=3, source=" ".join(sentences[0].split()[:7]))

# %% [markdown]
# ## Five questions
#
# <details><summary>1. What does re-translation waste?</summary>
#
# At every update it writes again tokens that were there before. If it writes others, the reader sees words
# taken back.
# </details>
#
# <details><summary>2. What is SSBD's draft, and what does its bias do?</summary>
#
# The previous update's output. The bias adds to the draft's token, so it is kept unless another is much
# likelier.
# </details>
#
# <details><summary>3. From which β on is every token kept, and why?</summary>
#
# From 0.5: a gap of probabilities is at most 1, and β/(1 − β) is then at least 1.
# </details>
#
# <details><summary>4. What should β = 0 write, compared with re-translation?</summary>
#
# The same text at every update, up to ties.
# </details>
#
# <details><summary>5. Mask-k on the draft or on the display: which costs speed?</summary>
#
# On the draft: cut tokens must be written again. Hiding them from the reader costs no speed, only delay.
# </details>
