//! Tables for a terminal: columns as wide as their widest cell, indented.

use std::fmt;

/// A table with a line of titles.
#[derive(Clone, Debug)]
pub(crate) struct Table<const COLUMNS: usize> {
    indent: usize,
    titles: [&'static str; COLUMNS],
    rows: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// Without rows.
    pub(crate) fn new(indent: usize, titles: [&'static str; COLUMNS]) -> Self {
        Self { indent, titles, rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, row: [String; COLUMNS]) {
        self.rows.push(row);
    }

    /// Whether there is no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.fold(self.titles[column].len(), usize::max)
    }

    fn write_row<T: AsRef<str>>(&self, f: &mut fmt::Formatter<'_>, row: &[T]) -> fmt::Result {
        let mut line = " ".repeat(self.indent);
        for (column, cell) in row.iter().enumerate() {
            let (cell, width) = (cell.as_ref(), self.width(column));
            line.push_str(&format!("{cell:<width$}  "));
        }
        f.write_str(line.trim_end())
    }
}

impl<const COLUMNS: usize> fmt::Display for Table<COLUMNS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_row(f, &self.titles)?;
        for row in &self.rows {
            f.write_str("\n")?;
            self.write_row(f, row)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(2, ["lid", "state"]);
        table.push(["3".to_owned(), "ready".to_owned()]);
        table.push(["49151".to_owned(), "resolving".to_owned()]);
        assert_eq!(table.to_string(), "  lid    state\n  3      ready\n  49151  resolving");
    }
}
