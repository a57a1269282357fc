//! Scalars and keys of YAML.

use serde_json::Value as Json;

/// Reads the key of a line, and returns it with what follows its colon; `None` if the line has none.
pub(super) fn key(line: &str) -> Result<Option<(String, &str)>, String> {
    if line.starts_with(['"', '\'']) {
        let (key, end) = quoted(line).ok_or("opens a quotation that does not end on it")??;
        let rest = line[end..].trim_start();
        return Ok(rest.strip_prefix(':').map(|rest| (key, rest.trim_start())));
    }
    if line.starts_with(['[', '{', '|', '>', '#', '?', '&', '*', '!']) {
        return Ok(None);
    }
    let ends = |at: usize| line[at + 1..].is_empty() || line[at + 1..].starts_with([' ', '\t']);
    let comment = line.find(" #").unwrap_or(line.len());
    let colon = line[..comment].match_indices(':').map(|(at, _)| at).find(|at| ends(*at));
    Ok(colon.map(|at| (line[..at].trim_end().to_owned(), line[at + 1..].trim_start())))
}

/// Reads the scalar of a line, and tells whether it has quotation marks.
pub(super) fn of_line(text: &str) -> Result<(String, bool), String> {
    if !text.starts_with(['"', '\'']) {
        let comment = text.find(" #").or_else(|| text.find("\t#")).unwrap_or(text.len());
        return Ok((text[..comment].trim_end().to_owned(), false));
    }
    let (scalar, end) = quoted(text).ok_or("opens a quotation that does not end on it")??;
    match text[end..].trim_start() {
        rest if rest.is_empty() || rest.starts_with('#') => Ok((scalar, true)),
        _ => Err("has a text behind a quotation".to_owned()),
    }
}

/// Reads a text in quotation marks, and returns it with the number of its bytes; `None` if it does not end.
pub(super) fn quoted(text: &str) -> Option<Result<(String, usize), String>> {
    let mark = text.chars().next()?;
    let mut read = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if mark == '\'' && chars.next_if(|(_, next)| *next == '\'').is_some() => {
                read.push(c);
            }
            c if c == mark => return Some(Ok((read, at + c.len_utf8()))),
            '\\' if mark == '"' => {
                let (_, escaped) = chars.next()?;
                let mut hexadecimal = |digits: usize| {
                    let digits: String = chars.by_ref().take(digits).map(|(_, c)| c).collect();
                    u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32)
                };
                let c = match escaped {
                    'n' => Some('\n'),
                    't' => Some('\t'),
                    'r' => Some('\r'),
                    '0' => Some('\0'),
                    '"' | '\\' | '/' | ' ' => Some(escaped),
                    'x' => hexadecimal(2),
                    'u' => hexadecimal(4),
                    'U' => hexadecimal(8),
                    _ => None,
                };
                let Some(c) = c else {
                    return Some(Err("has an escape that is not read here".to_owned()));
                };
                read.push(c);
            }
            c => read.push(c),
        }
    }
    None
}

/// Returns a plain scalar as JSON, by the rules of YAML 1.1.
pub(super) fn resolved(text: &str) -> Json {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Json::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
            return Json::Bool(true);
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            return Json::Bool(false);
        }
        _ => {}
    }
    if let Ok(number) = text.parse::<i64>() {
        return Json::from(number);
    }
    let is_number =
        text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) && text.contains('.');
    match text.parse::<f64>() {
        Ok(number) if is_number && number.is_finite() => Json::from(number),
        _ => Json::String(text.to_owned()),
    }
}
