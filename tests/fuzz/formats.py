"""The formats: for each, sound seeds and the code that reads a damaged file as far as a user would see it."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from .damage import damaged, spoiled, text_of

Form = Callable[[Path], Any]


class TraceFile:
    """A finished run's Parquet file, damaged in its metadata, its columns or its bytes."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as pq

        import traces
        from specviz.trace.files import KEY

        self.folder, self.key = folder, KEY
        self.seeds = []
        for method in ("tree", "speculative"):
            path = folder / f"{method}.parquet"
            traces.build(method, tokens=16, path=path)
            table = pq.read_table(path)
            self.seeds.append((table, json.loads(table.schema.metadata[KEY])))

    def attempt(self, random: Random) -> None:
        import pyarrow.parquet as pq

        table, run = random.choice(self.seeds)
        path, action = self.folder / "run.parquet", random.random()
        text = text_of(run, random) if action < 0.6 else json.dumps(run).encode()
        if 0.6 <= action < 0.9:
            table = self.changed(table, random)
        pq.write_table(table.replace_schema_metadata({self.key: text}), path, compression="none")
        if action >= 0.9:
            path.write_bytes(spoiled(path.read_bytes(), random))
        self.read(path, random.random() < 0.2)

    @staticmethod
    def changed(table: Any, random: Random) -> Any:
        """Change values of one column, or drop and duplicate rows."""
        import pyarrow as pa

        if random.random() < 0.2:
            rows = [i for i in range(len(table)) for _ in range(random.choice((0, 1, 1, 2)))]
            return table.take(rows)
        at = random.randrange(table.num_columns)
        column = table.column(at)
        values = column.to_pylist()
        for _ in range(random.choice((1, 1, 5))):
            row = random.randrange(len(values))
            values[row] = damaged([values[row]], random)
            values[row] = values[row][0] if isinstance(values[row], list) and values[row] else None
        try:
            made = pa.array(values, column.type)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError):
            made = pa.nulls(len(values), column.type)
        return table.set_column(at, table.schema.field(at).name, made)

    @staticmethod
    def read(path: Path, whole: bool) -> None:
        """Read a trace's tables; if `whole`, its summary and its text view as well."""
        import specviz
        from specviz import view

        trace = specviz.open(path)
        for name in ("cycles", "nodes", "outputs", "passes", "tails", "texts", "prompts", "runs"):
            getattr(trace, name)
        trace.tops("pred")
        trace.tops("node")
        if whole and len(trace.cycles):
            trace.summary()
            view.text(trace)


class Partial(TraceFile):
    """The partial stream of an interrupted run."""

    def attempt(self, random: Random) -> None:
        import pyarrow as pa

        table, run = random.choice(self.seeds)
        path, action = self.folder / "_run.parquet.partial", random.random()
        header = text_of(run, random) if action < 0.3 else json.dumps(run).encode()
        more = {"pieces": {"5": "AAAA"}, "prompts": [{"tokens": [1, 2], "id": "q"}]}
        extra = {name: json.dumps(value).encode() for name, value in more.items()}
        if 0.3 <= action < 0.6:
            name = random.choice(list(more))
            extra[name] = text_of(more[name], random)
        if 0.6 <= action < 0.9:
            table = self.changed(table, random)
        batches = table.combine_chunks().to_batches()
        if random.random() < 0.05:
            batches = batches * 2
        names = table.schema.with_metadata({self.key: header})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, names) as stream:
            for batch in batches:
                stream.write_batch(batch.cast(names), custom_metadata=extra)
        if action >= 0.9:
            path.write_bytes(spoiled(path.read_bytes(), random))
        self.read(path, random.random() < 0.2)


class Folder:
    """A folder of JSON files, one of them damaged."""

    files: dict[str, Any]

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "result"
        self.files = self.made()
        for name, content in self.files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(json.dumps(content))

    def made(self) -> dict[str, Any]:
        """Build the sound files."""
        raise NotImplementedError

    def read(self) -> None:
        """Read the files and render everything that is shown of them."""
        raise NotImplementedError

    def attempt(self, random: Random) -> None:
        name = random.choice(list(self.files))
        path = self.folder / name
        path.write_bytes(text_of(self.files[name], random))
        try:
            self.read()
        finally:
            path.write_text(json.dumps(self.files[name]))


def shown(result: Any) -> None:
    """Render a result for a terminal, as Markdown, as CSV and as a page."""
    import io

    from rich.console import Console

    from specviz.escape import UNSEEN
    from specviz.replays import markdown, page, terminal

    console = Console(file=io.StringIO(), width=100)
    terminal.show(result, console)
    assert not UNSEEN.search(console.file.getvalue())
    markdown.markdown(result)
    markdown.csv(result)
    whole = page.Page(result.path / "report.html", "")
    (whole.run if hasattr(result, "wanted") else whole.replay)(result)
    whole.document()


ENVIRONMENT = {
    "device": "cpu", "processor": "P", "system": "Linux", "threads": 1, "dtype": "float32", "clock": "host",
    "model": {"name": "town", "parameters": 100}, "drafts": {}, "versions": {"python": "3.11"},
}  # fmt: skip


class RunResults(Folder):
    """The folder of ``specviz bench run``."""

    def made(self) -> dict[str, Any]:
        names = ("autoregressive", "prompt_lookup")
        cells = [
            {"cell": i, "model": "town", "method": name, "draft": None, "parameters": {"length": i},
             "suite": "s", "temperature": 0.0, "against": 0}
            for i, name in enumerate(names)
        ]  # fmt: skip
        plan = {"models": [{"model": "town"}], "cells": cells, "suites": {"s": {"digest": "d", "prompts": 2}},
                "seeds": [0], "prompts": 2, "warm_up": 0, "max_new_tokens": 8, "top_k": 0, "top_p": 1.0,
                "threads": 1, "timed": True, "traces": False}  # fmt: skip
        files = {"run.json": {"specviz": "bench run", "schema": 1, "created": "now", "plan": plan}}
        for cell in (0, 1):
            for prompt in (0, 1):
                row = {
                    "cell": cell, "round": 0, "seed": 0, "prompt": prompt, "id": f"q{prompt}", "kind": "qa",
                    "language": "en", "model": "town", "method": names[cell], "draft": None, "parameters": {},
                    "suite": "s", "temperature": 0.0, "sitting": "a", "timed": True, "clock": "host",
                    "environment": "e", "error": None, "ids": [[1, 2, 3]], "tokens": 3, "prompt_tokens": 4,
                    "steps": 2, "sent": 2, "accepted": 1, "end": "length", "prefill_seconds": 0.1,
                    "decode_seconds": 0.5, "wall_seconds": 0.6, "peak_memory": 1000, "device_memory": None,
                    "text": ["abc"], "memory": None, "exactness": "exact",
                }  # fmt: skip
                files[f"rows/c{cell:03d}-r0-p{prompt:04d}.json"] = row
        return files | {"environments/e.json": ENVIRONMENT}

    def read(self) -> None:
        from specviz.replays.replays import opened_result

        results = opened_result(self.folder)
        for by in ("kind", "language", "id"):
            results.table(by)
        results.rows(), repr(results)
        shown(results)


class ReplayResults(Folder):
    """The folder of ``specviz replay``."""

    def made(self) -> dict[str, Any]:
        from specviz.replays.cells import Check, Comparison, Provenance, Verdict
        from specviz.replays.published import published

        table = "unispec/table3"
        cells = published(table).drop(columns=["paper", "table"]).to_dict("records")
        for i, cell in enumerate(cells):
            cell |= {
                "measured": 1.0 + i,
                "low": 0.5 + i,
                "high": 1.5 + i,
                "why": "",
                "figure": i,
                "source": 0,
            }
        nothing = dict.fromkeys(("measured", "low", "high", "figure", "source"))
        cells[-1] |= nothing | {"why": "no drafter"}
        replay = {
            "specviz": "replay", "schema": 2, "table": table, "title": "t", "caption": "c",
            "place": "Table 3", "compare": ["method"], "cells": cells, "sources": [Provenance().as_dict()],
            "total": [], "metrics": ["speedup"], "drawn": False,
            "comparisons": [Comparison(0, 1, 1.0, 1.0, 0.5, 1.5, 0.01, True).as_dict()],
            "verdicts": [Verdict("it is fast", "pays", "holds here", "2 times", "clear").as_dict()],
            "checks": [Check("control", "a", "", 3, 3, 1.0, 0.9, 1.1).as_dict()], "errata": ["a place"],
            "theirs": {"data": "theirs"}, "defined": [["speedup", "a", "b"]], "environment": ENVIRONMENT,
            "notes": ["a note"], "runs": [], "traces": [], "asked": {"table": table}, "seconds": 3.0,
            "created": "now", "figures": [{"texts": 3, "derived": False} for _ in cells],
        }  # fmt: skip
        return {"replay.json": replay}

    def read(self) -> None:
        from specviz.replays.replays import opened_result

        shown(opened_result(self.folder))


class History(Folder):
    """Results of a bench over several days."""

    def made(self) -> dict[str, Any]:
        figure = {"median": 1.5, "low": 1.2, "high": 1.8, "pairs": 9}
        rows = [{"contender": "a", "ratio": figure, "same": "9/9"}, {"method": "b", "g": 2, "ratio": figure}]
        return {
            f"{day}.json": {
                "schema": 1, "bench": "speed", "date": f"2026-01-0{day}T10:00:00+00:00", "title": "t",
                "setting": ENVIRONMENT | {"drafts": [{"name": "d", "parameters": 1}]}, "rows": rows,
                "parts": [{"title": "by size", "rows": rows}], "notes": ["n"], "held": True, "summary": "s",
                "bars": [{"name": "x", "value": 1.0, "limit": 0.5, "kind": "at least", "held": True}],
            }
            for day in (1, 2, 3)
        }  # fmt: skip

    def read(self) -> None:
        import io

        from rich.console import Console

        from specviz.measure.history import history

        report = history([self.folder])
        report.show(Console(file=io.StringIO(), width=100))
        json.dumps(report.as_dict(), allow_nan=False)


class Returned(ReplayResults):
    """A replay that someone else ran with a kit and sent back."""

    def made(self) -> dict[str, Any]:
        files = super().made()
        files["replay.json"]["comparisons"][0]["measured"] = -1.0  # contradicts the cells
        return files | {"setup.json": {"specviz": "setup", "table": "unispec/table3", "version": "0"}}

    def read(self) -> None:
        from specviz.escape import visible
        from specviz.replays import kits

        added = kits.add(self.folder, self.folder / "ours")
        shutil.rmtree(self.folder / "ours")
        visible("\n".join(added.lines())).encode("utf8")  # as `print_lines` does


class Scores(Folder):
    """A replay's texts and their COMET scores."""

    def made(self) -> dict[str, Any]:
        from specviz.replays.comet import rows

        where = {"method": "UNISPEC (ours)", "language": "EN"}
        lines = rows(where, ["a mill", "rain"], ["eine Mühle", "Regen"], [["eine Mühle"], ["Regen"]])
        self.scores = [{"id": line["id"], "score": 0.5, "model": "m"} for line in lines]
        return {f"{name}/{i}.json": each for name, some in (("texts", lines), ("scores", self.scores))
                for i, each in enumerate(some)}  # fmt: skip

    def read(self) -> None:
        from specviz.replays import comet
        from specviz.replays.published import published
        from specviz.replays.recipes import RECIPES
        from specviz.replays.replays import compared
        from specviz.replays.sources.shared import Measurement

        table = "unispec/table3"
        assert len(published(table))
        replay = compared(table, RECIPES[table], Measurement(), {"table": table})
        replay.path = self.folder
        for name in ("texts", "scores"):
            parts = [p.read_bytes().replace(b"\n", b" ") for p in sorted((self.folder / name).glob("*.json"))]
            (self.folder / ("comet.jsonl" if name == "texts" else "s.jsonl")).write_bytes(b"\n".join(parts))
        comet.scored(replay, self.folder / "s.jsonl")


class Plan:
    """A plan of ``specviz bench run`` in TOML."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        suite = folder / "suite.jsonl"
        suite.write_text("".join(json.dumps({"prompt": f"Say {i}.", "kind": "qa"}) + "\n" for i in range(4)))
        self.seed = {
            "models": ["town", {"model": "town-draft", "device": "cpu", "dtype": "float32"}],
            "methods": ["prompt_lookup", {"method": "unispec", "depth": [4, 8]}], "suites": [str(suite)],
            "seeds": [0, 1], "number": 2, "warm_up": 1, "max_new_tokens": 8, "temperature": [0.0, 0.7],
            "top_k": 0, "top_p": 0.9, "threads": 1, "timed": True, "traces": False, "device": "cpu",
            "dtype": "float32",
        }  # fmt: skip

    def attempt(self, random: Random) -> None:
        from specviz.measure.plan import Plan as Read

        path = self.folder / "plan.toml"
        content = toml(damaged(self.seed, random))
        path.write_bytes(spoiled(content, random) if random.random() < 0.1 else content)
        made = Read.of(path)
        json.dumps(made.settled, allow_nan=False)


def toml(value: Any) -> bytes:
    """Write a value as TOML, without the parts that TOML cannot hold."""

    def one(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, dict):
            return (
                "{"
                + ", ".join(f"{json.dumps(str(k))} = {one(v)}" for k, v in value.items() if v is not None)
                + "}"
            )
        if isinstance(value, list):
            return "[" + ", ".join(one(v) for v in value if v is not None) + "]"
        return json.dumps(value) if isinstance(value, str) else str(value)

    pairs = value.items() if isinstance(value, dict) else ()
    try:
        lines = [f"{json.dumps(str(k))} = {one(v)}" for k, v in pairs if v is not None]
    except RecursionError:
        lines = ["a = " + "[" * 100_000]
    return "\n".join(lines).encode("utf8", "surrogatepass")


class Suite:
    """A prompt file in our format, and files of known data sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = [
            {
                "prompt": "Hello",
                "id": "a",
                "kind": "qa",
                "language": "en",
                "reference": ["b"],
                "source": "Hallo",
            },
            {"turns": ["a", "b"], "question_id": 81, "category": "writing", "reference": ["x", "y"]},
            {"messages": [{"role": "user", "content": "Hi"}], "id": 3, "language": "de", "from": "en"},
        ]
        paragraph = {"context": "c", "qas": [{"question": "q", "id": "1", "answers": [{"text": "t"}]}]}
        self.others = {
            "gsm8k": ("test.jsonl", {"question": "1 + 1?", "answer": "2"}),
            "xquad": ("xquad.en.json", {"data": [{"paragraphs": [paragraph]}]}),
            "mbpp": ("mbpp.jsonl", {"task_id": 11, "text": "t", "code": "c", "test_list": ["a"]}),
            "humaneval": ("HumanEval.jsonl", {"task_id": "a", "prompt": "p", "canonical_solution": "s"}),
        }

    def attempt(self, random: Random) -> None:
        import specviz

        if random.random() < 0.3:
            name = random.choice(list(self.others))
            file, value = self.others[name]
            (self.folder / file).write_bytes(text_of(value, random))
            prompts = specviz.suite(name, self.folder / file)
        else:
            path = self.folder / "prompts.jsonl"
            bad = random.randrange(len(self.lines))
            lines = [
                text_of(line, random) if i == bad else json.dumps(line).encode()
                for i, line in enumerate(self.lines)
            ]
            path.write_bytes(b"\n".join(lines))
            prompts = specviz.suite(path)
        repr(prompts), prompts.counts, prompts.digest
        json.dumps(prompts.prompts).encode("utf8")
        for prompt in prompts:
            for text in prompt.get("turns") or [prompt["prompt"]]:
                str(text).encode("utf8")


class Partials:
    """A recogniser's partial results, and words with timestamps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = [{"text": "it", "time": 0.5}, {"text": "it is", "time": 1.0, "final": True}]
        self.words = {
            "words": [{"word": "it", "start": 0.0, "end": 0.5}, {"word": "is", "start": 1, "end": 2}]
        }

    def attempt(self, random: Random) -> None:
        from specviz.streams import from_partials, word_timed

        path = self.folder / "heard.json"
        if random.random() < 0.5:
            lines = [text_of(line, random) for line in self.lines]
            path.write_bytes(b"\n".join(lines))
            for stream in from_partials(path):
                list(stream)
        else:
            path.write_bytes(text_of(self.words, random))
            list(word_timed(path))


class CalibrationFile:
    """A calibration of the draft size, finished or interrupted."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "calibration.json"
        setting: dict[str, Any] = {
            "device": "cpu", "dtype": "float32", "threads": 2, "model": {"name": "town"}, "draft": None,
            "parameters": {"depth": 10}, "versions": {"torch": "2.13"}, "method": "unispec",
        }  # fmt: skip
        how = {"prompts": 2, "warm_up": 0, "max_new_tokens": 8, "rounds": 1, "clock": "wall clock"}
        points = [
            {"g": g, "tokens": [4, 6], "cycles": [2, 3], "seconds": [[0.5, 0.25 * g]]} for g in (1, 2, 3)
        ]
        fit = {"g": 2, "s": [0.5] * 3, "tau": [1.0, 2.0, 2.0]}
        whole = {
            "specviz": "calibration", "schema": 1, "setting": setting, "size": "draft_size", "how": how,
            "points": points, "fits": {"grid": fit}, "chosen": "grid", "ended": None, "spent": 1.0,
            "worked": 1.0, "created": "2026-01-01",
        }  # fmt: skip
        begun = [{"g": 1, "tokens": [4], "cycles": [2], "seconds": [[0.5, None]]}]
        self.contents = whole, whole | {"points": begun, "fits": {}, "chosen": ""}

    def attempt(self, random: Random) -> None:
        from specviz.calibration import Calibration

        self.path.write_bytes(text_of(random.choice(self.contents), random))
        calibration = Calibration.open(self.path)
        repr(calibration), calibration.device, calibration.at_end
        if calibration.complete:
            repr(calibration.table)


class Imports:
    """Records and logs written by other tools."""

    def __init__(self, folder: Path) -> None:
        from test_engines import ENGINES, LOG, tokens
        from test_foreign import GOOD
        from test_vllm_log import OLDER

        self.folder, self.good = folder, copy.deepcopy(GOOD | ENGINES)
        self.log, self.tokens, self.vllm_log = LOG.encode(), tokens(), OLDER.encode()
        names = ("drafts", "draft_tokens", "accepted_tokens")
        lines = [f'vllm:spec_decode_num_{n}_total{{engine="0"}} {v}' for n, v in zip(names, (10, 30, 12))]
        at = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{}"}} {}'
        lines += [at.format(i, n) for i, n in enumerate((6, 4, 2))]
        self.page = "\n".join(lines).encode() + b"\n"

    def attempt(self, random: Random) -> None:
        from specviz import metrics
        from specviz.errors import TraceError
        from specviz.explanations import explain
        from specviz.trace import read_counts

        origin = random.choice([*self.good, "vllm-metrics", "vllm-log", "llama.cpp-log", "mlx-lm"])
        path = self.folder / "import.jsonl"
        if origin == "vllm-metrics":
            path.write_bytes(spoiled(self.page, random))
        elif origin == "vllm-log":
            path.write_bytes(spoiled(self.vllm_log, random))
        elif origin == "llama.cpp-log":
            path.write_bytes(spoiled(self.log, random))
        elif origin == "mlx-lm":
            path.write_bytes(b"\n".join(text_of(each, random) for each in self.tokens))
        else:
            sound = json.dumps(self.good[origin]).encode()
            lines = [text_of(self.good[origin], random)]
            path.write_bytes(b"\n".join(lines if random.random() < 0.5 else [sound, *lines]))
        if random.random() < 0.3:
            explain(path).text()
        counts = read_counts(path, origin, plain=random.random() < 0.1 and origin[:5] != "vllm-")
        repr(counts)
        if not counts.plain:
            metrics.rosetta(counts)
        try:
            counts.to_aiperf(self.folder / "out.jsonl", force=True)
        except TraceError as error:
            if "AIPerf" not in str(error):
                raise


class Answers:
    """Another engine's answers, as the audit reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sound = {
            "id": 1, "messages": [{"role": "user", "content": "Why?"}], "answer": "So.", "token_ids": [5, 6],
            "finish_reason": "stop", "max_tokens": 8, "engine": "e", "temperature": 0.5, "top_p": 0.9,
            "stop": None, "min_p": 0.05, "repeat_penalty": 1, "logit_bias": {"5": 1.0},
        }  # fmt: skip

    def attempt(self, random: Random) -> None:
        from specviz.audit.answer_files import read

        path = self.folder / "answers.jsonl"
        path.write_bytes(text_of(self.sound, random))
        for answer in read(path):
            answer.answer.encode("utf8")


class ModelFolder:
    """A model's folder in transformers' format."""

    names = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")

    def __init__(self, folder: Path) -> None:
        from checkpoints import checkpoint

        self.sound, self.folder = folder / "sound", folder / "model"
        checkpoint(self.sound)
        self.contents = {name: json.loads((self.sound / name).read_text()) for name in self.names}

    def attempt(self, random: Random) -> None:
        import specviz

        shutil.copytree(self.sound, self.folder, dirs_exist_ok=True)
        name = random.choice([*self.names, "model.safetensors"])
        path = self.folder / name
        if name == "model.safetensors":
            path.write_bytes(spoiled(path.read_bytes(), random))
        elif name == "tokenizer.json" and random.random() < 0.7:
            whole = copy.deepcopy(self.contents[name])
            inner = {k: v for k, v in whole.items() if k not in ("model", "added_tokens")}
            inner["vocabulary"] = {k: v for k, v in whole["model"].items() if k != "vocab"}
            inner["added"] = whole["added_tokens"][:1]
            inner = damaged(inner, random)
            if isinstance(inner, dict):
                vocabulary, added = inner.pop("vocabulary", {}), inner.pop("added", [])
                model = {**whole["model"], **vocabulary} if isinstance(vocabulary, dict) else vocabulary
                inner |= {"model": model, "added_tokens": added}
            path.write_text(json.dumps(inner))
        else:
            path.write_bytes(text_of(self.contents[name], random))
        model = specviz.load(self.folder)
        specviz.generate(model, [5, 6, 7], "autoregressive", max_new_tokens=2)


class MarianFolder:
    """A Bergamot translator's folder, damaged in its settings, an item, its bytes or its tokenizer."""

    def __init__(self, folder: Path) -> None:
        from marian_files import config, items, packed, parts, words

        self.folder, self.settings, self.items, self.parts, self.packed = (
            folder / "translator", config(), items(), parts, packed
        )  # fmt: skip
        self.folder.mkdir()
        words(self.folder / "tokenizer.json")

    def attempt(self, random: Random) -> None:
        import specviz

        action = random.random()
        parts = self.parts(self.items, text_of(self.settings, random) if action < 0.5 else self.settings)
        if 0.5 <= action < 0.9:
            at = random.randrange(len(parts))
            parts[at] = self.changed(*parts[at], random)
        data = self.packed(parts)
        (self.folder / "model.bin").write_bytes(spoiled(data, random) if action >= 0.9 else data)
        model = specviz.load(f"bergamot:{self.folder}")
        specviz.generate(model, [5, 6, 7], "autoregressive", max_new_tokens=2)

    @staticmethod
    def changed(name: str, kind: int, shape: tuple[int, ...], content: bytes, random: Random) -> Any:
        """Change an item's name, type, shape or content."""
        action = random.random()
        if action < 0.2:
            name = random.choice((name + "x", "a\nb", "", "Wemb", "special:model.yml"))
        elif action < 0.4:
            kind = random.choice((0, 0x0404, 0x0101, 0x4101, 0x0402))
        elif action < 0.8:
            sizes = list(shape)
            sizes[random.randrange(len(sizes))] = random.choice((-1, 0, 1, 7, 2**31 - 1, -(2**31)))
            shape = random.choice((tuple(sizes), shape[::-1], shape[1:], (*shape, 1), ()))
        else:
            scale = np.float32(random.choice((0, -1, 1e-45, 1e38, np.nan, np.inf))).tobytes()
            sound = int(np.prod(shape))
            content = random.choice(
                (content[:sound] + scale, content[: sound // 2], b"", bytes(len(content)))
            )
        return name, kind, shape, content


class Adapter:
    """The folder of a diffusion adapter of ``town``, damaged in its config, its tensors or their bytes."""

    def __init__(self, folder: Path) -> None:
        import torch

        import specviz
        from specviz.models import adapters

        target = specviz.load("town", dtype="float32", kernels="plain", invariant=False)
        shapes: dict[str, tuple[int, ...]] = {"mask": (target.config.hidden_size,)}
        for name, layer in adapters.adapted(target.net).items():
            shapes |= {f"{name}.down": (2, layer.in_features), f"{name}.up": (layer.out_features, 2)}
        draw = torch.Generator().manual_seed(0)
        made = {name: torch.randn(shape, generator=draw) / 50 for name, shape in shapes.items()}
        self.folder = folder / "adapter"
        self.folder.mkdir()
        adapters.save(self.folder, made, target, "town", 5)
        self.config = json.loads((self.folder / "config.json").read_text())
        self.weights = (self.folder / "model.safetensors").read_bytes()

    def attempt(self, random: Random) -> None:
        import torch
        from safetensors.torch import load, save

        import specviz

        action, text, weights = random.random(), json.dumps(self.config).encode(), self.weights
        if action < 0.5:
            text = text_of(self.config, random)
        elif action < 0.8:
            tensors = load(weights)
            name = random.choice(list(tensors))
            value = tensors.pop(name)
            kinds = (torch.int8, torch.int32, torch.float16, torch.bool)
            others = (value.to(random.choice(kinds)), value[:1], value[None], value * float("nan"))
            if random.random() < 0.7:
                tensors[random.choice((name, name + ".scale"))] = random.choice(others).contiguous()
            weights = save(tensors)
        else:
            weights = spoiled(weights, random)
        (self.folder / "config.json").write_bytes(text)
        (self.folder / "model.safetensors").write_bytes(weights)
        model = specviz.load(self.folder, dtype=random.choice(("float32", "bfloat16")))
        specviz.generate(model, [5, 6, 7], "stepwise", max_new_tokens=2, block=2)


class Card:
    """The training figures and scores next to a model's weights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {
            "training.json": {
                "tokens": 1000,
                "guesses": {"mean": [1.5, 0.5]},
                "ahead": {"en": {"right": [0.5]}},
            },
            "scores.json": {
                "translation": {"en-de": {"bleu": 60.0, "share": 1.0}},
                "acceptance": {"all": 2.5},
            },
        }

    def attempt(self, random: Random) -> None:
        from specviz.cli.models import _card, _weights

        for name, content in self.files.items():
            (self.folder / name).write_bytes(text_of(content, random))
        header = text_of({"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}, random)
        size = random.choice((len(header), len(header), 5, 2**62))
        (self.folder / "model.safetensors").write_bytes(np.uint64(size).tobytes() + header)
        _weights(self.folder)
        _card(self.folder).encode("utf8")


FORMATS: dict[str, Form] = {
    "trace": TraceFile, "partial": Partial, "run": RunResults, "replay": ReplayResults, "plan": Plan,
    "returned": Returned, "scores": Scores, "suite": Suite, "partials": Partials, "imports": Imports,
    "answers": Answers, "history": History, "calibration": CalibrationFile,
    "model": ModelFolder, "marian": MarianFolder, "adapter": Adapter, "card": Card,
}  # fmt: skip
