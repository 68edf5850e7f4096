"""Columns and indices of the arrays that a walk through the tables works on."""

from __future__ import annotations

MAX_DEPTH = 256  # of the stack: values inside values. Bytes that open a deeper one are refused
LIMITED_LEVEL = 192  # of the stack: values that begin here must fit into the levels that are left (`automaton.Nested`)

# Status of a step or a walk.
DONE, NEEDS_STATE, NEEDS_RETURN, NEEDS_GUARD, REFUSED, NEEDS_LIMITED = range(6)
# Indices of `context`, int64.
(
    VALUE_END,  # number of bytes of the token that belong to the value that ended
    WANTED,  # the state, frame or push that the caller must compute
    ENDED_RESULT,  # result of the value that ended, if a frame is wanted
    BEGAN,  # offset where the text of that value begins
    AROUND,  # offset where the text of the enclosing value begins
    REACH,  # number of frames below the start that the walk has read
    BASE_DEPTH,  # depth of the stack at the start
    OFFSET,  # length of the output at the start
    ALLOWS_REPEATED,  # 1 to ignore the guards of frames with the flag ONCE
    PASSED_ONCE,  # 1 if a guard has been ignored so
    ANSWERED,  # number of guards of this step that the caller has answered
    FIRST_ANSWER,  # answer to the first of them: the state that follows, 0 for none; then the other answers
) = range(12)
CONTEXT_SIZE = FIRST_ANSWER + 8  # one byte ends at most a few values
# Which tokens a walk considers: all of its trie; those whose first byte has an edge in the first state, whose bits it
# clears too; those without a quote.
EVERY_TOKEN, ONLY_EDGES, NO_QUOTES = range(3)
# Columns of `work`. Row d is the configuration after d bytes of a token: state, top of the stack, first free cell,
# counter of the current value. A walk also visits there the nodes of the trie from NEXT on, before LAST. Until these
# are known, NEXT is ~n for the node n that row d belongs to.
STATE, TOP, FREE_CELL, COUNTED, NEXT, LAST = range(6)
NUM_WORK_COLUMNS = 8  # a row is half a cache line
# Columns of `cells`, the persistent stack: frame, cell below, depth, offset where the text of the value above begins,
# and the counter of the value below.
FRAME, BELOW, LEVEL, BEGIN, SAVED = range(5)
NUM_CELL_COLUMNS = 5
