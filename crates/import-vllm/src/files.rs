//! Files that hold arguments: a command line, a list, the file of a container, and vLLM's own YAML.

use crate::arguments::{Argument, Arguments, Kind, long};
use crate::command::Command;
use crate::shell;
use crate::yaml::{self, Node};

/// Fields that hold a command, in the order in which a container runs them together.
const COMMAND_FIELDS: [&str; 3] = ["entrypoint", "command", "args"];

/// Reads the command of a file.
///
/// # Errors
///
/// Returns the end of a sentence about the file.
pub(super) fn command(text: &str, is_yaml: bool) -> Result<Command, String> {
    if is_yaml || looks_like_yaml(text) {
        let documents = yaml::documents(text)?;
        return match only(containers(&documents)?)? {
            Some(words) => Command::find(&words),
            None => Err("it has no command of vLLM's server: no list of arguments, and no `args` or `command` \
                         of a container of vLLM"
                .to_owned()),
        };
    }
    let commands = shell::commands(text)?;
    let of_server = commands.iter().filter(|words| Command::is_in(words)).cloned().collect();
    match (only(of_server)?, &*commands) {
        (Some(words), _) => Command::find(&words),
        (None, [words]) => Command::find(words),
        (None, []) => Err("it is empty".to_owned()),
        (None, _) => Err("it has several commands, and none begins with `vllm serve`".to_owned()),
    }
}

fn only(mut commands: Vec<Vec<String>>) -> Result<Option<Vec<String>>, String> {
    match commands.len() {
        0 | 1 => Ok(commands.pop()),
        several => Err(format!(
            "it has {several} commands of vLLM's server: put one into a file of its own"
        )),
    }
}

fn looks_like_yaml(text: &str) -> bool {
    let mut lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let first = lines.next().unwrap_or_default();
    let begins = |field: &str| first.strip_prefix(field).is_some_and(|rest| rest.starts_with(':'));
    first.starts_with("- ") || first.starts_with('[') || COMMAND_FIELDS.into_iter().any(begins)
}

/// Returns the commands of vLLM's server in the documents.
fn containers(documents: &[Node]) -> Result<Vec<Vec<String>>, String> {
    if let [list @ Node::List(items)] = documents
        && items.iter().all(|item| matches!(item, Node::Scalar(..)))
    {
        return words(list).map(|words| vec![words]);
    }
    let mut found = Vec::new();
    documents.iter().try_for_each(|node| collect(node, documents.len() == 1, &mut found))?;
    Ok(found)
}

/// Adds the commands of the containers within a node. `is_whole` is true for the only node of a file, which
/// needs no other sign that it is about vLLM.
fn collect(node: &Node, is_whole: bool, found: &mut Vec<Vec<String>>) -> Result<(), String> {
    match node {
        Node::Scalar(..) => Ok(()),
        Node::List(items) => items.iter().try_for_each(|item| collect(item, false, found)),
        Node::Fields(fields) => {
            let image = node.get("image").and_then(|image| image_name(image));
            let commands = COMMAND_FIELDS.iter().filter_map(|field| node.get(field));
            let is_of_vllm = is_whole || image.is_some_and(|image| image.contains("vllm"));
            let lists = commands.clone().all(|node| !matches!(node, Node::Fields(_)));
            if commands.clone().next().is_some() && lists {
                let read: Result<Vec<_>, _> = commands.map(words).collect();
                match read {
                    Ok(words) if is_of_vllm || Command::is_in(&words.concat()) => {
                        found.push(words.concat());
                    }
                    Err(why) if is_of_vllm => return Err(why),
                    _ => {}
                }
            }
            fields.iter().try_for_each(|(_, value)| collect(value, false, found))
        }
    }
}

fn image_name(node: &Node) -> Option<&str> {
    match node {
        Node::Scalar(name, _) => Some(name),
        Node::List(_) | Node::Fields(_) => None,
    }
}

/// Returns the words of a list, or of a text as a shell reads it.
fn words(node: &Node) -> Result<Vec<String>, String> {
    match node {
        Node::Scalar(text, _) => Ok(shell::commands(text)?.concat()),
        Node::List(items) => items.iter().map(word).collect(),
        Node::Fields(_) => Err(NO_WORD.to_owned()),
    }
}

const NO_WORD: &str = "an argument in it is no text: put it between quotation marks";

fn word(node: &Node) -> Result<String, String> {
    match node {
        Node::Scalar(text, _) => Ok(text.clone()),
        Node::List(_) | Node::Fields(_) => Err(NO_WORD.to_owned()),
    }
}

/// Reads vLLM's own file of arguments as the words that they stand for.
///
/// # Errors
///
/// Returns the end of a sentence about the file.
pub(super) fn config(arguments: &Arguments, text: &str) -> Result<Vec<String>, String> {
    let documents = yaml::documents(text)?;
    let [Node::Fields(fields)] = &*documents else {
        return Err("it is no mapping of arguments, such as `tensor-parallel-size: 2`".to_owned());
    };
    let mut read = Vec::new();
    for (name, value) in fields {
        read.extend(config_words(arguments.get(&name.replace('-', "_")), name, value)?);
    }
    Ok(read)
}

fn config_words(
    argument: Option<&Argument>,
    name: &str,
    value: &Node,
) -> Result<Vec<String>, String> {
    let flag = format!("--{name}");
    Ok(match value {
        Node::Fields(_) => vec![flag, value.to_json().to_string()],
        Node::List(items) if items.is_empty() => Vec::new(),
        Node::List(items) => {
            let words = items.iter().map(word).collect::<Result<Vec<_>, _>>()?;
            [vec![flag], words].concat()
        }
        Node::Scalar(text, _) => match value.to_json().as_bool() {
            Some(true) => vec![flag],
            Some(false) => {
                let off = argument.filter(|argument| argument.kind == Kind::Boolean);
                off.map(|argument| format!("--no-{}", &long(&argument.name)[2..]))
                    .into_iter()
                    .collect()
            }
            None if value.to_json().is_null() => vec![flag, "None".to_owned()],
            None => vec![flag, text.clone()],
        },
    })
}

#[cfg(test)]
mod tests;
