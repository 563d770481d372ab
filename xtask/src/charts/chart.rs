//! Reads which rows of the published results a chart compares.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::published::{Cell, Number, Published};
use crate::Result;

/// A chart of ratios.
pub(super) struct Chart {
    pub(super) name: String,
    pub(super) title: String,
    /// One sentence for those who cannot see the chart.
    pub(super) description: String,
    pub(super) series: Vec<String>,
    /// Lines under the chart.
    pub(super) captions: Vec<String>,
    pub(super) sections: Vec<Section>,
}

pub(super) struct Section {
    pub(super) heading: String,
    pub(super) groups: Vec<Group>,
}

/// The bars beside one label.
pub(super) struct Group {
    pub(super) label: String,
    pub(super) bars: Vec<Bar>,
}

pub(super) struct Bar {
    /// The number of the series.
    pub(super) series: usize,
    pub(super) ratio: f64,
    pub(super) text: String,
    pub(super) interval: Option<[f64; 2]>,
    /// The ratio was measured in one run, and its spread is not known.
    pub(super) single: bool,
}

/// Reads all charts of a file, with the values of `results`.
pub(super) fn read(file: &Path, results: &BTreeMap<String, Published>) -> Result<Vec<Chart>> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    parse(&text, results).map_err(|e| format!("{}: {e}", file.display()))
}

fn parse(text: &str, results: &BTreeMap<String, Published>) -> Result<Vec<Chart>> {
    let charts: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let chart = |value: &Value| {
        let name = string(value, "name")?;
        Chart::parse(value, results).map_err(|e| format!("the chart {name:?}: {e}"))
    };
    let charts = charts.as_array().ok_or("no list of charts")?;
    charts.iter().map(chart).collect()
}

impl Chart {
    fn parse(value: &Value, results: &BTreeMap<String, Published>) -> Result<Self> {
        let series = strings(value, "series")?;
        let section = |section: &Value| {
            let group = |group: &Value| {
                let label = string(group, "label")?;
                let bars = list(group, "bars")?.iter();
                let bars: Result<_> = bars.map(|bar| Bar::parse(bar, &series, results)).collect();
                let bars = bars.map_err(|e| format!("{label:?}: {e}"))?;
                Ok(Group { label, bars })
            };
            let groups: Result<_> = list(section, "groups")?.iter().map(group).collect();
            Ok(Section {
                heading: string(section, "heading")?,
                groups: groups?,
            })
        };
        let sections: Result<_> = list(value, "sections")?.iter().map(section).collect();
        Ok(Self {
            name: string(value, "name")?,
            title: string(value, "title")?,
            description: string(value, "description")?,
            captions: strings(value, "captions")?,
            sections: sections?,
            series,
        })
    }
}

impl Bar {
    /// Reads the cell in `column` of the row of `result` that has the texts in `row`. With `over` the ratio is the
    /// cell over the cell in that column.
    fn parse(
        value: &Value,
        series: &[String],
        results: &BTreeMap<String, Published>,
    ) -> Result<Self> {
        let name = string(value, "series")?;
        let of_series = series.iter().position(|s| *s == name);
        let of_series = of_series.ok_or_else(|| format!("{name:?} is no series of the chart"))?;
        let result = string(value, "result")?;
        let published = results.get(&result);
        let published = published.ok_or_else(|| format!("there is no result {result:?}"))?;
        let row: BTreeMap<String, String> =
            serde_json::from_value(value["row"].clone()).map_err(|e| format!("`row`: {e}"))?;
        let column = string(value, "column")?;
        let (ratio, interval) = number(published, &row, &column)?;
        let Some(over) = value.get("over") else {
            return Self::new(
                of_series,
                &ratio.text,
                ratio.value,
                interval,
                published.is_single() && interval.is_none(),
            );
        };
        let over = over.as_str().ok_or("`over` is no text")?;
        let (divisor, of_divisor) = number(published, &row, over)?;
        if interval.is_some() || of_divisor.is_some() {
            return Err(format!("{column:?} and {over:?} have intervals"));
        }
        let ratio = ratio.value / divisor.value;
        let text = format!("{ratio:.2}");
        Self::new(of_series, &text, ratio, None, published.is_single())
    }

    fn new(
        series: usize,
        text: &str,
        ratio: f64,
        interval: Option<[f64; 2]>,
        single: bool,
    ) -> Result<Self> {
        let least = interval.map_or(ratio, |[low, _]| low);
        // The axis is logarithmic.
        if !(ratio.is_finite() && ratio > 0.0 && least >= 0.0) {
            return Err(format!("{text} cannot be drawn"));
        }
        Ok(Self {
            series,
            ratio,
            text: text.to_owned(),
            interval,
            single,
        })
    }
}

fn number(
    result: &Published,
    row: &BTreeMap<String, String>,
    column: &str,
) -> Result<(Number, Option<[f64; 2]>)> {
    match result.cell(row, column)? {
        Cell::Number(number) => Ok((number.clone(), None)),
        Cell::Interval([value, low, high]) => Ok((value.clone(), Some([low.value, high.value]))),
        Cell::Empty | Cell::Text(_) => Err(format!(
            "{} has no number in {column:?} of {row:?}",
            result.name
        )),
    }
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    let list = value.get(name).and_then(Value::as_array);
    list.ok_or_else(|| format!("there is no list {name:?}"))
}

fn string(value: &Value, name: &str) -> Result<String> {
    let text = value.get(name).and_then(Value::as_str);
    text.map(str::to_owned)
        .ok_or_else(|| format!("there is no text {name:?}"))
}

fn strings(value: &Value, name: &str) -> Result<Vec<String>> {
    let texts = list(value, name)?.iter().map(|text| text.as_str());
    let texts: Option<Vec<&str>> = texts.collect();
    let texts = texts.ok_or_else(|| format!("{name:?} has something else than texts"))?;
    Ok(texts.into_iter().map(str::to_owned).collect())
}
