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
# Choose a method and a prompt, move the method's own parameters, and press **Decode**. Each result becomes a row; press
# **autoregressive** once to have something to compare with. *Player* steps through a result cycle by cycle, *Race* plays
# all results side by side at true relative speed. The line of code repeats the current settings anywhere.
#
# The models are the two small ones that ship with the package, so a decode takes well under a second. As a page
# without code: `voila notebooks/explorer.ipynb`. Needs `torch`.

# %%
import ipywidgets as widgets

import specviz as sv

model, draft = sv.load("town"), sv.load("town-draft")
prompts = [
    "Translate into German: The doctor bought a red bicycle in the old market on Sunday.",
    "Translate into Spanish: The teacher gave the child an old book in the library yesterday.",
    "Translate into Japanese: The cat is sleeping in the garden.",
]
method = widgets.Dropdown(options=["speculative", "bild"], description="method")
prompt = widgets.Dropdown(options=prompts, description="prompt", layout=widgets.Layout(width="95%"))
page = widgets.VBox()


def show(_=None):
    page.children = [sv.explore(method.value, model, prompt.value, draft=draft, max_new_tokens=64)]


method.observe(show, "value")
prompt.observe(show, "value")
show()
widgets.VBox([widgets.HBox([method]), prompt, page])
