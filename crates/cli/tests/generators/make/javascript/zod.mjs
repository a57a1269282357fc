// Writes JSON schemas as zod 4, its helpers in SDKs and zod-to-json-schema make them.
// The first argument is the folder to write to.
import { mkdirSync, writeFileSync } from "node:fs";
import * as z from "zod";
import * as z3 from "zod/v3";
import { zodToJsonSchema } from "zod-to-json-schema";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { betaZodTool, betaZodOutputFormat } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodSchema } from "ai";

const dir = process.argv[2];
for (const d of ["zod4", "zod3", "sdk"]) mkdirSync(`${dir}/${d}`, { recursive: true });
const put = (name, schema) =>
  writeFileSync(`${dir}/${name}.json`, JSON.stringify(schema, null, 1) + "\n");
const failed = [];
const js = (name, schema, options) => {
  try { put(name, z.toJSONSchema(schema, options)); }
  catch (e) { failed.push(`${name}: ${e.message}`); }
};

const numbers = z.object({
  int: z.int(), int32: z.int32(), uint32: z.uint32(), float32: z.float32(), float64: z.float64(),
  safe: z.number().int(), positive: z.number().positive(), nonnegative: z.number().nonnegative().int(),
  open: z.number().gt(0).lt(100), step: z.number().multipleOf(0.01), even: z.int().multipleOf(2).min(-10),
});
js("zod4/numbers", numbers);
js("zod4/numbers-draft4", numbers, { target: "draft-4" });

js("zod4/string-formats", z.object({
  email: z.email(), uuid: z.uuid(), uuidv7: z.uuidv7(), guid: z.guid(), url: z.url(), http: z.httpUrl(),
  hostname: z.hostname(), emoji: z.emoji(), base64: z.base64(), base64url: z.base64url(), jwt: z.jwt(),
  nanoid: z.nanoid(), cuid: z.cuid(), cuid2: z.cuid2(), ulid: z.ulid(), ksuid: z.ksuid(), xid: z.xid(),
  ipv4: z.ipv4(), ipv6: z.ipv6(), mac: z.mac(), cidrv4: z.cidrv4(), cidrv6: z.cidrv6(), e164: z.e164(),
  hex: z.hex(), sha256: z.hash("sha256"),
}));
js("zod4/date-time", z.object({
  day: z.iso.date(), time: z.iso.time(), at: z.iso.datetime(), offset: z.iso.datetime({ offset: true }),
  local: z.iso.datetime({ local: true, precision: 3 }), minute: z.iso.time({ precision: -1 }), took: z.iso.duration(),
}));
js("zod4/regex", z.object({
  lookahead: z.string().regex(/^(?=.*[A-Z])(?=.*\d)[^\s]{8,64}$/),
  unicode: z.string().regex(/^\p{Lu}\p{L}*(?:[ '-]\p{L}+)*$/u), flags: z.string().regex(/^(GET|POST)\s+\/\S*$/i),
  sticky: z.string().regex(/^[\w.+-]+@[\w-]+\.[\w.]+$/), two: z.string().regex(/a/).regex(/b$/).min(2),
  starts: z.string().startsWith("https://"), ends: z.string().endsWith(".rs"), has: z.string().includes("a.b"),
  lower: z.string().lowercase(), upper: z.string().uppercase(), template: z.templateLiteral(["v", z.number(), ".", z.enum(["a", "b"])]),
  lengths: z.string().min(1).max(10).length(4), back: z.string().regex(/^(["']).*\1$/), lazy: z.string().regex(/^<.+?>$/),
}));
js("zod4/literal-enum", z.object({
  one: z.literal("on"), several: z.literal(["a", 1, true, null]), nothing: z.null(), num: z.literal(0.5),
  yes: z.literal(true), words: z.enum(["north", "east & west", "\u00fcber", ""]), numeric: z.enum({ Low: 1, High: 2 }), mixed: z.nativeEnum({ A: "a", B: 3 }),
}));
const nullable = z.object({
  a: z.string().nullable(), b: z.string().optional(), c: z.string().nullish(), d: z.object({ x: z.int().nullable() }).nullable().optional(),
  e: z.enum(["x", "y"]).nullable(), f: z.array(z.string().nullable()).nullish().default(null), g: z.literal("x").nullable(), h: z.null(),
});
js("zod4/optional-nullable", nullable);
js("zod4/optional-nullable-openapi3", nullable, { target: "openapi-3.0" });
const io = z.object({
  limit: z.number().int().min(1).max(100).default(20).describe("How many"), order: z.enum(["asc", "desc"]).prefault("asc"),
  trimmed: z.string().trim().toLowerCase(), length: z.string().transform((s) => s.length).pipe(z.number()),
  caught: z.boolean().catch(false), coerced: z.coerce.number(), once: z.stringbool(), ro: z.array(z.string()).readonly(),
  date: z.codec(z.iso.datetime(), z.string(), { decode: (s) => s, encode: (s) => s }),
});
js("zod4/default-input", io, { io: "input" });
js("zod4/default-output", io, { io: "output" });
js("zod4/record", z.object({
  any: z.record(z.string(), z.unknown()), counts: z.record(z.string().regex(/^[a-z]+$/), z.int()),
  full: z.record(z.enum(["a", "b"]), z.number()), partial: z.partialRecord(z.enum(["a", "b"]), z.string()),
  numeric: z.record(z.number(), z.boolean()), loose: z.looseRecord(z.string().regex(/^x-/), z.string()), email: z.record(z.email(), z.array(z.any())),
}));
js("zod4/record-draft7", z.record(z.string().min(1).max(8), z.record(z.enum(["k", "l"]), z.string())), { target: "draft-7" });
const tuple = z.object({
  pair: z.tuple([z.string(), z.number()]), rest: z.tuple([z.literal("cmd")], z.string()), optional: z.tuple([z.int(), z.int().optional()]),
  none: z.tuple([]), bounded: z.array(z.string()).min(1).max(3), exact: z.array(z.boolean()).length(2), some: z.array(z.int()).nonempty(),
});
js("zod4/tuple", tuple);
js("zod4/tuple-draft7", tuple, { target: "draft-7" });
js("zod4/tuple-openapi3", tuple, { target: "openapi-3.0" });
js("zod4/strict-object", z.strictObject({ a: z.string(), b: z.strictObject({}).optional() }), { io: "input" });
js("zod4/loose-object", z.looseObject({ a: z.string(), n: z.never().optional(), u: z.undefined().optional() }), { unrepresentable: "any" });
js("zod4/catchall", z.object({ id: z.string(), "x y": z.int().optional(), "$ref": z.string().optional() }).catchall(z.union([z.string(), z.number(), z.boolean()])));
js("zod4/discriminated-union", z.discriminatedUnion("type", [
  z.object({ type: z.literal("text"), text: z.string() }),
  z.object({ type: z.literal("image"), source: z.discriminatedUnion("kind", [
    z.strictObject({ kind: z.literal("url"), url: z.url() }), z.strictObject({ kind: z.literal("base64"), data: z.base64(), media_type: z.enum(["image/png", "image/jpeg"]) })]) }),
  z.object({ type: z.literal(["a", "b"]) }),
]));
js("zod4/union", z.union([z.string(), z.int(), z.array(z.union([z.string(), z.null()])), z.xor([z.object({ or: z.boolean() }), z.object({ that: z.string() })])]));
js("zod4/intersection", z.intersection(z.object({ a: z.string() }), z.intersection(z.object({ b: z.number() }), z.record(z.string(), z.union([z.string(), z.number()])))));
const Category = z.object({ name: z.string(), get children() { return z.array(Category); }, get parent() { return Category.nullable().optional(); } });
js("zod4/recursive", Category);
const Leaf = z.object({ v: z.int() }).meta({ id: "a/leaf~1", title: "Leaf", examples: [{ v: 1 }], deprecated: true });
js("zod4/meta-ids", z.object({ l: Leaf, ls: z.array(Leaf).describe("beside a reference"), o: Leaf.optional() }));
js("zod4/json-value", z.object({ value: z.json(), any: z.any().describe("anything"), unknown: z.unknown().optional() }));
js("zod4/reused-refs", z.object({ a: Category, b: nullable, c: nullable }), { reused: "ref" });
const odd = z.object({ big: z.bigint(), date: z.date(), set: z.set(z.string()), map: z.map(z.string(), z.int()), sym: z.symbol(), file: z.custom(() => true), nan: z.nan() });
js("zod4/bigint-date-set", odd, { unrepresentable: "any", override: (c) => {
  const t = c.zodSchema._zod.def.type;
  if (t === "bigint") { c.jsonSchema.type = "integer"; c.jsonSchema.format = "int64"; }
  if (t === "date") { c.jsonSchema.type = "string"; c.jsonSchema.format = "date-time"; }
} });
js("zod4/file", z.object({ upload: z.file().min(1).max(10_000_000).mime(["image/png", "image/webp"]), one: z.file().mime("application/pdf") }));
js("zod4/long-description", z.object({ q: z.string().describe("A \"quoted\" line.\n\n".repeat(120)), emoji: z.string().describe("\ud83d\ude80 \u2028 \\d") }).describe("What the tool does. ".repeat(80)));

// Helpers of SDKs, with tools as their documents show them.
const weather = z.object({
  location: z.string().describe("City, e.g. Paris"), unit: z.enum(["c", "f"]).nullable(), days: z.number().int().min(1).max(14).default(3),
  at: z.union([z.iso.datetime(), z.object({ relative: z.literal("now") })]), tags: z.array(z.string()).max(5),
});
put("sdk/openai-zod-function", zodFunction({ name: "weather", parameters: weather.omit({ days: true }) }).function.parameters);
const Step = z.object({ explanation: z.string(), get substeps() { return z.array(Step); } });
put("sdk/openai-response-format-recursive", zodResponseFormat(z.object({ steps: z.array(Step), final: z.string(), first: Step.nullable() }), "math").json_schema.schema);
const Step3 = z3.object({ explanation: z3.string(), output: z3.string().nullable() });
put("sdk/openai-response-format-zod3", zodResponseFormat(z3.object({ steps: z3.array(Step3), first: Step3, last: Step3.nullable() }), "math").json_schema.schema);
put("sdk/anthropic-zod-tool", betaZodTool({ name: "weather", description: "d", inputSchema: weather, run: () => "" }).input_schema);
put("sdk/anthropic-output-format", betaZodOutputFormat(weather).schema);
put("sdk/ai-sdk-tool", await zodSchema(weather).jsonSchema);
put("sdk/ai-sdk-recursive", await zodSchema(Category, { useReferences: true }).jsonSchema);
const old = z3.object({
  set: z3.set(z3.string()).min(1), map: z3.map(z3.string(), z3.number()), date: z3.date().min(new Date(0)), big: z3.bigint(), rec: z3.record(z3.enum(["a", "b"]), z3.number()), rec2: z3.record(z3.string().min(2), z3.number()),
  tuple: z3.tuple([z3.string(), z3.number()]).rest(z3.boolean()), email: z3.string().email().min(3).max(60), two: z3.string().regex(/a/i).regex(/b/),
  never: z3.never().optional(), inter: z3.object({ a: z3.string() }).strict().and(z3.object({ b: z3.number() }).strict()),
  lit: z3.union([z3.literal("x"), z3.literal(1), z3.literal(null)]), strs: z3.union([z3.string(), z3.number(), z3.null()]),
  first: Step3, again: Step3, not: z3.any().optional(), brand: z3.string().brand("x"), ts: z3.string().datetime(), ip: z3.string().ip(), ex: z3.number().gt(0).finite(),
  undef: z3.undefined(),
});
put("zod3/draft7", zodToJsonSchema(old));
put("zod3/named", zodToJsonSchema(old.pick({ first: true, again: true, tuple: true, map: true }), { name: "Old/Name", definitionPath: "$defs", definitions: { Step3 } }));
put("zod3/2019", zodToJsonSchema(old, { target: "jsonSchema2019-09", mapStrategy: "record", dateStrategy: "integer", patternStrategy: "preserve", applyRegexFlags: true }));
put("zod3/openapi3", zodToJsonSchema(old, { target: "openApi3", emailStrategy: "pattern:zod", $refStrategy: "none" }));
put("zod3/mcp-strict-unions", zodToJsonSchema(old, { strictUnions: true, pipeStrategy: "input", effectStrategy: "any", removeAdditionalStrategy: "strict" }));
if (failed.length) console.error(failed.join("\n"));
