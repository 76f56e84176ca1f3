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
# # 06 · Training-free drafters
#
# ![The attention mask of a draft tree: each node sees its ancestors and itself](stills/06.png)
#
# *40 minutes, two and a half of them computing (half a minute on `town`). Needs `torch`
# (`pip install -e ".[run,lab]"`).*
#
# A draft model costs training, memory and passes. But the next words may already be known: from the text
# itself, from what the target once predicted but did not write, or from a book. You will
#
# 1. look into the memory of four such drafters, entry by entry,
# 2. see why several guesses are better than one: trees, their arithmetic, and how one pass reads them,
# 3. derive how several candidates are tried under *sampling* without changing the target's law,
# 4. compare what each memory is worth, empty and filled.
#
# The model is SmolLM2 (135 M, 4-bit weights, dequantised) if `specviz models get smollm2` has downloaded it, and the
# bundled `town` (2 M parameters) if not. What a memory is worth depends on the texts: `town`'s short answers hold few
# different words, so a memory fills fast.

# %%
import heapq
import itertools
import tempfile
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import specviz as sv
from specviz import Draft, metrics, view
from specviz.suites import spread, suite

torch.set_num_threads(1)
pd.options.display.max_colwidth = 80
target = "smollm2" if "smollm2" in sv.list_models() else "town"
model = sv.load(target)
if target == "smollm2":
    prompts = [p for p in spread(suite("everyday"), 21) if p["kind"] not in ("translation", "qa")]
    studied, sample = prompts[:5], prompts[5:10]  # five kinds of work each
    new_tokens, small, large, draft_sizes = 24, 16, 16, (4, 16)
else:
    prompts = spread(suite("town"), 63)
    studied, sample = prompts[:14], prompts[49:]  # seven kinds of work each, in English and German
    new_tokens, small, large, draft_sizes = 48, 24, 40, (8, 24, 64)

prompt = next(p for p in sample if p["kind"] == "rag")
trace = sv.generate(model, prompt, method="prompt_lookup", draft_length=8, max_new_tokens=new_tokens)
trace

# %% [markdown]
# ## The text itself: prompt lookup
#
# Saxena (2023): find the text's last $n$ tokens earlier in the text, and copy what followed them there. The longest $n$
# that occurs wins. The memory is the text, and a draft costs one search. Here is each cycle of the run above, computed
# again:


# %%
def word(token):
    """A token as a person reads it, its blanks visible."""
    return model.piece(int(token)).decode("utf8", "backslashreplace").replace("\n", "↵").replace(" ", "␣")


def words(tokens):
    return "".join(word(t) for t in tokens)


def lookup(text, longest=3, most=8):
    """The longest run of last tokens that stood here before, its place from the left, and what followed."""
    for n in range(longest, 0, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                return n, start, text[start + n : start + n + most]
    return 0, None, []


text = list(trace.run["prompts"][0]["tokens"])
drafted = trace.nodes.groupby("cycle")["token"].agg(list)
counted, rows, same = trace.cycles.set_index("cycle"), [], []
for cycle, out in trace.outputs.groupby("cycle"):
    n, place, copied = lookup(text)
    ran = drafted.get(cycle, [])
    same.append(ran == copied[: len(ran)])
    match = ("", "") if place is None else (words(text[-n:]), str(place))
    rows.append((cycle, *match, words(ran), counted.loc[cycle, "accepted"], words(out["token"])))
    text += out["token"].tolist()
print("the run drafted what this search finds:", all(same))
columns = ["cycle", "last tokens", "found at", "copied", "accepted", "written"]
pd.DataFrame(rows, columns=columns).set_index("cycle").head(12)

# %% [markdown]
# In the player, a cycle keeps a prefix of the chain:

# %%
best = trace.cycles.loc[trace.cycles["accepted"].idxmax(), "cycle"]
sv.player(trace, cycle=int(best))

# %% [markdown]
# **Predict.** The sample holds several kinds of work: conversation, summarization, arithmetic, questions about passages
# (rag), code, and with `town` also translation and questions about a short text (qa). On which does copying help most,
# and on which least?

# %%
copied = sv.generate(model, sample, method="prompt_lookup", draft_length=8, max_new_tokens=new_tokens)


def by_kind(run):
    sums = metrics.by_prompt(run).groupby("kind")[["emitted", "steps"]].sum()
    return sums["emitted"] / sums["steps"]


by_kind(copied).sort_values(ascending=False).round(2).to_frame("τ")

# %% [markdown]
# It gains where answer and question share words *in the same order*. In Table 1 of Do et al. (UniSpec) prompt
# lookup reaches its largest τ on summaries and retrieval, 1.64 and 1.60 for Llama-3-8B, and 1.27 to 1.30 on
# questions, conversation and translation.
#
# ## Why a tree
#
# Let the $i$-th of a **chain**'s $n$ tokens be right with probability $a_i$ *if all before it were*. Token $i$ counts
# if it and all before it are right, so on average
#
# $$ \mathbb{E}[\text{accepted}] = \sum_{i=1}^{n} \prod_{j \le i} a_j. $$
#
# In a **tree** node $u$ counts if every node on the path to it is right:
#
# $$ \mathbb{E}[\text{accepted}] = \sum_{u} P(u), \qquad P(u) = \prod_{v\ \text{on the path to}\ u} a_v . $$
#
# Siblings exclude each other, since the target writes one token, so their $a_v$ add up to at most 1. The sum is largest
# if the draft **takes the $n$ nodes with the largest $P(u)$**. A child's $P$ is at most its parent's, so these
# nodes form a tree.
#
# **Predict.** On every level the best guess is right with probability 0.5, the second with 0.2, the third with 0.1, the
# fourth with 0.05. You have 8 nodes. How much further than a chain does the best tree get: 0 %, 25 %, 45 %? And with
# 0.9, 0.05, 0.02, 0.01?


# %%
def best_tree(rates, n):
    """The n rank paths of largest probability, best first: (0, 1) is the second child of the first node."""
    front, chosen = [(-r, (i,)) for i, r in enumerate(rates)], []
    heapq.heapify(front)
    while len(chosen) < n:
        p, path = heapq.heappop(front)
        chosen.append((path, -p))
        for i, r in enumerate(rates):
            heapq.heappush(front, (p * r, (*path, i)))
    return chosen


sizes = np.arange(1, 41)
figure, axes = view.subplots(1, 2, figsize=(10, 3.2))
for ax, rates in zip(axes, ((0.5, 0.2, 0.1, 0.05), (0.9, 0.05, 0.02, 0.01))):
    chain = np.cumsum(rates[0] ** sizes)
    tree = np.cumsum([p for _, p in best_tree(rates, 40)])
    ax.plot(sizes, tree, "-", color="#0072b2", label="best tree")
    ax.plot(sizes, chain, "--", color="#d55e00", label="chain")
    ax.set(xlabel="nodes", ylabel="expected accepted", title=f"rates {rates}", ylim=(0, None))
    print(f"rates {rates}: 8 nodes, chain {chain[7]:.2f}, tree {tree[7]:.2f}, {tree[7] / chain[7] - 1:+.0%}")
    print("   the best tree of 8:", " ".join("".join(map(str, path)) for path, _ in best_tree(rates, 8)))
axes[0].legend(frameon=False)
plt.show()


# %%
def sized(nodes):
    for rates in ((0.5, 0.2, 0.1, 0.05), (0.9, 0.05, 0.02, 0.01)):
        tree = best_tree(rates, nodes)
        widths = np.bincount([len(path) for path, _ in tree])[1:]
        chain = sum(rates[0] ** depth for depth in range(1, nodes + 1))
        print(f"rates {rates}: accepted {sum(p for _, p in tree):.2f}, by a chain {chain:.2f}")
        print(f"   the best tree's nodes by level: {widths.tolist()}")


slider = ipywidgets.IntSlider(8, min=1, max=40, continuous_update=False)
controls = ipywidgets.interact(sized, nodes=slider)

# %% [markdown]
# A chain never gets beyond $a/(1-a)$, however long. A tree pays if the drafter is *unsure*; a confident one
# needs depth. A simulation checks the sums: draw the right rank of each level, and walk.

# %%
rng = np.random.default_rng(0)
rates = np.array([0.5, 0.2, 0.1, 0.05])
paths = {path for path, _ in best_tree(rates, 8)}
walked = []
for _ in range(20_000):
    right, path = rng.choice(5, size=9, p=[*rates, 1 - rates.sum()]), ()
    while (*path, right[len(path)]) in paths:
        path = (*path, right[len(path)])
    walked.append(len(path))
print(
    f"by the formula {sum(p for _, p in best_tree(rates, 8)):.3f}, by {len(walked):,} trials {np.mean(walked):.3f}"
)

# %% [markdown]
# ## How one pass reads a tree
#
# The nodes are laid out one after another, as if they were a text. Two things make them a tree. A node **attends** to
# the text, its ancestors and itself only: that is the attention mask. And its **position** is its depth, not its index.
# Here is a small tree of the target's own likely tokens.

# %%
question = {
    "smollm2": "How does a refrigerator keep food cold?",
    "town": "Translate into German: The doctor bought a red bicycle.",
}[target]
start = list(model.encode([{"role": "user", "content": question}]))
context = model.open([start], 16)
context.prefill()
top = context.forward(Draft.empty()).logits[0][0].topk(3).indices.tolist()
after = context.forward(Draft(np.array(top), np.full(3, -1))).logits[0]
tree = Draft(
    np.array([*top, *after[1].topk(2).indices.tolist(), int(after[2].argmax())]),
    np.array([-1, -1, -1, 0, 0, 1]),
)
names = [f"{i}: {word(t)}" for i, t in enumerate(tree.tokens)]

figure, ax = view.subplots(figsize=(4.6, 3.8))
ax.imshow(tree.mask, cmap="Blues", vmin=0, vmax=1.4)
ax.set_xticks(range(6), names, rotation=40, ha="right", parse_math=False)
ax.set_yticks(range(6), [f"{name}  (position +{d})" for name, d in zip(names, tree.depths)], parse_math=False)
ax.set(xlabel="is seen", ylabel="sees")
for i, j in np.argwhere(tree.mask):
    ax.text(j, i, "●", ha="center", va="center", color="white")
plt.show()

# %% [markdown]
# **Predict.** Suppose the six nodes are read as a plain text, without the mask and with running positions. For which
# is the target's prediction then wrong?

# %%
alone = [context.forward(Draft.chain(tree.tokens[tree.path(i)])).logits[0][-1] for i in range(6)]
right = context.forward(tree).logits[0][1:]
wrong = context.forward(Draft.chain(tree.tokens)).logits[0][1:]  # the same nodes, taken for a text
off = lambda predicted: [f"{float((predicted[i] - alone[i]).abs().max()):.1e}" for i in range(6)]
pd.DataFrame(
    {
        "path": [words(tree.tokens[tree.path(i)]) for i in range(6)],
        "off by, with the mask": off(right),
        "off by, as a text": off(wrong),
        "next token": [word(a.argmax()) for a in alone],
        "next token as a text": [word(w.argmax()) for w in wrong],
    },
    index=names,
)

# %% [markdown]
# "Off by" is the largest difference of a logit from a pass over that path alone. With the mask only rounding
# is left. Read this way, only node 0 is right: all others attend to a token off their path. A sibling that
# leaks in turns *"A or B"* into the text *"A B"*.
#
# ## What the target said before: Token Recycling's matrix
#
# Luo et al. (2025). A pass predicts, after every token it reads, which tokens might follow. One of them is
# written, and the others are usually thrown away. Token Recycling keeps the best $k$ in a matrix $M$ with $V$
# rows (the vocabulary): row $t$ holds those from the last time the target read $t$. A draft is a fixed
# **template** of rank paths, like those above, filled from the matrix: the child of rank $r$ below the token
# $u$ is $M[u, r]$.
#
# **Predict.** A pass over $n$ nodes reads $n + 1$ tokens. Does it change 1 row of the matrix, as many as were
# accepted, or up to $n + 1$?

# %%
folder = Path(tempfile.mkdtemp())
students = {}


def study(name, **options):
    """Let a method decode the studied prompts, save what it remembers, and give the answers."""
    students[name] = sv.method(name, **options)
    answers = sv.generate(model, studied, students[name], max_new_tokens=new_tokens, record=None)
    students[name].save(folder / name, model)
    return answers.texts


def show(memory, tokens):
    """What the store holds after each token, a line each."""
    for t in tokens:
        print(f"{word(t):>10}  ", " · ".join(map(str, memory(t))))


def prepared(name, **options):
    """The method as it was after studying; it starts every prompt from there."""
    method = sv.method(name, keep="prompt", **options)
    method.load(folder / name, model)
    return method


answers = study("token_recycling", draft_size=small)
recycler = prepared("token_recycling", draft_size=small)
run = sv.stream(model, prompt, recycler, max_new_tokens=new_tokens)
for cycle in run:  # into the answer, up to a token that the matrix holds
    if cycle.number and (recycler.store.tokens[recycler.root] >= 0).sum() > 1:
        break
before, root = recycler.store.tokens.copy(), recycler.root
cycle = next(run)
run.close()
read = [root, *map(int, cycle.draft.tokens)]
changed = np.flatnonzero((before != recycler.store.tokens).any(1))
print(
    f"{len(read)} tokens read, {len({*read})} different ones, {len(changed)} rows changed, {len(cycle.tokens)} tokens written"
)
matrix = recycler.store.tokens
show(lambda t: [word(x) for x in matrix[t] if x >= 0], list(dict.fromkeys(read))[:8])

# %% [markdown]
# Rejected nodes teach too: the target has read them. The template is the best tree for rates measured once, on `town`.
# Its paths, and one cycle of the run in the player:

# %%
print("template:", " ".join("".join(map(str, path)) for path in recycler.paths))
recycled = sv.generate(model, prompt, recycler, max_new_tokens=new_tokens)
best = recycled.cycles.loc[recycled.cycles["accepted"].idxmax(), "cycle"]
sv.player(recycled, cycle=int(best))

# %% [markdown]
# By the arithmetic above, τ is one, the target's own token, plus the sum of path probabilities. Measure the rates from
# the matrix and the target's own texts, and compare the sum with a run.
#
# **Predict.** Will the run do better or worse than the sum? The sum uses the matrix as it was after studying, and
# assumes the same rates on every level.

# %%
texts = [t.outputs["token"].tolist() for t in (copied.select(prompt=i) for i in range(len(copied.prompts)))]
matrix = students["token_recycling"].store.tokens
pairs = np.array([(a, b) for t in texts for a, b in itertools.pairwise(t)])
rates = (matrix[pairs[:, 0]] == pairs[:, 1:]).mean(0)
ran = sv.generate(model, sample, prepared("token_recycling", draft_size=small), max_new_tokens=new_tokens)
print("right by rank:", " ".join(f"{r:.3f}" for r in rates), f"  none of them: {1 - rates.sum():.2f}")
template = sum(np.prod([rates[i] for i in path]) for path in recycler.paths)
chain = (rates[0] ** np.arange(1, small + 1)).sum()
print(f"1 + sum over a chain of {small}:      {1 + chain:.2f}")
print(f"1 + sum over the template of {small}: {1 + template:.2f}")
print(f"measured τ of the template:      {metrics.tau(ran):.2f}")
print(f"the run does {'better' if metrics.tau(ran) > 1 + template else 'worse'} than the sum")

# %% [markdown]
# The two need not agree: the matrix learns this text's tokens during decoding, and rates differ from level to level.
#
# ## The target's own guesses: Lookahead
#
# Fu et al. (2024) let the target guess far ahead **in parallel**. Write $W$ arbitrary tokens after the text
# (12 here). Let one pass replace each by the target's prediction after the ones before it, and repeat: a
# *Jacobi iteration* on the equations $y_i = \arg\max p(\cdot \mid x, y_{<i})$.
#
# **Predict.** After how many passes are all 12 tokens right at the latest? And how many do you expect?

# %%
context = model.open([start], 16)
context.prefill()
truth = sv.generate(model, start, method="autoregressive", max_new_tokens=12).outputs["token"].to_numpy()
y = rng.choice(start, 12)
print("passes  right from the left")
for step in range(14):
    final = int(np.append(y[: len(truth)] != truth, True).argmax())
    print(f"{step:6}  {final:2}  {words(y)}")
    if final == len(truth):
        break
    y = context.forward(Draft.chain(y)).logits[0][:-1].argmax(-1).numpy()

# %% [markdown]
# Token 1 depends on the text alone, so one pass makes it right; then token 2, and so on. After at most 12
# passes all are right: at worst, nothing is gained. But the rows contain *runs of tokens* that fit, only in
# the wrong place. Lookahead keeps runs of $N$ tokens, $N$-grams, in a **pool**, at most $G$ for each first
# token, and tries those that begin with the text's last one. One pass does both: it advances the window
# (read and **not judged**: at most half the draft size) and verifies n-grams of the pool.
#
# **Predict.** What share of the nodes sent belongs to the window, and so cannot be accepted in this cycle?

# %%
study("lookahead", draft_size=large)
looker = prepared("lookahead", draft_size=large)
looked = sv.generate(model, prompt, looker, max_new_tokens=new_tokens)
sent = looked.nodes[~looked.nodes["status"].isin(["below_budget", "unsent"])]
print(
    f"window: {sent['source'].eq('window').mean():.0%} of {len(sent)} nodes sent; the pool holds {looker.store.entries} n-grams"
)
begins = [t for t in dict.fromkeys(looked.outputs["token"].tolist()) if len(looker.store.get(t))][:6]
show(lambda t: [words(g) for g in looker.store.get(t)[:4]], begins)

# %% [markdown]
# Each row shows what followed that token, the latest first. In one cycle:

# %%
best = looked.cycles.loc[looked.cycles["accepted"].idxmax(), "cycle"]
sv.player(looked, cycle=int(best))

# %% [markdown]
# ## A book: SPECTRA's datastore
#
# Le et al. (2025) add an outside text to the target's own n-grams. SPECTRA remembers three things: a pool
# keyed by the first token (**one to many**, as Lookahead's), a table from the last two tokens to the next
# (**many to one**, followed repeatedly into a chain), and a **datastore** that is searched for the longest
# run of last tokens. Our book is the target's own answers to the studied prompts; a real one has millions of
# tokens.
#
# **Predict.** Which of the three is accepted most often, per node sent?

# %%
book = folder / "book.txt"
book.write_text("\n".join(answers), encoding="utf8")
study("spectra", draft_size=large, datastore=str(book))
reader = prepared("spectra", draft_size=large, datastore=str(book))
quoted = sv.generate(model, sample, reader, max_new_tokens=new_tokens)
nodes = quoted.nodes[~quoted.nodes["status"].isin(["below_budget", "unsent", "cut"])]
of = nodes.groupby("source", observed=True)["status"]
shares = of.agg(lambda s: s.eq("accepted").mean())
print(f"accepted most often, per node sent: {shares.idxmax()}")
pd.DataFrame(
    {"sent": of.size(), "accepted": of.agg(lambda s: s.eq("accepted").sum()), "share": shares}
).round(3)

# %% [markdown]
# The cycle that kept most: point at a node for its source.

# %%
best = quoted.cycles.loc[quoted.cycles["accepted"].idxmax()]
sv.player(quoted, prompts=[int(best["prompt"])], cycle=int(best["cycle"]))

# %% [markdown]
# Each memory, at the same position in a text:

# %%
run = sv.stream(
    model, next(p for p in sample if p["kind"] == "arithmetic"), reader, max_new_tokens=new_tokens
)
for cycle in run:  # into the middle of an answer, up to a token that the pool holds
    if cycle.number >= 8 and len(reader.store.get(int(reader.text[reader.length - 1]))):
        break
written = reader.text[: reader.length]
length, first, end = reader.external.match(written, 8)
print(f"the text ends in {words(written[-8:])!r}")
print("pool, after the last token:     ", [words(g) for g in reader.store.get(int(written[-1]))[:3]])
print("chain, from the last two:       ", repr(words(reader.store.chain.follow(written[-2:].tolist(), 8))))
hits = reader.external.continuations(written, 8, 6, 12)[:3]
print(
    f"datastore, {words(written[len(written) - length :])!r} {end - first} times:",
    [words(t[t >= 0]) for t in hits],
)
run.close()

# %% [markdown]
# ## Several candidates under sampling: Algorithm 4
#
# In greedy decoding a child is kept if it *is* the target's token. What if the target samples from $p$? The candidates
# $x_1, \dots, x_m$ below a node come from a memory and were not drawn, so there is no $q$. The rule (SpecInfer, Miao et
# al. 2024; Algorithm 4 of Do et al.) tries the distinct ones in turn, each against **what the
# rejected ones left**,
#
# $$ R_i = 1 - \sum_{j<i} p(x_j), \qquad \text{accept } x_i \text{ with probability } \frac{p(x_i)}{R_i}, $$
#
# and if all fail, draw from $p$ without them, divided by $R_{m+1}$.
#
# **It keeps the law.** The chance that $x_i$ is reached is that of rejecting all before it, and there
# $1 - p(x_j)/R_j = R_{j+1}/R_j$, so the product telescopes:
#
# $$ P(x_i) = \prod_{j<i} \frac{R_{j+1}}{R_j} \cdot \frac{p(x_i)}{R_i} = \frac{R_i}{R_1} \cdot \frac{p(x_i)}{R_i} = p(x_i). $$
#
# All fail with probability $R_{m+1}$, and then another token $y$ comes with $p(y)/R_{m+1}$: again $p(y)$. With one
# candidate it is 02's rule for a $q$ that is 1 on the drafted token.
#
# **Predict.** With what probability is some candidate accepted? Does the order of trial change it? Does a candidate
# that occurs twice?


# %%
def try_siblings(p, candidates, rng):
    """One token with law p; also whether it was a candidate."""
    p = p.copy()  # what the rejected ones leave; its sum is R
    for x in candidates:
        if rng.random() * p.sum() < p[x]:
            return x, True
        p[x] = 0
    return rng.choice(len(p), p=p / p.sum()), False


p = np.array([0.40, 0.25, 0.20, 0.10, 0.05])
for candidates in ([1], [1, 3], [3, 1], [1, 3, 0], [1, 1, 3, 1]):
    draws = [try_siblings(p, candidates, rng) for _ in range(8_000)]
    law = np.bincount([x for x, _ in draws], minlength=5) / len(draws)
    print(
        f"candidates {candidates!s:13} accepted {np.mean([ok for _, ok in draws]):.3f}, "
        f"sum of p {p[list(set(candidates))].sum():.2f}, law {law.round(2)}"
    )

# %% [markdown]
# Some candidate is accepted with probability $\sum p(x_i)$, whatever the order. A rejected token has no probability
# left, so a second try always fails. A tree that repeats a token among siblings wastes a node, but keeps the law.
#
# **Predict.** Which of these shortcuts keeps the law? (a) Test every sibling against $p(x_i)$, without dividing by what
# is left. (b) After all fail, draw from $p$ itself. (c) Forget to remove the rejected token, and meet it again. All
# outcomes are added up, so the laws are exact:


# %%
def law_of(p, candidates, divide=True, rest=True, remove=True):
    """The law of the token that comes out: the chance to get here, times what happens here."""
    law, reach, left = np.zeros(len(p)), 1.0, p.copy()
    for x in candidates:
        accept = min(1.0, left[x] / (left.sum() if divide else 1.0))
        law[x] += reach * accept
        reach *= 1 - accept
        if remove:
            left[x] = 0
    last = left if rest else p
    return law + reach * last / last.sum()


cases = {
    "the rule": law_of(p, [1, 3, 1]),
    "(a) not divided": law_of(p, [1, 3, 0], divide=False),
    "(b) at last from p": law_of(p, [1, 3, 0], rest=False),
    "(c) not taken out": law_of(p, [1, 1, 3], remove=False),
}
figure, axes = view.subplots(1, 4, figsize=(11, 2.6), sharey=True)
for ax, (name, shares) in zip(axes, cases.items()):
    ax.bar(np.arange(5) - 0.2, p, 0.4, label="p", color="#0072b2")
    ax.bar(np.arange(5) + 0.2, shares, 0.4, label="came out", color="#e69f00")
    ax.set_title(f"{name}\ntotal variation {np.abs(shares - p).sum() / 2:.3f}", size=9)
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# Only the rule itself keeps the law; all three shortcuts change it. The real decoder records each decision with its
# $u$, $p$ and $R$ (in the column `q`), so all can be checked. The table shows those with the smallest $R$:

# %%
drawn = sv.generate(
    model,
    sample[:4],
    prepared("token_recycling", draft_size=small),
    temperature=1.0,
    seed=1,
    max_new_tokens=new_tokens,
)
judged = drawn.nodes[drawn.nodes["status"].isin(["accepted", "rejected"]) & drawn.nodes["u"].notna()]
again = np.where(judged["u"] * judged["q"] < judged["p"], "accepted", "rejected")
print(f"{len(judged)} decisions, {(again == judged['status'].to_numpy()).sum()} come out as recorded")
judged.nsmallest(8, "q")[["prompt", "cycle", "parent", "text", "p", "q", "u", "status"]].round(3)

# %% [markdown]
# ## All of them, empty and filled
#
# τ against the number of nodes, on the sample. **Cold**: the memory is empty at each prompt. **Warm**: it has studied
# the other prompts. Prompt lookup has nothing to study, and SPECTRA has its book in both cases. UniSpec, the subject of
# [07a](07a_unispec.ipynb), is here for comparison.
#
# **Predict.** Which method gains most from studying? Which is best with few nodes, and which with many?

# %%
names = ("prompt_lookup", "token_recycling", "lookahead", "spectra", "unispec")
hues = dict(zip(names, ("#888888", "#0072b2", "#e69f00", "#009e73", "#d55e00")))
more = {"spectra": {"datastore": str(book)}}
study("unispec", draft_size=small)
warm, cold = {}, {}
for name in names:
    for g in draft_sizes:
        if name == "prompt_lookup":
            warm[name, g] = sv.generate(model, sample, name, draft_length=g, max_new_tokens=new_tokens)
        else:
            method = prepared(name, draft_size=g, **more.get(name, {}))
            warm[name, g] = sv.generate(model, sample, method, max_new_tokens=new_tokens)
    if name != "prompt_lookup":
        cold[name] = sv.generate(
            model,
            sample,
            name,
            draft_size=small,
            keep="prompt",
            max_new_tokens=new_tokens,
            **more.get(name, {}),
        )

figure, ax = view.subplots(figsize=(7.5, 3.6))
for name in names:
    ax.plot(
        draft_sizes, [metrics.tau(warm[name, g]) for g in draft_sizes], "o-", color=hues[name], label=name
    )
    if name in cold:
        ax.plot(small, metrics.tau(cold[name]), "s", mfc="none", color=hues[name])
ax.axhline(1, color="#bbbbbb", lw=1)
ax.set(xlabel="draft size (nodes sent at most)", ylabel="τ", title="filled: warm; hollow: cold")
ax.set_xticks(draft_sizes, draft_sizes)
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# Table 1 of Do et al.: Llama-3-8B on an A100, τ of seven kinds of work, and the average speedup.
table_1 = {
    "prompt_lookup": ([1.29, 1.30, 1.64, 1.27, 1.53, 1.60, 1.40], 1.23),
    "lookahead": ([2.00, 1.88, 1.98, 1.95, 2.01, 2.02, 2.03], 1.36),
    "spectra": ([2.00, 1.87, 1.99, 1.90, 1.94, 2.10, 2.01], 1.42),
    "token_recycling": ([2.58, 2.48, 2.57, 2.45, 2.72, 2.89, 2.69], 1.97),
    "unispec": ([2.91, 2.77, 2.93, 2.72, 3.10, 3.25, 2.94], 2.13),
}
rows = {
    name: {
        "nodes sent": warm[name, small].cycles.query("cycle > 0")["sent"].mean(),
        "τ cold": metrics.tau(cold.get(name, warm[name, small])),
        "τ warm": metrics.tau(warm[name, small]),
        "drafting, ms a cycle": 1e3 * warm[name, small].cycles.query("cycle > 0")["draft_time"].median(),
        "memory, MB": (warm[name, small].run["memory"] or {"end": {"bytes": 0}})["end"]["bytes"] / 1e6,
        "τ in Table 1": np.mean(table_1[name][0]),
        "speedup in Table 1": table_1[name][1],
    }
    for name in names
}
print(f"here at a draft size of {small}; Table 1 with each method's own size")
pd.DataFrame.from_dict(rows, orient="index").round(2)

# %% [markdown]
# So few prompts with short answers cannot establish an order. And τ is not speed:
# [01](01_autoregressive.ipynb) measures what a pass over that many nodes costs on your machine.
#
# | | remembers | key | a draft costs | learns from |
# |---|---|---|---|---|
# | prompt lookup | the text | last 1 to 3 tokens | a search | what is written |
# | Token Recycling | $[V, k]$ successors | last token | filling a template | every node read |
# | Lookahead | $[V, G]$ n-grams | last token | up to half of the budget | its own guesses |
# | SPECTRA | n-grams, a table, a book | last 1, 2, up to 8 tokens | the same, and a search | guesses, text, the book |
# | UniSpec | $[V, k]$ successors with probabilities | last token | growing a tree | every node read |
#
# ## What a memory cannot do
#
# - It knows texts, not their meaning: it drafts no name, sum or rare word that none of them holds.
# - A key of one token forgets the sentence, and a longer key is seldom found.
# - *Other people's* prompts filled a warm memory. If they are private, so is it.
# - A larger tree is accepted a little deeper, and its pass takes longer. The best number depends on machine and
#   kernel ([08](08_calibrate.ipynb)).

# %% [markdown]
# ## Five questions
#
# <details><summary>1. Name the memory of each: prompt lookup, Token Recycling, Lookahead, SPECTRA.</summary>
#
# The text itself; a matrix of each token's likely successors; a pool of n-grams from the target's guesses;
# n-grams, a table and a datastore.
# </details>
#
# <details><summary>2. When does a tree beat a chain of the same size?</summary>
#
# When the drafter is unsure: then second and third guesses are worth more than deep ones.
# </details>
#
# <details><summary>3. What may a node of a tree attend to, and what is its position?</summary>
#
# The text, its ancestors and itself; its position is its depth.
# </details>
#
# <details><summary>4. In sampling, siblings are tried one after another. Against what is each tested?</summary>
#
# Against what the rejected ones left of p: p(x) divided by 1 minus their probabilities.
# </details>
#
# <details><summary>5. Why do rejected nodes teach Token Recycling's matrix, too?</summary>
#
# The target has read them, so its pass holds a prediction after each of them.
# </details>
