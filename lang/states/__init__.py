"""States of programs: appending, reading, branching, and agents on a state."""
