"""Extract a record whose name has to stand in the text: `BestOfN` samples until the reward is reached."""

import json

import dspy
from connection import connect
from tasks import ATTEMPTS, NAMES, TEMPERATURE, Person, is_named, text_about


class Extract(dspy.Signature):
    """Extract name, age, city and job from the text as JSON."""

    text: str = dspy.InputField()
    person: Person = dspy.OutputField()


def reward(arguments, prediction):
    return float(is_named(arguments["text"], prediction.person.name))


connect(temperature=TEMPERATURE)
checked = dspy.BestOfN(dspy.Predict(Extract), N=ATTEMPTS, reward_fn=reward, threshold=1.0, fail_count=ATTEMPTS)
print(json.dumps([checked(text=text_about(name)).person.name for name in NAMES]))
