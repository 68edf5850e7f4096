"""Tools of Anthropic's that clients run: their types stand for a name and a schema, which the model is shown."""

from __future__ import annotations

import re
from typing import Any

from ....protocol.errors import RequestError

_TYPE = re.compile(r"(bash|text_editor|memory|computer)_(\d{8})")
_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer"}
_POINT: dict[str, Any] = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_EDITS = ("view", "create", "str_replace", "insert")
_ACTIONS = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click")
_ACTIONS_SINCE_2025 = ("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click")
CLIENT_OPTIONS = frozenset(
    {"display_width_px", "display_height_px", "display_number", "max_characters", "enable_zoom"}
)  # facts for the model, beside the name


def _object(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def client_tool(kind: str, name: str, options: dict[str, Any], where: str) -> tuple[str, dict[str, Any]] | None:
    """Return the description and the schema of a tool of this type; None for a type that no client runs.

    Raises RequestError for a name that is not the type's.
    """
    if (found := _TYPE.fullmatch(kind)) is None:
        return None
    group, version = found[1], found[2]
    is_old_editor = group == "text_editor" and version < "20250429"
    editor = "str_replace_editor" if is_old_editor else "str_replace_based_edit_tool"
    expected = editor if group == "text_editor" else group
    if name != expected:
        raise RequestError(f"{where} of type {kind!r} is named {expected!r}, not {name!r}", param=f"{where}.name")
    if group == "bash":
        return "Run a command in a bash shell, whose state is kept between calls.", _object(
            [], command=_TEXT, restart={"type": "boolean"}
        )
    if group == "computer":
        return _computer(version, options)
    files = {"path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT, "insert_line": _NUMBER}
    files |= {"insert_text": _TEXT, "view_range": _POINT}
    if group == "memory":
        commands = [*_EDITS, "delete", "rename"]
        schema = _object(["command"], command={"enum": commands}, old_path=_TEXT, new_path=_TEXT, **files)
        return "Read and write files that remember things between conversations, in /memories.", schema
    commands = [*_EDITS, *(["undo_edit"] if is_old_editor else [])]
    most = options.get("max_characters")
    limit = "" if most is None else f" At most {most} characters of a file are shown."
    return f"View, create and edit text files.{limit}", _object(
        ["command", "path"], command={"enum": commands}, **files
    )


def _computer(version: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    size = f"{options.get('display_width_px')} x {options.get('display_height_px')}"
    actions = [*_ACTIONS, "screenshot", "cursor_position", *(_ACTIONS_SINCE_2025 if version >= "20250124" else ())]
    fields: dict[str, dict[str, Any]] = {"coordinate": _POINT, "start_coordinate": _POINT, "text": _TEXT}
    fields |= {"scroll_direction": {"enum": ["up", "down", "left", "right"]}, "scroll_amount": _NUMBER}
    fields |= {"duration": {"type": "number"}}
    if options.get("enable_zoom"):
        actions.append("zoom")
        fields["region"] = {"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4}
    return f"Use the mouse and the keyboard of a screen of {size} pixels.", _object(
        ["action"], action={"enum": actions}, **fields
    )
