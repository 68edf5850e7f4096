"""The arrays that a walk through the tables works on: their columns and places."""

from __future__ import annotations

MAX_DEPTH = 256  # of the stack

# What a step or a walk answers.
DONE, NEEDS_STATE, NEEDS_RETURN, NEEDS_GUARD, REFUSED = range(5)
# Places in `context`, int64.
(
    AT,  # the node or byte to go on with
    WANTED,  # the state, or the frame, that is asked for
    RESULT,  # of the value that ended, for a frame that is asked for
    BEGAN,  # where the text of that value began
    AROUND,  # where that of the value around it did
    REACH,  # how many frames below the start the walk has seen
    BASE_DEPTH,  # of the stack at the start
    OFFSET,  # of the text at the start
    ANSWERED,  # how many guards of this step have been answered
    ANSWER,  # to the first of them: the state that follows, 0 for none; then those to the next ones
) = range(10)
CONTEXT_SIZE = ANSWER + 8  # one byte ends few values
# Columns of `work`, whose row d is where a token has come to after d bytes: state, top of the stack, first free cell,
# characters of a counted string. For a walk also which of the trie's nodes are to be looked at there: those from NEXT
# on, before LAST. While that is not known, NEXT is -1 less the node that row d has come to.
STATE, TOP, FREE_CELL, COUNTED, NEXT, LAST = range(6)
NUM_WORK_COLUMNS = 8  # a row is half a line of the cache
# Columns of `cells`, the persistent stack: frame, the cell below, depth, where the text of the value above began.
FRAME, BELOW, LEVEL, BEGIN = range(4)
