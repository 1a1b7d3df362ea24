//! Tables for people.

use std::fmt::Write as _;

/// A Markdown table whose first `left` columns are text.
pub fn table(titles: &[&str], left: usize, rows: Vec<Vec<String>>) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(titles[column].len())
    };
    let widths: Vec<_> = (0..titles.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = match column < left {
                true => write!(text, "| {cell:width$} "),
                false => write!(text, "| {cell:>width$} "),
            };
        }
        text.push_str("|\n");
    };
    line(&titles.iter().map(|title| (*title).to_owned()).collect::<Vec<_>>());
    let rule = |(column, width): (usize, &usize)| match column < left {
        true => "-".repeat(*width),
        false => format!("{}:", "-".repeat(width - 1)),
    };
    line(&widths.iter().enumerate().map(rule).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
    text
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn tables_are_aligned() {
        let text = table(&["a", "bits"], 1, vec![vec!["xyz".into(), "1".into()]]);
        assert_eq!(text, "| a   | bits |\n| --- | ---: |\n| xyz |    1 |\n");
    }
}
