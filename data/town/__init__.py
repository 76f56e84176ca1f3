"""The text generator and the training recipes of the bundled `town` models.

Part of the repository only: the wheel leaves it out, and nothing in `specviz` imports it. The README next to
this file lists the commands.
"""
