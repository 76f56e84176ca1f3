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
# # 01 · One token at a time, and why it is slow
#
# ![What a pass over g tokens costs in units of a pass over one, on the machine that made this picture](stills/01.png)
#
# *20 minutes, about one of them computing (12 seconds on `town`). Needs `torch` and ipywidgets
# (`pip install -e ".[run,lab]"`).*
#
# You will watch a model decode autoregressively, count what it reads for each token, and measure **s(g)**: what a pass
# over g tokens costs in units of a pass over one. Speculative decoding gains from the gap between g and s(g). Then you
# will lay out the same weights differently in memory, and see that gap change.
#
# The model is **SmolLM2**, a real language model of 135 million parameters (4-bit weights, dequantised), if
# `specviz models get smollm2` has downloaded it (93 MB). If not, it is `town`, a bundled model of 2 million parameters
# that knows only a small world of its own. The two differ in what matters here: SmolLM2's weights are read from memory
# in each pass, `town`'s fit into the processor's cache.

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
trace = sv.generate(model, prompt, method="autoregressive", max_new_tokens=40)
trace

# %% [markdown]
# Every bar is one forward pass, and every pass yields one token: τ = 1.00. The prefill, which read all but
# the prompt's last token in one pass, is not drawn: it is cycle 0 of the record.
#
# **Predict.** The prompt has twenty tokens or more. How many times longer than a single-token pass did its prefill
# take: 1, 5, or as many as there are tokens?

# %%
guess = 10.0

# %%
passes = trace.passes
fill = passes[passes["cycle"] == 0].iloc[0]
single = passes[passes["cycle"] > 0]["duration"].median()
print(f"{int(fill['tokens'])} tokens in {fill['duration'] * 1e3:.1f} ms, one token in {single * 1e3:.1f} ms")
print(f"ratio {fill['duration'] / single:.1f}, your guess {guess:.1f}")

# %% [markdown]
# ## What a pass must read
#
# To compute one token, every weight is read once and used for one multiplication and one addition. With $P$
# parameters of $b$ bytes, a pass over $g$ tokens moves about $bP$ bytes and does $2gP$ operations, so its
# *arithmetic intensity* is
#
# $$ I(g) = \frac{2gP}{bP} = \frac{2g}{b}\ \text{operations per byte}. $$
#
# A machine that can do $C$ operations and move $B$ bytes a second is idle while it waits for memory as long
# as $I(g) < C/B$. The context's keys and values and the activations add to this; for short texts and small
# batches they are small compared with the weights.

# %%
from specviz.models.kernels import width

size = width(model.kernels, model.dtype)  # bytes of a weight, as it lies in memory
n, b = model.parameters, size
for g in (1, 4, 16):
    print(
        f"g = {g:2d}: {2 * g * n / 1e6:6.1f} M operations, {b * n / 1e6:5.1f} MB, I = {2 * g / b:.1f} per byte"
    )

# %% [markdown]
# How many of each can this machine do? A large product of matrices gives $C$, copying a large array gives $B$.

# %%
import time


def best(work, rounds=5):
    """Shortest of a few timings, in seconds: the least disturbed one."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


a = torch.randn(1024, 1024, dtype=model.dtype)
C = 2 * 1024**3 / best(lambda: a @ a)
x = torch.randn(16_000_000)
y = torch.empty_like(x)
B = 2 * x.numel() * 4 / best(lambda: y.copy_(x))
print(f"C = {C / 1e9:.0f} G operations/s, B = {B / 1e9:.1f} GB/s, C/B = {C / B:.1f} operations per byte")

# %% [markdown]
# **Predict.** By this arithmetic, up to which g should a pass cost about the same as a pass over one token?

# %%
limit = C / B * size / 2
print(f"memory-bound up to about g = {limit:.0f}")

# %% [markdown]
# ## Measure s(g)
#
# The arithmetic assumes that the weights come from memory and that a product of matrices always runs at full speed.
# Neither is certain. A model of a few megabytes stays in the processor's cache, and its passes are mostly the fixed
# cost of starting a few hundred small operations from Python. And a library runs different code for one row, a few rows
# and many. So measure: the same context, passes of each size in turn, the median of many.

# %%
from specviz.measure.benches.passes import measure

rounds = {"smollm2": 9, "town": 31}[target]
rows = measure(model, sizes=(1, 2, 4, 8, 16, 32, 64), context=96, rounds=rounds)
g = np.array([row["g"] for row in rows])
ms = np.array([row["median"] for row in rows])
s = ms / ms[0]
for row, ratio in zip(rows, s):
    print(
        f"g = {row['g']:2d}: {row['median']:6.2f} ms  s = {ratio:4.2f}  {row['median'] / row['g']:5.2f} ms a token"
    )

# %%
figure, (left, right) = view.subplots(1, 2, figsize=(10, 3.4))
left.plot(g, s, "o-", color="#0072b2", label="measured s(g)")
left.plot(g, g, "--", color="#888888", label="s = g: nothing gained")
left.set(xscale="log", yscale="log", xlabel="tokens in the pass, g", ylabel="cost of the pass, s(g)")
left.set_xticks(g, g)
left.legend(frameon=False)
right.plot(g, ms / g, "o-", color="#d55e00")
right.set(xscale="log", xlabel="g", ylabel="ms a token")
right.set_xticks(g, g)
plt.show()

# %% [markdown]
# Where the curve is below the dashed line, checking g tokens at once is cheaper than writing them one by one.
#
# ## From s(g) to the highest possible speedup
#
# A cycle that drafts γ tokens at a cost of $c$ target passes each and verifies them in one pass takes
# $\gamma c + s(\gamma + 1)$, and emits τ tokens. So
#
# $$ \text{speedup} = \frac{\tau}{\gamma c + s(\gamma + 1)} \le \frac{\gamma + 1}{\gamma c + s(\gamma + 1)}, $$
#
# with equality when every draft token is accepted: the *ceiling*.
#
# **Predict.** With a drafter that costs a sixth of the target, which of γ = 1 to 32 has the highest ceiling on this
# machine? Is it the largest?

# %%
length_guess = 32

# %%
lengths = np.arange(1, 33)


def ceiling(c):
    _, ax = view.subplots(figsize=(6.4, 3.8))
    for accept in (1.0, 0.8, 0.6):
        # Each token is accepted with probability `accept`, independently of the others.
        tau = lengths + 1 if accept == 1 else (1 - accept ** (lengths + 1)) / (1 - accept)
        speed = tau / (lengths * c + np.interp(lengths + 1, g, s))
        ax.plot(lengths, speed, label=f"each token accepted with {accept:.0%}")
        print(
            f"acceptance {accept:.0%}: best draft length {lengths[speed.argmax()]}, speedup {speed.max():.2f}"
        )
    ax.axhline(1, ls="--", color="#888888")
    ax.set(xlabel="draft length γ", ylabel="speedup (modelled)", title=f"c = {c:.2f}")
    ax.legend(frameon=False)
    plt.show()


ceiling(1 / 6)
highest = lengths[((lengths + 1) / (lengths / 6 + np.interp(lengths + 1, g, s))).argmax()]
print(
    f"highest ceiling: γ = {highest}, {'' if highest == 32 else 'not '}the largest (your guess {length_guess})"
)

# %% [markdown]
# Move c, the cost of a draft token in target passes:

# %%
slider = ipywidgets.FloatSlider(1 / 6, min=0, max=1, step=1 / 12, continuous_update=False)
controls = ipywidgets.interact(ceiling, c=slider)

# %% [markdown]
# These curves are **modelled**: they assume that acceptance is independent from token to token, which is not
# true of real text, and they include nothing but the passes. If tokens can be rejected, τ levels off while
# the cost grows, so the longest draft does not win. [02](02_draft_and_verify.ipynb) measures real decodes.
#
# ## The same model in several layouts
#
# s(g) looks like a property of the model and the machine. It is also a property of the **kernel**, the code that
# multiplies by a weight matrix, and a kernel is written for one layout of that matrix in memory. A CPU has these:
#
# - `plain`: the matrix as it was loaded, row by row of outputs, and torch's own product,
# - `transposed`: the same numbers, row by row of inputs, and torch's own product,
# - `onednn`: the same numbers in small blocks, as oneDNN's product over several rows expects them. A pass over fewer than
#   four tokens is padded to four, which takes less time on some processors; `onednn-unpadded` does not pad,
# - `fp16`, where float16 holds the weights exactly: half as many bytes to read, and products in float32.
#
# The weights are the same in all of them, and so is the text, up to ties. `sv.load` times them on the model's own
# matrices and takes the fastest.
#
# **Predict.** In which layout is a pass over one token fastest? A draft of four tokens makes a pass of five. In units
# of the same layout's pass over one, what does it cost in the best layout, and in the worst: 1.0, 1.5, 2.5, 5?

# %%
cheapest_guess, dearest_guess = 1.2, 3.0

# %%
from specviz.measure.benches.passes import measure_models

sizes = (1, 2, 3, 5, 9, 17)
COLORS = {
    "plain": "#d55e00",
    "transposed": "#e69f00",
    "onednn": "#0072b2",
    "onednn-unpadded": "#56b4e9",
    "fp16": "#009e73",
    "float32": "#0072b2",
    "bfloat16": "#cc79a7",
    "int8": "#e69f00",
    "int4": "#d55e00",
}


def compare(models):
    """Measure passes of each size by each model, and show the times and s(g)."""
    spent = measure_models(models, sizes, context=96, rounds=rounds)
    cost = {name: np.array([np.median(times[g]) for g in sizes]) for name, times in spent.items()}
    print(f"{'tokens in the pass':20}" + "".join(f"{g:14}" for g in sizes))
    _, ax = view.subplots(figsize=(6.4, 3.4))
    for name, each in cost.items():
        print(f"{name:20}" + "".join(f"{t:7.2f} ({t / each[0]:4.2f})" for t in each) + "   ms and s(g)")
        ax.plot(sizes, each / each[0], "o-", color=COLORS[name], label=name)
    ax.set(xlabel="tokens in the pass", ylabel="in units of its own pass over one", ylim=(0, None))
    ax.set_xticks(sizes, sizes)
    ax.legend(frameon=False, fontsize=8)
    plt.show()
    return cost


print(f"{model.name} runs in the layout {model.kernels!r} by default here")
layouts = {
    layout: sv.load(model.net, tokenizer=model.tokenizer, kernels=layout)  # shares the weights
    for layout in model.layouts
}
written = [
    sv.generate(each, prompt, "autoregressive", max_new_tokens=16, record=None).text
    for each in layouts.values()
]
print("the same text in every layout:", len({*written}) == 1, end="\n\n")
cost = compare(layouts)
five = [each[sizes.index(5)] / each[0] for each in cost.values()]
print(
    f"s(5): your guesses {cheapest_guess} and {dearest_guess}, measured {min(five):.2f} and {max(five):.2f}"
)

# %% [markdown]
# Only the arrangement of the weights in memory changed (their order, and in `fp16` their width): no weight and no
# token. A layout with a flat beginning makes short drafts nearly free. So whether drafting pays may change with it,
# and "drafting does not pay on this machine" is never a statement about the machine alone, but about a model, a
# kernel, a number format, a device and a batch.
#
# The two models behave differently. When this was written, on a machine with AVX-512, SmolLM2's matrices came
# from memory, and in oneDNN's layout a pass over five tokens cost as much as one over one: a draft of four was
# free there, and cost half a pass in the plain layout. `town`'s matrices stayed in the cache, and the transposed layout was the
# fastest. So the layout is measured for each model, never assumed. The layout that decodes fastest without
# drafts need not be the one that decodes fastest with them. `specviz bench passes` prints the same table with
# intervals, in bfloat16 too; `sv.load(..., kernels="plain")` and the variable `SPECVIZ_KERNELS` pin a layout.
#
# ## The same model in several formats
#
# A pass over one token reads every weight once, so fewer bytes per weight make it faster. Formats of one
# model:
#
# - `float32`, four bytes per weight, and `bfloat16`, two, where torch allows it with *invariant* passes: these add up
#   each token's sums in one order, however many tokens the pass has ([02](02_draft_and_verify.ipynb)). `load` makes a
#   model invariant when it chooses `bfloat16`;
# - `fp16`, two, if it was chosen above: float16 weights, multiplied by float32 inputs;
# - `int8`, one: whole numbers from −127 to 127, with a scale for each output;
# - `int4`, half a byte: whole numbers from 0 to 15, with a scale and a least value for each 32. Only weights that came
#   in four bits are accepted: rounding others so coarsely needs a method of its own.
#
# The whole numbers are read from memory as they are and multiplied in bfloat16. In `bfloat16`, `int8` and
# `int4` the weights are rounded, so the text may differ. Do fewer bytes leave drafting less to save?
#
# **Predict.** Which format writes most tokens per second without any draft? And in which is a pass over five tokens
# cheapest, in units of the same format's pass over one?

# %%
fastest_guess, flattest_guess = "int4", "float32"

# %%
from specviz.measure.benches.passes import formats

cost = compare(formats(model))
fastest = min(cost, key=lambda name: cost[name][0])
flattest = min(cost, key=lambda name: cost[name][sizes.index(5)] / cost[name][0])
print(f"fastest without drafts: {fastest} (your guess {fastest_guess})")
print(f"smallest s(5): {flattest} (your guess {flattest_guess})")

# %% [markdown]
# A format that is missing is not available for this model or machine.
#
# Fewer bytes make the first token of a pass cheaper and leave the arithmetic of the others as it was. When
# SmolLM2 was measured for this text, on a processor without AVX-512, `bfloat16` (with ordinary passes), `int8` and
# `int4` were the fastest without drafts and had the steepest s(g). `town`, whose weights stay in the cache, has little to
# gain from fewer bytes. Integer weights and drafting both save time spent reading weights. With fewer bytes a pass
# turns compute-bound at a smaller g, so drafting has less left to save. Which draft size is best in each layout and format
# is [08](08_calibrate.ipynb)'s question. Compare tokens per second, never speedups over baselines in different formats.
#
# ## What this cannot show
#
# - On another machine s(g) has another shape; on a large GPU it stays flat for far longer. Run this notebook there.
# - s(g) leaves out the time to draft, to judge and to commit. [08](08_calibrate.ipynb) times whole cycles.
# - s(g) depends on how much context the pass reads: the longer it is, the larger the share of keys and values in
#   what is read.
# - Batches of many requests fill the machine on their own, and usually leave less for speculative decoding to
#   exploit ([15](15_should_i_draft.ipynb)).

# %% [markdown]
# ## Five questions
#
# <details><summary>1. What is s(g)?</summary>
#
# The time of a pass over g tokens in units of a pass over one.
# </details>
#
# <details><summary>2. Why can a pass over five tokens cost as much as a pass over one?</summary>
#
# Both pay once for what does not depend on the number of tokens: reading the weights from memory (SmolLM2), or
# starting each operation from Python (`town`). While that takes longest, extra rows are nearly free.
# </details>
#
# <details><summary>3. Drafting γ tokens costs c target passes each. What is the highest speedup a cycle can reach?</summary>
#
# (γ + 1) / (γc + s(γ + 1)), reached if every draft token is accepted.
# </details>
#
# <details><summary>4. You change the layout of the weights in memory. What may change, and what cannot?</summary>
#
# The time of passes, s(g) and the best draft size may change. The tokens do not, up to ties.
# </details>
#
# <details><summary>5. Why may drafting pay less with weights in four bits?</summary>
#
# Fewer bytes make the first token cheap and leave the arithmetic of the others. A pass turns compute-bound at
# fewer tokens: s(g) rises sooner, and less reading is left to save.
# </details>
