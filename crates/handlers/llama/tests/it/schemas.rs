//! Test of a thousand random schemas, each with a reply that must be valid under it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nsbridge_handler::testing::{answer, load};
use nsbridge_handler::{Finish, FinishReason, TextPiece};
use nsbridge_llama::{Llama, Options};
use serde_json::{Map, Value, json};

use crate::bundled::bundled;
use crate::tiny::{Tiny, models};

const SCHEMAS: u64 = 1000;

/// Generator of random schemas, under which every text ends.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn schema(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 7 } else { 11 }) {
            0 => json!({ "type": "boolean" }),
            1 => self.options(),
            2 | 3 => self.integer(),
            4 => json!({ "const": self.value() }),
            5 => self.string(),
            6 => json!({ "type": ["null", "boolean"], "description": "may be nothing" }),
            7 => self.array(depth),
            8 => {
                let options: Vec<Value> =
                    (0..2 + self.below(2)).map(|_| self.schema(depth - 1)).collect();
                json!({ "anyOf": options })
            }
            _ => self.object(depth),
        }
    }

    fn value(&mut self) -> Value {
        let values = [
            json!("name"),
            json!("灯台守の朝"),
            json!("😀\"\\\n"),
            json!(""),
            json!(-12),
            json!(100),
            json!(null),
            json!(true),
            json!([1, "a"]),
            json!({ "a": null, "b": {} }),
            json!(1.5),
        ];
        values[self.below(values.len())].clone()
    }

    fn options(&mut self) -> Value {
        let mut options: Vec<Value> = Vec::new();
        for _ in 0..1 + self.below(4) {
            let value = self.value();
            if !options.contains(&value) {
                options.push(value);
            }
        }
        json!({ "enum": options })
    }

    fn integer(&mut self) -> Value {
        let least = self.below(2000) as i64 - 1000;
        let most = least + self.below(1500) as i64;
        match self.below(3) {
            0 => json!({ "type": "integer", "exclusiveMinimum": least - 1, "maximum": most }),
            1 => {
                json!({ "type": "integer", "minimum": least - 3, "maximum": most + 3, "multipleOf": 3 })
            }
            _ => json!({ "type": "integer", "minimum": least, "maximum": most }),
        }
    }

    fn string(&mut self) -> Value {
        let most = self.below(7);
        match self.below(5) {
            0 => json!({ "type": "string", "pattern": "^[a-f]{1,4}(灯台|朝)?$" }),
            1 => json!({ "type": "string", "format": "date" }),
            2 => json!({ "type": "string", "minLength": self.below(most + 1), "maxLength": most }),
            _ => json!({ "type": "string", "maxLength": most }),
        }
    }

    fn array(&mut self, depth: usize) -> Value {
        let most = self.below(4);
        let items = self.schema(depth - 1);
        match self.below(3) {
            0 => {
                json!({ "type": "array", "items": items, "minItems": self.below(most + 1), "maxItems": most })
            }
            1 => {
                json!({ "type": "array", "prefixItems": [items, { "const": 1 }], "items": false, "minItems": 2 })
            }
            _ => json!({ "type": "array", "items": items, "maxItems": most }),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        let names = ["name", "b", "灯", "a\"b", "a", "long name with blanks"];
        let first = self.below(names.len());
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for at in 0..self.below(4) {
            let name = names[(first + at) % names.len()];
            properties.insert(name.to_owned(), self.schema(depth - 1));
            if self.below(2) == 0 {
                required.push(name);
            }
        }
        let mut object =
            json!({ "type": "object", "additionalProperties": false, "required": required });
        if self.below(4) == 0 {
            object["$defs"] = json!({ "all of them": properties });
        }
        object["properties"] = Value::Object(properties);
        object
    }
}

/// Returns the request and the schema of reply `number`: at temperature 1, every tenth at 0.
fn request(number: u64) -> (Value, Value) {
    let mut draw = Draw(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
    let schema = if number.is_multiple_of(4) { draw.schema(3) } else { draw.object(3) };
    let temperature = if number % 10 == 9 { 0.0 } else { 1.0 };
    let format = json!({ "type": "json_schema", "json_schema": { "name": "drawn", "schema": schema, "strict": true } });
    let input = json!({ "prompt": "{", "temperature": temperature, "response_format": format });
    (input, schema)
}

fn text(pieces: &[TextPiece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

fn reply(llama: &Arc<Llama>, number: u64) -> (Vec<TextPiece>, Finish) {
    answer(llama, &request(number).0, number, &[]).unwrap()
}

/// Returns the replies that were cut, or that another crate finds to be invalid under their schema.
fn misfits(numbers: &[u64], replies: &[(Vec<TextPiece>, Finish)]) -> Vec<String> {
    assert_eq!(numbers.len(), replies.len());
    let misfit = |(&number, (pieces, finish)): (&u64, &(Vec<TextPiece>, Finish))| {
        let (text, schema) = (text(pieces), request(number).1);
        let json = serde_json::from_str::<Value>(&text);
        let fits = json.is_ok_and(|value| jsonschema::is_valid(&schema, &value))
            && finish.reason == FinishReason::Stop
            && finish.usage.output_tokens == pieces.len() as u64;
        (!fits).then(|| format!("{number}: {schema}\n{text}\n{finish:?}"))
    };
    numbers.iter().zip(replies).filter_map(misfit).collect()
}

/// Returns the replies to these numbers in order, 8 concurrently.
fn at_once(llama: &Arc<Llama>, numbers: &[u64]) -> Vec<(Vec<TextPiece>, Finish)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut mine = Vec::new();
        while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            mine.push((number, reply(llama, number)));
        }
        mine
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, reply)| reply).collect()
}

#[test]
fn a_thousand_replies_of_a_thousand_fit_their_schemas() {
    let llama = Tiny::literate().load(Options::default()).unwrap();
    let numbers: Vec<u64> = (0..SCHEMAS).collect();
    let replies = at_once(&llama, &numbers);
    assert_eq!(misfits(&numbers, &replies), Vec::<String>::new());
    // The replies are not constants: most texts occur once.
    let mut texts: Vec<String> = replies.iter().map(|(pieces, _)| text(pieces)).collect();
    texts.sort();
    texts.dedup();
    assert!(texts.len() as u64 > SCHEMAS / 2, "{}", texts.len());
    // Concurrent requests did not change a reply.
    for number in (0..SCHEMAS).step_by(9) {
        let alone = reply(&llama, number);
        assert_eq!(alone.0, replies[number as usize].0, "{number}");
    }
}

#[test]
fn a_trained_model_fits_schemas_too() {
    let llama = load(Options::default(), models(&bundled("tale-1m"))).unwrap();
    let numbers: Vec<u64> = (5000..5040).collect();
    let replies = at_once(&llama, &numbers);
    assert_eq!(misfits(&numbers, &replies), Vec::<String>::new());
}
