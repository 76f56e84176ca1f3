"""``specviz doctor``: report installed and missing parts, and whether decoding works."""

from __future__ import annotations

import typer

from specviz.cli.arguments import writable
from specviz.cli.options import Force, Json, Model
from specviz.files import write_text


def doctor(model: Model = "town", json: Json = None, force: Force = False) -> None:
    """Check packages, kernels, downloads and a decode. Exit status 1 on a fault."""
    if json is not None:
        writable(json, force)
    from specviz.measure.doctor import doctor as examined

    report = examined(model)
    print(report.text())
    if json is not None:
        write_text(json, report.to_json() + "\n", force)
    if not report.ok:
        raise typer.Exit(1)
