"""Weights that change while the model serves: new ones are loaded beside the old, checked, packed, and then taken.

Until they are taken the old weights compute, so an update that is refused changes nothing. Memory holds both meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from .... import loops
from ...protocol.config import SOURCES_ON_DEVICE, CoreConfig
from ...protocol.errors import RequestError
from ..config import ModelConfig
from ..decoder import Decoder
from ..errors import CheckpointError
from ..gguf.file import is_gguf
from ..read_config import read_config
from .layout import renaming
from .weight_source import Fingerprint, WeightSource, fingerprint_of
from .weights import EMBEDDING, HEAD, weight_files


class ChangingWeights:
    """The weights of one rank's part of a model: where they came from, and those that are to follow."""

    def __init__(
        self, path: Path, config: CoreConfig, model: ModelConfig, load: Callable[[WeightSource], Decoder]
    ) -> None:
        """`path` is the served checkpoint's; `load` loads the rank's part of its model from a source."""
        self._path, self._config, self._model, self._load = path, config, model, load
        self._source: WeightSource | None = None  # None: the served checkpoint, which no update followed
        self._next: tuple[WeightSource, Decoder] | None = None
        self._are_released = False
        self._began: WeightSource | None = None
        if self._refusal() is None:
            self._began = WeightSource.of(path, weight_files(path))
            self._stored = read_config(path, config.model_impl)

    @property
    def are_released(self) -> bool:
        """True from `release` on, until others are taken."""
        return self._are_released

    def release(self, current: Decoder) -> Decoder:
        """Return a model that holds no weights, of one that `check_changes` lets go."""
        self.drop()
        self._are_released = True
        return current.without_weights()

    def prepare(self, path: str | None, current: Decoder) -> Fingerprint:
        """Load the weights in `path`, and return the fingerprint of its files, as they were before. None: load those
        that serve again, from where they came.

        Raises RamiformError when they cannot take the place of the current ones.
        """
        self.drop()
        self.check_changes(current)
        source = self._source or self._began
        assert source is not None
        try:
            if path is None:
                source.check_unchanged()
                updated, fingerprint = source, source.fingerprint
            else:
                given = Path(path).expanduser()
                is_file = given.is_file()
                files = [given] if is_file else weight_files(given)
                fingerprint = fingerprint_of(files)
                updated = source.updated(files, self._tied_names(source), may_stay=not is_file)
                if not updated.replaced:
                    self._check_config(given)
            self._next = updated, self._load(updated)
        except CheckpointError as error:
            raise RequestError(f"the weights that are served stay: {error}", param="model_path") from None
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # torch's words
                raise
            raise RequestError(
                "no memory is left for the new weights beside the old ones", param="model_path"
            ) from None
        return fingerprint

    def check_tensors(self, shapes: Mapping[str, Sequence[int]], current: Decoder) -> None:
        """Raise RequestError, naming the tensor, for one that the model does not have or has in another shape."""
        self.check_changes(current)
        source = self._source or self._began
        assert source is not None
        known = dict(source.shapes)
        if (tied := self._tied_names(source)) is not None and tied[0] in known:
            known.setdefault(tied[1], known[tied[0]])
        for name, shape in shapes.items():
            if name not in known:
                raise RequestError(f"the tensor {name} is none of the served model's", param="names")
            if tuple(shape) != known[name]:
                raise RequestError(
                    f"the tensor {name} has the shape {list(shape)}, and the served model's {list(known[name])}",
                    param="shapes",
                )

    def take(self, current: Decoder) -> tuple[Decoder, object]:
        """Return the prepared model, with the memory and the adapters of the one that it follows, and what holds the
        old weights."""
        assert self._next is not None, "prepare comes first"
        replaced = current, self._source
        (self._source, model), self._next = self._next, None
        self._are_released = False
        model.states, model.lora = current.states, current.lora
        if model.ops.name == "plain-cpu" and loops.ready("ramiform.kernels"):
            model.use_loops()  # they came while the new weights waited
        return model, replaced

    def drop(self) -> None:
        """Forget what was prepared."""
        self._next = None

    def check_changes(self, current: Decoder) -> None:
        """Raise RequestError if this model keeps its weights and its memory."""
        if (refusal := self._refusal(current)) is not None:
            raise RequestError(f"weights cannot be changed: {refusal}", param="model_path", code="not_supported")

    def _refusal(self, current: Decoder | None = None) -> str | None:
        """Return why this model keeps its weights; None: they can be changed."""
        if is_gguf(self._path):
            return "a GGUF file's blocks are no tensors of a trainer; serve the safetensors checkpoint"
        if not self._model.is_native:
            return f"transformers computes {self._model.architecture}"
        if self._config.picture_bytes:
            return "features of images are kept, and those of other weights would differ; leave out picture_bytes"
        if self._model.classifies:
            return "the checkpoint ends in a classification head"
        if self._config.speculative in SOURCES_ON_DEVICE:
            return f"the drafts of speculative {self._config.speculative} are made with them; use ngram, suffix or off"
        if current is not None and current.device.type != "cpu":
            return f"on {current.device} the captured steps would keep the old ones; on a CPU they can"
        return None

    def _tied_names(self, source: WeightSource) -> tuple[str, str] | None:
        """Return the stored names of embedding and head, if one matrix is both."""
        if not self._model.tied_embeddings:
            return None
        rename = renaming(self._model.stored)
        embedding = next((name for name in source.names if rename(name) == EMBEDDING), EMBEDDING)
        return embedding, HEAD

    def _check_config(self, path: Path) -> None:
        """Raise CheckpointError when the config beside a whole model's weights describes another model."""
        if not (path / "config.json").is_file():
            return
        own, other = self._stored, read_config(path, self._config.model_impl)
        if own != other:
            names = [field.name for field in fields(own) if getattr(own, field.name) != getattr(other, field.name)]
            raise CheckpointError(path / "config.json", f"describes another model than the served one: {names[0]}")
