"""Read a receipt into a typed value. A value that cannot be is asked for again, with the reason.

python examples/images/receipt.py MODEL IMAGE
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

from pydantic import BaseModel, Field

from ramiform import ProgramState, Runtime, assistant, function, gen, image, user


class Receipt(BaseModel):
    total: Annotated[int, Field(ge=0, le=9999)]  # cents
    tax: Annotated[int, Field(ge=0, le=9999)]  # cents, of the total


def check(receipt: Receipt) -> None:
    if receipt.tax > receipt.total:
        raise ValueError(f"the tax of {receipt.tax} is more than the total of {receipt.total}")


@function
def read_receipt(s: ProgramState, picture: Any) -> None:
    s += user(image(picture) + "What are the total and the tax of this receipt, in cents?")
    s += assistant(gen("receipt", schema=Receipt, check=check, retries=8, on_invalid="tell", max_tokens=60))


if __name__ == "__main__":
    with Runtime(sys.argv[1], picture_bytes=1 << 28) as runtime:
        print(read_receipt.run(sys.argv[2], backend=runtime)["receipt"])
