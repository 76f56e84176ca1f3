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
# # Start here
#
# A language model writes one token for each pass over its weights. **Speculative decoding** lets something cheap draft a
# few tokens ahead, and the model checks them all in one pass. This notebook decodes live, with models that come with the
# package, or with SmolLM2 if `specviz models get smollm2` has downloaded it.
#
# Choose **Run ▸ Run All Cells**. The first cell imports torch, which takes a few seconds.
#
# ## Decode
#
# The text appears while it is decoded. Blue tokens were drafted and accepted, green ones are the target's
# bonus, orange ones replace a draft that was rejected and is struck out. Type a prompt of your own and press
# **Decode**, then **Player** in the row that appears: it steps through the decode, draft by draft. **Race
# against the target alone** adds a decode without drafts. After a result, moving a slider also shows what
# another setting would have done.

# %%
try:
    import specviz as sv
except ModuleNotFoundError:  # on Colab: two minutes, of which torch is the most
    pip = get_ipython().run_line_magic  # noqa: F821
    pip("pip", "install -q 'specviz-lm[run,lab] @ git+https://github.com/specviz-lm/specviz-lm'")
    import specviz as sv

sv.explore("speculative")

# %% [markdown]
# ## Read a recorded decode
#
# A decode can be saved as a trace and opened anywhere, without the model or torch. Click into the player: `→` and `←` step
# from cycle to cycle, `space` plays, `?` lists the other keys.

# %%
trace = sv.open(sv.example("unispec"))
sv.player(trace.select(prompt=0), cycle=1)

# %% [markdown]
# ## Where to go from here
#
# - [00, quickstart](00_quickstart.ipynb): the four numbers by which speculative decoding is judged
# - [01, one token at a time](01_autoregressive.ipynb): why plain decoding is slow
# - [04, the player](04_player.ipynb): read a decode step by step, and predict the verdicts
# - [the explorer](explorer.ipynb): another model, another method, and a live race
#
# The file browser on the left lists the other walkthroughs.
#
# **On Binder** all open notebooks share 1 GB of memory, and one that decodes takes more than half of it: choose
# **Kernel ▸ Shut Down Kernel** in one before you run the next. Walkthroughs 03, 07a to 07c and 11a to 11c may need more
# than 1 GB, and Binder may then stop their kernels.
