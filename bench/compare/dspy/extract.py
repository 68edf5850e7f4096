"""Extract a nested record: an output field has the type; the adapter writes the prompt and parses the answer."""

import dspy
from connection import connect
from tasks import TEXT, Record


class Extract(dspy.Signature):
    """Extract person (with name, age, city and job) from the text as JSON."""

    text: str = dspy.InputField()
    record: Record = dspy.OutputField()


connect(temperature=0)
print(dspy.Predict(Extract)(text=TEXT).record.model_dump_json())
