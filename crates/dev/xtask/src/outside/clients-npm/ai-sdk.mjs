// The AI SDK on its providers for OpenAI's and Anthropic's APIs.

import assert from "node:assert/strict";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { all, failure, test } from "./report.mjs";
import {
  growth,
  hasText,
  key,
  longPrompt,
  model,
  moods,
  nextQuestion,
  question,
  timeout,
  url,
} from "./shared.mjs";

const baseURL = `${url}/v1`;
const compatible = createOpenAICompatible({
  name: "gateway",
  baseURL,
  apiKey: key,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL, apiKey: key });
const anthropic = createAnthropic({ baseURL, apiKey: key });

// The options ask for one call at a time: a small model may repeat a call up to the token limit.
const providers = {
  "openai-compatible": {
    model: compatible.chatModel(model),
    providerOptions: { gateway: { parallel_tool_calls: false } },
  },
  "openai chat": {
    model: openai.chat(model),
    providerOptions: { openai: { parallelToolCalls: false } },
  },
  // The provider sends references to stored items instead of the items of earlier responses.
  "openai responses": {
    model: openai(model),
    providerOptions: { openai: { parallelToolCalls: false } },
  },
  "openai responses, not stored": {
    model: openai(model),
    providerOptions: { openai: { parallelToolCalls: false, store: false } },
  },
  // Structured outputs of this provider are calls of a tool, unless the mode below is chosen.
  anthropic: {
    model: anthropic(model),
    providerOptions: { anthropic: { disableParallelToolUse: true } },
  },
  "anthropic, output format": {
    model: anthropic(model),
    providerOptions: { anthropic: { disableParallelToolUse: true, structuredOutputMode: "outputFormat" } },
  },
};

const messages = [question];

const set_mood = tool({
  description: "Sets the mood.",
  inputSchema: z.object({ mood: z.enum(moods), size: z.union([z.literal("small"), z.literal("large")]).optional() }),
  execute: ({ mood }) => `The mood is ${mood}.`,
});
const tools = { set_mood };

const Report = z.object({
  mood: z.enum(moods),
  colors: z.record(z.string(), z.enum(["red", "blue"])),
  size: z.union([z.number().int().min(0).max(9), z.enum(["small", "large"])]),
  note: z.enum(["short"]).optional(),
});

// A record may have any number of entries, so the prompt has a reply that the model can copy.
const reported = [{ role: "user", content: 'Copy this JSON: {"mood":"happy","colors":{"hat":"red"},"size":"small"}' }];

/** Runs a stream to its end and returns its result. An error in the stream is thrown. */
async function streamed(options) {
  const result = streamText({ ...options, onError() {} });
  const parts = await all(result.fullStream);
  const failed = parts.find((part) => part.type === "error");
  if (failed) throw failed.error;
  return result;
}

/** Sends the messages of a result back. The prompt must have grown by the text of the last step. */
async function sentBack(asked, result, { inputTokens, outputTokens }) {
  const { messages: replies } = await result.response;
  const next = await generateText({ ...asked, messages: [...asked.messages, ...replies, nextQuestion] });
  hasText(next.text);
  const least = inputTokens + growth(outputTokens);
  assert(next.usage.inputTokens > least, JSON.stringify([inputTokens, outputTokens, next.usage]));
  return next;
}

/** Checks that a loop called the tool once, sent its result and ended with a text. */
async function looped(asked, result) {
  const [first, second, ...more] = await result.steps;
  assert.equal(more.length, 0);
  assert.equal(first.finishReason, "tool-calls");
  const [call] = first.toolCalls;
  assert.equal(call.toolName, "set_mood");
  assert.equal(first.toolResults[0].output, `The mood is ${call.input.mood}.`);
  assert.equal(second.toolCalls.length, 0);
  hasText(second.text);
  assert(second.usage.inputTokens > first.usage.inputTokens, JSON.stringify([first.usage, second.usage]));
  await sentBack(asked, result, second.usage);
}

for (const [name, provider] of Object.entries(providers)) {
  const asked = { ...provider, messages, maxOutputTokens: 16, temperature: 0, maxRetries: 0, timeout };
  const calling = { ...asked, tools, maxOutputTokens: 100 };

  await test(`ai-sdk, ${name}: a text is generated, and its messages are sent back`, async () => {
    const first = await generateText(asked);
    hasText(first.text);
    assert(["stop", "length"].includes(first.finishReason), first.finishReason);
    assert(first.usage.outputTokens > 0 && first.usage.outputTokens <= 16, JSON.stringify(first.usage));
    assert.deepEqual(first.warnings ?? [], []);
    const second = await sentBack(asked, first, first.usage);
    // The same history as plain text has the same prompt.
    const plain = [...messages, { role: "assistant", content: first.text }, nextQuestion];
    const other = await generateText({ ...asked, messages: plain });
    assert.equal(second.text, other.text);
    assert.equal(second.usage.inputTokens, other.usage.inputTokens);
  });

  await test(`ai-sdk, ${name}: a stream has the text of the whole, and its messages are sent back`, async () => {
    const whole = await generateText(asked);
    const stream = await streamed(asked);
    assert.equal(await stream.text, whole.text);
    assert.equal(await stream.finishReason, whole.finishReason);
    const usage = await stream.usage;
    assert.equal(usage.inputTokens, whole.usage.inputTokens);
    assert.equal(usage.outputTokens, whole.usage.outputTokens);
    await sentBack(asked, stream, usage);
  });

  for (const [kind, toolChoice] of [["required", "required"], ["named", { type: "tool", toolName: "set_mood" }]]) {
    await test(`ai-sdk, ${name}: a ${kind} tool is called, and the loop goes on with its result`, async () => {
      const options = {
        ...calling,
        stopWhen: stepCountIs(3),
        // A required call would be required in each step.
        prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? toolChoice : "none" }),
      };
      await looped(calling, await generateText(options));
      await looped(calling, await streamed(options));
    });
  }

  await test(`ai-sdk, ${name}: an object of a zod schema is generated`, async () => {
    const options = { ...asked, messages: reported, maxOutputTokens: 120, output: Output.object({ schema: Report }) };
    const whole = await generateText(options);
    assert.deepEqual(whole.output, Report.parse(JSON.parse(whole.text)));
    const stream = streamText(options);
    const partial = await all(stream.partialOutputStream);
    assert.deepEqual(partial.at(-1), whole.output);
    assert.deepEqual(await stream.output, whole.output);
    await sentBack({ ...asked, messages: reported }, whole, whole.usage);
  });

  await test(`ai-sdk, ${name}: a request that is aborted ends, and the gateway serves on`, async () => {
    const controller = new AbortController();
    const parts = [];
    const long = { ...asked, maxOutputTokens: 400, abortSignal: controller.signal };
    for await (const part of streamText({ ...long, onError() {} }).fullStream) {
      parts.push(part.type);
      if (part.type === "text-delta") controller.abort();
    }
    assert.equal(parts.at(-1), "abort");
    const late = await failure(Error, generateText({ ...long, abortSignal: AbortSignal.timeout(1) }));
    assert(["AbortError", "TimeoutError"].includes(late.name), late.name);
    hasText((await generateText(asked)).text);
  });

  await test(`ai-sdk, ${name}: a prompt longer than the context is a bad request, also streamed`, async () => {
    const long = { ...asked, messages: [{ role: "user", content: longPrompt }] };
    for (const request of [generateText, streamed]) {
      const error = await failure(APICallError, request(long));
      assert.equal(error.statusCode, 400);
      assert.equal(error.isRetryable, false);
    }
  });
}
