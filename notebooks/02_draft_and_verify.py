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
# *25 minutes, about three of them computing (half a minute on `town`). Needs `torch`; a figure to point at needs plotly
# (`pip install -e ".[run,lab]"`).*
#
# You will run speculative decoding greedily and with sampling, derive the rule that makes the sampled text follow the
# target's law *exactly*, check it by enumeration and by experiment, and see what happens when one line is wrong.
#
# Leviathan, Kalman and Matias (2023) and Chen et al. (2023) found the rule independently.
#
# The target is **SmolLM2**, a real language model of 135 million parameters, if `specviz models get smollm2` has downloaded it
# (93 MB). Its drafter `smollm2-draft` comes with the package: SmolLM2's own first two layers and its 8,192 commonest tokens, trained
# on the target's answers. If SmolLM2 is not there, the pair is `town` and `town-draft`, two small models of a world of their own.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import specviz as sv

torch.set_num_threads(1)
pair = "smollm2" if "smollm2" in sv.list_models() else "town"
target, draft = sv.load(pair, dtype="float32"), sv.load(f"{pair}-draft")  # bfloat16 has a section of its own
if pair == "smollm2":
    draft = draft.on(target)  # it reads and writes by the target's own embedding
prompt = {
    "smollm2": "Why does the moon seem to change its shape during a month?",
    "town": "Translate into German: The teacher gave the child an old book in the library yesterday.",
}[pair]
trace = sv.generate(target, prompt, method="speculative", draft=draft, draft_length=4, max_new_tokens=48)
trace

# %% [markdown]
# ## Greedy: keep what the target would have written
#
# The target reads the whole draft in one pass and so learns its own best token at every place. The longest prefix
# of the draft that equals those tokens is kept; then comes one token of the target's own, a **correction** after a
# mismatch, a **bonus** when the whole draft was right.
#
# **Predict.** Is the text the same as when the target writes alone: always, mostly, or seldom?

# %%
alone = sv.generate(target, prompt, method="autoregressive", max_new_tokens=48)
print("the same text:", alone.text == trace.text, "- badge:", trace.run["exactness"])
print("passes of the target:", len(alone.cycles) - 1, "alone,", len(trace.cycles) - 1, "with drafts")

# %% [markdown]
# Always: a draft token is kept only if it *is* the target's token. One caution, which the badge spells out. *Exact up to ties* means:
# the pass over five tokens and the pass over one run different kernels, which round differently in the
# last digit. Where the target's two best tokens are equal to that digit, either may win. `specviz audit` finds every
# such place and says whether it was a tie, rounding, or a bug. *Exact* alone means that the model computes a row of a pass alike
# whatever shares the pass; a section below compares the two.
#
# Here is one cycle in full. The drafter's token, what the target thought of it, and the verdict:

# %%
nodes = trace.nodes
shown = ["cycle", "text", "q", "p", "rank", "status"]
nodes[nodes["cycle"].isin([1, 2, 3])][shown].round(3)

# %% [markdown]
# ## How long should a draft be?
#
# **Predict.** As the draft length γ grows, which of τ, A/D and tokens/s rises, which falls, which has a maximum?

# %%
rows = []
lengths = [1, 2, 3, 4, 6, 8, 12]
for length in lengths:
    runs = [
        sv.generate(target, prompt, draft=draft, draft_length=length, max_new_tokens=48).summary().iloc[0]
        for _ in range({"smollm2": 2, "town": 3}[pair])
    ]
    rows.append((length, runs[0]["tau"], runs[0]["A/D"], np.median([r["tokens_per_second"] for r in runs])))
rows = np.array(rows)
figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
for ax, column, name in zip(axes, (1, 2, 3), ("τ", "A/D", "tokens/s")):
    ax.plot(rows[:, 0], rows[:, column], "o-", color="#0072b2")
    ax.set(xlabel="draft length γ", title=name)
plt.show()

# %% [markdown]
# τ can only rise, A/D can hardly but fall: later tokens need all earlier ones. Speed has its best somewhere between,
# where one more draft token no longer pays for itself. One prompt on one machine is an anecdote: `specviz bench`
# takes many, in pairs.
#
# ## The same τ from one trace
#
# τ and A/D did not need those runs. The text is the target's own, whatever is drafted, so one run knows the text of all.
# It lacks what the drafter would have said at places where no draft began. The **dense record** adds that by one more
# pass of each model over the finished text. Where the drafter's own token is not the text's, the record follows the
# drafter for a while, to see what it would have gone on to write.

# %%
dense = sv.generate(target, prompt, draft=draft, draft_length=4, max_new_tokens=48, record="dense")
answer = sv.whatif(dense).speculative(draft_length=lengths)
print("τ and A/D as in the runs:", np.allclose(answer.table[["tau", "A/D"]], rows[:, 1:3]))
answer.table[["draft_length", "cycles", "drafted", "accepted", "tau", "A/D", "badge"]].round(3)

# %% [markdown]
# `exact` means that a rerun would have these very cycles. Now let the drafter stop when its largest probability falls
# below a threshold, `stop`. What it writes after its first mistake changes neither the text nor τ, but it costs passes of
# the drafter. Here is another record of the same text, which follows the drafter for one token only.
#
# **Predict.** Which thresholds can it still answer exactly, the low ones or the high ones?

# %%
stops = [0, 0.2, 0.4, 0.6, 0.8]
full = sv.whatif(dense).speculative(draft_length=8, stop=stops)
short = sv.whatif(sv.densify(alone, target, draft, 1)).speculative(draft_length=8, stop=stops)
short.table[["stop", "cycles", "accepted", "drafted_lo", "drafted_hi", "badge"]].assign(
    exact=full.table["drafted"]
)

# %% [markdown]
# Without a threshold (0) each draft has its full length. A strict one stops the drafter soon after its mistake, within
# sight of the record; a lax one lets it run on. Then
# the answer is `bounded`: an interval. The last column is what the longer record knows, and it lies inside.
# [05](05_what_if.ipynb) asks what-ifs of recorded traces.
#
# ## Sampling: the rule
#
# Now the target is to *sample* from its distribution $p$. The drafter samples $x$ from its own, $q$. Accepting $x$
# only if the target would have drawn it is meaningless, since the target's draw is random. We want a rule such that
# the token that comes out has law $p$, whatever $q$ is, and that accepts as often as possible.
#
# Accept $x$ with probability $a(x)$; on rejection draw from some distribution $r$. The law of what comes out is
#
# $$ P(y) = q(y)\,a(y) + \Big(1 - \sum_x q(x)\,a(x)\Big)\, r(y). $$
#
# **First**: the accepted part alone must not exceed $p$, so $q(y)\,a(y) \le p(y)$. With $a \le 1$ the most we can
# take is
#
# $$ a(y) = \min\!\Big(1, \frac{p(y)}{q(y)}\Big), \qquad q(y)\,a(y) = \min(p(y), q(y)). $$
#
# **Then** $r$ must supply what is missing, $p(y) - \min(p(y), q(y)) = \max(0, p(y) - q(y))$:
#
# $$ r(y) = \frac{\max(0, p(y) - q(y))}{\sum_z \max(0, p(z) - q(z))}. $$
#
# And it fits: the probability of a rejection is $1 - \sum_x \min(p(x), q(x)) = \sum_x \max(0, p(x) - q(x))$, exactly
# the sum in the denominator. So $P(y) = \min(p, q) + \max(0, p - q) = p(y)$. The chance of acceptance is
# $\sum_x \min(p(x), q(x)) = 1 - \mathrm{TV}(p, q)$: one minus the total variation distance.
#
# In code it is four lines:

# %%
rng = np.random.default_rng(0)


def accept_or_resample(p, q, rng):
    """One token with law p, given a drafter with law q; also whether the draft was accepted."""
    x = rng.choice(len(q), p=q)
    if rng.random() * q[x] < p[x]:  # u < p(x) / q(x)
        return x, True
    rest = np.maximum(p - q, 0)
    return rng.choice(len(p), p=rest / rest.sum()), False


p = np.array([0.50, 0.25, 0.15, 0.10, 0.00])
q = np.array([0.20, 0.45, 0.05, 0.10, 0.20])

# %% [markdown]
# **Predict.** For these $p$ and $q$, what share of the drafts is accepted? Work it out from the formula, then run.

# %%
guess = 0.5

# %%
draws = [accept_or_resample(p, q, rng) for _ in range(40_000)]
tokens = np.array([t for t, _ in draws])
law = np.bincount(tokens, minlength=len(p)) / len(tokens)
print(
    f"accepted {np.mean([ok for _, ok in draws]):.3f}, sum of minima {np.minimum(p, q).sum():.3f}, guess {guess}"
)
print("p          ", p)
print("came out   ", law.round(3))

# %% [markdown]
# An experiment shows agreement to a few thousandths. The law itself can be computed: sum over every draft token and
# every outcome.


# %%
def law_of(p, q, accept, residual):
    """The law of the token that comes out, by enumeration."""
    kept = q * accept
    return kept + (1 - kept.sum()) * residual


right = law_of(p, q, np.minimum(1, p / q), np.maximum(p - q, 0) / np.maximum(p - q, 0).sum())
print("largest error of the rule", np.abs(right - p).max())

# %% [markdown]
# **Predict.** Which of these plausible shortcuts keep the law? (a) After a rejection, draw from $p$ itself. (b) Accept
# whenever $p(x) \ge q(x)$, else reject. (c) Let the drafter take its argmax, and use its softmax as $q$.

# %%
greedy = np.eye(len(q))[q.argmax()]
residual = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
wrong = {
    "(a) resample from p": law_of(p, q, np.minimum(1, p / q), p),
    "(b) accept iff p >= q": law_of(p, q, (p >= q).astype(float), residual),
    "(c) argmax draft, q from its softmax": law_of(p, greedy, np.minimum(1, p / q), residual),
}
figure, axes = plt.subplots(1, 3, figsize=(10, 2.6), sharey=True, layout="constrained")
for ax, (name, found) in zip(axes, wrong.items()):
    ax.bar(np.arange(5) - 0.2, p, 0.4, label="p", color="#0072b2")
    ax.bar(np.arange(5) + 0.2, found, 0.4, label="came out", color="#e69f00")
    ax.set_title(f"{name}\ntotal variation {np.abs(found - p).sum() / 2:.3f}", size=9)
axes[0].legend(frameon=False)
plt.show()

# %% [markdown]
# None of them. (c) is no straw man: it has shipped in real libraries. $q$ must be the distribution that the draft was
# *really* drawn from, after temperature, top-k and top-p. If the draft is an argmax, then $q$ is 1 on that token, and
# the rule accepts with probability $p(x)$.
#
# ## The same rule on the real pair
#
# The record keeps $p$, $q$ and the uniform number $u$ of every decision, so each can be made again.

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
seeds = {"smollm2": 4, "town": 6}[pair]
for temperature in (0.3, 0.7, 1.0, 1.5):
    runs = [
        sv.generate(target, prompt, draft=draft, temperature=temperature, seed=seed, max_new_tokens=48)
        for seed in range(seeds)
    ]
    rates = [run.summary().iloc[0]["A/D"] for run in runs]
    print(
        f"temperature {temperature:.1f}: A/D {np.mean(rates):.2f} ± {np.std(rates, ddof=1) / seeds**0.5:.2f}"
    )

# %% [markdown]
# Both distributions flatten with temperature. A flat target forgives a draft that is not its top token, but a flat
# drafter also draws tokens that the target hardly allows; which wins depends on the pair, and a few short runs are not
# many.
#
# ## Exact up to ties, and exact
#
# In float32 a tie is rare. In bfloat16, where a number has eight bits, it is not: a pass over five tokens adds in another
# order than a pass over one, and rounds to other neighbours. The same forty prompts, twice: with the passes as they come, and
# with an **invariant** model, which computes each row of a pass in the one order in which it would be computed alone. Ties are
# counted, not timed, so `town` decodes these in any case: four runs over forty texts end within seconds.
#
# **Predict.** How many of forty greedy texts of 64 tokens are not those of autoregressive decoding, with each?

# %%
parted_guess = {"as they come": 4, "invariant": 1}

# %%


ordinary = sv.load("town", dtype="bfloat16", invariant=False)
try:
    invariant = sv.load("town", dtype="bfloat16", invariant=True)
except sv.ModelError as why:  # whether torch's products keep their order is tried on each machine
    print(why)
    invariant = ordinary
models = {"as they come": ordinary, "invariant": invariant}
forty = [entry["turns"][0] for entry in sv.suite("town")[:40]]
runs = {}
for name, model in models.items():
    options = {"max_new_tokens": 64, "record": None}
    runs[name] = [sv.generate(model, forty, method, **options) for method in ("autoregressive", "unispec")]
    own, drafted = runs[name]
    parted = sum(a != b for a, b in zip(own.texts, drafted.texts))
    print(
        f"{name}: labelled {drafted.run['exactness']}, {parted} of 40 texts part (your guess {parted_guess[name]})"
    )

# %% [markdown]
# Where the first of them parts, how near were the two tokens? Below, the answer up to there is read in passes over one token
# each, as autoregressive decoding does, over two, and so on up to nine. The tokens are the same; only the passes differ.

# %%
written = [
    [trace.outputs.loc[trace.outputs["prompt"] == i, "token"].tolist() for trace in runs["as they come"]]
    for i in range(40)
]
pairs = [(i, *both) for i, both in enumerate(written) if both[0] != both[1]]
if pairs:
    i, own, drafted = pairs[0]
    at = next(n for n, (a, b) in enumerate(zip(own, drafted)) if a != b)
    first, second = own[at], drafted[at]
else:  # no text parts on this machine: any place shows the rounding
    i, own, at = 0, written[0][0], 8
    first, second = own[at], own[at + 1]
*start, last = ordinary.encode(forty[i])
after = [last, *own[:at]]


def margin(model, size):
    """How far the first token's score lies above the second's, after passes over so many tokens each."""
    context = model.open([start], len(after))
    context.prefill()
    for begin in range(0, len(after), size):
        root, *others = after[begin : begin + size]
        context.extend([root])
        scores = context.forward(sv.Draft.chain(others) if others else sv.Draft.empty()).logits[0][-1]
        context.commit(range(len(others)))
    return float(scores[first] - scores[second])


print(f"prompt {i}, place {at}: {ordinary.decode([first])!r} or {ordinary.decode([second])!r}")
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
for (name, model), marker in zip(models.items(), "os"):
    axes.plot(range(1, 10), [margin(model, size) for size in range(1, 10)], marker + "-", label=name)
axes.axhline(0, ls="--", color="#888888")
axes.set(
    xlabel="tokens in each pass",
    ylabel="difference of the two scores",
    title="above 0 the one is written, below it the other",
)
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# One line wanders with the number of tokens that happen to share a pass, and at zero the text turns. The other is flat: the
# same bits in every pass, so no draft can touch the text, and the label says *exact*. It costs about
# a tenth of a pass of SmolLM2, and more of this small model's (`specviz bench passes` measures it). Neither text is the better one: both tokens were
# as good as equal. What is lost without it is that a run can be repeated by another method, draft size or batch.
#
# ## Why it pays
#
# Two numbers decide. **τ** is what a cycle writes. Its **cost** is the time of the cycle, the drafter's passes and the target's, in
# units of a plain pass, the mean cycle of autoregressive decoding. Their quotient is the speedup:
#
# $$ \text{speedup} = \frac{\tau}{\text{cost of a cycle}}. $$
#
# So a method is a point in a plane, and drafting pays above the line τ = cost. Below are four drafters of one target, each with a
# small draft: the draft model; **EAGLE**, one layer that goes on from the target's own states
# ([07](07_unispec.ipynb) has more on it); SmolLM2's heads for **blockwise** decoding, or UniSpec on `town`; and **prompt lookup**,
# which copies from the text and costs next to nothing.
#
# **Predict.** Which one has the largest τ? Which has the cheapest cycle? Is a method with the larger τ always the faster one?

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
seven = list(sv.suite({"smollm2": "everyday", "town": "town"}[pair], each=1))  # one of each kind of work
seven = [{"prompt": entry["turns"][0]} for entry in seven]
length = {"smollm2": 32, "town": 48}[pair]
plain = sv.generate(target, seven, "autoregressive", max_new_tokens=length)
methods = {way: sv.generate(target, seven, way, max_new_tokens=length, **how) for way, how in ways.items()}
table = sv.metrics.break_even({"plain": plain, **methods}, baseline="plain").set_index("name")
print("every text is the target's own:", all(run.texts == plain.texts for run in methods.values()))
table[["exactness", "tau", "cost", "forward", "draft_cost", "rest", "speedup"]].round(2)

# %% [markdown]
# The cost in its parts: `forward` is the target's pass, `draft_cost` the drafter's, `rest` judging and committing. Now the same as a
# picture. The black line is break-even, each dotted line one speedup. The bars are 95 % intervals over the seven prompts, each small
# dot is one prompt. Click on a method: its trace opens in the player, from the folder `why-it-pays`.

# %%
runs = [plain, *methods.values()]
try:
    shown = sv.view.interactive.why_it_pays(runs, pages="why-it-pays", force=True)
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
# A point moves up when the drafter guesses better, and to the left when its guesses are cheaper or the target reads several rows at
# the price of one. The second is not in the drafter's hands: it is $s(g)$ of [01](01_autoregressive.ipynb), a matter of the machine.
# So a method with the larger τ can be the slower one, and the same method can lie on either side of the line on two machines. These
# are times of single runs, one after the other; `specviz bench drafters` lets the methods take turns and tries several draft sizes.
#
# ## What this method cannot do
#
# - It cannot make the target's text better, nor the law other than the target's. If that is wanted, a *lossy* method
#   such as BiLD ([03](03_bild.ipynb)) trades exactness for speed.
# - A drafter that is wrong costs more than none: τ near 1 and the draft's passes on top.
# - The two must share a vocabulary. A draft with shifted ids is not wrong, only never accepted.
