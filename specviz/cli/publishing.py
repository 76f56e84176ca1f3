"""``specviz site``: the documentation as plain files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from specviz.cli.arguments import writable
from specviz.cli.options import Force, option


def site(
    out: Annotated[Path, option("The folder to write.")] = Path("site"),
    execute: Annotated[bool, option("Run the walkthroughs so that pages show their outputs.")] = False,
    jobs: Annotated[int, option("Number of walkthroughs that run at a time.", min=1)] = 2,
    archive: Annotated[bool, option("Also write OUT.zip, the course as one file.", "--zip")] = False,
    force: Force = False,
) -> None:
    """Build the site as files for any static host. It has walkthroughs, methods, papers and the reference."""
    from specviz.site.build import build

    out = out.resolve()
    if archive:
        writable(out.with_name(f"{out.name}.zip"), force)
    writable(out.with_name(f"{out.name}.partial") / "index.html", True)  # check before minutes of work
    made = build(out, execute, jobs, force)
    print(f"site: {made / 'index.html'}")
    if archive:
        import shutil

        print(f"archive: {shutil.make_archive(str(made), 'zip', made)}")
