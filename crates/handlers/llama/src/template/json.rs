//! JSON as Python's `json.dumps` writes it.

use std::io::{Result as IoResult, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use crate::limits::INDENT;

/// Converts a value to JSON, with the options of transformers' filter.
#[expect(clippy::needless_pass_by_value, reason = "a filter takes its arguments by value")]
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let [between, after_key] = match separators.as_deref() {
        None if indent.is_some() => [",", ": "],
        None => [", ", ": "],
        Some([between, after_key]) => [between.as_str(), after_key.as_str()],
        Some(_) => {
            let why = "`separators` of tojson must be two texts";
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
    };
    let indent = indent.map(|indent| " ".repeat(indent.min(INDENT)));
    let ascii = ensure_ascii.unwrap_or(false);
    let formatter =
        Python { between, after_key, indent: indent.as_deref(), ascii, depth: 0, filled: false };
    let failed = |_| Error::new(ErrorKind::BadSerialization, "tojson failed");
    if sort_keys.unwrap_or(false) {
        let mut value = serde_json::to_value(value).map_err(failed)?;
        value.sort_all_objects();
        written(&value, formatter).map_err(failed)
    } else {
        written(value, formatter).map_err(failed)
    }
}

fn written(value: &impl Serialize, formatter: Python<'_>) -> Result<String, serde_json::Error> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, formatter))?;
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}

/// Formatter of Python's encoder.
struct Python<'a> {
    between: &'a str,
    after_key: &'a str,
    indent: Option<&'a str>,
    /// True if characters beyond ASCII are escaped.
    ascii: bool,
    depth: usize,
    /// True if the list or object that ends has an item.
    filled: bool,
}

impl Python<'_> {
    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> IoResult<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }

    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: u8) -> IoResult<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(&[bracket])
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: u8) -> IoResult<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        writer.write_all(&[bracket])
    }

    fn item<W: ?Sized + Write>(&self, writer: &mut W, first: bool) -> IoResult<()> {
        if !first {
            writer.write_all(self.between.as_bytes())?;
        }
        self.line(writer)
    }
}

impl Formatter for Python<'_> {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> IoResult<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn write_f32<W: ?Sized + Write>(&mut self, writer: &mut W, value: f32) -> IoResult<()> {
        self.write_f64(writer, f64::from(value))
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> IoResult<()> {
        if !self.ascii {
            // Python escapes DEL only among the characters beyond ASCII.
            return writer.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if c.is_ascii() {
                writer.write_all(&[c as u8])?;
                continue;
            }
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> IoResult<()> {
        match escape {
            CharEscape::Quote => writer.write_all(b"\\\""),
            CharEscape::ReverseSolidus => writer.write_all(b"\\\\"),
            CharEscape::Solidus => writer.write_all(b"/"),
            CharEscape::Backspace => writer.write_all(b"\\b"),
            CharEscape::FormFeed => writer.write_all(b"\\f"),
            CharEscape::LineFeed => writer.write_all(b"\\n"),
            CharEscape::CarriageReturn => writer.write_all(b"\\r"),
            CharEscape::Tab => writer.write_all(b"\\t"),
            CharEscape::AsciiControl(byte) => write!(writer, "\\u{byte:04x}"),
        }
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.open(writer, b'[')
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.close(writer, b']')
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> IoResult<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> IoResult<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.open(writer, b'{')
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        self.close(writer, b'}')
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> IoResult<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        writer.write_all(self.after_key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> IoResult<()> {
        self.filled = true;
        Ok(())
    }
}

/// Returns a float as Python prints it: its shortest digits, with an exponent outside of 1e-4 to 1e16.
pub(super) fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return match () {
            () if value.is_nan() => "NaN".to_owned(),
            () if value > 0.0 => "Infinity".to_owned(),
            () => "-Infinity".to_owned(),
        };
    };
    match exponent.parse::<i32>().unwrap_or_default() {
        exponent @ -4..16 => {
            let _ = exponent;
            let plain = value.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_have_pythons_form() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1e20, "1e+20"),
            (-2.5e100, "-2.5e+100"),
            (123_456.789, "123456.789"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}
