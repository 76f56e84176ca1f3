"""A prompt's own fields, arrays as prompts, a cycle's custom signals, and memory at the end of a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import llama

import specviz as sv
from specviz.errors import ParameterError, PromptError


@pytest.fixture(scope="module")
def model():
    return llama(seed=1, vocabulary=24, eos=())


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", 3.5), ("id", True), ("kind", ["a"]), ("reference", {"a"}), ("reference", 4), ("segmented", 1)],
)
def test_a_field_that_no_record_can_hold_is_refused_before_any_work(model, field, value, tmp_path):
    with pytest.raises(PromptError, match=f"'{field}'"):
        sv.generate(model, {"prompt": [1, 2], field: value}, "autoregressive", out=tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_blanks_and_numbers_of_a_table_are_taken(model, tmp_path):
    entry = {"prompt": [1, 2], "id": np.int64(3), "kind": float("nan"), "reference": np.array(["a", "b"])}
    entry["language"] = pd.NA
    sv.generate(model, entry, "autoregressive", max_new_tokens=2, out=tmp_path / "a.parquet")
    (prompt,) = sv.open(tmp_path / "a.parquet").run["prompts"]
    assert prompt == {"tokens": [1, 2], "id": 3, "reference": ["a", "b"]}


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_arrays_are_prompts(model, array):
    options = {"method": "autoregressive", "max_new_tokens": 2}
    lists = sv.generate(model, [[1, 2], [3, 4, 5]], **options)
    assert sv.generate(model, [array([1, 2]), array([3, 4, 5])], **options).texts == lists.texts
    assert sv.generate(model, array([1, 2]), **options).texts == lists.texts[:1]
    assert sv.generate(model, list(np.array([1, 2])), **options).texts == lists.texts[:1]


def test_a_cycle_holds_no_signal_of_the_one_before(model):
    run = sv.generate(model, [[1, 2], [3, 4]], "unispec", max_new_tokens=12)
    idle = run.cycles.query("cycle > 0 and drafted == 0")
    assert len(idle) and idle["control_candidates"].fillna(0).max() == 0


def test_a_drafter_and_a_verdict_that_return_nothing_are_one_line(model):
    kind = type(sv.method("prompt_lookup"))

    class Silent(kind):
        name = "silent"

        def draft(self, left):
            yield from ()

    class Mute(kind):
        name = "mute"

        def verify(self, draft, scores):
            verdict = super().verify(draft, scores)
            verdict.path, verdict.token = [], None
            return verdict

    with pytest.raises(ParameterError, match="must return a Draft at its end"):
        sv.generate(model, [1, 2], Silent, max_new_tokens=4)
    with pytest.raises(ParameterError, match="emitted no token"):
        sv.generate(model, [1, 2], Mute, max_new_tokens=4)


def test_memory_in_a_batch_and_after_a_resume(model, tmp_path):
    with pytest.raises(ParameterError, match="learns from prompt to prompt"):
        sv.generate(model, [[1, 2]], "unispec", batch=2, max_new_tokens=4)
    path = tmp_path / "a.parquet"
    ended = sv.generate(model, [[1, 2], [3, 4]], "unispec", max_new_tokens=8, out=path).run["memory"]["end"]
    assert ended["state"] == "warm"
    again = sv.generate(model, [[1, 2], [3, 4]], "unispec", max_new_tokens=8, out=path, resume=True)
    assert again.run["memory"]["end"] == ended


def test_another_stream_is_not_resumed(tmp_path):
    path, lag = tmp_path / "a.parquet", sv.streams.fixed_lag
    one, other = (lag(f"The {who} bought a red bicycle.") for who in ("doctor", "teacher"))
    later = replace(one, updates=[replace(update, time=1.0) for update in one])
    options = {"method": "retranslate", "max_new_tokens": 8, "out": path}
    first = sv.generate("town", [one], **options).texts  # read before the file is rewritten
    assert sv.generate("town", [one], resume=True, **options).texts == first
    for each in (other, later):
        with pytest.raises(ParameterError, match="stream 1 is not the one"):
            sv.generate("town", [each], resume=True, **options)
    sv.generate("town", [later], force=True, **options)
    assert sv.generate("town", [later], resume=True, **options).updates["arrival"].eq(1).all()


def test_a_stream_that_has_grown_is_decoded_anew(tmp_path):
    updates = list(sv.streams.fixed_lag("The doctor bought a red bicycle.", 2))
    short, grown, other = map(sv.streams.Stream, (updates[:2], updates, updates[1:]))
    options = {"method": "retranslate", "max_new_tokens": 8}
    wanted = sv.generate("town", [grown, other], **options).updates[["prompt", "update", "source", "ids"]]
    path = options["out"] = tmp_path / "a.parquet"
    sv.generate("town", [short, other], **options)
    trace = sv.generate("town", [grown, other], resume=True, **options)
    assert trace.updates[["prompt", "update", "source", "ids"]].equals(wanted)
    started = trace.cycles.groupby("prompt")["start"].min()
    assert started[0] > started[1], "the other stream is kept"
    assert sv.open(path).run["complete"]


@pytest.mark.parametrize(
    ("field", "value"), [("id", 1.0), ("language", True), ("reference", {"a"}), ("segmented", 3)]
)
def test_a_field_of_a_stream_that_no_record_can_hold_is_refused(field, value, tmp_path):
    given = sv.streams.Stream([sv.streams.Update("Tom")], **{field: value})
    with pytest.raises(PromptError, match=rf"^'{field}' of stream 1 must be"):
        sv.generate("town", given, "retranslate", out=tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def test_blanks_of_a_table_are_no_fields_of_a_stream(tmp_path):
    given = sv.streams.Stream([sv.streams.Update("Tom")], np.int64(3), "en", float("nan"), float("nan"))
    sv.generate("town", given, "retranslate", max_new_tokens=2, out=tmp_path / "a.parquet")
    (prompt,) = sv.open(tmp_path / "a.parquet").run["prompts"]
    assert {key: prompt[key] for key in prompt if key != "tokens"} == {
        "id": 3, "kind": "stream", "language": "en"
    }  # fmt: skip


def test_what_passes_with_the_argmax_is_exact_up_to_ties():
    """On an invariant model greedy methods are exact; those that take a tie with the argmax are not."""
    target = llama(seed=3, vocabulary=24, eos=())
    drafter = llama(seed=3, vocabulary=24, eos=(), like=target, noise=0.01)
    target.make_invariant()
    for method, values in (("specdec", {"top_beta": 1}), ("cm_asd", {"top_beta": 1}), ("speculative", {})):
        run = sv.generate(target, [5, 6], method, draft=drafter, max_new_tokens=4, **values).run
        assert run["exactness"] == ("exact" if method == "speculative" else "exact up to ties")


def test_a_model_without_a_chat_template_takes_prompts_of_one_turn(folders):
    model = sv.load(folders.target)
    model.text.tokenizer.chat_template = None
    options = {"method": "autoregressive", "max_new_tokens": 4}
    plain = sv.generate(model, "Hello", **options)
    for prompt in ({"turns": ["Hello"]}, {"messages": [{"role": "user", "content": "Hello"}]}):
        assert sv.generate(model, prompt, **options).texts == plain.texts
    with pytest.raises(PromptError, match=r"prompt 2 is a conversation, and .* has no chat template"):
        sv.generate(model, ["Hello", {"turns": ["Hello", "Why?"]}], **options)
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    with pytest.raises(PromptError, match="no chat template and takes single texts, not 2 messages"):
        sv.generate(model, chat, **options)
