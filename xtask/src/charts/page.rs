//! Renders published results as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::chart::Chart;
use super::published::{Cell, Published};
use super::{MARK, RESULTS};

/// Returns the page of a result.
pub(super) fn render(result: &Published) -> String {
    let file = format!("{RESULTS}/{}.json", result.name);
    let mut text = format!("<!-- {MARK} from {file}: do not edit. -->\n\n");
    let _ = writeln!(text, "# {}\n", result.title);
    let _ = writeln!(text, "| | |\n|---|---|");
    let date = match &*result.date_of {
        "commit" => format!("{}, when the result was recorded", result.date),
        _ => result.date.clone(),
    };
    let mut property = |name: &str, value: &str| {
        let _ = writeln!(text, "| {name} | {} |", value.replace('|', "\\|"));
    };
    property("date", &date);
    let processor = result.processor.iter();
    let machine: Vec<String> = processor.chain(&result.machine).cloned().collect();
    property("machine", &or_unknown(&machine));
    property("versions", &or_unknown(&result.versions));
    property("runs", &runs(result));
    if let Some(command) = &result.command {
        property("command", &format!("`{command}`"));
    }
    let commit = result.commit.as_deref().unwrap_or("not recorded");
    property("recorded by commit", commit);
    property("data", &format!("[{file}](../../{file})"));
    property("method", &result.method);
    text.push('\n');
    table(&mut text, result);
    if !result.notes.is_empty() {
        text.push('\n');
    }
    for note in &result.notes {
        let _ = writeln!(text, "- {note}");
    }
    text
}

fn or_unknown(parts: &[String]) -> String {
    if parts.is_empty() {
        return "not recorded".to_owned();
    }
    parts.join(", ")
}

/// Returns how often was measured, and what is known of the spread.
fn runs(result: &Published) -> String {
    let rounds = match &result.rounds {
        Some(rounds) => format!(", medians of {rounds} rounds"),
        None => String::new(),
    };
    let runs = match &*result.runs {
        "1" => "**one run**".to_owned(),
        runs => format!("{runs} runs"),
    };
    let has_intervals = (result.rows.iter().flatten()).any(|c| matches!(c, Cell::Interval(_)));
    let spread = match &result.spread {
        Some(spread) => format!("; in parentheses the {spread}"),
        None if has_intervals => {
            "; in parentheses the range over more runs, where there were any".into()
        }
        None => "; the spread is not recorded".into(),
    };
    format!("{runs}{rounds}{spread}")
}

fn table(text: &mut String, result: &Published) {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    text.push_str(&line(result.columns.clone()));
    let alignment = |column: usize| {
        let mut cells = result.rows.iter().map(|row| &row[column]);
        if cells.any(|cell| matches!(cell, Cell::Text(_))) {
            "---"
        } else {
            "---:"
        }
    };
    let alignments: Vec<&str> = (0..result.columns.len()).map(alignment).collect();
    let _ = writeln!(text, "|{}|", alignments.join("|"));
    for row in &result.rows {
        let cell = |cell: &Cell| match cell {
            Cell::Empty => "–".to_owned(),
            other => other.text().replace('|', "\\|"),
        };
        text.push_str(&line(row.iter().map(cell).collect()));
    }
}

/// Returns the page that lists all results, the newest first, and shows all charts.
pub(super) fn index(results: &BTreeMap<String, Published>, charts: &[Chart]) -> String {
    let mut text = format!("<!-- {MARK} from {RESULTS}: do not edit. -->\n\n");
    text.push_str("# Results of the benchmarks\n\n");
    text.push_str("[Performance](../reference/performance.md) says what they mean.\n\n");
    text.push_str("| date | result | machine | runs |\n|---|---|---|---:|\n");
    let mut all: Vec<&Published> = results.values().collect();
    all.sort_by(|a, b| b.date.cmp(&a.date).then_with(|| a.name.cmp(&b.name)));
    for result in all {
        let Published {
            name, title, date, ..
        } = result;
        let processor = result.processor.as_deref().unwrap_or("not recorded");
        let runs = &result.runs;
        let _ = writeln!(
            text,
            "| {date} | [{title}]({name}.md) | {processor} | {runs} |"
        );
    }
    for chart in charts {
        let Chart {
            name,
            title,
            description,
            ..
        } = chart;
        let image = format!("![{description}](../images/{name}.svg)");
        let _ = write!(text, "\n## {title}\n\n{image}\n");
    }
    text
}
