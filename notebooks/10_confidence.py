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
# # 10 · How sure is the drafter?
#
# ![A decode by CM-ASD: tokens, cycles, and the weighted confidence of each draft token](stills/10.png)
#
# *30 minutes, about four of them computing (two without SmolLM2's download). Needs `torch`, sacrebleu, plotly
# (`pip install -e ".[run,quality,lab]"`).*
#
# A drafter knows something about its own drafts: it writes some tokens with a probability of 0.99 and others with 0.3.
# Sen, Dasgupta and Waghela (2025), *Confidence-Modulated Speculative Decoding for Large Language Models* (CM-ASD), let
# that certainty control two things: how many tokens go to the target, and how strictly they are judged there. You will
#
# 1. compute three signals, and measure which one separates accepted tokens from rejected ones,
# 2. count what an adaptive window costs and what it saves,
# 3. run a formula and a sentence that contradict each other,
# 4. plot speed against quality, and compare the paper's tables with its text.
#
# The pair is **SmolLM2** and `smollm2-draft` if `specviz models get smollm2` has downloaded it (dequantised,
# 4-bit). Otherwise it is a pair of bundled translators from German into English, with one decoder layer in
# the drafter and eight in the target. Speed against quality is always measured on the translators, because
# their texts have known answers.

# %%
import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import specviz as sv
from specviz import metrics, view
from specviz.measure.pairs import suite
from specviz.methods import signals

torch.set_num_threads(1)
pair = "smollm2" if "smollm2" in sv.list_models() else "town"
translations = suite("de-en", 120)  # German with several right English answers each
if pair == "smollm2":
    target = sv.load("smollm2", dtype="float32")  # in bfloat16 too many choices are ties for a what-if
    drafter = sv.load("smollm2-draft").on(target)  # it reads and writes by the target's own embedding
    texts = [{"prompt": entry["turns"][0]} for entry in sv.suite("everyday", each=2)]
    few, length = texts[:4], 32
else:
    target, drafter = sv.load("town-t5"), sv.load("town-t5-small")
    texts = translations
    few, length = texts[:40], 64


def decode(method="cm_asd", of=few, **options):
    options = {"batch": 4} | options  # counts are looked at, not times
    return sv.generate(target, of, method, draft=drafter, max_new_tokens=length, **options)


trace = decode(of=texts[3])
trace

# %% [markdown]
# ## Three signals
#
# Let $q$ be the drafter's distribution at one place, $H(q)$ its entropy, $z$ its logits, and (1), (2) its two likeliest
# tokens; σ is the logistic function. Section III.B (1) defines the *entropy*, *logit margin* and *softmax margin*
# signals,
#
# $$ \tilde C^{ent} = \frac{H(q)}{\log |V|}, \qquad
#    \tilde C^{margin} = \sigma\bigl(\beta\,(z^{(1)} - z^{(2)})\bigr), \qquad
#    \tilde C^{soft} = \frac{q^{(1)} - q^{(2)}}{1 - 1/|V|}, $$
#
# and the ensemble $C = \lambda_1 \tilde C^{ent} + \lambda_2 \tilde C^{margin} + \lambda_3 \tilde C^{soft}$
# with weights that sum to 1. (β is 1 here. Below, the paper's β is also a number of ranks, our `top_beta`.)
#
# **Predict** each signal for a drafter that (a) finds all tokens equally likely; (b) is torn between two words and
# rules out all others; (c) has no doubt at all. Which of the three signals does not belong in an average of
# *confidences*?

# %%
V = target.vocabulary  # tokens
cases = torch.zeros(3, V)
cases[1, :2] = 100
cases[2, 0] = 100


def by_hand(z):
    """The three formulas, as they are printed (β = 1)."""
    q, (first, second) = z.softmax(-1), z.topk(2).values
    entropy = -torch.xlogy(q, q).sum()
    return entropy / np.log(V), torch.sigmoid(first - second), (q.max() - q.topk(2).values[1]) / (1 - 1 / V)


table = pd.DataFrame(
    [[float(x) for x in by_hand(z)] for z in cases.double()], columns=["entropy", "margin", "softmax"]
)
table.index = ["(a) no idea", "(b) torn between two", "(c) no doubt"]
for name, weights in (("C as written", (1, 1, 1)), ("C with 1 − entropy", (-1, 1, 1))):
    table[name] = (table[["entropy", "margin", "softmax"]] @ weights + (weights[0] < 0)) / 3
print(f"two words: an entropy of log 2, {np.log(2) / np.log(V):.0%} of log |V|")
table.round(4)

# %% [markdown]
# - **Entropy rises with doubt.** The paper says so ("a lower value ... implying higher confidence"), and then adds it
#   to two signals that fall with doubt. The average needs $1 - H/\log|V|$: our default, `entropy="complement"`. The
#   formula is `entropy="as_written"`.
# - **The logit margin starts at one half.** $z^{(1)} \ge z^{(2)}$, so the sigmoid of a drafter without any idea is
#   $\sigma(0) = \tfrac12$, not 0.
# - **The softmax margin can exceed 1.** A sure drafter has $q^{(1)} - q^{(2)} = 1$, and dividing by $1 - 1/|V|$ gives
#   $|V|/(|V|-1)$. We clip it at 1.
#
# Row (b) shows how the signals differ. A coin toss between two words has an entropy of $\log 2$, a small part of
# $\log |V|$. Entropy calls that nearly sure; the margins do not.

# %%
ours = {
    "entropy": signals.entropy_complement,
    "margin": signals.logit_margin_sigmoid,
    "softmax": signals.softmax_margin,
}
print({name: [round(float(x), 4) for x in signal(cases)] for name, signal in ours.items()})

# %% [markdown]
# ## Which one predicts acceptance?
#
# SpecDec (Xia et al. 2023) always sends the same number of tokens, here 10, so no signal has selected what is judged.
# Each judged token has the drafter's signals and a verdict. The **AUROC** is the share of pairs (one accepted, one
# rejected token) in which the accepted one has the larger signal; one half is guessing. Two outcomes are
# predicted: that the method *accepts* the token (here: among the target's three likeliest, with a log-probability at most 1
# below the first), and that it is the target's *first choice*.
#
# **Predict** the best of: the largest probability, $q^{(1)}$ (called `confidence` below); 1 − entropy; logit margin;
# softmax margin; the variance of the logits, scaled to 0 … 1; and the *ensemble* of the three with equal weights. How
# far is it ahead of the best single signal?

# %%
best_guess, lead_guess = "ensemble", 0.02

# %%
fixed = decode("specdec", of=texts)
judged = metrics.signals(fixed)
figure, axes = view.subplots(2, 2, figsize=(14, 7), height_ratios=(1, 2))
for column, outcome in zip(axes.T, ("accepted", "first")):
    view.auroc(fixed, ax=column[0], outcome=outcome)
    view.reliability(fixed, ax=column[1], outcome=outcome)
plt.show()

for outcome in ("accepted", "first"):
    area = metrics.auroc(judged, outcome).set_index("signal")["auroc"]
    single = area.drop("ensemble").idxmax()
    lead = area["ensemble"] - area[single]
    print(
        f"{outcome:9s} best single signal {single} {area[single]:.3f}, ensemble {area['ensemble']:.3f}, lead {lead:+.3f}"
    )
print(f"your guess: {best_guess}, lead {lead_guess:+.3f}")
written = metrics.auroc(metrics.signals(fixed, entropy="as_written")).set_index("signal")["auroc"]
print(f"as written: entropy {written['entropy']:.3f}, the ensemble with it {written['ensemble']:.3f}")

# %% [markdown]
# The ensemble averages signals of one distribution: compare the printed lead with the difference between any
# two bars. The plain largest probability is not included. (The paper reports a gain for the ensemble, without
# an interval.)
#
# The best signal may depend on the outcome. A *lenient* rule often accepts either of two good words (row (b) above),
# and entropy does not penalise that doubt. As the target's first choice each of them is right half the time.
#
# The *variance* of the logits does not measure confidence: if its AUROC is below one half, a larger variance goes with
# rejection. Entropy as written has an AUROC of one minus its complement's; in the ensemble the two margins
# outvote it.
#
# The curves show calibration, which AUROC does not: a signal may rank well and still be wrong about its level. Only the
# largest probability is a probability.
#
# ## The window
#
# Section III.B (b) maps the mean confidence of the tokens after the $j$ written ones to a length, scaled by α:
#
# $$ k_j = \min\bigl(k_{max}, \max(k_{min}, \lfloor \alpha\, \bar C\, k_{max} \rfloor)\bigr), \qquad \bar C = \frac1{k_{max}} \sum_{i=1}^{k_{max}} C_{j+i}. $$
#
# $\bar C$ is known only when all $k_{max}$ tokens are drafted. The paper's drafter fills them in one pass,
# but an autoregressive one has by then paid for each: `controller="look_ahead"`, the default.
# `controller="early_stop"` takes the mean of what is drafted so far, and stops when the window has no room
# for another token.
#
# **Predict**, for a look-ahead window, an early-stopping one and a fixed one, all with $k_{max} = 10$: which
# accepts most tokens per cycle? Which runs the drafter least?

# %%
windows = {
    "look-ahead": decode(batch=1),  # texts of a batch share their passes
    "early stopping": decode(batch=1, controller="early_stop"),
    "fixed": decode(batch=1, adaptive_drafting=False),
}
counts = pd.DataFrame(
    {
        name: {
            "drafted": metrics.mean_drafted(run),
            "sent": metrics.mean_sent(run),
            "accepted": metrics.mean_accepted(run),
            "draft passes": run.summary()["draft_passes"][0],
            "target passes": run.summary()["target_passes"][0],
        }
        for name, run in windows.items()
    }
).T
saved = 1 - counts.loc["look-ahead", "sent"] / counts.loc["fixed", "sent"]
print(f"the look-ahead window sends {saved:.0%} fewer tokens a cycle than the fixed one")
print(
    f"most accepted a cycle: {counts['accepted'].idxmax()}; fewest drafter passes: {counts['draft passes'].idxmin()}"
)
counts.round(2)

# %% [markdown]
# From the same text, a cycle with the fixed window accepts at least as many: a token that is not sent cannot
# be accepted. The adaptive window saves tokens sent. This saves time if a pass over 10 tokens costs more than one
# over 7, as in a large batch. It saves nothing if the pass is memory-bound. With an autoregressive drafter only
# early stopping saves drafter passes.
#
# The paper's Table III reports the opposite, 3.10 accepted with a fixed window and 4.27 with the adaptive
# one, without giving either's k.
#
# ## The loop at work
#
# One text, cycle by cycle. Top: the certainty of each token, and the mean. Middle: what became of the draft,
# and the window (the line). Bottom: how far each token's log-probability is below the target's favourite, and
# the largest gap allowed.
#
# **Predict.** How long is the longest window, with α = 1 and $k_{max} = 10$? And is a rejection more likely in short
# windows or in long ones?

# %%
shown = windows["look-ahead"]
text = shown.cycles.groupby("prompt").size().idxmax()  # the one that took most cycles
view.control_loop(shown, prompt=text)
plt.show()

cycles = shown.cycles[shown.cycles["cycle"] > 0].set_index(["prompt", "cycle"])
lost = shown.nodes[shown.nodes["status"] == "rejected"].set_index(["prompt", "cycle"])
cycles["rejected"] = cycles.index.isin(lost.index)
middle = cycles["control_window"].median()
for lengths, rows in (
    (f"below {middle:.0f}", cycles["control_window"] < middle),
    (f"{middle:.0f} or more", cycles["control_window"] >= middle),
):
    ended = f"{cycles['rejected'][rows].mean():.0%} end in a rejection" if rows.any() else "there is none"
    print(f"windows of {lengths} tokens: {rows.sum():3d}, of which {ended}")
print(
    f"the longest: {cycles['control_window'].max():.0f}, the shortest: {cycles['control_window'].min():.0f}"
)

# %% [markdown]
# Because of the floor, $k_j = k_{max}$ needs a mean of exactly 1, so no window is longer than $k_{max} - 1$. If the
# drafter's certainty is informative, the short windows end in rejections more often, though they send less that could
# be rejected.
#
# ## The gap, in two readings
#
# A drafted token $y$ is accepted (section III.B (c)) if it is among the target's β likeliest and
#
# $$ \log p_{AR}(y^{(1)}) - \log p_{AR}(y) \;\le\; \tau_t, \qquad \tau_t = \tau_{base} + \gamma\,(1 - C_t), $$
#
# with $p_{AR}$ the target's distribution. This $\tau_t$ is a threshold; τ alone counts tokens per cycle.
#
# The paper's text says: "The less confident the drafter is at time t, the stricter the verification criterion becomes."
# But $\tau_t$ is the largest gap that passes, so a *smaller* one is *stricter*, and the formula is lenient exactly
# where the prose wants it strict. We run both: `gap="as_written"` is the formula, and `gap="as_described"` is
# $\tau_{base} + \gamma\, C_t$, which does what the prose says.
#
# **Predict.** At the same γ and $\tau_{base}$, which reading accepts more? Which changes more of the target's text?

# %%
view.threshold_readings(tau_base=0.1, gamma=0.5, trace=windows["look-ahead"])
plt.show()
C = metrics.signals(windows["look-ahead"])["score"]
print(f"judged tokens with C above one half: {(C > 0.5).mean():.0%}; median C {C.median():.2f}")

# %%
greedy = sv.generate(target, few, "autoregressive", max_new_tokens=length, batch=4)


def compared(run):
    """What a lossy run did to the target's own text."""
    nodes = metrics.signals(run)
    kept = nodes[nodes["accepted"]]
    return {
        "accepted a cycle": metrics.mean_accepted(run),
        "kept, not the first choice": 1 - kept["first"].mean(),
        "texts as greedy": np.mean([a == b for a, b in zip(run.texts, greedy.texts)]),
        "exactness": run.run["exactness"],
    }


readings = {
    (gamma, gap): decode(gamma=gamma, gap=gap)
    for gamma in (0.5, 2, 4)
    for gap in ("as_written", "as_described")
}
pd.DataFrame({key: compared(run) for key, run in readings.items()}).T.rename_axis(["γ", "gap"])

# %% [markdown]
# The curves cross at $C = \tfrac12$. To the right of it the prose's reading allows the larger gap, and to the
# left the formula does. So at equal γ the reading that is more lenient overall depends on where most tokens
# are (the share is printed above). A larger γ refuses less in both readings.
#
# Few tokens are kept against the target's preference, but from the first of them on the text is another one.
#
# ## When nothing is lost
#
# **Predict.** With $\gamma = 0$, $\tau_{base} = 0$ and β = 1, how many of the texts are the target's greedy ones, with
# a fixed window and with an adaptive one?

# %%
strict = {"gamma": 0, "tau_base": 0, "top_beta": 1}
settings = {
    "all three, adaptive window": strict,
    "all three, fixed window": strict | {"adaptive_drafting": False},
    "the default": {},
    "top_beta = 1 alone": {"top_beta": 1},
    "tau_base = 0 alone": {"tau_base": 0},
    "gamma = 0 alone": {"gamma": 0},
}
pd.DataFrame({name: compared(decode(**setting)) for name, setting in settings.items()}).T

# %% [markdown]
# Only the target's favourite has a gap of 0 (or rank 0), so a draft is kept while it equals the greedy text,
# up to ties. The window decides how many tokens are judged, not how. Either limit suffices, β = 1 or a gap of
# 0 everywhere. With any other setting the trace is labelled `lossy`, even if a text comes out the same.
#
# ## What if?
#
# A recorded run answers for another setting as long as its text would be the same ([05](05_what_if.ipynb)).
#
# **Predict.** Which is more likely to need a rerun: a $\tau_{base}$ slightly larger than the run's 0.1, or a much
# larger one?

# %%
ask = sv.whatif(trace)
answer = ask.cm_asd(tau_base=[0, 0.05, 0.1, 0.2, 0.5, 2.0, 8.0])
answer.table[["tau_base", "texts", "cycles", "drafted", "sent", "accepted", "tau", "badge"]]

# %%
exact = answer.table[answer.table["badge"] == "exact"].iloc[-1]
again = decode(of=texts[3], tau_base=float(exact["tau_base"]))
row = again.summary().iloc[0]
print(
    f"τ_base = {exact['tau_base']:g}   predicted: {exact['accepted']:g} accepted of {exact['sent']:g} sent, τ {exact['tau']:.3f}"
)
print(f"               rerun:     {row['accepted']} accepted of {row['sent']} sent, τ {row['tau']:.3f}")
print("the same text:", again.texts == trace.texts)
answer.places[["tau_base", "position", "text", "why"]]

# %% [markdown]
# The larger the step, the sooner a token passes that the run refused (or the reverse). From there on the record cannot
# answer; `places` names each such place, without a model. Where does it change?


# %%
def answered(tau_base, k_max):
    row = ask.cm_asd(tau_base=tau_base, k_max=k_max).table.iloc[0]
    print(f"{row['badge']}: {row['accepted']:.0f} accepted of {row['sent']:.0f} sent, τ {row['tau']:.3f}")


controls = ipywidgets.interact(
    answered,
    tau_base=ipywidgets.FloatSlider(0.1, min=0, max=2, step=0.05, description="τ_base"),
    k_max=ipywidgets.IntSlider(10, min=2, max=10, description="k_max"),
)

# %% [markdown]
# ## Speed against quality
#
# The pair is the translators. All settings and greedy decoding take turns on each text. Speed is greedy's time
# over the setting's own. Quality is BLEU against up to eight right answers. A click opens a point's first text.
#
# **Predict.** Towards which corner does a larger $\tau_{base}$ move a point? Which controller is faster? And where does
# a curve end, if the gap is so wide that anything passes?

# %%
from specviz.measure.sweep import Point, sweep

kinds = {
    "look-ahead, 10": {"k_max": 10},
    "early stopping, 10": {"k_max": 10, "controller": "early_stop"},
    "early stopping, 5": {"k_max": 5, "controller": "early_stop"},
}
translator, small = sv.load("town-t5"), sv.load("town-t5-small")
plan = [Point("greedy", "autoregressive", model=translator, group="greedy")]
plan += [Point("drafter alone", "autoregressive", model=small, group="drafter alone")]
for kind, values in kinds.items():
    for tau in (0, 0.5, 2, 16):
        setting = values | {"tau_base": tau, "gamma": 0.5 * (tau > 0), "top_beta": 20}
        plan.append(Point(f"{kind}, τ_base {tau}", "cm_asd", setting, translator, small, group=kind))
measured = sweep(plan, translations[:16], max_new_tokens=64)
base = measured["greedy"]
points = pd.DataFrame(
    {
        "group": each.point.group,
        "tau_base": each.point.values.get("tau_base", 0),
        "quality": each.quality.median,
        "speed": each.over(base).median,
        "base": each is base,
    }
    for each in measured.values()
)
points["trace"] = [
    sv.generate(p.model, translations[0], p.method, draft=p.draft, max_new_tokens=64, **p.values)
    for p in plan
]
view.interactive.sweep(points, "pages/settings", curve="group", size="tau_base", force=True)

# %%
for name, each in measured.items():
    if each is not base:
        speed, lost = each.over(base), each.lost(base)
        drafted = each.sums.get("drafted", np.zeros(1)).sum()
        changed = sum(a != b for a, b in zip(each.texts, base.texts))
        print(
            f"{name:32s} {speed.median:.2f}x [{speed.low:.2f}, {speed.high:.2f}], BLEU lost {lost.median:5.1f}, "
            f"{drafted:4.0f} tokens drafted, {changed:2} of {len(each.texts)} texts changed"
        )

# %% [markdown]
# A wider gap moves a point to the right, and at first barely down: texts change, but with several right answers a
# changed text need not be worse. At 16 almost anything passes. Quality is then near the drafter's own, and the
# drafter alone is much faster.
#
# Early stopping drafts fewer tokens, each a drafter pass. It was no faster when this was written: it must
# read each confidence before it drafts the next token; looking ahead reads once per cycle.
#
# ## What the paper's tables say
#
# Table I, speed as a multiple of beam search with 5 beams. The text beside it: "In all four translation tasks, CM-ASD
# delivers a speedup of over 4.4x ... matching or outperforming SpecDec even at larger drafting sizes."
#
# **Predict** from that sentence the largest number of each column, then look.

# %%
paper = pd.DataFrame(
    {
        "EN-DE": {"greedy": 1.1, "SpecDec, k = 10": 4.2, "SpecDec, k = 25": 5.1, "CM-ASD": 4.7},
        "DE-EN": {"greedy": 1.1, "SpecDec, k = 10": 4.6, "SpecDec, k = 25": 5.5, "CM-ASD": 5.0},
        "EN-RO": {"greedy": 1.1, "SpecDec, k = 10": 3.9, "SpecDec, k = 25": 4.6, "CM-ASD": 4.2},
        "RO-EN": {"greedy": 1.1, "SpecDec, k = 10": 4.1, "SpecDec, k = 25": 4.8, "CM-ASD": 4.4},
    }
)
paper

# %% [markdown]
# - CM-ASD is *slower* than SpecDec with k = 25 in every column, and 4.2 is not over 4.4.
# - All speeds are relative to beam 5. Greedy decoding is 1.1 there, so 4.7 is 4.3 times greedy. Our pictures divide by
#   greedy.
# - On summaries the text gives ROUGE 41.90, 18.30 and 38.10 to SpecDec. Table IV gives them to CM-ASD, at 4.0x, below
#   SpecDec (43.11, 20.43, 40.19 at 5.1x) in all four numbers.
#
# ## What CM-ASD cannot do
#
# - It cannot promise the target's text: acceptance by rank and gap is lossy by design, and quality must be measured for
#   every task.
# - The paper publishes no values for α, γ, the weights λ, $k_{min}$, $k_{max}$ and β (and 0.1 for $\tau_{base}$ only as
#   an example). Ours are defaults, and every figure here depends on them.
# - Confidence is the drafter's alone. A drafter that is sure and wrong gets a long window and, in the prose's reading,
#   a wide gap.

# %% [markdown]
# ## Five questions
#
# <details><summary>1. Which sign is wrong in the paper's entropy signal?</summary>
#
# Entropy rises with doubt, and the other two signals fall with it. The confidence is 1 minus the normalised entropy.
# </details>
#
# <details><summary>2. What does the AUROC of a signal say?</summary>
#
# How often an accepted token has the larger signal than a rejected one; one half is guessing.
# </details>
#
# <details><summary>3. Does an adaptive window raise the tokens accepted per cycle?</summary>
#
# No: from the same text, a token that is not sent cannot be accepted. It saves tokens sent, or drafter passes
# with early stopping.
# </details>
#
# <details><summary>4. What are the two readings of the gap?</summary>
#
# The formula allows a larger gap when the drafter is unsure; the prose wants the test stricter then.
# </details>
#
# <details><summary>5. With which settings is CM-ASD exact up to ties?</summary>
#
# With β = 1 (top_beta=1), or with no gap allowed at all.
# </details>
