//! Reads the page of troubles: which texts it has, and whether there is a cause and a cure for each.

use super::text::one_line;

/// The sections with texts of errors and warnings.
const SECTIONS: [&str; 2] = ["Errors", "Warnings"];

/// A code span or a heading of the page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    /// The line, counted from 1.
    pub(super) line: usize,
    pub(super) has_cause: bool,
    pub(super) has_cure: bool,
}

/// The code spans and headings below [`SECTIONS`].
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) spans: Vec<Span>,
}

impl Page {
    pub(super) fn parse(markdown: &str) -> Self {
        let mut page = Self::default();
        let mut is_section = false;
        // The first span of the part below the last heading, and whether the part has a cause and a cure.
        let (mut first, mut part) = (0, (false, false));
        let mut table = Table::default();
        for (line, text) in (1..).zip(markdown.lines()) {
            if let Some(heading) = text.strip_prefix("## ") {
                is_section = SECTIONS.contains(&heading.trim());
                (first, part) = (page.spans.len(), (false, false));
            }
            if !is_section {
                continue;
            }
            let (mut has_cause, mut has_cure) = (false, false);
            if let Some(heading) = text.strip_prefix("### ") {
                (first, part) = (page.spans.len(), (false, false));
                page.spans.push(Span {
                    text: one_line(heading),
                    line,
                    has_cause,
                    has_cure,
                });
            }
            if text.starts_with('|') {
                (has_cause, has_cure) = table.answers(text);
            } else {
                table = Table::default();
                let said = |mark: &str| {
                    text.strip_prefix(mark)
                        .is_some_and(|s| !s.trim().is_empty())
                };
                part = (part.0 || said("Cause:"), part.1 || said("Do:"));
                for span in &mut page.spans[first..] {
                    span.has_cause |= part.0;
                    span.has_cure |= part.1;
                }
            }
            (has_cause, has_cure) = (has_cause || part.0, has_cure || part.1);
            page.spans
                .extend(code_spans(text).into_iter().map(|text| Span {
                    text,
                    line,
                    has_cause,
                    has_cure,
                }));
        }
        page
    }
}

/// The names of the columns of a table.
#[derive(Default)]
struct Table {
    columns: Vec<String>,
}

impl Table {
    /// Returns whether the row has a cause, and whether it has a cure. The first row names the columns.
    fn answers(&mut self, row: &str) -> (bool, bool) {
        let cells = cells(row);
        if self.columns.is_empty() {
            self.columns = cells;
            return (false, false);
        }
        let has = |name: &str| {
            let cells = self.columns.iter().zip(&cells);
            cells
                .into_iter()
                .any(|(column, cell)| column == name && !cell.is_empty())
        };
        (has("cause"), has("what to do"))
    }
}

/// Returns the cells of a row.
fn cells(row: &str) -> Vec<String> {
    let mut masked = String::new();
    for (n, part) in row.split('`').enumerate() {
        masked.push('`');
        // A bar in code is none between cells.
        masked.push_str(&if n % 2 == 1 {
            part.replace('|', "x")
        } else {
            part.to_owned()
        });
    }
    let row = masked[1..].trim().trim_matches('|');
    row.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// Returns the code spans of a line. As many backticks as begin a span end it.
fn code_spans(line: &str) -> Vec<String> {
    let mut spans = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find('`') {
        let behind = rest[at..].trim_start_matches('`');
        let marks = &rest[at..rest.len() - behind.len()];
        let mut ends = behind.match_indices(marks).map(|(end, _)| end);
        let Some(end) = ends.find(|&end| {
            !behind[end + marks.len()..].starts_with('`') && !behind[..end].ends_with('`')
        }) else {
            rest = behind;
            continue;
        };
        spans.push(one_line(&behind[..end]));
        rest = &behind[end + marks.len()..];
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_end_at_as_many_backticks() {
        assert_eq!(
            code_spans("| `a` and ``call `b` first``, `c"),
            ["a", "call `b` first"]
        );
    }

    #[test]
    fn causes_and_cures_belong_to_the_part_or_the_row() {
        let page = Page::parse(
            "\
## Errors
### First
`a`
Cause: one.
Do: this.
### Second
Cause: two.
| text | what to do |
|---|---|
| `b` | that |
| `c | d` | |
## Other
`e`
",
        );
        let spans = page.spans.iter();
        let found: Vec<_> = spans
            .map(|span| (&*span.text, span.has_cause, span.has_cure))
            .collect();
        assert_eq!(
            found,
            [
                ("First", true, true),
                ("a", true, true),
                ("Second", true, false),
                ("b", true, true),
                ("c | d", true, false),
            ]
        );
    }
}
