//! vLLM's arguments within the words of a command: behind `vllm serve`, its module, or the name of its image.

use crate::shell;

/// Programs that run other programs, and are no name of a model.
const PROGRAMS: [&str; 8] =
    ["vllm", "python", "python3", "docker", "podman", "nerdctl", "sh", "bash"];

/// Arguments of vLLM's server, with what stands before them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    /// Program of the server, `vllm` or an interpreter of Python.
    pub(super) program: Option<String>,
    /// Names of the variables that the command sets.
    pub(super) variables: Vec<String>,
    pub(super) arguments: Vec<String>,
}

impl Command {
    /// Finds the arguments within the words.
    ///
    /// # Errors
    ///
    /// Returns a sentence if the command is another one.
    pub(super) fn find(words: &[String]) -> Result<Self, String> {
        if let Some(found) = behind_program(words)? {
            return Ok(found);
        }
        let first = words.first().map_or("", String::as_str);
        if ["docker", "podman", "nerdctl"].contains(&base(first)) {
            let image = words.iter().position(|word| is_image(word));
            let image = image.ok_or("the command has no image whose name begins with `vllm`: give what follows the image")?;
            return Ok(Self::new(None, &words[..image], &words[image + 1..]));
        }
        let is_other = PROGRAMS.contains(&base(first)) || base(first).starts_with("python3.");
        if is_other && !first.starts_with('-') {
            return Err(format!(
                "`{}` is no command of vLLM's server: give `vllm serve MODEL` and its arguments",
                base(first)
            ));
        }
        Ok(Self::new(None, &[], words))
    }

    /// Returns true if the words start vLLM's server.
    pub(super) fn is_in(words: &[String]) -> bool {
        matches!(behind_program(words), Ok(Some(_)))
    }

    fn new(program: Option<&String>, before: &[String], arguments: &[String]) -> Self {
        let variables = before.iter().filter_map(|word| {
            let (name, _) = word.trim_start_matches("--env=").split_once('=')?;
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let is_name =
                name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(plain);
            is_name.then(|| name.to_owned())
        });
        Self {
            program: program.cloned(),
            variables: variables.collect(),
            arguments: arguments.to_vec(),
        }
    }
}

/// Returns the arguments behind the program of the server.
fn behind_program(words: &[String]) -> Result<Option<Command>, String> {
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).map_or("", String::as_str);
        let before = at.checked_sub(1);
        let found = match word.as_str() {
            "-c" if before.is_some_and(|it| ["sh", "bash"].contains(&base(&words[it]))) => {
                let script = shell::commands(next)?;
                let found =
                    script.iter().map(|words| behind_program(words)).find_map(Result::transpose);
                return found.transpose();
            }
            "-m" if next.starts_with("vllm.") && next.ends_with(".api_server") => {
                Some((before.map(|it| &words[it]), before.unwrap_or(at), at + 2))
            }
            word if base(word) == "vllm" && next == "serve" => Some((Some(&words[at]), at, at + 2)),
            word if base(word) == "api_server.py" => {
                Some((before.map(|it| &words[it]), at, at + 1))
            }
            _ => None,
        };
        if let Some((program, before, from)) = found {
            return Ok(Some(Command::new(program, &words[..before], &words[from..])));
        }
    }
    Ok(None)
}

/// Returns the last part of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns true for an image of vLLM, such as `vllm/vllm-openai:v0.32.0`.
fn is_image(word: &str) -> bool {
    let is_path = word.starts_with(['-', '/', '.', '~', '$']) || word.contains('=');
    word.contains('/') && !is_path && base(word).starts_with("vllm")
}

#[cfg(test)]
mod tests {
    use super::Command;

    fn find(text: &str) -> Result<Command, String> {
        let words: Vec<_> = crate::shell::commands(text).unwrap().remove(0);
        Command::find(&words)
    }

    #[track_caller]
    fn check(text: &str, program: Option<&str>, variables: &[&str]) {
        let found = find(text).unwrap();
        assert_eq!(found.arguments, ["m", "--port", "1"], "{text}");
        assert_eq!(found.program.as_deref(), program, "{text}");
        assert_eq!(found.variables, variables, "{text}");
    }

    #[test]
    fn arguments_follow_the_program_the_module_or_the_image() {
        check("m --port 1", None, &[]);
        check("vllm serve m --port 1", Some("vllm"), &[]);
        check("A_B=1 nohup /v/bin/vllm serve m --port 1", Some("/v/bin/vllm"), &["A_B"]);
        check("uv run --with vllm vllm serve m --port 1", Some("vllm"), &[]);
        check("python3 -m vllm.entrypoints.openai.api_server m --port 1", Some("python3"), &[]);
        check("python /x/api_server.py m --port 1", Some("python"), &[]);
        check("sh -c 'cd /x && exec vllm serve m --port 1 2>&1'", Some("vllm"), &[]);
        check(
            "docker run -v /d/vllm:/d -e B=2 --env=A=1 --name vllm vllm/vllm-openai:v1 m --port 1",
            None,
            &["B", "A"],
        );
    }

    #[test]
    fn another_command_is_refused() {
        for (text, part) in [
            ("vllm bench serve", "`vllm` is no command of vLLM's server"),
            ("/usr/bin/python3.11 model.py", "`python3.11` is no command"),
            ("docker run ubuntu", "no image whose name begins with `vllm`"),
        ] {
            let said = find(text).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
    }
}
