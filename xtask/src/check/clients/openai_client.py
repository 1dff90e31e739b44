"""The official client of OpenAI's interface, unmodified, against a server of the demo model."""

import base64
import json
import sys

import openai

BASE, SAMPLES = sys.argv[1], sys.argv[2]
client = openai.OpenAI(base_url=BASE, api_key="none", max_retries=0)
SUM = [{"role": "user", "content": "What is 7 plus 5?"}]
TWELVE = "7 + 5 = 12."
TOOL = {
    "type": "function",
    "function": {
        "name": "lamp",
        "description": "Switch a lamp.",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}


def models():
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    return model.id


def chat(model):
    answer = client.chat.completions.create(model=model, messages=SUM)
    assert answer.choices[0].message.content == TWELVE, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    return answer.choices[0].message.content


def stream(model):
    chunks = list(
        client.chat.completions.create(model=model, messages=SUM, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == TWELVE, chunks
    assert chunks[-1].usage.completion_tokens > 0 and not chunks[-1].choices
    with client.chat.completions.stream(model=model, messages=SUM) as events:
        for _ in events:
            pass
        assert events.get_final_completion().choices[0].message.content == TWELVE
    return f"{len(chunks)} chunks"


def image(model):
    with open(f"{SAMPLES}/three-shapes.png", "rb") as file:
        url = "data:image/png;base64," + base64.b64encode(file.read()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What do you see?"}]
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}])
    said = answer.choices[0].message.content
    assert said.startswith("There is a red circle on the left"), said
    return said


def tools(model):
    ask = [{"role": "user", "content": "Light!"}]
    answer = client.chat.completions.create(model=model, messages=ask, tools=[TOOL], tool_choice="required",
                                            parallel_tool_calls=False)
    assert answer.choices[0].finish_reason == "tool_calls", answer
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "lamp" and json.loads(call.function.arguments)["colour"] in ("red", "green")
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is on."}
    told = client.chat.completions.create(
        model=model, messages=[*ask, answer.choices[0].message, result], tools=[TOOL], max_tokens=8
    )
    assert told.choices[0].message is not None
    streamed = client.chat.completions.create(
        model=model, messages=ask, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "lamp"}},
        stream=True, parallel_tool_calls=False,
    )
    calls = [c for chunk in streamed if chunk.choices for c in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].function.arguments == call.function.arguments, calls
    return call.function.arguments


def schema(model):
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": {
        "type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"],
        "additionalProperties": False}}}
    answer = client.chat.completions.create(model=model, messages=SUM, response_format=shape)
    said = json.loads(answer.choices[0].message.content)
    assert isinstance(said["sure"], bool), answer
    return said


def parsed(model):
    import pydantic

    class Answer(pydantic.BaseModel):
        sure: bool

    answer = client.chat.completions.parse(model=model, messages=SUM, response_format=Answer)
    assert isinstance(answer.choices[0].message.parsed, Answer), answer
    return answer.choices[0].message.parsed


def logprobs(model):
    answer = client.chat.completions.create(model=model, messages=SUM, logprobs=True, top_logprobs=3, seed=1)
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == TWELVE
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in tokens)
    return f"{len(tokens)} tokens"


def thinking(model):
    answer = client.chat.completions.create(model=model, messages=SUM, reasoning_effort="low")
    assert answer.choices[0].message.reasoning_content, answer
    return answer.choices[0].message.reasoning_content


def completions(model):
    prompt = f"<|im_start|>user\n{SUM[0]['content']}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    answer = client.completions.create(model=model, prompt=prompt, max_tokens=20)
    assert answer.choices[0].text == TWELVE, answer
    text = "".join(c.choices[0].text for c in client.completions.create(model=model, prompt=prompt, stream=True))
    assert text == TWELVE
    return answer.choices[0].text


def responses(model):
    answer = client.responses.create(model=model, input=SUM[0]["content"], instructions=None)
    assert answer.output_text == TWELVE and answer.status == "completed", answer
    text, last = "", None
    for event in client.responses.create(model=model, input=SUM, stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event
    assert text == TWELVE and last.type == "response.completed" and last.response.output_text == TWELVE, last
    tool = {"type": "function", **TOOL["function"], "strict": True}
    called = client.responses.create(model=model, input="Light!", tools=[tool], tool_choice="required",
                                     parallel_tool_calls=False)
    call = called.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments)["colour"] in ("red", "green"), called
    told = [{"role": "user", "content": "Light!"}, *called.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "It is on."}]
    assert client.responses.create(model=model, input=told, tools=[tool], max_output_tokens=16).usage.total_tokens > 0
    return answer.output_text


def errors(model):
    def fails(kind, **more):
        try:
            client.chat.completions.create(**{"model": model, "messages": SUM, **more})
        except kind as error:
            assert error.body["message"], error
            return error
        raise AssertionError(f"no error for {more}")

    fails(openai.BadRequestError, n=2)
    assert fails(openai.NotFoundError, model="gpt-4o").code == "model_not_found"
    long = [{"role": "user", "content": "x " * 5000}]
    assert fails(openai.BadRequestError, messages=long).code == "context_length_exceeded"
    remote = [{"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}]
    fails(openai.BadRequestError, messages=[{"role": "user", "content": remote}])
    return "as they should be"


name = models()
for test in (chat, stream, image, tools, schema, parsed, logprobs, thinking, completions, responses, errors):
    print(f"openai {openai.__version__} {test.__name__}: {test(name)}")
