//! The habits of this repository, held by tests: floors, form, and documents that keep up.

mod dependencies;
mod documents;
mod floors;
mod tidy;
mod tree;
