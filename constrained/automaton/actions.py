"""What a byte does to an automaton with a stack, packed in an int32: an operation and its argument.

A walk through the tables reads these; only here and in the kernel is the packing known.
"""

from __future__ import annotations

DEAD = 0  # the byte cannot come
GOTO, PUSH, PUSH_BEFORE, POP, POP_BEFORE, COUNT, CHECK, POP_COUNTED, STAY = range(1, 10)
# GOTO s          control goes to state s
# PUSH p          the pair p of `pushes`: its frame goes on the stack, control to its state
# PUSH_BEFORE p   the same, and the byte is read again
# POP r           the value is over with result r: control goes to what follows the frame on top
# POP_BEFORE r    the same, and the byte is read again
# COUNT s         GOTO s, and one more character of the string; dead beyond the state's maximum
# CHECK s         GOTO s; dead beyond the state's maximum
# STAY            control stays where it is: one row with this serves many states
# POP_COUNTED r   POP r; dead below the state's minimum of characters
SHIFT = 24
ARGUMENT = (1 << SHIFT) - 1
MAX_ARGUMENT = ARGUMENT


def action(operation: int, argument: int) -> int:
    return operation << SHIFT | argument


# Columns of the table of states.
FILLED, HEAD, ROW, CLASSES, RETURNS, ENDS, FLAGS, LEAST, MOST, FREE, LENGTH, LIKE = range(12)
# FILLED   whether the rest of the row is valid
# HEAD     its first edge, or -1; then ROW, the first of its targets by class of bytes, classes being row CLASSES
# RETURNS  as a frame: -1 when control goes to the state itself, else where its targets by result begin
# ENDS     -1: the text may end here; 0: not; 1 + r: the value may end here with result r
# LEAST, MOST  of a counted string: how many characters it must have had to end here, and may have had to come here
# FREE     kinds of bytes (`byte_kinds`), as the bits of a set: every text of these of at most LENGTH bytes leads on
# LIKE     the state that does as this one with every byte that has no edge here; 0 for none
NUM_COLUMNS = 12
UNBOUNDED = (1 << 31) - 1  # characters
# Bits of FLAGS.
GUARDED = 1  # as a frame: what follows depends on the text of the value, so it must be asked for
PLAIN = 2  # every token of plain string content may come
LOOPS = 4  # every plain character leads back to the very state
DEAD_END = 8  # the tokens of the vocabulary cannot lead on from here: no token may end here
UNKNOWN = -1  # in `returns`: not asked for yet
