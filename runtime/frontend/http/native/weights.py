"""Routes that change the weights of the served model, in SGLang's form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from starlette.responses import JSONResponse, Response

from ....protocol.errors import RequestError
from ....protocol.sampling import RunningRequests
from ...api.bodies import Body, Text, example
from ...core.client import CoreClient, announced
from ..middleware.auth import require_admin
from ..transport.body_route import BodyRoute
from ..transport.streaming import json_response

SHARED_MEMORY = Path("/dev/shm")
DEFAULT_GROUP = "weight_update_group"  # SGLang's
GroupName = Annotated[Text, Field(min_length=1, max_length=200)]


class WeightsBody(Body):
    """Fields that all updates of weights have.

    `mode` says what becomes of running requests: "finish" first, "abort", "retract" (compute them again from their
    tokens), or "keep" (go on with the keys and values that they have). Prefixes of other weights are never reused, so
    `flush_cache` changes nothing.
    """

    load_format: Literal["auto", "safetensors"] | None = None
    mode: RunningRequests | None = None
    abort_all_requests: bool = False
    weight_version: Annotated[Text, Field(min_length=1, max_length=200)] | None = None
    flush_cache: bool = True
    is_async: Literal[False] = False
    keep_pause: Literal[True] = True
    torch_empty_cache: bool = False

    @property
    def running(self) -> RunningRequests:
        """Return the mode, or that which SGLang's older field asks for."""
        return self.mode or ("abort" if self.abort_all_requests else "finish")


class UpdateWeightsBody(WeightsBody):
    """SGLang's body. `model_path` is a folder of safetensors files, or one file, of the server's machine."""

    model_config = example({"model_path": "/checkpoints/step-100", "weight_version": "100"})
    model_path: Annotated[Text, Field(min_length=1, max_length=4096)]


class UpdateTensorsBody(WeightsBody):
    """Tensors in shared memory of the server's machine.

    `shared_memory` names a file of /dev/shm, or an object of `shm_open`, that holds a safetensors file. It may be
    removed after the answer. SGLang's `serialized_named_tensors` are pickled, which is refused.
    """

    model_config = example({"shared_memory": "step-100.safetensors"})
    shared_memory: Annotated[Text, Field(pattern=r"^[^/\x00]{1,255}$")] | None = None
    serialized_named_tensors: SkipJsonSchema[Any] = None

    @property
    def path(self) -> str:
        """Return the path of the file. Raises RequestError if there is none, or SGLang's field."""
        if self.serialized_named_tensors is not None:
            raise RequestError(
                "serialized_named_tensors are pickled, and nothing is unpickled here: write a safetensors file to "
                "/dev/shm and give its name as shared_memory",
                param="serialized_named_tensors",
            )
        if self.shared_memory is None or self.shared_memory in (".", ".."):
            raise RequestError("shared_memory is the name of a file in /dev/shm", param="shared_memory")
        path = SHARED_MEMORY / self.shared_memory
        if not path.is_file():
            raise RequestError(f"{path} is no file of this machine's shared memory", param="shared_memory")
        return str(path)


class InitGroupBody(Body):
    """SGLang's body. The trainer is rank 0 of `world_size` and listens at `master_address`; the runtime's ranks are
    those from `rank_offset` on."""

    model_config = example({"master_address": "127.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 2})
    master_address: Annotated[Text, Field(min_length=1, max_length=253)]
    master_port: Annotated[int, Field(ge=1, le=65535)]
    rank_offset: Annotated[int, Field(ge=1, lt=1 << 16)]
    world_size: Annotated[int, Field(ge=2, le=1 << 16)]
    group_name: GroupName = DEFAULT_GROUP
    backend: Literal["gloo"] = "gloo"


class DestroyGroupBody(Body):
    """SGLang's body."""

    model_config = example({"group_name": DEFAULT_GROUP})
    group_name: GroupName = DEFAULT_GROUP


class UpdateFromGroupBody(WeightsBody):
    """SGLang's body: the tensors that the trainer broadcasts over the group, in this order."""

    model_config = example({"names": ["model.norm.weight"], "dtypes": ["bfloat16"], "shapes": [[896]]})
    names: Annotated[
        list[Annotated[Text, Field(min_length=1, max_length=1000)]], Field(min_length=1, max_length=1 << 20)
    ]
    dtypes: Annotated[list[Annotated[Text, Field(max_length=100)]], Field(max_length=1 << 20)]
    shapes: Annotated[
        list[Annotated[list[Annotated[int, Field(ge=0, lt=1 << 40)]], Field(max_length=8)]], Field(max_length=1 << 20)
    ]
    group_name: GroupName = DEFAULT_GROUP

    @property
    def tensors(self) -> list[tuple[str, str, list[int]]]:
        """Return name, dtype and shape of each tensor. Raises RequestError if their numbers differ."""
        return announced(self.names, self.dtypes, self.shapes)


class WeightsApi:
    """Changes the weights of all frontends' model."""

    def __init__(self, core: CoreClient) -> None:
        self._core = core

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["native"], route_class=BodyRoute)
        routes: tuple[tuple[str, Any, str], ...] = (
            ("/update_weights_from_disk", self.update, "POST"),
            ("/update_weights_from_tensor", self.update_from_tensor, "POST"),
            ("/init_weights_update_group", self.init_group, "POST"),
            ("/update_weights_from_distributed", self.update_from_group, "POST"),
            ("/destroy_weights_update_group", self.destroy_group, "POST"),
            ("/get_weight_version", self.version, "GET"),
            ("/weight_version", self.version, "GET"),
        )
        for path, endpoint, method in routes:
            router.add_api_route(path, endpoint, methods=[method], response_model=None, response_class=JSONResponse)
        return router

    async def update(self, body: UpdateWeightsBody, request: Request) -> Response:
        """Serve other weights of the same model, all or some. A refused update leaves the old ones serving. Needs an
        admin key."""
        require_admin(request, "changing the weights")
        return await self._update(body.model_path, body)

    async def update_from_tensor(self, body: UpdateTensorsBody, request: Request) -> Response:
        """Serve tensors that lie in shared memory, all of the model's or some. A refused update leaves the old ones
        serving. Needs an admin key."""
        require_admin(request, "changing the weights")
        return await self._update(body.path, body)

    async def init_group(self, body: InitGroupBody, request: Request) -> Response:
        """Join a trainer's group, for `/update_weights_from_distributed`. Needs an admin key."""
        require_admin(request, "joining a trainer's group")
        self._core.require_info()
        await self._core.init_weights_group(
            body.group_name, body.master_address, body.master_port, body.rank_offset, body.world_size
        )
        return json_response({"success": True, "message": f"joined the group {body.group_name}"})

    async def update_from_group(self, body: UpdateFromGroupBody, request: Request) -> Response:
        """Serve tensors that a trainer broadcasts, all of the model's or some. A refused update leaves the old ones
        serving, and ends the group. Needs an admin key."""
        require_admin(request, "changing the weights")
        self._core.require_info()
        tensors = body.tensors
        version = await self._core.receive_weights(body.group_name, tensors, body.running, body.weight_version)
        message = f"serving {len(tensors)} tensors of the group {body.group_name}"
        return json_response({"success": True, "message": message, "weight_version": version, "num_paused_requests": 0})

    async def destroy_group(self, body: DestroyGroupBody, request: Request) -> Response:
        """Leave a trainer's group. Needs an admin key."""
        require_admin(request, "leaving a trainer's group")
        self._core.require_info()
        await self._core.leave_weights_group(body.group_name)
        return json_response({"success": True, "message": f"left the group {body.group_name}"})

    async def _update(self, path: str, body: WeightsBody) -> Response:
        self._core.require_info()
        version = await self._core.update_weights(path, body.running, body.weight_version)
        message = f"serving the weights of {path}"
        return json_response({"success": True, "message": message, "weight_version": version, "num_paused_requests": 0})

    async def version(self) -> Response:
        """Return the version of the weights that serve, as the last update named it; "default" before the first."""
        return json_response({"weight_version": self._core.require_info().weight_version})
