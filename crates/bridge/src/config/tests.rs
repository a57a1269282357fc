//! Tests of reading configurations, of overrides from the environment, and of error messages.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nsbridge_base::config::{Environment, parse};

use super::{BrokerConfig, Config, KeysConfig, LogFormat, WorkerConfig};

const MINIMAL: &str = r#"
[worker]
model = "tale-7m"

[broker]
url = "amqp://localhost"

[keys]
keyring = "keys.json"
"#;

fn read(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let variables = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    parse(text, &Environment::new(variables)).map_err(|error| error.to_string())
}

#[track_caller]
fn check_refused(text: &str, environment: &[(&str, &str)], expected: &str) {
    assert_eq!(read(text, environment).unwrap_err(), expected);
}

#[test]
fn the_minimum_is_enough() {
    let config = read(MINIMAL, &[]).unwrap();
    assert_eq!(config.worker.model.as_str(), "tale-7m");
    assert_eq!((config.reply.coalesce_ms, config.reply.window), (20, 256));
}

#[test]
fn a_configuration_made_in_code_is_the_one_that_is_read() {
    let worker = WorkerConfig::new("tale-7m".parse().unwrap());
    let keys = KeysConfig::from_keyring("keys.json");
    let mut made = Config::new(worker, BrokerConfig::from_url("amqp://localhost"), keys);
    assert_eq!(format!("{made:?}"), format!("{:?}", read(MINIMAL, &[]).unwrap()));
    assert_eq!(made.validate(), Ok(()));
    made.reply.window = 0;
    assert_eq!(made.validate().unwrap_err().to_string(), "[reply] window must be at least 1");
}

#[test]
fn the_environment_wins_over_the_file() {
    let config = read(
        MINIMAL,
        &[
            ("NSBRIDGE_WORKER__MODEL", "other"),
            ("NSBRIDGE_REPLY__COALESCE_MS", "5"),
            ("NSBRIDGE_LOG__FORMAT", "json"),
            ("NSBRIDGE_HANDLER__TEMPERATURE", "0.5"),
            ("NSBRIDGE_MODELS__TARGET", "/models/a"),
            ("NSBRIDGE_TEST_AMQP_URL", "ignored"),
            ("PATH", "ignored"),
        ],
    )
    .unwrap();
    assert_eq!(config.worker.model.as_str(), "other");
    assert_eq!((config.reply.coalesce_ms, config.log.format), (5, LogFormat::Json));
    assert_eq!(config.handler["temperature"].as_float(), Some(0.5));
    assert!(format!("{:?}", config.models["target"]).ends_with("models/a"));
}

#[test]
fn an_unknown_field_is_refused_with_its_line_and_a_suggestion() {
    let typo = MINIMAL.replace("model =", "modle =");
    check_refused(&typo, &[], "line 3: [worker] unknown field `modle`; did you mean `model`?");
    let section = MINIMAL.replace("[keys]", "[kyes]");
    check_refused(&section, &[], "line 8: unknown field `kyes`; did you mean `keys`?");
    check_refused(
        MINIMAL,
        &[("NSBRIDGE_REPLY__WINDOWS", "5")],
        "[reply] unknown field `windows`; did you mean `window`?",
    );
}

#[test]
fn a_wait_without_bound_for_a_resume_is_refused() {
    let check = |ms: &str| read(MINIMAL, &[("NSBRIDGE_REPLY__RESUME_WAIT_MS", ms)])?.check();
    assert_eq!(check("60000"), Ok(()));
    assert_eq!(check("60001").unwrap_err(), "[reply] resume_wait_ms must be at most 60000");
}

#[test]
fn a_broken_file_or_environment_is_named_by_place() {
    check_refused("[worker\n", &[], "line 1: unclosed table, expected `]`");
    check_refused("", &[], "missing field `worker`");
    check_refused(
        MINIMAL,
        &[("NSBRIDGE_MODEL", "x")],
        "the environment's NSBRIDGE_MODEL names no field: use NSBRIDGE_<SECTION>__<FIELD>",
    );
    let bad = MINIMAL.replace("tale-7m", "tale 7m");
    let said = read(&bad, &[]).unwrap_err();
    assert!(said.contains("[worker.model]") && said.contains("is not a model name"), "{said}");
}

#[test]
fn keys_come_from_a_keyring_from_kms_or_from_both() {
    let kms = "kms_keys = [\"alias/a\", \"arn:aws:kms:eu-central-1:1:key/2\"]";
    let keys = |fields: &str| {
        let text = MINIMAL.replace("keyring = \"keys.json\"", fields);
        read(&text, &[]).unwrap().keys.check()
    };
    assert_eq!(keys("keyring = \"a\""), Ok(()));
    assert_eq!(keys(&format!("keyring_json = \"{{}}\"\n{kms}")), Ok(()));
    assert_eq!(keys(kms), Ok(()));
    let needed = "[keys] needs `keyring`, `keyring_json` or `kms_keys`: without keys no request \
                  can be opened";
    assert_eq!(keys("region = \"eu-central-1\""), Err(needed.to_owned()));
    let one = "[keys] may have one of `keyring` and `keyring_json`, not both";
    assert_eq!(keys("keyring = \"a\"\nkeyring_json = \"{}\""), Err(one.to_owned()));
}

#[test]
fn data_keys_cross_no_network_in_the_open() {
    let keys = |url: &str| {
        let fields = format!("kms_keys = [\"alias/a\"]\nendpoint_url = \"{url}\"");
        let text = MINIMAL.replace("keyring = \"keys.json\"", &fields);
        read(&text, &[]).unwrap().keys.check()
    };
    for good in
        ["https://kms.example", "http://localhost:4566", "http://127.0.0.1:1", "http://[::1]:1"]
    {
        assert_eq!(keys(good), Ok(()), "{good}");
    }
    for bad in ["http://kms.example", "http://localhost.example", "kms.example", "ftp://localhost"]
    {
        assert!(keys(bad).unwrap_err().contains("https://"), "{bad}");
    }
}

#[test]
fn l5_a_bucket_on_another_machine_is_reached_over_tls_or_by_an_explicit_word() {
    let store =
        |fields: &str| read(&format!("{MINIMAL}\n[store]\n{fields}"), &[]).unwrap().store.check();
    for good in ["https://minio.example", "http://localhost:9000", "http://127.0.0.1:9000"] {
        assert_eq!(store(&format!("endpoint_url = \"{good}\"")), Ok(()), "{good}");
    }
    for bad in ["http://minio:9000", "http://10.0.0.7", "http://127.1:9000"] {
        let field = format!("endpoint_url = \"{bad}\"");
        let told = store(&field).unwrap_err();
        assert!(told.contains(bad) && told.contains("allow_plaintext = true"), "{told}");
        assert_eq!(store(&format!("{field}\nallow_plaintext = true")), Ok(()), "{bad}");
    }
}

#[test]
fn what_is_secret_does_not_show_in_debug() {
    let text = MINIMAL.replace("localhost", "u:canary@host");
    let secret = [("NSBRIDGE_KEYS__KEYRING_JSON", "canary")];
    assert!(!format!("{:?}", read(&text, &secret).unwrap()).contains("canary"));
}

#[test]
fn l7_a_file_with_a_password_is_its_owners_alone() {
    let home = tempfile::tempdir().unwrap();
    let url_file = home.path().join("url");
    std::fs::write(&url_file, "amqps://me:secret@mq/%2f\n").unwrap();
    let broker = BrokerConfig::from_url_file(url_file.clone());
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for open in [0o644, 0o640, 0o604, 0o620] {
        mode(&url_file, open);
        let told = broker.read_url().unwrap_err().to_string();
        assert!(told.contains("chmod 600") && !told.contains("secret"), "{told}");
    }
    mode(&url_file, 0o400);
    assert_eq!(broker.read_url().unwrap(), "amqps://me:secret@mq/%2f");

    mode(&url_file, 0o600);
    std::fs::write(&url_file, "\u{feff}amqps://mq?heartbeat=5").unwrap();
    let mut external = broker;
    external.ca_file = Some("/a b/ca&1.pem".into());
    external.auth_mechanism = Some("external".to_owned());
    let expected = "amqps://mq?heartbeat=5&cacertfile=/a%20b/ca%261.pem&auth_mechanism=external";
    assert_eq!(external.read_url().unwrap(), expected);
    external.resolve(Path::new("/etc"));
    assert_eq!(external.ca_file.as_deref(), Some(Path::new("/a b/ca&1.pem")));

    let path = home.path().join("worker.toml");
    let told = |url: &str, file_mode| {
        std::fs::write(&path, MINIMAL.replace("amqp://localhost", url)).unwrap();
        mode(&path, file_mode);
        Config::read(&path, []).unwrap().exposed
    };
    let exposed = told("amqps://me:secret@mq", 0o644).unwrap();
    assert!(exposed.contains("chmod 600") && !exposed.contains("secret"), "{exposed}");
    assert_eq!(told("amqps://me:secret@mq", 0o600), None);
    assert_eq!(told("amqp://guest:guest@localhost", 0o644), None, "RabbitMQ's own is no secret");
    assert_eq!(told("amqps://mq", 0o644), None);
}

#[test]
fn a_model_that_is_not_pinned_is_refused_where_pins_are_required() {
    let pinned = format!("{{ source = \"s3://b/m\", manifest = \"{}\" }}", "ab".repeat(32));
    let check = |model: &str| {
        let more = format!("[models]\ntarget = {model}\n[store]\nrequire_manifest = true\n");
        read(&format!("{MINIMAL}\n{more}"), &[]).unwrap().check()
    };
    assert_eq!(check(&pinned), Ok(()));
    let told = check("\"s3://b/m\"").unwrap_err();
    assert!(told.contains("[models] target is not pinned"), "{told}");
}

#[test]
fn the_judges_table_is_a_field_of_the_handlers_options() {
    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Options {
        size: u32,
        judge: Option<toml::Table>,
    }
    #[derive(Debug, serde::Deserialize)]
    struct Plain {
        size: u32,
    }
    let with = |more: &str| read(&format!("{MINIMAL}[handler]\nsize = 3\n{more}"), &[]).unwrap();
    let options: Options = with("").options().unwrap();
    assert_eq!((options.size, options.judge), (3, None));
    let options: Options = with("[judge]\nbefore = false\n").options().unwrap();
    assert_eq!(options.judge.unwrap()["before"].as_bool(), Some(false));
    let environment = [("NSBRIDGE_JUDGE__AFTER", "false"), ("NSBRIDGE_HANDLER__SIZE", "4")];
    let options: Options = read(MINIMAL, &environment).unwrap().options().unwrap();
    assert_eq!((options.size, options.judge.unwrap()["after"].as_bool()), (4, Some(false)));
    // A worker without a judge must not ignore the table, also if its options ignore other fields.
    let plain: Plain = with("").options().unwrap();
    assert_eq!(plain.size, 3);
    let error = with("[judge]\n").options::<Plain>().unwrap_err().to_string();
    assert!(error.contains("[judge]: this worker has no judge"), "{error}");
    let refused = read(&format!("{MINIMAL}[judge]\n"), &[]).unwrap().options::<()>().unwrap_err();
    assert!(refused.to_string().contains("[handler]"), "{refused}");
}

#[test]
fn the_list_of_words_is_relative_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("worker.toml");
    std::fs::write(&path, format!("{MINIMAL}[judge]\nwords = \"words.toml\"\n")).unwrap();
    let judge = Config::read(&path, []).unwrap().judge.unwrap();
    assert_eq!(judge["words"].as_str(), folder.path().join("words.toml").to_str());
}

#[test]
fn the_image_and_the_task_on_ecs_are_complete() {
    let image = include_str!("../../../../deploy/container.toml");
    let task = include_str!("../../../../deploy/ecs/task-definition.json");
    let task: serde_json::Value = serde_json::from_str(task).unwrap();
    let container = &task["containerDefinitions"][0];
    let set = |list: &str, value: &'static str| {
        let fields = container[list].as_array().unwrap().iter();
        fields.map(move |field| (field["name"].as_str().unwrap(), field[value].as_str().unwrap()))
    };
    let all: Vec<_> = set("environment", "value").chain(set("secrets", "valueFrom")).collect();
    let mut config = read(image, &all).unwrap();
    // The image has these folders.
    config.models.clear();
    assert_eq!(config.check(), Ok(()));
    assert!(config.keys.keyring_json.is_some() && config.fleet.spot);
    // The check asks the port that `nsbridge health` asks by default.
    let check = serde_json::json!(["CMD", "nsbridge", "health", "--loaded"]);
    assert_eq!(container["healthCheck"]["command"], check);
    assert_eq!(config.health.listen.unwrap().port(), 9464);
    // Work is handed over in up to 10 s after the grace.
    assert!(config.worker.grace_s + 10 < container["stopTimeout"].as_u64().unwrap());
}
