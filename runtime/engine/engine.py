"""A plan in, its results out. State is the KV pool, which plans address by page, that of a draft source, and the tokens
that the last step sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..models.decoder import Decoder
from ..models.parallel.group import SINGLE_RANK, Group
from ..scheduler.plan import ForwardPlan, ForwardResult, Row, Sample
from .cpu_threads import CpuThreads
from .decode_graphs import DecodeGraphs
from .draft_source import DraftSource
from .in_flight_step import InFlightStep, ModelRunner
from .kv_format import kv_dtype_name
from .kv_pool import PAGE_SIZE, KvPool


@dataclass(frozen=True)
class EngineInfo:
    """Facts of the model and its memory."""

    architecture: str
    num_parameters: int
    vocab_size: int
    context_length: int  # tokens of one sequence
    dtype: str  # e.g. "bfloat16"
    kv_dtype: str  # as `--kv-dtype` names it
    kv_scales: str  # where those of eight-bit keys and values come from; "none": nowhere
    device: str  # e.g. "cpu", "cuda:0"
    page_size: int
    num_pages: int
    num_host_pages: int


class Engine:
    def __init__(
        self,
        model: Decoder,
        pool: KvPool,
        *,
        context_length: int | None = None,
        source: DraftSource | None = None,
        graphs: DecodeGraphs | None = None,
        kv_scales: str = "none",
        group: Group = SINGLE_RANK,
        threads: CpuThreads | None = None,
    ) -> None:
        """`group` are the ranks that compute the same plans, each with its part of the model; rank 0 has the source."""
        config = model.config
        self._device = ModelRunner(model, pool, group, source, graphs)
        self._threads = threads
        self.info = EngineInfo(
            architecture=config.architecture,
            num_parameters=model.num_parameters,
            vocab_size=config.vocab_size,
            context_length=context_length or config.context_length,
            dtype=str(model.dtype).removeprefix("torch."),
            kv_dtype=kv_dtype_name(pool.dtype),
            kv_scales=kv_scales,
            device=str(model.device),
            page_size=PAGE_SIZE,
            num_pages=pool.num_pages,
            num_host_pages=pool.num_host_pages,
        )

    @torch.inference_mode()
    def launch(self, plan: ForwardPlan) -> InFlightStep:
        """Queue on the device: copy pages, compute every row's tokens, sample, verify guesses, score. Rows write to
        distinct slots and to no slot that another row of the plan reads.

        On a CUDA device nothing is waited for but pages that go to the host or come from there, and what plain torch
        asks for in the place of kernels. On a CPU all is done on return.
        """
        if self._threads is not None:
            self._threads.choose(plan.num_tokens)
        return InFlightStep(self._device, plan)

    def run(self, plan: ForwardPlan) -> ForwardResult:
        """Launch a plan that is not open, and wait for it; then the draft source is asked for new guesses."""
        return self.launch(plan).wait()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one small plan, so that the first request finds libraries loaded, memory touched and graphs captured."""
        if self._device.graphs is not None:
            self._device.graphs.capture_all()
        self.run(self.warm_up_plan())

    @staticmethod
    def warm_up_plan() -> ForwardPlan:
        """Writes to pages 0 and 1."""
        draw = Sample(temperature=1.0, top_k=8, top_p=0.9, draw=5, num_top_logprobs=1)
        prefill = Row(rid="warm-up", tokens=[0] * PAGE_SIZE, first_position=0, pages=[0], sample=draw)
        decode = Row(rid="warm-up", tokens=[0], first_position=0, pages=[1], sample=draw)
        return ForwardPlan(step=0, copies=[], rows=[prefill, decode])
