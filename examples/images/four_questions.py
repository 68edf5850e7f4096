"""Ask four questions about one image in branches that share it: its tokens and features are computed once.

python examples/images/four_questions.py MODEL IMAGE
"""

from __future__ import annotations

import sys
from typing import Any

from ramiform import ProgramState, Runtime, assistant, function, gen, image, user

QUESTIONS = {
    "subject": "What is shown?",
    "place": "Where is it?",
    "number": "How many are there?",
    "mood": "What is the mood?",
}


@function
def ask_all(s: ProgramState, picture: Any) -> None:
    with s.user():
        s += image(picture) + "Look at it closely."
    s += assistant("Done.")
    for branch, (name, question) in zip(s.fork(len(QUESTIONS)), QUESTIONS.items(), strict=True):
        branch += user(question) + assistant(gen("answer", max_tokens=24))
        s[name] = branch


if __name__ == "__main__":
    with Runtime(sys.argv[1], picture_bytes=1 << 28) as runtime:
        state = ask_all.run(sys.argv[2], backend=runtime)
        for name in QUESTIONS:
            branch = state[name]
            meta = branch.get_meta_info("answer")
            print(f"{name}: {branch['answer']} ({meta['cached_tokens']} of {meta['prompt_tokens']} tokens reused)")
