// The official JavaScript client of OpenAI, unmodified, against a gateway with the bundled model.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import OpenAI, { toFile } from "openai";

import { all, failure, test, version } from "./report.mjs";

const { OUTSIDE_URL, OUTSIDE_KEY, OUTSIDE_MODEL: model } = process.env;
const baseURL = `${OUTSIDE_URL}/v1`;
const client = new OpenAI({ baseURL, apiKey: OUTSIDE_KEY, timeout: 60_000 });
const messages = [{ role: "user", content: "Once a bear" }];
const asked = { model, messages, max_completion_tokens: 16, temperature: 0 };

const parameters = {
  type: "object",
  properties: { mood: { enum: ["happy", "sad"] } },
  required: ["mood"],
  additionalProperties: false,
};

async function until(look, done) {
  for (let turn = 0; turn < 600; turn++) {
    const value = await look();
    if (done(value)) return value;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("it did not end in a minute");
}

version("openai", JSON.parse(readFileSync("node_modules/openai/package.json", "utf8")).version);
version("node", process.versions.node);

await test("models are listed and retrieved", async () => {
  const names = (await all(client.models.list())).map((entry) => entry.id);
  assert(names.includes(model), names);
  assert.equal((await client.models.retrieve(model)).id, model);
});

await test("a chat is created", async () => {
  const { data, response, request_id } = await client.chat.completions.create(asked).withResponse();
  assert.equal(data.object, "chat.completion");
  assert.equal(data.choices[0].message.role, "assistant");
  assert.equal(data.choices[0].finish_reason, "length");
  assert.equal(data.usage.completion_tokens, 16);
  assert.equal(data.usage.total_tokens, data.usage.prompt_tokens + 16);
  assert.equal(data._request_id, request_id);
  assert.equal(response.headers.get("x-request-id"), request_id);
});

await test("a stream of a chat has the text of the whole", async () => {
  const whole = await client.chat.completions.create(asked);
  const chunks = await all(
    await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } }),
  );
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert(text.length > 0);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.deepEqual(chunks.at(-1).usage, { ...whole.usage, ...chunks.at(-1).usage });
  assert.equal(chunks.at(-1).usage.completion_tokens, 16);
  assert(chunks.every((chunk) => chunk.id === chunks[0].id));
});

await test("the stream helper of a chat ends with the completion", async () => {
  const whole = await client.chat.completions.create(asked);
  const stream = client.chat.completions.stream(asked);
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(final.choices[0].message.content, text);
});

await test("a stream that is aborted ends, and the gateway serves on", async () => {
  const stream = await client.chat.completions.create({ ...asked, max_completion_tokens: 400, stream: true });
  let chunks = 0;
  for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
  assert(chunks < 400);
  const controller = new AbortController();
  const whole = client.chat.completions.create(
    { ...asked, max_completion_tokens: 400 },
    { signal: controller.signal },
  );
  controller.abort();
  await failure(OpenAI.APIUserAbortError, whole);
  assert((await client.chat.completions.create(asked)).choices[0].message.content);
});

await test("a required tool is called", async () => {
  const tools = [{ type: "function", function: { name: "set_mood", parameters, strict: true } }];
  // Without `parallel_tool_calls: false`, the bundled model would repeat the call up to the limit.
  const call = { model, messages, tools, max_completion_tokens: 100, seed: 3, parallel_tool_calls: false };
  for (const tool_choice of ["required", { type: "function", function: { name: "set_mood" } }]) {
    const whole = await client.chat.completions.create({ ...call, tool_choice });
    const made = whole.choices[0].message.tool_calls[0];
    assert.equal(whole.choices[0].finish_reason, "tool_calls");
    assert.equal(made.function.name, "set_mood");
    assert(["happy", "sad"].includes(JSON.parse(made.function.arguments).mood));
    const final = await client.chat.completions.stream({ ...call, tool_choice }).finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.arguments, made.function.arguments);
    const result = { role: "tool", tool_call_id: made.id, content: "done" };
    const then = [...messages, whole.choices[0].message, result];
    const again = await client.chat.completions.create({ ...asked, messages: then });
    assert.equal(again.choices[0].message.role, "assistant");
  }
});

await test("runTools calls a function and goes on", async () => {
  const moods = [];
  const runner = client.chat.completions.runTools(
    {
      model,
      messages,
      seed: 3,
      max_completion_tokens: 100,
      tool_choice: { type: "function", function: { name: "set_mood" } },
      tools: [
        {
          type: "function",
          function: {
            name: "set_mood",
            description: "Sets the mood.",
            parameters,
            parse: JSON.parse,
            function: ({ mood }) => (moods.push(mood), "done"),
          },
        },
      ],
    },
    { maxChatCompletions: 1 },
  );
  await runner.done();
  assert(["happy", "sad"].includes(moods[0]), moods);
});

await test("a structured output is parsed", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "mood", schema: parameters, strict: true } };
  const made = await client.chat.completions.parse({
    ...asked,
    max_completion_tokens: 60,
    response_format,
  });
  assert(["happy", "sad"].includes(JSON.parse(made.choices[0].message.content).mood));
  const cut = client.chat.completions.parse({ ...asked, max_completion_tokens: 2, response_format });
  await failure(OpenAI.LengthFinishReasonError ?? Error, cut);
});

await test("logprobs have a row for each token", async () => {
  const made = await client.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 3 });
  const { content } = made.choices[0].logprobs;
  assert.equal(content.length, 16);
  for (const token of content) {
    assert.equal(token.top_logprobs.length, 3);
    assert(token.logprob <= 0);
    assert.equal(token.top_logprobs[0].token, token.token);
    assert.equal(Buffer.from(token.bytes).toString(), token.token);
  }
});

await test("n choices differ, and a seed repeats them", async () => {
  const several = { ...asked, n: 3, temperature: 1, seed: 5 };
  const texts = async (more) =>
    (await client.chat.completions.create({ ...several, ...more })).choices.map((c) => c.message.content);
  const first = await texts();
  assert.equal(new Set(first).size, 3);
  assert.deepEqual(await texts(), first);
  assert.notDeepEqual(await texts({ seed: 6 }), first);
});

await test("a stop sequence ends the reply before it", async () => {
  const whole = (await client.chat.completions.create({ ...asked, max_completion_tokens: 40 })).choices[0];
  const stop = whole.message.content.slice(8, 11);
  const cut = (await client.chat.completions.create({ ...asked, max_completion_tokens: 40, stop })).choices[0];
  assert.equal(cut.finish_reason, "stop");
  assert.equal(cut.message.content, whole.message.content.slice(0, whole.message.content.indexOf(stop)));
});

await test("completions take texts and token ids", async () => {
  const once = { model, prompt: "Once a bear", max_tokens: 8, temperature: 0 };
  const one = await client.completions.create(once);
  const two = await client.completions.create({ ...once, prompt: ["Once a bear", "Once a bear"], echo: true });
  assert.equal(two.choices[1].text, "Once a bear" + one.choices[0].text);
  const { tokens } = await client.post("/tokenize", { body: { model, prompt: "Once a bear" } });
  const ids = await client.completions.create({ ...once, prompt: tokens });
  assert.equal(ids.choices[0].text, one.choices[0].text);
});

await test("a response is created, streamed, retrieved and deleted", async () => {
  const ask = { model, input: "Once a bear", max_output_tokens: 16, temperature: 0 };
  const whole = await client.responses.create(ask);
  assert.equal(whole.status, "incomplete");
  assert.equal(whole.incomplete_details.reason, "max_output_tokens");
  assert(whole.output_text.length > 0);
  const stream = client.responses.stream(ask);
  const kinds = [];
  stream.on("event", (event) => kinds.push(event.type));
  const final = await stream.finalResponse();
  assert.equal(final.output_text, whole.output_text);
  assert.equal(kinds[0], "response.created");
  assert.equal(kinds.at(-1), "response.incomplete");
  assert.equal((await client.responses.retrieve(whole.id)).output_text, whole.output_text);
  const items = await all(client.responses.inputItems.list(whole.id));
  assert.equal(items[0].content[0].text, "Once a bear");
  const next = await client.responses.create({ ...ask, input: "And then?", previous_response_id: whole.id });
  assert(next.usage.input_tokens > whole.usage.input_tokens);
  await client.responses.delete(whole.id);
  await failure(OpenAI.NotFoundError, client.responses.retrieve(whole.id));
});

await test("a response in the background is read on from an event", async () => {
  const ask = { model, input: "Once a bear", max_output_tokens: 40, temperature: 0 };
  const first = [];
  const stream = await client.responses.create({ ...ask, background: true, stream: true });
  for await (const event of stream) if (first.push(event) === 10) break;
  const { id } = first[0].response;
  const rest = await all(
    await client.responses.retrieve(id, { stream: true, starting_after: first.at(-1).sequence_number }),
  );
  assert.deepEqual(
    [...first, ...rest].map((event) => event.sequence_number),
    [...first, ...rest].map((_, index) => index),
  );
  const texts = [...first, ...rest].filter((event) => event.type === "response.output_text.delta");
  const done = await until(() => client.responses.retrieve(id), (found) => found.status !== "in_progress");
  assert.equal(texts.map((event) => event.delta).join(""), done.output_text);
  // The helper reads a stream by its id too.
  const final = await client.responses.stream({ response_id: id, starting_after: 0 }).finalResponse();
  assert.equal(final.output_text, done.output_text);
});

await test("a response in the background is canceled", async () => {
  const made = await client.responses.create({ model, input: "Once a bear", background: true });
  assert(["queued", "in_progress"].includes(made.status));
  const stopped = await client.responses.cancel(made.id);
  assert(["cancelled", "completed", "incomplete"].includes(stopped.status));
});

await test("a response calls a tool and has a format", async () => {
  const ask = { model, input: "Once a bear", max_output_tokens: 100 };
  const tools = [{ type: "function", name: "set_mood", parameters, strict: true }];
  const made = await client.responses.create({ ...ask, tools, tool_choice: "required" });
  const call = made.output.find((item) => item.type === "function_call");
  assert(["happy", "sad"].includes(JSON.parse(call.arguments).mood));
  const output = { type: "function_call_output", call_id: call.call_id, output: "done" };
  const input = [{ role: "user", content: "Once a bear" }, ...made.output, output];
  assert((await client.responses.create({ ...ask, input, tools })).usage.output_tokens > 0);
  const format = { type: "json_schema", name: "mood", schema: parameters, strict: true };
  const parsed = await client.responses.parse({ ...ask, text: { format } });
  assert(["happy", "sad"].includes(JSON.parse(parsed.output_text).mood));
});

await test("a response calls a function of a namespace", async () => {
  const functions = [{ type: "function", name: "set_mood", parameters, strict: true }];
  const tools = [{ type: "namespace", name: "feelings", description: "Moods.", tools: functions }];
  const ask = { model, input: "Once a bear", max_output_tokens: 100, parallel_tool_calls: false, tools };
  const final = await client.responses.stream({ ...ask, tool_choice: "required" }).finalResponse();
  const call = final.output.find((item) => item.type === "function_call");
  assert.equal(call.namespace, "feelings");
  assert.equal(call.name, "set_mood");
  const output = { type: "function_call_output", call_id: call.call_id, output: "done" };
  const input = [{ role: "user", content: "Once a bear" }, call, output];
  assert((await client.responses.create({ ...ask, input, max_output_tokens: 8 })).usage.output_tokens > 0);
});

await test("embeddings of a generating model are refused", async () => {
  const error = await failure(OpenAI.BadRequestError, client.embeddings.create({ model, input: "a bear" }));
  assert.equal(error.type, "invalid_request_error");
});

await test("embeddings of an embedding model are vectors", async () => {
  const made = await client.embeddings.create({ model: "text-embedding-3-small", input: ["a bear", "the sea"] });
  assert.equal(made.data.length, 2);
  const [one, other] = made.data.map((entry) => entry.embedding);
  assert.equal(one.length, other.length);
  assert(Math.abs(Math.hypot(...one) - 1) < 1e-3);
  assert.notDeepEqual(one, other);
});

await test("each error has its class", async () => {
  const stranger = new OpenAI({ baseURL, apiKey: `nsk_00000000_${"x".repeat(43)}` });
  const unknown = await failure(OpenAI.AuthenticationError, stranger.models.list());
  assert.equal(unknown.code, "invalid_api_key");
  const missing = await failure(OpenAI.NotFoundError, client.chat.completions.create({ ...asked, model: "none" }));
  assert.equal(missing.code, "model_not_found");
  const bad = await failure(OpenAI.BadRequestError, client.chat.completions.create({ ...asked, top_p: 2 }));
  assert.equal(bad.param, "top_p");
  const odd = await failure(OpenAI.BadRequestError, client.chat.completions.create({ ...asked, sparkle: true }));
  assert.equal(odd.code, "unsupported_parameter");
  const long = [{ role: "user", content: "bear ".repeat(2000) }];
  const full = await failure(OpenAI.BadRequestError, client.chat.completions.create({ ...asked, messages: long }));
  assert.equal(full.code, "context_length_exceeded");
  await failure(OpenAI.NotFoundError, client.get("/nothing"));
  const late = new OpenAI({ baseURL, apiKey: OUTSIDE_KEY, timeout: 1, maxRetries: 0 });
  await failure(OpenAI.APIConnectionTimeoutError, late.chat.completions.create(asked));
});

await test("a file is uploaded, read and deleted", async () => {
  const content = '{"a": 1}\n'.repeat(1000);
  const made = await client.files.create({ file: await toFile(Buffer.from(content), "in.jsonl"), purpose: "batch" });
  assert.equal(made.bytes, content.length);
  assert.equal(await (await client.files.content(made.id)).text(), content);
  assert((await all(client.files.list())).some((file) => file.id === made.id));
  assert((await client.files.delete(made.id)).deleted);
  await failure(OpenAI.NotFoundError, client.files.retrieve(made.id));
});

await test("a batch has the text of the request alone", async () => {
  const line = { custom_id: "one", method: "POST", url: "/v1/chat/completions", body: asked };
  const file = await client.files.create({
    file: await toFile(Buffer.from(JSON.stringify(line) + "\n"), "in.jsonl"),
    purpose: "batch",
  });
  const made = await client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  const done = await until(
    () => client.batches.retrieve(made.id),
    (batch) => ["completed", "failed", "expired", "cancelled"].includes(batch.status),
  );
  assert.equal(done.status, "completed");
  const output = JSON.parse(await (await client.files.content(done.output_file_id)).text());
  const alone = await client.chat.completions.create(asked);
  assert.equal(output.response.body.choices[0].message.content, alone.choices[0].message.content);
});
