//! Tests of reading and checking configurations, and of the files in `deploy`.

use std::os::unix::fs::PermissionsExt as _;

use nsbridge_base::config::Environment;

use super::{Config, Server};

const EXAMPLE: &str = include_str!("../../../../deploy/gateway.example.toml");

fn read(text: &str) -> Result<Config, String> {
    let config: Config = nsbridge_base::config::parse(text, &Environment::default())
        .map_err(|error| error.to_string())?;
    config.check_connection().map_err(|error| error.to_string())?;
    config.check().map_err(|error| error.to_string())?;
    Ok(config)
}

#[test]
fn the_example_has_the_defaults_and_every_field_in_it_is_one() {
    let config = read(EXAMPLE).unwrap();
    let defaults = Server::default();
    let shown = |server: &Server| format!("{server:?}");
    assert_eq!(shown(&config.server), shown(&defaults));
    let batches = format!("{:?}", config.batches);
    assert_eq!(batches, format!("{:?}", super::BatchConfig::default()));
    // With the fields that are commented out; the two kinds of access exclude each other.
    let is_field = |line: &str| {
        let name = line.strip_prefix("# ").and_then(|line| line.split_once(" = "));
        name.is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
    };
    // Each excludes a field that is set.
    let others = ["# open_to", "# keys_json", "# keyring_json", "# url", "# key = \"AAAA"];
    let all: Vec<&str> = EXAMPLE
        .lines()
        .filter(|line| !others.iter().any(|other| line.starts_with(other)))
        .map(|line| if is_field(line) { &line[2..] } else { line })
        .collect();
    let config = read(&all.join("\n")).unwrap();
    assert!(config.server.certificate.is_some() && config.server.default_model.is_some());
    let model = &config.models["tale-7m"];
    assert!(model.tools.is_some() && model.reasoning.is_some());
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let refused = |from: &str, to: &str| read(&EXAMPLE.replace(from, to)).unwrap_err();
    let open = "open_to = \"t\"";
    assert!(refused("file = \"api-keys.json\"", "").contains("exactly one of"));
    let public = EXAMPLE.replace("127.0.0.1:8080", "0.0.0.0:8080");
    let error = read(&public.replace("file = \"api-keys.json\"", open)).unwrap_err();
    assert!(error.contains("lets everyone in"), "{error}");
    assert!(refused("# certificate", "certificate").contains("both of"));
    assert!(refused("file = \"api", "keys_json = \"{}\"\nfile = \"api").contains("exactly one of"));
    assert!(refused("url = \"amqp:", "url_file = \"u\"\nurl = \"amqp:").contains("[broker] needs"));
    assert!(refused("keyring = \"keys.json\"", "").contains("[keys] needs exactly one"));
    assert!(refused("key_file = \"gateway.key\"", "").contains("`key_file` and `key`"));
    assert!(refused("path = \"gateway.redb\"", "").contains("`path`, `shared` or both"));
    assert!(refused("timeout_s = 600", "timeout_s = 1501").contains("from 1 to 1500"));
    assert!(refused("lines = 16", "lines = 0").contains("from 1 to 4096"));
    let secure = refused("# otlp = \"http://", "otlp = \"https://");
    assert!(secure.contains("[telemetry] otlp must be an address like http://"), "{secure}");
    let unknown = refused("max_body", "max_bodies");
    assert!(unknown.contains("[server] unknown field `max_bodies`; did you mean"), "{unknown}");
}

#[test]
fn the_image_the_compose_file_and_the_task_on_ecs_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    let image = include_str!("../../../../deploy/container-gateway.toml");
    std::fs::write(&path, image).unwrap();
    let checked = |set: Vec<(String, String)>| {
        let config = Config::read(&path, set).unwrap();
        config.check_connection().unwrap();
        config.check().unwrap();
        config
    };
    let compose = include_str!("../../../../deploy/compose.yaml");
    let (_, gateway) = compose.split_once("\n  gateway:\n").unwrap();
    let fields = gateway.lines().filter_map(|line| line.trim().split_once(": "));
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = checked(fields.filter(|(name, _)| name.starts_with("NSBRIDGE_")).collect());
    assert!(config.access.file.is_some() && config.store.is_none());

    let task = include_str!("../../../../deploy/ecs/gateway-task-definition.json");
    let task: serde_json::Value = serde_json::from_str(task).unwrap();
    let container = &task["containerDefinitions"][0];
    let set = |list: &str, value: &str| {
        let of = |field: &serde_json::Value| field.as_str().unwrap().to_owned();
        let fields = container[list].as_array().unwrap().iter();
        fields.map(|field| (of(&field["name"]), of(&field[value]))).collect::<Vec<_>>()
    };
    let config = checked([set("environment", "value"), set("secrets", "valueFrom")].concat());
    // The check does not go through the door of the API's clients, which they can fill.
    let address = format!("127.0.0.1:{}", config.server.metrics.unwrap().port());
    let check = &container["healthCheck"]["command"];
    assert_eq!(*check, serde_json::json!(["CMD", "nsbridge", "health", "--address", address]));
    let store = config.store.unwrap();
    assert!(store.shared.is_some() && store.key.is_some());
    // The process ends at most 10 s after its grace.
    assert!(config.server.grace_s + 10 < container["stopTimeout"].as_u64().unwrap());
}

#[test]
fn the_example_of_a_model_by_vllm_is_complete() {
    let config = read(include_str!("../../../../examples/vllm/gateway.toml")).unwrap();
    let model = &config.models["qwen"];
    assert!(model.tools.is_some() && model.reasoning.is_some());
}

#[test]
fn all_that_the_image_copies_goes_to_its_builder() {
    let dockerfile = include_str!("../../../../deploy/Dockerfile");
    let ignored = include_str!("../../../../deploy/Dockerfile.dockerignore");
    let copied = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY "));
    let sources = copied.filter(|line| !line.starts_with("--from") && !line.starts_with(". "));
    let sources: Vec<&str> = sources.filter_map(|line| line.split(' ').next()).collect();
    assert!(sources.len() >= 3, "{sources:?}");
    for source in sources {
        let given = |line: &str| {
            let given = line.strip_prefix('!');
            given.is_some_and(|given| source == given || source.starts_with(&format!("{given}/")))
        };
        assert!(ignored.lines().any(given), "{source} is not in the context of the build");
    }
}

#[test]
fn the_environment_sets_what_a_container_must_not_have_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gateway.toml");
    let image = "[server]\nlisten = \"0.0.0.0:8080\"\n[store]\npath = \"a.redb\"\n[models.m]\n";
    std::fs::write(&path, image).unwrap();
    let secrets = [
        ("NSBRIDGE_BROKER__URL", "amqps://u:canary@b"),
        ("NSBRIDGE_KEYS__KEYRING_JSON", "canary"),
        ("NSBRIDGE_ACCESS__KEYS_JSON", "canary"),
        ("NSBRIDGE_STORE__KEY", "canary"),
        ("NSBRIDGE_MODELS__M__CONTEXT", "512"),
    ];
    let read = |set: &[(&str, &str)]| {
        Config::read(&path, set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    };
    let config = read(&secrets).unwrap();
    assert!(config.check_connection().is_ok() && config.check().is_ok());
    assert_eq!(config.broker.read_url().unwrap(), "amqps://u:canary@b");
    assert_eq!(config.models["m"].context, Some(512));
    let shown = format!("{config:?}");
    assert!(!shown.contains("canary"), "{shown}");
    assert_eq!(config.exposed, None);
    let held = |more: &str| {
        std::fs::write(&path, format!("{more}\n{image}")).unwrap();
        read(&[]).unwrap().exposed.is_some()
    };
    assert!(held("[broker]\nurl = \"amqps://u:secret@b\""));
    assert!(held("[keys]\nkeyring_json = \"{}\""));
    assert!(!held("[broker]\nurl = \"amqp://guest:guest@b\""));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!held("[broker]\nurl = \"amqps://u:secret@b\""));
    std::fs::write(&path, "[models.m]\n").unwrap();
    let told = read(&secrets).unwrap_err().to_string();
    assert!(told.contains("NSBRIDGE_STORE__KEY, and there is no [store]"), "{told}");
}
