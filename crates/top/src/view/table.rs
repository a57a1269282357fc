//! Tables of text that drop columns until they fit.

use ratatui::text::Span;

use nsbridge_base::plain;

/// Text of a figure that no source has.
const NONE: &str = "-";

/// Maximum width of a cell. Names come from other processes.
const WIDEST: usize = 40;

/// Minimum width of the first column, which is cut if no column is left that may be dropped.
const NARROWEST: usize = 8;

/// Blanks between two columns.
const GAP: usize = 2;

/// Column of a table.
#[derive(Clone, Debug)]
pub(super) struct Column {
    title: &'static str,
    is_number: bool,
    /// Rank among the columns that are dropped, the highest first; 0 for one that always stays.
    drop: u8,
    /// True for a column that is left out if it has no cell.
    is_optional: bool,
    cells: Vec<String>,
}

impl Column {
    /// Creates a column of names. Their control characters are escaped.
    pub(super) fn names<T>(
        title: &'static str,
        drop: u8,
        rows: &[T],
        of: impl Fn(&T) -> &str,
    ) -> Self {
        let cells = rows.iter().map(|row| cut(&line(of(row)), WIDEST));
        let cells = cells.map(|cell| if cell.is_empty() { NONE.to_owned() } else { cell });
        Self { title, is_number: false, drop, is_optional: false, cells: cells.collect() }
    }

    /// Creates a column of figures.
    pub(super) fn figures<T>(
        title: &'static str,
        drop: u8,
        rows: &[T],
        of: impl Fn(&T) -> Option<String>,
    ) -> Self {
        let cells = rows.iter().map(|row| of(row).unwrap_or_else(|| NONE.to_owned()));
        Self { title, is_number: true, drop, is_optional: false, cells: cells.collect() }
    }

    /// Leaves the column out if no row has a figure for it.
    pub(super) fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    fn width(&self) -> usize {
        self.cells.iter().map(|cell| width(cell)).max().unwrap_or(0).max(width(self.title))
    }

    fn is_empty(&self) -> bool {
        self.cells.iter().all(|cell| cell == NONE)
    }
}

/// Lays out a table in lines of at most `most` columns, the titles first.
///
/// Columns are dropped by their rank until the table fits.
pub(super) fn lay_out(mut columns: Vec<Column>, most: usize) -> Vec<String> {
    columns.retain(|column| !(column.is_optional && column.is_empty()));
    let needed = |columns: &[Column]| {
        let widths: usize = columns.iter().map(Column::width).sum();
        widths + GAP * columns.len().saturating_sub(1)
    };
    while needed(&columns) > most {
        let last = columns.iter().map(|column| column.drop).max().unwrap_or(0);
        if last == 0 {
            break;
        }
        columns.retain(|column| column.drop != last);
    }
    let over = needed(&columns).saturating_sub(most);
    if let Some(first) = columns.first_mut()
        && over > 0
    {
        let left = first.width().saturating_sub(over).max(NARROWEST);
        for cell in &mut first.cells {
            *cell = cut(cell, left);
        }
    }
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let titles = written(&columns, |column| column.title);
    let lines = (0..rows).map(|row| written(&columns, |column| &column.cells[row]));
    [titles].into_iter().chain(lines).map(|line| cut(&line, most)).collect()
}

fn written<'a>(columns: &'a [Column], cell: impl Fn(&'a Column) -> &'a str) -> String {
    let mut line = String::new();
    for column in columns {
        let cell = cell(column);
        let blanks = " ".repeat(column.width() - width(cell));
        if !line.is_empty() {
            line.push_str(&" ".repeat(GAP));
        }
        let (before, after) = if column.is_number { (&*blanks, "") } else { ("", &*blanks) };
        line.push_str(before);
        line.push_str(cell);
        line.push_str(after);
    }
    line.truncate(line.trim_end().len());
    line
}

/// Escapes a text from outside, and keeps it on one line.
pub(super) fn line(text: &str) -> String {
    plain(text).replace(['\n', '\t'], " ")
}

/// Cuts a text to a width in terminal columns.
pub(super) fn cut(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        // The mark of the cut has a width of 1.
        if width(&kept) + 1 > most {
            kept.pop();
            break;
        }
    }
    if most > 0 {
        kept.push('…');
    }
    kept
}

/// Returns the width of a text in terminal columns.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::{Column, cut, lay_out};

    fn table(most: usize) -> Vec<String> {
        let rows = [("tale-7m", "0.1.0", Some(12)), ("クマ", "\u{1b}[2J\n", None)];
        let columns = vec![
            Column::names("model", 0, &rows, |row| row.0),
            Column::names("version", 2, &rows, |row| row.1),
            Column::figures("ready", 0, &rows, |row| row.2.map(|ready| ready.to_string())),
            Column::figures("bulk", 1, &rows, |row| row.2.map(|ready| ready.to_string())),
            Column::figures("in/s", 3, &rows, |_| None).optional(),
        ];
        lay_out(columns, most)
    }

    #[test]
    fn a_table_drops_columns_by_their_rank_until_it_fits() {
        let whole = [
            "model    version     ready  bulk",
            "tale-7m  0.1.0          12    12",
            "クマ     \\u{1b}[2J       -     -",
        ];
        assert_eq!(table(80), whole);
        assert_eq!(table(32), whole);
        let without_version =
            ["model    ready  bulk", "tale-7m     12    12", "クマ         -     -"];
        assert_eq!(table(31), without_version);
        assert_eq!(table(20), without_version);
        assert_eq!(table(19)[1], "tale-7m     12");
        assert_eq!(table(13)[1], "tale-7m     …");
    }

    #[test]
    fn a_text_is_cut_by_its_width() {
        for (most, expected) in
            [(6, "クマが"), (5, "クマ…"), (4, "ク…"), (2, "…"), (1, "…"), (0, "")]
        {
            assert_eq!(cut("クマが", most), expected, "{most}");
        }
    }
}
