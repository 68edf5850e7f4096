"""Actions of the pushdown automaton, packed in an int32 as operation and argument; and the columns of its state table.

The walk kernel decodes them.
"""

from __future__ import annotations

DEAD = 0  # the byte is refused
GOTO, PUSH, PUSH_BEFORE, POP, POP_BEFORE, COUNT, CHECK, POP_COUNTED, STAY = range(1, 10)
# GOTO s          enter state s
# PUSH p          push the frame of row p of `pushes`, and enter its state
# PUSH_BEFORE p   as PUSH, and read the byte again
# POP r           end the value with result r: pop a frame, and enter the state that it selects
# POP_BEFORE r    as POP, and read the byte again
# COUNT s         as GOTO, and count a character of the string; refused unless s allows the count
# CHECK s         as GOTO; refused unless s allows the count
# STAY            stay in the current state; so many states can share one row
# POP_COUNTED p   as POP; the rows of `pushes` from p on give the result: the first whose last count is not exceeded
# Every value has a counter: of a string's characters, an array's items, an object's members. A push saves the counter
# of the value around and begins another at 0; a pop restores it.
SHIFT = 24
ARGUMENT = (1 << SHIFT) - 1
MAX_ARGUMENT = ARGUMENT


def action(operation: int, argument: int) -> int:
    """Pack an operation and its argument."""
    return operation << SHIFT | argument


# Columns of the state table.
FILLED, HEAD, ROW, CLASSES, RETURNS, NUM_RETURNS, ENDING, FLAGS = range(8)
FEWEST, MOST, COUNT_LIMIT, NEXT_STATE, MARKS, FREE, LENGTH, LIKE = range(8, 16)
# FILLED   1 if the rest of the row is valid
# HEAD     the first of its edges, -1 for none
# ROW      offset in `targets` of its actions by byte class; CLASSES is the row of `classes` that classifies bytes
# RETURNS  of a frame: offset in `returns` of the states by result; -1 if a pop enters the state itself
# NUM_RETURNS  of a frame: number of results that have a place in `returns`
# ENDING   -1: the text may end here; 1 + r: the value may end here with result r; 0: neither
# FEWEST, MOST  of a counted string: the counts with which this state may be entered
# COUNT_LIMIT  of a state with the flag COUNTS: with this count NEXT_STATE is entered instead; 0 for none
# MARKS    row of `Automaton.marks`: the counts at which this state's masks change; 0 if they do not depend on a count
# FREE     bit set of byte kinds (`regex.dfa.KIND`): every text of them of at most LENGTH bytes stays alive
# LIKE     the state that acts as this one on every byte that has no edge here; 0 for none
NUM_COLUMNS = 16  # a row is a cache line
UNBOUNDED = (1 << 31) - 1  # more than any count
# Bits of FLAGS.
GUARDED = 1  # of a frame: the state that follows depends on the text of the value
PLAIN = 2  # every token of plain string content is allowed
LOOPS = 4  # every plain character leads back to the same state
DEAD_END = 8  # no text of the vocabulary's tokens leads from here to an end, so no token may end here
COUNTS = 16  # a value that ends in this state is counted as an item or member of the value around
ONCE = 32  # of a guarded frame: it refuses a repeated value, but what follows does not depend on the text
TEXT = 64  # of a state inside a JSON string: only a quote leads out of it
QUOTE = 0x22
UNKNOWN = -1  # in `returns` and `pushes`: not computed yet
NUM_PUSH_COLUMNS = 4
