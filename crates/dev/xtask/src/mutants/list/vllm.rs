//! Mutants of vLLM's adapter, which the scenario with vLLM must detect.

use super::{Judge, Mutant};
use crate::chaos;

/// Scenario with vLLM.
const VLLM: Judge = Judge::Scenario(chaos::VLLM, 1);

/// Mutants of replies that outlive their worker, of its engine's end, and of cancels.
pub(super) const MUTANTS: &[Mutant] = &[
    // A resumed reply in a format continues as a part of the prompt: its grammar begins at its start.
    Mutant {
        name: "formats-continue-as-prompts",
        file: "crates/handlers/python/engines/engine_text.py",
        edits: &[
            (
                "known = {reply.index: len(reply.tokens) for reply in self.replies if \
                 self.replays}",
                "known = dict[int, int]()",
            ),
            ("forced = list(reply.tokens) if self.replays else []", "forced = list[int]()"),
        ],
        judge: VLLM,
    },
    // The pieces that the client has are emitted again.
    Mutant {
        name: "resumed-pieces-are-emitted-again",
        file: "crates/handlers/python/engines/engine_text.py",
        edits: &[("work.resume(await job.resumed())", "await job.resumed()")],
        judge: VLLM,
    },
    // The end of vLLM's engine is an error of its requests.
    Mutant {
        name: "requests-fail-with-the-engine",
        file: "crates/handlers/python/engines/vllm_start.py",
        edits: &[(
            "raise Fatal(\"vLLM's engine has ended\") from None",
            "raise BadInput(\"vLLM's engine has ended\") from None",
        )],
        judge: VLLM,
    },
    // A canceled request runs on in vLLM.
    Mutant {
        name: "cancels-do-not-reach-vllm",
        file: "crates/handlers/python/engines/vllm_start.py",
        edits: &[
            ("import os\nimport sys\n", "import asyncio\nimport os\nimport sys\n"),
            (
                "self.slots = min(",
                "self.llm.abort = lambda *_, **__: asyncio.sleep(0)\n        self.slots = min(",
            ),
        ],
        judge: VLLM,
    },
];
