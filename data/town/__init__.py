"""Where the bundled `town` models come from: the generator of their texts and the recipes of their training.

Of the repository alone; the wheel leaves it out, and nothing in `specviz` imports it. The README beside this
names the commands.
"""
