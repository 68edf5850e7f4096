"""A server under chaos: its processes, descriptors, files, memory and log, and what must be true of them."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

from ramiform.tests.processes.processes import all_children, is_alive

from . import clients
from .walk import Fault, Flags, ProcessKind

RAMIFORM = str(Path(sys.executable).parent / "ramiform")
CLOCK = Path(__file__).with_name("clock.c")
CAN_MOVE_CLOCK = sys.platform == "linux" and shutil.which("cc") is not None
SETTLE_SECONDS = 60.0  # far more than it takes to return to rest, or to end
MAX_GROWTH = 192 << 20  # bytes of memory of a process beyond what it had after the first requests
MODULES: dict[bytes, ProcessKind] = {
    b"processes.core_main": "core",
    b"processes.frontend_worker": "frontend",
    b"parallel.worker": "rank",
    b"tokenizer.template_process": "template",
}
T = TypeVar("T")
UNEXPECTED = ["Traceback", "never retrieved", "internal error", "Exception ignored"]


class Finding(AssertionError):
    """An invariant that does not hold."""


@dataclass
class Baseline:
    """Resources that a server at rest holds after its first requests."""

    descriptors: dict[int, int]  # by process
    files: set[str]
    memory: dict[int, int]


@dataclass
class ChaosServer:
    """A running server. `pids`: of all its processes so far, with their kinds."""

    process: subprocess.Popen[str]
    folder: Path
    flags: Flags
    at: clients.Server
    pids: dict[int, ProcessKind] = field(default_factory=dict)
    baseline: Baseline | None = None

    def processes(self) -> dict[int, ProcessKind]:
        """Return its processes by id, and remember them."""
        found: dict[int, ProcessKind] = {}
        to_see = [self.process.pid]
        while to_see:
            pid = to_see.pop()
            with suppress(FileNotFoundError, ProcessLookupError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                zombie = self.pids.get(pid, "template")
                found[pid] = next((kind for name, kind in MODULES.items() if name in line), "main") if line else zombie
                to_see += all_children(pid)
        self.pids |= found
        return found

    def of_kind(self, kind: ProcessKind) -> list[int]:
        return [pid for pid, other in self.processes().items() if other == kind]

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    # What must be true

    def rest(self) -> None:
        """Take what it has now as the baseline, once it is at rest."""
        stats = self._until("nothing runs", self._idle_stats)
        assert stats["num_held_pages"] == 0
        self.baseline = self._now()

    def check_at_rest(self) -> None:
        """Raise Finding unless all is as it was: pages, processes, descriptors, files, memory, log."""
        assert self.baseline is not None
        base = self.baseline
        stats = self._until("nothing runs and no page is held", self._idle_stats)
        if (have := stats["num_free_pages"] + stats["num_cached_pages"]) != stats["num_pages"]:
            raise Finding(f"{stats['num_pages'] - have} pages are neither free nor cached: {stats}")
        self._until("its processes are those of the baseline", lambda: self._permanent() == set(base.descriptors))
        self._until("no process is a zombie", lambda: not self._zombies())
        self._until("descriptors are those of the baseline", self._has_its_descriptors)
        now = self._now()
        if now.files != base.files:
            raise Finding(f"files: {now.files ^ base.files}")
        for pid, size in now.memory.items():
            if size > base.memory[pid] + MAX_GROWTH:
                raise Finding(f"the {self.pids[pid]} grew from {base.memory[pid] >> 20} to {size >> 20} MiB")
        self._check_log()

    def check_end(self, statuses: set[int], *, may_log: bool) -> None:
        """Raise Finding unless it ends whole, with one of these statuses, and leaves nothing."""
        try:
            status = self.process.wait(SETTLE_SECONDS)
        except subprocess.TimeoutExpired:
            raise Finding(f"it does not end; alive: {[self.pids[pid] for pid in self._alive()]}") from None
        if status not in statuses:
            raise Finding(f"it ended with status {status} instead of {statuses}: {self.log()[-2000:]}")
        self._until("its processes have ended", lambda: not self._alive())
        self._until("its sockets are removed", lambda: not list(self.folder.glob("tmp/*")))
        if not may_log:
            self._check_log()

    def _check_log(self) -> None:
        said = self.log()
        if bad := next((word for word in UNEXPECTED if word in said), None):
            at = said.index(bad)
            raise Finding(f"the log says {bad!r}: {said[max(0, at - 500) : at + 2500]}")

    def _idle_stats(self) -> dict[str, int]:
        with self.at.client() as client:
            stats: dict[str, int] = client.get("/get_server_info").raise_for_status().json()
        rests = stats["num_running"] == stats["num_waiting"] == stats["num_held_pages"] == 0
        return stats if rests else {}

    def _permanent(self) -> set[int]:
        return {pid for pid, kind in self.processes().items() if kind != "template"}

    def _now(self) -> Baseline:
        processes = self._permanent()
        return Baseline(
            {pid: num_descriptors(pid) for pid in processes},
            {str(path.relative_to(self.folder)) for path in self.folder.rglob("tmp/**/*")},
            {pid: resident_bytes(pid) for pid in processes},
        )

    def _has_its_descriptors(self) -> bool:
        """A frontend has two more for each process of templates, its pipes."""
        assert self.baseline is not None
        for pid, most in self.baseline.descriptors.items():
            with suppress(FileNotFoundError):
                templates = sum(self.pids.get(child) == "template" for child in all_children(pid))
                if num_descriptors(pid) > most + 2 * templates:
                    return False
        return True

    def _zombies(self) -> list[int]:
        return [pid for pid in self.processes() if Path(f"/proc/{pid}").exists() and not is_alive(pid)]

    def _alive(self) -> list[int]:
        return [pid for pid in self.pids if is_alive(pid)]

    def _until(self, what: str, see: Callable[[], T]) -> T:
        deadline = time.monotonic() + SETTLE_SECONDS
        problem = ""
        while time.monotonic() < deadline:
            try:
                if value := see():
                    return value
            except (httpx.HTTPError, OSError) as error:
                problem = f" ({error!r})"
            time.sleep(0.05)
        raise Finding(f"not after {SETTLE_SECONDS:g} s: {what}{problem}; {self._state()}")

    def _state(self) -> str:
        try:
            now = self._now()
        except OSError as error:
            return repr(error)
        base = self.baseline.descriptors if self.baseline else {}
        return f"descriptors {now.descriptors}, at first {base}; processes {self.processes()}; log {self.log()[-1500:]}"


def num_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def serving(flags: Flags) -> Iterator[ChaosServer]:
    """Serve until the end of the block. What still lives then is killed."""
    with tempfile.TemporaryDirectory(prefix="chaos", dir="/tmp") as name:
        folder = Path(name)
        (folder / "tmp").mkdir()
        (folder / "log").touch()
        environment = os.environ | {"TMPDIR": str(folder / "tmp")}
        environment.pop("OMP_NUM_THREADS", None)  # of the other tests: here steps have several threads
        if flags.clock and CAN_MOVE_CLOCK:
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", folder / "clock.so", CLOCK, "-ldl"], check=True)
            set_clock(folder, 0)
            environment |= {"LD_PRELOAD": str(folder / "clock.so"), "CHAOS_CLOCK": str(folder / "clock")}
        command = [RAMIFORM, "serve", "--port", "0", "--dtype", "float32", *flags.options(str(folder / "plans"))]
        if flags.descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {flags.descriptors}; exec "$@"', "sh", *command]
        with _log_of(flags, folder) as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        server = ChaosServer(process, folder, flags, clients.Server("", "", None))
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            if " at " not in lines[0]:
                raise Finding(f"it does not start: {lines}, status {process.wait(SETTLE_SECONDS)}, log {server.log()}")
            url, address = lines[0].split(" at ")[1].strip(), lines[1].split("--address ")[1].strip()
            server.at = clients.Server(url, address, "one" if flags.keys else None)
            server.processes()
            yield server
        finally:
            for pid in [pid for pid in [*server.processes(), *server.pids] if is_alive(pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@contextmanager
def _log_of(flags: Flags, folder: Path) -> Iterator[int]:
    """Standard error of a server: a file, a full disk, or a pipe that nobody reads any more."""
    if flags.log == "closed":
        read, write = os.pipe()
        os.close(read)
    else:
        write = os.open("/dev/full" if flags.log == "full" else folder / "log", os.O_WRONLY | os.O_APPEND)
    try:
        yield write
    finally:
        os.close(write)


def set_clock(folder: Path, seconds: float) -> None:
    """Move the wall clock of a server's processes."""
    with open(folder / "clock", "r+b" if (folder / "clock").exists() else "w+b") as file:
        file.write(int(seconds).to_bytes(8, sys.byteorder, signed=True))


def strike(server: ChaosServer, fault: Fault) -> Callable[[], None]:
    """Let a fault happen. Returns what undoes it, if anything does."""
    targets = server.of_kind(fault.target)
    match fault.kind:
        case "kill":
            _signal(targets[-1:], signal.SIGKILL)
        case "stop":
            _signal(targets, signal.SIGSTOP)
            time.sleep(fault.amount)
            _signal(targets, signal.SIGCONT)
        case "clock":
            set_clock(server.folder, fault.amount)
        case "memory":
            return _limit(targets, resource.RLIMIT_AS, lambda pid: _virtual_bytes(pid) + (int(fault.amount) << 20))
        case "disk":  # the limit of a file's size: what is written to files fails, as on a full disk
            return _limit(targets, resource.RLIMIT_FSIZE, lambda pid: 0)
        case "burst":
            connections = []
            with suppress(OSError):
                connections += [server.at.connect() for _ in range(int(fault.amount))]
            return lambda: [connection.close() for connection in connections] and None
    return lambda: None


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _virtual_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def _limit(pids: list[int], kind: int, amount: Callable[[int], int]) -> Callable[[], None]:
    """Lower the soft limit of processes that run; the result raises it again."""
    before = {}
    for pid in pids:
        with suppress(ProcessLookupError, FileNotFoundError):
            _, hard = before[pid] = resource.prlimit(pid, kind)
            resource.prlimit(pid, kind, (amount(pid), hard))

    def undo() -> None:
        for pid, limits in before.items():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, kind, limits)

    return undo
