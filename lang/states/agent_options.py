"""Defines an agent: the tools, instructions and limits that it is given, the calls and the answer that it returns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ...runtime.protocol.errors import RequestError
from ..expressions.attempts import OnInvalid, check_of
from ..expressions.expr import RUN_ARGUMENTS, Expr
from ..tools.call_format import CALL_FORMATS, CallFormat, ReadTurn, Recognised, call_format, described, read_calls
from ..tools.declaration import AnyTool, DeclaredTool, tool
from ..tools.tool_set import OnError, ToolSet, tool_set
from ..types.adapter import adapter_of
from ..types.result_types import ReasoningFormat, reasoning_format

StoppedBy = Literal["answer", "until", "max_steps", "max_tokens", "invalid_call"]


@dataclass(frozen=True)
class Agent:
    """A part that the model of `s.agent` plays: its tools, what it is told, and the agents to which it may hand over.

    An agent of `handoffs` is called by the tool `hand_over_to_NAME`, which is told its `description`. A name stands for
    an agent of this name that is reached from the first one, so that agents may hand over to each other.
    """

    name: str
    tools: Sequence[AnyTool] = ()
    instructions: str = ""
    description: str = ""
    handoffs: Sequence[Agent | str] = ()

    def __post_init__(self) -> None:
        for field in ("name", "instructions", "description"):
            if not isinstance(value := getattr(self, field), str):
                raise RequestError(f"{field} of an agent must be a string, got {value!r}", param=field)
        if not (self.name and all(character.isalnum() or character in "_-" for character in self.name)):
            raise RequestError(f"an agent's name is of letters, digits, _ and -, got {self.name!r}", param="name")
        for one in self.handoffs:
            if not isinstance(one, Agent | str):
                raise RequestError(f"handoffs are agents or their names, got {one!r}", param="handoffs")

    def reached(self) -> dict[str, Agent]:
        """Return the agents that may take part, by name. Raises RequestError for an unknown or a repeated name."""
        found, pending = dict[str, Agent](), [self]
        while pending:
            agent = pending.pop()
            if found.setdefault(agent.name, agent) is not agent:
                raise RequestError(f"two agents have the name {agent.name!r}", param="handoffs")
            pending += [one for one in agent.handoffs if isinstance(one, Agent) and found.get(one.name) is not one]
        for agent in found.values():
            for one in agent.handoffs:
                if isinstance(one, str) and one not in found:
                    raise RequestError(f"{agent.name} hands over to {one!r}, which is no agent here", param="handoffs")
        return found


@dataclass(frozen=True)
class AgentCall:
    """A tool call of an agent. `error` is None if it succeeded; `text` is what the model was told."""

    step: int  # the turn, from 1
    name: str | None  # None: the text was no valid call
    arguments: dict[str, Any] | None
    result: Any
    text: str
    error: str | None
    seconds: float
    saved: float = 0.0  # seconds of these in which the model still wrote the turn
    recognised: Recognised = "marker"  # how the call was found in the model's text


@dataclass(frozen=True)
class AgentResult:
    """The end of an agent: the model's last words, its thoughts in each turn, and every call that it made.

    `hint` says what to try where the model called no tool at all. `value` is the answer of the type `schema`, None if
    the agent has none or did not finish. `agent` is the name of the last agent, None where tools were given alone.
    """

    answer: str
    steps: int
    calls: tuple[AgentCall, ...]
    stopped_by: StoppedBy
    reasoning: tuple[str, ...] = ()
    hint: str | None = None
    value: Any = None
    agent: str | None = None

    @property
    def finished(self) -> bool:
        """Return whether the model answered, or `until` was true; False where a limit ended the agent."""
        return self.stopped_by in ("answer", "until")


@dataclass(frozen=True)
class AgentOptions:
    """The options of `s.agent`, in its order. Raises RequestError for an invalid one."""

    given_tools: Sequence[AnyTool] | Agent
    prompt: Expr | str | None
    max_steps: int
    until: Callable[[Any], Any] | str | None
    on_error: OnError
    given_format: str | CallFormat
    result_role: str
    constrained: bool
    tool_choice: str
    call_retries: int
    max_repeats: int | None
    given_reasoning: str | None
    schema: Any
    check: Callable[[Any], Any] | None
    retries: int | None
    on_invalid: OnInvalid | None
    sampling: dict[str, Any]  # by the names of `run`
    known: dict[str, Agent] | None = None  # by name, once one has handed over

    def __post_init__(self) -> None:
        for one in self.tools.tools.values():
            if one.function is None:
                raise RequestError(
                    f"the tool {one.name} has no function, so an agent cannot go on after its call: declare it with "
                    "ramiform.tool(definition, handler)",
                    param="tools",
                )
        role, errors = self.result_role, self.on_error
        if type(self.max_steps) is not int or self.max_steps < 1:
            raise RequestError(f"max_steps must be a positive integer, got {self.max_steps!r}", param="max_steps")
        if self.until is not None and not callable(self.until) and not isinstance(self.until, str):
            raise RequestError(
                f"until must be a function of the state, or a tool's name, got {self.until!r}", param="until"
            )
        self._check_until_and_answer()
        if not (isinstance(role, str) and role):
            raise RequestError(f"result_role must be a role such as 'tool', got {role!r}", param="result_role")
        if not isinstance(self.constrained, bool):
            raise RequestError(f"constrained must be True or False, got {self.constrained!r}", param="constrained")
        if errors not in ("text", "raise"):
            raise RequestError(f"tool_errors must be 'text' or 'raise', got {errors!r}", param="tool_errors")
        if self.tool_choice not in ("auto", "required", *self.tools.tools):
            raise RequestError(
                f"tool_choice must be 'auto', 'required' or a tool's name ({', '.join(self.tools.tools)}), got "
                f"{self.tool_choice!r}",
                param="tool_choice",
            )
        if self.tool_choice != "auto" and not self.constrained:
            raise RequestError(
                f"tool_choice={self.tool_choice!r} constrains the first turn: leave constrained=False out",
                param="tool_choice",
            )
        if type(self.call_retries) is not int or self.call_retries < 0:
            raise RequestError(
                f"call_retries must be an integer of 0 or more, got {self.call_retries!r}", param="call_retries"
            )
        if self.max_repeats is not None and (type(self.max_repeats) is not int or self.max_repeats < 1):
            raise RequestError(
                f"max_repeats must be a positive integer or None, got {self.max_repeats!r}", param="max_repeats"
            )
        for name in self.sampling:
            if name not in RUN_ARGUMENTS or name == "n":
                raise RequestError(f"an agent takes gen's sampling arguments but n, and no {name}", param=name)
        assert self.form  # raises for a format that is none
        assert self.reasoning is None or self.reasoning.end  # the same

    def _check_until_and_answer(self) -> None:
        names = set(self.tools.tools)
        for agent in self.agents.values():
            names |= set(ToolSet(agent.tools, may_be_empty=True).tools)
        if isinstance(self.until, str) and self.until not in names:
            raise RequestError(f"until names no tool: {self.until!r}", param="until")
        if self.schema is not None:
            adapter_of(self.schema)  # raises for a type that is none
        for name in ("check", "retries", "on_invalid"):
            if self.schema is None and getattr(self, name) is not None:
                raise RequestError(f"{name} is of the typed answer: give schema", param=name)
        check_of(self.check, self.retries, self.on_invalid, is_typed=True)

    @functools.cached_property
    def agents(self) -> dict[str, Agent]:
        """The agents that may take part, by name."""
        if self.known is not None or not isinstance(self.given_tools, Agent):
            return self.known or {}
        return self.given_tools.reached()

    @functools.cached_property
    def handovers(self) -> dict[str, Agent]:
        """The agents to which the present one may hand over, by the names of the tools that do."""
        given = self.given_tools.handoffs if isinstance(self.given_tools, Agent) else ()
        agents = [self.agents[one] if isinstance(one, str) else one for one in given]
        return {f"hand_over_to_{one.name}": one for one in agents}

    @functools.cached_property
    def tools(self) -> ToolSet:
        if not isinstance(self.given_tools, Agent):
            return tool_set(self.given_tools)
        made = [self._handover_tool(name, agent) for name, agent in self.handovers.items()]
        return ToolSet([*self.given_tools.tools, *made], may_be_empty=True)

    def _handover_tool(self, name: str, agent: Agent) -> DeclaredTool[..., Any]:
        def hand_over() -> str:
            tools = self.taken_over(agent).tools
            offered = described(tools, self.form) if tools.tools else "Answer in words."
            return "\n".join(filter(None, [f"You are {agent.name} now.", agent.instructions, offered]))

        about = f": {agent.description}" if agent.description else ""
        return tool(hand_over, name=name, description=f"Hand the conversation over to {agent.name}{about}")

    def taken_over(self, agent: Agent) -> AgentOptions:
        """Return the options once another agent has taken over: its tools, of which none has to be called."""
        return replace(self, given_tools=agent, tool_choice="auto", known=self.agents)

    @functools.cached_property
    def form(self) -> CallFormat:
        return call_format(self.given_format)

    @functools.cached_property
    def reasoning(self) -> ReasoningFormat | None:
        return None if self.given_reasoning is None else reasoning_format(self.given_reasoning, "reasoning")

    def read(self, text: str, *, is_forced: bool) -> tuple[str, ReadTurn]:
        """Return the thoughts at the beginning of a turn's text, and the rest as text and calls."""
        form, thought = self.reasoning, ""
        # A mark further on is text, such as an argument.
        if form is not None and not is_forced and (form.begins_inside or text.lstrip().startswith(form.start)):
            thought, text = form.split(text)
        turn = read_calls(text, self.tools, self.form)
        return thought, turn._replace(recognised="constrained") if is_forced else turn

    def hint(self) -> str:
        """Return what to try where the model called no tool."""
        tried = [] if self.form == CALL_FORMATS["json"] else ['call_format="json", if it writes calls as plain JSON']
        if self.tool_choice == "auto":
            tried.append('tool_choice="required", which makes the first turn a call')
        return f"the model called no tool; where it should have, try {', or '.join(tried)}"

    @property
    def has_early_tools(self) -> bool:
        """Return whether calls may begin before their turn ends."""
        return any(one.pure for one in self.tools.tools.values())
