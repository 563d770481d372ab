//! Charts and pages of results that the tests write to folders of their own.

use std::fs;
use std::path::{Path, PathBuf};

use super::{outputs, update, verify};

const RESULT: &str = r#"{
  "title": "A title",
  "date": "2026-11-27",
  "date_of": "run",
  "commit": null,
  "benchmark": "array",
  "command": "cargo bench",
  "machine": {"processor": "A processor", "cores": 2, "kernel": null, "libc": null, "state": null},
  "versions": {"zarrs": "0.23.14"},
  "method": "In turns.",
  "rounds": 11,
  "runs": 1,
  "spread": "interval of 90 %",
  "columns": ["chain", "× zarrs", "GB/s", "zarrs GB/s"],
  "rows": [
    ["none", [1.70, 1.50, 1.90], 3.0, 2.0],
    ["zstd-1", 0.90, null, null]
  ],
  "notes": [],
  "findings": []
}
"#;

const CHARTS: &str = r#"[{
  "name": "speed", "title": "T", "description": "D", "series": ["zarrs"], "captions": [],
  "sections": [{"heading": "H", "groups": [
    {"label": "none", "bars": [
      {"series": "zarrs", "result": "2026-11-27-array", "row": {"chain": "none"}, "column": "× zarrs"},
      {"series": "zarrs", "result": "2026-11-27-array", "row": {"chain": "none"}, "column": "GB/s", "over": "zarrs GB/s"}
    ]},
    {"label": "zstd-1", "bars": [
      {"series": "zarrs", "result": "2026-11-27-array", "row": {"chain": "zstd-1"}, "column": "× zarrs"}
    ]}
  ]}]
}]"#;

/// A repository with one result and one chart, which is removed at the end.
struct Repository(PathBuf);

impl Repository {
    fn new(name: &str) -> Self {
        let process = std::process::id();
        let root = std::env::temp_dir().join(format!("zarrs-cuda-charts-{process}-{name}"));
        let repository = Self(root);
        fs::create_dir_all(repository.result().parent().expect("a folder")).expect("a folder");
        fs::write(repository.result(), RESULT).expect("a result");
        fs::write(repository.charts(), CHARTS).expect("charts");
        repository
    }

    fn result(&self) -> PathBuf {
        self.0.join("benches/results/2026-11-27-array.json")
    }

    fn charts(&self) -> PathBuf {
        self.0.join("benches/charts.json")
    }

    fn output(&self, file: &str) -> String {
        outputs(&self.0).expect("outputs")[Path::new(file)].clone()
    }

    /// Replaces a part of the result, and returns the error of the check.
    fn error_with(&self, from: &str, to: &str) -> String {
        assert!(RESULT.contains(from), "{from}");
        fs::write(self.result(), RESULT.replacen(from, to, 1)).expect("a result");
        verify(&self.0).expect_err("an error")
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_changed_value_is_found() {
    let repository = Repository::new("changed");
    verify(&repository.0).expect_err("nothing is drawn");
    assert_eq!(update(&repository.0).expect("update").len(), 4);
    assert_eq!(verify(&repository.0), Ok(4));
    let error = repository.error_with("1.70", "1.71");
    assert!(
        error.contains("docs/results/2026-11-27-array.md"),
        "{error}"
    );
    assert!(error.contains("docs/images/speed.svg"), "{error}");
    update(&repository.0).expect("update");
    assert_eq!(verify(&repository.0), Ok(4));
}

#[test]
fn a_changed_page_and_a_missing_chart_are_found() {
    let repository = Repository::new("drifted");
    update(&repository.0).expect("update");
    let page = repository.0.join("docs/results/2026-11-27-array.md");
    let text = fs::read_to_string(&page).expect("the page");
    fs::write(&page, text + "more\n").expect("the page");
    fs::remove_file(repository.0.join("docs/images/speed.svg")).expect("the chart");
    let error = verify(&repository.0).expect_err("an error");
    assert!(
        error.contains("array.md") && error.contains("speed.svg"),
        "{error}"
    );
}

#[test]
fn outputs_without_a_result_are_removed_and_other_files_stay() {
    let repository = Repository::new("stale");
    update(&repository.0).expect("update");
    let renamed = repository.0.join("docs/results/2026-11-26-old.md");
    fs::copy(
        repository.0.join("docs/results/2026-11-27-array.md"),
        &renamed,
    )
    .expect("a copy");
    let drawn = repository.0.join("docs/images/drawn-by-hand.svg");
    fs::write(&drawn, "<svg/>").expect("a drawing");
    let error = verify(&repository.0).expect_err("an error");
    assert!(error.contains("2026-11-26-old.md"), "{error}");
    assert!(!error.contains("drawn-by-hand"), "{error}");
    update(&repository.0).expect("update");
    assert!(!renamed.exists() && drawn.exists());
}

#[test]
fn a_torn_result_is_an_error_with_the_name_of_the_file() {
    let repository = Repository::new("torn");
    for length in [0, 1, RESULT.len() / 2, RESULT.len() - 3] {
        fs::write(repository.result(), &RESULT.as_bytes()[..length]).expect("a result");
        let error = verify(&repository.0).expect_err("an error");
        assert!(
            error.contains("2026-11-27-array.json"),
            "{length} bytes: {error}"
        );
    }
    fs::remove_file(repository.result()).expect("the result");
    let error = verify(&repository.0).expect_err("an error");
    assert!(error.contains("benches/results"), "{error}");
}

#[test]
fn wrong_results_are_refused() {
    let repository = Repository::new("wrong");
    for (from, to, reason) in [
        ("\"runs\": 1", "\"rans\": 1", "runs"),
        ("\"runs\": 1", "\"more\": 1, \"runs\": 1", "more"),
        ("\"libc\": null", "\"lib\": null", "libc"),
        ("0.90, null, null", "0.90, null", "row 2 has 3 cells"),
        ("0.90, null", "true, null", "true"),
        ("1.50, 1.90", "1.75, 1.90", "outside its interval"),
        ("1.50, 1.90", "1.50", "two ends"),
        ("2026-11-27", "2026-11-26", "2026-11-26"),
        ("\"run\",", "\"day\",", "date_of"),
    ] {
        let error = repository.error_with(from, to);
        let has_name = error.contains("2026-11-27-array.json");
        assert!(has_name && error.contains(reason), "{to}: {error}");
    }
}

#[test]
fn wrong_charts_are_refused() {
    let repository = Repository::new("charts");
    for (from, to, reason) in [
        ("none\"}, \"column\": \"×", "lz4\"}, \"column\": \"×", "lz4"),
        ("{\"chain\": \"none\"}", "{}", "several rows"),
        ("{\"chain\": \"none\"}", "{\"codec\": \"none\"}", "codec"),
        ("\"column\": \"× zarrs\"", "\"column\": \"speed\"", "speed"),
        ("2026-11-27-array", "2026-11-27-other", "other"),
        ("\"series\": \"zarrs\"", "\"series\": \"peer\"", "peer"),
        (
            "\"zstd-1\"}, \"column\": \"× zarrs\"",
            "\"zstd-1\"}, \"column\": \"GB/s\"",
            "no number",
        ),
        ("\"label\": \"zstd-1\"", "\"name\": 1", "label"),
        ("}]\n}]", "", "charts.json"),
    ] {
        assert!(CHARTS.contains(from), "{from}");
        fs::write(repository.charts(), CHARTS.replacen(from, to, 1)).expect("charts");
        let error = verify(&repository.0).expect_err("an error");
        let has_name = error.contains("benches/charts.json");
        assert!(has_name && error.contains(reason), "{to}: {error}");
    }
}

#[test]
fn zero_is_not_drawn_on_a_logarithmic_axis() {
    let repository = Repository::new("zero");
    let error = repository.error_with("0.90", "0.00");
    assert!(error.contains("cannot be drawn"), "{error}");
    let error = repository.error_with("3.0, 2.0", "3.0, 0.0");
    assert!(error.contains("cannot be drawn"), "{error}");
}

#[test]
fn pages_keep_the_digits_and_say_that_there_was_one_run() {
    let repository = Repository::new("page");
    let page = repository.output("docs/results/2026-11-27-array.md");
    assert!(page.contains("| none | 1.70 (1.50–1.90) | 3.0 | 2.0 |"));
    assert!(page.contains("| zstd-1 | 0.90 | – | – |"));
    assert!(page.contains("|---|---:|---:|---:|"));
    assert!(page.contains("**one run**, medians of 11 rounds"));
    assert!(page.starts_with("<!-- Generated by `cargo xtask charts`"));
}

#[test]
fn charts_show_spreads_and_mark_single_runs() {
    let repository = Repository::new("drawn");
    let chart = repository.output("docs/images/speed.svg");
    // The interval of one ratio; the quotient and the ratio without one are pale.
    assert_eq!(chart.matches("class=\"whisker\"").count(), 1);
    assert_eq!(chart.matches("class=\"s0 single\"").count(), 3);
    assert!(chart.contains("pale, of any colour: one run"));
    for value in ["1.70", "1.50", "0.90"] {
        assert!(chart.contains(&format!(">{value}</text>")), "{value}");
    }
    assert!(chart.contains("prefers-color-scheme:dark"));
    let links = repository.output("src/guide/charts.md");
    let url = links
        .lines()
        .find_map(|l| l.strip_prefix("[chart of speed]: data:image/svg+xml,"));
    let mut decoded = Vec::new();
    let mut bytes = url.expect("a link").bytes();
    while let Some(byte) = bytes.next() {
        let mut digit = || {
            char::from(bytes.next().expect("a digit"))
                .to_digit(16)
                .expect("a digit")
        };
        decoded.push(match byte {
            b'%' => u8::try_from(digit() * 16 + digit()).expect("a byte"),
            byte => byte,
        });
    }
    assert_eq!(String::from_utf8(decoded).as_deref(), Ok(&*chart));
}

#[test]
fn this_repository_is_current() {
    let count = verify(crate::root()).expect("run `cargo xtask charts`");
    assert!(count > 1);
}
