"""Sockets over ipc leave no file behind, and take none from another runtime."""

from __future__ import annotations

from pathlib import Path

import zmq

from ramiform.runtime.protocol.transport import bind_leaving_no_file, remove_socket_files


def test_a_socket_file_is_removed_unless_another_socket_was_bound_there_since(tmp_path: Path) -> None:
    own, taken = tmp_path / "own", tmp_path / "taken"
    with zmq.Context() as context:
        sockets = [context.socket(zmq.ROUTER) for _ in range(3)]
        for socket, path in zip(sockets, [own, taken], strict=False):
            bind_leaving_no_file(socket, f"ipc://{path}")
        bind_leaving_no_file(sockets[0], "ipc://@ramiform-test-abstract")
        sockets[2].bind(f"ipc://{taken}")  # as another process would
        remove_socket_files()
        assert (own.exists(), taken.exists()) == (False, True)
        for socket in sockets:
            socket.close(linger=0)
