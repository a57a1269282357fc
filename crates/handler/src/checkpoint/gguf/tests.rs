//! Heads of GGUF files, good and hostile.
