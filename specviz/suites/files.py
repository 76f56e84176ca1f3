"""Read prompts from files: JSON lines, tables, plain lines, Spec-Bench's ``question.jsonl``.

All are returned as the dicts that `specviz.generate` takes: ``prompt`` (a text or chat messages) or
``turns``, and if known ``id``, ``kind``, ``language`` and ``reference``.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from specviz.chats import chat
from specviz.errors import PromptError, plural
from specviz.files import checked, parsed
from specviz.paths import expanded

Prompt: TypeAlias = dict[str, Any]  # the fields that `specviz.generate` reads; Entry is the checked form
LIMIT = 64 << 20  # maximum bytes of a prompt file
TABLES = {".csv": ",", ".tsv": "\t"}
KEPT = ("id", "kind", "language", "reference", "source", "from")
# Spec-Bench's kinds of work by the bundled suite's names. It reports MT-bench's categories as one.
KINDS = dict.fromkeys(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "conversation"
) | {"math_reasoning": "arithmetic", "humaneval": "code", "code_generation": "code"}


def read(path: str | Path) -> list[Prompt]:
    """Read the prompts of a file, one per line; blank lines are skipped.

    In JSON lines each is an object with ``prompt`` (a text), ``turns`` (texts of one conversation) or
    ``messages`` (a chat; an assistant's turn at its end becomes the reference); if several are present, turns
    take precedence over messages, and messages over prompt. Lines of OpenAI's batch files and ShareGPT's
    conversations, whose human turns become the turns, are read as well; conversations without one are left
    out, with a notice. A ``.json`` file may hold one list of such objects.

    A ``.csv`` or ``.tsv`` file needs a column named ``prompt``. A file is JSON lines if its name ends in
    ``.jsonl`` or ``.json``, if every line begins with ``{``, or if one is a JSON object and the name does not
    end in ``.txt``. Otherwise each line is a prompt. A file that ends in ``.gz`` is unpacked.

    Raises
    ------
    PromptError
        If the file cannot be read, or holds no prompt; the message gives the number of a bad line.
    """
    path = expanded(path, PromptError)
    content = load(path)
    if _ending(path) in TABLES:
        return _table(path, content)
    listing = content.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _ending(path) == ".json" and listing[:1] == b"[":
        listed = parsed(listing, str(path), error=PromptError)
        if not listed:
            raise PromptError(f"{path} holds no prompts")
        entries = [entry(each, f"{path}, entry {number}") for number, each in enumerate(listed, 1)]
        return _asking(path, "entry", dict(enumerate(entries, 1)))
    lines = []
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        try:
            text = raw.decode("utf8").strip()
        except UnicodeDecodeError:
            raise PromptError(f"{path}, line {number}: not UTF-8 text") from None
        if text:
            lines.append((number, text))
    if not lines:
        raise PromptError(f"{path} holds no prompts")
    first = _json(path, lines)
    if first is None:
        return [{"prompt": text} for _, text in lines]
    prompts = {}
    for number, text in lines:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)
            why = "it is nested too deep" if deep else getattr(error, "msg", "a number is too long")
            raise PromptError(f"{path}, line {number}: not a JSON object ({why}); {first}") from None
        prompts[number] = entry(content, f"{path}, line {number}")
    return _asking(path, "line", prompts)


def _asking(path: Path, place: str, prompts: dict[int, Prompt]) -> list[Prompt]:
    """Drop conversations without a human turn, with a notice; `place` is the unit of their numbers."""
    silent = [number for number, prompt in prompts.items() if prompt.get("turns") == []]
    if len(silent) == len(prompts):
        raise PromptError(f"{path} holds no prompts: its conversations have no human turn to answer")
    if silent:
        count, more = plural(len(silent), "conversation"), ", ..." if len(silent) > 3 else ""
        at = ", ".join(map(str, silent[:3])) + more
        print(f"specviz: {path}: {count} without a human turn left out ({place} {at})", file=sys.stderr)
    return [prompt for prompt in prompts.values() if prompt.get("turns") != []]


def _ending(path: Path) -> str:
    """A file's suffix in lower case, ignoring ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


@contextmanager
def long_fields() -> Iterator[None]:
    """Let a table's field be as long as a file; otherwise the module csv refuses 131,072 characters."""
    before = csv.field_size_limit(LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _table(path: Path, content: bytes) -> list[Prompt]:
    """Read the rows of a table whose first line names its columns, one of them ``prompt``."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PromptError(f"{path} is not UTF-8 text") from None
    mark = TABLES[_ending(path)]
    try:  # strict: otherwise a quote that opens a field would swallow the rows below it
        with long_fields():
            rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=mark, strict=True))
    except csv.Error as error:
        raise PromptError(
            f"{path} is not a table ({error}): a field that begins with a quote needs quotes around it, and "
            "its own doubled"
        ) from None
    columns = [name for name in rows[0] if name is not None] if rows else []
    if "prompt" not in columns:
        named = ", ".join(f"{each!r:.40}" for each in columns[:6]) or "no row"
        raise PromptError(
            f"{path} needs a column named prompt in its first line, it has {named}; plain lines go into a "
            ".txt file"
        )
    if long := next((number for number, row in enumerate(rows, 1) if None in row), None):
        raise PromptError(
            f"{path}, row {long} has more fields than the header: put quotes around a field that contains "
            f"{'commas' if mark == ',' else 'tabs'}"
        )
    names = [name for name in ("prompt", *KEPT) if name in columns]
    return [
        entry({name: row[name] for name in names if row[name]}, f"{path}, row {number}")
        for number, row in enumerate(rows, 1)
    ]


def _json(path: Path, lines: list[tuple[int, str]]) -> str | None:
    """Why a file counts as JSON lines, and how to have plain lines read instead; None if it is plain."""
    ending = _ending(path)
    if ending in (".jsonl", ".json"):
        return f"a {ending} file holds one object per line; plain lines go into a .txt file"
    if all(text.startswith("{") for _, text in lines):
        return "every line begins with {, so each must be one"
    if ending != ".txt":
        for number, text in lines:
            with suppress(ValueError, RecursionError):
                if isinstance(json.loads(text), dict):
                    return f"line {number} is one, so each must be; plain lines go into a .txt file"
    return None


def load(path: Path) -> bytes:
    """Read a file's content, unpacked if its name ends in ``.gz``.

    Raises
    ------
    PromptError
        If it cannot be read, or is longer than `LIMIT`.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            content = file.read(LIMIT + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PromptError(f"{path} is not a complete gzip file ({error})") from None
    except OSError as error:
        raise PromptError(f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > LIMIT:
        raise PromptError(f"{path} is larger than {LIMIT >> 20} MiB: split it")
    return content


def _form(fields: Prompt) -> str | None:
    """Name of the field that holds the prompt, by precedence."""
    return next((name for name in ("turns", "messages", "prompt") if fields.get(name) is not None), None)


def entry(line: object, where: str) -> Prompt:
    """Convert one object of a JSON lines file to a prompt; without a human turn its ``turns`` are empty.

    Raises
    ------
    PromptError
        If it is not a prompt; the message begins with `where`.
    """
    from specviz.suites.schema import Body, Entry, Turns

    fields: Prompt = {**checked(Entry, line, where, error=PromptError)}
    form = _form(fields)
    if form is None and "body" in fields:  # a line of OpenAI's batch file
        body: Prompt = {**checked(Body, fields["body"], f"{where}: 'body'", error=PromptError)}
        fields |= {name: body[name] for name in ("messages", "prompt") if body.get(name) is not None}
        form = _form(fields)
    if form is None and "conversations" in fields:  # ShareGPT's
        turns = checked(Turns, fields["conversations"], f"{where}: 'conversations'", error=PromptError)
        spoken = [turn["value"] for turn in turns if turn["from"] in ("human", "user")]
        fields["turns"] = [text for text in spoken if text.strip()]
        form = "turns"
        systems = [turn["value"] for turn in turns if turn["from"] == "system" and turn["value"].strip()]
        if systems and len(fields["turns"]) > 1:
            raise PromptError(
                f"{where}: has a system turn and {len(fields['turns'])} human ones, which cannot be kept "
                "together: keep one human turn, or remove the system turn"
            )
        if systems and fields["turns"]:
            roles = [("system", text) for text in systems] + [("user", fields["turns"][0])]
            fields["messages"] = [{"role": role, "content": text} for role, text in roles]
            form = "messages"
    if form is None:
        has = ", ".join(repr(name[:20]) for name in list(fields)[:6]) or "nothing"
        raise PromptError(f"{where}: needs 'prompt', 'turns' or 'messages'; it has {has}")
    if form == "messages":
        messages = fields["messages"]
        if len(messages) > 1 and messages[-1]["role"] == "assistant":  # a data set's answer
            answer = chat([{**messages[-1], "role": "user"}], f" ({where})")[0]["content"]
            messages = messages[:-1]
            if fields.get("reference") is None:
                fields["reference"] = answer
        fields["messages"] = chat(messages, f" ({where})")
    entry: Prompt = {"turns" if form == "turns" else "prompt": fields[form]}
    bench = "category" in fields and "question_id" in fields  # Spec-Bench's form
    if bench and fields.get("kind") is None:
        fields["kind"] = KINDS.get(fields["category"], fields["category"])
    other = {"kind": "category", "reference": "references"}
    fields = {name: fields.get(theirs) for name, theirs in other.items()} | fields
    fields.setdefault("id", fields.get("question_id", fields.get("custom_id")))
    if bench:  # every turn has its reference
        answers = fields["reference"]
        nested = isinstance(answers, list) and any(isinstance(each, list) for each in answers)
        if isinstance(answers, list) and (nested or len(entry.get("turns", ())) > 1):
            last = answers[-1] if answers else None  # a text, or all texts that count as right
            fields["reference"] = [
                each for each in (last if isinstance(last, list) else [last]) if each
            ] or None
    if isinstance(fields["reference"], list) and not all(
        isinstance(each, str) for each in fields["reference"]
    ):
        raise PromptError(
            f"{where}: reference should be a text or a list of texts, not {fields['reference']!r:.60}"
        )
    return entry | {name: fields[name] for name in KEPT if fields.get(name) is not None}
