"""Compiled loops over the tables of finite automata: products, live states, and texts that keep a state alive.

A plain text is defined by the caller: the plain single bytes, and the multi-byte characters as rows of (first and last
first byte, first and last second byte, number of further bytes). The loops release the GIL. Import this module inside
the function that needs it, because it imports numba.
"""

# ruff: noqa: SIM110  (loops are spelled out because they are compiled)

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...loops import compiled

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
BOTH, FIRST, EITHER = range(3)  # the factors that must be alive in a live pair
_MAX_ROWS = 4096  # per call; between calls the caller checks its budget
_SPREAD = 0x9E3779B1
_FACTOR, _BITS = 1_000_003, (1 << 40) - 1  # of a node's hash, which stays within 63 bits
MAX_SETS = 8  # distinct sets of kinds that are tried with one more kind
_MAX_PASSES = 32
MAX_KIND_STEPS = 1 << 26  # transitions that are visited for one set of kinds, of all kinds
_MAX_VISITS = 1 << 20  # of states, to find the plain ones
LONG_ENOUGH = 12  # bytes; few tokens are longer
LONGEST = 1 << 15


@compiled("(int64, int64, int32[:,::1], int32[::1], int64)")
def find_slot(state_a: int, state_b: int, pairs: Ints, slots: Ints, mask: int) -> int:
    """Return the hash slot of a pair; if the pair is new, the free slot for it."""
    mixed = (int(state_a) * _SPREAD + int(state_b)) * _SPREAD
    slot = (mixed ^ (mixed >> 17)) & mask
    while slots[slot] != 0 and (pairs[slots[slot], 0] != state_a or pairs[slots[slot], 1] != state_b):
        slot = (slot + 1) & mask
    return slot


@compiled("(int32[:,::1], int32[:,::1], int64, int32[:,::1], int32[:,::1], int32[::1], int64, int64)")
def extend(
    rows_a: Ints, rows_b: Ints, lives: int, pairs: Ints, table: Ints, slots: Ints, at: int, number: int
) -> tuple[int, int]:
    """Compute rows of the product from row `at` on, while the arrays have room for the states that a row may add.

    Returns the next row and the number of states. pairs[n] is the pair of states of state n; `slots` is its hash table,
    with a power of two as its size and 0 for a free slot.
    """
    num_classes = rows_a.shape[1]
    mask = len(slots) - 1
    last = at + _MAX_ROWS
    while at < number and at < last and number + num_classes <= len(pairs):
        state_a, state_b = pairs[at, 0], pairs[at, 1]
        for label in range(num_classes):
            target_a, target_b = rows_a[state_a, label], rows_b[state_b, label]
            if lives == BOTH:
                is_dead = target_a == 0 or target_b == 0
            elif lives == FIRST:
                is_dead = target_a == 0
            else:
                is_dead = target_a == 0 and target_b == 0
            if is_dead:
                continue
            slot = find_slot(target_a, target_b, pairs, slots, mask)
            if slots[slot] == 0:
                slots[slot] = number
                pairs[number, 0] = target_a
                pairs[number, 1] = target_b
                number += 1
            table[at, label] = slots[slot]
        at += 1
    return at, number


@compiled("(int32[:,::1], int64, int32[::1])")
def enter(pairs: Ints, number: int, slots: Ints) -> None:
    """Insert all pairs into an empty hash table."""
    for known in range(1, number):
        slots[find_slot(pairs[known, 0], pairs[known, 1], pairs, slots, len(slots) - 1)] = known


@compiled("(int32[:,::1], boolean[::1], boolean[::1], int64)")
def _safe_lengths(table: Ints, labels: NDArray[np.bool_], within: NDArray[np.bool_], num_passes: int) -> Ints:
    """Return for each state a length up to which every text of these labels stays `within`; 0 if the search is long."""
    found = np.zeros(len(within), np.int32)
    columns = np.flatnonzero(labels)
    for state in range(len(within)):
        if within[state]:
            found[state] = LONGEST
    for _ in range(num_passes):
        changed = False
        for state in range(len(table) - 1, 0, -1):  # later states are farther from the start
            if found[state] > 0:
                least = LONGEST
                for label in columns:
                    target = table[state, label]
                    least = min(least, 1 + found[target] if within[target] else 0)
                    if least == 0:
                        break
                if least < found[state]:
                    found[state] = least
                    changed = True
        if not changed:
            return found
    found[:] = 0
    return found


@compiled("(int32[:,::1], uint8[::1], uint8[::1], int64, boolean[::1])")
def free_kinds(
    table: Ints, class_of: NDArray[np.uint8], kind_of: NDArray[np.uint8], num_kinds: int, within: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Return for each state a set of byte kinds, and a length up to which every text of them stays `within`.

    Bit k of a set stands for kind k. int32[S] each.
    """
    free, lengths = np.zeros(len(table), np.int32), np.zeros(len(table), np.int32)
    labels = np.zeros(table.shape[1], np.bool_)
    num_passes = min(_MAX_PASSES, MAX_KIND_STEPS // (table.size * num_kinds))
    for kind in range(num_kinds):
        before = free.copy()
        bit = np.int32(1) << np.int32(kind)
        done = ~within
        for _ in range(MAX_SETS):
            # Take the states with one set so far, and try to add the kind to it.
            at = 0
            while at < len(table) and done[at]:
                at += 1
            if at == len(table):
                break
            so_far = before[at]
            joined = so_far | bit
            labels[:] = False
            for byte in range(256):
                if joined >> np.int32(kind_of[byte]) & 1:
                    labels[class_of[byte]] = True
            found = _safe_lengths(table, labels, within, num_passes)
            for state in range(at, len(table)):
                if not done[state] and before[state] == so_far:
                    done[state] = True
                    if found[state] >= (min(LONG_ENOUGH, lengths[state]) if so_far else 2):
                        free[state] = joined
                        lengths[state] = found[state]
    return free, lengths


@compiled("(int32[:,::1], int64, int64[::1], int64[::1])")
def spread_bounds(table: Ints, first: int, fewest: NDArray[np.int64], most: NDArray[np.int64]) -> None:
    """Lower and raise the bounds of the states from `first` on to the least and greatest of those that they lead to."""
    changed = True
    while changed:
        changed = False
        for state in range(len(table) - 1, first - 1, -1):
            least, greatest = fewest[state], most[state]
            for label in range(table.shape[1]):
                target = table[state, label]
                least, greatest = min(least, fewest[target]), max(greatest, most[target])
            if least != fewest[state] or greatest != most[state]:
                fewest[state], most[state] = least, greatest
                changed = True


@compiled("(int32[:,::1], boolean[::1])")
def alive(table: Ints, accepting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the states from which an accepting one is reachable: bool[S]."""
    num_states, num_classes = table.shape
    begins = np.zeros(num_states + 2, np.int64)  # offsets of each state's sources, from the second entry on
    for state in range(num_states):
        for label in range(num_classes):
            begins[table[state, label] + 2] += 1
    for state in range(num_states):
        begins[state + 2] += begins[state + 1]
    sources = np.empty(num_states * num_classes, np.int32)
    for state in range(num_states):
        for label in range(num_classes):
            target = table[state, label]
            sources[begins[target + 1]] = state
            begins[target + 1] += 1
    found = accepting.copy()
    todo = np.empty(num_states, np.int32)
    size = 0
    for state in range(num_states):
        if found[state]:
            todo[size] = state
            size += 1
    while size > 0:
        size -= 1
        target = todo[size]
        for number in range(begins[target], begins[target + 1]):
            source = sources[number]
            if not found[source]:
                found[source] = True
                todo[size] = source
                size += 1
    return found


@compiled("(int32[:,::1], boolean[::1])")
def reached(table: Ints, within: Bools) -> Bools:
    """Return the start, and the states to which it leads through states `within`: bool[S]."""
    found = np.zeros(len(table), np.bool_)
    todo = np.empty(len(table), np.int32)
    found[1], todo[0], size = True, 1, 1
    while size > 0:
        size -= 1
        state = todo[size]
        for label in range(table.shape[1]):
            target = table[state, label]
            if within[target] and not found[target]:
                found[target] = True
                todo[size] = target
                size += 1
    return found


@compiled("(int32[:,::1], int32[::1], int32[::1], int32[::1], int32[::1])")
def refine(table: Ints, kinds: Ints, refined: Ints, firsts: Ints, slots: Ints) -> int:
    """Number the states by their kind and the kinds of their targets, in the order of first states; return the count.

    One round of Moore's algorithm. Writes refined[state], and the first state of each new kind to `firsts`. `slots` is
    a hash table with a power of two as its size, more than the number of states.
    """
    slots[:] = -1
    mask = len(slots) - 1
    count = 0
    for state in range(len(table)):
        mixed = int(kinds[state])
        for label in range(table.shape[1]):
            mixed = (mixed * _FACTOR + int(kinds[table[state, label]])) & _BITS
        slot = (mixed ^ (mixed >> 19)) & mask
        while slots[slot] >= 0:
            first = firsts[slots[slot]]
            same = kinds[first] == kinds[state]
            for label in range(table.shape[1]):
                if not same:
                    break
                same = kinds[table[first, label]] == kinds[table[state, label]]
            if same:
                break
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            firsts[count] = state
            count += 1
        refined[state] = slots[slot]
    return count


@compiled()
def _classes_of(class_of: NDArray[np.uint8], data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the distinct classes of bytes."""
    has = np.zeros(256, np.bool_)
    for byte in data:
        has[class_of[byte]] = True
    classes = np.empty(256, np.int64)
    number = 0
    for label in range(256):
        if has[label]:
            classes[number] = label
            number += 1
    return classes[:number]


@compiled()
def _classes_of_range(class_of: NDArray[np.uint8], first: int, last: int) -> NDArray[np.int64]:
    """Return the distinct classes of the bytes from `first` to `last`."""
    data = np.empty(last + 1 - first, np.uint8)
    for at in range(len(data)):
        data[at] = first + at
    return _classes_of(class_of, data)


@compiled()
def _all_lead_to(table: Ints, state: int, labels: NDArray[np.int64], wanted: Bools) -> bool:
    """Return True if every label leads from a state to a wanted one."""
    for label in labels:
        if not wanted[table[state, label]]:
            return False
    return True


@compiled()
def _all_multibyte_lead_to(
    table: Ints, class_of: NDArray[np.uint8], state: int, several: Ints, wanted: Bools, one_more: Bools, two_more: Bools
) -> bool:
    """Return True if every multi-byte character leads from a state to a wanted one."""
    for row in range(len(several)):
        after = wanted if several[row, 4] == 0 else one_more if several[row, 4] == 1 else two_more
        last = -1
        for first in range(several[row, 0], several[row, 1] + 1):
            target = table[state, class_of[first]]
            if target == last:
                continue  # equal to the previous byte
            last = target
            before = -1
            for second in range(several[row, 2], several[row, 3] + 1):
                label = class_of[second]
                if label != before and not after[table[target, label]]:
                    return False
                before = label
    return True


@compiled("(int32[:,::1], uint8[::1], uint8[::1], int32[:,::1])")
def plain_states(table: Ints, class_of: NDArray[np.uint8], single: NDArray[np.uint8], several: Ints) -> Bools:
    """Return the states from which every plain text stays alive: bool[S]; no state if the search is long."""
    num_states = len(table)
    labels, inner = _classes_of(class_of, single), _classes_of_range(class_of, 0x80, 0xBF)
    plain = np.ones(num_states, np.bool_)
    one_more, two_more = np.zeros(num_states, np.bool_), np.zeros(num_states, np.bool_)
    plain[0] = False
    for _ in range(max(2, _MAX_VISITS // num_states)):
        for state in range(1, num_states):
            one_more[state] = _all_lead_to(table, state, inner, plain)
        for state in range(1, num_states):
            two_more[state] = _all_lead_to(table, state, inner, one_more)
        changed = False
        for state in range(num_states - 1, 0, -1):  # later states are farther from the start
            if plain[state] and not (
                _all_lead_to(table, state, labels, plain)
                and _all_multibyte_lead_to(table, class_of, state, several, plain, one_more, two_more)
            ):
                plain[state] = False
                changed = True
        if not changed:
            return plain
    plain[:] = False
    return plain


@compiled("(int32[:,::1], uint8[::1], uint8[::1], int32[:,::1], boolean[::1])")
def looping_states(
    table: Ints, class_of: NDArray[np.uint8], single: NDArray[np.uint8], several: Ints, plain: Bools
) -> Bools:
    """Return the plain states from which every plain character leads back to the same state: bool[S].

    Some may be missing if many states have loops.
    """
    num_states = len(table)
    left = max(2, _MAX_VISITS // num_states)
    labels, inner = _classes_of(class_of, single), _classes_of_range(class_of, 0x80, 0xBF)
    loops = np.zeros(num_states, np.bool_)
    here = np.zeros(num_states, np.bool_)
    one_more, two_more = np.zeros(num_states, np.bool_), np.zeros(num_states, np.bool_)
    for state in range(1, num_states):
        here[state] = True
        if left > 0 and plain[state] and _all_lead_to(table, state, labels, here):
            left -= 1
            for other in range(1, num_states):
                one_more[other] = _all_lead_to(table, other, inner, here)
            for other in range(1, num_states):
                two_more[other] = _all_lead_to(table, other, inner, one_more)
            loops[state] = _all_multibyte_lead_to(table, class_of, state, several, here, one_more, two_more)
        here[state] = False
    return loops


# The smallest automaton of listed texts.
NO_ROOM = -1
EDGES, NODES = range(2)  # indices of `counts`: edges and nodes of the automaton so far


@compiled("(int32[::1], int32[::1], int64, int64, int64, int64[::1], int32[::1], int32[::1], int32[::1], int64)")
def _find_node(
    symbols: Ints,
    targets: Ints,
    first: int,
    last: int,
    label: int,
    begins: NDArray[np.int64],
    edge_symbols: Ints,
    edge_targets: Ints,
    labels: Ints,
    known: int,
) -> bool:
    """Return True if the node `known` has this label and the edges first..last of `symbols` and `targets`."""
    if labels[known] != label or begins[known + 1] - begins[known] != last - first:
        return False
    for edge in range(last - first):
        at = begins[known] + edge
        if edge_symbols[at] != symbols[first + edge] or edge_targets[at] != targets[first + edge]:
            return False
    return True


@compiled(
    "(int32[::1], int64[::1], int32[::1], boolean[::1], int64, int64, int64[::1], int32[::1], int32[::1], int32[::1],"
    " int64[::1], int32[::1])"
)
def listed(
    data: Ints,
    ends: NDArray[np.int64],
    text_labels: Ints,
    repeats: Bools,
    again: int,
    num_tails: int,
    begins: NDArray[np.int64],
    edge_symbols: Ints,
    edge_targets: Ints,
    labels: Ints,
    counts: NDArray[np.int64],
    slots: Ints,
) -> int:
    """Build the smallest acyclic automaton of sorted, different texts (Daciuk et al. 2000); return its root.

    Text n is data[ends[n - 1] : ends[n]] and has the label text_labels[n] >= 0. If repeats[n], any number of the symbol
    `again` may follow it; `num_tails` is one more than the highest label of such a text. Node q has the label labels[q]
    (-1: no text ends there) and the edges begins[q] .. begins[q + 1]. Node 0 is no node, and the nodes 1 .. `num_tails`
    read the symbols `again` after a text of each label. Every node comes after those that its edges lead to. Returns
    NO_ROOM if the arrays are too small.
    """
    longest, start = 0, 0
    for number in range(len(ends)):
        longest = max(longest, ends[number] - start)
        start = ends[number]
    # The path is that of the last text; its open edges are on a stack, those of the deepest node on top.
    firsts, own, tails = (
        np.zeros(longest + 1, np.int32),
        np.zeros(longest + 1, np.int32),
        np.zeros(longest + 1, np.int32),
    )
    own[0], tails[0] = -1, -1
    symbols, targets = np.zeros(len(data) + 2, np.int32), np.zeros(len(data) + 2, np.int32)
    size, depth, previous, num_edges = 0, 0, 0, 0
    mask = len(slots) - 1
    begins[0] = begins[1] = 0
    node = 1
    for label in range(num_tails):
        symbols[0], targets[0] = again, node
        edge_symbols[num_edges], edge_targets[num_edges], labels[node] = again, node, label
        num_edges += 1
        node += 1
        begins[node] = num_edges
        mixed = ((((label + 2) * _FACTOR + again) & _BITS) * _FACTOR + node - 1) & _BITS
        slot = (mixed ^ (mixed >> 19)) & mask
        while slots[slot] != 0:
            slot = (slot + 1) & mask
        slots[slot] = node - 1
    start = 0
    for number in range(len(ends) + 1):
        is_last = number == len(ends)
        length = 0 if is_last else ends[number] - start
        common = -1 if is_last else 0
        if not is_last:
            while common < depth and common < length and data[previous + common] == data[start + common]:
                common += 1
        found = 0
        while depth > common:  # the nodes below the common prefix are complete
            label = own[depth]
            first = firsts[depth]
            if tails[depth] >= 0:
                label = tails[depth] if label < 0 else label
                if first == size or symbols[first] != again:
                    symbols[size], targets[size] = again, 1 + tails[depth]
                    size += 1
            mixed = int(label) + 2
            for edge in range(first, size):
                mixed = (mixed * _FACTOR + int(symbols[edge])) & _BITS
                mixed = (mixed * _FACTOR + int(targets[edge])) & _BITS
            slot = (mixed ^ (mixed >> 19)) & mask
            while slots[slot] != 0 and not _find_node(
                symbols, targets, first, size, label, begins, edge_symbols, edge_targets, labels, slots[slot]
            ):
                slot = (slot + 1) & mask
            if slots[slot] == 0:
                if node + 2 >= len(begins) or num_edges + size - first > len(edge_symbols) or 2 * node > mask:
                    return NO_ROOM
                for edge in range(first, size):
                    edge_symbols[num_edges], edge_targets[num_edges] = symbols[edge], targets[edge]
                    num_edges += 1
                labels[node] = label
                slots[slot] = node
                node += 1
                begins[node] = num_edges
            found = slots[slot]
            size = first
            depth -= 1
            if depth >= 0:
                symbols[size], targets[size] = data[previous + depth], found
                size += 1
        if is_last:
            counts[EDGES], counts[NODES] = num_edges, node
            return found
        while depth < length:
            inherited = tails[depth] if data[start + depth] == again else -1
            depth += 1
            firsts[depth], own[depth], tails[depth] = size, -1, inherited
        own[depth] = text_labels[number]
        if repeats[number]:
            tails[depth] = text_labels[number]
        previous, start = start, ends[number]
    return NO_ROOM
