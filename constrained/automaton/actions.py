"""Actions of the pushdown automaton, packed in an int32 as operation and argument; and the columns of its state table.

The walk kernel decodes them.
"""

from __future__ import annotations

DEAD = 0  # the byte is refused
GOTO, PUSH, PUSH_BEFORE, POP, POP_BEFORE, COUNT, CHECK, POP_COUNTED, STAY = range(1, 10)
# GOTO s          enter state s
# PUSH p          push the frame of pair p of `pushes`, and enter its state
# PUSH_BEFORE p   as PUSH, and read the byte again
# POP r           end the value with result r: pop a frame, and enter the state that it selects
# POP_BEFORE r    as POP, and read the byte again
# COUNT s         as GOTO, and count a character of the string; refused beyond the maximum of s
# CHECK s         as GOTO; refused beyond the maximum of s
# STAY            stay in the current state; so many states can share one row
# POP_COUNTED r   as POP; refused below the minimum of characters of the current state
SHIFT = 24
ARGUMENT = (1 << SHIFT) - 1
MAX_ARGUMENT = ARGUMENT


def action(operation: int, argument: int) -> int:
    """Pack an operation and its argument."""
    return operation << SHIFT | argument


# Columns of the state table.
FILLED, HEAD, ROW, CLASSES, RETURNS, ENDS, FLAGS, LEAST, MOST, FREE, LENGTH, LIKE, NUM_RETURNS = range(13)
# FILLED   1 if the rest of the row is valid
# HEAD     the first of its edges, -1 for none
# ROW      offset in `targets` of its actions by byte class; CLASSES is the row of `classes` that classifies bytes
# RETURNS  of a frame: offset in `returns` of the states by result; -1 if a pop enters the state itself
# ENDS     -1: the text may end here; 1 + r: the value may end here with result r; 0: neither
# LEAST, MOST  of a counted string: minimum number of characters to end here, and maximum to enter this state
# FREE     bit set of byte kinds (`regex.dfa.KIND`): every text of them of at most LENGTH bytes stays alive
# NUM_RETURNS  of a frame: number of results for which `returns` has room; a larger result is unknown yet
# LIKE     the state that acts as this one on every byte that has no edge here; 0 for none
NUM_COLUMNS = 13
UNBOUNDED = (1 << 31) - 1  # characters
# Bits of FLAGS.
GUARDED = 1  # of a frame: the state that follows depends on the text of the value
PLAIN = 2  # every token of plain string content is allowed
LOOPS = 4  # every plain character leads back to the same state
DEAD_END = 8  # no text of the vocabulary's tokens leads from here to an end, so no token may end here
UNKNOWN = -1  # in `returns`: not computed yet
