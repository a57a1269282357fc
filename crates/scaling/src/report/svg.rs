//! Elements of SVG.

use std::fmt::{Display, Write as _};

/// Colors of lines and points, which differ in lightness too (Okabe and Ito's, without yellow).
pub(super) const COLORS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"];

/// Color of text and axes.
pub(super) const INK_COLOR: &str = "#222222";

/// Color of the lines at marks.
pub(super) const GRID_COLOR: &str = "#dddddd";

/// Picture in the making.
#[derive(Debug)]
pub(super) struct Svg {
    text: String,
}

/// Place of a text relative to its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// Begins a picture with a white background; `title` is also its name for screen readers.
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        let title = escaped(title);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n<title>{title}</title>\n"
        );
        let _ = writeln!(text, "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>");
        Self { text }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), color: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.text,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\"/>"
        );
    }

    pub(super) fn lines(&mut self, points: impl Iterator<Item = (f64, f64)>, color: &str) {
        let mut places = String::new();
        for (x, y) in points {
            let _ = write!(places, "{x:.1},{y:.1} ");
        }
        let _ = writeln!(
            self.text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>",
            places.trim_end()
        );
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: impl Display) {
        let (anchor, text) = (anchor.name(), escaped(&text.to_string()));
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{INK_COLOR}\">{text}</text>"
        );
    }

    /// Text along a vertical axis, from the bottom to the top, with its middle at a point.
    pub(super) fn vertical_text(&mut self, (x, y): (f64, f64), text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.text,
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\" \
             fill=\"{INK_COLOR}\">{text}</text>"
        );
    }

    /// Mark of the first (circle), second (square) or third kind (triangle).
    pub(super) fn mark(&mut self, (x, y): (f64, f64), kind: usize, color: &str) {
        let _ = match kind {
            0 => writeln!(
                self.text,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{color}\"/>"
            ),
            1 => {
                let (x, y) = (x - 4.0, y - 4.0);
                writeln!(
                    self.text,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"8\" height=\"8\" fill=\"{color}\"/>"
                )
            }
            _ => {
                let (left, right, top, bottom) = (x - 5.0, x + 5.0, y - 5.0, y + 4.0);
                writeln!(
                    self.text,
                    "<path d=\"M{left:.1} {bottom:.1}L{right:.1} {bottom:.1}L{x:.1} {top:.1}Z\" fill=\"{color}\"/>"
                )
            }
        };
    }

    pub(super) fn end(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// Returns a text with XML's special characters escaped, and without the characters that XML does not allow.
fn escaped(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '>' => shown.push_str("&gt;"),
            '"' => shown.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => {}
            _ if c.is_control() => shown.push(' '),
            _ => shown.push(c),
        }
    }
    shown
}
