"""Progress of long work: a bar in a notebook or a terminal, and a line a minute in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specviz.measure.report import Tick


@contextmanager
def bar() -> Iterator[Tick]:
    """A progress bar in a notebook or a terminal; elsewhere `Lines`."""
    from tqdm.auto import tqdm
    from tqdm.notebook import tqdm as page

    if not (issubclass(tqdm, page) or sys.stderr.isatty()):
        yield Lines()
        return
    with tqdm(total=1, leave=False, mininterval=0.5) as bar:

        def tell(done: int, of: int, what: str) -> None:
            if of != bar.total:
                bar.reset(of)
                bar.n = bar.initial = bar.last_print_n = done  # earlier progress took no time now
            bar.set_description(what, refresh=False)
            bar.update(done - bar.n)

        yield tell
        # Fewer steps than expected are no failure, but a notebook's bar would turn red.
        bar.total = bar.n


class Lines:
    """Progress for a log: at most one line per minute, with the time left; none for shorter work."""

    def __init__(self, every: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.every, self.clock = every, clock
        self.of, self.done, self.shown = 0, 0, clock()

    def __call__(self, done: int, of: int, what: str) -> None:
        now = self.clock()
        another_stage = of != self.of or done < self.done
        self.done = done
        if another_stage:
            self.of, self.begin, self.first = of, now, done
        if now - self.shown < self.every:
            return
        self.shown = now
        steps = done - self.first
        left = f", {(now - self.begin) / steps * (of - done) / 60:.0f} min left" if steps else ""
        print(f"specviz: {done} of {of}{left} ({what})", file=sys.stderr, flush=True)
