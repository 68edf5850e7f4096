"""The core without its sockets: a scheduler and an engine on the model that ships, with any draft source."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramiform.radix.window_pages import WindowSizes
from ramiform.runtime.core.disk_cache import open_disk_cache
from ramiform.runtime.core.grammar_cache import GrammarCache
from ramiform.runtime.core.pipeline import Pipeline
from ramiform.runtime.engine import PAGE_SIZE, ForwardEngine, build_engine
from ramiform.runtime.engine.draft_source import DraftRow, DraftSource, DraftStep
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import (
    Abort,
    CoreReply,
    CoreStats,
    Finish,
    Generate,
    ModelInfo,
    RequestFailed,
    RoutedExperts,
    Tokens,
)
from ramiform.runtime.protocol.errors import ErrorInfo, ErrorKind
from ramiform.runtime.protocol.sampling import TokenLogprob
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.scheduler.jump_forward import Retokeniser
from ramiform.runtime.scheduler.plan import ForwardPlan, PageCopy, Row
from ramiform.runtime.scheduler.rope_switch import RopeSwitch
from ramiform.runtime.scheduler.scheduler import CacheSizes, Scheduler, SchedulerCalls, VocabularyInfo, make_cache
from ramiform.runtime.tokenizer import load_tokenizer
from ramiform.runtime.transfer.pages import CachePages

from .threads import RanksEngine

TOKENIZER = load_tokenizer(SHIPPED_MODEL)


@dataclass
class Got:
    """Everything received for one request."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    finish: Finish | None = None
    error: ErrorInfo | None = None
    routes: RoutedExperts | None = None


class AnyTree:
    """Proposes any tree at all. It may peek at what is going to be said, and then grows some of it around that."""

    caught_up = 0.0
    captures: tuple[int, ...] = ()

    def __init__(self, seed: int, outputs: Sequence[tuple[list[int], list[int]]] = ()) -> None:
        self._random = random.Random(seed)
        self._outputs = outputs  # prompts and what follows them
        self._sequences: dict[int, list[int]] = {}  # by slot, the tokens up to the one there

    def use_loops(self) -> None:
        pass

    def copy(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            for offset in range(copy.num_tokens):
                source, target = copy.source * PAGE_SIZE + offset, copy.target * PAGE_SIZE + offset
                self._sequences[target] = self._sequences[source]

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        assert step.features_TE is None
        return [self._follow(row) for row in step.rows]

    def skip(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._follow(DraftRow(row.tokens, row.first_position, row.pages, None, None))

    def _follow(self, row: DraftRow) -> DraftTree | None:
        slots = [row.pages[p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in range(row.end)]
        before = self._sequences[slots[row.first_position - 1]] if row.first_position else []
        assert len(before) == row.first_position, "what is kept does not follow what was kept before"
        for slot, token in zip(slots[row.first_position :], row.kept, strict=True):
            before = self._sequences[slot] = [*before, token]
        if row.want is None or row.next_token is None or self._random.random() < 0.1:
            return None
        return self._any(row, [*before, row.next_token])

    def _any(self, row: DraftRow, tokens: list[int]) -> DraftTree:
        draw, want = self._random, row.want
        assert want is not None
        whole = next(
            (prompt + output for prompt, output in self._outputs if (prompt + output)[: len(tokens)] == tokens), []
        )
        right = whole[len(tokens) :]
        nodes: list[int] = []
        parents: list[int] = []
        depths = {-1: 0}
        on_way = {-1}
        for _ in range(draw.randint(1, want.num_tokens)):
            parent = draw.choice([node for node, depth in depths.items() if depth < want.steps])
            at = depths[parent]
            peeks = parent in on_way and at < len(right) and draw.random() < 0.8
            token = right[at] if peeks else draw.randrange(len(TOKENIZER.token_bytes))
            if token in {nodes[node] for node, other in enumerate(parents) if other == parent}:
                continue
            nodes.append(token)
            parents.append(parent)
            depths[len(nodes) - 1] = at + 1
            if peeks:
                on_way.add(len(nodes) - 1)
        return DraftTree(nodes, parents, [-0.1 * depths[node] for node in range(len(nodes))])


def make_engine(config: CoreConfig, source: DraftSource | None) -> ForwardEngine:
    def make_source(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        return source

    return build_engine(config, SHIPPED_MODEL, make_source=make_source)


def run(
    requests: Sequence[Generate],
    *,
    source: DraftSource | None = None,
    aborts: dict[int, str] | None = None,
    stagger: int = 1,
    engine: ForwardEngine | RanksEngine | None = None,
    errors: Collection[ErrorKind] = (),
    rope: RopeSwitch | None = None,
    path: Path = SHIPPED_MODEL,
    **settings: Any,
) -> tuple[dict[str, Got], CoreStats, list[ForwardPlan]]:
    """All of them, one more every `stagger` steps (0: all at once), until nothing is left. `aborts` ends requests
    before steps. Only errors of the kinds `errors` are expected. A disk cache needs the model's `path`."""
    config = CoreConfig(**{"device": "cpu", "dtype": "float32", "num_pages": 512} | settings)
    engine = engine or make_engine(config, source)
    facts = VocabularyInfo(
        engine.info.vocab_size,
        (TOKENIZER.token_bytes + [None] * engine.info.vocab_size)[: engine.info.vocab_size],
        frozenset(TOKENIZER.eos_ids),
        forced_end=TOKENIZER.usual_end,
    )
    cache = make_cache(
        config,
        CacheSizes(
            engine.info.num_pages,
            engine.info.num_host_pages,
            num_state_slots=engine.info.num_state_slots,
            windows=WindowSizes(engine.info.num_window_pages, engine.info.window, engine.info.num_sinks)
            if engine.info.num_window_pages
            else None,
        ),
    )
    disk = None
    if config.disk_cache is not None:
        info = ModelInfo(name="model", path=str(path), version="", **asdict(engine.info))
        disk = open_disk_cache(config, info, cache, CachePages(cache, engine))
    grammars = GrammarCache(facts.token_bytes, facts.eos_ids)
    retokenise = Retokeniser(
        facts.token_bytes, lambda text: TOKENIZER.encode(text, parse_special=False, continues=True)
    )
    scheduler = Scheduler(
        config,
        cache=cache,
        vocabulary=facts,
        grammars=grammars,
        context_length=engine.info.context_length,
        calls=SchedulerCalls(retokenise, fetch_prefix=None if disk is None else disk.fetch),
        continuous=config.num_ranks == 1 and config.overlap != "on",
        rope=rope,
        route_shape=engine.info.route_shape,
        widened_from=engine.info.widened_from,
    )
    got = {request.rid: Got() for request in requests}
    plans: list[ForwardPlan] = []
    pipeline = Pipeline(
        engine,
        scheduler,
        ahead=config.overlap == "on",
        on_step=lambda plan, seconds: plans.append(plan),
    )

    def take(answers: Sequence[Any]) -> None:
        for answer in answers:
            mine = got[answer.rid]
            assert mine.finish is None
            assert mine.error is None
            if isinstance(answer, RequestFailed):
                mine.error = answer.error
                continue
            assert isinstance(answer, Tokens), answer
            mine.ids += answer.ids
            mine.logprobs += answer.logprobs or []
            mine.prompt_logprobs += answer.prompt_logprobs or []
            mine.finish = answer.finish
            mine.routes = answer.routes

    to_come = list(requests)
    num_rounds = 0
    while to_come or not scheduler.idle or scheduler.pending_grammars:
        num_coming = len(to_come) if not stagger else 1 if num_rounds % stagger == 0 else 0
        for request in to_come[:num_coming]:
            if request.sampling.constraint is not None:
                grammars.get(request.sampling.constraint).result()
            take(scheduler.handle(request, 0.0))
        del to_come[:num_coming]
        if aborts and (rid := aborts.get(num_rounds)) is not None:
            take(scheduler.handle(Abort(rid), 0.0))
        num_rounds += 1
        if disk is not None:
            assert not [*disk.advance(), *disk.after_step()]
        for answers in pipeline.advance():
            take(answers)
    assert cache.num_free + cache.num_cached == cache.num_pages
    unexpected = [mine.error for mine in got.values() if mine.error is not None and mine.error.kind not in errors]
    assert not unexpected, unexpected
    stats = scheduler.stats()
    if disk is not None:
        disk.close()
        stats = disk.count(CoreReply(0, stats=stats)).stats or stats
    return got, stats, plans
