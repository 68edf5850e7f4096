"""The engine: runs a forward plan and returns its result.

Its state is the KV pool, which plans address by page, the draft source's memory, and the tokens of the last step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...kernels import stored_size
from ...kernels.widening import WIDENED_FROM
from ..models.config import ModelConfig
from ..models.lora.peft import AdapterWeights
from ..models.pictures.features import PictureFeatures
from ..models.stored.changing_weights import ChangingWeights
from ..models.stored.kv_scales import constants_digest, numbers_of
from ..models.stored.weight_source import Fingerprint
from ..processes.memory import give_back_memory
from ..protocol.config import DEFAULT_MAX_RUNNING
from ..protocol.errors import RequestError
from ..protocol.sampling import MemoryTag
from ..scheduler.plan import DraftSpec, ForwardPlan, ForwardResult, PageCopy, Row, Sample
from .compile_kernels import compile_kernels
from .cpu_threads import CpuThreads
from .in_flight_step import InFlightStep, ModelRunner
from .kv_format import MEASURED, ChosenScales, kv_dtype_name, warn_of_losses
from .kv_pool import PAGE_SIZE, KvShape
from .paths import EngineParts

NO_SCALES = ChosenScales(None, "none")


@dataclass(frozen=True)
class EngineInfo:
    """Facts of the model and its memory."""

    architecture: str
    num_parameters: int
    vocab_size: int
    context_length: int  # tokens of one sequence
    dtype: str  # e.g. "bfloat16"
    kv_dtype: str  # as `--kv-dtype` names it
    kv_scales: str  # origin of the scales of eight-bit keys and values; "none": there are none
    device: str  # e.g. "cpu", "cuda:0"
    page_size: int
    num_pages: int
    num_host_pages: int
    kv_bytes: int  # of all pages on the device
    max_running: int  # requests at once
    num_state_slots: int = 0  # of recurrent states; 0: the model has no recurrent layers
    state_bytes: int = 0  # of all of them
    num_window_pages: int = 0  # of layers with a sliding window; 0: pages hold the keys and values of all layers
    window: int = 0  # tokens that these layers attend to, the longest of their windows
    num_sinks: int = 0  # first tokens that they always attend to
    streaming_window: int = 0  # of attention to sinks and a rolling window; 0: attention is the model's own
    reads_pictures: bool = False
    widened_from: int = 0  # tokens of a prompt from which on layers widen weights of codes for it; 0: never
    route_shape: tuple[int, int] | None = None  # layers, and experts of a token in each; None: they are not recorded


class ForwardEngine:
    """A model on its device with its KV pool, ready to run plans."""

    def __init__(
        self,
        parts: EngineParts,
        *,
        context_length: int | None = None,
        max_running: int = DEFAULT_MAX_RUNNING,
        kv_scales: ChosenScales = NO_SCALES,
        threads: CpuThreads | None = None,
        path: Path | None = None,
        weights: ChangingWeights | None = None,
    ) -> None:
        """`path` is that of the model's files; `weights` loads others in their place."""
        model, pool, config = parts.model, parts.pool, parts.model.config
        self._runner = ModelRunner(model, pool, parts.group, parts.source, parts.graphs)
        self._threads, self._path, self._weights = threads, path, weights
        self.adopts_constants = kv_scales.origin == MEASURED  # those of a file are pinned
        self.info = EngineInfo(
            architecture=config.architecture,
            num_parameters=model.num_parameters,
            vocab_size=config.vocab_size,
            context_length=context_length or config.context_length,
            dtype=str(model.dtype).removeprefix("torch."),
            kv_dtype=kv_dtype_name(pool.dtype),
            kv_scales=kv_scales.origin,
            device=str(model.device),
            page_size=PAGE_SIZE,
            num_pages=pool.num_pages,
            num_host_pages=pool.num_host_pages,
            kv_bytes=pool.nbytes,
            max_running=max_running,
            num_state_slots=0 if model.states is None else model.states.num_slots,
            state_bytes=0 if model.states is None else model.states.nbytes,
            num_window_pages=0 if pool.windows is None else pool.windows.memory.num_pages,
            window=0 if pool.windows is None else int(max(window or 0 for window in config.windows)),
            num_sinks=0 if config.streaming is None else config.streaming.num_sinks,
            streaming_window=0 if config.streaming is None else config.streaming.window,
            reads_pictures=model.pictures is not None,
            widened_from=WIDENED_FROM if model.widens else 0,
            route_shape=None if pool.routes is None else pool.routes.shape,
        )

        whole = model.whole_config
        self.kv_shape = KvShape(
            whole.num_kv_layers,
            whole.num_kv_heads,
            stored_size(whole.head_dim, pool.dtype, is_scaled=pool.is_scaled) * pool.dtype.itemsize,
            kv_scales.digest,
            whole.num_kv_parts,
        )

    def launch(self, plan: ForwardPlan) -> InFlightStep:
        """Queue a step on the device: copy pages, compute every row's tokens, sample, verify drafts, score.

        Rows write to distinct slots, and to no slot that another row of the plan reads. On a CUDA device the call waits
        only for a draft source's page copies to or from the host, and for values that plain torch reads back in place
        of a kernel. On a CPU the step is complete on return.
        """
        if not torch.is_inference_mode_enabled():
            with torch.inference_mode():
                return self.launch(plan)
        if self._threads is not None:
            self._threads.choose(plan.num_tokens)
        if self._runner.pool.windows is not None and plan.step:
            assert all(row.window_pages for row in plan.rows), "layers with a window have pages of their own"
        return InFlightStep(self._runner, plan)

    def run(self, plan: ForwardPlan) -> ForwardResult:
        """Launch a plan that is not open, and wait for its result and the drafts for the next step."""
        return self.launch(plan).wait()

    @torch.inference_mode()
    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages between steps: those that the cache decided on since the last plan."""
        self._runner.pool.copy(copies)
        if self._runner.source is not None and copies:
            self._runner.source.copy(copies)

    @property
    def pictures(self) -> PictureFeatures | None:
        """Module that computes features of pictures; None: the model reads text only."""
        return self._runner.model.pictures

    @property
    def device(self) -> torch.device:
        """Device on which `read_pages` returns pages."""
        return self._runner.model.device

    @property
    def own_part(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Layers and key/value heads of the model, [start, stop) each, that this rank's pages have."""
        model = self._runner.model
        return (model.layers.start, model.layers.stop), (model.kv_heads.start, model.kv_heads.stop)

    @torch.inference_mode()
    def read_part(self, pages: Sequence[int]) -> torch.Tensor:
        """Return what this rank holds of pages, as `KvMemory.read` does."""
        return self._runner.pool.read(pages)

    def read_pages(self, pages: Sequence[int]) -> torch.Tensor:
        """Return whole pages, all of the device or all of the host, as bytes, uint8 [P, *kv_shape.page_shape], on the
        memory that they are in."""
        return self.read_part(pages)

    @torch.inference_mode()
    def write_pages(self, row: Row, first: int, bytes_P: torch.Tensor) -> None:
        """Overwrite the pages of `row` from index `first` on with what `read_pages` of another engine returned.

        The row's tokens are those of these pages.
        """
        layers, heads = self.own_part
        own = bytes_P[:, :, slice(*layers), :, slice(*heads)]
        self._runner.pool.write(row.pages[first : first + len(bytes_P)], own)
        if self._runner.source is not None:
            self._runner.source.skip([row])  # it has not seen the tokens

    def read_constants(self) -> torch.Tensor | None:
        """Return what `numbers_of` returns of this rank's scales or statistics of keys and values; None: there are
        none."""
        constants = self._runner.pool.constants
        return None if constants is None else numbers_of(constants)

    @torch.inference_mode()
    def adopt_constants(self, numbers: torch.Tensor) -> None:
        """Store keys and values by what `read_constants` of another engine returned, for the whole model, from now on.
        No page holds anything."""
        pool, (layers, heads) = self._runner.pool, self.own_part
        assert pool.constants is not None
        pool.adopt(pool.constants.with_numbers(numbers[:, slice(*layers), slice(*heads)].contiguous()))
        self._runner.choose_paths()
        self.identify_constants(numbers)

    def identify_constants(self, numbers: torch.Tensor) -> None:
        """Take note of the whole model's scales or statistics, of which several ranks have measured parts."""
        self.kv_shape = replace(self.kv_shape, scales=constants_digest(numbers))

    @property
    def model_config(self) -> ModelConfig:
        """The whole model's config."""
        return self._runner.model.whole_config

    def load_adapter(self, number: int, weights: AdapterWeights) -> None:
        """Put a LoRA adapter on the device, for rows of plans that name its number.

        Raises torch.OutOfMemoryError, with nothing changed, when the device has no memory for it.
        """
        self._runner.model.lora.add(number, weights)

    def check_adapter(self, number: int, name: str) -> None:
        """Warn if quantised keys and values move much of what the model predicts with a loaded adapter."""
        pool, model = self._runner.pool, self._runner.model
        if pool.constants is not None and self._path is not None:
            warn_of_losses(
                self._path, model, pool.dtype, pool.constants, self._runner.group, adapter=number, adapter_name=name
            )

    def unload_adapter(self, number: int) -> None:
        """Remove an adapter that no later plan names."""
        self._runner.model.lora.remove(number)

    def prepare_weights(self, path: str | None) -> Fingerprint:
        """Load other weights for the same model beside those in use, which stay until `take_weights`; return the
        fingerprint of their files.

        `path` is a safetensors file, or a folder of them, with all of the model's tensors or some. None: those that
        served before `release_memory`, from where they came. Raises RamiformError, with nothing changed, when they
        cannot be served.
        """
        return self._changing_weights.prepare(path, self._runner.model)

    def check_tensors(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise RequestError for tensors, by name, that could not take the place of the model's."""
        self._changing_weights.check_tensors(shapes, self._runner.model)

    def take_weights(self) -> object:
        """Compute with the prepared weights from the next step on. Memory, adapters and scales of keys and values
        stay. Returns what holds the old weights: dropping it frees them, which takes as long as the change."""
        runner = self._runner
        paths = runner.paths
        runner.model, replaced = self._changing_weights.take(runner.model)
        runner.choose_paths()
        return replaced, paths

    def drop_weights(self) -> None:
        """Forget the prepared weights, if there are any."""
        if self._weights is not None:
            self._weights.drop()

    def check_release(self) -> None:
        """Raise RequestError if this engine keeps its memory."""
        self._changing_weights.check_changes(self._runner.model)

    def release_memory(self, tags: Collection[MemoryTag]) -> None:
        """Return the memory of weights, or of keys, values and recurrent states, to the system. No plan is run before
        weights are taken again; pages hold nothing. `check_release` allows it."""
        runner, weights = self._runner, self._changing_weights
        if "weights" in tags and not weights.are_released:
            runner.model, runner.paths = weights.release(runner.model), []
        if "kv_cache" in tags:
            runner.pool.release()
            if runner.model.states is not None:
                runner.model.states.release()
        give_back_memory()

    @property
    def _changing_weights(self) -> ChangingWeights:
        if self._weights is None:
            raise RequestError("this engine keeps the weights that it was made with", param="model_path")
        return self._weights

    def interrupt_when(self, is_interrupted: Callable[[], bool]) -> None:
        """Compute no further decode steps of a plan while `is_interrupted`."""
        self._runner.is_interrupted = is_interrupted

    def rule_out(self, tokens: Sequence[int]) -> None:
        """Draw none of these ids from the next step on, as those without text, unless a mask allows nothing else."""
        runner = self._runner
        runner.textless_N = torch.tensor(tokens, device=runner.model.device) if tokens else None

    def use_loops(self) -> None:
        """Compute and draft with compiled loops from the next step on, now that they are loaded."""
        if self._weights is not None and self._weights.are_released:
            return  # those that come use them
        self._runner.model.use_loops()
        if self._runner.source is not None:
            self._runner.source.use_loops()
        self._runner.choose_paths()

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Compile kernels, capture CUDA graphs and run one small plan, so that the first request pays for none."""
        model, graphs = self._runner.model, self._runner.graphs
        if model.device.type == "cuda":
            compile_kernels(model, self._runner.pool.dtype, is_scaled=self._runner.pool.is_scaled)
        if graphs is not None and not graphs.captured:
            graphs.capture_all()
        self.run(self.warm_up_plan())

    @staticmethod
    def warm_up_plan() -> ForwardPlan:
        """Return the plan that `warm_up` runs, drafting included; it writes to pages 0 and 1."""
        draw = Sample(temperature=1.0, top_k=8, top_p=0.9, draw=5, num_top_logprobs=1)
        prefill = Row(rid="warm-up", tokens=[0] * PAGE_SIZE, first_position=0, pages=[0], sample=draw)
        draft = DraftSpec(steps=2, top_k=1, num_tokens=2, temperature=1.0)
        decode = Row(rid="warm-up", tokens=[0], first_position=0, pages=[1], sample=draw, draft=draft)
        return ForwardPlan(step=0, copies=[], rows=[prefill, decode])
