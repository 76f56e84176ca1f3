# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · One token at a time, and why it is slow
#
# *15 minutes. Needs `torch` (`pip install "specviz-lm[run]"`); runs a small model on your own machine.*
#
# You will watch a model decode autoregressively, count what it reads for each token, and measure **s(g)**: what a
# pass over g tokens costs in units of a pass over one. All of speculative decoding lives in the gap between g and
# s(g).

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import specviz as sv

torch.set_num_threads(1)
model = sv.load("town")
prompt = {"turns": ["Translate into German: The doctor bought a red bicycle yesterday."]}
trace = sv.generate(model, prompt, method="autoregressive", max_new_tokens=40)
trace

# %% [markdown]
# Every bar is one forward pass, and every pass yields one token: τ = 1.00. The prefill, which read the whole prompt
# in a single pass, is not drawn: it is cycle 0 of the record.
#
# **Predict.** The prompt has several tens of tokens. How many times longer than a single-token pass did its prefill
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
# A machine that can do $C$ operations and move $B$ bytes a second is idle while it waits for memory as long as
# $I(g) < C/B$. The keys and values of the context and the activations come on top; for short texts and small
# batches they are little beside the weights.

# %%
size = next(model.net.parameters()).element_size()
n, b = model.parameters, size
for g in (1, 4, 16):
    print(f"g = {g:2d}: {2 * g * n / 1e6:6.1f} M operations, {b * n / 1e6:5.1f} MB, I = {2 * g / b:.1f} per byte")

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


a = torch.randn(1024, 1024)
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
# The arithmetic says nothing of the fixed cost of starting a few hundred small kernels from Python, of caches that
# hold a small model whole, or of the different kernels that a library picks for a vector and for a matrix. So measure:
# the same context, passes of each size in turn, the median of many.

# %%
from specviz.bench.passes import measure

rows = measure(model, sizes=(1, 2, 4, 8, 16, 32, 64), context=96, rounds=15)
g = np.array([row["g"] for row in rows])
ms = np.array([row["median"] for row in rows])
s = ms / ms[0]
for row, ratio in zip(rows, s):
    print(f"g = {row['g']:2d}: {row['median']:6.2f} ms  s = {ratio:4.2f}  {row['median'] / row['g']:5.2f} ms a token")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
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
# Where the curve lies below the dashed line, checking g tokens at once is cheaper than writing them one by one.
#
# ## From s(g) to the most one can hope for
#
# A cycle that drafts γ tokens at a cost of $c$ target passes each and verifies them in one pass takes
# $\gamma c + s(\gamma + 1)$, and emits τ tokens. So
#
# $$ \text{speedup} = \frac{\tau}{\gamma c + s(\gamma + 1)} \le \frac{\gamma + 1}{\gamma c + s(\gamma + 1)}, $$
#
# with equality when every draft token is accepted.
#
# **Predict.** With a drafter that costs a sixth of the target, which γ has the highest ceiling on this machine? Is it
# the largest?

# %%
c = 1 / 6
lengths = np.arange(1, 33)
for accept in (1.0, 0.8, 0.6):
    # Each token is accepted with probability `accept`, independently of the others.
    tau = lengths + 1 if accept == 1 else (1 - accept ** (lengths + 1)) / (1 - accept)
    speed = tau / (lengths * c + np.interp(lengths + 1, g, s))
    plt.plot(lengths, speed, label=f"each token accepted with {accept:.0%}")
    print(f"acceptance {accept:.0%}: best draft length {lengths[speed.argmax()]}, speedup {speed.max():.2f}")
plt.axhline(1, ls="--", color="#888888")
plt.xlabel("draft length γ")
plt.ylabel("speedup (modelled)")
plt.legend(frameon=False)
plt.show()

# %% [markdown]
# These curves are **modelled**: they take acceptance to be independent from token to token, which real text is not,
# and leave out everything but the passes. [02](02_draft_and_verify.ipynb) measures the real thing.
#
# ## What this cannot tell you
#
# - On another machine s(g) has another shape; on a large GPU it stays flat for far longer. Run this notebook there.
# - s(g) depends on how much context the pass reads. With tens of thousands of tokens the keys and values, not the
#   weights, are what is read.
# - Batches of many requests fill the machine on their own: what speculative decoding exploits is then gone.
