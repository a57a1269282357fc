//! Models for DJLServing: `handle(inputs)` and the module `djl_python`.

use std::sync::Arc;
use std::time::Duration;

use nsbridge_handler::erased::AnyHandler;
use nsbridge_handler::testing::{self, check};
use nsbridge_handler::{Error, Model, Models, Stop};
use nsbridge_python::{Options, Python};
use serde_json::{Value, json};

use crate::folder::{Folder, answer, load};

/// Service in the form that DJLServing's documentation and its users write.
const SERVICE: &str = "
    from djl_python import Input, Output

    class Service:
        def __init__(self):
            self.initialized = False

        def initialize(self, properties):
            self.greeting = properties['greeting']
            self.degree = int(properties['tensor_parallel_degree'])
            self.initialized = True

        def inference(self, inputs):
            body = inputs.get_as_json()
            words = body['inputs'].split()
            outputs = Output()
            if body.get('stream'):
                outputs.add_property('content-type', 'application/jsonlines')
                outputs.add_stream_content(self.words(words))
            else:
                outputs.add_as_json({'generated_text': self.greeting + ' ' + ' '.join(words)})
            return outputs

        def words(self, words):
            for word in words:
                yield [word]

    _service = Service()

    def handle(inputs: Input):
        with open('calls', 'a') as calls:
            calls.write('empty ' if inputs.is_empty() else 'full ')
        if not _service.initialized:
            _service.initialize(inputs.get_properties())
        if inputs.is_empty():
            return None
        return _service.inference(inputs)
";

fn service(model: &str) -> (Folder, Options) {
    let folder = Folder::with(model);
    let mut options = folder.options();
    options.options.insert("greeting".to_owned(), json!("hello"));
    (folder, options)
}

/// Returns the pieces of the replies to `null` of a `handle` with this body.
#[track_caller]
fn says(body: &str) -> Vec<Value> {
    answer(&handle(body).load(), &json!(null)).unwrap()
}

fn handle(body: &str) -> Folder {
    Folder::with(&format!(
        "import datetime\nfrom djl_python import Input, Output, PairList\n\ndef handle(inputs):\n    \
         if inputs.is_empty():\n        return None\n    {body}\n"
    ))
}

#[track_caller]
fn refused(model: &str) -> String {
    let loaded: Result<Arc<Python>, _> =
        testing::load(Folder::with(model).options(), Models::default());
    loaded.unwrap_err().to_string()
}

#[test]
fn a_service_is_warmed_up_once_and_keeps_the_contract() {
    let (folder, options) = service(SERVICE);
    let python = load(options);
    assert_eq!(folder.read("calls"), "empty ");
    let whole = json!({ "inputs": "a bear" });
    let text = json!({ "generated_text": "hello a bear" });
    assert_eq!(answer(&python, &whole).unwrap(), [text]);
    let stream = json!({ "inputs": "a bear and a fox went to the sea", "stream": true });
    assert_eq!(answer(&python, &stream).unwrap()[1], json!(["bear"]));
    for input in [whole, stream] {
        assert_eq!(check(&python, &input), Ok(()));
    }
    assert_eq!(folder.read("calls").matches("empty").count(), 1);
    assert_eq!(python.schema(), None, "the hint `Input` is no schema");
}

#[test]
fn an_asynchronous_service_keeps_the_contract() {
    let model = SERVICE
        .replace("def handle", "async def handle")
        .replace("    def words", "    async def words");
    let (folder, mut options) = service(&model);
    options.slots = 3;
    let python = load(options);
    assert_eq!(folder.read("calls"), "empty ", "on the loop of the calls");
    let stream = json!({ "inputs": "a bear and a fox went to the sea", "stream": true });
    assert_eq!(answer(&python, &stream).unwrap()[1], json!(["bear"]));
    assert_eq!(check(&python, &stream), Ok(()));
    let folder = Folder::with(
        "
        import asyncio
        from djl_python.outputs import Output
        loops = []
        async def outputs():
            yield Output().add('one')
            yield Output().add_stream_content(iter(['two', 'three']), None)
        async def handle(inputs):
            loops.append(asyncio.get_running_loop())
            assert loops[0] is loops[-1]
            return None if inputs.is_empty() else outputs()
        ",
    );
    let python = folder.load();
    assert_eq!(answer(&python, &json!(0)).unwrap(), ["one", "two", "three"].map(Value::from));
    assert_eq!(check(&python, &json!(0)), Ok(()));
}

#[test]
fn an_input_is_read_in_each_of_its_forms() {
    let python = load(
        handle(
            "return Output().add([inputs.get_as_json(), inputs.get_as_string(),
        inputs.get_as_bytes().decode(), inputs.get_data('data'), inputs.contains_key('data'),
        inputs.get_content().key_at(0), inputs.is_batch(), len(inputs.get_batches())])",
        )
        .options(),
    );
    let read = |input: Value| answer(&python, &input).unwrap().remove(0);
    let rest = [json!(true), json!("data"), json!(false), json!(1)];
    for (input, text) in [(json!({ "a": "é" }), r#"{"a":"é"}"#), (json!("é \" b"), "é \" b")] {
        let forms = [input.clone(), json!(text), json!(text), input.clone()];
        assert_eq!(read(input), json!([&forms[..], &rest[..]].concat()));
    }
    let other = handle("return Output().add(inputs.get_as_string(key='other'))").load();
    let error = answer(&other, &json!(0)).unwrap_err().to_string();
    assert!(error.contains("KeyError at model.py:7"), "{error}");
}

#[test]
fn the_properties_are_those_of_the_configuration_and_the_request() {
    let folder = Folder::with(
        "
        import json
        from djl_python import Output
        from djl_python.output_formatter import output_formatter
        @output_formatter
        def shout(item):
            return item.upper()
        def handle(inputs):
            keys = inputs.get_properties()
            if inputs.is_empty():
                open('keys', 'w').write(json.dumps(sorted(keys)))
                return None
            model = open(inputs.get_property('MODEL_ID') + '/note').read()
            output = Output().add_as_json([model, keys['ratio'], keys['name'], keys['flag'],
                inputs.get_property('tensor_parallel_degree'), inputs.get_property('seed'),
                inputs.get_property('none', 'default'), inputs.get_function_name(),
                inputs.get_property('content-type')])
            return output.add_stream_content(iter(['a']), keys['output_formatter'])
        ",
    );
    let mut options = folder.options();
    for (key, value) in [("ratio", json!(0.5)), ("name", json!("x")), ("flag", json!(true))] {
        options.options.insert(key.to_owned(), value);
    }
    options.options.insert("tensor_parallel_degree".to_owned(), json!(2));
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("note"), "weights").unwrap();
    let models = [("target".to_owned(), Model::in_dir(files.path()))].into_iter().collect();
    let python: Arc<Python> = testing::load(options, models).unwrap();
    let first =
        json!(["weights", "0.5", "x", "true", "2", "7", "default", "handle", "application/json"]);
    assert_eq!(answer(&python, &json!(0)).unwrap(), [first, json!("A")]);
    assert_eq!(
        folder.read("keys"),
        r#"["Content-Type", "flag", "model_dir", "model_id", "name", "output_formatter", "ratio", "tensor_parallel_degree"]"#
    );
}

#[test]
fn each_content_and_each_element_of_a_stream_is_a_piece() {
    let one = |body: &str, piece: Value| assert_eq!(says(body), [piece], "{body}");
    one("return Output().add('text')", json!("text"));
    one("return Output().add_as_string('text', key='k')", json!("text"));
    one("return Output().add(b'bytes')", json!("bytes"));
    one("return Output().add({'a': [1]})", json!({ "a": [1] }));
    one("return Output().add_as_json('text', batch_index=0)", json!("text"));
    one(
        "return Output().add_as_json({'day': datetime.date(2026, 1, 2)})",
        json!({ "day": "2026-01-02" }),
    );
    one(
        "return Output().add_property('Content-Type', 'application/json').add('{\"a\": 1}')",
        json!({ "a": 1 }),
    );
    one(
        "return Output().add_property('content-type', 'Application/JSON; charset=utf-8').add('1')",
        json!(1),
    );
    one(
        "return Output().add_property('content-type', 'application/jsonlines').add('{}')",
        json!("{}"),
    );
    one("return Output().add_property('Content-Type', 'text/plain').add('{}')", json!("{}"));
    one("return Output().add_stream_content(iter([{'a': 1}]))", json!({ "a": 1 }));
    one("return Output().add_stream_content(iter([1]), lambda n: b'%d' % n)", json!("1"));
    one("return Output().add_stream_content(iter([1]), lambda n: {'n': n})", json!({ "n": 1 }));
    let array = "class Array:
        def tolist(self): return [1, 2]
    return Output().add_as_json({'array': Array()})";
    one(array, json!({ "array": [1, 2] }));
    assert_eq!(says("return Output().add('a').add('b')"), ["a", "b"].map(Value::from));
    assert_eq!(says("return None"), Vec::<Value>::new());
    assert_eq!(says("return Output(code=204)"), Vec::<Value>::new());
}

#[test]
fn the_code_of_an_output_decides_what_becomes_of_the_request() {
    let error = |body: &str| answer(&handle(body).load(), &json!("canary")).unwrap_err();
    for (body, why) in [
        ("return Output().error('no ' + inputs.get_as_json(), code=400)", "no canary"),
        ("return Output(code=422, message='too long')", "too long"),
        ("return Output().set_code(413).set_message('too large')", "too large"),
    ] {
        assert!(matches!(error(body), Error::BadInput(said) if said == why), "{body}");
    }
    for (body, code) in [
        ("return Output().error(inputs.get_as_json())", "424"),
        ("return Output().error(inputs.get_as_json(), code=500)", "500"),
        ("return Output(code=501, message=inputs.get_as_json())", "501"),
    ] {
        let error = error(body);
        assert!(matches!(error, Error::Failed(_)), "{error:?}");
        let said = error.to_string();
        assert!(said.contains(code) && !said.contains("canary"), "{said}");
    }
    for code in [408, 429, 503, 507] {
        let error = error(&format!("return Output({code}, inputs.get_as_json())"));
        assert!(matches!(&error, Error::Retry(_)), "{error:?}");
        assert!(!error.to_string().contains("canary"), "{error}");
    }
    let exception = error("raise ValueError(inputs.get_as_json())").to_string();
    assert!(exception.contains("ValueError at model.py:7"), "{exception}");
}

#[test]
fn a_stopped_stream_is_closed_and_its_last_function_called() {
    for asynchronous in ["", "async "] {
        let folder = Folder::with(&format!(
            "
            from djl_python import Output
            def note(text):
                with open('notes', 'a') as notes:
                    notes.write(text + ' ')
            {asynchronous}def forever():
                try:
                    while True:
                        note('piece')
                        yield 'x' * 1000
                finally:
                    note('closed')
            {asynchronous}def handle(inputs):
                if inputs.is_empty():
                    return None
                if inputs.get_as_json() == 'once':
                    return Output().add('once').finalize(note, 'last')
                return Output().add_stream_content(forever()).finalize(note, 'last')
            "
        ));
        let python = folder.load();
        let (call, reader) = testing::call(&json!("forever"), 7);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(async {
            let stopping = async {
                while folder.read("notes").is_empty() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                reader.stop(Stop::Cancelled);
            };
            tokio::join!(AnyHandler::call(&*python, call), stopping).0
        });
        assert!(matches!(ended, Err(Error::Stopped(Stop::Cancelled))), "{ended:?}");
        assert!(folder.read("notes").ends_with("piece closed last "), "{}", folder.read("notes"));
        std::fs::remove_file(folder.path("notes")).unwrap();
        assert_eq!(answer(&python, &json!("once")).unwrap(), [json!("once")]);
        assert_eq!(folder.read("notes"), "last ");
    }
}

#[test]
fn what_djl_has_and_this_has_not_is_named() {
    let check = |model: &str, parts: &[&str]| {
        let said = refused(model);
        for part in parts {
            assert!(said.contains(part), "`{part}` is missing in: {said}");
        }
    };
    check(
        "from djl_python.streaming_utils import StreamingUtils",
        &["djl_python.streaming_utils is not a part of nsbridge", "(model.py:1)"],
    );
    check("from djl_python import Session", &["djl_python.Session is not a part of nsbridge"]);
    check("from djl_python import huggingface", &["djl_python.huggingface is not a part"]);
    check(
        "from djl_python.output_formatter import output_formatter\n@output_formatter\ndef f(x): pass",
        &["model.py has no `handle`: DJLServing's own handlers are not here"],
    );
    check(
        "from djl_python.inputs import PairList",
        &["djl_python.inputs.PairList is not a part of nsbridge", "(model.py:1)"],
    );
    check("import djl_python\ndjl_python.Session", &["djl_python.Session is not a part"]);
    let warm =
        |body: &str| format!("from djl_python import Input, Output\ndef handle(inputs): {body}");
    check(&warm("return inputs.get_as_numpy()"), &["djl_python.Input.get_as_numpy", "model.py:2"]);
    check(&warm("return Output().add_as_npz([])"), &["djl_python.Output.add_as_npz is not a part"]);
    check(&warm("return Output().oops"), &["AttributeError: Output has no attribute 'oops'"]);
    check(&warm("return inputs.get_as_json()"), &["return None if inputs.is_empty()"]);
    check(&warm("return 'text'"), &["`handle` returned str, not an Output"]);
    check(
        &warm("return Output().error('no GPU')"),
        &["answers the empty input with code 424: no GPU"],
    );
    check(
        "import djl_python\nasync def handle(inputs): raise OSError('no disk')",
        &["OSError: no disk"],
    );

    // The names are those of the module, so the error of a call may have them.
    for (body, part) in [
        (
            "return Output().add(inputs.get_as_image())",
            "djl_python.Input.get_as_image is not a part",
        ),
        (
            "return Output().add_stream_content(iter([]), 'jsonlines')",
            "takes a function as formatter",
        ),
        ("return Output().add_stream_content(['a'])", "is an iterator"),
        (
            "from djl_python.encode_decode import encode
    return encode(Output(), 1, 'application/jsonlines')",
            "writes application/json alone",
        ),
        ("return Output().add(b'\\xff')", "not UTF-8"),
        ("return Output().add(1, batch_index=1)", "no batch_index above 0"),
        ("return [1]", "`handle` returned list, not an Output"),
    ] {
        let error = answer(&handle(body).load(), &json!(0)).unwrap_err();
        assert!(matches!(error, Error::Failed(_)), "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn what_djl_has_and_this_has_not_can_be_optional() {
    let folder = Folder::with(
        "
        import pickle
        import djl_python, djl_python.inputs
        assert not hasattr(djl_python, 'Session') and not hasattr(djl_python.inputs, 'Session')
        assert getattr(djl_python, 'Session', None) is None
        try:
            from djl_python import Session
        except ImportError:
            Session = None
        def handle(inputs):
            pairs = pickle.loads(pickle.dumps(djl_python.PairList(['a'], [1])))
            return None if inputs.is_empty() else djl_python.Output().add(pairs.get('a'))
        ",
    );
    assert_eq!(answer(&folder.load(), &json!(0)).unwrap(), [json!(1)]);
}

#[test]
fn a_native_model_may_import_djl_python() {
    let native = |body: &str| {
        let folder = Folder::with(&format!(
            "try:\n    import djl_python\n    from djl_python import Input, Output\n\
             except ImportError:\n    pass\n{body}"
        ));
        assert_eq!(answer(&folder.load(), &json!(1)).unwrap(), [json!(2)], "{body}");
    };
    native("def handle(input, job): return input + 1");
    native("def load(models): pass\ndef handle(input): return input + 1");
    native("del djl_python, Input, Output\ndef handle(input): return input + 1");
    native("class Model:\n    def handle(self, input): return input + 1");
}

#[test]
fn the_modules_of_djl_are_found_by_each_of_their_names() {
    let folder = Folder::with(
        "
        import djl_python
        from djl_python import inputs as module, input_formatter
        from djl_python.encode_decode import decode, encode
        from djl_python.input_parser import input_formatter as other
        from djl_python.inputs import Input
        from djl_python.pair_list import PairList
        assert module.Input is Input is djl_python.Input and input_formatter is other
        pairs = PairList(pair_map={'a': 1})
        pairs.add('b', 2)
        pairs.add(pair=('a', 3))
        assert (pairs.size(), pairs.get('a'), pairs.get('c')) == (3, 1, None)
        assert (pairs.get_keys(), pairs.get_values()) == (['a', 'b', 'a'], [1, 2, 3])
        def handle(inputs):
            if inputs.is_empty():
                return None
            outputs = djl_python.Output()
            encode(outputs, decode(inputs, inputs.get_property('Content-Type')), None)
            return outputs
        ",
    );
    assert_eq!(answer(&folder.load(), &json!([1])).unwrap(), [json!([1])]);
}
