"""The client's connection to a frontend that answers, falls silent, or dies."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ramiform.runtime.protocol import session
from ramiform.runtime.protocol.client import Connection
from ramiform.runtime.protocol.errors import ErrorInfo, RequestError, RuntimeFailed


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.changed = threading.Condition()

    def receive(self, message: Any) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def fail(self, error: ErrorInfo) -> None:
        self.receive(error)

    def wait_for(self, count: int) -> list[Any]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.messages) >= count, timeout=120)
            return self.messages


def test_the_welcome_tells_the_model(connection: Connection) -> None:
    assert connection.connect().name == "fake"


def test_hello_names_the_version_and_comes_first(connection: Connection, frontend: Any) -> None:
    import ramiform

    connection.call("info")
    assert frontend.received[0] == session.Hello(ramiform.__version__)


def test_nothing_but_hello_is_sent_before_the_welcome(frontend: Any) -> None:
    frontend.welcomes = False
    with Connection(frontend.address) as connection:
        connection.send(session.Open(1, 1))
        frontend.wait_until(lambda: frontend.received)
        frontend.say(session.Welcome(frontend.info))
        frontend.wait_until(lambda: len(frontend.received) == 2)
        assert [type(message) for message in frontend.received] == [session.Hello, session.Open]


def test_messages_arrive_in_the_order_they_were_sent(connection: Connection, frontend: Any) -> None:
    heard = Heard()
    state = connection.attach(heard)
    connection.send(session.Open(state, state))
    for op in range(500):
        connection.send(session.Append(state, op, [session.Text(str(op))]))
    answers = heard.wait_for(500)
    assert [operation.text for operation in frontend.operations()] == [str(op) for op in range(500)]
    assert [(done.op, done.text) for done in answers] == [(op, str(op)) for op in range(500)]


def test_many_threads_may_send_each_in_its_order(connection: Connection) -> None:
    listeners = [Heard() for _ in range(8)]

    def send(heard: Heard) -> None:
        state = connection.attach(heard)
        connection.send(session.Open(state, state))
        for op in range(100):
            connection.send(session.Append(state, op, [session.Text(f"{state}.{op}")]))

    threads = [threading.Thread(target=send, args=(heard,)) for heard in listeners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for heard in listeners:
        answers = heard.wait_for(100)
        assert [done.text for done in answers] == [f"{answers[0].state}.{op}" for op in range(100)]


def test_a_call_is_answered_and_its_error_is_raised(connection: Connection, frontend: Any) -> None:
    assert connection.call("info").info.name == "fake"
    handle = frontend._handle
    busy = ErrorInfo(kind="busy", message="not now")

    def refuse(client: bytes, message: Any) -> None:
        if isinstance(message, session.Call):
            frontend._send(client, session.Reply(message.call, error=busy))
        else:
            handle(client, message)

    frontend._handle = refuse
    with pytest.raises(Exception, match="not now") as caught:
        connection.call("flush_cache")
    assert ErrorInfo.of(caught.value) == busy


def test_an_address_without_a_listener_is_an_error_at_once(frontend: Any) -> None:
    with Connection(frontend.address + "-nobody") as connection:
        with pytest.raises(RuntimeFailed, match="no runtime listens at"):
            connection.connect()
        with pytest.raises(RuntimeFailed, match="no runtime listens at"):
            connection.call("info")


@pytest.mark.parametrize("address", ["nonsense", "ipc://", "http://localhost:1"])
def test_an_address_that_is_none_names_itself(address: str) -> None:
    with pytest.raises(RequestError, match="not the address of a runtime") as caught:
        Connection(address)
    assert caught.value.param == "address"


def test_a_frontend_that_does_not_answer_runs_out_of_time(frontend: Any) -> None:
    frontend.welcomes = False
    with Connection(frontend.address) as connection, pytest.raises(RuntimeFailed, match="did not answer within"):
        connection.connect(timeout=0.01)


def test_death_fails_listeners_calls_and_later_sends(connection: Connection, frontend: Any) -> None:
    heard = Heard()
    state = connection.attach(heard)
    connection.connect()
    frontend._handle = lambda client, message: None
    errors: list[BaseException] = []

    def ask() -> None:
        with pytest.raises(RuntimeFailed) as caught:
            connection.call("stats")
        errors.append(caught.value)

    thread = threading.Thread(target=ask)
    thread.start()
    frontend.die()
    thread.join()
    assert "is gone" in str(errors[0])
    assert "is gone" in heard.wait_for(1)[0].message
    with pytest.raises(RuntimeFailed, match="is gone"):
        connection.send(session.Open(state, state))
    with pytest.raises(RuntimeFailed, match="is gone"):
        connection.connect()
    connection.detach(state)


def test_the_last_words_of_a_dying_runtime_are_the_error(connection: Connection, frontend: Any) -> None:
    heard = Heard()
    connection.attach(heard)
    connection.connect()
    frontend.say(session.Fatal(ErrorInfo(kind="runtime", message="the core was killed by signal 9")))
    frontend.die()
    assert heard.wait_for(1)[0].message == "the core was killed by signal 9"


def test_a_message_that_the_runtime_cannot_decode_does_not_hang(connection: Connection, frontend: Any) -> None:
    heard = Heard()
    connection.attach(heard)
    connection.connect()
    frontend.say(session.Malformed(ErrorInfo(kind="request", message="what is this?")))
    assert "what is this?" in heard.wait_for(1)[0].message


def test_an_answer_that_the_client_cannot_decode_does_not_hang(connection: Connection, frontend: Any) -> None:
    heard = Heard()
    connection.attach(heard)
    connection.connect()
    frontend.do(lambda: [frontend._socket.send_multipart([client, b"\xc1"]) for client in frontend._clients] and None)
    error = heard.wait_for(1)[0]
    assert error.kind == "runtime"
    assert "malformed message" in error.message


def test_close_says_goodbye_and_leaves_no_thread(frontend: Any) -> None:
    before = set(threading.enumerate())
    connection = Connection(frontend.address)
    heard = Heard()
    connection.attach(heard)
    connection.connect()
    connection.close()
    frontend.wait_until(lambda: frontend.messages(session.Bye))
    assert set(threading.enumerate()) <= before
    assert "was closed" in heard.messages[0].message
    connection.close()
    with pytest.raises(RuntimeFailed, match="was closed"):
        connection.call("info")


def test_text_that_is_no_unicode_or_too_long_is_refused_by_itself(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramiform.runtime.protocol import wire

    with pytest.raises(RequestError, match="not valid Unicode") as caught:
        connection.send(session.Append(1, 0, [session.Text("bad \ud800 text")]))
    assert caught.value.param == "text"
    with pytest.raises(RequestError, match="out of range"):
        connection.send(session.Append(1, 0, [session.Select(choices=("a",), seed=1 << 70)]))
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 1000)
    with pytest.raises(RequestError, match="one message of 20"):
        connection.send(session.Append(1, 0, [session.Text("x" * 2000)]))
    assert connection.call("info").info is not None


def test_pings_are_sent_only_while_a_state_is_open(frontend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramiform.runtime.protocol import link

    monkeypatch.setattr(link, "PING_SECONDS", 0.02)
    with Connection(frontend.address) as connection:
        connection.connect()
        for _ in range(20):
            connection.call("info")
        assert not frontend.messages(session.Ping)
        state = connection.attach(Heard())
        connection.send(session.Open(state, state))
        frontend.wait_until(lambda: len(frontend.messages(session.Ping)) >= 3)


def test_an_idle_connection_costs_no_processor_time(connection: Connection) -> None:
    """Its thread sleeps in the kernel: the poll has no timeout, so that nothing but a message can wake it."""
    import zmq

    connection.connect()
    waits: list[Any] = []
    poll = zmq.Poller.poll

    def record(self: zmq.Poller, timeout: Any = None) -> Any:
        waits.append(timeout)
        return poll(self, timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zmq.Poller, "poll", record)
        connection.call("info")
        connection.call("info")
    assert waits
    assert set(waits) == {None}
