"""Build the HTTP application: its routes and its middleware."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from ...protocol.config import CoreConfig, ServeConfig
from ...protocol.version import __version__
from ..api.chat_body import ChatBody
from ..api.embeddings import EmbeddingBody
from ..api.score import ScoreBody
from ..batches.runner import BatchRunner, Endpoint
from ..batches.store import BatchStore
from ..chat.service import ChatService
from ..core.frontend_peers import FrontendPeers
from ..core.journal import open_journal
from ..core.opentelemetry import OpenTelemetryTracer
from ..core.tenant import Tenant
from ..text.generation import Generator
from ..text.relevance import RelevanceModel
from . import errors, openapi
from .anthropic.batches import MESSAGES_URL, MessageBatchesApi
from .anthropic.body import MessagesBody
from .anthropic.messages import MessagesApi, MessagesErrorAnswer
from .dashboard.access import PageAccess
from .dashboard.constraint import ConstraintApi
from .dashboard.records import RecordsApi
from .dashboard.routes import Page
from .llama_cpp.completions import LlamaCompletionsApi
from .llama_cpp.state import LlamaStateApi
from .middleware.auth import ApiKeys, AuthMiddleware, tenants
from .middleware.metrics import MetricsMiddleware
from .middleware.rate_limit import RateLimitMiddleware
from .middleware.request_limits import RequestLimitsMiddleware
from .native.adapters import AdaptersApi
from .native.admin import AdminApi
from .native.drain import DrainApi
from .native.generate import NativeApi
from .native.memory import MemoryApi
from .native.metrics import MetricsApi
from .native.parsing import ParsingApi
from .native.pause import PauseApi
from .native.programs import ProgramsApi, program_schemas
from .native.sessions import SessionsApi, SessionStore
from .native.weights import WeightsApi
from .ollama.models import OllamaModelsApi
from .ollama.routes import OllamaApi, OllamaErrorAnswer
from .openai.batches import BatchesApi
from .openai.chat import ChatApi
from .openai.completions import CompletionBody, CompletionsApi
from .openai.constrained import ConstrainedApi
from .openai.decisions import DecisionsApi
from .openai.embeddings import EmbeddingsApi
from .openai.files import StoredFilesApi
from .openai.models import ModelsApi
from .openai.responses.body import ResponseBody
from .openai.responses.routes import ResponsesApi
from .openai.score import ScoreApi
from .openai.tokenization import TokenizationApi
from .pages import PagesApi
from .transport.streaming import ClientDisconnectedError


def create_app(
    generator: Generator,
    config: ServeConfig,
    peers: FrontendPeers,
    tracer: OpenTelemetryTracer | None = None,
    *,
    core_config: CoreConfig,
) -> FastAPI:
    measures = generator.core.observer.measures
    keys, admin_keys = _listed(config.api_key), _listed(config.admin_key)
    app = FastAPI(
        title="ramiform",
        version=__version__,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # openapi.py has the route
    )
    app.state.core = generator.core  # body limits depend on the model's context
    app.state.cors_origins = _listed(config.cors_origins)
    errors.install_error_handlers(app)
    answers = openapi.schemas_of(errors.ErrorAnswer, MessagesErrorAnswer, OllamaErrorAnswer)
    openapi.install_openapi(app, has_keys=bool(keys), schemas=program_schemas() | answers)
    app.add_exception_handler(ClientDisconnectedError, _client_disconnected)
    journal = app.state.journal = open_journal(core_config, generator.tokenizer, peers.index)
    chat_service = ChatService(
        generator,
        tool_parser=config.tool_call_parser,
        tool_calls=config.tool_calls,
        reasoning_parser=config.reasoning_parser,
        trusts_templates=config.trust_request_chat_template,
        exact_history=not core_config.deterministic,
        journal=journal,
    )
    sessions = SessionStore(peers, generator.sessions, journal=journal)
    chat, completions, embeddings, score = (
        ChatApi(chat_service),
        CompletionsApi(generator),
        EmbeddingsApi(generator),
        ScoreApi(generator, RelevanceModel(generator, config.reranker)),
    )
    responses, messages = ResponsesApi(chat_service, peers), MessagesApi(chat_service)
    endpoints = {
        "/v1/chat/completions": Endpoint(ChatBody, chat.answers.answer, errors.error_event, chat.answers.prompt),
        "/v1/completions": Endpoint(CompletionBody, completions.answer, errors.error_event, completions.prompt),
        "/v1/responses": Endpoint(ResponseBody, responses.answer, errors.error_event, responses.prompt),
        "/v1/embeddings": Endpoint(EmbeddingBody, embeddings.answers.answer, errors.error_event),
        "/v1/score": Endpoint(ScoreBody, score.answers.answer, errors.error_event),
        MESSAGES_URL: Endpoint(MessagesBody, messages.answer, errors.anthropic_error_event, messages.prompt),
    }
    batch_dir = Path(config.socket_dir) / "batches" if config.batch_dir is None else Path(config.batch_dir)
    askers = tenants(keys, admin_keys, config.cache_scope).values() or [Tenant(is_admin=True)]
    app.state.batches = BatchRunner(BatchStore(batch_dir, keeper=peers.is_first), endpoints, generator.core, askers)
    for api in (
        NativeApi(generator, peers, sessions),
        SessionsApi(sessions),
        ProgramsApi(generator, peers),
        AdminApi(generator, config.client_address),
        AdaptersApi(generator.core),
        PauseApi(generator.core, peers),
        WeightsApi(generator.core),
        MemoryApi(generator.core),
        DrainApi(generator.core, peers, sessions, config.drain_seconds),
        ParsingApi(chat_service),
        TokenizationApi(generator, chat_service.renderer),
        ModelsApi(generator),
        completions,
        chat,
        messages,
        MessageBatchesApi(app.state.batches),
        LlamaCompletionsApi(generator),
        LlamaStateApi(generator),
        OllamaApi(chat_service),
        OllamaModelsApi(chat_service),
        responses,
        DecisionsApi(generator),
        embeddings,
        ConstrainedApi(chat_service),
        score,
        StoredFilesApi(app.state.batches),
        BatchesApi(app.state.batches),
        MetricsApi(generator.core, peers),
        ConstraintApi(generator, core_config),
    ):
        app.include_router(api.router, responses=errors.ERROR_RESPONSES)
    app.include_router(PagesApi(generator, has_keys=bool(keys), has_home=not config.page).router)
    access = PageAccess(ApiKeys(keys, admin_keys), config.page_texts)
    if generator.log is not None:
        app.include_router(RecordsApi(generator.log, peers, access).router, responses=errors.ERROR_RESPONSES)
    app.state.page = None
    if config.page:
        app.state.page = Page(generator, peers, access, core_config, config, app.state.cors_origins)
        for router in app.state.page.routers:
            app.include_router(router, responses=errors.ERROR_RESPONSES)
    if (per_minute := config.share(config.requests_per_minute_per_key)) is not None:
        app.add_middleware(RateLimitMiddleware, per_minute=per_minute)
    app.add_middleware(
        RequestLimitsMiddleware,
        max_requests=config.share(config.max_requests_per_key),
        seconds=config.request_timeout,
    )
    app.add_middleware(
        AuthMiddleware,
        api_keys=keys,
        admin_keys=admin_keys,
        cache_scope=config.cache_scope,
        max_body_bytes=config.max_body_mib << 20,
    )
    if origins := app.state.cors_origins:
        # Outside the authentication: a preflight request carries no key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-schema-warning", "retry-after"],
        )
    # The outermost, so rejected requests are counted too.
    is_recorded = generator.log is not None
    app.add_middleware(MetricsMiddleware, measures=measures, tracer=tracer, is_recorded=is_recorded)
    return app


def _listed(setting: str | None) -> list[str]:
    return [] if setting is None else [part.strip() for part in setting.split(",") if part.strip()]


async def _client_disconnected(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # for the log and metrics; nobody receives it
