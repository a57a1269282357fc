//! Exceptions of a model: each ends its own request and nothing else.

use nsbridge_handler::Error;
use serde_json::json;

use crate::folder::{Folder, answer};

const MODEL: &str = "
    from nsbridge_handler import BadInput, Fatal, Retry

    class OutOfMemoryError(RuntimeError):
        pass

    def fail(kind):
        raise {'value': ValueError, 'retry': Retry, 'fatal': Fatal, 'memory': MemoryError,
               'device': OutOfMemoryError, 'bad': BadInput, 'exit': SystemExit}[kind]('canary')

    SYNC def handle(input, job):
        if input == 'bytes':
            yield b'\\xff'
        elif input == 'surrogate':
            yield '\\ud800'
        elif input == 'nan':
            yield float('nan')
        elif input == 'late':
            yield 'piece'
            fail('value')
        elif input != 'well':
            fail(input)
        yield 'well'
";

#[track_caller]
fn check(handle: &str) {
    let folder = Folder::with(&MODEL.replace("SYNC ", handle));
    let python = folder.load();
    let said = |input: &str| {
        let error = answer(&python, &input.into()).unwrap_err();
        assert_eq!(answer(&python, &"well".into()).unwrap(), [json!("well")], "after {input}");
        error
    };
    for input in ["value", "bytes", "surrogate", "nan", "late", "exit"] {
        let error = said(input);
        assert!(matches!(error, Error::Failed(_)), "{input}: {error:?}");
        assert!(!error.to_string().contains("canary"), "{error}");
    }
    for input in ["retry", "memory", "device"] {
        assert!(matches!(said(input), Error::Retry(_)), "{input}");
    }
    assert!(matches!(said("fatal"), Error::Fatal(_)));
    assert!(matches!(said("bad"), Error::BadInput(why) if why == "canary"), "the client is told");
    let value = said("value").to_string();
    assert!(value.contains("ValueError") && value.contains("model.py:7"), "{value}");
}

#[test]
fn an_exception_decides_what_becomes_of_the_request() {
    check("");
}

#[test]
fn an_exception_of_an_asynchronous_handle_decides_as_well() {
    check("async ");
}

#[test]
fn a_piece_that_is_no_json_is_told_with_its_type_and_the_line_that_made_it() {
    // As a number of numpy, whose class has this name.
    let model = "
        class float32:
            pass

        SYNC def handle(input, job):
            yield 'well'
            if input == 'emit':
                AWAIT job.emit(float32())
            yield {'score': float32()}
    ";
    for (handle, wait) in [("", ""), ("async ", "await ")] {
        let folder = Folder::with(&model.replace("SYNC ", handle).replace("AWAIT ", wait));
        let python = folder.load();
        for (input, place) in [("emit", "model.py:7"), ("yield", "model.py:8")] {
            let error = answer(&python, &input.into()).unwrap_err();
            assert!(matches!(error, Error::Failed(_)), "{error:?}");
            let said = error.to_string();
            assert!(said.contains("Object of type float32 is not JSON"), "{said}");
            assert!(said.contains(place), "{handle}{input}: {said}");
        }
    }
}

#[test]
fn a_piece_larger_than_a_frame_or_than_a_whole_reply_ends_the_call() {
    let folder = Folder::with(
        "
        def handle(input, job):
            yield 'x' * input
        ",
    );
    let python = folder.load();
    for size in [64 << 10, 9 << 20] {
        let error = answer(&python, &json!(size)).unwrap_err();
        assert!(matches!(error, Error::Stopped(nsbridge_handler::Stop::TooLarge)), "{error:?}");
    }
    assert_eq!(answer(&python, &json!(2)).unwrap(), [json!("xx")]);
}

#[test]
fn an_input_that_python_cannot_read_is_refused() {
    let folder = Folder::with("def handle(input): return 'read'");
    let python = folder.load();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let long = format!("[{}]", "1".repeat(5000));
    for (input, part) in [(deep, "nested too deeply"), (long, "too many digits")] {
        let (mut call, _reader) = nsbridge_handler::testing::call(&json!(0), 7);
        call.input = input.into_bytes();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answered = nsbridge_handler::erased::AnyHandler::call(&*python, call);
        let error = runtime.block_on(answered).unwrap_err();
        assert!(matches!(&error, Error::BadInput(why) if why.contains(part)), "{error:?}");
    }
    assert_eq!(answer(&python, &json!(0)).unwrap(), [json!("read")]);
}
