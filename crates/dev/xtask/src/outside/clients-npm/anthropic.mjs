// Anthropic's client: messages, tools, structured outputs, token counts and models.

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import { betaZodOutputFormat, betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

import { all, failure, test } from "./report.mjs";
import {
  growth,
  hasText,
  key,
  longPrompt,
  model,
  moods,
  moodSchema,
  nextQuestion,
  question,
  timeout,
  url,
} from "./shared.mjs";

const client = new Anthropic({ baseURL: url, apiKey: key, timeout, maxRetries: 0 });
const messages = [question];
const asked = { model, messages, max_tokens: 16, temperature: 0 };
const Mood = z.object({ mood: z.enum(moods), other: z.enum(moods).optional() });
const tools = [{ name: "set_mood", description: "Sets the mood.", input_schema: moodSchema }];

// Without `disable_parallel_tool_use`, a small model may repeat a call up to the token limit.
const choices = [{ type: "any" }, { type: "tool", name: "set_mood" }].map((choice) => ({
  ...choice,
  disable_parallel_tool_use: true,
}));

/** Number of tokens of a message's prompt. */
const promptTokens = ({ usage }) =>
  usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens;

/** Sends a message back, with blocks of the user, and checks that they are in the prompt. */
async function sentBack(message, content, create = (body) => client.messages.create(body)) {
  const history = [...messages, { role: message.role, content: message.content }, { role: "user", content }];
  const next = await create({ ...asked, messages: history });
  hasText(next.content[0].text);
  // The template of the chat model decides how much of a call is in the prompt.
  const grown = message.stop_reason === "tool_use" ? 0 : growth(message.usage.output_tokens);
  assert(promptTokens(next) > promptTokens(message) + grown, JSON.stringify([message.usage, next.usage]));
}

await test("anthropic: a message is created and sent back", async () => {
  const message = await client.messages.create(asked);
  assert.equal(message.type, "message");
  assert.equal(message.role, "assistant");
  assert(["end_turn", "max_tokens"].includes(message.stop_reason), message.stop_reason);
  assert(message.usage.output_tokens > 0 && message.usage.output_tokens <= 16);
  hasText(message.content[0].text);
  await sentBack(message, nextQuestion.content);
});

await test("anthropic: a stream has the message of the whole", async () => {
  const whole = await client.messages.create(asked);
  const stream = client.messages.stream(asked);
  let text = "";
  stream.on("text", (delta) => (text += delta));
  const final = await stream.finalMessage();
  assert.equal(text, whole.content[0].text);
  assert.equal(final.content[0].text, text);
  assert.equal(final.stop_reason, whole.stop_reason);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
  assert.equal(promptTokens(final), promptTokens(whole));
  const events = await all(await client.messages.create({ ...asked, stream: true }));
  assert.equal(events[0].type, "message_start");
  assert.equal(events.at(-1).type, "message_stop");
});

await test("anthropic: a stop sequence is told", async () => {
  const stop = (await client.messages.create(asked)).content[0].text.slice(4, 6);
  const message = await client.messages.create({ ...asked, stop_sequences: [stop] });
  assert.equal(message.stop_reason, "stop_sequence");
  assert.equal(message.stop_sequence, stop);
});

await test("anthropic: a tool is called and its result is sent back", async () => {
  for (const tool_choice of choices) {
    const call = { ...asked, max_tokens: 100, tools, tool_choice };
    const whole = await client.messages.create(call);
    const streamed = await client.messages.stream(call).finalMessage();
    for (const message of [whole, streamed]) {
      assert.equal(message.stop_reason, "tool_use");
      const use = message.content.find((block) => block.type === "tool_use");
      assert.equal(use.name, "set_mood");
      assert(moods.includes(use.input.mood), JSON.stringify(use));
      const result = [{ type: "text", text: "done" }];
      await sentBack(message, [{ type: "tool_result", tool_use_id: use.id, content: result }]);
    }
    assert.deepEqual(streamed.content.map((block) => block.input), whole.content.map((block) => block.input));
  }
});

/** Runs a tool with the tool runner and checks that the second request has the result of the first call. */
async function toolRunner(more) {
  const called = [];
  const run = ({ mood }) => (called.push(mood), "done");
  const tool = betaZodTool({ name: "set_mood", description: "Sets the mood.", inputSchema: Mood, run });
  // A required call is required in each round, so the number of rounds ends the loop.
  const options = { ...asked, max_tokens: 100, tools: [tool], tool_choice: choices[0], max_iterations: 2, ...more };
  const prompts = [];
  for await (const round of client.beta.messages.toolRunner(options)) {
    const message = more.stream ? await round.finalMessage() : round;
    assert.equal(message.stop_reason, "tool_use");
    prompts.push(promptTokens(message));
  }
  assert.equal(prompts.length, 2);
  assert(prompts[1] > prompts[0], JSON.stringify(prompts));
  assert(called.length >= 1 && called.every((mood) => moods.includes(mood)), JSON.stringify(called));
}

await test("anthropic: a message thread goes on", async () => {
  const { messages: _, ...settings } = asked;
  const thread = client.beta.messages.thread(settings);
  const first = await thread.send(question);
  const second = await thread.send(nextQuestion);
  hasText(second.content[0].text);
  const least = promptTokens(first) + growth(first.usage.output_tokens);
  assert(promptTokens(second) > least, JSON.stringify([first.usage, second.usage]));
});

// The runner's default is a message thread too, of which it sends the new messages only. A server that
// has no threads must refuse the field in a form that makes the client send the whole history.
for (const stream of [false, true]) {
  const how = stream ? ", streamed" : "";
  await test(`anthropic: the tool runner sends results of a tool${how}`, () => toolRunner({ stream }));
  await test(`anthropic: the tool runner without a thread sends results of a tool${how}`, () =>
    toolRunner({ stream, thread: false }));
}

await test("anthropic: a reply parsed with zod is sent back", async () => {
  const body = { ...asked, max_tokens: 60 };
  const parsed = await client.messages.parse({ ...body, output_config: { format: zodOutputFormat(Mood) } });
  assert.deepEqual(parsed.parsed_output, Mood.parse(JSON.parse(parsed.content[0].text)));
  await sentBack(parsed, nextQuestion.content);
});

await test("anthropic: a beta reply parsed with zod is sent back", async () => {
  const body = { ...asked, max_tokens: 60 };
  const parsed = await client.beta.messages.parse({ ...body, output_config: { format: betaZodOutputFormat(Mood) } });
  assert.deepEqual(parsed.parsed_output, Mood.parse(JSON.parse(parsed.content[0].text)));
  await sentBack(parsed, nextQuestion.content, (next) => client.beta.messages.create(next));
});

await test("anthropic: adaptive thinking is accepted with each display", async () => {
  for (const display of [undefined, "summarized", "omitted"]) {
    const thinking = { type: "adaptive", display };
    assert((await client.messages.create({ ...asked, thinking })).usage.output_tokens > 0);
  }
});

// Claude Code sends it with `--output-format stream-json`.
await test("anthropic: the beta display of thinking, updates, is accepted", async () => {
  const thinking = { type: "adaptive", display: "updates" };
  assert((await client.beta.messages.create({ ...asked, thinking })).usage.output_tokens > 0);
});

await test("anthropic: counted tokens are those of the prompt", async () => {
  const system = "You are brief.";
  const counted = await client.messages.countTokens({ model, messages, system });
  const beta = await client.beta.messages.countTokens({ model, messages, system });
  const message = await client.messages.create({ ...asked, system });
  assert.equal(counted.input_tokens, promptTokens(message));
  assert.equal(beta.input_tokens, promptTokens(message));
});

await test("anthropic: models are listed and retrieved in Anthropic's form", async () => {
  const found = (await all(client.models.list())).find((entry) => entry.id === model);
  for (const entry of [found, await client.models.retrieve(model)]) {
    assert.equal(entry?.id, model);
    assert.equal(entry.type, "model");
    hasText(entry.display_name);
    assert(!Number.isNaN(Date.parse(entry.created_at)), JSON.stringify(entry));
  }
});

await test("anthropic: a request that is aborted ends, and the gateway serves on", async () => {
  const stream = client.messages.stream({ ...asked, max_tokens: 400 });
  stream.once("text", () => stream.abort());
  await failure(Anthropic.APIUserAbortError, stream.done());
  const controller = new AbortController();
  const whole = client.messages.create({ ...asked, max_tokens: 400 }, { signal: controller.signal });
  controller.abort();
  await failure(Anthropic.APIUserAbortError, whole);
  hasText((await client.messages.create(asked)).content[0].text);
});

await test("anthropic: each error has its class", async () => {
  const missing = await failure(Anthropic.NotFoundError, client.messages.create({ ...asked, model: "none" }));
  assert.equal(missing.error.error.type, "not_found_error");
  for (const stream of [false, true]) {
    const long = [{ role: "user", content: longPrompt }];
    const request = client.messages.create({ ...asked, messages: long, stream });
    const refused = await failure(Anthropic.BadRequestError, request);
    assert.equal(refused.error.error.type, "invalid_request_error");
  }
});
