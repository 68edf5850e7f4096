"""How many statements the originals of the ported programs have, where a repository shows one of the kind.

Counted by hand, as a body of a function is: one for each statement, however it is broken into lines. Imports, types,
signatures, tools, called programs, settings of the model and of services, and printing do not count, on either side;
what reads the result does. Of LangGraph the nodes do not count, only the graph and its call.
"""

from __future__ import annotations

# Statements, and the place in the framework's repository.
ORIGINALS: dict[tuple[str, str], tuple[int, str]] = {
    ("guidance", "text up to a stop"): (2, "notebooks/api_examples/library/gen.ipynb"),
    ("guidance", "one of several texts"): (2, "README.md, select"),
    ("guidance", "a pattern"): (2, "README.md, regex"),
    ("guidance", "a chat with roles"): (7, "README.md, lm_response"),
    ("guidance", "a list of any length"): (7, "README.md, _gen_body"),
    ("guidance", "a capture around captures"): (5, "README.md, make_html"),
    ("guidance", "a grammar that contains itself"): (2, "README.md of 2024, expression"),
    ("guidance", "a quote of a text"): (2, "notebooks/art_of_prompt_design/rag.ipynb, substring"),
    ("guidance", "a function that returns text"): (7, "README.md, _gen_text_in_tag"),
    ("guidance", "a tool in the text"): (2, "notebooks/art_of_prompt_design/react.ipynb"),
    ("outlines", "a number"): (1, "README.md, temperature"),
    ("outlines", "a literal"): (1, "README.md, sentiment"),
    ("outlines", "a dataclass"): (2, "README.md, ProductReview"),
    ("outlines", "a list of them"): (2, "README.md, ProductReview"),
    ("outlines", "one of two classes"): (2, "README.md, EventResponse"),
    ("outlines", "a JSON schema"): (2, "/docs/features/core/output_types.md"),
    ("outlines", "a context-free grammar"): (2, "/docs/features/models/llamacpp.md"),
    ("outlines", "a date"): (1, "/docs/features/core/output_types.md"),
    ("outlines", "a pattern built of parts"): (2, "/docs/features/utility/regex_dsl.md"),
    ("outlines", "a batch"): (1, "/docs/features/models/index.md"),
    ("LMQL", "a query with two holes"): (2, "/docs/docs/language/reference.md"),
    ("LMQL", "a constraint of one's own"): (9, "/docs/docs/language/constraints/custom-constraints.md"),
    ("LMQL", "a distribution over classes"): (2, "/docs/features/examples/3.5-distributions.md"),
    ("LMQL", "samples"): (2, "/docs/docs/language/decoding.md"),
    ("LMQL", "a beam"): (2, "/docs/docs/language/decoding.md"),
    ("LMQL", "a loop of holes"): (5, "/docs/docs/language/scripted-prompting.md"),
    ("LMQL", "a query in a query"): (2, "/docs/docs/language/nestedqueries.md"),
    ("DSPy", "a signature"): (3, "/docs/docs/learn/programming/signatures.md"),
    ("DSPy", "a signature as text"): (3, "/docs/docs/learn/programming/signatures.md"),
    ("DSPy", "a chain of thought"): (2, "/docs/docs/cheatsheet.md"),
    ("DSPy", "ReAct"): (3, "/docs/docs/diving-deeper/tools.md"),
    ("DSPy", "a module of modules"): (7, "/docs/docs/tutorials/rag/index.ipynb"),
    ("DSPy", "demonstrations"): (3, "/docs/docs/cheatsheet.md, LabeledFewShot"),
    ("DSPy", "a majority"): (3, "tests/predict/test_aggregation.py"),
    ("DSPy", "the best of several"): (4, "/docs/docs/tutorials/output_refinement/best-of-n-and-refine.md"),
    ("DSPy", "refined until it holds"): (4, "/docs/docs/tutorials/output_refinement/best-of-n-and-refine.md"),
    ("DSPy", "an evaluation"): (3, "/docs/docs/cheatsheet.md, Evaluate"),
    ("SGLang", "branches that are joined"): (7, "examples/frontend_language/usage/readme_examples.py"),
    ("SGLang", "a chat of several turns"): (5, "examples/frontend_language/quick_start/local_example_chat.py"),
    ("LangGraph", "a router"): (14, "examples/rag/langgraph_adaptive_rag_local.ipynb"),
    ("LangGraph", "a writer and a critic in a loop"): (
        8,
        "examples/code_assistant/langgraph_code_assistant_mistral.ipynb",
    ),
    ("LangGraph", "map and reduce"): (10, "/docs/docs/how-tos/map-reduce.ipynb"),
    ("LangGraph", "a person who approves"): (
        12,
        "/docs/docs/how-tos/human_in_the_loop/add-human-in-the-loop.md, approve or reject",
    ),
    ("LangGraph", "a supervisor"): (4, "/docs/docs/agents/multi-agent.md"),
    ("LangGraph", "a subgraph on the same state"): (5, "/docs/docs/how-tos/subgraph.md"),
    ("LangGraph", "back to a checkpoint"): (11, "/docs/docs/how-tos/human_in_the_loop/time-travel.md"),
    ("LangGraph", "updates while it runs"): (2, "examples/rag/langgraph_adaptive_rag.ipynb"),
    ("BAML", "an enum"): (4, "/docs/docs/calling-baml/calling-functions.mdx"),
    ("BAML", "partial objects"): (3, "its documentation, streaming"),
    ("BAML", "a type made at run time"): (3, "/docs/docs/calling-baml/dynamic-types.mdx"),
    ("instructor", "a model of a chat"): (2, "README.md, UserInfo"),
    ("instructor", "items as they come"): (2, "README.md, create_iterable"),
    ("instructor", "perhaps nothing"): (2, "/docs/concepts/maybe.md"),
    ("Marvin", "a class of a text"): (1, "README.md, classify"),
    ("Marvin", "several made at once"): (1, "README.md, generate"),
    ("pydantic-ai", "an agent with a typed answer"): (3, "/docs/output.md"),
    ("pydantic-ai", "dependencies of tools"): (3, "/docs/dependencies.md"),
    ("pydantic-ai", "a history that goes on"): (4, "/docs/message-history.md"),
    ("pydantic-ai", "a limit of tokens"): (5, "/docs/agent.md"),
    ("pydantic-ai", "an agent as a tool"): (7, "/docs/multi-agent-applications.md"),
}

# Why the others cannot be counted.
NOT_SHOWN: dict[tuple[str, str], str] = {
    (
        "guidance",
        "two ways from one prompt",
    ): "no example was found; its notebooks say that model objects are immutable",
    (
        "BAML",
        "an alias and a description",
    ): "a class with both attributes is shown; no program that asks for it was found",
}
