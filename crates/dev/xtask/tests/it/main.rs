//! Tests of the repository itself: layers of crates, circles of modules, form, documents.

mod dependencies;
mod documents;
mod growth;
mod layers;
mod modules;
mod packages;
mod retries;
mod tidy;
mod tree;
mod waits;
