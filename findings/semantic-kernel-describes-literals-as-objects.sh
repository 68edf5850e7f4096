#!/usr/bin/env bash
# semantic-kernel 1.45.0 describes a function's parameter of the type Literal["kitchen", "hall"] to the model as {"type": "object"}; an Enum
# of the same texts is {"type": "string", "enum": [...]}. A server that constrains a call by the tool's schema then gives objects, as asked:
# {"room": {...}}, which the function was not written for. Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q semantic-kernel==1.45.0
venv/bin/python - <<'PY'
from enum import Enum
from typing import Literal

from semantic_kernel.functions import KernelFunctionFromMethod, kernel_function


class Room(Enum):
    KITCHEN = "kitchen"
    HALL = "hall"


class Lights:
    @kernel_function
    def by_literal(self, room: Literal["kitchen", "hall"]) -> str:
        return "Done."

    @kernel_function
    def by_enum(self, room: Room) -> str:
        return "Done."


seen = []
for method in (Lights().by_literal, Lights().by_enum):
    [parameter] = KernelFunctionFromMethod(method, plugin_name="lights").metadata.parameters
    seen.append(parameter.schema_data)
print(seen)
raise SystemExit(seen != [{"type": "object"}, {"type": "string", "enum": ["kitchen", "hall"]}])
PY
