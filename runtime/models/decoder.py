"""The forward pass of a decoder, from token ids to hidden states and logits, as its ModelConfig describes it.

Legend: T tokens of the step, O outputs wanted, L layers, E hidden size, V vocabulary, H query heads, K key/value heads,
D head size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ...kernels import Attention, KvCache, Ops, RopeAndStoreArgs, for_device
from ...kernels.reference.fixed_rows import FIXED_ROWS, in_fixed_rows
from ...kernels.widening import widened_products
from ..scheduler.plan import StateAdvance, StateChange, StateCopy
from .config import ModelConfig
from .decoder_inputs import DecoderInputs
from .experts.mixture import SeparateExperts
from .fixed_rows import with_fixed_product, with_fixed_rows
from .latent.attention import Expansion, LatentStep
from .linear import DenseLinear, JoinedLinear, Linear, Loadable, SummedLinear, WrappedLinear
from .lora.adapters import AdapterProducts, LoraLayers
from .norm import Norm
from .packed_linear import PackedLinear, pack_linear
from .parallel.group import SINGLE_RANK, Group
from .parallel.stage import with_layers
from .parameters import DecoderParameters, LayerParameters, num_parameters
from .pictures.features import PictureFeatures
from .recurrent.memory import RecurrentStep, StateMemory
from .rope.angles import Rope
from .stored.layout import reorders_outputs, rotary_order

if TYPE_CHECKING:
    from .compiled_layers import CompiledLayers

# Rows per product in deterministic mode. Fewer rows waste less in small steps, more read the weights less often in
# large ones.
ROWS_PER_PRODUCT = {"cpu": 16, "cuda": 64}


class Decoder:
    """A model on its device, or the part of it that one rank holds.

    `ops` None selects the device's ops, or plain torch ops where only they compute the model: on CUDA devices with
    capped attention.
    """

    _compiled: CompiledLayers | None = None
    pictures: PictureFeatures | None = None  # None: it reads text only

    def __init__(
        self, config: ModelConfig, parameters: DecoderParameters, ops: Ops | None = None, group: Group = SINGLE_RANK
    ) -> None:
        """`config` is the whole model's; `parameters` are the part that the rank of `group` holds."""
        shard = group.shard
        self.config = shard.local(group.stage.local(config))
        self.whole_config = config
        self.layers = group.stage.layers(config)  # those of `whole_config` that are computed here
        self.kv_heads = shard.kv_part(config)  # those of `whole_config` that are computed here
        self.dtype = parameters.norm.weight_E.dtype
        self.device = parameters.norm.weight_E.device
        ropes = [config.rope] if config.second_rope is None else [config.rope, config.second_rope]
        is_endless = config.streaming is not None
        # Loops compute in float32: keys with large biases would move by what cosines in bfloat16 are rounded by.
        dtype = torch.promote_types(self.dtype, torch.float32) if self.device.type == "cpu" else self.dtype
        self.ropes = [
            Rope(rope, config.rope_dim, device=self.device, dtype=dtype, is_endless=is_endless) for rope in ropes
        ]
        self.rope = self.ropes[0]
        self.num_parameters = num_parameters(config)
        self.lora = LoraLayers(config, group, self.layers, device=self.device, dtype=self.dtype)
        if ops is None:
            ops = for_device(self.device, attention_cap=config.attention_cap)
        if ops.attention_cap != config.attention_cap:
            raise ValueError(
                f"the model caps attention scores at {config.attention_cap}, {ops.name} ops at {ops.attention_cap}"
            )
        self.ops = ops
        # A fixed number of slices attend one by one, as on ranks of their own. Triton's kernels compute each key/value
        # head separately anyway.
        one_by_one = shard.ordered and ops.name != "triton"
        self._head_slices = shard.heads_of_slices(config) if one_by_one else None
        self.parameters = parameters
        self.head = _packed_head(parameters) if group.stage.has_ends else parameters.head
        if ops.deterministic:
            num_rows = ROWS_PER_PRODUCT[self.device.type]
            self.parameters = with_fixed_rows(parameters, num_rows)
            self.head = with_fixed_product(self.head, num_rows)
        # Rounded to the weights' type first, as the reference implementations do.
        scale = config.embedding_scale
        self.embedding_scale = None if scale is None else float(torch.tensor(scale, dtype=self.dtype))
        self._scale_residual = config.residual_scale
        self._is_parallel = config.norm_placement.startswith("parallel")
        order_D = rotary_order(config) if reorders_outputs(config) else None
        self._rotary_order = None if order_D is None else order_D.to(self.device)
        # Place of each layer among those of its kind: with keys and values, or recurrent.
        kinds = [layer.part if layer.part == "mlp" else layer.recurrent is not None for layer in parameters.layers]
        self._places = [kinds[:place].count(kind) for place, kind in enumerate(kinds)]
        self.states: StateMemory | None = None  # of recurrent layers, once `allocate_states` was called
        self._compile_layers()

    def first_layers(self, count: int) -> Decoder:
        """Return a decoder of the first `count` layers, with this one's weights, final norm and head.

        Only for a model on one rank.
        """
        assert count <= len(self.layers) == self.whole_config.num_layers
        config = with_layers(self.config, range(count))
        return self.of_layers(config, self.parameters.layers[:count], self.parameters.norm)

    def of_layers(self, config: ModelConfig, layers: tuple[LayerParameters, ...], norm: Norm) -> Decoder:
        """Return a decoder of the attending layers of `config`, with a final norm, and this one's embedding and
        head."""
        decoder = copy.copy(self)
        decoder.layers = range(len(layers))
        decoder.config = decoder.whole_config = config
        decoder.num_parameters = num_parameters(config)
        decoder.parameters = replace(self.parameters, layers=layers, norm=norm)
        decoder._places = list(decoder.layers)
        decoder._compiled = None
        decoder._compile_layers()
        return decoder

    def use_loops(self) -> None:
        """Compute with compiled loops from the next step on; they were not loaded when the model was made.

        Results change within rounding.
        """
        if self.ops.name == "plain-cpu":
            self.ops = for_device(self.device, attention_cap=self.ops.attention_cap)
        for linear in (*self.parameters.linears(), self.head):
            for part in _innermost(linear):
                if isinstance(part, PackedLinear | Expansion):
                    part.use_loops()
        self._compile_layers()

    def allocate_states(self, num_slots: int) -> None:
        """Allocate the memory of recurrent states, in which rows name their slots."""
        assert self.config.recurrent is not None
        self.states = StateMemory(self.config.recurrent, num_slots, device=self.device, dtype=self.dtype)

    def change_states(self, changes: Sequence[StateChange]) -> None:
        """Make the changes of a plan, and forget the draft tokens of the last step."""
        if self.states is None:
            return
        for change in changes:
            match change:
                case StateCopy(source=source, target=target):
                    self.states.copy(source, target)
                case StateAdvance(slot=slot, num_drafts=num_drafts):
                    layers = [layer.recurrent for layer in self.parameters.layers if layer.recurrent is not None]
                    for layer, own, drafts_NJ in zip(layers, self.states.layers, self.states.drafts[slot], strict=True):
                        layer.advance(drafts_NJ[:num_drafts], own, slot, self.ops)
        self.states.drafts.clear()

    def _compile_layers(self) -> None:
        if self.ops.name in ("cpu", "deterministic cpu") and self._head_slices is None:
            from .compiled_layers import CompiledLayers  # here, because it imports numba

            self._compiled = CompiledLayers.of(self.parameters, self.config)
            whole = len(self.layers) == self.whole_config.num_layers and self.parameters.rows is None
            if self._compiled is not None and whole and not self.ops.deterministic:
                self._compiled.add_head(self.parameters.norm, getattr(self.head, "matrix", None))

    def hidden(self, inputs: DecoderInputs, kv: Sequence[KvCache]) -> torch.Tensor:
        """Return the final hidden states [O, E] of the wanted tokens; write the KV of all tokens to `kv`, one per
        layer."""
        return self.hidden_and_features(inputs, kv, ())[0]

    def hidden_and_features(
        self, inputs: DecoderInputs, kv: Sequence[KvCache], captures: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return `hidden`, and the captured states [T, len(captures) * E] of all tokens, or None without captures.

        Capture i < L is the input of layer i before its norm; capture L is the final hidden state.
        """
        captured: dict[int, torch.Tensor] = {}
        x_TE = inputs.with_pictures(self.embed(inputs.ids_T, inputs.positions_T))
        stream = self.through_layers(x_TE, inputs, kv, captures, captured)
        return self.finish(stream, inputs.wanted_O, captures, captured)

    def without_weights(self) -> Decoder:
        """Return a decoder with this one's sizes, states and adapters that holds no weights, and computes nothing."""
        decoder = copy.copy(self)
        for name in ("parameters", "head", "_compiled"):
            decoder.__dict__.pop(name, None)
        return decoder

    @property
    def widens(self) -> bool:
        """True if layers widen weights of codes for the rows of long prompts (`DecoderInputs.widened`)."""
        layers: Iterable[Any] = self.parameters.linears()
        # A layer whose inputs are reordered has a packed matrix too, which the compiled loops do not take.
        matrices = (getattr(layer, "packed", None) or getattr(layer, "matrix", None) for layer in layers)
        return not self.ops.deterministic and any(matrix is not None and matrix.widens for matrix in matrices)

    @property
    def compiled_head(self) -> CompiledLayers | None:
        """The layers and the head, if one compiled call may compute both."""
        return self._compiled if self._compiled is not None and self._compiled.vocab_size else None

    def logits_of_step(self, inputs: DecoderInputs, kv: Sequence[KvCache]) -> torch.Tensor:
        """Return `logits` of `hidden`, computed by one compiled call if possible."""
        compiled = self.compiled_head
        if compiled is None or not compiled.supports(inputs, kv):
            return self.logits(self.hidden(inputs, kv))
        products_OV, _ = compiled.forward(
            inputs.with_pictures(self.embed(inputs.ids_T, inputs.positions_T)),
            inputs,
            kv,
            (),
            inputs.wanted_O,
            self.query_scales(inputs.positions_T),
            with_head=True,
        )
        return self.finish_logits(products_OV)

    def angles(self, positions: torch.Tensor, lengths: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """Return `Rope.angles` of each of the model's ropes."""
        return tuple(rope.angles(positions, lengths) for rope in self.ropes)

    @property
    def streaming_rope(self) -> Rope:
        """The rope of the layers that attend to sinks and a rolling window."""
        assert self.config.streaming is not None
        place = self.config.windows.index(self.config.streaming.window)
        return self.ropes[self.config.uses_second_rope(place)]

    def embed(self, ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input [T, E]."""
        parameters, rows = self.parameters, self.parameters.rows
        x_TE = parameters.embed(ids_T) if rows is None else rows.embed(ids_T, parameters.dense_embedding())
        if self.embedding_scale is not None:
            x_TE = x_TE * self.embedding_scale
        if parameters.positions_PE is not None and self.config.learned_positions is not None:
            x_TE = x_TE + parameters.positions_PE[positions_T + self.config.learned_positions]
        return x_TE

    def through_layers(
        self,
        stream_TE: torch.Tensor,
        inputs: DecoderInputs,
        kv: Sequence[KvCache],
        captures: Sequence[int],
        captured: dict[int, torch.Tensor],
    ) -> torch.Tensor:
        """Compute this stage's layers and return the residual stream.

        The stream is [T, E], but [O, E] of the wanted tokens after the model's last layer, unless the final hidden
        state is captured. `captured` receives the captures among these layers' inputs, by layer index.
        """
        routes, wanted_O = inputs.routes, inputs.wanted_O
        with widened_products(inputs.widened):
            if routes is None:
                return self._through_layers(stream_TE, inputs, kv, captures, captured)
            routes.begin(len(stream_TE))
            # The last layer has to route all tokens.
            stream_TE = self._through_layers(stream_TE, replace(inputs, wanted_O=None), kv, captures, captured)
        routes.store(inputs.slots_T)
        return stream_TE if wanted_O is None or self.whole_config.num_layers in captures else stream_TE[wanted_O]

    def _through_layers(
        self,
        stream_TE: torch.Tensor,
        inputs: DecoderInputs,
        kv: Sequence[KvCache],
        captures: Sequence[int],
        captured: dict[int, torch.Tensor],
    ) -> torch.Tensor:
        config, ops = self.config, self.ops
        num_layers, wanted_O = self.whole_config.num_layers, inputs.wanted_O
        is_last, residual = self.layers.stop == num_layers, stream_TE
        adapters = inputs.adapters
        if self._compiled is not None and self._compiled.supports(inputs, kv):
            stream, copies = self._compiled.forward(
                stream_TE,
                inputs,
                kv,
                [index - self.layers.start for index in captures if index in self.layers],
                wanted_O if is_last and num_layers not in captures else None,
                self.query_scales(inputs.positions_T),
            )
            captured |= {self.layers.start + place: copy for place, copy in copies.items()}
            return stream
        dtype = self.dtype if not kv or kv[0].basis is None else torch.promote_types(self.dtype, torch.float32)
        rope_args = [
            RopeAndStoreArgs(
                cos_T1D.to(dtype),
                sin_T1D.to(dtype),
                inputs.slots_T,
                num_heads=config.num_heads,
                eps=config.norm_eps,
                positions_T=inputs.positions_T,
            )
            for cos_T1D, sin_T1D in inputs.angles
        ]
        window_args = rope_args
        if inputs.window_slots_T is not None:
            window_args = [args._replace(slots_T=inputs.window_slots_T) for args in rope_args]
        query_scales_T = self.query_scales(inputs.positions_T)
        own = None if adapters is None else adapters.of(is_selected=False)
        x = None  # the last part's output, not yet added to the residual stream
        for place, layer in enumerate(self.parameters.layers):
            index, norms = self.layers.start + place, layer.norms
            first_norm = norms.mlp_in if layer.part == "mlp" else norms.attention_in
            if x is None:
                x = residual if first_norm is None else first_norm(residual, ops)
            else:
                x, residual = _add(first_norm, x, residual, ops)
            if index in captures:
                captured[index] = residual
            if inputs.routes is not None:
                ops = inputs.routes.noting(self.ops, place)
            if layer.part == "mlp":
                if index == num_layers - 1 and wanted_O is not None and num_layers not in captures:
                    x, residual = x[wanted_O], residual[wanted_O]
                    own = None if adapters is None else adapters.of(is_selected=True)
                x = _mlp(place, layer, x, ops, own)
                continue
            kind_args = rope_args if config.windows[place] is None else window_args
            args = kind_args[config.uses_second_rope(place)]
            qkv = layer.qkv(x) if own is None else own.linear(place, "qkv", layer.qkv, x, ops)
            mixed, projected = [], qkv
            if not config.is_recurrent(place):
                own_kv, attention = kv[self._places[place]], inputs.attention[config.windows[place]]
                scales_T = query_scales_T if config.uses_second_rope(place) else None
                if layer.recurrent is not None:
                    qkv, projected = self._split(qkv)
                mixed.append(self._attention(qkv, layer, args, own_kv, attention, scales_T))
            if layer.recurrent is not None:
                mixed.append(self._recurrence(projected, layer, inputs.recurrent, self._places[place]))
            normed, x = x, mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=-1)
            if index == num_layers - 1 and wanted_O is not None and num_layers not in captures:
                # Only the wanted tokens' hidden states are read; all keys and values are written.
                if not len(wanted_O):
                    return residual[:0]
                x, residual, normed = x[wanted_O], residual[wanted_O], normed[wanted_O]
                own = None if adapters is None else adapters.of(is_selected=True)
            x = layer.o(x) if own is None else own.linear(place, "o", layer.o, x, ops)
            if norms.attention_out is not None:
                x = norms.attention_out(x, ops)
            if self._scale_residual is not None:
                x = x * self._scale_residual
            if layer.part == "mixer":
                continue
            if self._is_parallel:
                mlp_in = normed if norms.mlp_in is None else norms.mlp_in(residual, ops)
                residual = residual + x
                x = _mlp(place, layer, mlp_in, ops, own)
            else:
                x, residual = _add(norms.mlp_in, x, residual, ops)
                x = _mlp(place, layer, x, ops, own)
            if norms.mlp_out is not None:
                x = norms.mlp_out(x, ops)
            if self._scale_residual is not None:
                x = x * self._scale_residual
            if inputs.pictures is not None:
                residual = inputs.pictures.add_behind(index, residual)
        return residual if x is None else residual + x

    def finish(
        self,
        stream: torch.Tensor,
        wanted_O: torch.Tensor | None,
        captures: Sequence[int],
        captured: dict[int, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Apply the final norm and join the captures; returns as `hidden_and_features`."""
        num_layers = self.whole_config.num_layers
        hidden = self.parameters.norm(stream, self.ops)
        if num_layers in captures:
            captured[num_layers] = hidden
            if wanted_O is not None:
                hidden = hidden[wanted_O]
        if len(captures) == 1:
            return hidden, captured[captures[0]]
        return hidden, torch.cat([captured[index] for index in captures], dim=-1) if captures else None

    def logits(self, hidden_OE: torch.Tensor) -> torch.Tensor:
        """Return the logits [O, V] in float32."""
        if getattr(self.head, "matrix", None) is not None:  # packed, whatever its format
            # Or the product would be rounded to the hidden states' dtype, and widened here.
            hidden_OE = hidden_OE.float()
        return self.finish_logits(self.head(hidden_OE).float())

    def finish_logits(self, logits_OV: torch.Tensor) -> torch.Tensor:
        """Scale and cap the head's products."""
        if self.config.logit_scale is not None:
            logits_OV = logits_OV * self.config.logit_scale
        cap = self.config.logit_cap
        return logits_OV if cap is None else cap * torch.tanh(logits_OV / cap)

    def _split(self, projected_TJ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs of attention and of the recurrence beside it."""
        heads = self.config.num_heads + 2 * self.config.num_kv_heads
        attention, recurrence = projected_TJ.tensor_split([heads * self.config.head_dim], dim=-1)
        return attention.contiguous(), recurrence.contiguous()

    def _recurrence(
        self, projected_TJ: torch.Tensor, layer: LayerParameters, step: RecurrentStep | None, place: int
    ) -> torch.Tensor:
        """Compute a recurrent layer between the projections around it."""
        assert layer.recurrent is not None
        assert step is not None
        if self.states is None:
            return layer.recurrent(projected_TJ, None, step, self.ops)
        self.states.keep_drafts(projected_TJ, step)
        return layer.recurrent(projected_TJ, self.states.layers[place], step, self.ops)

    def query_scales(self, positions_T: torch.Tensor) -> torch.Tensor | None:
        """Return the factors of queries in layers without positions, if there are any."""
        scales = self.config.query_scales
        if scales is None:
            return None

        def scale(lengths: torch.Tensor) -> torch.Tensor:
            return torch.log1p(torch.floor(lengths / scales.length)) * scales.strength + 1

        lengths_T = positions_T.float() + 1
        return (
            in_fixed_rows(scale, lengths_T[:, None], FIXED_ROWS)[:, 0] if self.ops.deterministic else scale(lengths_T)
        )

    def _attention(
        self,
        qkv_TC: torch.Tensor,
        layer: LayerParameters,
        args: RopeAndStoreArgs,
        kv: KvCache,
        attention: Attention,
        scales_T: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute attention between the projections around it: [T, H * D]. `scales_T` multiply the queries."""
        if layer.latent is not None:
            return layer.latent.attend(qkv_TC, args, kv, self._latent_step(attention))
        T, H, K = qkv_TC.shape[0], self.config.num_heads, self.config.num_kv_heads
        gate_TC = None
        if self.config.output_gate:
            qkv_TC, gate_TC = qkv_TC.split(((H + 2 * K) * self.config.head_dim, H * self.config.head_dim), dim=-1)
            qkv_TC = qkv_TC.contiguous()
        qkv = qkv_TC.view(T, H + 2 * K, self.config.head_dim)
        if self._rotary_order is not None:
            qkv = torch.cat((qkv[:, : H + K].index_select(2, self._rotary_order), qkv[:, H + K :]), dim=1)
        qk_norm_HD, scale = layer.qk_norm_HD, self.config.attention_scale
        if self.config.qk_norm == "all heads":
            qkv, qk_norm_HD = self._norm_all_heads(qkv, qk_norm_HD), None
        elif self.config.qk_norm == "layer norm per head" and qk_norm_HD is not None:
            normed = F.layer_norm(qkv[:, : H + K], (self.config.head_dim,), eps=self.config.norm_eps) * qk_norm_HD
            qkv, qk_norm_HD = torch.cat((normed, qkv[:, H + K :]), dim=1), None
        q_THD = self.ops.rope_and_store(qkv, kv, qk_norm_HD, args)
        if layer.rotated_norms_2D is not None:
            # A norm and a rotation may change places, its weights may not: scores take those of queries and keys here.
            q_THD = (q_THD * layer.rotated_norms_2D.float().prod(0)).to(q_THD.dtype)
        if scales_T is not None:
            q_THD = (q_THD * scales_T[:, None, None]).to(q_THD.dtype)
        if self._head_slices is None:
            output_TC = attention.attend(q_THD, kv, scale, layer.sinks_H).view(T, -1)
        else:
            sinks_H = layer.sinks_H
            parts = [
                attention.attend(
                    q_THD[:, own].contiguous(), kv.heads(own_kv), scale, None if sinks_H is None else sinks_H[own]
                )
                for own, own_kv in self._head_slices
            ]
            output_TC = torch.cat(parts, dim=1).view(T, -1)
        if gate_TC is None:
            return output_TC
        # A vector's end is computed by other instructions than its middle.
        gates_TC = in_fixed_rows(torch.sigmoid, gate_TC, FIXED_ROWS) if self.ops.deterministic else gate_TC.sigmoid()
        return output_TC * gates_TC

    def _latent_step(self, attention: Attention) -> LatentStep:
        slices = None if self._head_slices is None else [heads for heads, _ in self._head_slices]
        return LatentStep(attention, self.config.attention_scale, self.ops, slices)

    def _norm_all_heads(self, qkv_TND: torch.Tensor, weight_HD: torch.Tensor | None) -> torch.Tensor:
        """Normalise the queries of all heads together, and so the keys."""
        assert weight_HD is not None
        H, K = self.config.num_heads, self.config.num_kv_heads
        parts_TND = list(qkv_TND.split((H, K, K), dim=1))
        for part, weight in enumerate(weight_HD.split((H, K))):
            x_TC = self.ops.rms_norm(parts_TND[part].flatten(1), weight.flatten(), self.config.norm_eps)
            parts_TND[part] = x_TC.view_as(parts_TND[part])
        return torch.cat(parts_TND, dim=1)


def _packed_head(parameters: DecoderParameters) -> Linear:
    """Return a packed copy of the output projection: its weight itself is often the embedding too."""
    rows, head = parameters.rows, parameters.head
    if not isinstance(head, DenseLinear):
        return head
    if rows is None:
        return pack_linear(head)
    return rows.head([pack_linear(part) for part in rows.parts(head.weight)])


def _innermost(linear: Loadable) -> Iterator[Loadable]:
    """Iterate over the layers inside one that computes with others."""
    match linear:
        case SeparateExperts(linears=experts):
            for expert in experts:
                yield from _innermost(expert)
        case WrappedLinear(linear=inner):
            yield from _innermost(inner)
        case JoinedLinear(parts=parts) | SummedLinear(parts=parts):
            for part in parts:
                yield from _innermost(part)
        case _:
            yield linear


def _mlp(
    place: int, layer: LayerParameters, x_TE: torch.Tensor, ops: Ops, adapters: AdapterProducts | None
) -> torch.Tensor:
    """Compute the MLP of the layer at `place`."""
    return layer.mlp(x_TE, ops) if adapters is None else adapters.mlp(place, layer.mlp, x_TE, ops)


def _add(
    norm: Norm | None, x_TE: torch.Tensor, residual_TE: torch.Tensor, ops: Ops
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `x_TE` to the residual stream; return the next part's input and the stream."""
    if norm is None:
        residual_TE = residual_TE + x_TE
        return residual_TE, residual_TE
    return norm.add(x_TE, residual_TE, ops)
