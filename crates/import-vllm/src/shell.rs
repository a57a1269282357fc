//! Text of a shell as commands of words.

/// Splits a text into its commands, each a list of words, by the rules of a POSIX shell. Nothing is expanded:
/// a variable stays as it is written.
///
/// # Errors
///
/// Returns an error, as the end of a sentence, if a quotation does not end.
pub(super) fn commands(text: &str) -> Result<Vec<Vec<String>>, String> {
    let mut commands = Commands::default();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' => loop {
                match chars.next() {
                    Some('\'') => break,
                    c => commands.push(c.ok_or("a quotation with ' does not end")?),
                }
            },
            '"' => loop {
                match (chars.next(), chars.peek()) {
                    (Some('"'), _) => break,
                    (Some('\\'), Some(&next @ ('"' | '\\' | '$' | '`' | '\n'))) => {
                        chars.next();
                        if next != '\n' {
                            commands.push(next);
                        }
                    }
                    (c, _) => commands.push(c.ok_or("a quotation with \" does not end")?),
                }
            },
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some('\r') if chars.peek() == Some(&'\n') => drop(chars.next()),
                Some(c) => commands.push(c),
            },
            '#' if commands.word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            '\n' | ';' | '&' | '|' => commands.end_command(),
            '>' | '<' => commands.begin_redirection(),
            c if c.is_whitespace() => commands.end_word(),
            c => commands.push(c),
        }
        if matches!(c, '\'' | '"') {
            // A quotation may be empty, and is a word.
            commands.word.get_or_insert_default();
        }
    }
    commands.end_command();
    Ok(commands.all)
}

#[derive(Debug, Default)]
struct Commands {
    all: Vec<Vec<String>>,
    command: Vec<String>,
    word: Option<String>,
    /// True behind `>` or `<`, up to the end of the command.
    is_redirection: bool,
}

impl Commands {
    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn end_word(&mut self) {
        let word = self.word.take();
        self.command.extend(word.filter(|_| !self.is_redirection));
    }

    fn begin_redirection(&mut self) {
        // The number of a file, as in `2>`, is no word.
        let is_number = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit());
        self.word = self.word.take().filter(|word| !is_number(word));
        self.end_word();
        self.is_redirection = true;
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_redirection = false;
        let command = std::mem::take(&mut self.command);
        if !command.is_empty() {
            self.all.push(command);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::commands;

    #[track_caller]
    fn check(text: &str, expected: &[&[&str]]) {
        assert_eq!(commands(text).unwrap(), expected, "{text}");
    }

    #[test]
    fn words_are_those_of_a_shell() {
        check("a b  c", &[&["a", "b", "c"]]);
        check(
            r#"a '{"b": "c d"}' "e \"f\" \n" g\ h"#,
            &[&["a", r#"{"b": "c d"}"#, r#"e "f" \n"#, "g h"]],
        );
        check("a --b='c d'e '' \"\"", &[&["a", "--b=c de", "", ""]]);
        check("a \\\n  b \\\r\n c", &[&["a", "b", "c"]]);
        check("a # b\nc d#e", &[&["a"], &["c", "d#e"]]);
        check("cd x && a b; c | d &", &[&["cd", "x"], &["a", "b"], &["c"], &["d"]]);
        check("a b 2>&1 | tee log", &[&["a", "b"], &["1"], &["tee", "log"]]);
        check("a b > log", &[&["a", "b"]]);
        check("a $B \"${C}\"", &[&["a", "$B", "${C}"]]);
        check("", &[]);
    }

    #[test]
    fn an_open_quotation_is_refused() {
        assert_eq!(commands("a 'b"), Err("a quotation with ' does not end".to_owned()));
        assert_eq!(commands("a \"b\\\""), Err("a quotation with \" does not end".to_owned()));
    }
}
