"""The tests of programs on the runtime once more, with the runtime reached over HTTP alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ramiform
from ramiform import HttpRuntime
from ramiform.tests.lang import test_anchor_programs, test_on_the_runtime

pytestmark = pytest.mark.usefixtures("backend")

NOT_HERE = {
    # It starts a runtime of its own.
    "test_when_the_runtime_is_killed_fifty_running_programs_raise_at_once_each_naming_its_line",
    # They count pieces, and a slow reader gets all in one.
    "test_the_text_of_the_whole_state_streams",
    "test_the_text_of_a_variable_streams",
    "test_streams_in_an_event_loop_come_with_meta_data",
}


@pytest.fixture
def backend(url: str) -> Iterator[HttpRuntime]:
    """The runtime over HTTP as the default backend, instead of the one over ZMQ."""
    over_http = HttpRuntime(url)
    ramiform.set_default_backend(over_http)
    yield over_http
    ramiform.set_default_backend(None)
    over_http.close()


for module in (test_on_the_runtime, test_anchor_programs):
    globals().update(
        {name: value for name, value in vars(module).items() if name.startswith("test_") and name not in NOT_HERE}
    )
