"""``python -m specviz``."""

from specviz.cli import main

main()
