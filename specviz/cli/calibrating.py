"""``specviz calibrate``: a method's best draft size on this device."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specviz.cli.arguments import listed, on_threads, parameters_of, writable
from specviz.cli.options import (
    Device,
    Draft,
    Dtype,
    Invariant,
    Kernels,
    Model,
    NewTokens,
    Prompts,
    Revision,
    Settings,
    Threads,
    argument,
    option,
)
from specviz.cli.terminal import message_kept, progress, screen
from specviz.errors import ParameterError, loading, plural
from specviz.escape import line
from specviz.files import write_bytes
from specviz.models import ranks

if TYPE_CHECKING:
    from specviz.calibration import Calibration


def calibrate(
    method: Annotated[str, argument("A method with a draft size.")] = "unispec",
    model: Model = "town",
    draft: Draft = None,
    prompts: Prompts = "town",
    number: Annotated[
        int | None, option("How many prompts; default: 5 for town, all for other suites.", min=1)
    ] = None,
    warm_up: Annotated[
        int, option("How many texts of the bundled suite fill the method's memory first.", min=0)
    ] = 20,
    sizes: Annotated[
        str | None, option("Draft sizes to measure, such as 1,2,4,8; default: up to where it gets slow.")
    ] = None,
    set_: Settings = None,
    max_new_tokens: NewTokens = 128,
    rounds: Annotated[int, option("How often each text is timed at each size.", min=1)] = 5,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    kernels: Kernels = None,
    invariant: Invariant = None,
    revision: Revision = None,
    tp_plan: Annotated[
        str | None, option("auto: split the model over the ranks of torchrun and run it on their devices.")
    ] = None,
    folder: Annotated[Path | None, option("Folder for calibrations; default: the user's cache.")] = None,
    png: Annotated[Path | None, option("Write a picture of the curves to this file.")] = None,
    pages: Annotated[
        Path | None, option("Folder for a plot; a click on a size opens a text decoded with it.")
    ] = None,
    force: Annotated[bool, option("Measure again; replace existing files.", "--force", "-f")] = False,
) -> None:
    """Find a method's best draft size on this device. Use it with --set draft_size=calibrated."""
    if png is not None and png.suffix.lower() != ".png":
        raise ParameterError(f"--png writes a PNG: name the file .png, not {png}")
    written = [] if pages is None else [pages / "index.html", *pages.glob("size-*.html")]
    for path in filter(None, (png, *written)):
        writable(path, force)
    draft_sizes = listed("--sizes", sizes, int)
    if prompts is not None and prompts.isdecimal():
        raise ParameterError(f"--prompts takes a suite or a file; for a count, use --number {prompts}")
    with loading():
        from specviz import methods
        from specviz.calibration import FOLDER
        from specviz.loop.machine import calibrate_options
        from specviz.measure.calibrate import calibrate as measure
        from specviz.measure.calibrate import check_sizes
        from specviz.models import load

        kind = methods.find(method)
        values = parameters_of(kind, set_ or [])
        if kind.size:
            check_sizes(kind, draft_sizes)
        target = load(
            model, None if tp_plan else device, dtype, revision=revision, tp_plan=tp_plan, kernels=kernels,
            invariant=invariant,
        )  # fmt: skip
    begun = False
    with on_threads(threads), message_kept(), progress() as tick:

        def tell(done: int, of: int, what: str) -> None:
            nonlocal begun
            begun = True
            tick(done, of, what)

        result = measure(
            target, method, prompts, draft_sizes, draft, number=number, warm_up=warm_up,
            max_new_tokens=max_new_tokens, rounds=rounds, folder=folder, force=force, tick=tell,
            **values,
        )  # fmt: skip
    if not ranks.leads():
        return
    _show_calibration(result, begun)
    if ranks.size() > 1:  # only a plan can split a model
        print(f'to use it: {result.size} = "calibrated" in a plan of specviz bench run, on as many ranks')
    else:
        place = "" if folder is None else f"{FOLDER}={shlex.quote(str(folder))} "
        given = ["generate", method, "--model", model, *(["--draft", draft] if draft else [])]
        options = calibrate_options(target, kind(**values))
        print(f"to use it: {place}specviz {shlex.join(given)}{options} --set {result.size}=calibrated ...")
    if png is not None:
        from specviz import view

        print(f"picture: {write_bytes(png, view.calibration_png(result), force=True)}")
    if pages is not None:
        from specviz.measure.calibrate import size_traces
        from specviz.view import interactive

        traces = size_traces(target, result, prompts, draft, number, warm_up)
        interactive.curve(result, traces, pages, force=True)
        print(f"plot: {pages / 'index.html'}")


def _show_calibration(result: Calibration, new: bool) -> None:
    """Print the measured points, the fits and g*."""
    from specviz.measure.report import Column, print_table

    names = list(result.fits)
    columns = [Column("g", True), Column("τ", True), Column("ms per cycle", True)]
    columns += [Column("25%", True, drop_rank=1), Column("75%", True, drop_rank=0), Column("tokens/s", True)]
    columns += [Column(f"{name} fit", True) for name in names if name != "grid"] + [Column("")]
    rows = []
    for row in result.table.to_dict("records"):
        g, at = int(row["g"]), int(row["g"]) - result.points[0].g
        cells = [str(g), f"{row['tau']:.2f}", *(f"{row[key]:.2f}" for key in ("ms", "ms_q25", "ms_q75"))]
        cells.append(f"{row['tokens_per_second']:,.0f}")
        for name in names:
            if name != "grid":
                cost = result.fits[name].s[at]
                cells.append(f"{result.fits[name].tau[at] / cost:,.0f}" if cost > 0 else "–")
        rows.append([*cells, "g*" if g == result.g else ""])
    how = result.how
    console = screen()
    earlier = "" if new else f"; measured {result.created}, --force measures again"
    print(
        f"{plural(how['prompts'], 'text')} after {how['warm_up']} others, {plural(how['rounds'], 'round')}, "
        f"{line(how['clock'])}, {result.spent:.0f} s{line(earlier)}"
    )
    print_table(console, columns, rows)
    for name, fit in result.fits.items():
        # A smooth fit may oscillate between points and put g* where no measured point supports it.
        note = "taken" if name == result.chosen else "its t(g) falls below zero" if min(fit.s) <= 0 else ""
        print(f"{line(name):9} g* = {fit.g}" + (f" ({note})" if note else ""))
    if result.ended:
        print(f"no larger sizes: {line(result.ended)}")
    if result.at_end:
        print("g* is the largest measured size: try larger ones with --sizes")
    print(line(result.summary))
