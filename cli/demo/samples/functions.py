#!/usr/bin/env python3
"""Answers calls of the functions in tools.json, for --tool-command: the call comes in as JSON, the result goes out as text."""
import json
import sys
import time

call = json.load(sys.stdin)
if call["name"] == "add":
    print(call["arguments"]["a"] + call["arguments"]["b"])
else:
    print(time.strftime("%H:%M"))
