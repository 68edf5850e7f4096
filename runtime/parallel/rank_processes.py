"""The child processes of the other ranks: rank 0 starts them, sends them plans, watches and ends them.

Each has a pipe to its standard input, whose end tells it that rank 0 is gone (`parent_watchdog`), and one from its
standard output, whose end tells rank 0 that the child is gone. One thread per rank waits for that; nothing polls. A
rank that dies while rank 0 computes breaks rank 0's collective. In case it does not, as when the network keeps a dead
device's promise, rank 0 exits all the same.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import msgspec
import zmq

from ..processes import parent_watchdog
from ..processes.bounded_sleep import bounded_sleep
from ..protocol.config import RuntimeConfig
from ..protocol.errors import ErrorInfo, RamiformError, RuntimeFailed
from .messages import PagesPart, RankFailed, RankReady, RankReport, Rendezvous, ToRank, WeightsPrepared, plan_address
from .node_zero import WorkerNodes

_CAUSE_DELAY = 0.2  # seconds: another rank's exit, the cause of a failure, may be noticed after it
_PART_POLL_MS = 100  # between two checks of the ranks while one answers
RANK_LOSS_GRACE = 1.2  # seconds for rank 0 to tell its clients when a rank is gone


class RankProcesses:
    """The ranks of this node except rank 0; on node 0 it also reaches the ranks of other nodes.

    `wake` is a file descriptor that becomes readable when one is gone.
    """

    def __init__(self) -> None:
        self.wake, self._waker = os.pipe()
        self._children: list[subprocess.Popen[bytes]] = []
        self._sockets: list[zmq.Socket[bytes]] = []
        self._condition = threading.Condition()
        self._num_ready = self._num_expected = 0
        self._nodes: WorkerNodes | None = None
        self._node_suffix = ""
        self._failure: RamiformError | None = None
        self._serving = False
        self._encoder = msgspec.msgpack.Encoder()

    def start(self, config: RuntimeConfig, rendezvous: Rendezvous | None = None) -> None:
        """Start the ranks. With `rendezvous`, on node 0 of several, wait for all nodes first.

        Raises RamiformError when nodes do not join, or a setting is wrong.
        """
        if rendezvous is not None:
            self._nodes = WorkerNodes(config, rendezvous, self._count_ready, self._report_loss)
            self._nodes.wait_joined(self.check)
            self._num_expected += config.core.nnodes - 1
        if config.core.nnodes > 1:
            self._node_suffix = f" of node {config.core.node_rank}"
        for rank in config.core.own_ranks:
            if rank == 0:
                continue
            self._num_expected += 1
            socket = zmq.Context.instance().socket(zmq.PAIR)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.bind(plan_address(config.serve.socket_dir, rank))
            self._sockets.append(socket)
            child = subprocess.Popen(
                [*parent_watchdog.child_command("ramiform.runtime.parallel.worker"), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C goes to the frontend only
                env=parent_watchdog.child_environment(),
            )
            self._children.append(child)
            assert child.stdin is not None
            child.stdin.write(parent_watchdog.config_line(config))
            child.stdin.flush()
            threading.Thread(target=self._watch, args=(rank, child), name=f"rank {rank}", daemon=True).start()

    def send(self, message: ToRank) -> None:
        data = self._encoder.encode(message)
        if self._nodes is not None:
            self._nodes.send(data)  # the longer way first
        self.relay(data)

    def receive_parts(self) -> list[tuple[PagesPart, bytes]]:
        """Receive every rank's part of the pages that a `ReadPages` asked for. Raises RuntimeFailed when one dies."""
        return [(msgspec.msgpack.decode(header, type=PagesPart), data) for header, data in self._receive()]

    def receive_prepared(self) -> list[WeightsPrepared]:
        """Receive every rank's answer to `PrepareWeights`. Raises RuntimeFailed when one dies."""
        return [msgspec.msgpack.decode(frame, type=WeightsPrepared) for [frame] in self._receive()]

    def relay(self, data: bytes) -> None:
        """Send an encoded message to the ranks of this node."""
        for socket in self._sockets:
            socket.send(data)

    def _receive(self) -> Iterator[list[bytes]]:
        for socket in self._sockets:
            while not socket.poll(_PART_POLL_MS):
                self.check()
            yield socket.recv_multipart()

    @property
    def ready(self) -> bool:
        """True when every rank has loaded its weights."""
        return self._num_ready == self._num_expected

    def wait_ready(self) -> None:
        """Wait until every rank has loaded its weights. Raises the error of a rank that failed."""
        with self._condition:
            self._condition.wait_for(lambda: self._failure is not None or self.ready)
        self.check()

    def serve(self) -> None:
        """Exit soon after a rank is lost from now on, in case rank 0 hangs in a collective."""
        self._serving = True

    def check(self, seconds: float = 0.0) -> None:
        """Raise when a rank is gone, or goes within `seconds`."""
        if seconds:
            with self._condition:
                self._condition.wait_for(lambda: self._failure is not None, seconds)
        if self._failure is not None:
            raise self._failure

    def quit(self) -> None:
        """Ask all ranks to end quietly; wait at most a moment for other nodes."""
        if self._nodes is not None:
            self._nodes.quit()
        for child in self._children:
            assert child.stdin is not None
            try:
                child.stdin.write(parent_watchdog.QUIT)
                child.stdin.flush()
            except BrokenPipeError:
                continue  # it has exited already

    def stop(self) -> None:
        """End the ranks of this node, and kill those that do not leave."""
        self.quit()
        for child in self._children:
            try:
                child.wait(RANK_LOSS_GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _count_ready(self) -> None:
        with self._condition:
            self._num_ready += 1
            self._condition.notify_all()

    def _watch(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        failed: ErrorInfo | None = None
        for line in child.stdout:
            match msgspec.json.decode(line, type=RankReport):
                case RankReady():
                    self._count_ready()
                case RankFailed(error=error):
                    failed = error
        status = child.wait()
        if failed is not None and failed.kind != "request":
            bounded_sleep(_CAUSE_DELAY)
        name = f"rank {rank} (process {child.pid}{self._node_suffix})"
        if failed is not None and failed.kind == "request":
            self._report_loss(failed.to_exception())  # a setting that is wrong for all ranks
        elif failed is not None:
            self._report_loss(RuntimeFailed(f"{name} failed: {failed.message}"))
        else:
            outcome = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            self._report_loss(RuntimeFailed(f"{name} {outcome}; the runtime is down"))

    def _report_loss(self, error: RamiformError) -> None:
        with self._condition:
            if self._failure is not None:
                return  # only the first loss is reported
            self._failure = error
            self._condition.notify_all()
        os.write(self._waker, b"\n")
        if self._nodes is not None:
            self._nodes.end(ErrorInfo.of(error))
        if self._serving:
            bounded_sleep(RANK_LOSS_GRACE)
            parent_watchdog.say(f"ramiform core: {error}")
            parent_watchdog.exit_now(1)
