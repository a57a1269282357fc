//! Fields of the gateway's configuration that stand for arguments of vLLM's HTTP server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nsbridge_import::Fate;
use serde_json::Value as Json;
use toml::Value;

use crate::arguments::Argument;
use crate::context::Import;
use crate::settings::Setting;
use crate::value::toml_of;

/// Port of vLLM's server.
const PORT: u16 = 8000;

/// Formats of calls that the gateway and vLLM call by the same names.
const TOOLS: [&str; 3] = ["hermes", "llama3_json", "mistral"];

pub(super) fn listen(import: &mut Import<'_>, _: &Argument, _: &Setting<'_>) -> Fate {
    let host = match import.settings.get("host").unwrap_or_default() {
        "" | "None" => Ok(IpAddr::from(Ipv4Addr::UNSPECIFIED)),
        "localhost" => Ok(IpAddr::from(Ipv4Addr::LOCALHOST)),
        host => host.trim_matches(['[', ']']).parse(),
    };
    let port = import.settings.get("port").map_or(Ok(PORT), str::parse);
    match (host, port) {
        (Ok(host), Ok(port)) => {
            at_server("listen", &Value::String(SocketAddr::new(host, port).to_string()))
        }
        _ => Fate::AtGateway(
            "gateway.toml: [server] listen, an IP address and a port such as \"0.0.0.0:8000\""
                .to_owned(),
        ),
    }
}

pub(super) fn api_key(_: &mut Import<'_>, _: &Argument, _: &Setting<'_>) -> Fate {
    Fate::AtGateway(
        "gateway.toml: [access] file; `nsbridge gateway keys add api-keys.json --tenant TENANT` makes a key and \
         prints it once. vLLM's key is not copied"
            .to_owned(),
    )
}

pub(super) fn certificate(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    file("certificate", import, setting)
}

pub(super) fn certificate_key(
    import: &mut Import<'_>,
    _: &Argument,
    setting: &Setting<'_>,
) -> Fate {
    file("key", import, setting)
}

fn file(field: &str, import: &Import<'_>, setting: &Setting<'_>) -> Fate {
    let path = import.folder.join(setting.value().unwrap_or_default());
    at_server(field, &Value::String(path.to_string_lossy().into_owned()))
}

pub(super) fn origins(_: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    match setting.value().and_then(|value| serde_json::from_str(value).ok()) {
        Some(list @ Json::Array(_)) => at_server("allow_origins", &toml_of(&list)),
        _ => Fate::NotCarried("it must be a JSON list".to_owned()),
    }
}

fn at_server(field: &str, value: &Value) -> Fate {
    Fate::AtGateway(format!("gateway.toml: [server] {field} = {value}"))
}

pub(super) fn tools(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    match setting.value() {
        Some(parser) if TOOLS.contains(&parser) => import.at_gateway_model("tools", parser),
        _ => Fate::NotCarried(
            "the gateway reads calls in the formats hermes, llama3_json and mistral; calls that a client requires \
             are held by a grammar, for any model"
                .to_owned(),
        ),
    }
}

pub(super) fn chat_template(import: &mut Import<'_>, _: &Argument, setting: &Setting<'_>) -> Fate {
    let path = setting.value().filter(|path| import.folder.join(path).is_file());
    let template = path.map_or_else(|| "the template".to_owned(), |path| format!("`{path}`"));
    let step = format!(
        "[models] target: copy {template} to chat_template.jinja in the model's folder, which replaces the template there"
    );
    import.steps.push(step);
    Fate::NotCarried("it is a file of the model, chat_template.jinja: see `to do`".to_owned())
}
