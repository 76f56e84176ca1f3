"""A bench's command takes its function's arguments; names of counts, and options that name prompts."""

from __future__ import annotations

from inspect import signature

import pytest
from benchmarks import printed, same

from specviz import cli
from specviz.cli.benching import FILLED, _values, bench_command
from specviz.errors import ParameterError
from specviz.measure import BENCHES, find
from specviz.replays.published import published
from specviz.replays.recipes import ALIGNED

COMMON = {"model", "threads", "device", "dtype", "kernels", "invariant", "json", "force"}


@pytest.mark.parametrize("name", BENCHES)
def test_a_command_has_the_options_of_its_bench(name):
    taken = set(signature(find(name)).parameters)
    options = {each.name for each in bench_command(name).params if each.name != "help"}
    prompts = {"prompts"} if "entries" in taken else set()
    drafts = {"draft"} if "drafts" in taken else set()
    assert options == (taken - set(FILLED)) | COMMON | prompts | drafts


def test_an_option_that_a_bench_does_not_take_is_named():
    for words in (["passes", "--number", "3"], ["speed", "--draft", "town-draft"]):
        with pytest.raises(ParameterError, match=f"bench {words[0]} takes no {words[1]} .*--help"):
            bench_command(words[0]).main(words[1:], standalone_mode=False)
    with pytest.raises(ParameterError, match="did you mean passes"):
        bench_command("pases")


def test_the_rounds_of_another_bench_are_left_alone(tmp_path, capsys):
    rounds = tmp_path / "r.json.rounds"
    rounds.write_text("{}")
    assert cli.run(["bench", "passes", "--json", str(tmp_path / "r.json")]) == 2
    assert "r.json.rounds keeps another bench's rounds: delete it, or change" in capsys.readouterr().err
    assert rounds.exists() and not (tmp_path / "r.json").exists()


def test_several_values_are_repeated_or_have_commas():
    assert _values({"only": ["a, b", "c"], "number": 3, "ids": None}) == {
        "only": ["a", "b", "c"],
        "number": 3,
    }


def test_how_many_is_a_number(capsys):
    assert cli.run(["calibrate", "--prompts", "5"]) == 2
    assert "for a count, use --number 5" in capsys.readouterr().err


# ---------------------------------------------------------------- helpers of the project's benches


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("batches", "--sizes", "1,x"), "batch sizes must be whole numbers of at least 1, got 'x'"),
        (("batches", "--sizes", "1,0"), "batch sizes must be whole numbers of at least 1, got '0'"),
        (
            ("canvases", "--cells", "64,big"),
            "lengths of canvases must be whole",
        ),  # its default writes canvases
        (("canvases", "--cache", "prefix"), "cache must be"),
        (("drafters", "--sums", "0", "--only", "no"), "no contender 'no'"),  # 0 is allowed: none
    ],
)
def test_a_list_of_numbers_has_numbers(words, line, capsys):
    assert cli.run(["bench", *words]) == 2
    assert line in capsys.readouterr().err


def test_printed_numbers_are_the_published_ones():
    frame = published("ssbd/table2")
    rows = frame[(frame["language"] == "English→German") & (frame["method"] == "SSBD")]
    rows = rows[rows["model"] == "Tower+ 2B"].set_index("metric")  # the table's first model
    comet, ne, a_d, a_o, speedup = printed.pair("de", "β = 0.2")
    assert (comet, ne, speedup) == tuple(rows.loc[["comet", "ne", "speedup"], "value"])
    assert (a_d, a_o) == tuple(rows.loc[["a_d", "a_o"], "value"] / 100)
    assert printed.setting("mask-3") != printed.setting("display-3") != printed.setting("β = 0")
    assert printed.setting("RT")[2:4] == (None, None), "nothing is drafted"
    assert printed.pair("xx", "RT") == (None,) * 5, "the control language is no paper's"
    assert len(printed.limits(4)) == 5 and printed.saved("chain", 9) is None
    assert printed.speedups("translation", ALIGNED) == "1.62, 1.78 / 1.47, 1.70"
    assert printed.speedup_and_score("sum-en", "CM-ASD") == (4.0, 38.10)
    assert printed.speedup_and_score("en-de", "no such setting") == (None, None)


def test_two_versions_are_compared_without_their_times():
    one = {"replay": {"cells": [{"metric": "tau", "measured": 2.0}, {"metric": "speedup", "measured": 1.5}],
                      "notes": ["a"]}, "town": {"texts": ["x"]}}  # fmt: skip
    other = {"replay": {"cells": [{"metric": "tau", "measured": 2.0}, {"metric": "speedup", "measured": 1.6}],
                        "notes": ["b"]}, "town": {"texts": ["x"]}}  # fmt: skip
    assert list(same.differences(one, other, timed=False)) == []
    assert len(list(same.differences(one, other, timed=True))) == 2
    other["replay"]["cells"][0]["measured"] = 2.1
    other["town"]["texts"] = ["y"]
    lines = list(same.differences(one, other, timed=False))
    assert [line.partition(":")[0] for line in lines] == ["replay.cells[0].measured", "town.texts[0]"]
