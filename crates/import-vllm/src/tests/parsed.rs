//! Command lines and files as vLLM's own parser read them (`record.py`).

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::arguments::{Arguments, Group};
use crate::files;
use crate::flags;
use crate::settings::Settings;
use crate::value;

#[derive(Deserialize)]
struct Recorded {
    commands: Vec<Command>,
    files: Vec<File>,
}

#[derive(Deserialize)]
struct Command {
    words: Vec<String>,
    #[serde(default)]
    refused: bool,
    /// Fields of the engine that are set.
    #[serde(default)]
    engine: Map<String, Json>,
    /// Names of the fields of the server that are set.
    #[serde(default)]
    server: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    text: String,
    words: Vec<String>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("parsed.json")).unwrap()
}

/// Returns what this crate reads; an error is the fate of an argument that is not carried over.
fn read(
    arguments: &Arguments,
    words: &[String],
) -> Result<(Map<String, Json>, Vec<String>), String> {
    let mut settings = Settings::default();
    flags::read(arguments, words, "", &mut settings);
    let (mut engine, mut server) = (Map::new(), Vec::new());
    for setting in settings.iter() {
        let argument = setting.argument.ok_or_else(|| format!("{} is unknown", setting.name))?;
        let name = argument.name.clone();
        if argument.group == Group::Server {
            server.push(name);
            continue;
        }
        let read = value::read(argument, &setting.given)?;
        engine.insert(name, read.map_or(Json::Null, |value| serde_json::to_value(value).unwrap()));
    }
    server.sort();
    Ok((engine, server))
}

/// Returns the value as an option that has null within carries it: as the text of its JSON.
fn as_option(value: &Json) -> Json {
    match value {
        Json::Object(_) => serde_json::to_value(value::toml_of(value)).unwrap(),
        other => other.clone(),
    }
}

#[test]
fn each_command_is_read_as_vllm_reads_it() {
    let arguments = Arguments::read().unwrap();
    let commands = recorded().commands;
    assert!(commands.len() > 80 && commands.iter().filter(|command| command.refused).count() > 10);
    for Command { words, refused, engine, server } in commands {
        let read = read(&arguments, &words);
        if refused {
            assert!(read.is_err(), "{words:?}: {read:?}");
            continue;
        }
        let engine = engine.iter().map(|(name, value)| (name.clone(), as_option(value))).collect();
        assert_eq!(read, Ok((engine, server)), "{words:?}");
    }
}

#[test]
fn each_file_of_arguments_is_read_as_vllm_reads_it() {
    let arguments = Arguments::read().unwrap();
    let files = recorded().files;
    assert!(files.len() > 10);
    for File { text, words } in files {
        let read = files::config(&arguments, &text).unwrap();
        // An object is a text of JSON, whose spaces and order have no meaning.
        let plain = |words: &[String]| -> Vec<Json> {
            words
                .iter()
                .map(|word| serde_json::from_str(word).unwrap_or_else(|_| word.clone().into()))
                .collect()
        };
        assert_eq!(plain(&read), plain(&words), "{text}");
    }
}
