// Writes component schemas (OpenAPI 3.0 and 3.1) as zod-to-openapi makes them, and JSON schemas as valibot and
// ts-json-schema-generator make them. The first argument is the folder to write to.
import { mkdirSync, writeFileSync } from "node:fs";
import * as z from "zod";
import * as v from "valibot";
import { toJsonSchema } from "@valibot/to-json-schema";
import { createGenerator } from "ts-json-schema-generator";
import { extendZodWithOpenApi, OpenAPIRegistry, OpenApiGeneratorV3, OpenApiGeneratorV31 } from "@asteasolutions/zod-to-openapi";

const dir = process.argv[2];
const put = (folder, name, schema) => {
  mkdirSync(`${dir}/${folder}`, { recursive: true });
  writeFileSync(`${dir}/${folder}/${name}.json`, JSON.stringify(schema, null, 1) + "\n");
};
extendZodWithOpenApi(z);
const r = new OpenAPIRegistry();
const Base = r.register("Base", z.object({ id: z.int().openapi({ format: "int64", readOnly: true, example: 7 }), name: z.string().nullable() }));
const Cat = r.register("Cat", Base.extend({ type: z.literal("cat"), lives: z.number().int().gt(0).lt(10).default(9) }));
const Dog = r.register("Dog", Base.extend({ type: z.literal("dog"), photo: z.string().openapi({ format: "binary" }), born: z.date().nullable() }));
const Pet = r.register("Pet", z.discriminatedUnion("type", [Cat, Dog]).openapi({ description: "Any pet" }));
r.register("Owner", z.object({
  pet: Pet, nick: Cat.nullable().openapi({ description: "beside a reference" }), opt: Dog.optional(), tags: z.array(z.string()).nullable(),
  kind: z.enum(["a", "b"]).nullable(), map: z.record(z.string(), Pet), both: z.intersection(Cat, z.object({ x: z.bigint() })),
  any: z.unknown(), or: z.union([z.string(), z.number(), z.null()]), pair: z.tuple([z.string(), z.int()]), mix: z.literal(["a", "b"]), old: z.string().openapi({ deprecated: true, example: "x" }),
}).strict());
// One component with those it refers to, its references as they are.
const component = (all, name) => {
  const need = {}, todo = [name];
  while (todo.length) {
    const text = JSON.stringify(all[todo.pop()]);
    for (const m of Object.keys(all)) if (text.includes(`"#/components/schemas/${m}"`) && !need[m] && m !== name) { need[m] = all[m]; todo.push(m); }
  }
  return Object.keys(need).length ? { ...all[name], components: { schemas: { ...need, [name]: all[name] } } } : all[name];
};
for (const [tag, G] of [["30", OpenApiGeneratorV3], ["31", OpenApiGeneratorV31]]) {
  const all = new G(r.definitions).generateComponents().components.schemas;
  for (const n of ["Owner", "Pet", "Cat"]) put("openapi", `zod-to-openapi-${tag}-${n.toLowerCase()}`, component(all, n));
}

const Node = v.object({ value: v.string(), next: v.nullable(v.lazy(() => Node)) });
const vals = v.object({
  email: v.pipe(v.string(), v.email(), v.minLength(5)), re: v.pipe(v.string(), v.regex(/^[a-z]+$/)), n: v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(9)), step: v.pipe(v.number(), v.multipleOf(3)),
  gt: v.pipe(v.number(), v.gtValue(0)), opt: v.optional(v.string(), "x"), nul: v.nullish(v.boolean()), lit: v.literal("a"), pick: v.picklist(["a", 1]), en: v.enum({ A: 0, B: "b" }),
  rec: v.record(v.pipe(v.string(), v.minLength(2)), v.number()), tup: v.tuple([v.string(), v.number()]), loose: v.looseTuple([v.string()]), rest: v.tupleWithRest([v.string()], v.boolean()),
  strict: v.strictObject({ a: v.string() }), looseO: v.looseObject({ a: v.string() }), withRest: v.objectWithRest({ a: v.string() }, v.number()), inter: v.intersect([v.object({ a: v.string() }), v.object({ b: v.string() })]),
  vari: v.variant("t", [v.object({ t: v.literal("x") }), v.object({ t: v.literal("y"), z: v.any() })]), non: v.pipe(v.array(v.string()), v.nonEmpty()), entries: v.pipe(v.record(v.string(), v.any()), v.minEntries(1)),
  not: v.pipe(v.string(), v.notValue("root")), iso: v.pipe(v.string(), v.isoTimestamp()), url: v.pipe(v.string(), v.url()), b64: v.pipe(v.string(), v.base64()), title: v.pipe(v.string(), v.title("T"), v.description("D"), v.metadata({ examples: ["e"] })),
});
put("valibot", "all-kinds", toJsonSchema(vals, { errorMode: "ignore" }));
put("valibot", "all-kinds-2020-12", toJsonSchema(vals, { errorMode: "ignore", target: "draft-2020-12" }));
put("valibot", "recursive", toJsonSchema(Node));

writeFileSync(`${dir}/types.ts`, `
export type Id = string & { readonly __brand?: never };
/** @minimum 0 @maximum 10 @asType integer */
export type Score = number;
export interface Base<T> { /** The key. @pattern ^[a-z]+$ @default "k" */ key: string; value: T; next?: Base<T> | null }
export type Shape = { kind: "circle"; r: number } | { kind: "square"; side: Score };
export interface Config {
  shapes: Shape[]; one: Base<string>; two: Base<Record<string, number>>; map: { [k: string]: string | number }; keyed: Record<"a" | "b", boolean>; partial: Partial<Record<"x" | "y", Shape>>;
  pair: [string, number?]; rest: [boolean, ...string[]]; lit: 1 | "one" | true | null; tpl: \`v\${number}\`; date: Date; any: any; unknown: unknown; never?: never;
  both: { a: string } & { b?: number }; /** @deprecated @format uri */ old?: string; /** @nullable */ score: Score; /** @items.minLength 1 @uniqueItems true */ list: string[]; "odd key/~": object; bytes: Uint8Array; re: RegExp; fn?: () => void;
}`);
for (const [name, o] of [["config", {}], ["config-inlined", { expose: "none", topRef: false }], ["config-open", { additionalProperties: true, encodeRefs: false }]])
  put("typescript", name, createGenerator({ path: `${dir}/types.ts`, type: "Config", skipTypeCheck: true, jsDoc: "extended", functions: "hide", ...o }).createSchema("Config"));
