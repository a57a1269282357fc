//! Mutants of the engine's replies that outlive their worker, which the scenario of replies of every
//! form must detect.

use super::{Judge, Mutant};

/// Scenario of replies of every form.
const STRUCTURED: Judge = Judge::Scenario("structured", 1);

/// Mutants of resumed replies of the engine.
pub(super) const MUTANTS: &[Mutant] = &[
    // A resumed reply begins its document anew.
    Mutant {
        name: "resumed-documents-begin-anew",
        file: "crates/handlers/llama/src/reply.rs",
        edits: &[
            (
                "if !known || !self.allows(token)? {",
                "let grammar = self.grammar.take();\n        if !known || !self.allows(token)? {",
            ),
            (
                "Ok(self.take(token)?.1)",
                "let taken = self.take(token);\n        self.grammar = grammar;\n        Ok(taken?.1)",
            ),
        ],
        judge: STRUCTURED,
    },
    // A resumed reply may have as many tokens as if it had none yet.
    Mutant {
        name: "resumed-tokens-are-not-counted",
        file: "crates/handlers/llama/src/reply.rs",
        edits: &[("Ok(self.take(token)?.1)", "self.room += 1;\n        Ok(self.take(token)?.1)")],
        judge: STRUCTURED,
    },
    // The resumed pieces of several replies are all those of the first one.
    Mutant {
        name: "resumed-pieces-are-of-the-first-reply",
        file: "crates/handlers/llama/src/engine/sequence_group.rs",
        edits: &[(
            "self.due().filter(|next| *next == piece.index as usize)",
            "self.due().map(|_| 0)",
        )],
        judge: STRUCTURED,
    },
];
