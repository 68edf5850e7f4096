"""Link the repository as `.editable/ramiform` for editable installs.

A `.pth` file names `.editable/`, so that type checkers and editors find the package without running an import hook.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LinkForEditableInstall(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            return
        link = Path(self.root, ".editable", "ramiform")
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to("..", target_is_directory=True)
