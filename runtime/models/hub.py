"""Models of the Hugging Face Hub: downloads what a checkpoint needs into the hub's cache, or finds it there.

The library `huggingface_hub` reads HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, resumes interrupted
downloads and shows progress on a terminal.
"""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ..protocol.errors import RequestError
from .gguf.file import GGUF_SUFFIX, gguf_parts

_WEIGHTS = ".safetensors"
HUB_SECONDS = 10.0  # for the hub to list a repository
_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<revision>[^:@\s]+))?(:(?P<quantisation>[\w.-]+))?")
_FILES = (  # of a checkpoint; code, pickled weights and other formats are not fetched
    f"*{_WEIGHTS}",
    "*.json",
    "*.jinja",
    "*.model",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
)
_FOLDERS = ("", "1_Pooling", "draft", "additional_chat_templates")  # of a repository, that the runtime reads
_QUANTISATION = re.compile(r"(?i)(?:^|[-._])((?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32))(?=[-._]|$)")


@dataclass(frozen=True)
class HubModel:
    """Model of the hub: its repository; a branch, tag or commit (None: the main branch); a GGUF file's quantisation."""

    repository: str
    revision: str | None = None
    quantisation: str | None = None


@dataclass(frozen=True)
class HubOrigin:
    """Repository and commit of a path in the hub's cache."""

    repository: str
    commit: str


def parse_hub_id(text: str) -> HubModel | None:
    """Parse ORG/NAME[@REVISION][:QUANTISATION]; None if the text cannot be an id of the hub."""
    match = _ID.fullmatch(text)
    if match is None or text.startswith(".") or ".." in text:
        return None
    return HubModel(match["repo"], match["revision"], match["quantisation"])


def hub_origin(path: Path) -> HubOrigin | None:
    """Return where a path of the hub's cache comes from, None for any other path."""
    parts = path.parts
    for index, part in enumerate(parts):
        if part.startswith("models--") and parts[index + 1 : index + 2] == ("snapshots",) and len(parts) > index + 2:
            return HubOrigin(part.removeprefix("models--").replace("--", "/"), parts[index + 2])
    return None


def local_model(model: str | None, *, param: str = "model", weights: bool = True) -> str | None:
    """Return the local path of a model, which is downloaded if it is an id of the hub and no path.

    Without `weights`, safetensors are not fetched. Raises RequestError, naming `param`, when the hub does not give it.
    """
    if model is None or Path(model).expanduser().exists() or (wanted := parse_hub_id(model)) is None:
        return model
    return str(_fetch(model, wanted, param, weights))


def _fetch(text: str, wanted: HubModel, param: str, weights: bool) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub import errors as hub
    from huggingface_hub.utils import tqdm

    class Progress(tqdm):  # type: ignore[misc, type-arg]
        """A progress bar on a terminal, nothing elsewhere."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": options.get("disable") or not sys.stderr.isatty()})

    def refused(reason: str) -> RequestError:
        return RequestError(f"no model at {text!r}: {reason}", param=param)

    where = constants.ENDPOINT
    try:
        try:
            siblings = HfApi().model_info(wanted.repository, revision=wanted.revision, timeout=HUB_SECONDS).siblings
            files = _choose([each.rfilename for each in siblings or ()], wanted, refused)
            folder = snapshot_download(
                wanted.repository,
                revision=wanted.revision,
                allow_patterns=[glob.escape(name) for name in files if weights or not name.endswith(_WEIGHTS)],
                tqdm_class=Progress,
            )
        except (hub.OfflineModeIsEnabled, hub.HTTPError) as error:
            if isinstance(error, hub.HfHubHTTPError):  # the hub has answered
                raise
            if (folder := _find_in_cache(wanted)) is None:
                state = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{where} cannot be reached"
                raise refused(f"no such path; {state}, and {constants.HF_HUB_CACHE} does not hold it") from None
            names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
            files = _choose(names if weights else [*names, _WEIGHTS], wanted, refused)
    except hub.GatedRepoError:
        raise refused(f"{where}/{wanted.repository} is gated: accept its terms there, and set HF_TOKEN") from None
    except hub.RepositoryNotFoundError:
        raise refused(f"no such path, and no such repository at {where}; a private one needs HF_TOKEN") from None
    except hub.RevisionNotFoundError:
        raise refused(f"{wanted.repository} has no revision {wanted.revision!r}") from None
    except hub.HFValidationError as error:
        raise refused(f"no such path, and no id of the hub: {error}") from None
    except hub.HfHubHTTPError as error:
        raise refused(f"{where} refused: {error}") from None
    return Path(folder, files[0]) if files[0].endswith(GGUF_SUFFIX) else Path(folder)


def _find_in_cache(wanted: HubModel) -> Path | None:
    """Return the folder of the revision in the hub's cache; None if it has not been fetched."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cached = scan_cache_dir().repos
    except CacheNotFound:
        return None
    for repository in cached:
        if repository.repo_type == "model" and repository.repo_id == wanted.repository:
            for revision in repository.revisions:
                if (wanted.revision or "main") in {*revision.refs, revision.commit_hash}:
                    return revision.snapshot_path
    return None


def _choose(names: list[str], wanted: HubModel, refused: Callable[[str], RequestError]) -> list[str]:
    """Return the files to fetch: those of a checkpoint, or the parts of one GGUF file, the first one first."""
    by_quantisation: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(GGUF_SUFFIX) and (found := _QUANTISATION.findall(Path(name).stem)):
            by_quantisation.setdefault(found[-1].upper(), []).append(name)
    there = ", ".join(sorted(by_quantisation)) or "none"
    if wanted.quantisation is not None:
        matching = sorted(by_quantisation.get(wanted.quantisation.upper(), []))
        models = {str(gguf_parts(Path(name))[0]): [str(part) for part in gguf_parts(Path(name))] for name in matching}
        if len(models) > 1:
            raise refused(f"several GGUF files are {wanted.quantisation}: {', '.join(matching)}")
        for parts in models.values():
            if missing := [part for part in parts if part not in matching]:
                raise refused(f"the repository lacks {', '.join(missing)}")
            return parts
        raise refused(f"the repository has no GGUF file of {wanted.quantisation!r}; there are {there}")
    if not any(name.endswith(_WEIGHTS) for name in names):
        if by_quantisation:
            raise refused(f"the repository has GGUF files: name one, as {wanted.repository}:NAME of {there}")
        raise refused("the repository has no safetensors and no GGUF files")
    return [
        name
        for name in names
        if name.rpartition("/")[0] in _FOLDERS and any(fnmatch(Path(name).name, pattern) for pattern in _FILES)
    ]
