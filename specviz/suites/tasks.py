"""Suites of conversations, programs, exercises and questions, from MT-bench and HumanEval to XQuAD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path

from specviz.errors import PromptError
from specviz.files import parsed

from . import files, wording
from .fetching import File, single
from .rows import Row, member, rows, squad

Get = Callable[[File], list[Path]]
Prompts = Iterator[files.Prompt]
GITHUB = "https://raw.githubusercontent.com/"
EACH = 80  # prompts per task and language, in Spec-Bench and its extensions
SUBJECTS = (
    "algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
    "precalculus",
)  # fmt: skip
# Questions of Spec-Bench by number, four of each kind of work: recorded speeds are measured on them.
TWENTY_FOUR = (
    86, 173, 250, 333, 413, 493, 126, 190, 266, 350, 430, 510, 146, 209, 289, 369, 449, 529, 156, 227, 307,
    387, 467, 547,
)  # fmt: skip
THREE = {"en": "eng", "de": "deu", "fr": "fra", "es": "spa", "zh": "zho", "ja": "jpn", "vi": "vie"}


# ---------------------------------------------------------------- conversation


def mt_bench(get: Get, part: str) -> Prompts:
    """Conversations of two turns, in the form of Spec-Bench."""
    data = "fastchat/llm_judge/data/"
    if part == "en":
        url = f"{GITHUB}lm-sys/FastChat/main/{data}mt_bench/question.jsonl"
    elif part == "es":  # Lightblue's has no Spanish
        url = f"{GITHUB}ServiceNow/FastChat/main/{data}mt_bench_es/question.jsonl"
    else:
        url = f"{GITHUB}lightblue-tech/multilingual-mt-bench/main/{data}{part}_mt_bench/question.jsonl"
    path = single(get(File(r"question\.jsonl$", url=url)))
    for prompt in files.read(path):
        yield {"language": part, **prompt, "kind": "conversation"}


def spec_bench(get: Get, part: str) -> Prompts:
    """Spec-Bench, in English; translations are from German. Part 24: the first turns of `TWENTY_FOUR`."""
    url = f"{GITHUB}hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"
    path = single(get(File(r"question\.jsonl$", url=url)))
    prompts = files.read(path)
    if not all("id" in prompt and "turns" in prompt for prompt in prompts):
        raise PromptError(f"{path} is not Spec-Bench's: every line needs question_id and turns")
    every = {str(prompt["id"]): {"language": "en", **prompt} for prompt in prompts}
    if not part:
        yield from every.values()
        return
    missing = [number for number in TWENTY_FOUR if str(number) not in every]
    if missing:
        raise PromptError(f"{path} has no question {missing[0]}: it is not the whole of Spec-Bench")
    for number in TWENTY_FOUR:
        yield every[str(number)] | {"turns": every[str(number)]["turns"][:1]}


def multi_specbench(get: Get, part: str) -> Prompts:
    """Seven kinds of work, 80 prompts each, in the form of Spec-Bench; ``mix`` has 588 in all languages.

    Its files can be seen only after logging in; it is not confirmed that they are named after the language.
    """
    pattern = rf"(^|[/_.-]){part}([/_.-][^/]*)?\.(jsonl?|parquet)$"
    language = {} if part == "mix" else {"language": part}
    for row in rows(get(File(pattern, repo="nguyenlab/Multi-SpecBench"))):
        yield files.entry(row.values, row.where) | language


# ---------------------------------------------------------------- code


def humaneval(get: Get, part: str) -> Prompts:
    """Beginnings of functions to complete."""
    file = File(
        r"(openai_humaneval/test-.*\.parquet|HumanEval\.jsonl(\.gz)?)$", repo="openai/openai_humaneval"
    )
    prompts = _programs(rows(get(file)), "en")
    return islice(prompts, EACH) if part else prompts


def humaneval_xl(get: Get, part: str) -> Prompts:
    """HumanEval in other natural languages, for Python; Japanese is from jhumaneval."""
    if part == "ja":
        file = File(r"test-.*\.parquet$|test.*\.jsonl$", repo="kogi-jwu/jhumaneval")
    else:
        name = f"{wording.LANGUAGES[part]}.jsonl"
        file = File(rf"(^|python/){name}$", url=f"{GITHUB}FloatAI/humaneval-xl/main/data/python/{name}")
    return _programs(rows(get(file)), part)


def _programs(entries: Iterator[Row], language: str) -> Prompts:
    for row in entries:
        # A body's indentation and a prompt's line feeds are significant.
        yield {"id": row.text("task_id"), "kind": "code", "language": language, "prompt": row.text("prompt"),
               "reference": [row.text("canonical_solution")]}  # fmt: skip


def mbpp(get: Get, part: str) -> Prompts:
    """The 500 test tasks (ids 11 to 510), each with its tests."""
    file = File(
        r"(full/test-.*\.parquet|(^|/)(sanitized-)?mbpp\.jsonl?)$", repo="google-research-datasets/mbpp"
    )
    for row in rows(get(file)):
        number = row.values.get("task_id")
        tests = row.values.get("test_list")
        if not isinstance(number, int) or not isinstance(tests, list):
            row.text("task_id and test_list")  # raises, naming the fields it has
        elif 11 <= number <= 510:
            task = row.text("text", "prompt")
            wanted = "\n".join(row.texts("test_list"))
            yield {"id": f"mbpp/{number}", "kind": "code", "language": "en",
                   "prompt": f"{task}\nThe code must pass these tests:\n{wanted}",
                   "reference": [row.text("code")]}  # fmt: skip


# ---------------------------------------------------------------- mathematics


def gsm8k(get: Get, part: str) -> Prompts:
    """The test split."""
    file = File(r"((^|/)main/test-.*\.parquet|(^|/)test\.jsonl)$", repo="openai/gsm8k")
    return _exercises(rows(get(file)), "en")


def math(get: Get, part: str) -> Prompts:
    """The test split: subject by subject, the 500 of MATH-500, or those of lm-eval's ``--limit 0.1``."""
    if part == "500":
        entries = rows(get(File(r"(^|/)test\.jsonl$", repo="HuggingFaceH4/MATH-500")))
    else:
        named = "|".join(SUBJECTS)
        file = File(
            rf"(({named})/test-.*\.parquet|test/({named})/\d+\.json)$",
            repo="EleutherAI/hendrycks_math",
            least=len(SUBJECTS),
        )
        numbered = ((p.parent.name, int(p.stem) if p.stem.isdecimal() else 0, p) for p in get(file))
        subjects = groupby(sorted(numbered), key=itemgetter(0))
        each = (list(rows(path for *_, path in subject)) for _, subject in subjects)
        # lm-eval takes its share of each subject, rounded up.
        entries = chain.from_iterable(
            subject[: -(-len(subject) // 10)] if part == "tenth" else subject for subject in each
        )
    for number, row in enumerate(entries, 1):
        yield {"id": row.values.get("unique_id") or f"math/{number}", "kind": "arithmetic", "language": "en",
               "prompt": row.text("problem"), "reference": [row.text("solution")]}  # fmt: skip


def mgsm(get: Get, part: str) -> Prompts:
    """GSM8K's exercises, translated by people; the Vietnamese ones are from Vi-GSM8K."""
    if part == "vi":
        file = File(r"(train.*\.(parquet|jsonl?)|vi_test\.jsonl?)$", repo="longhoang06/Vi-GSM8K")
        return _exercises(islice(rows(get(file)), 250), part)  # as many as the others have
    file = File(rf"mgsm_{part}\.tsv$", repo="juletxara/mgsm")
    return _exercises(rows(get(file), ("question", "answer")), part)


def _exercises(entries: Iterator[Row], language: str) -> Prompts:
    for number, row in enumerate(entries, 1):
        yield {"id": f"{number}", "kind": "arithmetic", "language": language, "prompt": row.text("question"),
               "reference": [row.text("answer")]}  # fmt: skip


# ---------------------------------------------------------------- questions


def webfaq(get: Get, part: str) -> Prompts:
    """Questions and answers of web sites' FAQ pages: the first thousand, without repeated questions."""
    name = THREE[part]
    file = File(rf"(^|/){name}\b.*\.(parquet|jsonl(\.gz)?)$", repo="PaDaS-Lab/webfaq",
                columns=("question", "answer"), rows=1000)  # fmt: skip
    seen: set[str] = set()
    for row in islice(rows(get(file), ("question", "answer")), 1000):
        question = row.text("question")
        if question not in seen:
            seen.add(question)
            yield {"id": f"{len(seen)}", "kind": "qa", "language": part, "prompt": question,
                   "reference": [row.text("answer")]}  # fmt: skip


def xquad(get: Get, part: str) -> Prompts:
    """A passage and a question about it; French from squad_fr, Japanese from JSQuAD."""
    for number, (context, row, answers) in enumerate(_passages(get, part), 1):
        yield {"id": f"{row.values.get('id') or number}", "kind": "rag", "language": part,
               "prompt": wording.ask(context, row.text("question"), part),
               **({"reference": list(dict.fromkeys(answers))} if answers else {})}  # fmt: skip


def _passages(get: Get, part: str) -> Iterator[tuple[str, Row, list[str]]]:
    if part == "fr":
        path = single(get(File(r"dummy_data\.zip$", repo="qwant/squad_fr")))
        if path.suffix != ".zip":
            yield from (each for row in rows(path) for each in squad(row))
            return
        where, text = member(path, r"dev-v1\.1\.json$")
        yield from squad(Row(where, parsed(text, where, error=PromptError)))
        return
    if part == "ja":
        url = f"{GITHUB}yahoojapan/JGLUE/v1.1.0/datasets/jsquad-v1.1/valid-v1.1.json"
        for row in rows(get(File(r"valid-v1\.\d\.json$", url=url))):
            for context, question, answers in squad(row):
                yield context.replace(" [SEP] ", "\n"), question, answers  # it follows the article's title
        return
    for row in rows(get(File(rf"xquad\.{part}(/validation-.*\.parquet|\.json)$", repo="google/xquad"))):
        if "data" in row.values:
            yield from squad(row)
        else:
            yield row.text("context"), row, row.part("answers").texts("text")
