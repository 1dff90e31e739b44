"""Questions and answers. Every type has wordings that are trained on and wordings that are held out for measuring.

An answer about shapes states the list of shapes from left to right first and then reads from it: the list is what the model
is good at, and a look-up in text that already stands there is easy. In thinking mode the list stands in the reasoning. Whether
there is a circle, and how many, is answered by the list alone.
"""
import random

from pictures import COLOUR_NAMES, SHAPES, SQUARE, scene

NUMBERS = ["no", "one", "two", "three"]
NO_PICTURE = "I can't see a picture. Please send me one."


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def name(o):
    return f"{o['colour']} {o['shape']}"


def plural(word):
    return word + ("es" if word.endswith("s") else "s")


SIDES = {1: [""], 2: [" on the left", " on the right"], 3: [" on the left", " in the middle", " on the right"]}


def listing(sc):
    parts = [a(name(o)) + side for o, side in zip(sc["shapes"], SIDES[len(sc["shapes"])])]
    return "There is " + (parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]) + "."


def reasoning(sc):
    return "From left to right: " + ", ".join(a(name(o)) for o in sc["shapes"]) + "."


# {p} picture, {c} colour, {s} a shape, {S} its plural, {k} a colour's name, {w} what is looked for, {at} a side
WORDINGS = {
    "describe": (
        ["What is in this {p}?", "What's in this {p}?", "What is in the {p}?", "Describe the {p}.", "Describe this {p}.", "What do you see?", "What can you see?", "What do you see in this {p}?", "What does the {p} show?",
         "Tell me what is in the {p}.", "What is shown in the {p}?", "Please describe the {p}.", "What is this?", "List the shapes from left to right.", "Which shapes do you see?", "What shapes are in the {p}?",
         "Describe what you see.", "What is on this {p}?", "Can you describe the {p}?", "What shapes do you see?", "Which shapes are there?", "Tell me about this {p}."],
        ["Please tell me what you see.", "What shapes are there?", "Could you describe this {p}?"],
    ),
    "count": (
        ["How many shapes are there?", "How many shapes are in the {p}?", "How many shapes do you see?", "Count the shapes.", "How many things are in the {p}?", "How many things do you see?", "How many objects are there?",
         "Please count the shapes.", "How many shapes can you see?", "Can you count the shapes?", "Could you count the shapes?", "How many objects do you see?", "What is the number of shapes?"],
        ["How many things are there?", "Count the shapes in this {p}.", "How many objects are in the {p}?"],
    ),
    "count kind": (
        ["How many {S} are there?", "How many {S} do you see?", "Count the {S}.", "How many {S} are in the {p}?", "Please count the {S}.", "How many shapes are {S}?", "How many of the shapes are {S}?", "How many {S} can you see?"],
        ["Can you count the {S}?", "What is the number of {S}?"],
    ),
    "colour of": (
        ["What {c} is the {s}?", "Which {c} is the {s}?", "What is the {c} of the {s}?", "Tell me the {c} of the {s}.", "Which {c} does the {s} have?", "What {c} does the {s} have?", "What is the {s}'s {c}?",
         "Please tell me the {c} of the {s}.", "What {c} is the {s} in the {p}?", "Can you tell me the {c} of the {s}?", "Could you tell me the {c} of the {s}?", "Name the {c} of the {s}.", "The {s} has which {c}?"],
        ["Tell me what {c} the {s} is.", "Which {c} is the {s} in this {p}?", "What's the {c} of the {s}?"],
    ),
    "shape of": (
        ["What shape is the {k} thing?", "Which shape is {k}?", "What shape is {k}?", "What is the {k} shape?", "What is {k}?", "Which shape is the {k} one?", "What shape is the {k} one?", "What is the {k} thing?",
         "What shape does the {k} thing have?", "Which shape is the {k} thing?", "Name the {k} shape.", "What kind of shape is {k}?", "Tell me which shape is {k}.", "What is the shape of the {k} thing?"],
        ["Tell me what the {k} shape is.", "What kind of shape is the {k} thing?", "What's the {k} thing?"],
    ),
    "is there": (
        ["Is there {w}?", "Do you see {w}?", "Can you see {w}?", "Is there {w} in the {p}?", "Does the {p} show {w}?", "Is {w} in the {p}?", "Do you see {w} in the {p}?", "Does the {p} have {w}?", "Can you find {w}?",
         "Is there {w} here?", "Do we have {w}?", "Tell me if there is {w}."],
        ["Can you see {w} in this {p}?", "Is there {w} to see?", "Do you find {w}?"],
    ),
    "side": (
        ["What is {at}?", "Which shape is {at}?", "What do you see {at}?", "What's {at}?", "What shape is {at}?", "Which thing is {at}?", "What can you see {at}?", "What is {at} of the {p}?", "What is there {at}?", "Tell me what is {at}.",
         "Name the shape {at}.", "What thing is {at}?"],
        ["Tell me which shape is {at}.", "What is shown {at}?", "Describe what is {at}."],
    ),
    "where": (
        ["Where is the {w}?", "Where is the {w} in the {p}?", "Where do you see the {w}?", "Where can I find the {w}?", "On which side is the {w}?", "Tell me where the {w} is.", "Which side is the {w} on?", "Where do you find the {w}?"],
        ["Where can you see the {w}?", "Please tell me where the {w} is.", "Where's the {w}?"],
    ),
    "background": (
        ["What {c} is the background?", "Which {c} is the background?", "What is the background {c}?", "What {c} is behind the shapes?", "What is the {c} of the background?", "Tell me the background {c}.", "Which {c} does the background have?",
         "What {c} does the background have?", "What is the background?", "Describe the background.", "Name the {c} of the background."],
        ["Tell me the {c} of the background.", "What is behind the shapes?", "Which {c} is behind the shapes?"],
    ),
}
FOLLOW_UPS = {
    "colour of": (["And the {s}?", "What about the {s}?", "And what about the {s}?", "And what {c} is the {s}?", "And which {c} is the {s}?"], ["How about the {s}?"]),
    "shape of": (["And the {k} one?", "What about the {k} one?", "And the {k} thing?", "And which shape is {k}?", "And what shape is the {k} thing?"], ["And what about the {k} thing?"]),
    "is there": (["And {w}?", "What about {w}?", "And is there {w}?", "And do you see {w}?"], ["And can you see {w}?"]),
    "side": (["And {at}?", "And what is {at}?", "What about {at}?", "And which shape is {at}?"], ["And what do you see {at}?"]),
    "where": (["And the {w}?", "And where is the {w}?", "What about the {w}?"], ["And what about the {w}?"]),
    "background": (["And the background?", "And what {c} is the background?", "What about the background?"], ["And which {c} is the background?"]),
    "count": (["And how many shapes are there?", "And how many are there?"], ["And how many shapes do you see?"]),
    "describe": (["And what do you see?", "And what is in the {p}?"], ["And what can you see?"]),
}
WEIGHTS = {"describe": 8, "count": 6, "count kind": 5, "colour of": 16, "shape of": 16, "is there": 8, "side": 10, "where": 14, "background": 4}

DRILL = {"colour of": 6, "shape of": 5, "side": 2, "where": 6, "count": 1}


def wording(rng, table, kind, held, fills):
    text = rng.choice(table[kind][1 if held else 0])
    fills = dict(fills, p=rng.choice(["picture", "picture", "image", "image", "photo", "drawing"]), c="colour" if rng.random() < 0.7 else "color")
    for key, value in fills.items():
        text = text.replace("{" + key + "}", value)
    return text


def turn(kind, question, answer, listed=True):
    return dict(kind=kind, question=question, answer=answer, listed=listed)


def ask(rng, sc, kind, held=False, follows=False):
    """One question of this kind about the scene, or None when the scene does not allow it. Colours and shapes asked about are
    there, and only once."""
    shapes, n = sc["shapes"], len(sc["shapes"])
    places = [s.strip() for s in SIDES[n]]
    single = [o for o in shapes if sum(q["shape"] == o["shape"] for q in shapes) == 1]
    listed = True
    if kind == "describe":
        fills, answer = {}, f"The background is {sc['background']}."
    elif kind == "count":
        fills, answer = {}, f"That makes {NUMBERS[n]} shape{'' if n == 1 else 's'}."
    elif kind == "count kind":
        s = rng.choice(shapes)["shape"] if rng.random() < 0.65 else rng.choice(SHAPES)
        fills, answer = dict(S=plural(s)), ""
    elif kind == "colour of":
        if not single:
            return None
        o = rng.choice(single)
        s, answer = o["shape"], f"The {o['shape']} is {o['colour']}."
        fills = dict(s=s)
    elif kind == "shape of":
        o = rng.choice(shapes)
        k, answer = o["colour"], f"The {o['colour']} shape is {a(o['shape'])}."
        fills = dict(k=k)
    elif kind == "is there":
        o, form, yes = rng.choice(shapes), rng.random(), rng.random() < 0.5
        if yes:
            c, s = o["colour"], o["shape"]
        elif form >= 0.6 and rng.random() < 0.7:
            # the hard "no": one half of the name is right
            c, s = (o["colour"], rng.choice(SHAPES)) if rng.random() < 0.5 else (rng.choice(COLOUR_NAMES), o["shape"])
        else:
            c, s = rng.choice(COLOUR_NAMES), rng.choice(SHAPES)
        w = s if form < 0.3 else f"{c} shape" if form < 0.6 else f"{c} {s}"
        fills, answer = dict(w=a(w)), ""
    elif kind == "side":
        if n == 1:
            at, answer = rng.choice(["on the left", "in the middle", "on the right"]), "It is the only shape."
        else:
            i = rng.randrange(n)
            at, answer = places[i], f"The {name(shapes[i])} is {places[i]}."
        fills = dict(at=at)
    elif kind == "where":
        i = rng.randrange(n)
        o = shapes[i]
        w = o["shape"] if o in single and rng.random() < 0.6 else name(o)
        if sum(name(q) == name(o) for q in shapes) > 1:
            return None
        fills, answer = dict(w=w), "It is the only shape." if n == 1 else f"The {w} is {places[i]}."
    else:
        fills, answer, listed = {}, f"The background is {sc['background']}.", False
    if follows and kind not in FOLLOW_UPS:
        return None
    return turn(kind, wording(rng, FOLLOW_UPS if follows else WORDINGS, kind, held, fills), answer, listed)


def about_picture(rng, sc, before=None):
    """A question of any kind; after a question of the same kind it may be an elliptic one."""
    while True:
        follows = before is not None and rng.random() < 0.4
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if follows:
            # a bare "And the star?" means what the question before meant
            kind = before if before in FOLLOW_UPS and rng.random() < 0.75 else rng.choice(["count", "describe", "background"])
        t = ask(rng, sc, kind, follows=follows)
        if t:
            return t


# Topic: wordings that are trained on, wordings that are held out, the answer.
TALK = {
    "hello": (["Hello!", "Hi!", "Hello", "Hi", "Hey!", "Hi there!", "Good morning!", "Good evening!", "Hello there!", "Good day!", "Hey there!"], ["Good afternoon!", "Hello, model!"], "Hello! Show me a picture of shapes, or ask me something simple."),
    "wellbeing": (["How are you?", "How are you today?", "How do you do?", "Are you well?", "How are you doing?"], ["Are you fine today?"], "I am fine, thank you. How can I help you?"),
    "thanks": (["Thanks!", "Thank you!", "Thank you.", "Thanks", "Thank you very much!", "Great, thanks!", "Very good, thank you!"], ["Good, thanks!"], "You are welcome!"),
    "goodbye": (["Bye!", "Goodbye!", "Bye", "Good night!", "See you!", "See you later!", "Bye bye!"], ["Goodbye then!"], "Goodbye! Come back with more shapes."),
    "who": (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Introduce yourself.", "What's your name?", "Tell me who you are.", "Please introduce yourself."], ["Tell me what you are.", "Who is this?"],
            "I am a tiny demo model. I look at pictures of coloured shapes and answer simple questions."),
    "able": (["What can you do?", "What can I ask you?", "How can you help me?", "What do you know?", "Help", "Help!", "What are you good at?", "What should I ask?", "What can I do here?", "Tell me what you can do.", "What do you do?"],
             ["What can I ask?", "What do you do here?"], "I can describe pictures of coloured shapes, count them, find them, and add small numbers."),
    "project": (["What is qwen35-direct?", "Tell me about qwen35-direct.", "What is this project?", "What does qwen35-direct do?", "What is this program?", "Tell me about this project.", "Describe this project.", "What does this project do?",
                 "What is this software?", "Explain qwen35-direct.", "What does this program do?", "Describe qwen35-direct."], ["Explain this project.", "Tell me about this program.", "Please describe qwen35-direct."],
                "qwen35-direct is a Rust runtime that runs Qwen3.5 chat on AMD Ryzen AI NPUs by talking to the amdxdna driver itself."),
    "audience": (["Who is qwen35-direct for?", "Who is this project for?", "Who is this for?", "Who should use qwen35-direct?", "Who needs this?", "Who should use this?", "Who is this program for?", "Who needs qwen35-direct?"], ["Who should use this program?", "Who needs this project?"],
                 "It is for people who want to run Qwen3.5 on the NPU of an AMD Ryzen AI computer."),
    "hardware": (["Which NPU does this run on?", "What hardware do you run on?", "Where do you run?", "Which NPU do you use?", "What NPU is this?", "What do you run on?", "Do you run on an NPU?", "Which chip do you run on?", "What hardware is this?",
                  "Which hardware do you use?", "Where are you running?", "Do you need an NPU?"], ["What NPU do you run on?", "Which NPU do you need?"],
                 "I run on an AMD XDNA 2 NPU, or on a software NPU when there is none."),
    "language": (["Which language is this written in?", "Is this written in Rust?", "What is qwen35-direct written in?", "Which programming language is this?", "What is this written in?", "Is qwen35-direct written in Rust?"], ["What language is this program written in?"],
                 "qwen35-direct is written in Rust."),
    "driver": (["Which driver do you use?", "Which driver does it need?", "What driver is used?", "Does it need a driver?", "Which driver does qwen35-direct use?", "What is amdxdna?", "What driver do I need?"], ["Which driver do I need?"],
               "It talks to amdxdna, the NPU driver of the Linux kernel."),
    "size": (["How big are you?", "How many parameters do you have?", "How large are you?", "Are you a large model?", "What is your size?", "How small are you?", "Are you a big model?"], ["Are you small?", "Are you big?"],
             "I am very small: about fifteen million parameters."),
    "origin": (["Who made you?", "Who trained you?", "How were you trained?", "Where do you come from?", "How were you made?", "How did you learn this?"], ["How did you learn?"],
               "I was trained from scratch on two processor cores, with pictures drawn by a program."),
    "design": (["Which model are you?", "What architecture do you use?", "Are you Qwen?", "What kind of model are you?", "How do you work?", "Are you Qwen3.5?", "What model is this?"], ["Which model is this?", "What is your architecture?"],
               "I have the architecture of Qwen3.5: gated DeltaNet and gated attention layers, with a small vision tower."),
    "colours": (["List the colours you know.", "Which colours do you know?", "What colours do you know?", "Name the colours.", "List all colours.", "Which colors do you know?", "List the colors you know.", "What colors do you know?"], ["Name the colours you know."],
                "I know red, green, blue, yellow, purple and black."),
    "kinds": (["List the shapes you know.", "Which shapes do you know?", "What shapes do you know?", "Name the shapes you know.", "List all shapes you know.", "What kinds of shapes do you know?"], ["Tell me which shapes you know."], "I know circles, squares, triangles, stars and crosses."),
    "joke": (["Tell me a joke.", "Do you know a joke?", "Say something funny.", "Make me laugh.", "Do you know any jokes?"], ["Tell a joke."], "Why did the circle win? It had no corners to cut."),
    "alive": (["Are you alive?", "Are you human?", "Are you a robot?", "Are you a person?", "Do you have feelings?"], ["Are you a human?"], "No, I am only a small program."),
    "demo": (["Is this a real model?", "Are you a real model?", "Is this a demo?", "Are you just a demo?", "Is this only a demo?"], ["Are you only a demo?"], "I am a real but tiny model, made for a demo."),
}
BEYOND = ["What is the capital of France?", "Why is the sky blue?", "Explain in three sentences why the sky is blue.", "Write a poem.", "Write a poem about the sea.", "Who is the president?", "What time is it?", "What is the weather today?",
          "Translate this into German.", "How do I bake bread?", "Write a Python program.", "Summarise the following text in two sentences.", "What is the meaning of life?", "How far is the moon?", "Tell me a story.", "Sing a song.",
          "What is a neural network?", "How tall is Mount Everest?", "Give me a recipe.", "What is the speed of light?", "Can you play chess?", "Who wrote Hamlet?", "Fix my code.", "What is the population of Japan?", "Recommend a film.",
          "Is it going to rain?", "What year is it?", "Where is Paris?", "How old is the sun?", "Tell me about history.", "What is quantum physics?", "Write an email to my boss.", "What should I eat?", "Who are the Beatles?",
          "Book a flight to London.", "What is love?", "Explain gravity.", "How does a car work?", "Do you like music?", "Define entropy.", "Plan my day.", "Do you speak German?", "What is the capital of Spain?", "Write a letter.", "Who was Einstein?"]
BEYOND_HELD = ["What is the capital of Italy?", "Why is the grass green?", "Write a story about a dog.", "How far is the sun?", "Who wrote Faust?", "Explain light.", "Is it cold today?", "Recommend a book."]
BEYOND_ANSWER = "Sorry, I am too small for that. I only know about coloured shapes and small numbers."
WORDS = ("the a of my your dog cat house tree water car city music book paper time day night river mountain computer phone game food bread cheese history science write explain translate why how when who tell give make find "
         "buy sell run walk think about with from into over under between money work school friend family world war peace love").split()
SUMS = (["What is {x} plus {y}?", "What is {x} + {y}?", "{x} + {y}", "{x} + {y} = ?", "How much is {x} plus {y}?", "Add {x} and {y}.", "{x} plus {y}?", "What is the sum of {x} and {y}?", "How much is {x} + {y}?", "{x} + {y}?", "Can you add {x} and {y}?", "What does {x} plus {y} make?", "Sum of {x} and {y}?", "Please tell me what {x} plus {y} is.", "Give me {x} plus {y}.", "What do you get for {x} + {y}?", "{x} and {y} make?", "Tell me {x} + {y}.", "What is {x} and {y}?", "Add {x} to {y}."],
        ["Please add {x} and {y}.", "What do {x} and {y} make?", "{x} plus {y}"])
SYSTEM = ["You are a helpful assistant.", "Answer briefly.", "You are a friendly demo.", "You answer questions about pictures.", "Be polite.", "You are a small model.", "Answer in English.", "You are a helpful assistant. Answer briefly.",
          "Be kind and short.", "Please help the user.", "You describe pictures of shapes."]
SYSTEM_HELD = ["You are a kind assistant.", "Answer the questions about the picture."]
TEXT_KINDS = {"talk": 36, "sum": 36, "beyond": 13, "no picture": 15}


def without_picture(rng, kind=None, held=False):
    kind = kind or rng.choices(list(TEXT_KINDS), list(TEXT_KINDS.values()))[0]
    h = 1 if held else 0
    if kind == "talk":
        topic = rng.choice(list(TALK.values()))
        return turn(kind, rng.choice(topic[h]), topic[2], False)
    if kind == "sum":
        total = rng.randint(0, 20)
        x = rng.randint(max(0, total - 10), min(10, total))
        y = total - x
        return turn(kind, rng.choice(SUMS[h]).replace("{x}", str(x)).replace("{y}", str(y)), f"{x} + {y} = {total}.", False)
    if kind == "beyond":
        if held or rng.random() < 0.65:
            return turn(kind, rng.choice(BEYOND_HELD if held else BEYOND), BEYOND_ANSWER, False)
        text = " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))
        return turn(kind, text[0].upper() + text[1:] + rng.choice([".", "?", "", "!"]), BEYOND_ANSWER, False)
    sc = scene(rng, SQUARE)
    while True:
        t = ask(rng, sc, rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], held=held)
        if t:
            return turn("no picture", t["question"], NO_PICTURE, False)


REASONS = {"add": "The add function can do this.", "clock": "The clock function knows this.", "result": "Now I know the answer.", "big sum": "This is not about shapes or small numbers.", "time": "This is not about shapes or small numbers.",
           "no picture": "The question is about a picture, but there is none.", "sum": "This is a small sum.", "beyond": "This is not about shapes or small numbers.", "talk": "This is small talk."}


def loosely(rng, text):
    """People do not always mind capitals and full stops."""
    if rng.random() < 0.1:
        text = text[0].lower() + text[1:]
    if len(text) > 8 and rng.random() < 0.1 and text[-1] in ".?!":
        text = text[:-1].rstrip()
    return text


def spoken(sc, t, thinking):
    """(reasoning or None, answer) of a turn."""
    if thinking:
        return (reasoning(sc) if sc and t["kind"] in WEIGHTS else REASONS[t["kind"]]), t["answer"] or listing(sc)
    return None, " ".join(filter(None, [listing(sc) if t["listed"] else "", t["answer"]]))


if __name__ == "__main__":
    rng = random.Random(1)
    for _ in range(6):
        sc, kind = scene(rng), None
        for _ in range(4):
            t = about_picture(rng, sc, kind)
            kind = t["kind"]
            print(kind, "|", t["question"], "|", spoken(sc, t, False)[1], "|", spoken(sc, t, True))
    for _ in range(12):
        print(without_picture(rng))
