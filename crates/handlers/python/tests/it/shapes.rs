//! Shapes of a model: class or functions; function, generator, coroutine, asynchronous generator.

use std::time::Duration;

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::testing::{self, check};
use nsbridge_handler::{FinishReason, Usage};
use serde_json::{Value, json};

use crate::folder::{Folder, answer, load};

const WORDS: &str = "a bear and a fox went to the sea";

/// Checks a model of words with one call and with three calls at a time in a process.
#[track_caller]
fn keeps_the_contract(model: &str) {
    for slots in [1, 3] {
        let folder = Folder::with(model);
        let mut options = folder.options();
        options.slots = slots;
        let python = load(options);
        let words: Vec<_> = WORDS.split(' ').map(Value::from).collect();
        assert_eq!(answer(&python, &WORDS.into()).unwrap(), words);
        assert_eq!(check(&python, &WORDS.into()), Ok(()), "{slots} slots");
    }
}

#[test]
fn a_generator_keeps_the_contract() {
    keeps_the_contract(
        "
        class Model:
            def load(self, models):
                self.separator = ' '
            def handle(self, input, job):
                yield from input.split(self.separator)
        ",
    );
}

#[test]
fn a_function_that_emits_and_resumes_keeps_the_contract() {
    keeps_the_contract(
        "
        def handle(input, job):
            words = input.split()
            job.at_most(len(words))
            for word in words[len(job.resumed()):]:
                job.check()
                job.emit(word)
        ",
    );
}

#[test]
fn an_asynchronous_generator_keeps_the_contract() {
    keeps_the_contract(
        "
        import asyncio
        class Model:
            async def handle(self, input, job):
                words = input.split()
                job.at_most(len(words))
                for word in words[len(await job.resumed()):]:
                    await asyncio.sleep(0)
                    yield word
        ",
    );
}

#[test]
fn a_coroutine_keeps_the_contract() {
    keeps_the_contract(
        "
        async def handle(input, job):
            for word in input.split():
                await job.emit(word)
        ",
    );
}

#[test]
fn a_model_that_depends_on_its_calls_breaks_the_contract() {
    let folder = Folder::with(
        "
        calls = 0
        def handle(input, job):
            global calls
            calls += 1
            yield calls
            yield calls
        ",
    );
    let broken = check(&folder.load(), &json!(null)).unwrap_err();
    assert_eq!(broken, testing::Breach::NotRepeatable(0));
}

#[test]
fn a_returned_value_is_the_only_piece_and_iterators_are_read() {
    let folder = Folder::with(
        "
        def handle(input):
            if input == 'iterator':
                return iter([1, {'a': None}, 'é'])
            return {'length': len(input)}
        ",
    );
    let python = folder.load();
    assert_eq!(answer(&python, &"abc".into()).unwrap(), [json!({ "length": 3 })]);
    let pieces = answer(&python, &"iterator".into()).unwrap();
    assert_eq!(pieces, [json!(1), json!({ "a": null }), json!("é")]);
}

#[test]
fn the_job_tells_of_its_request() {
    let folder = Folder::with(
        "
        class Model:
            def load(self, models, options):
                self.greeting = options['greeting']
            def handle(self, input, job):
                yield [self.greeting, job.seed, job.attempt, job.tenant, len(job.id)]
                yield [job.submitted_at, job.deadline > 1e9]
        ",
    );
    let mut options = folder.options();
    options.options.insert("greeting".to_owned(), "hello".into());
    let pieces = answer(&load(options), &json!(null)).unwrap();
    assert_eq!(pieces, [json!(["hello", 7, 1, "check", 36]), json!([1.8e9, true])]);
}

#[test]
fn a_reply_goes_on_after_the_pieces_of_an_earlier_attempt() {
    let folder = Folder::with(
        "
        def handle(input, job):
            before = job.resumed()
            assert before == job.resumed()
            for i in range(len(before), 4):
                yield {'i': i, 'before': before}
        ",
    );
    let resumed = [r#"{"i":  0}"#, "1"].map(|piece| serde_json::from_str(piece).unwrap());
    let (pieces, _) = testing::answer(&folder.load(), &json!(0), 7, &resumed).unwrap();
    let texts: Vec<_> = pieces.iter().map(|piece| piece.get()).collect();
    assert_eq!(texts[..2], [r#"{"i":  0}"#, "1"], "the client's own bytes");
    assert_eq!(texts[2..], [2, 3].map(|i| format!(r#"{{"i":{i},"before":[{{"i":0}},1]}}"#)));
}

#[test]
fn a_model_sets_the_reason_of_the_end_and_the_token_counts() {
    let folder = Folder::with(
        "
        def handle(input, job):
            yield 'word'
            job.finish('length', input_tokens=12, output_tokens=1)
        ",
    );
    let (_, finish) = testing::answer(&folder.load(), &json!(0), 7, &[]).unwrap();
    assert_eq!(finish.reason, FinishReason::Length);
    let counts = Usage::new(12, 1);
    assert_eq!(finish.usage, counts);
}

#[test]
fn inputs_of_8_mib_arrive_whole() {
    for handle in ["def", "async def"] {
        let folder = Folder::with(&format!(
            "
            {handle} handle(input, job):
                yield [len(input), input[0], input[-1]]
            "
        ));
        let input = format!("é{}z", "x".repeat((8 << 20) - 100));
        let length = input.chars().count();
        let pieces = answer(&folder.load(), &input.into()).unwrap();
        assert_eq!(pieces, [json!([length, "é", "z"])]);
    }
}

#[test]
fn a_generator_is_not_read_ahead_of_a_slow_client() {
    let folder = Folder::with(
        "
        def handle(input, job):
            for i in range(1000):
                open('made', 'w').write(str(i))
                yield 'x' * 1000
        ",
    );
    let python = folder.load();
    let (call, _reader) = testing::call(&json!(0), 7);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let limit = Duration::from_millis(500);
        let ended = tokio::time::timeout(limit, AnyHandler::call(&*python, call)).await;
        assert!(ended.is_err(), "the call ends without a reader of its pieces");
    });
    // 32 KiB in the transcript, 4 KiB on the way, a piece that begins within each.
    let made: usize = folder.read("made").parse().unwrap();
    assert!((33..=39).contains(&made), "{made} pieces of 1000 bytes");
}
