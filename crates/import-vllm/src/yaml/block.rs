//! Texts of blocks.

/// Returns the text of a block's lines. `folds` joins them by spaces, and `ends` tells of the empty lines at
/// the end: `-` drops the last line end, `+` keeps them all.
pub(super) fn text(lines: &[&str], folds: bool, ends: &str) -> String {
    let blank = lines.iter().rev().take_while(|line| line.trim().is_empty()).count();
    let mut text = String::new();
    for line in &lines[..lines.len() - blank] {
        // An empty line is a line end of a folded text.
        match (folds, line.is_empty()) {
            (true, true) => text.push('\n'),
            (true, false) if !text.is_empty() && !text.ends_with('\n') => text.push(' '),
            _ => {}
        }
        text += line;
        if !folds {
            text.push('\n');
        }
    }
    if folds {
        text.push('\n');
    }
    match ends {
        "-" => text.truncate(text.trim_end_matches('\n').len()),
        "+" => text += &"\n".repeat(blank),
        _ => {}
    }
    text
}
