"""The class `Suite`: prompts with a name and a licence, and ways to select among them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, overload

from specviz.errors import ParameterError, PromptError, near, plural
from specviz.streams import Stream, fixed_lag, simulate_partials

from .files import Prompt

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "{source}"
Name: TypeAlias = str | int | None


class Suite(Sequence[Prompt]):
    """Prompts as `specviz.generate` takes them.

    Parameters
    ----------
    prompts : iterable of mapping
        Each with ``prompt`` or ``turns``, and if known ``kind``, ``language`` (of the answer),
        ``reference`` (right answers to the last turn) and ``source`` (the bare text to translate or to
        summarise). One without an ``id`` gets its number, from 1, with a # in front if that id is taken.
    name : str
    licence : str
        Licence of the texts; empty for a user's own file.

    Raises
    ------
    PromptError
        If there is no prompt, or two have the same id.
    """

    def __init__(self, prompts: Iterable[Prompt], name: str, licence: str = "") -> None:
        self.name, self.licence = name, licence
        given = [{k: v for k, v in p.items() if k != "id" or v is not None} for p in prompts]
        taken = {str(prompt["id"]) for prompt in given if "id" in prompt}
        own = (str(i) if str(i) not in taken else f"#{i}" for i in range(1, len(given) + 1))
        self.prompts = [{"id": name, **prompt} for name, prompt in zip(own, given)]
        if not self.prompts:
            raise PromptError(f"{name} holds no prompts")
        seen: set[str] = set()
        for prompt in self.prompts:
            prompt["id"] = prompt_id = str(prompt["id"])
            if prompt_id in seen:
                raise PromptError(f"{name}: two prompts have the id {prompt_id!r:.60}; each needs its own")
            seen.add(prompt_id)

    def __len__(self) -> int:
        return len(self.prompts)

    @overload
    def __getitem__(self, at: int) -> Prompt: ...

    @overload
    def __getitem__(self, at: slice) -> Suite: ...

    def __getitem__(self, at: int | slice) -> Prompt | Suite:
        return self._of(self.prompts[at]) if isinstance(at, slice) else self.prompts[at]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)

    def __repr__(self) -> str:
        parts = [plural(len(self), "prompt")]
        for word, values in (("kind", self.kinds), ("language", self.languages)):
            if values:
                parts.append(f"{len(values)} {word}s" if len(values) > 1 else f"{word} {values[0]}")
        return f"<Suite {self.name}: {', '.join(parts)}; licence: {self.licence or 'not stated'}>"

    @property
    def kinds(self) -> list[str]:
        """The kinds of work, in order of appearance."""
        return self._values("kind")

    @property
    def languages(self) -> list[str]:
        """The languages of the answers, in order of appearance."""
        return self._values("language")

    def _values(self, key: str) -> list[str]:
        return list(dict.fromkeys(p[key] for p in self.prompts if p.get(key) is not None))

    def _of(self, prompts: Iterable[Prompt]) -> Suite:
        return Suite(prompts, self.name, self.licence)

    @property
    def counts(self) -> pd.DataFrame:
        """Number of prompts of each kind (rows) in each language (columns)."""
        import pandas as pd

        frame = pd.DataFrame([{key: p.get(key) or "–" for key in ("kind", "language")} for p in self.prompts])
        table = pd.crosstab(frame["kind"], frame["language"])
        return table.reindex(index=frame["kind"].unique(), columns=frame["language"].unique())

    @property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of the prompts' SHA-256, equal for equal suites."""
        content = json.dumps(self.prompts, sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.sha256(content.encode("utf8", "surrogatepass")).hexdigest()[:16]

    def select(
        self,
        kind: str | Iterable[str] | None = None,
        language: str | Iterable[str] | None = None,
        *,
        each: int | None = None,
        limit: int | None = None,
    ) -> Suite:
        """Select prompts by kind and language.

        Parameters
        ----------
        kind, language : str or iterable of str, optional
            Kinds and languages to keep; default: all.
        each : int, optional
            Keep at most the first `each` of every kind in every language.
        limit : int, optional
            Keep at most the first `limit` in all.

        Returns
        -------
        Suite
            In the same order.

        Raises
        ------
        ParameterError
            If the suite has no such prompts, or a number is below 1.
        """
        chosen = self.prompts
        for key, wanted in (("kind", kind), ("language", language)):
            if wanted is None:
                continue
            words = [wanted] if isinstance(wanted, str) else list(wanted)
            values = self._values(key)
            for word in words:
                if word not in values:
                    raise ParameterError(f"{self.name} has no {key} {word!r}" + near(word, values))
            chosen = [p for p in chosen if p.get(key) in words]
        for name, number in (("each", each), ("limit", limit)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise ParameterError(f"{name} must be a whole number of at least 1, got {number!r}")
        if each is not None:
            counts = Counter[tuple[Name, Name]]()
            kept, chosen = chosen, []
            for p in kept:
                cell = p.get("kind"), p.get("language")
                counts[cell] += 1
                chosen += [p] * (counts[cell] <= each)
        if not chosen:
            raise ParameterError(f"{self.name} has no prompt of kind {kind!r} in language {language!r}")
        return self._of(chosen[:limit])

    def worded(self, template: str) -> Suite:
        """The prompts in another wording: `template`, with ``{source}`` in place of the bare text.

        Raises
        ------
        ParameterError
            If the template has no ``{source}``, or a prompt has no ``source`` (translations and summaries
            have one).
        """
        if not isinstance(template, str) or SOURCE not in template:
            raise ParameterError(
                f"a template must contain {SOURCE} where the text goes, got {template!r:.60}"
            )
        return self._of(
            {k: v for k, v in p.items() if k != "turns"}
            | {"prompt": template.replace(SOURCE, self._source(p))}
            for p in self.prompts
        )

    def streams(self, lag: int = 3) -> list[Stream]:
        """The sources as streams in which each update reveals the next `lag` words.

        Raises
        ------
        ParameterError
            If a prompt has no ``source``.

        See Also
        --------
        specviz.streams.fixed_lag
        """
        return [fixed_lag(self._source(p), lag, _spoken(p), **_named(p)) for p in self.prompts]

    def partials(self, seed: int = 0) -> list[Stream]:
        """The sources as simulated partial results of a speech recogniser.

        Raises
        ------
        ParameterError
            If a prompt has no ``source``.

        See Also
        --------
        specviz.streams.simulate_partials
        """
        return [
            simulate_partials(self._source(p), seed + i, language=_spoken(p), **_named(p))
            for i, p in enumerate(self.prompts)
        ]

    def _source(self, prompt: Prompt) -> str:
        if not isinstance(prompt.get("source"), str):
            raise ParameterError(
                f"{self.name}: prompt {prompt['id']} has no source text to put into a template"
            )
        return prompt["source"]


def _spoken(prompt: Prompt) -> str | None:
    """The language of the source."""
    return prompt.get("from") or prompt.get("language")


def _named(prompt: Prompt) -> Prompt:
    right = prompt.get("reference")
    return {"id": prompt["id"], "reference": right[0] if isinstance(right, list) and right else right}


def pick(entries: Iterable[Prompt], each: int) -> list[Prompt]:
    """The first `each` prompts of every kind of work, kind by kind in order of appearance."""
    return [item for items in _by_kind(entries).values() for item in items[:each]]


def spread(entries: Iterable[Prompt], n: int) -> list[Prompt]:
    """`n` prompts spread evenly over the kinds of work: the first of each kind, then the second of each."""
    kinds = _by_kind(entries)
    rounds = max(map(len, kinds.values()))
    return [items[i] for i in range(rounds) for items in kinds.values() if i < len(items)][:n]


def _by_kind(entries: Iterable[Prompt]) -> dict[Name, list[Prompt]]:
    kinds: dict[Name, list[Prompt]] = {}
    for item in entries:
        kinds.setdefault(item.get("kind"), []).append(item)
    return kinds
