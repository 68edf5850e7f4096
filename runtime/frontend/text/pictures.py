"""Prepares images of requests for the model, in processes that can be killed (../../tokenizer/picture_process.py).

What was prepared is kept for the next turn of a chat, which sends its images again.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...protocol.config import RuntimeConfig, ServeConfig
from ...protocol.errors import RequestError
from ...protocol.pictures import Picture
from ...protocol.wire import MAX_MESSAGE_BYTES
from ...tokenizer.errors import TokenizerError
from ...tokenizer.image_processors import PreparedPicture, placed_pictures
from ...tokenizer.interface import Tokenizer
from ...tokenizer.picture_process import PictureAnswer, PictureLimits, PictureRequest
from ..core.tenant import scoped_namespace
from .child_pool import ChildPool, LimitExceededError
from .encoding import PromptSegment
from .image_download import ImageDownloads
from .offload import offload

PICTURE_MARK = "\ue013"  # stands for an image in a content; private use
MAX_PROCESSES = 2
MAX_PROMPT_BYTES = MAX_MESSAGE_BYTES - (8 << 20)  # pixels of a prompt: they travel in one message
MAX_KEPT_BYTES = 128 << 20  # pixels of prepared pictures
WALL_SECONDS = 120.0
_MAX_ANSWERS = 1000
_DATA_URL = re.compile(r"data:(?P<type>[^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
logger = logging.getLogger("ramiform.frontend")


@dataclass(frozen=True)
class ImageSource:
    """An image of a request: the bytes of its file, its base64, or its URL. `where` names its place, for errors."""

    data: bytes | str
    where: str

    def error(self, message: str) -> RequestError:
        return RequestError(f"{self.where}: {message}", param=self.where, code="invalid_image")


class Pictures:
    """Prepares images of a model's requests. Its first process starts now: it takes seconds until it answers."""

    def __init__(self, path: str, config: ServeConfig) -> None:
        """`path` is the checkpoint's folder. Raises RequestError for settings that are none."""
        self._limits = PictureLimits(config.max_image_bytes, config.max_image_pixels)
        self._most = image_limit(config.limit_mm_per_prompt)
        self._downloads = ImageDownloads(config.allow_image_hosts, config.max_image_bytes)
        self._pool = ChildPool(
            "ramiform.runtime.tokenizer.picture_process",
            path,
            msgspec.json.encode(self._limits).decode(),
            most=MAX_PROCESSES,
            purpose="decodes images",
            wall_seconds=WALL_SECONDS,
            max_answers=_MAX_ANSWERS,
        )
        self._kept: OrderedDict[bytes, PreparedPicture] = OrderedDict()
        self._num_bytes = 0
        self._pool.start()

    async def prepare(
        self, sources: Sequence[ImageSource], namespace: str = "", *, num_before: int = 0
    ) -> list[PreparedPicture]:
        """Return the pictures of a prompt's images, which belong to `namespace` of the tenant. The prompt has
        `num_before` further ones before them.

        Raises RequestError naming the place of the first image that is too large, broken, or of an address that is not
        allowed, and of the first that is one too many.
        """
        if (num := num_before + len(sources)) > self._most:
            message = f"the prompt has {num} images, the most are {self._most} (--limit-mm-per-prompt)"
            raise sources[max(0, self._most - num_before)].error(message)
        scope = scoped_namespace(namespace).encode("utf-8", "surrogatepass")
        prepared, num_bytes = [], 0
        for source in sources:
            prepared.append(await self._prepared(source, scope))
            num_bytes += len(prepared[-1].picture.pixels)
            if num_bytes > MAX_PROMPT_BYTES:
                raise source.error(f"the prompt's images have more than {MAX_PROMPT_BYTES} bytes once prepared")
        return prepared

    async def _prepared(self, source: ImageSource, scope: bytes) -> PreparedPicture:
        data, is_base64 = await self._data(source)
        if len(data) > (self._limits.max_bytes * 4 // 3 + 4 if is_base64 else self._limits.max_bytes):
            raise source.error(f"it has more than {self._limits.max_bytes} bytes, which are the most")
        key = await offload(lambda _: _digest(data, scope))
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return found
        request = msgspec.msgpack.encode(PictureRequest(data, is_base64, scope))
        try:
            answered = await self._pool.ask(request)
        except LimitExceededError:
            raise source.error("it takes more time or memory than an image may") from None
        answer = await offload(lambda _: msgspec.msgpack.decode(answered, type=PictureAnswer))
        if answer.prepared is None:
            assert answer.error is not None
            raise TokenizerError(answer.error) if answer.is_ours else source.error(answer.error)
        self._keep(key, answer.prepared)
        return answer.prepared

    async def _data(self, source: ImageSource) -> tuple[bytes, bool]:
        """Return an image's file, or its base64 and True."""
        given = source.data
        if isinstance(given, bytes):
            return given, False
        if (found := _DATA_URL.match(given)) is not None:
            return given[found.end() :].encode("utf-8", "surrogatepass"), True
        if given[:5].lower() == "data:":
            raise source.error("a data URL has to be in base64: data:image/png;base64,...")
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", given):
            try:
                return await self._downloads.read(given), False
            except RequestError as error:
                raise source.error(str(error)) from None
        return given.encode("utf-8", "surrogatepass"), True

    def _keep(self, key: bytes, prepared: PreparedPicture) -> None:
        if key in self._kept:
            return
        self._kept[key] = prepared
        self._num_bytes += len(prepared.picture.pixels)
        while self._num_bytes > MAX_KEPT_BYTES and len(self._kept) > 1:
            self._num_bytes -= len(self._kept.popitem(last=False)[1].picture.pixels)


def pictures_of(config: RuntimeConfig) -> Pictures | None:
    """Return what prepares images for the model of a runtime; None: it reads text only."""
    image_limit(config.serve.limit_mm_per_prompt)
    if not config.core.picture_bytes or config.core.model is None:
        return None
    return Pictures(config.core.model, config.serve)


def _digest(data: bytes, scope: bytes) -> bytes:
    digest = hashlib.sha256(b"%d:%b" % (len(scope), scope))
    digest.update(data)
    return digest.digest()


def image_limit(setting: str) -> int:
    """Return the most images of a prompt that `limit_mm_per_prompt` says: image=N, or as JSON. Raises RequestError."""
    text = re.sub(r'[{}"\s]', "", setting).replace(":", "=")
    if (found := re.fullmatch(r"image=(\d{1,4})(,video=0)?(,audio=0)?", text)) is None:
        message = f'limit_mm_per_prompt must be image=N or {{"image": N}}, got {setting!r}: models read images only'
        raise RequestError(message, param="limit_mm_per_prompt")
    return int(found[1])


def with_pictures(segments: Sequence[PromptSegment], prepared: Sequence[PreparedPicture]) -> list[PromptSegment]:
    """Return a rendered prompt with what stands for pictures in place of what the chat template wrote for each, or of
    PICTURE_MARK.

    Raises RequestError when there are more or fewer such places.
    """
    if not prepared:
        return [*segments]
    own = prepared[0].replaces
    place = re.compile(f"{PICTURE_MARK}|{re.escape(own)}")
    rest, changed, num = list(prepared), [], 0
    for text, trusted in segments:
        pieces = place.split(text) if trusted else [text]
        num += len(pieces) - 1
        joined = [pieces[0]]
        for piece in pieces[1:]:
            joined += [rest.pop(0).text if rest else own, piece]
        changed.append(PromptSegment("".join(joined), trusted))
    if num != len(prepared):
        raise RequestError(
            f"the prompt has {num} places {own} for {len(prepared)} images: the chat template leaves some out, or "
            "a text has this token",
            param="messages",
        )
    return changed


def placed(prepared: Sequence[PreparedPicture], tokens: Sequence[int], tokenizer: Tokenizer) -> list[Picture]:
    """Return the pictures of a prompt at their places. Raises RequestError where other texts have their tokens."""
    if not prepared:
        return []
    placeholder = tokenizer.special_ids.get(prepared[0].placeholder)
    if placeholder is None:
        ids = tokenizer.encode(prepared[0].placeholder)
        if len(ids) != 1:
            raise TokenizerError(f"the tokenizer has no token {prepared[0].placeholder!r}")
        [placeholder] = ids
    return placed_pictures(prepared, tokens, placeholder)
