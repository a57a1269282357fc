//! Log of a worker with a model in Python: prints of the load, and nothing of a request.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::folder::Folder;
use crate::worker::System;

/// Captured log output.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

const MODEL: &str = "
    import os, subprocess, sys
    print('printed by the load')
    os.write(2, b'written to stderr by the load\\n')
    sys.stdout.write('without a line end')

    def handle(input, job):
        print(input)
        print(input, file=sys.stderr)
        os.write(1, input.encode())
        os.write(2, input.encode())
        subprocess.run(['echo', input])
        if input.startswith('flood'):
            for i in range(200_000):
                print(input)
        elif input.startswith('raise'):
            raise ValueError(input) from KeyError(input)
        elif input.startswith('crash'):
            if not os.path.exists('crashed'):
                open('crashed', 'w').close()
                os.kill(os.getpid(), 11)
        elif input.startswith('code'):
            exec(compile('raise ValueError(1)', input, 'exec'))
        yield 'answered'
";

/// Answers requests by errors of a model for DJLServing that quote the input.
async fn fail_as_djl() {
    let folder = Folder::with(
        "
        from djl_python import Output
        def handle(inputs):
            if inputs.is_empty():
                return None
            code, text = inputs.get_as_json()
            return Output().error(text, code).add(text).finalize(open, text)
        ",
    );
    let system = System::start(folder.options()).await;
    let failed = system.ask(&json!([500, "canary"])).await.unwrap_err();
    assert!(!failed.to_string().contains("canary"), "{failed}");
    let refused = system.ask(&json!([400, "canary"])).await.unwrap_err();
    assert!(refused.to_string().contains("canary"), "for the client: {refused}");
    system.worker.stop().await.unwrap();
}

/// Sends inputs that do not fit the hint.
async fn fail_a_check() {
    let folder = Folder::with(
        "
        from typing import Dict
        def handle(input: Dict[str, int]): pass
        ",
    );
    let system = System::start(folder.options()).await;
    let refused = system.ask(&json!({ "canary": "canary" })).await.unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("`input.canary` must be an integer"), "for the client: {said}");
    system.worker.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_prints_of_the_load_and_nothing_that_a_user_wrote() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let folder = Folder::with(MODEL);
    let system = System::start(folder.options()).await;
    for kind in ["flood", "plain", "crash"] {
        let pieces = system.ask(&json!(format!("{kind} canary"))).await.unwrap();
        assert_eq!(pieces, [json!("answered")]);
    }
    for kind in ["raise", "code"] {
        let failed = system.ask(&json!(format!("{kind} canary"))).await.unwrap_err();
        assert!(!failed.to_string().contains("canary"), "{failed}");
    }
    system.worker.stop().await.unwrap();
    fail_as_djl().await;
    fail_a_check().await;

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for part in [
        "printed by the load",
        "written to stderr by the load",
        "without a line end",
        "exception=\"ValueError\"",
        "model.py:16",
        "signal 11",
        "`handle` returned an Output with code 500",
    ] {
        assert!(log.contains(part), "`{part}` is missing");
    }
    let lines: Vec<_> = log.lines().filter(|line| line.contains("canary")).collect();
    assert!(lines.is_empty(), "{lines:?}");
    assert!(!folder.path("model.log").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_goes_to_a_file_if_the_operator_names_one() {
    let folder = Folder::with(MODEL);
    let mut options = folder.options();
    options.output = Some(folder.path("model.log"));
    let system = System::start(options).await;
    system.ask(&json!("plain words")).await.unwrap();
    system.ask(&json!("raise words")).await.unwrap_err();
    let output = folder.read("model.log");
    assert_eq!(output.matches("plain words").count(), 5, "{output}");
    assert!(output.contains("ValueError: raise words"), "the traceback too: {output}");
    let mode = folder.path("model.log").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others must not read it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_the_request_stands_before_a_traceback() {
    for handle in ["def", "async def"] {
        let folder = Folder::with(&format!(
            "
            {handle} handle(input, job):
                with open('id', 'w') as file:
                    file.write(job.id)
                raise ValueError(input)
            "
        ));
        let mut options = folder.options();
        options.output = Some(folder.path("model.log"));
        let system = System::start(options).await;
        system.ask(&json!("some words")).await.unwrap_err();
        system.worker.stop().await.unwrap();
        let (id, output) = (folder.read("id"), folder.read("model.log"));
        let head = format!("request {id}:\nTraceback (most recent call last):\n");
        assert!(output.contains(&head), "{handle}: {output}");
    }
}
