//! Server-sent events: splits the bytes of a response into the data of its events.

use std::collections::VecDeque;

/// Maximum size of a line in bytes.
const MOST_LINE_BYTES: usize = 1 << 20;

/// Line that is too long.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent a line of more than {} KiB", MOST_LINE_BYTES >> 10)]
pub(crate) struct TooLong;

/// Reader of one stream of events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    line: Vec<u8>,
    /// Data of the event whose end has not come.
    data: Option<Vec<u8>>,
    ready: VecDeque<Vec<u8>>,
}

impl Events {
    /// Adds bytes of the response.
    ///
    /// # Errors
    ///
    /// Returns an error if a line or an event is too long.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let mut lines = bytes.split(|byte| *byte == b'\n');
        if let Some(rest) = lines.next() {
            self.extend(rest)?;
        }
        for line in lines {
            self.end_line()?;
            self.extend(line)?;
        }
        Ok(())
    }

    /// Returns the data of the next event.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), TooLong> {
        if self.line.len() + part.len() > MOST_LINE_BYTES {
            return Err(TooLong);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), TooLong> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            self.ready.extend(self.data.take());
            return Ok(());
        }
        // Some versions of llama-server send a failure in a field of its own.
        let Some(value) = line.strip_prefix(b"data:").or(line.strip_prefix(b"error:")) else {
            return Ok(());
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let Some(data) = &mut self.data else {
            self.data = Some(value.to_vec());
            return Ok(());
        };
        if data.len() + value.len() > MOST_LINE_BYTES {
            return Err(TooLong);
        }
        data.push(b'\n');
        data.extend_from_slice(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Events, MOST_LINE_BYTES, TooLong};

    fn read(parts: &[&str]) -> Vec<String> {
        let mut events = Events::default();
        parts.iter().for_each(|part| events.push(part.as_bytes()).unwrap());
        std::iter::from_fn(|| events.next()).map(|data| String::from_utf8(data).unwrap()).collect()
    }

    #[test]
    fn an_event_ends_with_an_empty_line_however_the_bytes_are_cut() {
        let text =
            ": ping\n\ndata: {\"a\": 1}\r\n\r\nevent: x\ndata:one\ndata: two\n\ndata: [DONE]\n\n";
        let expected = ["{\"a\": 1}", "one\ntwo", "[DONE]"];
        assert_eq!(read(&[text]), expected);
        for at in 0..text.len() {
            assert_eq!(read(&[&text[..at], &text[at..]]), expected);
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(read(&letters), expected);
    }

    #[test]
    fn an_event_without_its_end_is_none() {
        assert_eq!(read(&["data: a\n"]), Vec::<String>::new());
        assert_eq!(read(&["error: {}\n\n"]), ["{}"]);
    }

    #[test]
    fn a_line_has_a_maximum_and_so_has_an_event() {
        let mut events = Events::default();
        assert_eq!(events.push(&vec![b'x'; MOST_LINE_BYTES]), Ok(()));
        assert_eq!(events.push(b"x"), Err(TooLong));
        let mut events = Events::default();
        let line = format!("data:{}\n", "x".repeat(MOST_LINE_BYTES / 2 + 1));
        assert_eq!(events.push(line.as_bytes()), Ok(()));
        assert_eq!(events.push(line.as_bytes()), Err(TooLong));
    }
}
