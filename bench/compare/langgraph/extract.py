"""Extract a nested record: structured output of langchain-openai alone, as a graph of one node would add nothing."""

import sys

from langchain_openai import ChatOpenAI
from tasks import TEXT, Record

model = ChatOpenAI(model="ramiform-small", base_url=sys.argv[1] + "/v1", api_key="none", temperature=0, max_tokens=80)
reader = model.with_structured_output(Record)
record = reader.invoke(f"Extract person (with name, age, city and job) from the text as JSON.\n{TEXT}")
print(record.model_dump_json())
