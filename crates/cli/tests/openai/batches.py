"""Files and batches of the official OpenAI client, unmodified, against a gateway with the bundled model.

Called with the address, the API key, the model and the name of a check; prints one JSON line.
"""

import json
import sys
import time

import openai

ADDRESS, KEY, MODEL, CHECK = sys.argv[1:5]
STORY = "クマが海辺に行って"
ENDS = ["completed", "failed", "expired", "cancelled"]


def client(**more):
    return openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key=KEY, timeout=60, **more)


def body(index, **more):
    return {"model": MODEL, "prompt": f"{STORY} {index}", "max_tokens": 16, "temperature": 0, **more}


def jsonl(bodies, endpoint="/v1/completions"):
    lines = [{"custom_id": f"line-{index}", "method": "POST", "url": endpoint, "body": body}
             for index, body in enumerate(bodies)]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def create(content, endpoint="/v1/completions", window="24h", **more):
    file = client().files.create(file=("in.jsonl", content), purpose="batch")
    return client().batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window, **more)


def polled(id, until=lambda batch: batch.status in ENDS):
    for _ in range(1200):
        batch = client(max_retries=5).batches.retrieve(id)
        if until(batch):
            return batch
        assert batch.status not in ENDS, batch
        time.sleep(0.05)
    raise AssertionError(batch)


def read(file_id):
    """Lines of an output file by their custom id, each of which must be there once."""
    lines = [json.loads(line) for line in client().files.content(file_id).text.splitlines()]
    by_id = {line["custom_id"]: line for line in lines}
    assert len(by_id) == len(lines), lines
    assert len({line["id"] for line in lines}) == len(lines), lines
    return by_id


def files():
    content = b"x" * 2_500_000 + b"\n"
    made = client().files.create(file=("in.jsonl", content), purpose="batch")
    assert (made.object, made.bytes, made.filename, made.purpose, made.status) == (
        "file", len(content), "in.jsonl", "batch", "processed"), made
    assert client().files.retrieve(made.id) == made
    assert client().files.content(made.id).read() == content
    second = client().files.create(file=b"{}", purpose="batch", expires_after={
        "anchor": "created_at", "seconds": 7200})
    assert second.expires_at == second.created_at + 7200
    assert [file.id for file in client().files.list(limit=1)] == [second.id, made.id]
    assert [file.id for file in client().files.list(order="asc", purpose="batch")] == [made.id, second.id]
    try:
        client().files.create(file=b"{}", purpose="vision")
        raise AssertionError("a file of another purpose was taken")
    except openai.BadRequestError as error:
        assert error.param == "purpose" and "vision" in error.message, error
    assert client().files.delete(made.id).deleted
    for missing in [lambda: client().files.retrieve(made.id), lambda: client().files.content(made.id)]:
        try:
            missing()
            raise AssertionError("a deleted file was found")
        except openai.NotFoundError:
            pass
    return "kept"


def completed():
    """A batch of each endpoint, with a line that its endpoint refuses."""
    messages = [{"role": "user", "content": "Once a bear"}]
    of = {
        "/v1/completions": [body(0), body(1, top_p=2), body(2)],
        "/v1/chat/completions": [{"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}],
        "/v1/responses": [{"model": MODEL, "input": "Once a bear", "max_output_tokens": 8, "temperature": 0}],
    }
    made = {}
    for endpoint, bodies in of.items():
        made[endpoint] = create(jsonl(bodies, endpoint), endpoint, metadata={"of": endpoint})
        assert made[endpoint].object == "batch" and made[endpoint].status == "validating", made
    done = {endpoint: polled(batch.id) for endpoint, batch in made.items()}
    for endpoint, batch in done.items():
        assert batch.status == "completed" and batch.metadata == {"of": endpoint}, batch
        assert batch.model == MODEL and batch.expires_at == batch.created_at + 24 * 3600, batch
        assert batch.in_progress_at and batch.finalizing_at and batch.completed_at, batch
    batch = done["/v1/completions"]
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1), batch
    output, errors = read(batch.output_file_id), read(batch.error_file_id)
    assert sorted(output) == ["line-0", "line-2"] and list(errors) == ["line-1"], (output, errors)
    tokens = 0
    for index in [0, 2]:
        line = output[f"line-{index}"]
        alone = client().completions.create(**body(index))
        assert line["response"]["status_code"] == 200 and line["error"] is None, line
        assert line["response"]["body"]["choices"][0]["text"] == alone.choices[0].text, line
        tokens += alone.usage.total_tokens
    assert batch.usage.total_tokens == tokens, (batch, tokens)
    refused = errors["line-1"]["response"]
    assert refused["status_code"] == 400 and refused["body"]["error"]["param"] == "top_p", refused
    chat = read(done["/v1/chat/completions"].output_file_id)["line-0"]["response"]["body"]
    alone = client().chat.completions.create(**of["/v1/chat/completions"][0])
    assert chat["choices"][0]["message"]["content"] == alone.choices[0].message.content
    response = read(done["/v1/responses"].output_file_id)["line-0"]["response"]["body"]
    assert response["object"] == "response" and response["usage"]["output_tokens"] == 8, response
    listed = [batch.id for batch in client().batches.list(limit=2)]
    assert listed == [batch.id for batch in reversed(made.values())], listed
    return counts.total


def invalid():
    """Errors of the file, with the numbers of their lines."""
    good = json.loads(jsonl([body(0)]))
    lines = [
        json.dumps(good), "{", json.dumps(good), json.dumps({**good, "custom_id": "b", "method": "GET"}),
        "", json.dumps({**good, "custom_id": "c", "url": "/v1/embeddings"}),
        json.dumps({**good, "custom_id": "d", "body": body(0, model="nothing")}),
        json.dumps({**good, "custom_id": "e", "body": body(0, stream=True)}),
        json.dumps({"method": "POST"}),
    ]
    batch = polled(create("\n".join(lines).encode()).id)
    assert batch.status == "failed" and batch.failed_at and not batch.output_file_id, batch
    return [[error.line, error.code] for error in batch.errors.data]


def cancelled():
    """A batch without a worker, which waits until it is canceled."""
    batch = create(jsonl([body(index) for index in range(3)]))
    polled(batch.id, lambda batch: batch.status == "in_progress")
    stopped = client().batches.cancel(batch.id)
    assert stopped.status in ["cancelling", "cancelled"] and stopped.cancelling_at, stopped
    batch = polled(batch.id)
    assert batch.status == "cancelled" and batch.cancelled_at and not batch.output_file_id, batch
    errors = read(batch.error_file_id)
    assert [line["error"]["code"] for line in errors.values()] == 3 * ["batch_cancelled"], errors
    try:
        client().batches.cancel(batch.id)
        raise AssertionError("a canceled batch was canceled")
    except openai.BadRequestError:
        pass
    return "cancelled"


def waiting():
    """A batch without a worker, whose worker comes later; prints its id."""
    batch = create(jsonl([body(index) for index in range(3)]))
    polled(batch.id, lambda batch: batch.status == "in_progress")
    return batch.id


def begun():
    """A batch of many lines, for a gateway that is killed meanwhile; prints its id and its counts."""
    batch = create(jsonl([body(index, max_tokens=100) for index in range(240)]))
    batch = polled(batch.id, lambda batch: batch.request_counts.completed >= 3)
    return {"id": batch.id, "completed": batch.request_counts.completed}


def ended():
    """The texts of the batch whose id is the sixth argument, compared with those of lone requests."""
    batch = polled(sys.argv[5])
    assert batch.status == "completed", batch
    output = read(batch.output_file_id)
    for index in [0, len(output) // 2, len(output) - 1]:
        of = client().batches.retrieve(batch.id).request_counts.total
        alone = client().completions.create(**body(index, max_tokens=100 if of > 3 else 16))
        assert output[f"line-{index}"]["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
    counts = batch.request_counts
    return {"total": counts.total, "completed": counts.completed, "lines": sorted(output)}


print(json.dumps(globals()[CHECK](), ensure_ascii=False))
