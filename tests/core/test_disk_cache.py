"""Settings and folders of a disk cache that do not go together, or are not safe, are refused by name."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramiform.runtime.core.disk_cache import uses_disk
from ramiform.runtime.core.load import LoadedCore, load_core
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError


@pytest.mark.parametrize(
    ("param", "settings"),
    [
        ("disk_memory", {"disk_cache": None, "disk_memory": 1.0}),
        ("prefix_cache", {"prefix_cache": False}),
        ("log_plans", {"log_plans": "plans"}),
        ("nnodes", {"nnodes": 2}),
        ("streaming_window", {"streaming_window": 64}),
    ],
)
def test_settings_that_do_not_go_together_are_refused(param: str, settings: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        uses_disk(CoreConfig(**{"disk_cache": "folder"} | settings))
    assert refused.value.param == param
    assert not uses_disk(CoreConfig())


def load(folder: Path, **settings: Any) -> LoadedCore:
    return load_core(CoreConfig(num_pages=64, disk_cache=str(folder), **settings))


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    load(folder)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes.pop("secret") == 0o600
    assert set(modes.values()) == {0o700}
    assert len((folder / "secret").read_bytes()) == 32


def open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def readable_secret(folder: Path) -> None:
    (folder / "secret").write_bytes(bytes(32))
    (folder / "secret").chmod(0o644)


def short_secret(folder: Path) -> None:
    (folder / "secret").touch(0o600)


def linked_secret(folder: Path) -> None:
    (folder / "secret").symlink_to("/dev/zero")


def no_folder(folder: Path) -> None:
    folder.rmdir()
    folder.touch()


@pytest.mark.parametrize("spoil", [open_to_all, readable_secret, short_secret, linked_secret, no_folder])
def test_a_folder_that_is_not_safe_is_refused_by_name(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    spoil(folder)
    with pytest.raises(RequestError, match=str(folder)) as refused:
        load(folder)
    assert refused.value.param == "disk_cache"


def test_too_little_room_is_refused_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"needs .* or more") as refused:
        load(tmp_path / "cache", disk_memory=1e-6)
    assert refused.value.param == "disk_memory"
