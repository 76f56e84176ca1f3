"""A target's answers in a file: their content, resuming, and refusals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from tiny import llama

import specviz
from specviz.cli import run
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.finetune import answers
from specviz.finetune.answers import AnswerOptions, answer, read
from specviz.metrics.loops import cut_loop
from specviz.models import Model, zoo
from specviz.models.torch_model import hashed
from specviz.suites import fetching

PROMPTS = [[3 + i, 5 + i % 7, *range(9, 9 + i % 4)] for i in range(12)]
FULL = Path("/dev/full")  # a disk without room
BOTH = AnswerOptions(8, (0.0, 0.7), rows=5)


def _quiet(line: str) -> None: ...


@pytest.fixture(scope="module")
def target() -> Model:
    return llama(seed=3, layers=4, name="tiny", eos=(47,))


def test_greedy_answers_are_the_targets_and_drawn_ones_do_not_depend_on_the_batch(
    target: Model, tmp_path: Path
) -> None:
    made = answer(target, PROMPTS, tmp_path / "a", BOTH, say=_quiet)
    alone = answer(target, PROMPTS, tmp_path / "b", AnswerOptions(8, (0.0, 0.7), rows=1), say=_quiet)
    texts = [
        {(row["number"], row["temperature"]): row["answer"] for row in each.rows} for each in (made, alone)
    ]
    assert texts[0] == texts[1] and len(texts[0]) == 24
    own = specviz.generate(target, PROMPTS, "autoregressive", max_new_tokens=8).outputs
    for number in range(12):
        assert texts[0][number, 0.0] == own[own["prompt"] == number]["token"].tolist()
    assert any(texts[0][number, 0.0] != texts[0][number, 0.7] for number in range(12))


def test_a_long_prompt_ends_its_own_answer_alone(tmp_path: Path) -> None:
    target = llama(seed=3, layers=2, name="tiny", eos=())
    room = target.max_length
    prompts = [[3, 5, 7], [5] * (room - 2), [9, 11]]
    made = answer(target, prompts, tmp_path / "a", AnswerOptions(8, rows=3), say=_quiet)
    lengths = {row["number"]: len(row["answer"]) for row in made.rows}
    assert lengths[1] == target.left(room - 2) < 8
    own = specviz.generate(target, [prompts[0]], "autoregressive", max_new_tokens=8).outputs["token"].tolist()
    (first,) = (row["answer"] for row in made.rows if row["number"] == 0)
    assert first == own[: len(first)]


def test_a_file_that_was_filtered_is_continued(target: Model, tmp_path: Path) -> None:
    file = tmp_path / "a"
    whole = answer(target, PROMPTS, file, BOTH, say=_quiet)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], *lines[:4:-1]]))
    again = answer(target, PROMPTS, file, BOTH, say=_quiet)
    assert again.rows[:20] == whole.rows[:3:-1] and _sorted(again) == _sorted(whole)


def test_a_file_of_an_earlier_version_is_read_and_continued(target: Model, tmp_path: Path) -> None:
    """Its rows say where their states are, which are no longer read."""
    file = tmp_path / "a"
    whole = answer(target, PROMPTS, file, BOTH, say=_quiet)
    header = whole.header | {"layers": [1, 4], "width": 32}
    rows = [row | {"offset": 9 * place, "hash": "0" * 16} for place, row in enumerate(whole.rows[:5])]
    file.write_text("".join(json.dumps(line) + "\n" for line in (header, *rows)), encoding="utf-8")
    file.with_name("a.states").write_bytes(b"\0" * 99)
    old = read(file)
    old.check(target)
    assert len(old.rows) == 5 and all(each in _sorted(whole) for each in _sorted(old))
    assert _sorted(answer(target, PROMPTS, file, BOTH, say=_quiet)) == _sorted(whole)


def test_only_one_process_writes_a_file(target: Model, tmp_path: Path) -> None:
    file = tmp_path / "a"
    held: list[str] = []

    def repeat(line: str) -> None:
        with pytest.raises(ModelError, match="a is being written by another run: wait until it ends") as told:
            answer(target, PROMPTS, file, AnswerOptions(4), say=_quiet)
        held.append(str(told.value))

    answer(target, PROMPTS, file, AnswerOptions(4), say=repeat)
    assert held and "\n" not in held[0] and [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_folders_answers_fit_it_in_any_format(tmp_path: Path) -> None:
    """Training loads float32, whatever the answers were made in."""
    net = llama(seed=3, eos=(47,)).net
    net.save_pretrained(tmp_path / "one")
    shutil.copytree(zoo.bundled()["town"], tmp_path / "words")
    words = tmp_path / "words"
    half = {"dtype": "bfloat16"}, {"kernels": "fp16"}, {}
    models = [specviz.load(tmp_path / "one", tokenizer=words, invariant=False, **each) for each in half]
    assert len({model.file_content for model in models}) == 1
    assert len({hashed(model.net, model.tokenizer) for model in models}) == 3
    for number, model in enumerate(models):
        made = answer(model, PROMPTS, tmp_path / str(number), AnswerOptions(4), say=_quiet)
        made.check(models[2])
    for number, key in ((0, "dtype"), (1, "kernels")):
        words = {
            "dtype": r"dtype \(bfloat16, now float32\): repeat with --dtype bfloat16, name",
            "kernels": r"kernels \(fp16, now plain\): repeat with SPECVIZ_KERNELS=fp16, name",
        }
        with pytest.raises(ModelError, match=f"was made with a different {words[key]} another file or del"):
            answer(models[2], PROMPTS, tmp_path / str(number), AnswerOptions(4), say=_quiet)
    with pytest.raises(ModelError, match="repeat with --dtype float32 and SPECVIZ_KERNELS=fp16, name"):
        answer(models[0], PROMPTS, tmp_path / "1", AnswerOptions(4), say=_quiet)
    old = (tmp_path / "2").read_text(encoding="utf8").splitlines()
    header = {key: value for key, value in json.loads(old[0]).items() if key not in ("dtype", "kernels")}
    (tmp_path / "2").write_text("\n".join([json.dumps(header), *old[1:5]]) + "\n", encoding="utf8")
    read(tmp_path / "2").check(models[2])  # as the repository's own answers
    with pytest.raises(ModelError, match="does not say its dtype"):
        answer(models[2], PROMPTS, tmp_path / "2", AnswerOptions(4), say=_quiet)


def test_a_header_without_its_end_of_line_is_kept(target: Model, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    answer(target, PROMPTS, whole, AnswerOptions(4), say=_quiet)
    cut.write_bytes(whole.read_bytes().splitlines()[0])
    answer(target, PROMPTS, cut, AnswerOptions(4), say=_quiet)
    assert cut.read_bytes() == whole.read_bytes()


def test_a_text_that_loops_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = llama(seed=3, layers=1, name="tiny", eos=(), max_length=400)
    with torch.no_grad():  # without attention and MLP the next token depends on the last one alone
        for part in target.net.model.layers:
            part.self_attn.o_proj.weight.zero_()
            part.mlp.down_proj.weight.zero_()
    lengths: list[int] = []
    real = answers.cut_loop
    monkeypatch.setattr(answers, "cut_loop", lambda text: lengths.append(len(text)) or real(text))
    made = answer(target, PROMPTS, tmp_path / "a", AnswerOptions(300), say=_quiet)
    monkeypatch.setattr(answers, "LOOKS", 1000)
    assert made.rows and max(lengths) < 300
    late = answer(target, PROMPTS, tmp_path / "b", AnswerOptions(300), say=_quiet)
    rows = [sorted((row["number"], row["answer"]) for row in each.rows) for each in (made, late)]
    assert rows[0] == rows[1] and max(lengths) == 300


def test_a_prompt_of_one_token_is_answered(target: Model, tmp_path: Path) -> None:
    """Nothing is computed before its first pass; also where it takes the place of a text that ended."""
    prompts = [[3], [4, 5], [6], [7]]
    made = answer(target, prompts, tmp_path / "a", AnswerOptions(8, rows=2), say=_quiet)
    own = specviz.generate(target, prompts, "autoregressive", max_new_tokens=8).outputs
    assert len(made.rows) == 4
    for row in made.rows:
        assert row["answer"] == own[own["prompt"] == row["number"]]["token"].tolist()


def test_a_tilde_in_out_is_the_home_folder(
    target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves it in --out=~/a.jsonl."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    answer(target, PROMPTS[:2], Path("~/a.jsonl"), AnswerOptions(4), say=_quiet)
    assert len(read("~/a.jsonl").rows) == 2 and [each.name for each in tmp_path.iterdir()] == ["home"]


def test_a_run_that_was_cut_off_goes_on(target: Model, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    answer(target, PROMPTS, whole, BOTH, say=_quiet)
    lines = whole.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:8]) + lines[8][:20])  # killed in the middle of a line
    said: list[str] = []
    made = answer(target, PROMPTS, cut, BOTH, say=said.append, every=0.0)
    assert len(said) == 24 - 7 and "tokens/s" in said[-1]
    assert f"24 of 24 answers, {made.tokens:,} tokens, " in said[-1]
    assert _sorted(made) == _sorted(read(whole)) == _sorted(read(cut))


def _sorted(made: answers.Answers) -> list[tuple]:
    return sorted((row["number"], row["temperature"], row["prompt"], row["answer"]) for row in made.rows)


def test_a_loop_is_cut() -> None:
    begun = list(range(100, 107))
    assert cut_loop(begun + [*range(25)] * 2) == 57
    assert cut_loop(begun + [*range(25)] * 3) == 27
    assert cut_loop([5] * 90) == 20


def test_what_is_refused(target: Model, tmp_path: Path) -> None:
    out = tmp_path / "a"
    with pytest.raises(ParameterError, match="temperatures repeats a value"):
        AnswerOptions(4, (0.7, 0.7))
    made = answer(target, PROMPTS, out, AnswerOptions(4), say=_quiet)
    with pytest.raises(ModelError, match=r"different max_new_tokens \(4, now 5\): name another"):
        answer(target, PROMPTS, out, AnswerOptions(5), say=_quiet)
    with pytest.raises(PromptError, match="answers different prompts"):
        answer(target, PROMPTS[::-1], out, AnswerOptions(4), say=_quiet)
    other = llama(seed=4, layers=4, name="other", eos=(47,))
    with pytest.raises(ModelError, match=r"holds answers of tiny \(\w{8}\), but the target is other"):
        made.check(other)
    with pytest.raises(ModelError, match="different content"):
        answer(other, PROMPTS, out, AnswerOptions(4), say=_quiet)
    for bad in (
        {"max_new_tokens": 0}, {"rows": 0}, {"rows": 2.5}, {"temperatures": ()}, {"temperatures": (-1.0,)},
        {"temperatures": (0.0, float("nan"))}, {"temperatures": (1e-40,)},
    ):  # fmt: skip
        with pytest.raises(ParameterError):
            AnswerOptions(**bad)
    text = out.read_text(encoding="utf-8")
    for damaged, words in (
        ("", "holds no answers"),
        ('{"some": "json"}\n', "holds no answers"),
        (text + '{"number": "x"}\n', "line 14"),
        (text + "nonsense\n", "line 14"),
        (text.replace('"answer":[', '"answer":[-3,', 1), r"line 2, answer\[0\] should be"),
        (text + json.dumps(made.rows[0] | {"prompt": []}) + "\n", "line 14, prompt is too short"),
        (text.splitlines()[0] + "\n", "a holds no answer yet: repeat the models answers command"),
    ):
        out.write_text(damaged, encoding="utf-8")
        with pytest.raises(ModelError, match=words) as told:
            read(out)
        assert "\n" not in str(told.value)
    out.write_text(text.replace('"answer":[', '"answer":[480,', 1), encoding="utf-8")
    with pytest.raises(ModelError, match="line 2 is damaged: it holds token 480, and tiny has 48 tokens"):
        read(out).check(target)
    with pytest.raises(ModelError, match="cannot read"):
        read(tmp_path / "none")


def test_a_file_that_is_somebody_elses_is_left_as_it_is(target: Model, tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    for text in ("Dear Anna,\nno end of line", "one line without an end", ""):
        letter.write_text(text, encoding="utf-8")
        with pytest.raises(ModelError, match=r"holds no answers|line 1"):
            answer(target, PROMPTS, letter, AnswerOptions(4), say=_quiet)
        assert letter.read_text(encoding="utf-8") == text
    with pytest.raises(ModelError, match="cannot read"):
        answer(target, PROMPTS, tmp_path, AnswerOptions(4), say=_quiet)
    with pytest.raises(ModelError, match=r"\. is a folder: name a file in it"):
        answer(target, PROMPTS, ".", AnswerOptions(4), say=_quiet)


@pytest.mark.parametrize(
    ("name", "words"),
    [("gguf:town-translator", "runs on llama.cpp"), ("town-diffusion", "is of kind diffusion")],
)
def test_who_cannot_answer_is_refused(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        answer(specviz.load(name), [[5, 6]], tmp_path / "a", AnswerOptions(4), say=_quiet)
    assert not list(tmp_path.iterdir())


def test_questions_of_suites_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, local = tmp_path / "prompts.txt", tmp_path / "own.jsonl"
    known = specviz.suite("everyday")[3]["turns"][0]
    asked.write_text(f"Something else?\n{'  '.join(known.upper().split())}\n", encoding="utf-8")
    given = ["models", "answers", "town", "--prompts", str(asked), "--out", str(tmp_path / "a"), "-n", "4"]
    assert run(given) == 2
    assert "prompt 2 is a question of the suite everyday: remove it" in capsys.readouterr().err
    inside = f"Read this.\tThen answer: {known.replace(' ', '  ')} Be brief."
    asked.write_text(f"Something else?\n{' '.join(inside.split())}\n", encoding="utf-8")
    assert run(given) == 2
    assert "prompt 2 contains a question of the suite everyday: remove it" in capsys.readouterr().err
    asked.write_text(f"{known}\nMine.\n{known} Be brief.\n{known}\n", encoding="utf-8")
    assert run(given) == 2
    whole = "prompt 1 is a question of the suite everyday (likewise 2 other prompts: 3, 4): remove them"
    assert whole in capsys.readouterr().err
    unspaced = next(
        e["turns"][0] for e in specviz.suite("multi-town", language="ja") if "。" in e["turns"][0]
    )
    asked.write_text(f"Mine.\n前置き。{' '.join(unspaced.split())}\n", encoding="utf-8")
    assert run(given) == 2
    assert "prompt 2 contains a question of the suite multi-town" in capsys.readouterr().err
    own = specviz.suite("multi-town")[7]["turns"][0].replace("\n", " ")
    asked.write_text(f"Something else?\n{own}\n", encoding="utf-8")
    assert run(given) == 2
    assert "prompt 2 is a question of the suite multi-town" in capsys.readouterr().err
    asked.write_text("Something else?\nMy own question.\n", encoding="utf-8")
    local.write_text(json.dumps({"prompt": "my own  question."}) + "\n", encoding="utf-8")
    assert run([*given, "--apart-from", str(local)]) == 2
    assert "prompt 2 is a question" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["spec-bench", "gsm8k", "mt-bench:de", "multi-town", "town=prompts.txt"])
@pytest.mark.parametrize("command", [["answers", "town"], ["eagle", "town"]])
def test_a_suite_to_measure_on_is_refused_by_name(
    command: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", *command, "--prompts", name, "--out", str(tmp_path / "out")]) == 2
    words = f"specviz: drafters are measured on {name}: give --prompts a file of other prompts\n"
    assert capsys.readouterr().err == words
    assert not list(tmp_path.iterdir())


def test_questions_of_a_suite_that_was_fetched_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(fetching.FOLDER, str(tmp_path))
    name = "raw.githubusercontent.com-hemingkx-Spec-Bench-main-data-spec_bench-question.jsonl"
    question = {"question_id": 81, "category": "writing", "turns": ["Compose a blog post.", "Shorten it."]}
    (tmp_path / name).write_text(json.dumps(question) + "\n", encoding="utf-8")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("My own question.\nshorten  it.\n", encoding="utf-8")
    assert run(["models", "eagle", "town", "--prompts", str(prompts), "--out", str(tmp_path / "out")]) == 2
    assert "prompt 2 is a question of the suite spec-bench: remove it" in capsys.readouterr().err


def test_a_prompt_without_room_is_refused_before_the_first_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    file.write_text("Who is here?\n" + "the cook " * 1000 + "\n", encoding="utf-8")
    assert run(["models", "answers", "town", "--prompts", str(file), "--out", str(out), "-n", "2"]) == 2
    line = capsys.readouterr().err
    assert re.fullmatch(r"specviz: prompt 2 has \d+ tokens and leaves no room .*: shorten it\n", line)
    assert not out.exists()


@pytest.mark.skipif(not FULL.exists(), reason="no such device here")
def test_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answers, "_saved", lambda out, header: (header, []))
    (tmp_path / "a").symlink_to(FULL)
    file = tmp_path / "prompts.txt"
    file.write_text("Who is here?\n", encoding="utf-8")
    given = ["models", "answers", "town", "--prompts", str(file), "--out", str(tmp_path / "a"), "-n", "2"]
    assert run(given) == 2
    words = f"cannot write {tmp_path / 'a'} (No space left on device): remove the cause, then repeat"
    assert capsys.readouterr().err == f"specviz: {words} the command to continue\n"


def test_the_next_command_is_one_that_the_model_can_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    file.write_text("Translate into German: The cook saw the cook.\n", encoding="utf-8")
    assert run(["models", "answers", "town-t5", "--prompts", str(file), "--out", str(out), "-n", "2"]) == 0
    words = f"specviz models align DRAFT --target town-t5 --answers {out} --out town-t5-aligned"
    assert capsys.readouterr().out.splitlines()[-1] == words
    folder = shutil.copytree(zoo.bundled()["town-draft"], tmp_path / "mine")
    out = tmp_path / "own.jsonl"
    assert run(["models", "answers", f"{folder}/", "--prompts", str(file), "--out", str(out), "-n", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f" --out {folder}-eagle")


@pytest.mark.parametrize(
    "command", [["eagle", "town"], ["heads", "town-t5"], ["align", "town-draft", "--target", "town"]]
)
def test_drafters_learn_no_question_of_a_suite(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("Who is here?\n" + specviz.suite("town")[0]["turns"][0].replace("\n", " ") + "\n")
    given = ["models", *command, "--prompts", str(file), "--out", str(tmp_path / "out")]
    assert run(given) == 2
    assert "prompt 2 is a question of the suite town" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


def test_an_adapter_learns_no_question_of_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "texts.jsonl"
    tasks = ["Who is here?", specviz.suite("narrow")[0]["prompt"]]
    rows = [{"kind": "qa", "prompt": task, "answer": "Nobody."} for task in tasks]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert run(["models", "diffusion", "town", "--texts", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "prompt 2 is a question of the suite narrow" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    file.write_text("What is 12 plus 30?\nTell me a story.\n", encoding="utf-8")
    given = [
        "models",
        "answers",
        "town",
        "--prompts",
        str(file),
        "--out",
        str(out),
        "-n",
        "6",
        "--threads",
        "1",
    ]
    assert run([*given, "--temperatures", "0,0.7"]) == 0
    told = capsys.readouterr()
    assert f"answers: {out} (4 answers, " in told.out and "4 of 4 answers" in told.err
    assert [json.loads(line)["temperature"] for line in out.read_text().splitlines()[1:]] == [0, 0, 0.7, 0.7]
    assert run(given) == 2  # other temperatures
    halves = tmp_path / "halves.jsonl"
    assert run([*given[:5], "--out", str(halves), "-n", "6", "--dtype", "bfloat16"]) == 0
    assert run([*given[:5], "--out", str(halves), "-n", "6", "--dtype", "int3"]) == 2
    drafter = tmp_path / "head"
    train = ["models", "eagle", "town", "--answers", str(out), "--out", str(drafter), "--epochs", "1"]
    assert (
        run([*train, "--layers", "2,5,8", "--no-own-head", "--draft-vocabulary", "9", "--threads", "1"]) == 0
    )
    assert (drafter / "model.safetensors").stat().st_size < 1_000_000
    capsys.readouterr()
    assert run(train[:3] + train[5:]) == 2
    assert "--answers" in capsys.readouterr().err


def test_a_chat_that_is_a_question_of_a_suite_is_refused() -> None:
    question = specviz.suite("town")[0]["turns"][0]
    shared = {"role": "system", "content": question}  # a system prompt is no question
    answers.check_apart([[shared, {"role": "user", "content": "Be brief."}]], ["town"])
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question.upper()}]
    with pytest.raises(PromptError, match="prompt 2 is a question of the suite town"):
        answers.check_apart([[3, 4, 5], chat], ["town"])


def test_a_chance_of_one_draws_the_last_token() -> None:
    class Sure:
        def chance(self) -> float:
            return 1 - 2.0**-40  # float32 rounds it to 1

    scores = torch.zeros(2, 5)
    scores[1, 3:] = -torch.inf  # ids outside the tokenizer
    assert answers._drawn(scores, [Sure(), Sure()]) == [4, 2]
