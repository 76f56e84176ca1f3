"""Answers that another program wrote, for the audit and the advice: JSON lines, checked before use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from ..chats import chat
from ..errors import PromptError
from ..files import checked, parsed, whole_text
from ..models.protocols import Model, Prompt
from ..paths import expanded
from ..suites.files import load
from ..suites.schema import Message
from ..trace.engines import CONTEXT_FULL, CUT, ENDED
from ..trace.files import Record

Text = Annotated[str, AfterValidator(whole_text)]
Ids = list[Annotated[int, Field(ge=0, lt=2**31)]]
Setting = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Given: TypeAlias = "str | Path | Sequence[Record]"  # a file, or the objects on its lines

REPLACED = "\ufffd"  # replaces bytes that are not a character

# Settings that change what the target chooses but are not computed here, and the values that switch them off.
NEUTRAL = {
    "min_p": 0.0, "typical_p": 1.0, "repetition_penalty": 1.0, "repeat_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "dry_multiplier": 0.0, "xtc_probability": 0.0, "dynatemp_range": 0.0,
    "mirostat": 0.0, "no_repeat_ngram_size": 0.0, "min_tokens": 0.0,
}  # fmt: skip
# The same; empty, null, false and the type "text" switch them off.
CONSTRAINTS = (
    "logit_bias", "bad_words", "allowed_token_ids", "ignore_eos", "grammar", "json_schema", "regex", "ebnf",
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar",
)  # fmt: skip


class Line(TypedDict, total=False):
    """A line of the file."""

    id: Text | int | None
    prompt: Text | Ids | None
    turns: Annotated[list[Text], Field(min_length=1)] | None
    messages: Annotated[list[Message], Field(min_length=1)] | None
    kind: Text | None
    answer: Text | None
    token_ids: Ids | None
    finish_reason: Text | None
    stop: Text | list[Text] | None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None
    engine: Text | None
    temperature: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None
    top_p: Annotated[float, Field(gt=0, le=1)] | None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None  # -1 and 0: all tokens
    min_p: Setting | None
    typical_p: Setting | None
    repetition_penalty: Setting | None
    repeat_penalty: Setting | None
    presence_penalty: Setting | None
    frequency_penalty: Setting | None
    dry_multiplier: Setting | None
    xtc_probability: Setting | None
    dynatemp_range: Setting | None
    mirostat: Setting | None
    no_repeat_ngram_size: Setting | None
    min_tokens: Setting | None
    logit_bias: dict[str | int, float | bool] | list[list[float | bool | str]] | None
    bad_words: list[Text] | None
    allowed_token_ids: Ids | None
    ignore_eos: bool | None
    grammar: Text | None
    json_schema: Record | Text | None
    regex: Text | None
    ebnf: Text | None
    response_format: Record | Text | None
    structured_outputs: Record | None
    guided_json: Record | Text | None
    guided_regex: Text | None
    guided_choice: list[Text] | None
    guided_grammar: Text | None


@dataclass(frozen=True)
class Answer:
    """An answer and the settings stated for it.

    Parameters
    ----------
    where : str
        The line, for errors and reports.
    prompt : str, list of int or list of messages
        Messages go through the model's chat template; a text is used unchanged.
    chat : bool
        Whether the prompt is messages.
    answer : str
        Empty if only ids are given.
    ids : list of int or None
        The answer's tokens; None if only the text is given.
    end : {"stop", "length", "other", ""}
        Why it ended; empty if the line does not say.
    limit : int or None
        Maximum number of tokens that it could have.
    engine : str
    temperature, top_p : float
    top_k : int
    altered : str
        Settings stated besides these that change what the target chooses; empty if there are none.
    """

    where: str
    prompt: Prompt
    chat: bool
    answer: str
    ids: list[int] | None
    end: str
    limit: int | None
    engine: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    name: str = ""
    kind: str = ""
    altered: str = ""


def read(given: Given) -> list[Answer]:
    """Read answers from a file of JSON lines, or from such objects in memory.

    Parameters
    ----------
    given : str, Path or sequence of dict
        Each has ``messages`` or ``turns`` (only the first turn is answered), which go through the chat
        template, or ``prompt`` (a text, used unchanged, or ids); and ``answer`` or ``token_ids``, or both.
        Optional: ``finish_reason``, ``max_tokens``, ``engine``, ``temperature``, ``top_p``, ``top_k``,
        ``stop`` (texts that end an answer), ``id`` and ``kind`` (of work); and the settings in `NEUTRAL` and
        `CONSTRAINTS`, with which an answer cannot be judged.

    Raises
    ------
    PromptError
        If there is no answer, or one is invalid; the message names its line.
    """
    if isinstance(given, str | Path):
        path = expanded(given, PromptError)
        entries = [
            (f"{path}, line {number}", parsed(raw, f"{path}, line {number}", error=PromptError))
            for number, raw in enumerate(load(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
            if raw.strip()
        ]
        name = str(path)
    else:
        entries, name = [(f"answer {number}", each) for number, each in enumerate(given, 1)], "the list"
    if not entries:
        raise PromptError(f"{name} holds no answers: it needs one JSON object per line")
    return [_answer(where, each) for where, each in entries]


def _answer(where: str, entry: Record) -> Answer:
    line = checked(Line, entry, where, error=PromptError)
    turns, messages, prompt = line.get("turns"), line.get("messages"), line.get("prompt")
    if sum(each is not None for each in (turns, messages, prompt)) != 1:
        lacks = "has several of" if turns or messages else "lacks"
        raise PromptError(
            f"{where} {lacks} 'prompt', 'turns' or 'messages': exactly one of them must give the prompt"
        )
    chats = [{"role": each["role"], "content": each["content"]} for each in messages or ()]
    if turns:
        chats = [{"role": "user", "content": turns[0]}]
    text, ids = line.get("answer"), line.get("token_ids")
    if text is None and ids is None:
        raise PromptError(f"{where} lacks 'answer' (a string) or 'token_ids'")
    reason = line.get("finish_reason")
    end = "" if reason is None else "stop" if reason in ENDED else "length" if reason in CUT else "other"
    if end == "stop" and line.get("stop"):
        end = "other"  # it may have ended at one of these texts
    if prompt == "" or prompt == []:
        raise PromptError(f"{where} has an empty prompt")
    name = line.get("id")
    return Answer(
        where if name is None else f"{where} ({str(name)[:60]})",
        prompt or chat(chats, f" ({where})"),
        bool(chats),
        text or "",
        ids,
        end,
        None if reason == CONTEXT_FULL else line.get("max_tokens"),
        line.get("engine") or "",
        line.get("temperature") or 0.0,
        1.0 if line.get("top_p") is None else float(line["top_p"] or 1.0),
        max(line.get("top_k") or 0, 0),
        "" if name is None else str(name),
        line.get("kind") or "",
        _altered(line),
    )


def _altered(line: Line) -> str:
    """Name the stated settings that change what the target chooses and are not computed here."""
    stated: Record = {**line}
    names = []
    for name, neutral in NEUTRAL.items():
        # min-p keeps the likeliest token, which a greedy answer takes.
        if stated.get(name) not in (None, neutral) and (name != "min_p" or line.get("temperature")):
            names.append(f"{name} {stated[name]:g}")
    names += [name for name in CONSTRAINTS if stated.get(name) and stated[name] != {"type": "text"}]
    return ", ".join(names)


def tokenised(answer: Answer, model: Model) -> tuple[list[int], list[int], str]:
    """Token ids of the prompt and of the answer without its end token; and why it cannot be judged, if so."""
    text = model.text
    if answer.chat and not getattr(text.tokenizer, "chat_template", None) and not text.source:
        return [], [], f"its template is unknown: {model.name} has none"
    try:
        prompt = model.encode(answer.prompt, raw=True)
        if answer.ids is not None:
            ids = _given(answer, model)
        else:
            words = answer.answer.rstrip(REPLACED) if answer.end == "length" else answer.answer
            if REPLACED in words:
                return prompt, [], "some bytes are lost (U+FFFD), so its tokens are unknown"
            ids = text.plain(words)
            if text.special & set(ids):
                return prompt, [], "it holds characters that the tokenizer does not know"
    except PromptError as error:
        return [], [], str(error)
    if len(ids) > model.left(len(prompt)):
        return prompt, ids, f"it exceeds the context of {model.max_length} tokens"
    return prompt, ids, ""


def to_its_end(answer: Answer, model: Model) -> tuple[Answer, int | None]:
    """The answer up to its first end token; and the place where its ids continue after it, or None.

    Repeated end tokens are padding, not a continuation. An answer without an end token is left unchanged; so
    is a stated reason for its end, unless the ids continue.
    """
    ids = answer.ids or []
    if max(ids, default=0) >= model.vocabulary:
        return answer, None  # the ids of another model: see `tokenised`
    first = next((place for place, token in enumerate(ids) if token in model.eos), None)
    if first is None:
        return answer, None
    if all(token in model.eos for token in ids[first:]):  # engines pad the texts of a batch with it
        answer = replace(answer, ids=ids[: first + 1])
    elif first + 1 < len(ids):
        return replace(answer, ids=ids[: first + 1], answer="", end="stop"), first + 1
    return (answer if answer.end else replace(answer, end="stop")), None


def _given(answer: Answer, model: Model) -> list[int]:
    """The answer's own ids, without the end token.

    Raises
    ------
    PromptError
        If they are not ids of this vocabulary, or spell a different text than the answer.
    """
    ids = list(answer.ids or ())
    if (beyond := max(ids, default=0)) >= model.vocabulary:
        raise PromptError(f"token id {beyond} is outside the vocabulary of {model.vocabulary}")
    if ids and ids[-1] in model.eos and answer.end != "length":
        ids = ids[:-1]
    written, given = model.decode(ids).strip(), answer.answer.strip()
    if given and REPLACED not in written + given and written != given:
        raise PromptError(
            "its token_ids spell a different text than its answer: it was retokenised differently"
        )
    return ids
