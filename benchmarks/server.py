"""A model server that answers at once with bytes made beforehand.

The model's name is the script: ``steps-5`` calls a tool five times and then answers;
``text-2000`` answers in 2,000 chunks. The tool results in a request tell how far it is.
"""

import asyncio
import json
import re

from aiohttp import web

MODEL = re.compile(rb'"model": ?"(steps|text)-(\d+)"')
RESULT = re.compile(rb'"role": ?"tool"')
STREAM = re.compile(rb'"stream": ?true')
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
BATCH = 16  # chunks in one write
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "mock"}


def event(delta, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return data({**HEAD, "object": "chat.completion.chunk", "choices": [choice]})


def data(value):
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def document(message, finish):
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    body = {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    return json.dumps(body).encode()


def call(i):
    function = {"name": "add", "arguments": f'{{"a": {i}, "b": 1}}'}
    return {"index": 0, "id": f"call_{i}", "type": "function", "function": function}


def streamed(delta, finish):
    return event({"role": "assistant", **delta}) + end(finish)


def end(finish):
    usage = {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}
    return event({}, finish) + data(usage) + b"data: [DONE]\n\n"


CALLS = [{"content": None, "tool_calls": [call(i)]} for i in range(100)]
DOCUMENTS = [document(delta, "tool_calls") for delta in CALLS]
STREAMS = [streamed(delta, "tool_calls") for delta in CALLS]
DOCUMENT = document({"content": "done"}, "stop")
STREAM_END = streamed({"content": "done"}, "stop")
WORDS = [event({"content": f"word{i} "}) for i in range(BATCH)]  # litellm refuses repetition
WORD_BATCH = b"".join(WORDS)


async def answer(request):
    body = await request.read()
    kind, number = MODEL.search(body).groups()
    done, count = len(RESULT.findall(body)), int(number)
    if kind == b"text":
        return await text(request, count)
    if STREAM.search(body):
        bytes_ = STREAMS[done] if done < count else STREAM_END
        return web.Response(body=bytes_, content_type="text/event-stream")
    bytes_ = DOCUMENTS[done] if done < count else DOCUMENT
    return web.Response(body=bytes_, content_type="application/json")


async def text(request, count):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(event({"role": "assistant", "content": ""}))
    for left in range(count, 0, -BATCH):
        await response.write(WORD_BATCH if left >= BATCH else b"".join(WORDS[:left]))
    await response.write(end("stop"))
    return response


async def main():
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
