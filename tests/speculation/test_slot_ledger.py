"""The slot ledger. Judge: a dictionary of slots."""

from __future__ import annotations

import random

from ramiform.runtime.scheduler.plan import PageCopy
from ramiform.runtime.speculation.slot_ledger import SlotLedger


def test_every_slot_has_its_last_token_and_computed_flag() -> None:
    draw, ledger = random.Random(3), SlotLedger(num_pages=12, page_size=4)
    judge = dict.fromkeys(range(48), (0, False))
    for _ in range(300):
        pages = draw.sample(range(12), 3)
        first = draw.randrange(12)
        end = draw.randint(first + 1, 12)
        slots = ledger.slots(pages, first, end)
        assert slots.tolist() == [pages[p // 4] * 4 + p % 4 for p in range(first, end)]
        match draw.randrange(3):
            case 0:
                tokens = [draw.randrange(100) for _ in range(first, end)]
                ledger.write(slots, tokens)
                judge.update({slot: (token, False) for slot, token in zip(slots.tolist(), tokens, strict=True)})
            case 1:
                ledger.note_computed(slots)
                judge.update({slot: (judge[slot][0], True) for slot in slots.tolist()})
            case 2:
                copy = PageCopy(pages[0], pages[1], draw.randint(0, 4))
                ledger.copy([copy])
                for offset in range(copy.num_tokens):
                    judge[copy.target * 4 + offset] = judge[copy.source * 4 + offset]
        computed = [judge[slot][1] for slot in slots.tolist()]
        assert ledger.num_computed(slots) == (computed.index(False) if False in computed else len(computed))
        assert ledger.tokens(slots).tolist() == [judge[slot][0] for slot in slots.tolist()]
