//! GGUF files that have only metadata.

use std::path::Path;

use nsbridge_handler::Model;
use tempfile::TempDir;

/// Metadata under construction. A later value replaces an earlier one of the same key.
#[derive(Clone, Default)]
pub(crate) struct Metadata(Vec<(String, Vec<u8>)>);

impl Metadata {
    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.put(key, 8, &text(value.as_bytes()))
    }

    pub(crate) fn texts<T: AsRef<[u8]>>(self, key: &str, values: &[T]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| text(value.as_ref())).collect();
        self.array(key, 8, values.len(), &bytes)
    }

    pub(crate) fn integers(self, key: &str, values: &[i32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 5, values.len(), &bytes)
    }

    pub(crate) fn floats(self, key: &str, values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 6, values.len(), &bytes)
    }

    pub(crate) fn number(self, key: &str, value: u32) -> Self {
        self.put(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn float(self, key: &str, value: f32) -> Self {
        self.put(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn flag(self, key: &str, value: bool) -> Self {
        self.put(key, 7, &[u8::from(value)])
    }

    pub(crate) fn without(mut self, key: &str) -> Self {
        self.0.retain(|(name, _)| name != key);
        self
    }

    /// Writes the file into a folder of its own.
    pub(crate) fn model(&self) -> (TempDir, Model) {
        let dir = tempfile::tempdir().unwrap();
        self.write(&dir.path().join("model.gguf"));
        let model = Model::in_dir(dir.path());
        (dir, model)
    }

    fn write(&self, path: &Path) {
        let mut file = [b"GGUF", &3_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
        file.extend((self.0.len() as u64).to_le_bytes());
        self.0.iter().for_each(|(_, value)| file.extend(value));
        file.resize(file.len().next_multiple_of(32), 0);
        std::fs::write(path, file).unwrap();
    }

    fn put(self, key: &str, kind: u32, value: &[u8]) -> Self {
        let bytes = [&text(key.as_bytes()), &kind.to_le_bytes()[..], value].concat();
        let mut others = self.without(key);
        others.0.push((key.to_owned(), bytes));
        others
    }

    fn array(self, key: &str, kind: u32, count: usize, values: &[u8]) -> Self {
        let head = [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
        self.put(key, 9, &[&head, values].concat())
    }
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}
