//! Models that are one GGUF file, whole or split.

use std::path::{Path, PathBuf};

/// Small files that a model of one GGUF file may have beside it. They take precedence over the
/// metadata of the file.
const BESIDE: [&str; 7] = [
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Splits the path of a GGUF file into its folder and its name. Returns `None` for a folder, and for
/// any other file.
pub fn gguf_in_folder(path: &Path) -> Option<(PathBuf, String)> {
    let name = path.file_name()?.to_str().filter(|name| is_gguf(name))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new(".")).to_owned();
    (!path.is_dir()).then(|| (dir, name.to_owned()))
}

/// Returns true if a path names a GGUF file by its suffix.
pub fn is_gguf(path: &str) -> bool {
    path.ends_with(".gguf")
}

/// Returns true if `path` is a file of the model that the GGUF file `name` is: the file itself,
/// another part of its split, or one of the configuration and tokenizer files beside it.
///
/// ```
/// use nsbridge_handler::source::belongs_to;
///
/// assert!(belongs_to("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"));
/// assert!(belongs_to("m.gguf", "tokenizer.json"));
/// assert!(!belongs_to("m.gguf", "other.gguf"));
/// ```
pub fn belongs_to(name: &str, path: &str) -> bool {
    let of_one_split = || match (split_of(name), split_of(path)) {
        (Some((stem, _, count)), Some((other, _, others))) => stem == other && count == others,
        _ => false,
    };
    path == name || BESIDE.contains(&path) || of_one_split()
}

/// Returns the stem, the number and the count of a part's name, `STEM-00002-of-00003.gguf`, which
/// llama.cpp's `llama-gguf-split` writes. The number begins at 1. Returns `None` for any other name.
pub fn split_of(name: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let (number, count) = (digits(number)?, digits(count)?);
    (1..=count).contains(&number).then_some((stem, number, count))
}

fn digits(text: &str) -> Option<u32> {
    let five = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    five.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::{belongs_to, split_of};

    #[test]
    fn the_name_of_a_part_has_a_stem_a_number_and_a_count() {
        assert_eq!(split_of("m-q4-00002-of-00003.gguf"), Some(("m-q4", 2, 3)));
        for other in ["m.gguf", "m-2-of-3.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf"] {
            assert_eq!(split_of(other), None, "{other}");
        }
    }

    #[test]
    fn parts_of_another_split_do_not_belong_to_a_file() {
        let name = "m-00001-of-00002.gguf";
        assert!(belongs_to(name, name));
        for other in ["n-00002-of-00002.gguf", "m-00002-of-00003.gguf", "m.gguf", "README.md"] {
            assert!(!belongs_to(name, other), "{other}");
        }
    }
}
