//! Reproducible checkpoint with the tensor shapes of a Llama model, of any size.

use bytes::{Bytes, BytesMut};
use serde_json::{Map, Value, json};

const HIDDEN: usize = 2048;
const INNER: usize = 5632;
const KEYS: usize = 256;
const VOCABULARY: usize = 32_000;

/// Size of a bf16 number in bytes.
const WIDTH: usize = 2;

/// Minimum size in bytes at which a file is complete.
const SHARD: usize = 256 << 20;

/// Name and shape of a tensor.
type Tensor = (String, Vec<usize>);

fn layer(number: usize) -> Vec<Tensor> {
    let tensor = |name: &str, shape: &[usize]| {
        (format!("model.layers.{number}.{name}.weight"), shape.to_vec())
    };
    vec![
        tensor("input_layernorm", &[HIDDEN]),
        tensor("self_attn.q_proj", &[HIDDEN, HIDDEN]),
        tensor("self_attn.k_proj", &[KEYS, HIDDEN]),
        tensor("self_attn.v_proj", &[KEYS, HIDDEN]),
        tensor("self_attn.o_proj", &[HIDDEN, HIDDEN]),
        tensor("post_attention_layernorm", &[HIDDEN]),
        tensor("mlp.gate_proj", &[INNER, HIDDEN]),
        tensor("mlp.up_proj", &[INNER, HIDDEN]),
        tensor("mlp.down_proj", &[HIDDEN, INNER]),
    ]
}

/// Returns the tensors for a checkpoint of about `total` bytes, with at least one layer.
fn tensors(total: usize) -> Vec<Tensor> {
    let ends = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
    ];
    let size = |all: &[Tensor]| all.iter().map(bytes_of).sum::<usize>();
    let of_layer = size(&layer(0));
    let layers = (total.saturating_sub(size(&ends)) + of_layer / 2) / of_layer;
    let mut all = vec![ends[0].clone()];
    all.extend((0..layers.max(1)).flat_map(layer));
    all.extend_from_slice(&ends[1..]);
    all
}

fn bytes_of((_, shape): &Tensor) -> usize {
    shape.iter().product::<usize>() * WIDTH
}

/// Returns the names and contents of the checkpoint's files.
pub(crate) fn files(total: usize) -> Vec<(String, Bytes)> {
    let mut shards = vec![Vec::new()];
    let mut filled = 0;
    for tensor in tensors(total) {
        if filled >= SHARD {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes_of(&tensor);
        shards.last_mut().expect("there is one").push(tensor);
    }
    let count = shards.len();
    let name = |index| format!("model-{:05}-of-{count:05}.safetensors", index + 1);
    let (mut files, mut map, mut size) = (Vec::new(), Map::new(), 0);
    for (index, shard) in shards.iter().enumerate() {
        size += shard.iter().map(bytes_of).sum::<usize>();
        map.extend(shard.iter().map(|(tensor, _)| (tensor.clone(), Value::from(name(index)))));
        files.push((name(index), file(shard, index as u64)));
    }
    let index = json!({ "metadata": { "total_size": size }, "weight_map": map });
    files.push(("model.safetensors.index.json".into(), index.to_string().into()));
    files
}

/// Builds a safetensors file: length of the header, header, tensors.
fn file(tensors: &[Tensor], seed: u64) -> Bytes {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += bytes_of(tensor);
        let offsets = json!({ "dtype": "BF16", "shape": tensor.1, "data_offsets": [start, end] });
        header.insert(tensor.0.clone(), offsets);
    }
    let mut header = Value::from(header).to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut bytes = BytesMut::with_capacity(8 + header.len() + end);
    bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ (seed + 1);
    for _ in 0..end.div_ceil(8) {
        // Xorshift output is incompressible.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.freeze()
}

/// Returns the tensor data behind a file's header.
pub(crate) fn tensors_of(file: &[u8]) -> &[u8] {
    let header = file.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    &file[8 + header..]
}

#[cfg(test)]
mod tests {
    use super::{bytes_of, files, tensors, tensors_of};

    #[test]
    fn a_checkpoint_is_the_same_each_time_and_about_as_large_as_asked() {
        let (one, two) = (files(300 << 20), files(300 << 20));
        assert!(one == two);
        let size: usize = one.iter().map(|(_, file)| file.len()).sum();
        assert!((250 << 20..350 << 20).contains(&size), "{size}");
        let inside: usize = one
            .iter()
            .filter(|(name, _)| name.ends_with(".safetensors"))
            .map(|(_, file)| tensors_of(file).len())
            .sum();
        assert_eq!(inside, tensors(300 << 20).iter().map(bytes_of).sum::<usize>());
    }
}
