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
# # The explorer
#
# Choose **Run ▸ Run All Cells**. The explorer opens with a decode: the text appears while it is decoded, each
# token coloured by its origin, and drafts that were dropped are struck out. Then:
#
# - type another prompt, or choose a model, a method or an example, and press **Decode** (`Ctrl Enter`);
#   **Stop** (`Escape`) ends a decode, and the text so far becomes a result;
# - move the method's own parameters: a result says at once what another setting would have done;
# - each result is a row: **Player** steps through it cycle by cycle, **Save** gives its trace as a file, **Use** takes its
#   settings; the line of code at the bottom repeats the current settings anywhere.
#
# It decodes with SmolLM2 if `specviz models get smollm2` has downloaded it (93 MB), else with `town`, a bundled model of 2
# million parameters. As a page without code: `voila notebooks/explorer.ipynb`. Needs `torch`
# (`pip install -e ".[run,lab]"`).

# %%
import specviz as sv

sv.explore()

# %% [markdown]
# ## A race
#
# Two or three methods decode one prompt, each in its own column on its own clock. They take turns, so none is timed while
# another one computes. When all have ended, the race can be played again below.

# %%
sv.race(live=True, methods=["autoregressive", "speculative"])
