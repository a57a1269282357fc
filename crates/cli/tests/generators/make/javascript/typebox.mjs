// Writes JSON schemas as TypeBox 1.x and 0.34 make them. The first argument is the folder to write to.
import { mkdirSync, writeFileSync } from "node:fs";
import Type from "typebox";
import { Type as T } from "@sinclair/typebox";

const dir = process.argv[2] + "/typebox";
mkdirSync(dir, { recursive: true });
// The two versions write these alike: kept once.
const same = new Set(["array-034", "composed-034", "numbers-034", "nonstandard-types-034"]);
const put = (name, schema) => same.has(name) ||
  writeFileSync(`${dir}/${name}.json`, JSON.stringify(schema, null, 1) + "\n");

for (const [suffix, B] of [["", Type], ["-034", T]]) {
  put("record" + suffix, B.Object({
    any: B.Record(B.String(), B.Unknown()),
    pattern: B.Record(B.String({ pattern: "^x-[a-z]+$" }), B.Integer()),
    numbers: B.Record(B.Number(), B.Boolean()),
    integers: B.Record(B.Integer(), B.Null()),
    keys: B.Record(B.Union([B.Literal("a"), B.Literal("b")]), B.Optional(B.String())),
    template: B.Record(B.TemplateLiteral("on${'Click' | 'Key'}${number}"), B.Any()),
    closed: B.Record(B.String(), B.String(), { additionalProperties: false, minProperties: 1, maxProperties: 4 }),
  }));
  put("tuple" + suffix, B.Object({
    pair: B.Tuple([B.String(), B.Number()]), empty: B.Tuple([]), one: B.Tuple([B.Array(B.Tuple([B.Integer(), B.Integer()]))]),
  }));
  put("enum-literal" + suffix, B.Object({
    en: B.Enum({ A: "a", B: 2 }), lits: B.Union([B.Literal("x"), B.Literal(1), B.Literal(false), B.Null()]),
    one: B.Literal("only", { default: "only" }), keyof: B.KeyOf(B.Object({ a: B.String(), b: B.String() })),
    template: B.TemplateLiteral("v${1|2}.${number}"),
  }));
  put("intersection" + suffix, B.Intersect([
    B.Object({ a: B.String() }), B.Object({ b: B.Optional(B.Number()) }), B.Record(B.String(), B.Any()),
  ], { unevaluatedProperties: false, $id: "both", description: "closed by unevaluatedProperties" }));
  put("array" + suffix, B.Object({
    set: B.Array(B.String(), { uniqueItems: true, minItems: 1, maxItems: 9 }),
    contains: B.Array(B.Number(), { contains: B.Literal(1), minContains: 1, maxContains: 2 }),
    nested: B.Array(B.Array(B.Array(B.Boolean()))),
    bytes: B.String({ contentEncoding: "base64", contentMediaType: "application/octet-stream" }),
  }));
  put("numbers" + suffix, B.Object({
    open: B.Number({ exclusiveMinimum: 0, exclusiveMaximum: 1 }), step: B.Integer({ multipleOf: 5, minimum: -5, maximum: 50 }),
    frac: B.Number({ multipleOf: 0.1 }), def: B.Optional(B.Integer({ default: 3, title: "Three", examples: [1, 3] })),
    ro: B.Readonly(B.String({ readOnly: true })),
  }, { additionalProperties: false, minProperties: 1 }));
  put("union" + suffix, B.Union([
    B.Object({ kind: B.Literal("circle"), r: B.Number() }, { additionalProperties: false }),
    B.Object({ kind: B.Literal("square"), side: B.Number() }, { additionalProperties: false }),
    B.String({ format: "regex" }), B.Null(),
  ], { discriminator: { propertyName: "kind" } }));
  put("composed" + suffix, B.Partial(B.Omit(B.Object({ a: B.String(), b: B.Integer(), c: B.Array(B.String()) }), ["c"]), { additionalProperties: B.String() }));
  put("nonstandard-types" + suffix, B.Object({
    never: B.Optional(B.Never()), undef: B.Optional(B.Undefined()), void: B.Optional(B.Void()), unknown: B.Unknown(), any: B.Any({ description: "x" }),
    unsafe: B.Unsafe({ type: ["string", "null"], nullable: true }), fn: B.Optional(B.Function([B.String()], B.Number())), sym: B.Optional(B.Symbol()), big: B.Optional(B.BigInt()),
  }));
}
put("recursive", Type.Cyclic({ Node: Type.Object({ id: Type.String(), nodes: Type.Array(Type.Ref("Node")) }) }, "Node"));
put("recursive-mutual", Type.Cyclic({ A: Type.Object({ b: Type.Union([Type.Ref("B"), Type.Null()]) }), B: Type.Object({ a: Type.Optional(Type.Ref("A")) }) }, "A"));
put("interface", Type.Interface([Type.Object({ base: Type.String() })], { extra: Type.Integer() }));
put("script", Type.Script(`{ a: string, b?: number[], c: [x: 1, y: 'z'], d: { [key: string]: null }, e: 'p' | 'q' }`));
put("recursive-034", T.Recursive((This) => T.Object({ id: T.String(), nodes: T.Array(This) }, { $id: undefined }), { $id: "Node" }));
put("recursive-auto-id-034", T.Recursive((This) => T.Object({ v: T.Union([This, T.Null()]) })));
const Module = T.Module({ Node: T.Object({ next: T.Union([T.Ref("Node"), T.Null()]), data: T.Ref("Data") }), Data: T.Object({ x: T.Number() }) });
put("module-034", Module.Import("Node"));
put("not-034", T.Object({ a: T.Not(T.String()), b: T.Intersect([T.String(), T.Not(T.Union([T.Literal("root"), T.Literal("admin")]))]) }));
put("nonstandard-date-bytes-regexp-034", T.Object({ d: T.Date({ minimumTimestamp: 0 }), u: T.Uint8Array({ maxByteLength: 8 }), r: T.RegExp(/^\p{L}+$/iu), a: T.AsyncIterator(T.String()), p: T.Promise(T.Number()) }));
put("composite-034", T.Composite([T.Object({ x: T.Number(), y: T.Optional(T.Number()) }), T.Object({ x: T.Integer(), z: T.String({ format: "uuid" }) })]));
if ("Dependent" in Type) try {
  put("dependent", Type.Dependent(Type.Object({ card: Type.Literal(true) }), Type.Object({ number: Type.String() }), Type.Object({ cash: Type.Number() })));
} catch (e) { console.error("dependent: " + e.message); }
