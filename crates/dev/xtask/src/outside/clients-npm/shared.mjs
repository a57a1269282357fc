// Settings and helpers of all clients of this suite.

import assert from "node:assert/strict";

export const { OUTSIDE_URL: url, OUTSIDE_KEY: key, OUTSIDE_MODEL: model } = process.env;

/** Time limit of a request in milliseconds. It allows for a debug build on a slow machine. */
export const timeout = 120_000;

export const question = { role: "user", content: "Say hi." };
export const nextQuestion = { role: "user", content: "And again." };

/** A prompt that is longer than the 8,192 tokens of the model's context. */
export const longPrompt = "hello ".repeat(12_000);

/**
 * Fewest tokens by which the prompt of `nextQuestion` is longer than that of an earlier reply: those of
 * the question between the template's marks, and half of the reply's own. A reply that a grammar
 * constrained may have more tokens than its text needs in a prompt.
 */
export const growth = (replyTokens) => 8 + replyTokens / 2;

export const moods = ["happy", "sad"];

/** JSON schema of the tool `set_mood`. */
export const moodSchema = {
  type: "object",
  properties: { mood: { type: "string", enum: moods } },
  required: ["mood"],
  additionalProperties: false,
};

/** Fails if a text is empty. */
export function hasText(text) {
  assert(typeof text === "string" && text.trim().length > 0, `no text: ${JSON.stringify(text)}`);
}
