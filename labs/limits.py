"""What the judged process may do: compute. Closed before any of the learner's code runs.

Two fences. Resource limits of the system: memory, size of files, processor time. And an audit
hook, which Python asks before it opens a file, starts a process, makes a socket: the hook cannot
be removed, and nothing that could reach it from inside (gc, tracing, ctypes) is allowed.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from collections.abc import Callable

MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20
MAX_WRITES = 32  # files and folders made or opened for writing
CPU_SECONDS = 60

# What the control plane and sensible answers use: loaded once, before the fork.
MODULES = (  # noqa: SIM905
    "abc array base64 bisect collections contextlib copy dataclasses datetime decimal enum "
    "fractions functools gc hashlib heapq importlib itertools json logging math numbers operator "
    "os pathlib queue random re statistics string struct textwrap time traceback types typing "
    "weakref zlib"
).split()

# A module that reaches round the hook: memory by address, processes, other interpreters.
REFUSED_MODULES = frozenset(
    "_ctypes _interpreters _posixsubprocess _socket _testcapi _testinternalcapi _testlimitedcapi "  # noqa: SIM905
    "_xxsubinterpreters _xxinterpchannels _dbm _gdbm _sqlite3 _multiprocessing _posixshmem "
    "_tkinter cffi ctypes fcntl multiprocessing socket sqlite3 subprocess".split()
)
REFUSED_EVENTS = frozenset(
    "code.__new__ cpython.PyInterpreterState_New fcntl.fcntl fcntl.flock fcntl.ioctl fcntl.lockf "  # noqa: SIM905
    "gc.get_objects gc.get_referents gc.get_referrers mmap.__new__ os.chdir os.chflags os.chmod "
    "os.chown os.exec os.fork os.forkpty os.kill os.killpg os.link os.lockf os.posix_spawn "
    "os.removexattr os.setxattr os.spawn os.startfile os.symlink os.system os.truncate os.utime "
    "pty.spawn resource.prlimit resource.setrlimit signal.pthread_kill sqlite3.connect "
    "subprocess.Popen sys._current_exceptions sys._current_frames sys.addaudithook sys.setprofile "
    "sys.settrace _thread.start_new_thread _posixsubprocess.fork_exec".split()
)
REFUSED_ROOMS = ("ctypes.", "socket.", "sys.monitoring.", "winreg.", "_winapi.")
READS = frozenset(("os.listdir", "os.scandir"))
MAKES = frozenset(("os.mkdir", "os.rename", "os.remove", "os.rmdir"))
NONE = type(None)
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def preload() -> None:
    """Import what every child needs, and nothing of the engine."""
    for name in MODULES:
        importlib.import_module(name)
    for name in sys.builtin_module_names:
        if name not in REFUSED_MODULES:
            importlib.import_module(name)


def close(job: dict) -> None:
    """From here on: read the standard library and the composed engine, write into the own folder,
    and nothing else."""
    set_limits()
    # These make files and are not announced to any hook.
    for name in ("mkfifo", "mknod"):
        for module in ("os", "posix"):
            if hasattr(sys.modules.get(module), name):
                delattr(sys.modules[module], name)
    for name in REFUSED_MODULES:
        sys.modules.pop(name, None)
    # Modules that are compiled into Python load without a word; those that may are loaded.
    imp = sys.modules["_imp"]
    if hasattr(imp, "create_builtin"):
        del imp.create_builtin
    library = tuple(
        os.path.realpath(sysconfig.get_path(name)) + "/" for name in ("stdlib", "platstdlib")
    )
    home, root = job["home"] + "/", job["root"] + "/"
    sys.addaudithook(make_hook((*library, home, root), home))


def set_limits() -> None:
    """What the operating system enforces; a system without these limits has the judge's clock."""
    try:
        import resource
    except ImportError:
        return
    for name, value in (
        ("RLIMIT_AS", MEMORY_BYTES),
        ("RLIMIT_FSIZE", FILE_BYTES),
        ("RLIMIT_CPU", CPU_SECONDS),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", 0),
    ):
        if hasattr(resource, name) and (name != "RLIMIT_AS" or sys.platform == "linux"):
            resource.setrlimit(getattr(resource, name), (value, value))


def make_hook(readable: tuple[str, ...], home: str) -> Callable[[str, tuple], None]:
    """The hook. All that it uses is bound here: builtins and modules may be patched later. A text
    of another class than str could lie to it about its own letters, so it is refused."""
    writes_left = [MAX_WRITES]

    def hook(
        event, args, *, type=type, str=str, int=int, none=NONE, split=str.split,
        starts=str.startswith, Refused=PermissionError, readable=readable, home=home,
        left=writes_left, refused=REFUSED_EVENTS, rooms=REFUSED_ROOMS, modules=REFUSED_MODULES,
        reads=READS, makes=MAKES, flags=WRITE_FLAGS,
    ):  # fmt: skip
        if event in refused or starts(event, rooms):
            raise Refused("this is not allowed in a lab: " + event)
        if event == "import":
            if args[0] in modules:
                raise Refused("this module is not allowed in a lab: " + args[0])
            if type(args[1]) is str and not starts(args[1], readable):
                raise Refused("only Python's own extension modules can be loaded in a lab")
            return
        if event == "object.__setattr__" and args[1] == "__code__":
            raise Refused("this is not allowed in a lab: another function's code")
        is_open, is_make = event == "open", event in makes
        if not (is_open or is_make or event in reads):
            return
        if is_open and type(args[0]) is int:
            return
        is_write = is_make or (is_open and args[2] & flags)
        if is_write:
            left[0] -= 1
        for path in args[:2] if event == "os.rename" else args[:1]:
            if type(path) is none:
                path = "."
            if type(path) is not str or ".." in split(path, "/"):
                raise Refused("a lab opens files by a plain path, without ..")
            if not starts(path, "/"):
                path = home + path
            if is_write and (left[0] < 0 or not starts(path, home)):
                raise Refused("a lab writes a few small files into its own folder, nowhere else")
            if not starts(path + "/", readable) or "site-packages" in split(path, "/"):
                raise Refused("a lab may not read " + path)

    return hook
