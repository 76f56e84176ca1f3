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
# # 14 · Your own model: load it, and decide how to decode it
#
# ![A decode with a draft model: each token coloured by how it came about, its cycles in time, the drafter's confidence](stills/14.png)
#
# *30 minutes, two of them computing (half a minute on `town`). Needs `torch` (`pip install -e ".[run,lab]"`); the GGUF
# cells also llama.cpp.*
#
# You will
#
# 1. load a model from a folder, a hub, a GGUF file or memory, and see what is refused, and why,
# 2. rule out the methods that your task forbids,
# 3. measure the others on your prompts, and decide by a rule written down beforehand,
# 4. see why the method with the largest τ need not be the fastest, and what would have to change.
#
# The model is SmolLM2 (135 M parameters, 4-bit weights, dequantised) if `specviz models get smollm2` has
# downloaded it, and the bundled `town` (2 M parameters, a small world) if not. The model decides what can
# draft. `town` has trained drafters: a small model and EAGLE layers. SmolLM2's drafters are in
# [07c](07c_eagle.ipynb) and [15](15_should_i_draft.ipynb); here, four methods that need no training compete,
# as for a model that nobody has trained for. For a model of your own replace `YOURS` by its name, `METHODS`
# by what can draft for it, and the suite by your prompts.

# %%
import tempfile
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import specviz as sv
from specviz import metrics, view

torch.set_num_threads(1)
YOURS = "smollm2" if "smollm2" in sv.list_models() else "town"  # or a folder, "hf:<id>", "gguf:<file>"
model = sv.load(YOURS)
if YOURS == "smollm2":
    prompt, first = sv.suite("everyday", kind="summarization")[0], {"method": "prompt_lookup"}
    METHODS = [
        "prompt_lookup",
        {"method": "unispec", "draft_size": 4},
        {"method": "token_recycling", "draft_size": 16},
        {"method": "lookahead", "draft_size": 16},
    ]
else:
    prompt = "Translate into German: The doctor bought a red bicycle yesterday."
    first = {"method": "speculative", "draft": "town-draft-aligned"}
    METHODS = [
        "prompt_lookup",
        {"method": "unispec", "draft_size": 24},
        first,
        {"method": "eagle", "draft": ["town-eagle-en", "town-eagle"]},
    ]
trace = sv.generate(model, prompt, **first, max_new_tokens=40)
trace

# %% [markdown]
# ## What to write
#
# | your model is | write | what it needs |
# |---|---|---|
# | bundled | `sv.load("town")` | nothing |
# | SmolLM2 | `sv.load("smollm2")` | `specviz models get smollm2`, once |
# | a folder in transformers' format | `sv.load("./folder")` | `config.json`, safetensors, a tokenizer |
# | on the hub | `sv.load("hf:Qwen/Qwen3-0.6B", revision="...")` | a network, once |
# | in memory | `sv.load(net, tokenizer=tokenizer)` | a transformers model |
# | a GGUF file | `sv.load("gguf:model.gguf")` | llama.cpp: `pip install -e ".[llamacpp]"` |
# | the same on torch | `sv.load("gguf:model.gguf", backend="torch")` | the Llama family; its weights are dequantised |
# | for an NVIDIA GPU | `sv.load(..., "cuda", "bfloat16")` | a CUDA build of torch |
# | for a Mac's GPU | `sv.load(..., "mps")`, or `sv.load("gguf:model.gguf", gpu_layers=-1)` | Apple silicon; for GGUF a Metal build |
# | larger than one GPU | `sv.load(..., device_map="auto")`, layer by layer | accelerate |
# | the same, every layer on all of them | `sv.load(..., tp_plan="auto")` | a script under `torchrun --nproc-per-node N` |
#
# `specviz generate METHOD --model ...` takes the same names. A folder and a model in memory, here and now, with `town`:

# %%
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

logging.disable_progress_bar()

folder = str(sv.list_models()["town"])  # any folder on your disk
net, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
question = "Translate into German: The doctor bought a red bicycle yesterday."
for each in (sv.load("town"), sv.load(folder), sv.load(net, tokenizer=tokenizer)):
    text = sv.generate(each, question, "autoregressive", max_new_tokens=40).text
    print(f"{each.parameters / 1e6:.1f} M parameters, {each.vocabulary} tokens, {each.device}: {text}")

# %% [markdown]
# **Predict.** Which of these are refused, and what does each refusal say? A misspelt name; a file of pickled
# weights; a model of a family with a recurrent state; a GPU that is missing; a drafter that was trained for
# another model.

# %%
scratch = Path(tempfile.mkdtemp())
pickled = scratch / "pickled"
pickled.mkdir()
(pickled / "config.json").write_text((Path(folder) / "config.json").read_text())
torch.save({"a": torch.zeros(1)}, pickled / "pytorch_model.bin")

from transformers import JambaConfig, JambaForCausalLM

tiny = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
}
layers = {"num_attention_heads": 2, "num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
recurrent = JambaForCausalLM(JambaConfig(**tiny, **layers, num_experts=2))
attempts = {
    "a misspelt name": lambda: sv.load("twon"),
    "no such file": lambda: sv.load("gguf:mine.gguf"),
    "pickled weights": lambda: sv.load(pickled),
    "a recurrent model": lambda: sv.load(recurrent, tokenizer=tokenizer),
    "a Mac's GPU": lambda: sv.load(YOURS, "mps"),
    "a tenth GPU": lambda: sv.load(YOURS, "cuda:9"),
    "a drafter of another model": lambda: sv.generate("town-draft", prompt, "eagle", draft="town-eagle"),
    "a draft of another kind": lambda: sv.generate(model, prompt, "speculative", draft="town-t5-small"),
}
answers = []
for what, attempt in attempts.items():
    try:
        attempt()
        answers.append((what, "(it works here)"))
    except sv.SpecvizError as error:
        answers.append((what, str(error).replace(str(scratch), "…")))


def to_read(frame):
    """A table of words, each column beginning on the left."""
    left = [{"selector": "", "props": "text-align: left; white-space: pre-wrap"}]
    return frame.style.set_table_styles(dict.fromkeys(frame.columns, left)).format(escape="html")


to_read(pd.DataFrame(answers, columns=["tried", "answer"])).hide()

# %% [markdown]
# One line each. Two refusals are by design: a pickle can run code when opened, and a recurrent state cannot
# forget a rejected draft. A third is not tried here: code that comes with a model is never run.
#
# ### GGUF, and Metal
#
# Any Llama-like folder becomes a GGUF file (`specviz models gguf town --out town.gguf --type q8_0`). SmolLM2 is one already.
#
# **Predict.** Run the model as a GGUF file on llama.cpp, `town` in 8 bits or SmolLM2's own file in 4. Is its greedy
# text the one that torch writes? And does drafting with prompt lookup change the text there?

# %%
try:
    file = YOURS
    if YOURS == "town":
        from specviz.models.llamacpp import write_gguf

        file = scratch / "town.gguf"
        print(write_gguf(YOURS, file, "q8_0"))
    packed = sv.load(f"gguf:{file}", threads=1)
    plain = sv.generate(packed, prompt, "autoregressive", max_new_tokens=40)
    looked = sv.generate(packed, prompt, "prompt_lookup", max_new_tokens=40)
    print("torch:     ", sv.generate(model, prompt, "autoregressive", max_new_tokens=40).text)
    print("llama.cpp: ", plain.text)
    print("drafted:   ", looked.text, "| the same tokens:", looked.tokens() == plain.tokens())
except (sv.ModelError, ImportError) as error:
    print(f"left out: {error}")

# %% [markdown]
# Exact means: the text of *this* target. A file with rounded weights is another target, and so is the same file in
# another library, whose sums round differently. Either may write another text; the promise is that drafts do not change
# it. On llama.cpp this holds up to ties: passes of different sizes round differently, so a draft may change which of two
# nearly equal tokens is chosen. Compare speeds only for the same file on the same library.

# %%
print("torch on Metal:", "yes" if torch.backends.mps.is_available() else "no Metal here; cpu it is")
print("torch on CUDA:", "yes" if torch.cuda.is_available() else "no CUDA device here")
if torch.backends.mps.is_available():
    print(sv.generate(sv.load(YOURS, "mps"), prompt, "autoregressive", max_new_tokens=40).text)

# %% [markdown]
# ## Which method? First what your task forbids
#
# Speed is the last question. Four come first, and each method declares its answers:
#
# 1. **Must the text be the target's own?** Lossy methods then drop out.
# 2. **Do you sample?** Methods that only know the likeliest token drop out.
# 3. **May you train, or is there a small model with the same tokenizer?** If neither, methods that need a
#    drafter drop out.
# 4. **Is there memory for it?** A draft model has weights and a KV cache of its own; stores hold text.

# %%
from specviz.methods import find
from specviz.methods.sampling import Sampling

accounts = {}
for name in sv.list_methods():
    kind = find(name)
    if kind.canvas or kind.streams or name == "autoregressive":
        continue  # of diffusion models, and of texts that arrive in updates
    needs = {"model": "a draft model", "heads": "trained heads", "eagle": "a trained layer"}[kind.drafts_with]
    accounts[name] = {
        "needs": needs if kind.needs_draft else "nothing",
        "its greedy text is": kind().exactness(Sampling(0), "float32"),
        "samples": "no" if kind.only_greedy else "yes",
    }
to_read(pd.DataFrame(accounts).T)

# %% [markdown]
# Say your task is to answer greedily, with the target's own text. With `town` you answer in English, German
# and Japanese, and a draft model and EAGLE drafters have been trained. Four of the remaining methods compete,
# EAGLE with two drafters: one saw English only, one saw all seven languages. With SmolLM2 you answer in
# English, and train nothing: four methods compete that need no training. Some of the prompts hold a text to
# quote (a passage, a program), the others do not.
#
# ## Then a rule, before the numbers
#
# Write the rule down first:
#
# > The prompts are those below, no more and no fewer. With m methods, an interval holds with 1 − 5 %/m, since
# > the best of many may be best by chance. Consider the methods whose interval of paired speedups is above 1. If
# > there is none, decode autoregressively. Find the fastest of them, and compare the others with it prompt by
# > prompt. Of those that are not clearly slower, take the one that needs least (no training, less memory), and
# > among equals the fastest. If prompts fall into groups that are decoded separately (languages, kinds of work),
# > apply the rule in each. If it is undecided, run again on new prompts.
#
# **Predict.** Rank them by τ, and by speedup. How many speedups are above 1?

# %%
tau_guess = {
    "smollm2": ["token_recycling", "lookahead", "unispec", "prompt_lookup"],
    "town": ["eagle town-eagle", "speculative", "eagle town-eagle-en", "unispec", "prompt_lookup"],
}[YOURS]
above_guess = 3

# %%
if YOURS == "smollm2":
    group, quoting = "kind", ("summarization", "rag", "code")
    suite = sv.suite("everyday", kind=["conversation", "qa", "arithmetic", *quoting])
    suite = [each | {"kind": "to quote" if each["kind"] in quoting else "nothing to quote"} for each in suite]
    measured, warm, length = suite[6:], suite[:3], 32  # the first three fill the memories
else:
    group, length = "language", 48
    kinds = ["translation", "summarization", "qa", "arithmetic", "rag", "code"]
    suite = sv.suite("multi-town", kind=kinds, language=["en", "de", "ja"], each=2)
    measured = [each for each in suite if each["id"].endswith("00")]
    warm = [each for each in suite if each["id"].endswith("01")]
run = sv.run(
    models=YOURS if YOURS == "town" else model, methods=METHODS, suites={"mine": measured + warm},
    number=len(measured), warm_up=min(6, len(warm)), max_new_tokens=length, traces=True, out=scratch / "run",
)  # fmt: skip
run

# %% [markdown]
# All methods decode a prompt right after one another, so other load on the machine affects all alike. `same texts`
# confirms that the exact methods were exact. Of the four speedups ([13](13_replay.ipynb) explains pooled and per
# request) the rule takes the paired one, the median over prompts of the ratio on that prompt.


# %%
def named(table):
    """A run's table by method, and by drafter where a method has two."""
    drafts = table["draft"].fillna("").replace("town-draft-aligned", "")
    table = table.set_index((table["method"] + " " + drafts).str.strip().rename("name"))
    return table.drop(index="autoregressive")


table = named(run.table())
by_tau = list(table["tau"].sort_values(ascending=False).index)
by_speed = list(table["paired_speedup"].sort_values(ascending=False).index)
print("by τ:      ", " > ".join(by_tau), "\nyour guess:", " > ".join(tau_guess))
print("by speedup:", " > ".join(by_speed))
print(f"above 1: your guess {above_guess}, measured {(table['paired_speedup'] > 1).sum()}; ", end="")
print(f"with the whole interval {(table['paired_speedup_low'] > 1).sum()}")

# %%
MARKERS, HUES = "^sDov", ("#cc79a7", "#009e73", "#e69f00", "#0072b2", "#d55e00")
looks = {name: {"fmt": m, "color": hue} for name, m, hue in zip(table.index, MARKERS, HUES)}
figure, ax = view.subplots(figsize=(8, 4.2))
for name, row in table.iterrows():
    speed, τ = row["paired_speedup"], row["tau"]
    ax.errorbar(
        τ, speed, label=name, **looks[name],
        yerr=[[speed - row["paired_speedup_low"]], [row["paired_speedup_high"] - speed]],
        xerr=[[τ - row["tau_low"]], [row["tau_high"] - τ]],
    )  # fmt: skip
right, top = table["tau_high"].max() + 0.2, max(1.6, table["paired_speedup_high"].max() + 0.1)
for C in (1, 2, 4, 8):  # a name at each line's end, outside of the frame
    end = min(right, top * C)
    ax.plot([1, end], [1 / C, end / C], color="#cccccc", lw=1, zorder=0)
    placement = {"xytext": (4, 0), "va": "center"} if end == right else {"xytext": (0, 3), "ha": "center"}
    ax.annotate(f"C = {C}", (end, end / C), textcoords="offset points", color="#666666", size=9, **placement)
ax.axhline(1, color="#888888", ls=":")
ax.set(xlabel="τ, tokens a cycle", ylabel="speedup, paired", xlim=(0.9, right), ylim=(0, top))
figure.legend(loc="outside right upper", frameon=False)
plt.show()

# %% [markdown]
# On a grey line a cycle costs as much as $C$ autoregressive steps.
#
# ## The decision
#
# In code:

# %%
# What each needs: nothing, memory for a store, a small model, training on this target.
NEEDS = {"prompt_lookup": 0, "unispec": 1, "token_recycling": 1, "lookahead": 1, "speculative": 2, "eagle": 3}


rows = run.rows()
labels = {
    cell["cell"]: " ".join(filter(None, (cell["method"], cell["draft"]))).replace(" town-draft-aligned", "")
    for cell in run.cells
}
rows["name"] = rows["cell"].map(labels)
rows["speed"] = rows["tokens"] / (rows["prefill_seconds"] + rows["decode_seconds"])
speeds = rows.pivot_table("speed", "prompt", "name")  # tokens/s


def ratios(speeds, to):
    """Each method's speed over another's: the median over prompts, and its interval, corrected for their number."""
    each = speeds.drop(columns="autoregressive").div(speeds[to], axis=0)
    drawn = each.to_numpy()[np.random.default_rng(0).integers(len(each), size=(4000, len(each)))]
    edge = 0.025 / each.shape[1]
    low, high = np.quantile(np.median(drawn, axis=1), (edge, 1 - edge), axis=0)
    return pd.DataFrame({"median": each.median(), "low": low, "high": high}, each.columns)


def decide(speeds):
    """The rule above: a name, or none."""
    paired = ratios(speeds, "autoregressive")
    good = paired[paired["low"] > 1]
    if good.empty:
        return "none: decode autoregressively"
    rivals = ratios(speeds, good["median"].idxmax()).loc[good.index]
    equal = rivals.index[rivals["high"] >= 1]
    return min(equal, key=lambda name: (NEEDS[name.partition(" ")[0]], -good.loc[name, "median"]))


print("decision:", decide(speeds))
paired = ratios(speeds, "autoregressive")
rivals = ratios(speeds, paired["median"].idxmax())
shown = table[["tau", "decode_speedup"]].join(paired.rename(columns={"median": "paired speedup"}))
shown.join(rivals.add_suffix(", over the fastest")).round(2)

# %% [markdown]
# *None* is a result, too. If the rule does not decide, do not add prompts until it does: whoever looks again and again
# finds a difference by chance. Run again on new prompts, more of them: an interval's width shrinks as $1/\sqrt n$.
#
# ## Why: where the time goes
#
# A cycle that emits τ tokens and takes as long as $C$ autoregressive steps has a speedup of $\tau / C$ (the prefill
# aside). Four phases make up $C$: drafting, the target's pass, the verdict, the cache.
#
# **Predict.** Take the method with the largest τ. EAGLE, which has it on `town`, drafts with one layer of the size of
# the target's own, six levels deep; the methods on SmolLM2 look up what they remember. What share of its cycle goes
# into drafting?

# %%
share_guess = 0.3

# %%
PHASES = ["draft_time", "forward_time", "verify_time", "commit_time"]
traces, step = {}, {}
for cell in run.cells:
    name = labels[cell["cell"]]
    traces[name] = [run.trace(cell["cell"], i) for i in range(len(measured))]
    cycles = pd.concat([each.cycles for each in traces[name]])
    times = cycles.loc[cycles["cycle"] > 0, PHASES].fillna(0)
    times = times.clip(upper=times.quantile(0.9), axis=1).mean()  # what interrupted a cycle is cut back
    own = rows[rows["cell"] == cell["cell"]]
    whole = 1e3 * own["decode_seconds"].sum() / own["steps"].sum()
    step[name] = times / times.sum() * whole
    step[name]["whole"] = whole
step = pd.DataFrame(step).T
step["C"] = step["whole"] / step.loc["autoregressive", "whole"]
share = step.loc[by_tau[0], "draft_time"] / step.loc[by_tau[0], "whole"]
print(f"drafting's share in {by_tau[0]}: your guess {share_guess:.0%}, measured {share:.0%}")
hues = ["#56b4e9", "#0072b2", "#e69f00", "#999999"]  # as in the player
ax = step[PHASES].iloc[::-1].plot.barh(stacked=True, figsize=(8, 3), width=0.7, color=hues)
ax.set(xlabel="ms a cycle, prefill left out", ylabel="")
ax.legend(
    [p.removesuffix("_time") for p in PHASES], frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1)
)
plt.show()

# %% [markdown]
# The length of a cycle comes from the run's rows, in process time; its division, from the traces. As numbers:

# %%
step["τ"] = table["tau"].reindex(step.index).fillna(1.0)
step["τ / C"] = step["τ"] / step["C"]
step[["whole", "C", "τ", "τ / C"]].rename(columns={"whole": "ms a cycle"}).round(2)

# %% [markdown]
# A method pays where $\tau > C$, and their quotient is the speedup of decoding (`decode_speedup` of the table; the
# paired one includes the prefill and weights prompts alike).
#
# What would a larger target change? Its autoregressive step, the unit of $C$, is longer, and the drafter's own cost
# stays. Count what a pass computes and reads:

# %%
last = {name: some[0] for name, some in traces.items()}
costs = metrics.relative_costs(last, "autoregressive").set_index("name")
costs[["relative_flops", "relative_bytes"]].round(2)

# %% [markdown]
# Per token of the text, relative to autoregressive decoding, on one prompt (EAGLE's bytes and operations include its
# layer's passes). A target whose weights come from memory is at best as fast as its *bytes* allow: the
# second column's inverse is the most that a method can gain. A target in the processor's cache is bound by its
# operations (the first column) and by the cost of starting each product. How near a pass comes to either bound depends
# on the kernel: [08](08_calibrate.ipynb) lays out the same weights in several ways and gets a different $C$ for
# each. `town` has 9 MB of weights and fits into a cache; SmolLM2 has 538 MB in float32, and a model
# of 8 B parameters 16 GB in bfloat16.
#
# **Predict.** Suppose the target's pass took ten times as long, and verifying a draft no longer than verifying one token,
# with the drafting as measured here. Which method would win?

# %%
winner_guess = {"smollm2": "unispec", "town": "speculative"}[YOURS]

# %%
pass_time = step.loc["autoregressive", "forward_time"]
rest = step["whole"] - step["forward_time"]  # drafting, verdict and cache: as measured


def modelled(times):
    """Each method's speedup if the target's pass took `times` as long."""
    cycle = rest + times * pass_time
    return step["τ"] * (cycle["autoregressive"] / cycle)


print(f"ten times: your guess {winner_guess}, modelled {modelled(10).idxmax()}; speedups, the best in bold")
longer = pd.DataFrame({times: modelled(times) for times in (1, 3, 10, 100)}).T
longer.rename_axis("pass, times as long").style.format(precision=2).highlight_max(
    axis=1, props="font-weight: bold; text-decoration: underline"
)

# %% [markdown]
# Move the factor. From which value on does your guess win, if at all?


# %%
def ranked(times):
    print(f"a pass {times} times as long:")
    print(modelled(times).sort_values(ascending=False).round(2).to_string())


slider = ipywidgets.IntSlider(10, min=1, max=100, continuous_update=False)
controls = ipywidgets.interact(ranked, times=slider)

# %% [markdown]
# **Modelled**, and optimistic: a larger target usually gets a larger draft model, EAGLE's layer grows with it, and a
# pass over a tree is never quite free. But it shows which number you must measure yourself. τ can be measured on a
# small machine; $C$ must be measured where you will decode.
#
# ## By group
#
# **Predict.** With `town`: two of the five drafters are independent of language, because they copy or remember. The
# draft model and one of EAGLE's layers were trained on all seven, the other layer on English alone. Where does that
# show? With SmolLM2: one of the four drafters only copies from the text. Where does that show?

# %%
by = named(run.table(by=group))
figure, axes = view.subplots(1, 2, figsize=(11, 3.6))
order = list(dict.fromkeys(by[group]))
for ax, column, label in (
    (axes[0], "tau", "τ, tokens a cycle"),
    (axes[1], "paired_speedup", "speedup, paired"),
):
    for i, (name, part) in enumerate(by.groupby("name", sort=False)):
        part = part.set_index(group).loc[order]
        below, above = part[column] - part[f"{column}_low"], part[f"{column}_high"] - part[column]
        x = np.arange(len(order)) + (i - 2) * 0.14
        ax.errorbar(x, part[column], [below.clip(0), above.clip(0)], ms=5, label=name, **looks[name])
    ax.set(xticks=range(len(order)), xticklabels=order, xlabel=group, ylabel=label)
    ax.set_ylim(0)
axes[1].axhline(1, color="#888888", ls=":")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
plt.show()
for part in order:
    print(f"{part}: {decide(speeds.loc[rows.loc[rows[group] == part, 'prompt'].unique()])}")

# %% [markdown]
# `town`: the English drafter proposes what an English text would say next, and in another language nearly all of it is
# rejected. It still costs a whole cycle, so it is far slower than no drafter. The same layer trained on all seven
# languages keeps most of its τ. Methods that remember are independent of language, and have a small τ on such short
# texts.
#
# SmolLM2: prompt lookup finds drafts where the answer repeats words in the order of the prompt, or its own.
# If nothing matches it sends nothing, so it loses almost nothing there. The memories draft everywhere and pay
# for it everywhere.
#
# A sum over all prompts would have hidden this. Before you decide, group prompts by what your users differ in.
#
# ## What this decision does not show
#
# - It is about these prompts, this machine, one thread, one text at a time. A batch leaves less room for drafts, on a CPU
#   often none (`specviz bench batches`; [15](15_should_i_draft.ipynb) says where some is left).
# - It is greedy. At a temperature fewer drafts are accepted; run the same plan with `temperature=1.0`.
# - So few prompts per group give only a sketch: the whole range of six speedups misses the true median in 3 % of cases,
#   and the rule wants about 1 %. `specviz bench run PLAN.toml` takes hundreds, keeps every
#   row, and resumes where it was stopped; `specviz bench report RUN --html` shows it to others.
# - Draft lengths and sizes were chosen beforehand, not calibrated. `sv.calibrate(model, "unispec")` ([08](08_calibrate.ipynb)) finds better
#   ones.
# - An exact method can only be slow. A lossy one (`bild`, `cm_asd`) can also be wrong, and its decision needs a measure
#   of quality ([03](03_bild.ipynb)).

# %% [markdown]
# ## Five questions
#
# <details><summary>1. Why is the rule written down before the numbers?</summary>
#
# Otherwise the numbers decide which rule is chosen.
# </details>
#
# <details><summary>2. When does the rule say not to draft, and which cost does it not see?</summary>
#
# When no method's interval of paired speedups, corrected for their number, is above 1. It does not see the cost of
# training, which you pay once for every new target and spread over all tokens you will ever decode.
# </details>
#
# <details><summary>3. A method has τ = 4.7 and a speedup of 0.75. What is its C, and which τ would it need?</summary>
#
# $C$ is 6.3, so τ must exceed 6.3; its tree's depth may not even allow that. (τ is the same on every machine; $C$
# belongs to the one that will run.)
# </details>
#
# <details><summary>4. Two engines run one file with different speeds. What may be compared?</summary>
#
# Speedups over the same file on the same library; between engines, tokens per second.
# </details>
#
# <details><summary>5. Why the paired speedup and not the pooled one? When would you use the pooled one?</summary>
#
# It weights prompts alike, and one slow moment cannot move a median. If you pay by the hour, all tokens over all
# seconds is your number.
# </details>
