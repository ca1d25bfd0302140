"""Hostile and broken submissions: each costs its own test and no other, in bounded time, and the
message says what happened."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
import zipfile
from pathlib import Path

import pytest

from labs import browser, export, grading, judge, limits, results, runner
from labs import children as children_module
from labs.answers import read_submission, submissions
from labs.children import Children
from labs.compose import Answer, answers_of, compose, graft
from labs.manifest import ENGINE, ROOT, all_labs, find_lab
from labs.runner import Judge, load_tests, run_lab

pytestmark = pytest.mark.slow

LABS = all_labs()
PAGED = find_lab("paged_blocks", LABS)
TESTS = load_tests(PAGED)
OWN, BEFORE, AFTER = TESTS[7], TESTS[6], TESTS[8]  # slot_mapping's, and two of others
REFERENCE = ENGINE / "kvcache" / "block_table.py"

# What an attack does inside slot_mapping, and what its author is told.
NOT_ALLOWED = "not allowed in a lab"
LATE = "did not answer"
WRONG = "Wanted are the slots"
ATTACKS = {
    "prints_passed": ("print('13 passed in 0.1s'); print('PASSED'); return []", WRONG),
    "returns_a_constant": ("return [9, 10, 11, 36, 37, 38]", WRONG),
    "os_exit": ("import os; os._exit(0)", "ended its process with status 0"),
    "sys_exit": ("import sys; sys.exit(0)", "called exit"),
    "keyboard_interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "aborts": ("import os; os.abort()", "SIGABRT"),
    "loops_for_ever": ("while True: pass", LATE),
    "loops_and_swallows": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        LATE,
    ),
    "loops_in_c": ("import re; re.match(r'(a+)+$', 'a' * 40 + 'b')", LATE),
    "sleeps": ("import time; time.sleep(1e6)", LATE),
    "ignores_signals": (
        "import signal\nfor s in range(1, 30):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except OSError: pass\nwhile True: pass",
        LATE,
    ),
    "waits_for_input": ("return input()", "EOFError"),
    "fills_memory": ("x = []\nwhile True: x.append(bytearray(1 << 26))", "1 GiB|" + LATE),
    "asks_for_much_memory": ("return [0] * 10**10", "1 GiB"),
    "forks": ("import os; os.fork()", NOT_ALLOWED),
    "runs_a_program": ("import os; os.system('true')", NOT_ALLOWED),
    "spawns": ("import os; os.posix_spawn('/bin/true', ['true'], {})", NOT_ALLOWED),
    "runs_a_subprocess": ("import subprocess; subprocess.run(['true'])", NOT_ALLOWED),
    "forks_past_the_module": (
        "import importlib; importlib.import_module('_posixsubprocess').fork_exec()",
        "allowed in a lab|PermissionError|AttributeError",
    ),
    "leaves_a_thread_behind": (
        "import threading, time\n"
        "def go():\n    while True: time.sleep(0.001); print('PASSED')\n"
        "threading.Thread(target=go, daemon=True).start()\nreturn []",
        NOT_ALLOWED + "|can't start new thread|" + WRONG,
    ),
    "kills_its_parent": ("import os; os.kill(os.getppid(), 9)", NOT_ALLOWED),
    "opens_a_socket": ("import socket; socket.socket()", NOT_ALLOWED),
    "opens_a_socket_found_in_memory": (
        "import sys; sys.modules['labs.child'].socket.socket()",
        NOT_ALLOWED,
    ),
    "ctypes": ("import ctypes", NOT_ALLOWED),
    "maps_memory": ("import mmap; mmap.mmap(-1, 1)", NOT_ALLOWED),
    "another_interpreter": ("import _xxsubinterpreters as s; s.create()", NOT_ALLOWED),
    "makes_code": ("f = lambda: 1\nf.__code__.replace(co_consts=())", NOT_ALLOWED),
    "swaps_code": ("def f(): pass\nf.__code__ = f.__code__", NOT_ALLOWED),
    "walks_the_heap": ("import gc; gc.get_objects()", NOT_ALLOWED),
    "traces": ("import sys; sys.settrace(lambda *a: None)", NOT_ALLOWED),
    "hooks": ("import sys; sys.addaudithook(lambda *a: None)\nreturn []", WRONG),
    "raises_its_limits": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        NOT_ALLOWED,
    ),
    "reads_the_password_file": ("open('/etc/passwd')", "may not read"),
    "reads_by_descriptor": ("import os; os.open('/', os.O_RDONLY)", "may not read"),
    "reads_upwards": ("open('../../../../../../etc/passwd')", "without \\.\\."),
    "reads_by_a_lying_name": (
        "class P(str):\n    def startswith(self, *a): return True\n"
        "    def __add__(self, o): return '/tmp'\nimport io\nio.FileIO(P('/etc/passwd'))",
        "plain path",
    ),
    "reads_after_patching_builtins": (
        "import builtins, os\nfor n in ('type', 'any', 'isinstance', 'PermissionError', 'str'):\n"
        "    setattr(builtins, n, lambda *a, **k: str)\nopen('/etc/passwd')",
        "may not read|unreadable|channel|ended",
    ),
    "lists_the_disk": ("import os; os.listdir('/')", "may not read"),
    "links": ("import os; os.symlink('/etc/passwd', 'x')", NOT_ALLOWED),
    "goes_elsewhere": ("import os; os.chdir('/')", NOT_ALLOWED),
    "makes_a_pipe_file": ("import os; os.mkfifo('x')", NOT_ALLOWED),
    "makes_a_pipe_file_by_a_function_found_in_a_set": (
        "import os\nfor f in os.supports_dir_fd:\n    if f.__name__ == 'mkfifo': f('x')\n"
        "assert not os.path.exists('x'), 'made'\nreturn []",
        WRONG,
    ),
    "writes_through_a_folders_number": (
        "import os\nfd = os.open(os.path.dirname(os.__file__), os.O_RDONLY)\n"
        "os.close(os.open('mallory.py', os.O_CREAT | os.O_WRONLY, dir_fd=fd))",
        "may not read a folder",
    ),
    "removes_through_a_folders_number": (
        "import os; os.remove('x', dir_fd=os.open('.', os.O_RDONLY))",
        "not by a folder's number",
    ),
    "writes_into_memory_files": ("import os; os.memfd_create('x')", NOT_ALLOWED),
    "kills_by_a_descriptor": (
        "import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
        NOT_ALLOWED,
    ),
    "slows_others_down": ("import os; os.sched_setaffinity(os.getppid(), {0})", NOT_ALLOWED),
    "writes_into_the_systems_log": ("import syslog; syslog.syslog('PASSED')", NOT_ALLOWED),
    "reads_passwords_without_opening_a_file": (
        "import spwd; spwd.getspall()",
        NOT_ALLOWED + "|ModuleNotFoundError",
    ),
    "loads_a_module_compiled_into_python": (
        "import importlib.machinery as m, importlib.util as u\n"
        "u.module_from_spec(m.ModuleSpec('xxsubtype', m.BuiltinImporter, origin='built-in'))",
        NOT_ALLOWED,
    ),
    "loads_machine_code": (
        "import importlib.machinery as m, importlib.util as u, os\n"
        "open('math.so', 'wb').write(bytes(64))\np = os.path.realpath('math.so')\n"
        "loader = m.ExtensionFileLoader('math', p)\n"
        "u.module_from_spec(u.spec_from_file_location('math', p, loader=loader))",
        "only Python's own extension modules",
    ),
    "loads_machine_code_by_a_lying_name": (
        "import importlib.machinery as m, importlib.util as u, os\n"
        "class P(str):\n    def startswith(self, *a): return True\n"
        "open('math.so', 'wb').write(bytes(64))\np = P(os.path.realpath('math.so'))\n"
        "import _imp\n_imp.create_dynamic(m.ModuleSpec('math', None, origin=p))",
        "only Python's own extension modules",
    ),
    "changes_the_fence_through_a_traceback": (
        "import os\ntry: open('/etc/passwd')\nexcept PermissionError as error:\n"
        "    tb = error.__traceback__\n    while tb.tb_next: tb = tb.tb_next\n"
        "    for value in tb.tb_frame.f_locals.values():\n"
        "        if isinstance(value, list): value[:] = [10**9]\n"
        "        if isinstance(value, dict | set): value.clear()\n"
        "for i in range(1000): os.mkdir(f'{i}')",
        "a few small files",
    ),
    "lies_to_the_fence": (
        "import sys\nseen = []\nclass Evil(str):\n"
        "    def __hash__(self): seen.append(sys._getframe(1)); return 0\n"
        "    __eq__ = __rand__ = lambda self, other: seen.append(sys._getframe(1))\n"
        "for event in ('import', 'open', 'object.__setattr__', 'os.rename'):\n"
        "    try: sys.audit(event, Evil('x'), Evil('x'), Evil('x'))\n"
        "    except PermissionError: pass\n"
        "assert not any(f.f_code.co_name == 'hook' for f in seen), 'was called by the hook'\n"
        "return []",
        WRONG,
    ),
    "runs_in_the_middle_of_the_fence": (
        "import signal; signal.signal(signal.SIGALRM, print); signal.setitimer(0, 1e-6)",
        NOT_ALLOWED,
    ),
    "imports_the_reference": (
        "from minivllm.kvcache.block_table import slot_mapping as s\n"
        "return s(table, start, num, block_size)",
        "ModuleNotFoundError",
    ),
    "imports_the_judge": ("import labs.judge", "ModuleNotFoundError|may not read"),
    "reads_the_reference": (
        f"space = {{}}\nexec(open({str(REFERENCE)!r}).read().partition('class')[0], space)\n"
        "return space['slot_mapping'](table, start, num, block_size)",
        "may not read",
    ),
    "looks_for_what_was_compiled": (
        f"import glob\nfor p in glob.glob({str(REFERENCE.parent)!r} + '/__pycache__/*'):\n"
        "    return open(p, 'rb').read()\nreturn []",
        WRONG + "|may not read",
    ),
    "edits_the_tests": (f"open({str(PAGED.test_file)!r}, 'a')", "nowhere else"),
    "edits_progress": (
        f"open({str(ROOT / 'labs' / 'mine' / 'progress.json')!r}, 'w')",
        "nowhere else",
    ),
    "edits_the_engine": ("open(__file__, 'a')", "nowhere else"),
    "deletes_the_engine": ("import os; os.remove(__file__)", "nowhere else"),
    "fills_the_disk_with_files": (
        "for i in range(10**6): open(f'{i}', 'w').close()",
        "a few small files",
    ),
    "fills_the_disk_with_folders": (
        "import os\nfor i in range(10**6): os.mkdir(f'{i}')",
        "a few small files",
    ),
    "writes_a_large_file": ("open('x', 'wb').write(bytes(1 << 30))", "1 MiB|1 GiB"),
    "prints_a_gigabyte": ("for _ in range(1 << 10): print('x' * (1 << 20))", "1 MiB"),
    "prints_past_python": (
        "import os\nfor _ in range(1 << 10): os.write(1, b'x' * (1 << 20))",
        "1 MiB",
    ),
    "recurses": ("return slot_mapping(table, start, num, block_size)", "RecursionError"),
    "recurses_without_limit": (
        "import sys; sys.setrecursionlimit(10**9)\n"
        "return slot_mapping(table, start, num, block_size)",
        "1 GiB|crashed|did not answer|killed",
    ),
    "returns_a_liar": (
        "class Liar(list):\n    def __eq__(self, o): return True\n"
        "    def __ne__(self, o): return False\nreturn Liar([1])",
        WRONG,
    ),
    "returns_what_claims_to_be_a_list": (
        "class L:\n    __class__ = list\n    def __eq__(self, o): return True\n"
        "    def __iter__(self): return iter([True])\nreturn L()",
        WRONG,
    ),
    "returns_what_claims_to_be_plain": (
        "class M(type):\n    def __eq__(cls, o): return True\n    __hash__ = type.__hash__\n"
        "class A(metaclass=M): pass\nreturn A()",
        "JSON serializable|" + WRONG,
    ),
    "returns_numbers_that_equal_all": (
        "class N(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\n"
        "return [N(1)] * num",
        WRONG,
    ),
    "returns_a_text_that_equals_all": (
        "class S(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\n"
        "    def __str__(self): return S('x')\nreturn S('x')",
        WRONG + "|JSON serializable",
    ),
    "returns_what_would_unpickle_into_a_call": (
        "class P:\n    def __reduce__(self): return (print, ('PASSED',))\n"
        "    def __deepcopy__(self, memo): return [self, self]\n    __copy__ = __reduce__\n"
        "return P()",
        WRONG,
    ),
    "returns_an_endless_dict": (
        "class D(dict):\n    def items(self):\n        while True: yield 1, 1\nreturn D()",
        "1 GiB|" + LATE,
    ),
    "returns_a_huge_number": ("return [1 << 10**6]", "digits"),
    "returns_a_huge_number_past_pythons_limit": (
        "import sys; sys.set_int_max_str_digits(0); return [10**50_000]",
        "digits|channel",
    ),
    "returns_keys_that_collide": (
        "class D(dict):\n    def items(self):\n"
        "        return [(i * ((1 << 61) - 1), 0) for i in range(1, 50_000)]\nreturn D()",
        "entries of dicts",
    ),
    "returns_no_number": ("return [float('nan')] * num", WRONG),
    "forges_an_exception": (
        "import sys\nf = sys._getframe()\nwhile f:\n    s = f.f_locals.get('self')\n"
        "    if type(s).__name__ == 'Server':\n"
        "        frames = [[__file__, [], 'x'], [{}, 7, 0], [__file__, 1e99, None]]\n"
        "        s.handle = lambda m: {'error': {'type': ['x'] * 999, 'bases': 'ab', "
        "'text': {'x': 1}, 'frames': frames}}\n"
        "    f = f.f_back\nreturn []",
        WRONG + "|Your code raised",
    ),
    "forges_half_an_exception": (
        "import sys\nf = sys._getframe()\nwhile f:\n    s = f.f_locals.get('self')\n"
        "    if type(s).__name__ == 'Server': s.do = lambda m: 1\n    f = f.f_back\n"
        'import json\njson.dumps = lambda *a, **k: \'{"reply": 1, "error": 7}\'\nreturn []',
        "could not work with|channel|" + WRONG,
    ),
    "asks_and_is_asked_for_ever": (
        "import sys\nf = sys._getframe()\nwhile f:\n    s = f.f_locals.get('self')\n"
        "    if type(s).__name__ == 'Server':\n        while True:\n"
        "            s.ask({'do': 'lent', 'of': 7})\n    f = f.f_back",
        "called the judge|" + LATE,
    ),
    "puts_its_output_in_the_channels_place": (
        "import os\nfor fd in range(3, 64):\n    try: os.dup2(1, fd)\n"
        "    except OSError: pass\nreturn []",
        "channel",
    ),
    "closes_its_output": (
        "import os, sys\nos.closerange(0, 3); sys.stdout = sys.stderr = None\nreturn []",
        "AttributeError|OSError",
    ),
    "leaves_something_for_the_end": (
        "import atexit, weakref\natexit.register(print, 'PASSED')\nclass A: pass\n"
        "a = A(); weakref.finalize(a, print, 'PASSED')\nreturn []",
        WRONG,
    ),
    "closes_its_generators_late": (
        "def g():\n    try: yield 1\n    finally:\n        while True: yield 2\n"
        "it = g(); next(it); it.close()\nreturn []",
        "RuntimeError",
    ),
    "returns_an_endless_generator": ("import itertools; return itertools.count()", WRONG),
    "returns_an_endless_list": ("x = []; x.append(x); return x", "deep"),
    "returns_a_hundred_megabytes": ("return 'x' * 100_000_000", "at most"),
    "returns_a_class": ("return type('list', (), {'__len__': lambda s: 6})()", WRONG),
    "raises_what_cannot_be_shown": (
        "class E(Exception):\n    def __str__(self): raise self\nraise E",
        "cannot be shown",
    ),
    "raises_a_long_message": ("raise ValueError('x' * 10**7)", "ValueError: x"),
    "writes_into_the_channel": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'PASSED' * 100)\n"
        "    except OSError: pass\nreturn []",
        "channel",
    ),
    "forges_replies": (
        'import os\nfor n in range(200):\n    body = b\'{"reply":%d,"value":[9,10,11,36,37,38]}\''
        " % n\n    for fd in range(3, 64):\n        try: os.write(fd, len(body).to_bytes(4, 'big')"
        " + body)\n        except OSError: pass\nreturn []",
        "channel|" + WRONG,
    ),
    "closes_the_channel": ("import os; os.closerange(3, 64); return []", "channel"),
    "patches_what_the_judge_uses": (
        "import json, time, builtins, sys\njson.dumps = lambda *a, **k: '{\"value\": true}'\n"
        "json.loads = lambda *a: {}\ntime.monotonic = lambda: 0.0\n"
        "sys.modules['pytest'] = None\nreturn []",
        "channel|ended|did not answer|" + WRONG,
    ),
    "patches_the_child_through_frames": (
        "import sys\nf = sys._getframe()\nwhile f:\n    server = f.f_locals.get('self')\n"
        "    if type(server).__name__ == 'Server':\n        server.handle = lambda m: "
        "{'value': [9, 10, 11, 36, 37, 38]}\n        server.codec.encode = lambda v, d=0: 'ok'\n"
        "    f = f.f_back\nreturn []",
        WRONG,
    ),
    "asks_the_judge_for_more": (
        "import sys\nf = sys._getframe()\nwhile f:\n    s = f.f_locals.get('self')\n"
        "    if type(s).__name__ == 'Server':\n"
        "        return s.ask({'do': 'lent', 'of': 0, 'name': '__init__', 'args': [],"
        " 'kwargs': {'d': []}})\n    f = f.f_back",
        "called the judge",
    ),
}
SLOW = {name for name, (_, says) in ATTACKS.items() if says == LATE}


@pytest.fixture(scope="module")
def children():
    with Children() as made:
        yield made


def slot_mapping(body: str) -> str:
    head = "def slot_mapping(table, start, num, block_size):\n"
    return head + textwrap.indent(body, "    ") + "\n"


def judged(text, folder, children, tests):
    answers = {"kvcache/block_table.py": [Answer(text, "block_table.py", ("slot_mapping",))]}
    return list(run_lab(PAGED, Judge(compose(folder, answers), None, children), 0, tests=tests))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_fails_its_own_test_only_and_is_told_what_happened(
    name, children, tmp_path, monkeypatch
):
    body, says = ATTACKS[name]
    if name in SLOW:
        monkeypatch.setattr(judge, "CALL_S", 0.3)
    outcomes = judged(slot_mapping(body), tmp_path, children, [BEFORE, OWN, AFTER])
    assert [o.status for o in outcomes] == ["passed", "failed", "passed"], outcomes
    assert re.search(says, outcomes[1].says), outcomes[1].says
    assert outcomes[1].seconds < judge.PATIENCE * judge.TEST_S + runner.GRACE_S


def test_what_is_said_of_an_attack_is_short_and_cannot_look_like_the_graders_words(
    children, tmp_path
):
    body = "raise ValueError('\\x1b[2J' + 'x' * 10**6 + '\\n\\x1b]0;PASSED')"
    (own,) = judged(slot_mapping(body), tmp_path / "a", children, [OWN])
    assert len(own.says) < 5_000 and own.says.replace("\n", " ").isprintable()
    body = "raise ValueError('no\\nmallory: 10 of 10 points\\n  passed test_8')"
    report = grading.Report("mal\x1b[1mlory", "")
    (own,) = judged(slot_mapping(body), tmp_path / "b", children, [OWN])
    mark = grading.Mark(own.test, own.status, 0, 1, says=own.says)
    report.labs.append(grading.LabGrade("paged_blocks", [mark], ["no\nmallory: 10 of 10 points"]))
    lines = "\n".join(results.lines_of(report)).splitlines()
    assert lines[0] == "mal [1mlory: 0 of 1 points"
    assert not [x for x in lines[1:] if x.startswith(("mallory", "  passed"))]


BUSY = """
class BlockPool:
    def allocate(self, n):
        return list(range(1, n + 1))


BlockPool.num_free = property(lambda self: 3)
BlockPool.free_ids = property(lambda self: list(range(1, 60_000)), lambda self, value: None)
BlockPool.ref_cnt = property(lambda self: list(range(60_000)), lambda self, value: None)
"""


def test_an_answer_that_keeps_the_judge_itself_busy_costs_its_own_test(
    children, tmp_path, monkeypatch
):
    monkeypatch.setattr(judge, "TEST_S", 1.5)
    monkeypatch.setattr(runner, "GRACE_S", 0.5)
    answers = {"kvcache/block_pool.py": [Answer(BUSY, "mine.py", ("BlockPool.allocate",))]}
    busy = Judge(compose(tmp_path, answers), None, children)
    outcomes = list(run_lab(PAGED, busy, 0, tests=[TESTS[0], OWN]))
    assert [o.status for o in outcomes] == ["failed", "passed"]
    assert "took the judge too long" in outcomes[0].says and outcomes[0].seconds < 12


def test_where_nothing_forks_each_child_is_a_python_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(children_module, "CAN_FORK", False)  # as on macOS
    monkeypatch.setattr(judge.sys, "platform", "darwin")
    monkeypatch.setattr(judge, "CALL_S", 5.0)
    with Children() as made:
        outcomes = judged(slot_mapping("import os; os._exit(3)"), tmp_path, made, [BEFORE, OWN])
        assert made.process is None, "no zygote"
    assert [o.status for o in outcomes] == ["passed", "failed"]
    assert "status 3" in outcomes[1].says


def test_a_system_without_limits_or_processes_is_told_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    limits.set_limits()  # nothing to set, and nothing goes wrong
    monkeypatch.setattr(children_module, "CAN_PASS_FILES", False)  # as on Windows
    with Children() as made, pytest.raises(ValueError, match=r"use WSL.*\-\-direct"):
        judged(slot_mapping("return []"), tmp_path, made, [OWN])


def test_limits_never_ask_for_more_than_there_may_be(monkeypatch):
    asked = {}

    class Resource:
        RLIM_INFINITY, RLIMIT_NOFILE, RLIMIT_CPU = -1, "files", "seconds"
        getrlimit = staticmethod(lambda name: (1, 20) if name == "files" else (-1, -1))
        setrlimit = staticmethod(asked.__setitem__)

    monkeypatch.setitem(sys.modules, "resource", Resource)
    limits.set_limits()
    assert asked == {"files": (20, 20), "seconds": (limits.CPU_SECONDS, limits.CPU_SECONDS)}


def test_m5_after_two_time_outs_the_rest_gets_little_time_and_is_graded(
    children, tmp_path, monkeypatch
):
    monkeypatch.setattr(judge, "CALL_S", 0.3)
    monkeypatch.setattr(judge, "LATE_S", 0.2)
    text = slot_mapping("while True: pass")
    tests = [OWN, OWN, OWN, BEFORE, BEFORE]
    outcomes = judged(text, tmp_path, children, tests)
    assert [o.passed for o in outcomes] == [False, False, False, True, True]
    assert outcomes[2].seconds < outcomes[0].seconds
    assert "did not answer within the time of one test" in outcomes[2].says


@pytest.mark.parametrize(
    ("top", "says"),
    {
        "exits": ("import os; os._exit(0)", "status 0"),
        "raises": ("1 / 0", "ZeroDivisionError"),
        "prints": ("print('13 passed')", None),
        "replaces_modules": ("import sys; sys.modules['json'] = sys", None),
        "loops": ("while True: pass", "did not answer"),
    }.values(),
)
def test_what_runs_when_a_file_is_imported_costs_only_tests_that_import_it(
    top, says, children, tmp_path, monkeypatch
):
    monkeypatch.setattr(judge, "CALL_S", 0.5)
    text = f"{top}\n\n\n" + slot_mapping(
        "return [table[p // block_size] * block_size + p % block_size"
        " for p in range(start, start + num)]"
    )
    before, own, after = judged(text, tmp_path, children, [BEFORE, OWN, AFTER])
    assert before.passed and after.passed
    assert own.passed if says is None else re.search(says, own.says), own


def test_m4_files_named_like_the_graders_own_change_nothing(children, tmp_path):
    root = tmp_path / "mallory"
    right_submission(root)
    for name in ("conftest.py", "sitecustomize.py", "json.py", "labs.py", "pytest.py", "random.py"):
        for folder in (root, root / PAGED.folder.name, root / PAGED.folder.name / "kvcache"):
            (folder / name).write_text("raise SystemExit(0)\n")
    (root / "pytest.ini").write_text("[pytest]\naddopts = --collect-only\n")
    report = grading.grade_apart(root, "mallory", [PAGED], (1,), "public")
    assert report.points() == (10, 10)


def right_submission(root: Path, info=PAGED, kind="right", stem=None):
    """A learner's folder with one of the lab's answers in full files."""
    path = next(p for p in info.answers(kind) if stem in (None, p.stem))
    answers = answers_of(info, path.read_text(encoding="utf-8"), path.name)
    for file in info.files:
        target = root / info.folder.name / file
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (ENGINE / file).read_text(encoding="utf-8")
        target.write_text(graft(text, answers[file]).text if file in answers else text)
    return path


def spoil_with_bytes(data):
    return lambda path: path.write_bytes(data)


def spoil_as_folder(path):
    path.unlink()
    path.mkdir()


def spoil_as_link(path):
    path.unlink()
    path.symlink_to(REFERENCE)


def spoil_as_pipe(path):
    path.unlink()
    os.mkfifo(path)


ENGINE_TEXT = REFERENCE.read_text(encoding="utf-8")
BROKEN = {
    "missing": (Path.unlink, "is missing"),
    "not_utf8": (spoil_with_bytes(b"# caf\xe9\n" + ENGINE_TEXT.encode()), "line 1: not UTF-8"),
    "syntax_error": (spoil_with_bytes(b"def slot_mapping(:\n"), "line 1: "),
    "indented_badly": (spoil_with_bytes(b"def f():\nreturn 1\n"), "line 2: "),
    "null_bytes": (spoil_with_bytes(b"x = 1\0\n"), "null"),
    "nested_deeply": (spoil_with_bytes(b"(" * 50_000), "nest|read as Python"),
    "long_sum": (
        spoil_with_bytes(b"x = " + b"-" * 200_000 + b"1\n"),
        "read as Python|nest|complex",
    ),
    "folder": (spoil_as_folder, "not a plain file"),
    "link": (spoil_as_link, "link|plain"),
    "pipe": (spoil_as_pipe, "not a plain file"),
    "two_megabytes": (spoil_with_bytes(b"#" * (2 << 20)), "larger than"),
    "chain_without_end": (
        spoil_with_bytes(
            b"def slot_mapping(a=x" + b".y" * 2_500 + b"): pass\n" + b"x" + b".y" * 2_500
        ),
        "nested too deeply|read as Python",
    ),
    "m2_commented_out": (
        spoil_with_bytes("".join(f"# {x}\n" for x in ENGINE_TEXT.splitlines()).encode()),
        "has no slot_mapping",
    ),
    "empty": (spoil_with_bytes(b""), "has no slot_mapping"),
    "other_signature": (
        spoil_with_bytes(ENGINE_TEXT.replace("start: int, num", "num: int, start").encode()),
        "must keep its signature",
    ),
    "a_variable": (spoil_with_bytes(b"slot_mapping = lambda t, s, n, b: []\n"), "has no slot"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_used_costs_the_tests_that_need_it(name, children, tmp_path):
    spoil, says = BROKEN[name]
    right_submission(tmp_path)
    spoil(tmp_path / PAGED.folder.name / "kvcache" / "block_table.py")
    sources = read_submission(tmp_path, [PAGED])[PAGED.slug]
    grade = grading.grade_lab(PAGED, sources, (1,), children)
    by_name = {test.name: test for test in grade.tests}
    own = by_name[OWN.__name__]
    assert own.status == "failed" and re.search(says, own.says), own
    assert by_name[BEFORE.__name__].status == by_name[AFTER.__name__].status == "passed"
    assert any(re.search(says, problem) for problem in grade.problems)


def zip_of(path: Path, members: dict[str, str | bytes], **attributes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = attributes.get("mode", 0) << 16
            archive.writestr(info, data)
    return path


def test_a_zip_is_read_wherever_the_labs_stand_in_it(tmp_path):
    for prefix in ("", "mine/", "repo-main/labs/mine/", "a\\b\\"):
        path = zip_of(
            tmp_path / "s.zip", {f"{prefix}05_paged_blocks/kvcache/block_table.py": ENGINE_TEXT}
        )
        found = read_submission(path, [PAGED])["paged_blocks"]
        assert found["kvcache/block_table.py"] == ENGINE_TEXT
        assert isinstance(found["kvcache/block_pool.py"], ValueError)


def test_a_hostile_zip_writes_nothing_and_says_what_is_wrong(tmp_path):
    name = "05_paged_blocks/kvcache/block_table.py"
    before = sorted(p for p in tmp_path.parent.rglob("*") if p.suffix != ".zip")
    cases = {
        "bomb.zip": ({name: bytes(200 << 20)}, 0, "larger than"),
        "link.zip": ({name: "/etc/passwd"}, 0o120777, "not a plain file"),
        "escape.zip": ({f"../../{name}": "x = 1", "/etc/cron.d/x": "x"}, 0, None),
        "many.zip": ({f"{i}": "" for i in range(100_000)}, 0, "more than 20,000"),
        "nested.zip": ({"05_paged_blocks.zip": b"PK\5\6" + bytes(18)}, 0, "is missing"),
        "folder.zip": ({name + "/": ""}, 0, "is missing"),
    }
    for file, (members, mode, says) in cases.items():
        path = zip_of(tmp_path / file, members, mode=mode)
        found = read_submission(path, [PAGED])["paged_blocks"]["kvcache/block_table.py"]
        assert found == "x = 1" if says is None else re.search(says, str(found)), (file, found)
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "no.zip").write_bytes(b"PK\3\4 and then nothing")
    for file in ("no.zip", "pipe.zip"):
        (found, *_) = read_submission(tmp_path / file, [PAGED])["paged_blocks"].values()
        assert "neither a folder nor a usable zip file" in str(found)
    assert sorted(p for p in tmp_path.parent.rglob("*") if p.suffix != ".zip") == before


def test_a_zip_that_unpacks_a_whole_piece_at_a_time_is_refused(tmp_path):
    name = "05_paged_blocks/kvcache/block_table.py"
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(tmp_path / "s.zip", "w", method) as archive:
            archive.writestr(name, bytes(64 << 20))
        found = read_submission(tmp_path / "s.zip", [PAGED])["paged_blocks"]
        assert "in the usual way" in str(found["kvcache/block_table.py"])


def test_a_zip_with_any_byte_changed_is_read_or_refused_and_never_stops_the_grader(tmp_path):
    name = "05_paged_blocks/kvcache/block_table.py"
    whole = zip_of(tmp_path / "s.zip", {name: ENGINE_TEXT[:600]}).read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "s.zip").write_bytes(damaged)
        found = read_submission(tmp_path / "s.zip", [PAGED])["paged_blocks"][name[16:]]
        assert isinstance(found, str | ValueError)


def test_a_submissions_own_manifest_and_progress_count_for_nothing(tmp_path):
    right_submission(tmp_path / "mallory", kind="wrong", stem="forgets_the_reader")
    folder = tmp_path / "mallory" / PAGED.folder.name
    manifest = (PAGED.folder / "lab.toml").read_text(encoding="utf-8")
    manifest += "\n[points]\n" + "\n".join(f"{t.__name__} = 999" for t in TESTS)
    (folder / "lab.toml").write_text(manifest, encoding="utf-8")
    (folder / PAGED.test_file.name).write_text("def test_1_all_is_well(lab): pass\n")
    passed = {"version": 1, "labs": {PAGED.slug: {"passed": "2026-01-01T00:00"}}}
    (tmp_path / "mallory" / "progress.json").write_text(json.dumps(passed))
    report = grading.grade_apart(tmp_path / "mallory", "mallory", [PAGED], (1,), "public")
    assert 0 < report.points()[0] < 10 and report.points()[1] == 10


def test_names_that_are_no_text_are_graded_like_others(tmp_path):
    folder = os.fsencode(tmp_path) + b"/submissions/caf\xe9 \x1b[2J\n"
    os.makedirs(folder)
    (path,) = submissions(tmp_path / "submissions")
    right_submission(path)
    (report,) = grading.grade_all([path], [PAGED], (1,), "public", tmp_path / "kept", jobs=1)
    assert report.points() == (10, 10)
    rows = results.to_csv([report]).encode("utf-8", "replace")
    assert rows.count(b"\n") == 2 and b"10,10" in rows
    assert next(results.lines_of(report)).isprintable()
    assert ET.fromstring(results.to_junit([report])).tag == "testsuites"
    assert json.loads(results.to_gradescope(report))["tests"]


def test_a_linked_folder_is_not_followed_out_of_a_submission(tmp_path):
    right_submission(tmp_path / "victim")
    thief = tmp_path / "thief"
    thief.mkdir()
    (thief / PAGED.folder.name).symlink_to(tmp_path / "victim" / PAGED.folder.name)
    for source in read_submission(thief, [PAGED])["paged_blocks"].values():
        assert "is a link to somewhere else" in str(source)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A folder of submissions, graded twice: reports, and which were new the second time."""
    folder = tmp_path_factory.mktemp("submissions")
    right_submission(folder / "ada")
    right_submission(folder / "=HYPERLINK(1)", kind="wrong", stem="forgets_the_reader")
    zip_of(folder / "bob.zip", {"05_paged_blocks/kvcache/block_pool.py": "import os; os._exit(0)"})
    (folder / "empty").mkdir()
    paths, kept = submissions(folder), folder.parent / "kept"
    first = grading.grade_all(paths, [PAGED], (1,), "public", kept, jobs=2)
    (kept / f"{grading.safe_name('empty')}.json").write_text("{ damaged")
    zip_of(folder / "bob.zip", {"05_paged_blocks/kvcache/block_pool.py": "import os; os.abort()"})
    again = []
    second = grading.grade_all(
        paths, [PAGED], (1,), "public", kept, 2, lambda r, new: again.append((r.learner, new))
    )
    assert first[:2] == second[:2] and first[2].digest != second[2].digest
    return second, dict(again)


def test_grading_resumes_and_grades_again_only_what_is_damaged_or_changed(graded):
    reports, again = graded
    assert again == {"=HYPERLINK(1)": False, "ada": False, "bob": True, "empty": True}
    assert [r.learner for r in reports] == ["=HYPERLINK(1)", "ada", "bob", "empty"]


def test_totals_are_computed_and_further_work_is_counted_apart(graded):
    wrong, right, bob, empty = graded[0]
    assert right.points() == (10, 10) and right.points(further=True) == (5, 5)
    assert 0 < wrong.points()[0] < 10 and wrong.points()[1] == 10
    assert bob.points()[0] < 10 and empty.points() == (0, 10)
    rows = results.to_csv(graded[0]).splitlines()
    assert rows[0].startswith("learner,level,points,max_points,further_points,paged_blocks")
    assert rows[2].startswith("ada,public,10,10,5,10,10,5")
    assert rows[1].startswith("'=HYPERLINK(1)"), "no spreadsheet takes a name for a formula"


def test_junit_xml_says_the_same(graded):
    root = ET.fromstring(results.to_junit(graded[0]))
    assert root.tag == "testsuites" and len(root) == 4
    for suite, report in zip(root, graded[0], strict=True):
        assert int(suite.get("tests")) == len(suite) == 15
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
        passed = sum(len(case) == 0 for case in suite)
        assert passed == report.points()[0] + report.points(further=True)[0]


def test_m8_gradescope_gets_its_schema_and_totals_that_add_up(graded):
    top = {"score", "execution_time", "output", "output_format", "test_output_format",
           "test_name_format", "visibility", "stdout_visibility", "extra_data", "tests",
           "leaderboard"}  # fmt: skip
    of_test = {"score", "max_score", "status", "name", "name_format", "number", "output",
               "output_format", "tags", "visibility", "extra_data"}  # fmt: skip
    for report in graded[0]:
        data = json.loads(results.to_gradescope(report))
        assert data.keys() <= top and "score" not in data, "the total is the sum of the tests"
        assert data["stdout_visibility"] == "hidden"
        scored = [t for t in data["tests"] if "score" in t]
        assert (sum(t["score"] for t in scored), sum(t["max_score"] for t in scored)) == (
            report.points()
        )
        for test in data["tests"]:
            assert test.keys() <= of_test and test["visibility"] == "visible"
            assert test["status"] in ("passed", "failed") and ("max_score" in test) == (
                "score" in test
            )


def test_a_judge_that_fails_gives_a_report_without_points(tmp_path, monkeypatch):
    right_submission(tmp_path)
    monkeypatch.setattr(grading.sys, "executable", "/bin/false")
    report = grading.grade_apart(tmp_path, "ada", [PAGED], (1,), "public")
    assert report.points() == (0, 10) and "could not be graded" in report.labs[0].problems[0]


def test_m7_a_lab_without_tests_is_an_error(tmp_path):
    folder = tmp_path / "07_empty"
    folder.mkdir()
    (folder / "test_07_empty.py").write_text("def helper(): pass\n")
    info = type(PAGED)(folder, "empty", "Empty", "X", ())
    with pytest.raises(ValueError, match="its tests are"):
        load_tests(info)


def test_instructor_seeds_are_read_and_refused_by_line(tmp_path):
    path = tmp_path / "seeds.txt"
    path.write_text("# autumn\n12\n\n99\n")
    assert grading.read_seeds(path) == (12, 99)
    path.write_text("12\nsecret\n")
    with pytest.raises(ValueError, match="line 2"):
        grading.read_seeds(path)


def test_the_exported_autograder_grades_elsewhere_with_one_command(tmp_path):
    target, course = tmp_path / "autograder.zip", tmp_path / "autograder"
    seeds = tmp_path / "seeds.txt"
    seeds.write_text("77\n")
    export.gradescope(target, seeds)
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
        archive.extractall(course)
    assert {"setup.sh", "run_autograder", "course/instructor_seeds.txt"} <= set(names)
    assert not [n for n in names if re.search("right/|wrong/|unpublished|mine/", n)]
    right_submission(tmp_path / "ada")
    subprocess.run(
        ["bash", str(course / "run_autograder"), str(tmp_path / "ada"), str(tmp_path / "r.json")],
        env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
    )  # fmt: skip
    data = json.loads((tmp_path / "r.json").read_text())
    scores = [t for t in data["tests"] if t["name"].startswith("paged_blocks") and "score" in t]
    assert sum(t["score"] for t in scores) == len(scores) == 10
    assert sum(t.get("score", 0) for t in data["tests"]) == 10, "nothing else was handed in"
    assert "instructor" in data["output"]


def test_the_classroom_template_holds_no_instructors_files(tmp_path):
    export.github_classroom(tmp_path / "t.zip", 40)
    with zipfile.ZipFile(tmp_path / "t.zip") as archive:
        names = archive.namelist()
        classroom = json.loads(archive.read(".github/classroom/autograding.json"))
    assert ".github/workflows/labs.yml" in names and "labs/__main__.py" in names
    assert not [n for n in names if re.search("right/|wrong/|unpublished|seeds|mine/", n)]
    assert classroom["tests"][0]["points"] == 40


def test_in_process_mode_stops_an_endless_loop_by_counting():
    sources = {f: (ENGINE / f).read_text(encoding="utf-8") for f in PAGED.files}
    assert all(outcome.passed for outcome in browser.check("paged_blocks", sources))
    for body in (
        "while True: pass",
        "x = 0\nwhile True:\n    try: x += 1\n    except Exception: pass",
    ):
        sources["kvcache/block_table.py"] = slot_mapping(body)
        outcomes = browser.check("paged_blocks", sources, step_limit=100_000)
        assert [o.status for o in outcomes][6:8] == ["passed", "failed"]
        assert not any(outcome.passed for outcome in outcomes[8:])
        assert "100,000 steps and more" in outcomes[7].says
