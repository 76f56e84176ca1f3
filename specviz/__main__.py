"""``python -m specviz`` and the console script."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C during its import gives no traceback either."""
    try:
        from specviz.cli import main as run
    except KeyboardInterrupt:
        print("specviz: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
