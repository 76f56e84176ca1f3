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
    packed = out.with_name(f"{out.name}.zip")
    writable(packed, force or not archive)  # check before minutes of work
    made = build(out, execute, jobs, force)
    print(f"site: {made / 'index.html'}")
    if archive:
        import shutil
        import tempfile

        with tempfile.TemporaryDirectory(
            prefix=".site-", dir=out.parent
        ) as part:  # a failure keeps the old file
            Path(shutil.make_archive(f"{part}/site", "zip", made)).replace(packed)
        print(f"archive: {packed}")
