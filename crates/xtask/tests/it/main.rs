//! Conventions of this repository, enforced by tests: layers, form, and documents that match the
//! code.

mod dependencies;
mod documents;
mod floors;
mod tidy;
mod tree;
