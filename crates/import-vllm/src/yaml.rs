//! YAML as files of arguments and of containers have it: mappings, lists, scalars, block scalars, and JSON.
//!
//! Anchors, aliases, tags and scalars over several lines are refused by the number of their line.

mod block;
mod flow;
mod scalar;

use serde_json::Value as Json;

use flow::Flow;

/// Maximum number of levels.
const MAX_DEPTH: usize = 64;

/// Node of a document.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// Text, and true if it is written with quotation marks or as a block.
    Scalar(String, bool),
    List(Vec<Self>),
    Fields(Vec<(String, Self)>),
}

impl Node {
    /// Returns the value of a field.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Fields(fields) = self else { return None };
        fields.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns the node as JSON. A plain scalar is null, a boolean or a number if it looks like one.
    pub(super) fn to_json(&self) -> Json {
        match self {
            Self::Scalar(text, true) => Json::String(text.clone()),
            Self::Scalar(text, false) => scalar::resolved(text),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Fields(fields) => {
                fields.iter().map(|(name, value)| (name.clone(), value.to_json())).collect()
            }
        }
    }
}

/// Parses the documents of a file.
///
/// # Errors
///
/// Returns a sentence with the number of a line that is no YAML, or none of the parts that are read.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, String> {
    let mut documents = Vec::new();
    let mut reader = Reader { lines: Vec::new(), first: 1, at: 0 };
    for (number, line) in (1..).zip(text.lines().chain(["---"])) {
        if line == "---" || line.starts_with("--- ") || line == "..." {
            documents.extend(reader.document()?);
            reader = Reader { lines: Vec::new(), first: number, at: 0 };
            let rest = line.strip_prefix("---").unwrap_or_default();
            reader.lines.push(rest.to_owned());
        } else {
            reader.lines.push(line.to_owned());
        }
    }
    Ok(documents)
}

/// Lines of one document.
struct Reader {
    lines: Vec<String>,
    /// Number of the first line in the file.
    first: usize,
    at: usize,
}

impl Reader {
    fn document(&mut self) -> Result<Option<Node>, String> {
        let Some((indent, _)) = self.peek()? else { return Ok(None) };
        let node = self.block(indent, 0)?;
        match self.peek()? {
            None => Ok(Some(node)),
            Some(_) => Err(self.wrong("belongs to no line before it")),
        }
    }

    /// Returns the next line that is neither empty nor a comment, with its indentation.
    fn peek(&mut self) -> Result<Option<(usize, String)>, String> {
        while let Some(line) = self.lines.get(self.at) {
            let content = line.trim_start_matches(' ');
            if !content.trim().is_empty() && !content.starts_with('#') {
                if content.starts_with('\t') {
                    return Err(self.wrong("is indented by a tab"));
                }
                return Ok(Some((line.len() - content.len(), content.trim_end().to_owned())));
            }
            self.at += 1;
        }
        Ok(None)
    }

    fn block(&mut self, indent: usize, depth: usize) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err(self.wrong("lies too deep"));
        }
        let Some((_, content)) = self.peek()? else { return Ok(null()) };
        if is_item(&content) {
            return self.list(indent, depth);
        }
        if scalar::key(&content).map_err(|what| self.wrong(&what))?.is_some() {
            self.fields(indent, depth)
        } else {
            self.at += 1;
            self.value(&content, indent)
        }
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Node, String> {
        let mut items = Vec::new();
        while let Some((_, content)) =
            self.peek()?.filter(|(own, content)| *own == indent && is_item(content))
        {
            let rest = content[1..].trim_start();
            let inner = indent + content.len() - rest.len();
            let is_block =
                is_item(rest) || scalar::key(rest).map_err(|what| self.wrong(&what))?.is_some();
            items.push(if is_block {
                self.lines[self.at] = format!("{}{rest}", " ".repeat(inner));
                self.block(inner, depth + 1)?
            } else {
                self.at += 1;
                self.rest(rest, indent, depth)?
            });
        }
        Ok(Node::List(items))
    }

    fn fields(&mut self, indent: usize, depth: usize) -> Result<Node, String> {
        let mut fields: Vec<(String, Node)> = Vec::new();
        while let Some((_, content)) = self.peek()?.filter(|(own, _)| *own == indent) {
            let key = scalar::key(&content).map_err(|what| self.wrong(&what))?;
            let Some((key, rest)) = key else {
                return Err(self.wrong("is neither `key: value` nor `- item`"));
            };
            if fields.iter().any(|(known, _)| *known == key) {
                return Err(self.wrong("has the key of an earlier line"));
            }
            self.at += 1;
            // A list may stand at the indentation of its key.
            let value = match self.peek()? {
                Some((own, next)) if is_empty(rest) && own == indent && is_item(&next) => {
                    self.list(indent, depth + 1)?
                }
                _ => self.rest(rest, indent, depth)?,
            };
            fields.push((key, value));
        }
        Ok(Node::Fields(fields))
    }

    /// Reads what follows a key or a dash: a value, or the lines below.
    fn rest(&mut self, rest: &str, indent: usize, depth: usize) -> Result<Node, String> {
        if !is_empty(rest) {
            return self.value(rest, indent);
        }
        match self.peek()? {
            Some((own, _)) if own > indent => self.block(own, depth + 1),
            _ => Ok(null()),
        }
    }

    /// Reads a value that begins on the line before.
    fn value(&mut self, text: &str, indent: usize) -> Result<Node, String> {
        self.at -= 1;
        let read = match text.chars().next() {
            Some('|' | '>') => return self.block_scalar(text, indent),
            Some('[' | '{') => return self.flow(text),
            Some('&' | '*' | '!' | '?' | '%' | '@' | '`') => {
                Err("has an anchor, an alias, a tag or another part of YAML that is not read here"
                    .to_owned())
            }
            _ => scalar::of_line(text),
        };
        let (text, is_quoted) = read.map_err(|what| self.wrong(&what))?;
        self.at += 1;
        match self.peek()? {
            Some((own, _)) if own > indent => {
                Err(self.wrong("continues the value of the line before it"))
            }
            _ => Ok(Node::Scalar(text, is_quoted)),
        }
    }

    /// Reads a list or an object in brackets, up to the line on which it ends.
    fn flow(&mut self, text: &str) -> Result<Node, String> {
        let mut text = text.to_owned();
        loop {
            match flow::parse(&text) {
                Ok(node) => {
                    self.at += 1;
                    return Ok(node);
                }
                Err(Flow::Wrong(what)) => return Err(self.wrong(what)),
                Err(Flow::Open) => {
                    let Some(next) = self.lines.get(self.at + 1) else {
                        return Err(self.wrong("opens a bracket or a quotation that does not end"));
                    };
                    text = format!("{text}\n{next}");
                    self.at += 1;
                }
            }
        }
    }

    fn block_scalar(&mut self, header: &str, indent: usize) -> Result<Node, String> {
        let header = header.split(" #").next().unwrap_or_default().trim();
        let (folds, ends) = (header.starts_with('>'), &header[1..]);
        if !["", "-", "+"].contains(&ends) {
            return Err(self.wrong("has an indicator of a block that is not read here"));
        }
        self.at += 1;
        let mut lines: Vec<&str> = Vec::new();
        let mut own = None;
        while let Some(line) = self.lines.get(self.at) {
            let spaces = line.len() - line.trim_start_matches(' ').len();
            let is_blank = line.trim().is_empty();
            if !is_blank && spaces <= indent {
                break;
            }
            if !is_blank && own.is_none() {
                own = Some(spaces);
            }
            lines.push(line.get(own.unwrap_or(spaces).min(spaces)..).unwrap_or_default());
            self.at += 1;
        }
        Ok(Node::Scalar(block::text(&lines, folds, ends), true))
    }

    /// Returns a sentence about the line.
    fn wrong(&self, what: &str) -> String {
        format!("line {} {what}", self.first + self.at)
    }
}

fn null() -> Node {
    Node::Scalar(String::new(), false)
}

fn is_item(content: &str) -> bool {
    content == "-" || content.starts_with("- ")
}

fn is_empty(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('#')
}

#[cfg(test)]
mod tests;
