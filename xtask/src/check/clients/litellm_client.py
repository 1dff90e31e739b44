"""litellm, which many programs speak through, unmodified, against a server of the demo model."""

import json
import os
import sys

# Its prices would be fetched otherwise.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

BASE = sys.argv[1]
litellm.telemetry = False
litellm.suppress_debug_info = True
SUM = [{"role": "user", "content": "What is 7 plus 5?"}]
TWELVE = "7 + 5 = 12."
COMMON = {"model": "openai/bundle", "api_base": BASE, "api_key": "none", "num_retries": 0}

answer = litellm.completion(messages=SUM, **COMMON)
assert answer.choices[0].message.content == TWELVE, answer
print("litellm chat:", answer.choices[0].message.content)

text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(messages=SUM, stream=True, **COMMON))
assert text == TWELVE, text
print("litellm stream:", text)

tool = {"type": "function", "function": {"name": "lamp", "parameters": {
    "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}}}
called = litellm.completion(messages=SUM, tools=[tool], tool_choice="required", parallel_tool_calls=False, **COMMON)
call = called.choices[0].message.tool_calls[0].function
assert call.name == "lamp" and isinstance(json.loads(call.arguments)["on"], bool), called
print("litellm tools:", call.arguments)

shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
said = litellm.completion(messages=SUM, response_format=shape, **COMMON).choices[0].message.content
assert json.loads(said) in ("yes", "no"), said
print("litellm json_schema:", said)

try:
    litellm.completion(messages=SUM, n=2, **COMMON)
except litellm.BadRequestError as error:
    print("litellm error:", type(error).__name__)
else:
    raise AssertionError("n=2 is no error")
