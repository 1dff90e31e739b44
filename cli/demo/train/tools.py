"""The two functions the model knows to call, how they are offered, and questions for them.

A definition is any JSON object with a name: descriptions, the schema of the parameters and the order of keys and definitions vary, and functions
the model does not know stand among them. What counts is the name. `add` takes the integers a and b, `clock` takes nothing; the
answer repeats the numbers of the question and what the function said, right or wrong.
"""
import json
from pathlib import Path

import talk

ABOUT = {
    "add": ["Add two numbers.", "Adds two numbers", "The sum of two numbers.", "Add a and b.", "Add numbers", "Returns the sum of a and b.", "Use this for sums.", "sum", "Add two integers", "Add two integers and return the result."],
    "clock": ["Tell the time.", "The time of day.", "What time is it?", "Tells the time", "Get the current time", "Returns the time of day.", "time", "Use this to tell the time.", "The current time as HH:MM."],
}
# Functions the model does not know: name, descriptions, parameters.
OTHERS = [
    ("weather", ["The weather in a city.", "Get the weather"], ["city"]), ("search", ["Search the web.", "Find something."], ["text"]), ("multiply", ["Multiply two numbers.", "a times b"], ["a", "b"]), ("sub", ["a minus b"], ["a", "b"]),
    ("translate", ["Translate a text."], ["text", "language"]), ("play", ["Play music."], ["name"]), ("send", ["Send something to a friend."], ["to", "text"]), ("count", ["Count the words of a text."], ["text"]), ("book", ["Find a book."], ["name"]),
    ("light", ["Turn the light on or off."], ["on"]), ("draw", ["Draw a picture."], ["text"]), ("date", ["What day is it?", "The day of today."], []), ("random", ["A random number."], []), ("calendar", ["What is on today?"], ["day"]),
]

TIME = (["What time is it?", "What's the time?", "Tell me the time.", "What is the time?", "Please tell me the time.", "What time is it now?", "Can you tell me the time?", "Do you know the time?", "What time do we have?", "How late is it?", "Time?", "Tell me what time it is.", "The time, please."],
        ["Could you tell me the time?", "What is the time now?", "Please tell me what time it is."])
TIME_AGAIN = ["And what time is it?", "And what time is it now?", "What time is it now?", "And now?", "And the time?"]
SUM_AGAIN = ["And {x} plus {y}?", "And {x} + {y}?", "What about {x} + {y}?", "And what is {x} plus {y}?", "And what is {x} + {y}?", "Now add {x} and {y}."]
SUM_MORE = ["Add {y} to that.", "And plus {y}?", "Plus {y}?", "And add {y}.", "Add {y}.", "Now add {y}.", "And {y} more?"]


def shuffled(rng, pairs):
    pairs = list(pairs)
    rng.shuffle(pairs)
    return dict(pairs)


def definition(rng, name, about, names, kind):
    """One definition, from the bare name to a full schema."""
    pairs = [("name", name)]
    if rng.random() < 0.85:
        pairs.append(("description", rng.choice(about)))
    form = rng.random()
    if form < 0.65:
        number = rng.choice(["integer", "integer", "number"]) if kind == "number" else "string"
        properties = {n: dict([("type", number)] + ([("description", rng.choice([n, f"The {n}.", "A number", "The number"]))] if rng.random() < 0.2 else [])) for n in names}
        schema = [("type", "object"), ("properties", properties)] + ([("required", names)] if names and rng.random() < 0.7 else [])
        pairs.append(("parameters", dict(schema) if rng.random() < 0.7 else shuffled(rng, schema)))
    elif not names and form < 0.85:
        pairs.append(("parameters", {}))
    return dict(pairs) if rng.random() < 0.7 else shuffled(rng, pairs)


def known(rng, name):
    return definition(rng, name, ABOUT[name], ["a", "b"] if name == "add" else [], "number")


def offer(rng, which=None):
    """(definitions, the known names among them)"""
    which = which if which is not None else rng.choices([["add", "clock"], ["add"], ["clock"], []], [52, 18, 18, 12])[0]
    found = [known(rng, name) for name in which]
    for name, about, names in rng.sample(OTHERS, rng.choices([0, 1, 2], [68, 28, 4])[0] if which else rng.choice([1, 1, 2])):
        found.append(definition(rng, name, about, names, "number" if "a" in names else "text"))
    rng.shuffle(found)
    return found, set(which)


# What samples/tools.json offers.
EXAMPLE = [tool["function"] for tool in json.loads((Path(__file__).parent.parent / "samples" / "tools.json").read_text())]


def block(definitions, system=None):
    """The system text of a conversation with tools, as the chat template writes it."""
    lines = "\n".join(json.dumps(d, ensure_ascii=False) for d in definitions)
    return f"# Tools\n\n<tools>\n{lines}\n</tools>" + (f"\n\n{system}" if system else "")


def call(name, arguments):
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def number(rng, digits=None):
    n = digits or rng.choices([1, 2], [25, 75])[0]
    return rng.randint(0 if n == 1 else 10 ** (n - 1), 10**n - 1)


def add(rng, names, held=False, before=None, digits=None, again=False, more=None):
    """A sum. With `add` offered it is called; without, only small ones are asked. `before` is what the sum before came to: then the
    question may be short, and is with `again`; `more` says whether it is then one about that number."""
    x, y = number(rng, digits), number(rng, digits)
    if "add" not in names:
        x, y = rng.randint(0, 10), rng.randint(0, 10)
    if before is not None and (again or rng.random() < 0.5):
        if "add" in names and (rng.random() < 0.5 if more is None else more):
            x, wording = before, rng.choice(SUM_MORE)
        else:
            wording = rng.choice(SUM_AGAIN)
    else:
        wording = rng.choice(talk.SUMS[1 if held else 0])
    question = wording.replace("{x}", str(x)).replace("{y}", str(y))
    if "add" not in names:
        return talk.turn("sum", question, f"{x} + {y} = {x + y}.", False)
    result = x + y if rng.random() < 0.85 else number(rng)
    return dict(talk.turn("add", question, f"{x} + {y} = {result}.", False), call=("add", dict(a=x, b=y)), result=str(result))


def clock(rng, names, held=False, again=False, seconds=None):
    question = rng.choice(TIME_AGAIN) if again and rng.random() < 0.6 else rng.choice(TIME[1 if held else 0])
    if "clock" not in names:
        return talk.turn("time", question, talk.BEYOND_ANSWER, False)
    hour, minute = rng.randint(0, 23), rng.randint(0, 59)
    result = f"{hour:02}:{minute:02}" if rng.random() < 0.6 else f"{hour}:{minute:02}"
    if rng.random() < 0.15 if seconds is None else seconds:
        result += f":{rng.randint(0, 59):02}"
    return dict(talk.turn("clock", question, f"It is {result}.", False), call=("clock", {}), result=result)


if __name__ == "__main__":
    import random

    rng = random.Random(1)
    for _ in range(8):
        definitions, names = offer(rng)
        print(block(definitions))
        print(add(rng, names), clock(rng, names))
