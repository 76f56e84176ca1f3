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
# # 08 · Calibrate this machine: why the best draft size is a property of kernel and device
#
# ![Time per cycle and tokens per cycle, each rising with the draft size](stills/08.png)
#
# *30 minutes, three to six of them computing (one and a half on `town`). Needs `torch`, `scipy`, `scikit-learn`
# and plotly (`pip install -e ".[run,calibrate,lab]"`).*
#
# How many tokens should a drafter send? When more are sent, more are accepted, and checking them costs more. You will
# measure both on your machine, guess where they balance, and see why the answer cannot be taken from a paper, not even
# from the one that introduced the measurement: UniSpec (Do et al.), section 3 and Appendix F.
#
# The model is SmolLM2 (135 M parameters, 4-bit weights, dequantised) if `specviz models get smollm2` has downloaded it,
# and the bundled `town` (2 M parameters, a small world) if not. SmolLM2 is measured on two texts at seven sizes, to
# save time; `town` on five at up to 24.

# %%
import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch

import specviz as sv
from specviz import view

torch.set_num_threads(1)
target = "smollm2" if "smollm2" in sv.list_models() else "town"
model = sv.load(target)
prompt = {
    "smollm2": "Why does the moon seem to change its shape during a month?",
    "town": "Translate into German: The doctor bought a red bicycle yesterday.",
}[target]
trace = sv.generate(model, prompt, method="unispec", draft_size=24, max_new_tokens=40)
trace

# %% [markdown]
# UniSpec remembers what the target predicted after each token, grows a *tree* of the likeliest continuations and sends
# its $g$ nodes of highest score; the root, the last token of the text, is not counted. Here $g = 24$.
#
# ## The objective
#
# Let a cycle take $t(g)$ seconds and emit $\tau(g)$ tokens, the target's own one included. After $N$ cycles
#
# $$ \text{throughput} = \frac{N\,\tau(g)}{N\,t(g)} = \frac{\tau(g)}{t(g)}, \qquad g^* = \arg\max_g \frac{\tau(g)}{t(g)} $$
#
# (equations 2 and 4; they have the verifying pass alone, 01's $s(g+1)$, because drafting is assumed free;
# $t$, `s` in the code, is the whole cycle). τ depends on the model, the text and what the drafter has learnt,
# but hardly on the machine. $t$ depends on the machine.
#
# At the best size the two curves rise in the same proportion. Where both are smooth,
#
# $$ \frac{\tau'(g^*)}{\tau(g^*)} = \frac{t'(g^*)}{t(g^*)}: $$
#
# one more node must bring as many per cent of tokens as it costs per cent of time.
#
# **Predict.** Which $g$ is best for this model on this machine, among 1 to 24 (`town`: from 1 up to 256, or up to the
# size at which throughput has fallen below 60 % of the best)? The paper found 110 (Table 13; 111 in Tables 15 and 16)
# for an 8 B model on an A100. And by how much does $g = 24$ lose?

# %%
size_guess, loss_guess = 12, 0.10

# %%
from specviz.suites import spread, suite

if target == "smollm2":  # short, to end soon
    entries = spread(suite("everyday"), 21)
    few = {"sizes": (1, 2, 4, 6, 8, 16, 24), "max_new_tokens": 32, "rounds": 2}
    calibration = sv.calibrate(model, "unispec", entries[:2], warm_up=entries[2:6], **few)
else:
    entries = spread(suite("town"), 49)
    calibration = sv.calibrate(model, "unispec")
print(calibration.summary)
print(
    "{prompts} texts, {rounds} rounds, memory filled by {warm_up} others, {clock}".format(**calibration.how)
)
if calibration.ended:
    print(f"no larger sizes: {calibration.ended}")
calibration.table.round({"tau": 2, "ms": 2, "ms_q25": 2, "ms_q75": 2, "tokens_per_second": 0}).rename(
    columns={"ms_q25": "ms, first quartile", "ms_q75": "ms, third quartile", "tokens_per_second": "tokens/s"}
).set_index("g")

# %% [markdown]
# Each row comes from real decodes of a few prompts, each of a different kind of work. All sizes decode a text
# right after one another, in an order that changes from round to round: a machine's slow moments hit all
# sizes alike and are divided out. The quartiles show what noise remains. Every text begins with the same warm
# memory, filled by other texts. (A cold one has few candidates: beyond the size they fill, τ rises no further.)
#
# If this cell took no time, you had calibrated this machine before. The result is kept, and used again only if model,
# method, device, number format, threads and versions are the same. A calibration with other settings replaces it.

# %%
figure, axes = view.subplots(1, 2, figsize=(11, 3.6))
view.curve(calibration, "s", fits=("monotone",), ax=axes[0])
view.curve(calibration, "tau", fits=("monotone",), ax=axes[1])
plt.show()

# %% [markdown]
# More nodes mean more work, so the fit of $t(g)$ never falls. Real times need not be so regular: libraries
# compute matrices in tiles, and use different kernels for one row, a few rows and many. With some kernels a
# pass over five tokens even takes less time than one over three. τ(g) should rise ever more slowly, because the
# tree is filled best node first. The fit enforces that, and with so few texts the points scatter around it. (The
# axis is logarithmic.)
#
# **Predict.** Divide the two. Is there a sharp peak?

# %%
ax = view.deviation(calibration)
speed = calibration.table.set_index("g")["tokens_per_second"]
ax.axvline(size_guess, color="#d55e00", ls=":", label=f"your guess, {size_guess}")
ax.legend(frameon=False, fontsize=8)
plt.show()
print(f"g*: your guess {size_guess}, by the fit {calibration.g}; the fastest row above: {speed.idxmax()}")
loss = f"measured {1 - speed[24] / speed.max():.0%}" if 24 in speed else "not measured: sizes ended before it"
print(f"g = 24 loses: your guess {loss_guess:.0%}, {loss}")

# %% [markdown]
# A click on one of three points opens a text decoded with that many nodes:

# %%
clicked = {
    int(g): sv.generate(model, entries[0], "unispec", draft_size=int(g), max_new_tokens=40)
    for g in (speed.index[0], speed.idxmax(), speed.index[-1])
}
view.interactive.curve(calibration, clicked, pages="pages/sizes", force=True)

# %% [markdown]
# Where both curves are smooth, a peak between the ends is flat: near it τ and $t$ rise in nearly the same proportion,
# so a size near the best is almost as fast, and the exact number matters little. There are two exceptions. If the best
# size is the smallest measured, there is no peak but a slope: every further node costs more than it brings. And if a
# kernel has steps, the best size is the last one before a step. (The paper's Table 13 has a steep peak instead, with 8
# % lost fifteen nodes away; there τ is larger at 95 nodes than at 110, and the speedup lower, which equation 2 does not
# allow if $t$ rises.)
#
# ## From points to a size
#
# Not every size was measured. Three ways to fill in the rest:
#
# | fit | t(g) | τ(g) | g* |
# |---|---|---|---|
# | `paper` (Table 14) | quadratic spline, 8 evenly spaced knots, least squares | cubic, least squares | differential evolution |
# | `grid` (Table 16) | the points | the points | the best measured size |
# | `monotone` | isotonic regression: never falls | concave and never falling, least squares | all whole sizes |
#
# **Predict.** The points are dense at small sizes and sparse at large ones. The spline's knots are evenly spread. Where will
# the spline be wrong, and would you notice from its residuals?

# %%
figure, axes = view.subplots(1, 2, figsize=(11, 3.8))
view.curve(calibration, "s", ax=axes[0])
view.curve(calibration, "speed", ax=axes[1])
plt.show()
for name, fit in calibration.fits.items():
    at = calibration.table["g"].to_numpy() - calibration.points[0].g
    error = np.abs(np.array(fit.s)[at] / calibration.measured()[2] - 1).max()
    print(f"{name:9} g* = {fit.g:3d}, largest error of t at a measured point {error:.1%}")

# %% [markdown]
# A spline of degree 2 with 8 knots has $8 + 2 - 1 = 9$ coefficients, each acting between a few neighbouring
# knots. Where few points lie between them, the points do not determine a coefficient: the curve oscillates
# freely, and fits the measured points all the better. Differential evolution then finds the tip of an
# oscillation. The residuals show nothing; only the curve does. That is why `specviz` keeps the `monotone`
# fit's size.
#
# The diamond need not lie on a peak of the drawn curve: where the fitted $t$ crosses zero between two sizes, $\tau/t$
# has no bound, and g* is the better of those two sizes. The curve is drawn at whole sizes, which step over it.
#
# With evenly spaced points the spline behaves. The cubic for τ must still bend through a curve that rises
# steeply at first and then ever more slowly:

# %%
import tempfile

aside = tempfile.mkdtemp()  # the calibration that is kept stays the one above
town = model if target == "town" else sv.load("town")  # a question about curves: the quick model answers it
even = sv.calibrate(town, "unispec", sizes=range(1, 50, 4), warm_up=8, rounds=2, folder=aside)
figure, axes = view.subplots(1, 2, figsize=(11, 3.8))
view.curve(even, "tau", ax=axes[0])
view.curve(even, "speed", ax=axes[1])
plt.show()
print("g*:", ", ".join(f"{fit.g} ({name})" for name, fit in even.fits.items()))

# %% [markdown]
# ## Expected and real
#
# The paper's Table 15 compares τ/t with a run's real throughput. Ours must agree on the texts that were
# measured, because $t$ is the time of the whole cycle. So take other texts, and time everything, including
# the prefill. Two things now change the real throughput: the prefill lowers it, and the memory, which learns
# from text to text, raises it.
#
# **Predict.** Is the real throughput above or below the expected one, and by how much?

# %%
guess = -0.05

# %%
from specviz.measure.timing import Texts, paired, quiet_clock
from specviz.methods import find

learnt, new_tokens = {"smollm2": (6, 32), "town": (25, 128)}[target]
before = [e["turns"][0] for e in entries[calibration.how["prompts"] : learnt]]
others = [e["turns"][0] for e in entries[learnt : learnt + 3 if target == "smollm2" else None]]
sizes = sorted({calibration.g, 16} if target == "smollm2" else {calibration.g, 8, 24})
runs = {}
for g in sizes:
    method = find("unispec")(draft_size=g)
    sv.generate(model, before, method, max_new_tokens=new_tokens, record=None)
    runs[g] = Texts(sv.stream(model, others, method, max_new_tokens=new_tokens, record=None))

clock, name = quiet_clock(model.device)
times = paired(runs, len(others), clock=clock)
fit = calibration.fits[calibration.chosen]
for g in sizes:
    if g <= calibration.points[-1].g:
        expected = fit.tau[g - 1] / fit.s[g - 1]
        real = times[g].speed
        print(
            f"g = {g:2d}: expected {expected:4.0f} tokens/s, real {real:4.0f} ({real / expected - 1:+.0%}; {name})"
        )
print(f"your guess {guess:+.0%}")

# %% [markdown]
# They differ by the prefill, which grows with the prompt and not with $g$, and by τ: these are other texts, and the
# memory learns from them. The equation must get the *order* of the sizes right; $g^*$ needs no more.
#
# ## How many prompts does it take?
#
# More texts estimate τ better, and cost time in proportion (the paper's Figure 6).
#
# **Predict.** One prompt, two, five, decoded by `town`: does g* still move?

# %%
few = (1, 2, 3, 4, 6, 8, 12, 16, 24)
by = {
    n: sv.calibrate(town, "unispec", number=n, sizes=few, warm_up=8, rounds=2, folder=aside)
    for n in (1, 2, 5)
}
view.by_prompts(by)
plt.show()

# %% [markdown]
# A curve of one short text has a few dozen cycles: one accepted token more or less moves τ by several per cent, which
# can move a flat peak. With the default fit, each of seven calibrations chose a size within 3 % of the best, on texts
# that none saw ([results](../docs/results.md#the-bundled-models)).
#
# ## Another kernel, another size
#
# Most of a cycle is the target's pass, and its cost depends on the kernel that multiplies by a weight matrix.
# The same matrix can be stored in several layouts (01 introduces them): `plain`, as it was loaded;
# `transposed`; `onednn`, blocks for oneDNN's product, padded or not; and `fp16`, half as many bytes.
# `sv.load` takes the fastest. Here the target runs in each, with the same weights. In the cycle that was
# measured above, the pass is replaced by each layout's own; τ(g) stays, because the layout changes no token.
# A cycle without drafts is measured, too: it also takes longer than its pass.
#
# **Predict.** In which layout is a pass over five tokens (a draft of four) cheapest in units of its own pass over one,
# and what is that number? And which g is best in each layout?

# %%
five_guess, g_guess = 1.1, {"plain": 1, "transposed": 2, "onednn": 4, "onednn-unpadded": 4, "fp16": 4}

# %%
from itertools import pairwise

from specviz.measure.benches.passes import measure_models

layouts = {
    layout: sv.load(model.net, tokenizer=model.tokenizer, kernels=layout)  # shares the weights
    for layout in model.layouts
}
tokens = (1, 2, 3, 5, 9, 17, 25) if target == "smollm2" else (1, 2, 3, 5, 9, 17, 33, 65, 129)


def times_of(models):
    """Milliseconds of passes over `tokens` tokens by each model, in turns."""
    spent = measure_models(models, tokens, context=128, rounds={"smollm2": 5, "town": 31}[target])
    ms = {name: np.array([np.median(times[n]) for n in tokens]) for name, times in spent.items()}
    print("milliseconds of a pass (and how many passes over one token that is)")
    print("tokens" + "".join(f"{name:>16}" for name in ms))
    for i, n in enumerate(tokens):
        print(f"{n:6d}" + "".join(f"{each[i]:9.2f} ({each[i] / each[0]:4.2f})" for each in ms.values()))
    return ms


ms = times_of(layouts)
five = {layout: each[tokens.index(5)] / each[0] for layout, each in ms.items()}
print(
    f"cheapest pass over five: your guess {five_guess}, measured {min(five.values()):.2f} ({min(five, key=five.get)})"
)


def pass_ms(layout):
    """A pass over the root and g draft tokens, in milliseconds, at the sizes that were calibrated."""
    return np.interp(g + 1, tokens, ms[layout])


g, _, s, _, _ = calibration.measured()
fitted = np.array(calibration.fits[calibration.chosen].tau)  # smoother than what so few texts give
tau = fitted[g - g[0]]
within = g + 1 <= tokens[-1]
rest = np.clip(1e3 * s - pass_ms(model.kernels), 0, None)  # drafting, judging, committing

own = sv.stream(model, others[:2], "autoregressive", max_new_tokens=new_tokens, record=None)
marks = [(cycle.number, clock()) for cycle in own]  # cycle 0 is the prefill
cycles = [after - before for (_, before), (number, after) in pairwise(marks) if number]
plain_rest = max(0.0, 1e3 * np.median(cycles) - ms[model.kernels][0])  # of a cycle without drafts
print(
    f"a cycle takes longer than its pass by {plain_rest:.2f} ms without drafts, by {rest[0]:.2f} ms with g = {g[0]}"
)

COLORS = {
    "plain": "#d55e00",
    "transposed": "#e69f00",
    "onednn": "#0072b2",
    "onednn-unpadded": "#56b4e9",
    "fp16": "#009e73",
}
figure, (left, right) = view.subplots(1, 2, figsize=(11, 3.6))
for layout, each in ms.items():
    plain = each[0] + plain_rest
    gain = tau * plain / (rest + pass_ms(layout))
    left.plot(tokens, each, "o-", color=COLORS[layout], label=layout)
    right.plot(g[within], gain[within], "o-", color=COLORS[layout])
    best = int(np.argmax(np.where(within, gain, 0)))
    right.plot(g[best], gain[best], "o", ms=12, mfc="none", color=COLORS[layout])
    rate = 1e3 * (tau / (rest + pass_ms(layout)))[best]
    print(
        f"{layout:15} best g {g[best]:3d} (your guess {g_guess[layout]}): "
        f"{rate:.0f} tokens/s, {gain[best]:.2f} times plain decoding's {1e3 / plain:.0f}"
    )
left.set(xscale="log", xlabel="tokens in the pass", ylabel="ms", ylim=(0, None))
left.set_xticks(tokens, tokens)
left.minorticks_off()
figure.legend(frameon=False, loc="outside right upper")
right.axhline(1, ls="--", color="#888888")
right.set(
    xscale="log", xlabel="draft size g", ylabel="speedup in its own layout", title="ring: the best size"
)
right.set_xticks(g[within], g[within])
right.minorticks_off()
plt.show()

# %% [markdown]
# One model, one machine, one drafter, the same accepted tokens; how the weights are stored (their order, and
# in `fp16` their width) decides which size is best and what it brings. That is why a calibration holds for
# one setting, and why "no draft pays on this machine" is not a law about the machine. Which layout wins is
# measured for each model, never assumed: for SmolLM2, whose matrices come from memory, it was oneDNN's on two
# machines and `fp16` on a third; for `town`, whose matrices stay in the cache, the transposed one.
#
# The speedups are over plain decoding *in the same layout*, and a slow baseline inflates a speedup. Between
# layouts, compare tokens per second.
#
# ## Another number format, another size
#
# The same weights in fewer bytes: `bfloat16`, `int8` and, for four-bit weights, `int4` (01 introduces them; `bfloat16` has
# invariant passes where torch allows them).
# Each is another model. Its drafts are assumed to be accepted as often, so τ(g) and the rest of a cycle stay.
#
# **Predict.** Which g is best in each format? Zero is an answer.

# %%
g_guess = {"float32": 4, "fp16": 4, "bfloat16": 4, "int8": 2, "int4": 0}

# %%
from specviz.measure.benches.passes import formats

in_formats = formats(model)
by_format = times_of(in_formats)

COLORS = {
    "float32": "#0072b2",
    "fp16": "#009e73",
    "bfloat16": "#cc79a7",
    "int8": "#e69f00",
    "int4": "#d55e00",
}
figure, axes = view.subplots(figsize=(7, 3.6))
for name, each in by_format.items():
    rate = 1e3 * tau[within] / (rest[within] + np.interp(g[within] + 1, tokens, each))
    plain = 1e3 / (each[0] + plain_rest)
    best = int(rate.argmax())
    axes.plot(g[within], rate, "o-", color=COLORS[name], label=name)
    axes.axhline(plain, ls="--", lw=1, color=COLORS[name])
    size = g[within][best] if rate[best] > plain else 0
    print(
        f"{name:10} best g {size:3d} (your guess {g_guess[name]}): "
        f"{max(rate[best], plain):.0f} tokens/s, {plain:.0f} without drafts"
    )
axes.set(
    xscale="log",
    xlabel="draft size g",
    ylabel="tokens a second",
    title="dashed: without drafts",
    ylim=(0, None),
)
axes.set_xticks(g[within], g[within])
axes.minorticks_off()
figure.legend(frameon=False, loc="outside right upper")
plt.show()

# %% [markdown]
# A format whose dashed line is above its curve decodes fastest without drafts. Integer formats save what
# drafting saves, the reading of weights. How far a curve rises above its dashed line shows what is left for
# drafting to save. A format whose kernel is slow with several rows may leave nothing, however few bytes it
# reads. Calibrate for the format that will run.
#
# ## Another device, another size
#
# On a CPU every further node soon costs time, in any layout. On a large GPU $t(g)$ stays flat for longer: on
# the paper's A100 a cycle of 110 nodes takes about 1.4 plain steps ($\tau/\text{speedup}=2.91/2.10$, Table 13), and
# $g^*$ moves to where τ saturates (the paper's Figure 5). Below, the same points with another machine's $t$, invented:
# flat up to a number of nodes that you can move. If the sizes above end before it, the best size is the
# largest of them.

# %%
import copy

from specviz.measure.fits import fit as fit_all


def elsewhere(nodes):
    invented = copy.deepcopy(calibration)
    invented.setting |= {"device": f"an invented device, flat up to {nodes}", "threads": None}
    flat = s[0] * np.maximum(1, (g + nodes) / (2 * nodes))
    for point, old, new in zip(invented.points, s, flat):
        point.seconds = [[x * new / old for x in row] for row in point.seconds]
    invented.fits = fit_all(g, flat, tau)
    view.by_device([calibration, invented])
    plt.show()


slider = ipywidgets.IntSlider(32, min=1, max=64, description="flat up to", continuous_update=False)
controls = ipywidgets.interact(elsewhere, nodes=slider)

# %% [markdown]
# Calibrations made elsewhere can be compared with yours: `specviz calibrate --device cuda` there, and
# `sv.Calibration.open("file.json")` here, no torch needed.

# %% [markdown]
# ## Use it

# %%
fast = sv.generate(model, prompt, method="unispec", draft_size="calibrated", max_new_tokens=40)
kept = fast.run["calibration"]
print(
    f"draft size {kept['value']}, calibrated on {kept['device']}, {kept['created'][:16].replace('T', ' ')} UTC"
)

# %% [markdown]
# In another process with other threads, on another device or after an update of `torch` the same line refuses, and says
# what to run. `sv.calibrate(model, "speculative")` and every other method with a draft size work the same way: the
# question is not specific to UniSpec (the paper's Table 17).
#
# ## What calibration cannot know
#
# - Your next texts: another kind of work has another τ.
# - What changes later: contexts, batches and other load change t.
# - Whether to draft: the best size may still lose to no draft ([15](15_should_i_draft.ipynb)).

# %% [markdown]
# ## Five questions
#
# <details><summary>1. What does calibration measure, and which size does it choose?</summary>
#
# t(g), the time of a cycle with g nodes, and τ(g), the tokens it emits; the size with the largest τ(g)/t(g).
# </details>
#
# <details><summary>2. How do the two curves rise at the best size, and why is a small miss cheap?</summary>
#
# In the same proportion: one more node adds as many per cent of tokens as of time. Near a smooth peak that is
# nearly so, too.
# </details>
#
# <details><summary>3. You calibrate on float32 and then decode in int8. What is wrong?</summary>
#
# t(g) belongs to a kernel and a format. Another format has another best size, which may be none.
# </details>
#
# <details><summary>4. The calibration was greedy. Under sampling τ is smaller at every size. Does g* change?</summary>
#
# What counts is how steeply τ rises in proportion, τ'/τ. If sampling scales all of τ by one factor, g* stays,
# whatever t is. If it shortens long paths most, g* shrinks.
# </details>
#
# <details><summary>5. The memory is cold at first. With <code>warm_up=0</code>, what happens to τ, and to g*?</summary>
#
# τ falls. Beyond the size that the few candidates fill, neither curve changes, so no larger size is better.
# Below it, measure: τ may rise more or less steeply than before.
# </details>
