"""llama.cpp as a judge: the C functions that the wheel `xllamacpp` exports, by ctypes.

Logits of a sequence, and rows quantised by ggml. Keys and values are kept in float32.
"""

from __future__ import annotations

import ctypes
import random
from pathlib import Path
from typing import Any

import numpy as np

F32 = 0  # ggml_type
N_CTX, N_BATCH, N_UBATCH, N_THREADS, TYPE_K, TYPE_V = 0, 4, 8, 28, 104, 108  # offsets in llama_context_params


class _Params(ctypes.Structure):
    """Room for any version's parameters, which are passed by value."""

    _fields_ = (("bytes", ctypes.c_uint8 * 512),)

    def set(self, offset: int, value: int) -> None:
        self.bytes[offset : offset + 4] = value.to_bytes(4, "little")


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class _TokenData(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class _TokenDataArray(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.POINTER(_TokenData)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class _TypeTraits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantised", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


_FLOAT, _SIZE = ctypes.c_float, ctypes.c_size_t
SAMPLERS: dict[str, tuple[Any, ...]] = {  # of llama.cpp, with the types of their numbers
    "top_k": (ctypes.c_int32,),
    "typical": (_FLOAT, _SIZE),
    "top_p": (_FLOAT, _SIZE),
    "min_p": (_FLOAT, _SIZE),
    "xtc": (_FLOAT, _FLOAT, _SIZE, ctypes.c_uint32),
    "temp_ext": (_FLOAT, _FLOAT, _FLOAT),
}


class LlamaCpp:
    """The library in `path`, the extension module of xllamacpp 2026.10.11549."""

    def __init__(self, path: Path) -> None:
        lib = self._lib = ctypes.CDLL(str(path))
        for name in ("llama_model_default_params", "llama_context_default_params"):
            getattr(lib, name).restype = _Params
        lib.llama_batch_init.restype = _Batch
        lib.llama_decode.argtypes = (ctypes.c_void_p, _Batch)
        for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_logits"):
            getattr(lib, name).restype = ctypes.c_void_p
        lib.llama_model_load_from_file.argtypes = (ctypes.c_char_p, _Params)
        lib.llama_init_from_model.argtypes = (ctypes.c_void_p, _Params)
        for name in ("llama_get_logits", "llama_free", "llama_model_free", "llama_model_get_vocab"):
            getattr(lib, name).argtypes = (ctypes.c_void_p,)
        lib.llama_model_get_vocab.restype = ctypes.c_void_p
        lib.llama_vocab_n_tokens.argtypes = lib.llama_vocab_eos.argtypes = (ctypes.c_void_p,)
        lib.llama_tokenize.argtypes = (
            *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32),
            *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool),
        )
        lib.llama_sampler_init_dry.restype = ctypes.c_void_p
        lib.llama_sampler_init_dry.argtypes = (
            *(ctypes.c_void_p, ctypes.c_float, ctypes.c_float, ctypes.c_int32, ctypes.c_int32),
            *(ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t),
        )
        lib.llama_sampler_init_grammar.restype = ctypes.c_void_p
        lib.llama_sampler_init_grammar.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
        lib.llama_sampler_accept.argtypes = (ctypes.c_void_p, ctypes.c_int32)
        lib.llama_sampler_apply.argtypes = (ctypes.c_void_p, ctypes.POINTER(_TokenDataArray))
        lib.llama_sampler_free.argtypes = (ctypes.c_void_p,)
        lib.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)
        lib.ggml_quantize_chunk.restype = ctypes.c_size_t
        lib.ggml_quantize_chunk.argtypes = (
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
            *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
        )
        lib.llama_backend_init()

    def logits(self, path: Path, tokens: list[int]) -> np.ndarray:
        """Return the logits [T, V] of the model in the file `path` for `tokens` [T]."""
        lib, T = self._lib, len(tokens)
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if model is None:
            raise ValueError(f"llama.cpp does not load {path}")
        params = lib.llama_context_default_params()
        for offset, value in ((N_CTX, 128), (N_BATCH, 128), (N_UBATCH, 128), (N_THREADS, 1), (N_THREADS + 4, 1)):
            params.set(offset, value)
        assert params.bytes[TYPE_K] == params.bytes[TYPE_V] == 1, "offsets of another version"
        params.set(TYPE_K, F32)
        params.set(TYPE_V, F32)
        context = lib.llama_init_from_model(model, params)
        batch = lib.llama_batch_init(T, 0, 1)
        batch.n_tokens = T
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index], batch.n_seq_id[index], batch.logits[index] = token, index, 1, 1
            batch.seq_id[index][0] = 0
        if lib.llama_decode(context, batch):
            raise ValueError(f"llama.cpp does not run {path}")
        V = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        found = ctypes.cast(lib.llama_get_logits(context), ctypes.POINTER(ctypes.c_float * (T * V)))
        rows = np.array(found.contents, dtype=np.float32).reshape(T, V)
        lib.llama_free(context)
        lib.llama_model_free(model)
        return rows

    def tokenize(self, path: Path, texts: list[str], *, special: bool = True) -> list[list[int]]:
        """Return the ids of each text, without tokens that the file adds, by the vocabulary of the file `path`."""
        lib = self._lib
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if model is None:
            raise ValueError(f"llama.cpp does not load {path}")
        vocab = lib.llama_model_get_vocab(model)
        found = []
        for text in texts:
            encoded = text.encode()
            ids = (ctypes.c_int32 * (len(encoded) + 8))()
            count = lib.llama_tokenize(vocab, encoded, len(encoded), ids, len(ids), False, special)
            found.append(list(ids[:count]))
        lib.llama_model_free(model)
        return found

    def dry(self, path: Path, asked: list[dict[str, Any]]) -> list[dict[int, float]]:
        """Return what the DRY sampler subtracts of tokens' logits after `asked[i]["tokens"]`, with its parameters."""
        lib = self._lib
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        vocab = lib.llama_model_get_vocab(model)
        found = []
        for own in asked:
            breakers = [text.encode() for text in own["dry_sequence_breakers"]]
            numbers = [own[name] for name in ("dry_multiplier", "dry_base", "dry_allowed_length")]
            window = own["dry_penalty_last_n"] if own["dry_penalty_last_n"] >= 0 else 4096
            texts = (ctypes.c_char_p * len(breakers))(*breakers)
            sampler = lib.llama_sampler_init_dry(vocab, *numbers, window, texts, len(breakers))
            for token in own["tokens"]:
                lib.llama_sampler_accept(sampler, token)
            logits = self._applied(sampler, lib.llama_vocab_n_tokens(vocab))
            found.append({token: -logit for token, logit in enumerate(logits) if logit})
        lib.llama_model_free(model)
        return found

    def walks(self, path: Path, grammar: str, draw: random.Random, count: int) -> list[list[Any]] | None:
        """Return random walks by a grammar: tokens, and before each of them and at the end the tokens allowed there.

        None for a grammar that is refused.
        """
        lib = self._lib
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        vocab = lib.llama_model_get_vocab(model)
        found: list[list[Any]] = []
        for _ in range(count):
            tokens: list[int] = []
            allowed: list[list[int]] = []
            for _ in range(8):
                sampler = lib.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
                if sampler is None:
                    return None
                for token in tokens:
                    lib.llama_sampler_accept(sampler, token)
                logits = self._applied(sampler, lib.llama_vocab_n_tokens(vocab))
                allowed.append([token for token, logit in enumerate(logits) if logit == 0])
                if not (going_on := [token for token in allowed[-1] if token != lib.llama_vocab_eos(vocab)]):
                    break
                tokens.append(draw.choice(going_on))
            found.append([tokens[: len(allowed) - 1], allowed])
        lib.llama_model_free(model)
        return found

    def drawn_from(self, logits: list[float], chain: list[tuple[str, list[float]]]) -> dict[int, float]:
        """Return the probabilities that a chain of samplers leaves; each is a name in `SAMPLERS` and its numbers."""
        lib = self._lib
        data = (_TokenData * len(logits))(*[(token, logit, 0.0) for token, logit in enumerate(logits)])
        array = _TokenDataArray(data, len(logits), -1, False)
        for name, numbers in chain:
            make = getattr(lib, f"llama_sampler_init_{name}")
            make.restype, make.argtypes = ctypes.c_void_p, SAMPLERS[name]
            sampler = make(*numbers)
            lib.llama_sampler_apply(sampler, ctypes.byref(array))
            lib.llama_sampler_free(sampler)
        kept = [(each.id, each.logit) for each in array.data[: array.size]]
        best = max(logit for _, logit in kept)
        weights = {token: float(np.exp(np.float64(logit) - best)) for token, logit in kept}
        return {token: weight / sum(weights.values()) for token, weight in sorted(weights.items())}

    def _applied(self, sampler: int, vocab_size: int) -> list[float]:
        """Return zeros [V] after the sampler, which is freed."""
        data = (_TokenData * vocab_size)(*[(token, 0.0, 0.0) for token in range(vocab_size)])
        array = _TokenDataArray(data, vocab_size, -1, False)
        self._lib.llama_sampler_apply(sampler, ctypes.byref(array))
        self._lib.llama_sampler_free(sampler)
        return [each.logit for each in sorted(data, key=lambda each: each.id)]

    def quantise(self, rows: np.ndarray, kind: int, row_bytes: int) -> np.ndarray:
        """Return `rows` [..., C] in ggml's type `kind`, whose rows have `row_bytes`. All columns matter alike."""
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        flat = rows.reshape(-1, rows.shape[-1])
        out = np.zeros((len(flat), row_bytes), dtype=np.uint8)
        matters = np.ones(flat.shape[1], dtype=np.float32)
        pointers = (flat.ctypes.data, out.ctypes.data, 0, *flat.shape, matters.ctypes.data)
        assert self._lib.ggml_quantize_chunk(kind, *pointers) == out.size
        return out.reshape(*rows.shape[:-1], row_bytes)

    def dequantise(self, data: np.ndarray, kind: int) -> np.ndarray:
        """Return the float32 numbers of `data`, rows of ggml's type `kind`."""
        traits = self._lib.ggml_get_type_traits(kind).contents
        data = np.ascontiguousarray(data)
        columns = data.shape[-1] // traits.type_size * traits.block_size
        out = np.empty((*data.shape[:-1], columns), dtype=np.float32)
        traits.to_float(data.ctypes.data, out.ctypes.data, out.size)
        return out
