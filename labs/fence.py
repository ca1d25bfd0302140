"""The fence round the judged process: an audit hook, which Python asks before it opens a file,
loads a module, starts a process.

The hook cannot be removed. What could reach it from inside, or act without asking it, goes before
the learner's code comes: tracing, walks through the heap, other interpreters, system calls that no
event announces. What it is told may lie, so it looks only at exact types.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

MAX_WRITES = 32  # files and folders made or opened for writing

# Parts of the library that are compiled, and compute only, or ask the hook. Any other may not.
EXTENSIONS = frozenset(
    "_asyncio _bisect _blake2 _bz2 _contextvars _csv _datetime _decimal _elementtree _hashlib "  # noqa: SIM905
    "_heapq _hmac _json _lsprof _lzma _md5 _multibytecodec _opcode _pickle _queue _random _sha1 "
    "_sha2 _sha256 _sha3 _sha512 _statistics _struct _typing _uuid _zoneinfo _zstd array audioop "
    "binascii cmath math mmap pyexpat select unicodedata zlib".split()
)
REFUSED_MODULES = frozenset(
    "_ctypes _posixsubprocess _socket _multiprocessing cffi ctypes fcntl multiprocessing socket "  # noqa: SIM905
    "sqlite3 subprocess".split()
)
REFUSED_EVENTS = frozenset(
    "code.__new__ cpython.PyInterpreterState_New fcntl.fcntl fcntl.flock fcntl.ioctl fcntl.lockf "  # noqa: SIM905
    "gc.get_objects gc.get_referents gc.get_referrers os.chdir os.chflags os.chmod "
    "os.chown os.exec os.fork os.forkpty os.kill os.killpg os.link os.lockf os.posix_spawn "
    "os.removexattr os.setxattr os.spawn os.startfile os.symlink os.system os.truncate os.utime "
    "pty.spawn resource.prlimit resource.setrlimit signal.pthread_kill sqlite3.connect "
    "subprocess.Popen sys._current_exceptions sys._current_frames sys.addaudithook sys.remote_exec "
    "sys.setprofile sys.settrace _thread.start_joinable_thread _thread.start_new_thread "
    "_posixsubprocess.fork_exec".split()
)
REFUSED_ROOMS = ("ctypes.", "socket.", "sys.monitoring.", "syslog.", "winreg.", "_winapi.")
READS = frozenset(("os.listdir", "os.scandir"))
MAKES = frozenset(("os.mkdir", "os.rename", "os.remove", "os.rmdir"))
NONE = type(None)
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# System calls that stay. The others are not needed to compute, and many are announced to nobody.
SYSTEM_CALLS = frozenset(
    "_exit abort access close closerange confstr cpu_count device_encoding dup dup2 fspath fstat "  # noqa: SIM905
    "fsync get_blocking get_inheritable get_terminal_size getcwd getcwdb getegid geteuid getgid "
    "getloadavg getpgid getpid getppid getrandom getuid isatty listdir lseek lstat mkdir open pipe "
    "putenv read readlink register_at_fork remove rename replace rmdir scandir sched_getaffinity "
    "sched_yield set_inheritable stat strerror sysconf times umask uname unlink unsetenv urandom "
    "waitstatus_to_exitcode write".split()
)
SIGNAL_CALLS = frozenset(
    ["default_int_handler", "getsignal", "raise_signal", "strsignal", "valid_signals"]
)


def close(readable: tuple[str, ...], library: tuple[str, ...], home: str) -> None:
    """From here on: read what lies under `readable` (folders, with a slash at the end) and write
    into `home`, a little. Compiled modules come from `library` only."""
    for name in ("os", "posix", "nt"):
        keep_calls(name, lambda call: call in SYSTEM_CALLS or call.startswith(("W", "_path")))
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_effective_ids,
                  os.supports_follow_symlinks):  # fmt: skip
        known.clear()  # they hold the very functions
    for name in ("signal", "_signal"):
        # A handler may run in the middle of the hook.
        keep_calls(name, lambda call: call in SIGNAL_CALLS)
    gc.disable()  # and so may what it calls
    gc.enable = lambda: None
    sys.audit = lambda *args: None  # tells the hook whatever one likes
    for name in REFUSED_MODULES:
        sys.modules.pop(name, None)
    # The engine's downloads import it at their top: so it is there, and shut.
    sys.modules["subprocess"] = Shut("subprocess")
    # Modules that are compiled into Python load without a word; those that may are loaded.
    sys.modules["_imp"].create_builtin = refuse_module
    sys.addaudithook(make_hook(readable, library, home))


class Shut(ModuleType):
    """A module with nothing in it that may be used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise PermissionError(f"this is not allowed in a lab: {self.__name__}.{name}")


def preload() -> None:
    """Import those of the allowed modules that are compiled into Python itself."""
    for name in sys.builtin_module_names:
        if name in EXTENSIONS:
            __import__(name)


def keep_calls(module_name: str, is_kept: Callable[[str], bool]) -> None:
    """Put a refusal in the place of each of a module's built-in functions that is not kept."""
    module = sys.modules.get(module_name)
    for name, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
        if isinstance(value, BuiltinFunctionType) and not is_kept(name):
            setattr(module, name, refusal(f"{module_name}.{name}"))


def refusal(name: str) -> Callable:
    def refused(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(f"this is not allowed in a lab: {name}")

    return refused


def refuse_module(spec: Any) -> None:
    raise ImportError(f"this module is not allowed in a lab: {spec.name}")


def make_hook(
    readable: tuple[str, ...], library: tuple[str, ...], home: str
) -> Callable[[str, tuple], None]:
    """The hook. All that it uses is bound here: builtins and modules may be patched later. A value
    of another class than str could lie to it about its own letters, and its methods would run
    here, so it is refused. Nothing that a traceback shows of it can be changed."""
    writes_left = iter(range(MAX_WRITES))

    def hook(
        event, args, *, type=type, str=str, int=int, none=NONE, split=str.split,
        starts=str.startswith, next=next, stat=os.stat, Refused=PermissionError,
        Unknown=ImportError, Missing=(FileNotFoundError, NotADirectoryError),
        readable=readable, library=library,
        home=home, left=writes_left, refused=REFUSED_EVENTS, rooms=REFUSED_ROOMS,
        modules=REFUSED_MODULES, extensions=EXTENSIONS, reads=READS, makes=MAKES,
        flags=WRITE_FLAGS,
    ):  # fmt: skip
        if event in refused or starts(event, rooms):
            raise Refused("this is not allowed in a lab: " + event)
        if (
            event == "mmap.__new__" and args[2] != 1
        ):  # 1 is mmap.ACCESS_READ: a checkpoint is read so
            raise Refused("this is not allowed in a lab: mmap that may write")
        if event == "import":
            name, file = args[:2]
            if type(name) is not str:
                raise Unknown("a module is named by a plain str")
            if name in modules:
                raise Unknown("this module is not allowed in a lab: " + name)
            if type(file) is none:
                return
            if type(file) is not str or not starts(file, library) or "-packages/" in file:
                raise Unknown("only Python's own extension modules can be loaded in a lab")
            if name not in extensions and not starts(name, "_codecs_"):
                raise Unknown("this module is not allowed in a lab: " + name)
            return
        if event == "object.__setattr__" and args[1] == "__code__":
            raise Refused("this is not allowed in a lab: another function's code")
        is_open, is_make = event == "open", event in makes
        if not (is_open or is_make or event in reads):
            return
        if is_open and type(args[0]) is int:
            return
        num_paths = 2 if event == "os.rename" else 1
        if is_make:  # the rest, but mkdir's mode, are descriptors of folders that paths start at
            for folder in args[2 if event == "os.mkdir" else num_paths :]:
                if folder != -1:
                    raise Refused("a lab names its files by a path, not by a folder's number")
        is_write = is_make or bool(args[2] & flags if is_open else 0)
        may_write = not is_write or next(left, -1) != -1
        for path in args[:num_paths]:
            if type(path) is none:
                path = "."
            if type(path) is not str or ".." in split(path, "/"):
                raise Refused("a lab opens files by a plain path, without ..")
            if not starts(path, "/"):
                path = home + path
            if is_write and (not may_write or not starts(path, home)):
                raise Refused("a lab writes a few small files into its own folder, nowhere else")
            if not starts(path + "/", readable) or "site-packages" in split(path, "/"):
                raise Refused("a lab may not read " + path)
            if is_open and not starts(path, home):
                # A folder's descriptor would be a way round these very paths.
                try:
                    mode = stat(path).st_mode
                except Missing:
                    return
                if mode & 0o170000 == 0o040000:
                    raise Refused("a lab may not read a folder as a file: " + path)

    return hook
