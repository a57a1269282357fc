// OpenAI's client: the messages that its helpers return are sent back.

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
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

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, timeout, maxRetries: 0 });
const messages = [question];
const asked = { model, messages, max_completion_tokens: 16, temperature: 0 };
const responded = { model, input: [question], max_output_tokens: 16, temperature: 0 };
const Mood = z.object({ mood: z.enum(moods), other: z.enum(moods).nullable() });

// Without `parallel_tool_calls: false`, a small model may repeat a call up to the token limit.
const calling = { max_completion_tokens: 100, parallel_tool_calls: false };
const set_mood = { name: "set_mood", description: "Sets the mood.", parameters: moodSchema };

/** Sends a message of the assistant back, with more messages, and checks that they are in the prompt. */
async function sentBack(completion, ...more) {
  const { message } = completion.choices[0];
  const history = [...messages, message, ...more, nextQuestion];
  const next = await client.chat.completions.create({ ...asked, messages: history });
  hasText(next.choices[0].message.content);
  // The template of the chat model decides how much of a call is in the prompt.
  const written = message.tool_calls ? 0 : completion.usage.completion_tokens;
  const usages = [completion.usage, next.usage];
  assert(next.usage.prompt_tokens > completion.usage.prompt_tokens + growth(written), JSON.stringify(usages));
}

await test("openai: a reply parsed with zod is sent back", async () => {
  const response_format = zodResponseFormat(Mood, "mood");
  const parsed = await client.chat.completions.parse({ ...asked, max_completion_tokens: 60, response_format });
  const { message } = parsed.choices[0];
  assert.deepEqual(message.parsed, Mood.parse(JSON.parse(message.content)));
  await sentBack(parsed);
});

await test("openai: a parsed tool call and its result are sent back", async () => {
  const tools = [zodFunction({ name: "set_mood", parameters: z.object({ mood: z.enum(moods) }) })];
  const parsed = await client.chat.completions.parse({ ...asked, ...calling, tools, tool_choice: "required" });
  const call = parsed.choices[0].message.tool_calls[0];
  assert(moods.includes(call.function.parsed_arguments.mood), JSON.stringify(call));
  await sentBack(parsed, { role: "tool", tool_call_id: call.id, content: "done" });
});

await test("openai: the message that the stream helper ends with is sent back", async () => {
  const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  const final = await stream.finalChatCompletion();
  hasText(final.choices[0].message.content);
  await sentBack(final);
});

await test("openai: a streamed tool call and its result are sent back", async () => {
  const tools = [{ type: "function", function: { ...set_mood, strict: true } }];
  const options = { ...asked, ...calling, tools, tool_choice: "required", stream_options: { include_usage: true } };
  const stream = client.chat.completions.stream(options);
  const final = await stream.finalChatCompletion();
  const call = final.choices[0].message.tool_calls[0];
  assert(moods.includes(JSON.parse(call.function.arguments).mood), JSON.stringify(call));
  await sentBack(final, { role: "tool", tool_call_id: call.id, content: "done" });
});

for (const stream of [false, true]) {
  await test(`openai: runTools calls a function twice and sends its results${stream ? ", streamed" : ""}`, async () => {
    const called = [];
    const made = { ...set_mood, parse: JSON.parse, function: ({ mood }) => (called.push(mood), "done") };
    const tools = [{ type: "function", function: made }];
    const options = { ...asked, ...calling, tools, tool_choice: "required", stream };
    if (stream) options.stream_options = { include_usage: true };
    // A required call is required in each round, so the number of rounds ends the loop.
    const runner = client.chat.completions.runTools(options, { maxChatCompletions: 2 });
    await runner.done();
    assert(called.length >= 2 && called.every((mood) => moods.includes(mood)), JSON.stringify(called));
    const roles = runner.messages.map((message) => message.role);
    assert.deepEqual(roles.slice(0, 5), ["user", "assistant", "tool", "assistant", "tool"]);
    const [first, second] = runner.allChatCompletions().map(({ usage }) => usage);
    assert(second.prompt_tokens > first.prompt_tokens, JSON.stringify([first, second]));
  });
}

await test("openai: a parsed response goes on by its id and by its items", async () => {
  const text = { format: zodTextFormat(Mood, "mood") };
  const parsed = await client.responses.parse({ ...responded, max_output_tokens: 60, text });
  assert.deepEqual(parsed.output_parsed, Mood.parse(JSON.parse(parsed.output_text)));
  const byId = await client.responses.create({ ...responded, input: [nextQuestion], previous_response_id: parsed.id });
  const byItems = await client.responses.create({ ...responded, input: [question, ...parsed.output, nextQuestion] });
  hasText(byId.output_text);
  assert.equal(byItems.output_text, byId.output_text);
  assert.equal(byItems.usage.input_tokens, byId.usage.input_tokens);
  assert(byId.usage.input_tokens > parsed.usage.input_tokens);
});

await test("openai: a call of a response is answered by the response's id and by its items", async () => {
  const tools = [{ type: "function", ...set_mood, strict: true }];
  const options = { ...responded, max_output_tokens: 100, parallel_tool_calls: false, tools };
  const final = await client.responses.stream({ ...options, tool_choice: "required" }).finalResponse();
  const call = final.output.find((item) => item.type === "function_call");
  assert(moods.includes(JSON.parse(call.arguments).mood), JSON.stringify(call));
  const output = { type: "function_call_output", call_id: call.call_id, output: "done" };
  const next = { ...options, tool_choice: "none", max_output_tokens: 16 };
  const byId = await client.responses.create({ ...next, input: [output], previous_response_id: final.id });
  const byItems = await client.responses.create({ ...next, input: [question, ...final.output, output] });
  hasText(byId.output_text);
  assert.equal(byItems.output_text, byId.output_text);
  assert.equal(byItems.usage.input_tokens, byId.usage.input_tokens);
});

await test("openai: a prompt longer than the context is a bad request", async () => {
  const long = [{ role: "user", content: longPrompt }];
  for (const stream of [false, true]) {
    const chat = client.chat.completions.create({ ...asked, messages: long, stream });
    assert.equal((await failure(OpenAI.BadRequestError, chat)).code, "context_length_exceeded");
  }
  const response = client.responses.create({ ...responded, input: longPrompt });
  assert.equal((await failure(OpenAI.BadRequestError, response)).code, "context_length_exceeded");
});

await test("openai: a prompt longer than the context ends the stream of a response as failed", async () => {
  const events = await all(await client.responses.create({ ...responded, input: longPrompt, stream: true }));
  const { type, response } = events.at(-1);
  assert.equal(type, "response.failed");
  assert.equal(response.status, "failed");
  // The codes of a response are a list of their own, without `context_length_exceeded`.
  assert.equal(response.error.code, "context_length_exceeded");
});
