"""Chats and prompt files in the formats of other tools."""

import json

import pytest

import specviz
from specviz.chats import chat
from specviz.errors import PromptError
from specviz.suites.files import read

USER = {"role": "user", "content": "Count to three."}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "Count"}, {"type": "text", "text": "to three."}],
}
ANSWER = {"role": "assistant", "content": "one two three"}


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_parts_of_text_become_one_text():
    assert chat([PARTS])[0]["content"] == "Count\nto three."
    called = USER | {"name": "Ana", "tool_calls": [{"id": 1}]}
    assert chat([called, USER]) == [called, USER]


BAD = [
    ([USER, ANSWER], "the chat ends with the assistant's turn"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "part of type 'image_url'"),
    ([{"role": "user", "content": [3]}], "part of type 'int'"),
    ([{"role": "user", "content": None}], "message 0 needs a role and a content"),
    ([{"content": "a"}], "message 0 needs a role and a content"),
    ([USER, "text"], "message 1 needs a role and a content"),
]


@pytest.mark.parametrize(("messages", "words"), BAD)
def test_what_no_template_takes_is_refused(messages, words):
    with pytest.raises(PromptError) as error:
        chat(messages)
    assert words in str(error.value)


def test_generate_takes_messages_as_prompt_files_have_them():
    target = specviz.load("town")
    plain = specviz.generate(target, [USER], method="autoregressive", max_new_tokens=4)
    named = specviz.generate(
        target, [{"messages": [USER], "id": "a"}], method="autoregressive", max_new_tokens=4
    )
    assert plain.texts == named.texts
    with pytest.raises(PromptError, match="one of 'prompt', 'turns' and 'messages'"):
        specviz.generate(target, {"messages": [USER], "prompt": "a"}, method="autoregressive")
    with pytest.raises(PromptError, match="ends with the assistant's turn"):
        specviz.generate(target, [USER, ANSWER], method="autoregressive")


def test_batch_files_of_openai_are_prompts(tmp_path):
    line = {"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [PARTS]}}
    assert read(write(tmp_path / "b.jsonl", line)) == [
        {"prompt": [{"role": "user", "content": "Count\nto three."}], "id": "q1"}
    ]


def test_a_turn_that_leaves_no_room_ends_its_conversation_and_not_the_run(tmp_path, capsys):
    long = {"turns": ["Hello", "Tell me about the harbour. " * 120, "And?"], "id": "a"}
    short = {"turns": ["Hello", "Who sold the red bicycle?"], "id": "b"}
    options = {"max_new_tokens": 6, "out": tmp_path / "x.parquet"}
    whole = specviz.generate("town", [short], "autoregressive", max_new_tokens=6).texts
    for resume in (False, True):
        trace = specviz.generate("town", [long, short], "autoregressive", resume=resume, **options)
        assert trace.run["complete"] and trace.texts[1:] == whole
        assert sorted(set(trace.cycles["prompt"])) == [0, 3, 4]
        line = capsys.readouterr().err.strip()
        if resume:  # it is finished: nothing is decoded again
            assert line == ""
        else:
            assert line.startswith("specviz: turn 2 of prompt a has ") and line.endswith("ends before it")
    specviz.generate("town", [short, {"turns": long["turns"]}], "autoregressive", max_new_tokens=6)
    assert capsys.readouterr().err.startswith("specviz: turn 2 of prompt 2 has ")
    options["out"] = tmp_path / "y.parquet"
    for resume in (False, True):  # although its memory is not in the file
        trace = specviz.generate("town", [long], "unispec", resume=resume, **options)
        assert trace.run["complete"] and sorted(set(trace.cycles["prompt"])) == [0]


def test_conversations_of_sharegpt_are_turns(tmp_path, capsys):
    turns = [("human", "Hello"), ("gpt", "Hi!"), ("human", "Count to three.")]
    entry = {"id": "c", "conversations": [{"from": who, "value": text} for who, text in turns]}
    file = tmp_path / "s.json"
    file.write_text(json.dumps([entry, entry], indent=2))
    assert read(file) == [{"turns": ["Hello", "Count to three."], "id": "c"}] * 2
    mute = {"conversations": [{"from": "gpt", "value": "Hi!"}]}
    file.write_text(json.dumps([mute, entry, mute]))
    assert read(file) == [{"turns": ["Hello", "Count to three."], "id": "c"}]
    assert "2 conversations without a human turn left out (entry 1, 3)" in capsys.readouterr().err
    file.write_text(json.dumps([mute]))
    with pytest.raises(PromptError, match="its conversations have no human turn to answer"):
        read(file)
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps([entry]).encode())
    assert len(read(file)) == 1
    file.write_text("[]")
    with pytest.raises(PromptError, match="holds no prompts"):
        read(file)


def test_a_system_turn_of_sharegpt_is_kept(tmp_path):
    turns = [("system", "Be brief."), ("human", "Hello"), ("gpt", "Hi!")]
    entry = {"conversations": [{"from": who, "value": text} for who, text in turns]}
    roles = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert read(write(tmp_path / "s.jsonl", entry)) == [{"prompt": roles}]
    entry["conversations"].append({"from": "human", "value": "And now?"})
    with pytest.raises(PromptError, match="line 1: has a system turn and 2 human ones"):
        read(write(tmp_path / "t.jsonl", entry))


def test_an_answer_in_the_data_is_the_reference(tmp_path):
    file = write(tmp_path / "m.jsonl", {"messages": [USER, ANSWER]})
    assert read(file) == [{"prompt": [USER], "reference": "one two three"}]
    file = write(
        tmp_path / "p.jsonl", {"messages": [USER, ANSWER | {"content": PARTS["content"]}], "reference": None}
    )
    assert read(file) == [{"prompt": [USER], "reference": "Count\nto three."}]


def test_fields_of_other_tools_are_looked_at_only_where_there_is_no_prompt(tmp_path):
    lines = [
        {"prompt": "a", "body": "the issue's text"},
        {"prompt": "a", "conversations": [{"role": "user"}]},
        {"turns": ["a"], "conversations": [{"from": "gpt", "value": "b"}]},
    ]
    file = write(tmp_path / "o.jsonl", *lines)
    assert read(file) == [{"prompt": "a"}, {"prompt": "a"}, {"turns": ["a"]}]


@pytest.mark.parametrize(
    "line",
    [
        {"body": {"conversations": [1]}}, {"body": {"turns": 5}}, {"body": 3}, {"conversations": "a"},
        {"conversations": [{"from": "human"}]}, {"body": {"prompt": "", "kind": ["x"]}},
    ],
)  # fmt: skip
def test_a_bad_line_of_another_tool_is_one_clear_line(line, tmp_path):
    with pytest.raises(PromptError) as error:
        read(write(tmp_path / "bad.jsonl", line))
    assert "line 1" in str(error.value) and "\n" not in str(error.value)
