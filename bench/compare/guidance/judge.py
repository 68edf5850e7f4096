"""Judge one text by several criteria: each continues the same model object by one of its labels."""

import json
import sys

from guidance import models, select, with_temperature
from tasks import CRITERIA, REVIEW

shared = models.Transformers(sys.argv[1], echo=False) + f"Text: {REVIEW}\n"
verdicts = {}
for name, labels in CRITERIA.items():
    branch = shared + f"{name}: " + with_temperature(select(labels, name="label"), 0)
    verdicts[name] = branch["label"]
print(json.dumps(verdicts))
