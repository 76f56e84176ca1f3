"""The runner pairs the measurements that it should; every bench returns the result it promises."""

from __future__ import annotations

import copy
import gc
import io
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from benchmarks import overhead
from benchmarks.__main__ import main
from rich.console import Console

import specviz
from specviz import methods
from specviz.errors import ModelError, ParameterError, PromptError, TraceError
from specviz.loop import Run
from specviz.loop import run as run_module
from specviz.measure import BENCHES, demo, doctor, find, peers, report, timing
from specviz.measure.benches import batches, drafters, passes, speed, trees
from specviz.measure.pairs import suite as pairs
from specviz.measure.sweep import Point, sweep
from specviz.models import choices, kernels, load
from specviz.trace.files import partial_of

ENTRIES = [
    {"turns": ["Hello there", "And now?"], "kind": "conversation"},
    {"prompt": "One two three", "kind": "counting"},
    {"prompt": "red green", "kind": "colours"},
]


METHODS = [n for n in timing.methods.names("prompt") if timing.methods.find(n).drafts_with == "model"]
ALONE = [name for name in METHODS if not timing.methods.find(name).needs_draft]


@pytest.fixture(scope="module")
def pair(folders):
    return load(folders.target), load(folders.draft)


def test_estimate():
    found = report.Estimate.of([1.0, 2.0, 3.0, 3.0, 4.0, 100.0])
    assert found.median == 3
    assert 1 <= found.low < 3 < found.high <= 100
    assert found.pairs == 6
    assert math.isnan(report.Estimate.of([]).median)
    assert math.isnan(report.Estimate.of([1.0, 2.0, 3.0, 4.0, 100.0]).low)  # five values give no interval
    same = report.Estimate.of([1.0, 2.0, 3.0, 3.0, 4.0, 100.0])
    assert same == found  # seeded


def printed(width, columns, rows, **more):
    console = Console(width=width, file=io.StringIO())
    report.print_table(console, columns, rows, **more)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_fits_its_terminal():
    columns = [
        report.Column("name"), report.Column("what it is", folds=10),
        report.Column("a number", True, drop_rank=1), report.Column("another", True, drop_rank=0),
    ]  # fmt: skip
    rows = [["first-of-all", "a long sentence here", "1.00", "2"], ["b", "short", "13.00", "–"]]
    wide = printed(80, columns, rows)
    assert wide[0] == "name          what it is            a number  another"
    assert wide[2] == "first-of-all  a long sentence here      1.00        2"
    for width in range(24, 60):
        lines = printed(width, columns, rows)
        assert max(map(len, lines)) <= width
        text = " ".join(" ".join(lines).split())
        assert "first-of-all" in text
        assert ("13.00" in text) == ("a number" not in text.partition("left out")[2])


def test_a_heading_is_plain_text():
    columns = [report.Column("\x1b[31mtask\u202e"), report.Column("[/x]", True)]
    assert printed(80, columns, [["a", "1"]])[0] == "⟨U+001B⟩[31mtask⟨U+202E⟩  [/x]"


def test_every_table_fits_80_columns():
    estimate = report.Estimate(1.234, 1.111, 1.432, 21)
    for room in (demo, overhead, passes):
        row = {key: 1234 if form else estimate for key, _, form in room.COLUMNS}
        row |= {"method": "autoregressive", "decoder": "speculative, town-draft-aligned"}
        row |= {"draft": "town-draft-aligned", "model": "town-draft-aligned", "exactness": "exact up to ties"}
        row |= {
            "same": "21/21",
            "shown": str(estimate),
            "g": 64,
            "layout": "transposed",
            "format": "bfloat16",
        }
        setting = {"device": "cpu", "threads": 1, "dtype": "float32"}
        found = report.Report(
            "x", "title", setting, room.COLUMNS, [row], dropped=getattr(room, "DROP_ORDER", ())
        )
        for width in (80, 120):
            console = Console(width=width, file=io.StringIO(), force_terminal=True, no_color=True)
            found.show(console)
            lines = console.file.getvalue().splitlines()
            assert any(row["draft"] in line and "1.11" in line and "1.43" in line for line in lines)
            assert ("left out" in "".join(lines)) <= (width == 80)


def test_one_limit_is_one():
    bar = report.Bar("x", 1.0, 1.0)
    setting = {"device": "cpu", "threads": 1, "dtype": "float32"}
    of = lambda *bars: report.Report("b", "", setting, [], [], list(bars)).summary
    assert of(bar).startswith("b: 1 limit met (") and of(bar, bar).startswith("b: all 2 limits met (")
    assert of(report.Bar("x", 0.0, 1.0)).startswith("b: 1 of 1 limit missed (")


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        ("at least", 1.0, True), ("at least", 0.99, False), ("more than", 1.0, False),
        ("more than", 1.01, True),
        ("at most", 1.0, True), ("at most", 1.01, False), ("at least", float("nan"), False),
        ("at most", float("nan"), False),
    ],
)  # fmt: skip
def test_bars(kind, value, held):
    bar = report.Bar("x", value, 1.0, kind)
    assert bar.held is held
    assert ("missed" in str(bar)) is not held


def test_a_pair_takes_turns_and_who_begins_rotates():
    order = []
    contenders = {name: lambda i, name=name: order.append((name, i)) or [1] * (i + 1) for name in "abc"}
    clock = iter(range(1000))
    times = timing.paired(contenders, 4, clock=lambda: float(next(clock)))
    turns = ["".join(name for name, i in order if i == text) for text in range(4)]
    assert turns == ["abc", "bca", "cab", "abc"]
    assert times["a"].seconds == [1.0] * 4
    assert times["b"].tokens == 10
    assert times["a"].over(times["b"]).median == 1
    assert times["a"].same(times["b"]) == 4


def test_speedup_is_the_median_of_ratios_on_the_same_text():
    slow = timing.Timed([1.0, 1.0, 1.0], [[1], [1, 2], [1, 2, 3]])
    fast = timing.Timed([0.5, 0.25, 0.1], [[1], [1, 2], [1, 2, 4]])
    assert fast.over(slow).median == 4
    assert fast.same(slow) == 2
    assert slow.speed == 2


def test_runs_that_take_turns_write_what_they_write_alone(pair):
    target, draft = pair
    alone = specviz.generate(target, ENTRIES, "speculative", draft=draft, max_new_tokens=9)
    runs = [Run(target, ENTRIES, "speculative", draft=draft, max_new_tokens=9) for _ in range(2)]
    texts = [timing.Texts(run) for run in runs]
    found = [[text(i) for text in texts] for i in range(4)]
    traces = [text.run.finish() for text in texts]
    assert all(a == b for a, b in found)
    for trace in traces:
        assert (
            trace.outputs["token"].tolist()
            == alone.outputs["token"].tolist()
            == [token for a, _ in found for token in a]
        )
        assert trace.run["complete"]


def test_an_interrupted_run_is_heard_and_keeps_its_trace(pair, monkeypatch):
    target, _ = pair
    run = Run(target, ENTRIES, "autoregressive", max_new_tokens=9)
    text = timing.Texts(run)
    text(0)
    monkeypatch.setattr(run.method, "verify", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        text(1)
    assert run.trace.run["stopped"] == "interrupted"
    assert len(run.trace.texts) == 2


def _interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", [0, 1])
def test_a_turn_without_room_is_named_and_interrupts_nobody(pair, place, tmp_path):
    """Regression: the next prompt's text counted as the turn's, or the end as Ctrl-C."""
    entries = [ENTRIES[1]]
    entries.insert(place, {"turns": ["Hello there", "word " * 1500]})
    for begin in (
        lambda: overhead.bench(pair[0], [], entries, rounds=1, max_new_tokens=3, only=["autoregressive"]),
        lambda: demo.run(pair[0], [], entries, tmp_path, each=2, max_new_tokens=3, names=["autoregressive"]),
    ):
        with pytest.raises(PromptError, match="need every turn of a conversation, and one has no room"):
            begin()


def _contender(draft):
    return drafters.Contender(f"speculative, {draft.name}", "speculative", draft=draft.name)


# Each begins with a run of its own: a warm-up, an answer that is only counted, a recorded run.
FIRST_RUNS = {
    "trees": lambda model, draft, out: trees.bench(model, ENTRIES, number=1, max_new_tokens=2),
    "demo": lambda model, draft, out: demo.run(model, [], ENTRIES, out, each=1, max_new_tokens=2),
    "a demo's length": lambda model, draft, out: demo.affordable(model, ENTRIES, 1),
    "sweep": lambda model, draft, out: sweep([Point("a", "autoregressive", model=model)], pairs("de-en", 1)),
    "sums": lambda model, draft, out: drafters._answered(
        model, {draft.name: draft}, _contender(draft), list(specviz.suite("sums"))[:2]
    ),
    "phases of a cycle": lambda model, draft, out: drafters._split(
        model, {draft.name: draft}, _contender(draft), [[3, 4]], 2
    ),
    "doctor": lambda model, draft, out: list(doctor._decode("town")),
}


@pytest.mark.parametrize("begin", FIRST_RUNS.values(), ids=FIRST_RUNS)
def test_ctrl_c_in_the_first_run_ends_a_measurement(begin, tmp_path, monkeypatch):
    """Regression: the run swallowed it, and what was cut short was measured, stored or printed as whole."""
    decode, calls = run_module.decode, []

    def first_interrupted(*given, **options):
        calls.append(0)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return decode(*given, **options)

    monkeypatch.setattr(run_module, "decode", first_interrupted)
    with pytest.raises(KeyboardInterrupt):
        begin(load("town"), load("town-draft"), tmp_path)
    assert len(calls) == 1


def test_measurements_finish_their_runs_through_one_function():
    """A run that was interrupted returns what it has; `timing.finish` raises."""
    folder = Path(timing.__file__).parent
    files = [*folder.rglob("*.py"), *(folder.parent / "replays").rglob("*.py"), Path(overhead.__file__)]
    sources = {str(path): path.read_text("utf8") for path in files}
    assert [name for name, text in sources.items() if ".finish()" in text] == [str(folder / "timing.py")]
    imported = r"from specviz\.loop import .*\bgenerate\b"
    assert not [name for name, text in sources.items() if re.search(imported, text)]


def test_a_line_up_without_a_contender_is_refused(pair):
    with pytest.raises(ParameterError, match="no method here can run: name a drafter with --draft"):
        timing.lineup([], ["speculative"])
    with pytest.raises(ParameterError, match="no method here can run; skipped: "):
        overhead.bench(load("town-diffusion"), [], ENTRIES)


def test_a_batch_is_not_larger_than_the_prompts(pair):
    """Regression: five prompts were decoded together, and the row was called batch 16."""
    with pytest.raises(PromptError, match="a batch of 4 needs as many prompts, not 3: lower --sizes"):
        batches.bench(pair[0], [], ENTRIES, only=["autoregressive"], sizes=[1, 4])


def test_the_line_up(pair):
    _, draft = pair
    other = copy.copy(draft)
    other.name = "other/../x"
    labels = [e.label for e in timing.lineup([draft, other])]
    assert labels[0] == "autoregressive"
    assert {"speculative, draft", "bild, draft", "speculative, other/../x"} <= set(labels)
    files = [e.file for e in timing.lineup([draft, other])]
    assert len(set(files)) == len(files)
    assert not any("/" in name for name in files)
    assert [e.label for e in timing.lineup([])] == ALONE
    assert {"prompt_lookup", "token_recycling", "unispec"} <= set(ALONE)


def check(found, bars):
    """Check a report against the schema that every result shares."""
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert set(data) == {
        "schema",
        "bench",
        "date",
        "commit",
        "title",
        "setting",
        "rows",
        "parts",
        "bars",
        "notes",
        "held",
        "summary",
    }
    assert {"model", "drafts", "dtype", "threads", "device", "processor", "versions"} <= set(data["setting"])
    assert data["setting"]["threads"] == torch.get_num_threads()
    assert len(data["bars"]) == bars
    for bar in data["bars"]:
        assert set(bar) == {"name", "value", "limit", "kind", "goal", "held"}
    assert data["held"] == all(bar["held"] for bar in data["bars"])
    assert "\n" not in data["summary"]
    assert data["summary"].startswith(found.name + ": ")
    assert f"{data['setting']['threads']} thread" in data["summary"]
    for row in data["rows"]:
        assert {key for key, *_ in found.columns} <= set(row)
    assert all(len(cells) == len(found.columns) for cells in found.table.cells())
    return data


def test_overhead(pair):
    target, draft = pair
    ticks = []
    found = overhead.bench(
        target, [draft], ENTRIES, number=2, max_new_tokens=6, rounds=3, tick=lambda *a: ticks.append(a)
    )
    data = check(found, bars=len(METHODS))
    assert [bar["limit"] for bar in data["bars"]] == [1.03] * len(METHODS)
    assert all(bar["kind"] == "at most" for bar in data["bars"])
    assert {row["method"] for row in data["rows"]} == set(METHODS)
    assert all(row["ratio"]["pairs"] == 3 and row["tokens"] > 0 for row in data["rows"])
    assert ticks[-1][:2] == (4 * len(METHODS),) * 2


def test_a_bench_of_the_project_has_a_status_and_its_options_in_the_file(folders, tmp_path, monkeypatch):
    options = ["--only", "autoregressive", "--number", "1", "--max-new-tokens", "2", "--rounds", "1"]
    for limit, wanted in ((1e9, 0), (1e-9, 1)):
        monkeypatch.setattr(overhead, "LIMIT", limit)
        file = tmp_path / f"{wanted}.json"
        assert main(["overhead", "--model", str(folders.target), *options, "--json", str(file)]) == wanted
        written = json.loads(file.read_text("utf8"))
        assert written["held"] is not bool(wanted)
        assert written["setting"]["options"] == {
            "number": "1", "max_new_tokens": "2", "only": "['autoregressive']",
        }  # fmt: skip
        assert len(written["setting"]["entries"]) == 16


def test_overhead_compares_a_record_with_none(pair, monkeypatch):
    records = []

    class Watched(Run):
        def __init__(self, *args, **options):
            records.append(options["record"])
            super().__init__(*args, **options)

    monkeypatch.setattr(overhead, "Run", Watched)
    overhead.bench(pair[0], [], ENTRIES, number=1, max_new_tokens=2, rounds=2)
    assert records[: len(ALONE)] == [None] * len(ALONE)  # each method runs once before any is timed
    del records[: len(ALONE)]
    assert sorted(records, key=str) == [None] * 3 * len(ALONE) + ["judged"] * 3 * len(ALONE)
    assert records[:4] in ([None, "judged", "judged", None], ["judged", None, None, "judged"])


def test_overhead_leaves_out_what_the_model_refuses(pair, monkeypatch):
    target, _ = pair
    kind = timing.methods.find("calm")

    def refuse(self, model):
        raise ParameterError("calm cannot run here")

    monkeypatch.setattr(kind, "prepare", refuse)
    options = {"number": 1, "max_new_tokens": 2, "rounds": 1}
    found = overhead.bench(target, [], ENTRIES, **options)
    assert {row["method"] for row in found.rows} == set(ALONE) - {"calm"}
    assert "skipped: calm cannot run here" in found.notes
    found = overhead.bench(target, [], ENTRIES, only=["unispec"], **options)
    assert [row["method"] for row in found.rows] == ["unispec"]
    with pytest.raises(ParameterError, match="cannot run here"):
        overhead.bench(target, [], ENTRIES, only=["calm"], **options)


def test_passes(pair):
    target, draft = pair
    found = passes.bench(target, [draft], context=20, largest=8, rounds=4)
    data = check(found, bars=0)
    used = [r for r in data["rows"] if r["used"]]
    assert [(r["model"], r["g"]) for r in used] == [
        (m, g) for m in ("target", "draft") for g in (1, 2, 4, 5, 8)
    ]
    assert all(r["ratio"]["median"] == 1 for r in data["rows"] if r["g"] == 1)
    forms = {(r["layout"], r["format"]) for r in data["rows"] if r["model"] == "target"}
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    cpu = torch.device("cpu")  # a CPU without AVX-512 packs no bfloat16
    ordinary = {(layout, kind) for layout, kind in forms if not layout.endswith(passes.INVARIANT)}
    layouts = {(layout, kind) for kind in kinds for layout in kernels.candidates(cpu, kinds[kind])}
    if kernels.multiplies_halves():
        layouts.add(("packed", "fp16"))
    if kernels._multiplies_whole_numbers():
        layouts.add(("packed", "int8"))  # no int4: the weights never had four bits
    assert ordinary == layouts
    assert len(forms - ordinary) <= len(kinds)  # if torch's matrix products allow it
    plain = [
        r for r in data["rows"] if (r["model"], r["layout"], r["format"]) == ("target", "plain", "float32")
    ]
    assert all(r["over"]["median"] == 1 for r in plain)
    assert all(r["over"] for r in data["rows"] if r["model"] == "target")


def test_passes_over_the_floor(pair):
    target, _ = pair
    (part,) = passes.bench(target, [], context=20, largest=4, rounds=1, floor=True).parts
    rates = [row for row in part.rows if "g" not in row]
    used = rates[-1 if torch.get_num_threads() > 1 else 0]["rate"]  # at the passes' number of threads
    assert [row["part"][-9:].strip(", ") for row in rates] == ["1 thread", "2 threads"][: len(rates)]
    for g in (1, 5, 9):
        parts = {row["part"]: row for row in part.rows if row.get("g") == g}
        whole = parts.pop("the whole pass")
        assert sum(row["median"] for row in parts.values()) == pytest.approx(whole["median"])
        assert sum(row.get("mb", 0) for row in parts.values()) == pytest.approx(whole["mb"])
        assert whole["share"] == pytest.approx(whole["rate"] / used)
    with pytest.raises(ParameterError, match="--floor needs a model of the Llama family"):
        passes.bench(load("town-t5"), [], context=20, largest=4, rounds=1, floor=True)


def test_a_model_in_each_number_format(pair):
    target, _ = pair
    made = passes.formats(target)
    assert [str(made[name].dtype) for name in ("float32", "bfloat16")] == ["torch.float32", "torch.bfloat16"]
    assert not made["float32"].invariant
    narrow = made["bfloat16"]
    way = choices.way(narrow, kernels.candidates(narrow.device, narrow.dtype))
    assert narrow.invariant == (not way.fault)
    assert "int4" not in made  # the weights never had four bits
    assert ("int8" in made) is kernels._multiplies_whole_numbers()
    assert target.dtype == torch.float32  # the model passed in is unchanged
    with pytest.raises(ModelError, match="not a causal model on the CPU"):
        passes.formats(specviz.load("town-t5"))


def test_bars_are_those_of_the_format():
    def named(dtype):
        return type("Named", (), {"name": "smollm2 (4 bit)", "dtype": dtype, "kernels": "onednn"})()

    over = {"float32": report.Estimate.of([0.6, 0.6]), "bfloat16": report.Estimate.of([0.35, 0.35])}
    rows = [{"used": True, "format": form, "g": 5, "over": each} for form, each in over.items()]
    held = {form: [bar.held for bar in passes._bars(named(form), rows)] for form in over}
    assert held == {"float32": [False], "bfloat16": [True]}
    read = [{"part": "the memory's read rate"}, {"part": "the whole pass", "g": 1, "share": 0.41}]
    assert [bar.held for bar in passes._shares(named("bfloat16"), read)] == [False]
    assert not passes._shares(named("float32"), read)


def test_the_cost_of_an_invariant_pass_is_judged():
    made = passes._cost(
        type("Named", (), {"name": "smollm2 (4 bit)", "dtype": "float32", "kernels": "plain"})(),
        [
            {"model": "smollm2 (4 bit)", "format": "float32", "g": g, "layout": layout, "median": time}
            for g in (1, 9)
            for layout, time in (("plain", 2.0), ("onednn", 1.0), ("onednn, invariant", 1.05 * g))
        ],
    )
    assert [bar.held for bar in made] == [True, False]


def test_passes_feed_g_tokens(pair, monkeypatch):
    target, _ = pair
    fed = []
    opened = target.open

    def watched(*args):
        context = opened(*args)
        forward = context.forward
        context.forward = lambda draft: fed.append(forward(draft).tokens)
        return context

    monkeypatch.setattr(target, "open", watched)
    passes.measure(target, (1, 3, 5), context=10, rounds=2)
    assert sorted(fed[1:]) == sorted([1, 3, 5] * 5)[1:]  # the first pass also reads the context's last token
    with pytest.raises(ParameterError, match="do not fit"):
        passes.measure(target, (1, 64), context=target.max_length, rounds=1)


def test_of_an_encoder_decoder_the_new_tokens_are_what_counts():
    model = specviz.load("town-t5")
    text = "Translate English to German: The old doctor bought a red bicycle and a green lamp yesterday."
    ids = model.encode(text)
    ours = specviz.generate(model, [ids], "autoregressive", max_new_tokens=12)
    assert len(ids) > 12
    assert peers.TransformersPeer(model, 12).generate(ids) == ours.outputs["token"].tolist()


def test_what_transformers_cannot_decode_is_named():
    class Other:
        name, net = "other", torch.nn.Linear(2, 2)

    with pytest.raises(ModelError, match="other is not in transformers' format"):
        peers.TransformersPeer(Other(), 4)
    assert "transformers" in speed.lacking_engines(Other())


def test_the_twin_leaves_the_model_alone(pair):
    target, _ = pair
    before = [p.clone() for p in target.net.parameters()]
    net = peers.twin(target)
    assert all(p.is_contiguous() for p in net.parameters())
    with torch.no_grad():
        next(net.parameters()).add_(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, target.net.parameters()))


def test_demo(pair, tmp_path):
    target, draft = pair
    entries = [*ENTRIES, {"prompt": "</script><img src=x onerror=alert(1)>", "kind": "<b>hostile"}]
    ticks = []
    found, page = demo.run(
        target, [draft], entries, tmp_path / "out", each=1, max_new_tokens=8, tick=lambda *a: ticks.append(a)
    )
    data = check(found, bars=0)
    (apart,) = data["parts"]
    assert sorted(row["method"] for row in data["rows"] + apart["rows"]) == sorted(METHODS)
    assert {row["exactness"] for row in apart["rows"]} == {"lossy"}
    assert "lossy" not in {row["exactness"] for row in data["rows"]}
    plain = next(row for row in data["rows"] if row["method"] == "autoregressive")
    assert (plain["tau"], plain["speedup"]) == (1, 1)
    assert all(0 < row["prefill"] < row["seconds"] for row in data["rows"])
    for row in data["rows"]:
        apart = row["seconds"] - row["prefill"]
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / apart)
        assert row["tokens_per_second_with_prefill"] == pytest.approx(row["tokens"] / row["seconds"])
    assert {row["same"] for row in data["rows"]} == {"5/5"}
    assert ticks[-1][:2] == (5 * len(METHODS),) * 2
    files = sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()
    )
    assert files == ["demo.html", *sorted(f"traces/{entrant.file}" for entrant in timing.lineup([draft]))]
    assert {"traces/bild-draft.parquet", "traces/unispec.parquet"} <= set(files)
    trace = specviz.open(tmp_path / "out" / "traces")
    assert len(trace.texts) == 5 * len(METHODS)
    text = page.read_text(encoding="utf8")
    assert "default-src 'none'" in text and "script-src 'sha256-" in text, "its own scripts alone run"
    low = text.lower().replace("http://www.w3.org/", "")
    for word in (
        "</script><img",
        "<b>hostile",
        "<img src=",
        "http://",
        "https://",
        'src="//',
        "@import",
        "<link",
        "<iframe",
    ):
        assert word not in low, word
    assert text.count("<tr>") >= 2 + len(METHODS)  # including the lossy methods' table
    with pytest.raises(TraceError, match="exists"):
        demo.run(target, [draft], entries, tmp_path / "out")


def slowed(speeds):
    """`timing.paired` with each decoder's seconds set so that it writes `speeds` tokens per second."""

    measured = timing.paired

    def paired(decoders, texts, *args):
        found = measured(decoders, texts, *args)
        for name, decoder in decoders.items():
            decoder.prefills[:] = [0.5] * texts
            found[name].seconds[:] = [0.5 + len(text) / speeds[name] for text in found[name].texts]
        return found

    return paired


def test_a_demo_orders_by_speed_and_says_first_what_won(pair, tmp_path, monkeypatch):
    target, _ = pair
    speeds = dict(zip(demo.UNTRAINED, (30.0, 20.0, 5.0, 25.0, 10.0, 15.0)))
    monkeypatch.setattr(demo.timing, "paired", slowed(speeds))
    found, page = demo.run(target, [], ENTRIES, tmp_path, each=1, max_new_tokens=6)
    assert [row["method"] for row in found.rows] == sorted(speeds, key=speeds.get, reverse=True)
    assert [row["speedup"] for row in found.rows][:2] == pytest.approx([1, 25 / 30])
    assert not found.parts
    first = "spectra writes 25.0 tokens/s, 0.83 times our own plain decoding (30.0 tokens/s)"
    assert found.title.splitlines()[0] == first
    console = Console(width=200, file=io.StringIO())
    found.show(console)
    assert console.file.getvalue().startswith(first)
    assert first in page.read_text(encoding="utf8")


@pytest.mark.parametrize(
    ("ours", "best", "theirs", "says", "inside"),
    [
        (
            30, 20, 60,
            "lookahead writes 20.0 tokens/s, 0.67 times our own plain decoding and 0.33 times llama.cpp's, "
            "the fastest plain decoding of this file here (60.0 tokens/s; it computes with Q4_1 weights, "
            "we with float32)", ("0.71", "0.43"),
        ),
        (
            30, 45, 15,
            "lookahead writes 45.0 tokens/s, 1.50 times our own plain decoding, the fastest plain decoding "
            "of this file here (30.0 tokens/s), and 3.00 times llama.cpp's (15.0 tokens/s; it computes with "
            "Q4_1 weights, we with float32)", ("1.36", "2.45"),
        ),
    ],
)  # fmt: skip
def test_the_first_line_of_a_demo(ours, best, theirs, says, inside):
    def row(name, speed, **more):
        with_prefill = 1 / (1 / speed + 1 / 120)
        speeds = {"tokens_per_second": float(speed), "tokens_per_second_with_prefill": with_prefill}
        return {"method": name} | speeds | more

    rows = [row("autoregressive", ours), row("unispec", 1), row("lookahead", best)]
    rows.append(row("llama.cpp, plain", theirs, engine="llama.cpp", format="Q4_1"))
    own, other = inside
    second = "Including the prefill (reading the prompt), all texts together: "
    second += f"{own} times our own and {other} times llama.cpp's"
    assert demo.headline(rows, "float32").splitlines() == [says, second]
    rows[-1]["format"] = "float32"
    same = says.replace("; it computes with Q4_1 weights, we with float32", "")
    assert demo.headline(rows, "float32").splitlines() == [same, second]


def test_a_toy_is_called_one_first(tmp_path):
    found, _ = demo.run(load("town"), [], ENTRIES, tmp_path, each=1, max_new_tokens=2)
    toy, first, *_ = found.title.splitlines()
    assert toy == (
        "town is a toy model of 2.3 M parameters: its time goes into function calls, not reading weights."
    )
    assert "times our own plain decoding" in first


def test_the_prefill_of_every_turn_counts(monkeypatch):
    written = []

    class Timed(demo.Phased):
        """A decoder that needs a second per token, and 100 to read its second turn."""

        def __call__(self, number=0):
            written.append(super().__call__(number))
            self.prefills[-1] = 100.0 * number
            return written[-1]

    spent = lambda: 100.0 * (len(written) > 1) + sum(map(len, written))
    clock = SimpleNamespace(perf_counter=spent)
    monkeypatch.setattr(demo, "Phased", Timed)
    monkeypatch.setattr(demo, "time", clock)
    monkeypatch.setattr(demo, "SECONDS", 140.0)  # to read both turns, and to write 20 tokens after each
    assert demo.affordable(load("town"), ENTRIES[:1], 1) == (20, 1)


def test_batch_sizes_take_turns(monkeypatch):
    order, once = [], batches.once
    monkeypatch.setattr(batches, "once", lambda *given: (order.append(given[4]), once(*given))[1])
    batches.bench(
        load("town"), [], ENTRIES, only=["autoregressive"], sizes=[1, 2, 3], rounds=3, max_new_tokens=2
    )
    rounds = [order[i : i + 3] for i in (3, 6, 9)]  # after the warm-up
    assert rounds == [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
    again = {"only": ["autoregressive"] * 2, "sizes": [1, "2", 2], "rounds": 1, "max_new_tokens": 2}
    assert [row["batch"] for row in batches.bench(load("town"), [], ENTRIES, **again).rows] == [1, 2]


@pytest.mark.parametrize(("seconds", "expected"), [(1e6, (demo.TOKENS, 2)), (1e-6, (demo.FEWEST, 1))])
def test_a_slow_machine_decodes_fewer_tokens_then_fewer_texts(seconds, expected, monkeypatch):
    monkeypatch.setattr(demo, "SECONDS", seconds)
    monkeypatch.setattr(demo, "MINIMUM", 1)
    assert demo.affordable(load("town"), ENTRIES[:2], 3) == expected
    monkeypatch.setattr(demo, "MINIMUM", 5)
    assert demo.affordable(load("town"), ENTRIES[:2], 3)[1] == 2  # no more than the prompts given


def test_a_demo_calibrates_once(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path / "kept"))
    measure, calls = demo.calibrate, []
    monkeypatch.setattr(demo, "calibrate", lambda *a, **more: calls.append(a) or measure(*a, **more))
    monkeypatch.setattr(demo, "CALIBRATION_TOKENS", 6)
    practice = [{"prompt": text} for text in ("red", "one two", "three", "and")]
    notes = []
    for out in ("a", "b"):
        found, _ = demo.run(pair[0], [], ENTRIES, tmp_path / out, each=1, max_new_tokens=4, practice=practice)
        trace = specviz.open(tmp_path / out / "traces" / "unispec.parquet")
        size = trace.run["calibration"]["value"]
        assert 2 <= size <= 16 and trace.run["parameters"]["draft_size"] == size
        (note,) = (note for note in found.notes if f"unispec {size} (" in note)
        notes.append(note)
    assert len(calls) == 1
    assert "kept for the next time" in notes[0]
    assert "from an earlier calibration here" in notes[1]
    for name in set(demo.UNTRAINED) - {"autoregressive"}:
        trace = specviz.open(tmp_path / "b" / "traces" / f"{name}.parquet")
        assert trace.run["parameters"][methods.find(name).size] == size  # the other methods use the same size


def test_a_demo_shows_each_method_with_one_drafter():
    pairs = [
        ("autoregressive", None), ("bild", "m-draft"), ("bild", "m-draft-aligned"), ("eagle", "m-eagle3"),
        ("speculative", "m-draft"), ("speculative", "m-draft-aligned"),
    ]  # fmt: skip
    listed = [timing.Entrant(method, draft and SimpleNamespace(name=draft)) for method, draft in pairs]
    shown = [pair for pair in pairs if pair not in (("bild", "m-draft"), ("speculative", "m-draft-aligned"))]
    assert demo.once_each(listed) == [listed[pairs.index(pair)] for pair in shown]
    # Without an aligned drafter, BiLD takes the one available.
    assert demo.once_each(listed[:2]) == listed[:2]


def test_a_demo_of_named_methods_runs_each_once(pair, tmp_path):
    target, draft = pair
    other = copy.copy(draft)
    other.name = f"{draft.name}-aligned"
    names = ["autoregressive", "speculative", "bild"]
    made, _ = demo.run(target, [draft, other], ENTRIES, tmp_path, each=1, max_new_tokens=4, names=names)
    rows = made.rows + [row for part in made.parts for row in part.rows]
    assert {(row["method"], row["draft"]) for row in rows} == {
        ("autoregressive", None), ("speculative", draft.name), ("bild", other.name),
    }  # fmt: skip


def test_a_demo_that_cannot_calibrate_says_so(pair, tmp_path):
    practice = [{"prompt": "x" * 500}]  # leaves no room in the model's context
    found, _ = demo.run(pair[0], [], ENTRIES, tmp_path, each=1, max_new_tokens=4, practice=practice)
    assert any("unispec 24 (not calibrated: " in note and "leaves no room" in note for note in found.notes)


def test_a_demo_beside_llama_cpp(pair, tmp_path, monkeypatch):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from specviz.models.llamacpp import library, write_gguf

    target = load("town-draft")
    path = write_gguf(target, tmp_path / "draft.gguf", "f32").path
    found, _ = demo.run(target, [], ENTRIES, tmp_path / "a", each=1, max_new_tokens=6, path=path)
    data = check(found, bars=0)
    (row,) = (row for row in data["rows"] if row["method"] == "llama.cpp, plain")
    assert row["same"] == "4/4"  # a conversation continues from its own answers
    assert row["tau"] is None
    assert "llama.cpp's" in found.title
    assert not list((tmp_path / "a").rglob("*llama*"))
    # If it is not installed, the demo continues and says so.
    gc.collect()  # frees llama.cpp's contexts while the library is still loaded
    library.library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    found, _ = demo.run(target, [], ENTRIES, tmp_path / "b", each=1, max_new_tokens=6, path=path)
    assert "llama.cpp, plain" not in [row["method"] for row in found.rows]
    assert any("missing here" in note and "llama.cpp is not installed" in note for note in found.notes)


def test_an_interrupted_demo_keeps_every_trace(pair, tmp_path, monkeypatch):
    target, draft = pair
    kind = timing.methods.find("speculative")
    verify, calls = kind.verify, []

    def interrupted(self, *args):
        calls.append(0)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return verify(self, *args)

    monkeypatch.setattr(kind, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run(target, [draft], ENTRIES, tmp_path, each=1, max_new_tokens=8)
    runs = specviz.open(tmp_path / "traces").runs
    assert len(runs) == len(METHODS)
    assert not runs["complete"].any()
    assert set(runs["stopped"]) == {"interrupted"}
    assert not list(tmp_path.rglob("*.partial"))
    assert not (tmp_path / demo.PAGE).exists()


def test_a_demo_names_what_an_interrupted_one_saved(tmp_path):
    entrant = timing.Entrant("unispec")
    partial = partial_of(tmp_path / demo.TRACES / entrant.file)
    partial.parent.mkdir()
    partial.touch()  # cut off before it had saved anything
    assert demo.plan(tmp_path, [entrant], force=False)
    partial.write_bytes(b"saved")
    with pytest.raises(TraceError, match=r"_unispec\.parquet\.partial was left by an interrupted demo: look"):
        demo.plan(tmp_path, [entrant], force=False)
    assert demo.plan(tmp_path, [entrant], force=True)


def test_benches_are_found_by_name():
    assert all(callable(find(name)) for name in BENCHES)
    with pytest.raises(ParameterError, match="batches"):
        find("bathces")


def test_phases_share_out_the_time(pair):
    target, draft = pair
    trace = specviz.generate(target, ENTRIES, "speculative", draft=draft, max_new_tokens=8)
    shares = timing.phases(trace)
    assert sum(shares.values()) == pytest.approx(1)
    assert {"prefill", "draft", "forward", "verify", "commit", "between"} == set(shares)


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with timing.threads(before + 1) as n:
        assert n == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ParameterError), timing.threads(0):
        pass


def test_a_block_within_another_leaves_it_settled(monkeypatch):
    monkeypatch.setattr(timing, "_blocks", [])
    gc.unfreeze()
    calls = []  # the count of frozen objects is unreliable: unreferenced ones are freed anyway
    for name in ("freeze", "unfreeze"):
        real = getattr(gc, name)
        monkeypatch.setattr(gc, name, lambda real=real, name=name: calls.append(name) or real())
    with timing.settled():
        with timing.settled():
            assert calls == ["freeze"] and gc.get_freeze_count() > 0
        with pytest.raises(ZeroDivisionError), timing.settled():
            _ = 1 / 0
        assert calls == ["freeze"] and gc.get_freeze_count() > 0
    assert calls == ["freeze", "unfreeze"] and gc.get_freeze_count() == 0
