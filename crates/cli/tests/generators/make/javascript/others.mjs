// Writes JSON schemas as joi-to-json, arktype and effect make them. The first argument is the folder to write to.
import { mkdirSync, writeFileSync } from "node:fs";
import Joi from "joi";
import parse from "joi-to-json";
import { type, scope } from "arktype";
import * as E from "effect";

const dir = process.argv[2];
const put = (folder, name, make) => {
  try {
    mkdirSync(`${dir}/${folder}`, { recursive: true });
    writeFileSync(`${dir}/${folder}/${name}.json`, JSON.stringify(make(), null, 1) + "\n");
  } catch (e) { console.error(`${folder}/${name}: ${e.message}`); }
};

const joi = Joi.object({
  a: Joi.string().min(2).pattern(/^[a-z]+$/).required(), b: Joi.number().integer().positive().max(10), c: Joi.number().greater(1).less(2).multiple(0.5).allow(null),
  list: Joi.array().items(Joi.string(), Joi.number()).unique().has(Joi.string().valid("x")), ordered: Joi.array().ordered(Joi.string().required(), Joi.number()), date: Joi.date().iso(), bin: Joi.binary().encoding("base64").min(2),
  alt: Joi.alternatives().try(Joi.string(), Joi.boolean()), one: Joi.alternatives().match("one").try(Joi.string(), Joi.number()), all: Joi.alternatives().match("all").try(Joi.string().min(1), Joi.string().max(2)), valid: Joi.valid("x", 1, null), not: Joi.string().invalid("root", "admin"),
  uri: Joi.string().uri(), guid: Joi.string().guid(), email: Joi.string().email(), ip: Joi.string().ip({ version: ["ipv4", "ipv6"] }), host: Joi.string().hostname(), hex: Joi.string().hex().length(4), data: Joi.string().dataUri(), upper: Joi.string().uppercase(), iso: Joi.string().isoDuration(),
  when: Joi.when("a", { is: Joi.string().valid("yes"), then: Joi.number().required(), otherwise: Joi.forbidden() }), map: Joi.object().pattern(/^x-/, Joi.number()).pattern(Joi.string().min(3), Joi.string()).min(1).max(3), forbidden: Joi.forbidden(), fn: Joi.any().description("anything").example(1),
});
const keys = Object.fromEntries(["a", "b", "c", "list", "ordered", "date", "bin", "uri", "guid", "email", "ip", "host", "alt", "one", "hex", "data"].map((k) => [k, Joi.string()]));
const groups = Joi.object(keys).and("b", "c").or("list", "ordered").xor("date", "bin").nand("uri", "guid").with("email", ["ip", "host"]).without("alt", "one").oxor("hex", "data");
const when = Joi.object({ kind: Joi.valid("card", "cash").required(), number: Joi.string().when("kind", { is: "card", then: Joi.required(), otherwise: Joi.forbidden() }), extra: Joi.number() })
  .when(Joi.object({ kind: Joi.valid("cash") }).unknown(), { then: Joi.object({ extra: Joi.required() }) });
for (const [name, target] of [["draft7", "json"], ["draft4", "json-draft-04"], ["openapi3", "open-api"]]) put("joi", "kinds-" + name, () => parse(joi, target));
for (const [name, target] of [["draft2019-09", "json-draft-2019-09"], ["draft4", "json-draft-04"]]) put("joi", "groups-of-keys-" + name, () => parse(groups, target));
put("joi", "when", () => parse(when, "json"));
put("joi", "shared-and-recursive", () => parse(Joi.object({ p: Joi.link("#person"), q: Joi.array().items(Joi.link("#person")) }).shared(Joi.object({ name: Joi.string(), kids: Joi.array().items(Joi.link("#person")) }).id("person"))));

const ark = type({
  name: "string > 0", age: "1 <= number.integer < 150", "email?": "string.email", tags: "string[] <= 4", kind: "'a' | 'b' | 3 | null", even: "number % 2", date: "string.date.iso", uuid: "string.uuid", digits: "string.digits", re: "/^v\\d+$/",
  pair: ["string", "number"], rest: ["string", "...", "number[]"], opt: ["string", "number?"], post: ["...", "string[]", "boolean"], "[string]": "unknown", both: type({ a: "string" }).and({ b: "number" }), u: type({ t: "'x'", v: "string" }).or({ t: "'y'", w: "number" }), strict: { "+": "reject", k: "boolean" }, "def": "number = 5", "any?": "unknown", rec: "Record<string, number>", keyed: { "[/^x-/]": "string" }, "bytes?": "string.base64",
});
put("arktype", "all-kinds", () => ark.toJsonSchema({ fallback: (c) => c.base }));
put("arktype", "all-kinds-draft7", () => ark.toJsonSchema({ target: "draft-07", fallback: (c) => c.base }));
put("arktype", "recursive", () => scope({ tree: { value: "number", "kids?": "tree[]", "up?": "tree | null" } }).export().tree.toJsonSchema());

const S = E.Schema;
const Tree = S.Struct({ value: S.Number, kids: S.Array(S.suspend(() => Tree)) }).annotate({ identifier: "a/Tree~" });
const doc = (s) => S.toJsonSchemaDocument(s);
const whole = (s) => { const d = doc(s); return Object.keys(d.definitions ?? {}).length ? { ...d.schema, $defs: d.definitions } : d.schema; };
put("effect", "recursive", () => whole(Tree));
put("effect", "all-kinds", () => whole(S.Struct({
  s: S.String, n: S.Number, f: S.Finite, i: S.Int, o: S.optional(S.String), ok: S.optionalKey(S.Boolean), nul: S.NullOr(S.String), und: S.UndefinedOr(S.Number), lit: S.Literals(["a", 1]), rec: S.Record(S.String, S.Int), tup: S.Tuple([S.String, S.optionalKey(S.Number)]),
  rest: S.TupleWithRest(S.Tuple([S.String]), [S.Number]), tpl: S.TemplateLiteral(["a", S.Number]), u: S.Union([S.Struct({ t: S.Literal("x") }), S.Struct({ t: S.Literal("y") })]), big: S.BigInt, date: S.Date, any: S.Any, unk: S.Unknown, nev: S.optional(S.Never), non: S.NonEmptyArray(S.String), tree: Tree, set: S.ReadonlySet ? S.ReadonlySet(S.String) : S.String,
  withRest: S.StructWithRest(S.Struct({ a: S.String }), [S.Record(S.String, S.Unknown)]), chk: S.String.check(S.isMinLength(2), S.isPattern(/^a/)), num: S.Number.check(S.isBetween({ minimum: 1, maximum: 5 }), S.isMultipleOf(0.5)), uniq: S.Array(S.String).check(S.isUnique()),
})));
