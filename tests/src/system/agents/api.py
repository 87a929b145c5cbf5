"""The service that coding agents talk to, on loopback: it lets them run one command after the other and then says
that it is done. Anthropic's messages, OpenAI's responses and Gemini's contents, as streams of events. By OpenAI's
chat completions, where aider is answered and has no tool for commands, it writes all of them into steps.sh, of which
the next message is to tell what it printed.

Usage: api.py COMMANDS RESULTS. COMMANDS is a JSON list; RESULTS gets a JSON object a line: what each command
printed, as the agent reports it. The port is printed as the first line.
"""

import json
import shlex
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMANDS = json.load(open(sys.argv[1]))
RESULTS = open(sys.argv[2], "a", buffering=1)


def note(**what):
    RESULTS.write(json.dumps(what) + "\n")


def texts(value):
    """All text of a content, however it is nested."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(texts(part) for part in value)
    if isinstance(value, dict):
        return texts(value.get("text", value.get("content", value.get("output", ""))))
    return ""


def anthropic(asked):
    results = [
        block
        for message in asked.get("messages", [])
        if isinstance(message["content"], list)
        for block in message["content"]
        if block.get("type") == "tool_result"
    ]
    for block in results[-1:]:
        note(number=len(results) - 1, output=texts(block.get("content", "")))
    shells = [tool["name"] for tool in asked.get("tools", []) if tool.get("name") in ("Bash", "bash")]
    number = len(results)
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": asked.get("model"),
        "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
    }
    if shells and number < len(COMMANDS):
        block = {"type": "tool_use", "id": f"toolu_{number:04}", "name": shells[0], "input": {}}
        entered = json.dumps({"command": COMMANDS[number], "description": "a step"})
        delta, stop = {"type": "input_json_delta", "partial_json": entered}, "tool_use"
        whole = dict(block, input=json.loads(entered))
    else:
        block = {"type": "text", "text": ""}
        delta, stop = {"type": "text_delta", "text": "done"}, "end_turn"
        whole = {"type": "text", "text": "done"}
    if not asked.get("stream"):
        return None, dict(message, content=[whole], stop_reason=stop)
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ], None


def call(asked, command):
    """The tool of a shell among those that are offered, and how it wants the command."""
    offered = {tool.get("name"): tool for tool in asked.get("tools", [])}
    for name, arguments in [
        ("shell_command", {"command": command}),
        ("exec_command", {"cmd": command}),
        ("shell", {"command": ["bash", "-c", command]}),
    ]:
        if name in offered:
            return name, arguments
    note(tools=sorted(str(name) for name in offered))
    return None, None


def responses(asked):
    entered = asked.get("input", [])
    results = [item for item in entered if isinstance(item, dict) and item.get("type", "").endswith("_call_output")]
    for item in results[-1:]:
        note(number=len(results) - 1, output=texts(item.get("output", "")))
    number = len(results)
    name = arguments = None
    if number < len(COMMANDS):
        name, arguments = call(asked, COMMANDS[number])
    if name:
        item = {
            "type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name,
            "arguments": json.dumps(arguments), "status": "completed",
        }
    else:
        item = {
            "type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "done", "annotations": []}],
        }
    answer = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "output": []}
    usage = {
        "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
    }
    return [
        {"type": "response.created", "response": answer},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": dict(answer, status="completed", output=[item], usage=usage)},
    ], None


def gemini(asked):
    results = [
        part["functionResponse"]
        for content in asked.get("contents", [])
        for part in content.get("parts", [])
        if "functionResponse" in part
    ]
    for result in results[-1:]:
        note(number=len(results) - 1, output=texts(result["response"].get("output", result["response"])))
    tools = [tool for group in asked.get("tools", []) for tool in group.get("functionDeclarations", [])]
    number = len(results)
    if number < len(COMMANDS) and any(tool["name"] == "run_shell_command" for tool in tools):
        part = {"functionCall": {"name": "run_shell_command", "args": {"command": COMMANDS[number]}}}
    else:
        part = {"text": "done"}
    return {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    }


def completions(asked):
    if not asked.get("stream"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"id": "chat", "object": "chat.completion", "created": 0, "model": asked["model"],
                "choices": [choice], "usage": usage}
    said = [texts(message["content"]) for message in asked["messages"] if message["role"] == "user"]
    printed = [part for text in said if "@@ end\n" in text for part in text.split("@@ ")[1:]]
    for part in printed:
        number, _, output = part.partition("\n")
        if number.isdigit():
            note(number=int(number), output=output)
    if printed:
        text = "done"
    else:
        steps = [f"echo '@@ {number}'; bash -c {shlex.quote(command)} 2>&1" for number, command in enumerate(COMMANDS)]
        script = "\n".join([*steps, "echo '@@ end'", "exit 1"])
        text = f"steps.sh\n```\n<<<<<<< SEARCH\n=======\n{script}\n>>>>>>> REPLACE\n```\n"
    chunk = {"id": "chat", "object": "chat.completion.chunk", "created": 0, "model": asked["model"]}
    choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return "".join(f"data: {json.dumps(dict(chunk, choices=[part]))}\n\n" for part in (choice, end)) + "data: [DONE]\n\n"


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, kind, body):
        self.send_response(code)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        self.answer(404 if self.path != "/" else 200, "application/json", b"{}")

    do_HEAD = do_GET

    def do_POST(self):
        asked = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.split("?")[0]
        if path.endswith(":streamGenerateContent"):
            line = f"data: {json.dumps(gemini(json.loads(asked)))}\n\n"
            return self.answer(200, "text/event-stream", line.encode())
        if path.endswith(":generateContent"):
            return self.answer(200, "application/json", json.dumps(gemini(json.loads(asked))).encode())
        if path.endswith("/chat/completions"):
            answer = completions(json.loads(asked))
            if isinstance(answer, dict):
                return self.answer(200, "application/json", json.dumps(answer).encode())
            return self.answer(200, "text/event-stream", answer.encode())
        service = {"/v1/messages": anthropic, "/v1/responses": responses}.get(path)
        if service is None:
            return self.answer(404, "application/json", b"{}")
        events, whole = service(json.loads(asked))
        if events is None:
            return self.answer(200, "application/json", json.dumps(whole).encode())
        lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        self.answer(200, "text/event-stream", "".join(lines).encode())


server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
print(server.server_address[1], flush=True)
server.serve_forever()
