"""Build the site: pages from the repository, Sphinx for layout and search, pdoc for the reference."""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from specviz.errors import ParameterError, SpecvizError, install, one_line
from specviz.files import write_text
from specviz.paths import example, folder
from specviz.replays.recorded import list_recorded, results
from specviz.site import books, check, pages
from specviz.site.links import repository

NEEDED = ("sphinx", "furo", "myst_parser", "latex2mathml", "pdoc", "nbformat", "nbclient", "plotly")
MARK = ".specviz-site"  # a file in each site's folder: a folder that has it may be replaced
LEARN = ("course", "glossary", "traces")
USE = ("python", "commands", "app", "api")
ABOUT = ("results", "runs", "audit", "limits", "data", "design", "decisions", "contributing", "changelog")
REPAIRS = {
    'role="heading"><span class="caption-text"': 'role="heading" aria-level="2"><span class="caption-text"',
    '<div class="highlight"><pre>': '<div class="highlight"><pre tabindex="0">',
}
API = """# API reference

```{raw} html
<p><a href="api/specviz.html">Every public name, its parameters and its source</a>. A method of one's own is
written against <a href="api/specviz/methods/base.html">methods.base</a>,
<a href="api/specviz/methods/hooks.html">methods.hooks</a> and
<a href="api/specviz/models/protocols.html">models.protocols</a>; a record is described in
<a href="api/specviz/schema.html">schema</a> and read by <a href="api/specviz/trace.html">trace</a>.</p>
```
"""
CONTENTS = """
```{{toctree}}
:hidden:
:caption: {caption}

{names}
```
"""

# pdoc shows the names in a package's `__all__`; the others are the interfaces of methods and models.
REFERENCE = ("specviz", *(f"specviz.{name}" for name in (
    "calibration", "draft", "loop", "methods", "methods.base", "methods.hooks", "methods.kinds",
    "methods.sampling", "models.protocols", "schema", "suites", "trace", "whatifs",
)))  # fmt: skip
# A page of the API reference: pdoc's own, with a link to the documentation.
MODULE_PAGE = """{% extends "default/module.html.jinja2" %}
{% block nav_title %}
<p><a href="{{ "../" * module.modulename.count(".") }}../index.html">← documentation</a></p>
{% endblock %}
"""


def build(
    out: Path,
    execute: bool = False,
    workers: int = 2,
    force: bool = False,
    say: Callable[[str], None] = print,
) -> Path:
    """Build the site as plain files.

    Parameters
    ----------
    out : Path
        The folder to write; with `force` an existing site is replaced.
    execute : bool
        Run the walkthroughs, so that their pages show outputs, pictures and players.
    workers : int
        Number of walkthroughs that run at a time.
    force : bool
    say : callable
        Called with a line about each step.

    Returns
    -------
    Path

    Raises
    ------
    SpecvizError
        If a package of the extra ``site`` is missing, the folder is in use, a walkthrough fails, or a page
        has a broken link.
    ParameterError
        If `workers` is below 1.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SpecvizError(f"{', '.join(missing)} is not installed, and the site needs it: {install('site')}")
    if workers < 1:
        raise ParameterError("workers must be at least 1")
    out = Path(out).resolve()
    _free(out, force)
    with tempfile.TemporaryDirectory() as temporary:
        sources, made = Path(temporary) / "sources", Path(temporary) / "site"
        sources.mkdir()
        _write(sources, made, execute, workers, say)
        _sphinx(sources, made, say)
        _recorded(made)
        _reference(made)
        say("built the reference")
        if faults := check.faults(made, own=("api/",)):
            raise SpecvizError(f"{len(faults)} faults in the pages: " + "; ".join(faults[:5]))
        write_text(made / MARK, repository() + "\n")
        _place(made, out)
    return out


def _place(made: Path, out: Path) -> None:
    """Copy a finished site to its folder; a full disk leaves the old site intact."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".site-", dir=out.parent) as part:
            copy = shutil.copytree(made, Path(part) / "site")
            if out.exists():
                shutil.rmtree(out)
            copy.rename(out)
    except OSError as error:
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
        raise SpecvizError(f"cannot write {out}: {one_line(str(why))}") from None


def _free(out: Path, force: bool) -> None:
    """Refuse a folder that holds something other than a site, or a site unless `force`."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / MARK).is_file():
        raise SpecvizError(f"{out} holds something other than a specviz site: name a new folder")
    if not force:
        raise SpecvizError(f"{out} already holds a site: --force replaces it")


def _write(sources: Path, made: Path, execute: bool, workers: int, say: Callable[[str], None]) -> None:
    """Write all pages as Markdown."""
    import nbformat

    from specviz.site import declared

    texts = pages.written()
    names = pages.places(texts)
    walks = pages.books()
    if execute:
        run = books.executed(list(walks.values()), made, workers, say)
    else:
        run = [nbformat.read(path, as_version=4) for path in walks.values()]
    for (name, path), book in zip(walks.items(), run):
        text = books.markdown(book, path, sources)
        texts.append(pages.Page(f"notebooks/{path.name}", name, text))
    texts += [pages.Page("", name, text) for name, text in declared.pages().items()]
    texts.append(pages.Page("", "api", API))
    there = {page.name for page in texts}
    papers = [name for name in sorted(there) if name.startswith("papers/")]
    contents = {
        "Learn": [LEARN[0], *walks, *LEARN[1:]],
        "Use": [*USE, "methods/index"],
        "Papers": [name for name in ("papers/index", *papers) if name in there],
        "About": list(ABOUT),
    }
    for page in texts:
        text = pages.linked(page, names, sources) if page.origin else page.text
        if page.name == "index":
            for caption, group in contents.items():
                text += _contents(caption, [name for name in group if name in there])
        if page.name == "methods/index":
            listed = sorted(there - {page.name})
            text += _contents(
                "Methods", [n.removeprefix("methods/") for n in listed if n.startswith("methods/")]
            )
        if page.name in OPENED:
            text += OPENED[page.name]()
        pages.write(sources, page.name, text)
    say(f"{len(texts)} pages written")


def _contents(caption: str, names: list[str]) -> str:
    return CONTENTS.format(caption=caption, names="\n".join(dict.fromkeys(names)))


def _recordings() -> Mapping[str, Path]:
    return {path.stem: example(path.stem) for path in sorted(folder("traces").glob("*.parquet"))}


def _traces() -> str:
    """Links to the recorded traces, each as a player and as a file."""
    files = {name: (f"players/{name}.html", f"files/{name}.parquet") for name in _recordings()}
    return _links("player", files)


def _runs() -> str:
    """Links to the recorded runs, each as a page and as a file."""
    files = {name: (f"runs/{name}.html", f"runs/{name}.parquet") for name in list_recorded()}
    return _links("report", files)


OPENED: Mapping[str, Callable[[], str]] = {"traces": _traces, "runs": _runs}  # pages that end with such links


def _links(word: str, files: Mapping[str, tuple[str, str]]) -> str:
    rows = "".join(
        f'<li>{name}: <a href="{page}">{word}</a>, <a href="{file}">Parquet</a></li>'
        for name, (page, file) in files.items()
    )
    return f"\n## Open one\n\n```{{raw}} html\n<ul>{rows}</ul>\n```\n"


def _recorded(made: Path) -> None:
    """Write the recorded traces and runs, each as a page and as a file."""
    from specviz.replays import page
    from specviz.trace import Trace

    for name in ("players", "files", "runs"):
        (made / name).mkdir(exist_ok=True)
    for name, path in _recordings().items():
        Trace.open(path).to_html(made / "players" / f"{name}.html", force=True)
        shutil.copy(path, made / "files" / path.name)
    for name, path in list_recorded().items():
        page.write(results(path), made / "runs" / f"{name}.html", force=True)
        shutil.copy(path, made / "runs" / path.name)


def _sphinx(sources: Path, made: Path, say: Callable[[str], None]) -> None:
    """Convert Markdown to HTML, with navigation and search."""
    from plotly.offline import get_plotlyjs
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace

    static = sources / "_static"
    static.mkdir()
    shutil.copy(Path(__file__).with_name("site.css"), static / "site.css")
    (static / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf8")
    settings = {
        "project": "specviz", "html_title": "specviz", "html_theme": "furo",
        "extensions": ["myst_parser", "specviz.site.mathml"], "html_math_renderer": "mathml",
        "myst_enable_extensions": ["dollarmath"], "myst_heading_anchors": 4,
        "html_static_path": [str(static)], "html_css_files": ["site.css"], "html_copy_source": False,
        "html_use_index": False, "html_show_search_summary": False, "html_show_copyright": False,
        "smartquotes": False,  # they turn the -- of a command's option into a dash
        "exclude_patterns": ["_static"], "language": "en", "suppress_warnings": ["myst.header"],
    }  # fmt: skip
    warnings = io.StringIO()
    with docutils_namespace(), tempfile.TemporaryDirectory() as trees:
        app = Sphinx(
            sources, None, made, trees, "html", confoverrides=settings, status=None, warning=warnings,
            freshenv=True,
        )  # fmt: skip
        app.build(force_all=True)
    for line in warnings.getvalue().splitlines():
        say(line.replace(f"{sources}/", ""))
    for path in made.rglob("*.html"):
        if not {"players", "runs", "api"} & set(path.relative_to(made).parts):
            path.write_text(_accessible(path.read_text(encoding="utf8")), encoding="utf8")


def _accessible(page: str) -> str:
    """Add what the theme leaves out: heading levels, and code that scrolls by keyboard."""
    for mark, now in REPAIRS.items():
        page = page.replace(mark, now)
    return page


def _reference(made: Path) -> None:
    """Build the API reference with pdoc in a separate process, light or dark like the other pages."""
    from pygments.formatters import HtmlFormatter

    command = [sys.executable, "-m", "pdoc", *REFERENCE, "-o", str(made / "api"), "--docformat", "numpy"]
    style = Path(__file__).with_name("reference.css").read_text(encoding="utf8")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".pdoc-code")
    with tempfile.TemporaryDirectory() as folder:
        templates = Path(folder)
        code = f"{style}@media (prefers-color-scheme:dark){{{dark}}}\n"
        (templates / "custom.css").write_text(code, encoding="utf8")
        (templates / "module.html.jinja2").write_text(MODULE_PAGE, encoding="utf8")
        done = subprocess.run([*command, "-t", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SpecvizError(f"pdoc cannot build the reference: {done.stderr.strip().splitlines()[-1]}")
