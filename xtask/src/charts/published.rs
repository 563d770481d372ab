//! Reads a published result: one table, with its machine, its versions and its method.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::value::RawValue;

use crate::Result;

type Members = BTreeMap<String, Box<RawValue>>;

/// A number, as the file writes it: a page shows the same digits.
#[derive(Clone, Debug)]
pub(super) struct Number {
    pub(super) text: String,
    pub(super) value: f64,
}

#[derive(Clone, Debug)]
pub(super) enum Cell {
    Empty,
    Text(String),
    Number(Number),
    /// A value and its interval: the value, the lower end, the upper end.
    Interval([Number; 3]),
}

#[derive(Debug)]
pub(super) struct Published {
    /// The name of the file, without its extension.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) date: String,
    /// What the date is of: the run, or the commit that recorded it.
    pub(super) date_of: String,
    pub(super) commit: Option<String>,
    pub(super) command: Option<String>,
    pub(super) processor: Option<String>,
    /// What else is known of the machine, in the order of [`MACHINE`].
    pub(super) machine: Vec<String>,
    pub(super) versions: Vec<String>,
    pub(super) method: String,
    pub(super) rounds: Option<String>,
    pub(super) runs: String,
    pub(super) spread: Option<String>,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
    pub(super) notes: Vec<String>,
}

/// The members of `machine` behind the processor.
const MACHINE: [&str; 4] = ["cores", "kernel", "libc", "state"];

impl Published {
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&name, &text).map_err(|e| format!("{}: {e}", file.display()))
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let members: Members = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let mut members = Taken(members);
        let machine = members.take("machine")?;
        let mut machine = Taken(named("machine", serde_json::from_str(machine.get()))?);
        let processor = machine.optional("processor")?;
        let mut known = Vec::new();
        for member in MACHINE {
            let value = machine.optional(member)?;
            known.extend(value.map(|value| match (member, &*value) {
                ("cores", "1") => "1 core".to_owned(),
                ("cores", _) => format!("{value} cores"),
                _ => value,
            }));
        }
        machine.end("machine")?;
        let result = Self {
            name: name.to_owned(),
            title: members.text("title")?,
            date: members.text("date")?,
            date_of: members.text("date_of")?,
            commit: members.optional("commit")?,
            command: {
                members.optional("benchmark")?;
                members.optional("command")?
            },
            processor,
            machine: known,
            versions: {
                let versions = members.take("versions")?;
                let versions = serde_json::from_str(versions.get());
                let versions: BTreeMap<String, String> = named("versions", versions)?;
                let version = |(name, version)| format!("{name} {version}");
                versions.into_iter().map(version).collect()
            },
            method: members.text("method")?,
            rounds: members.optional("rounds")?,
            runs: members.text("runs")?,
            spread: members.optional("spread")?,
            columns: members.texts("columns")?,
            rows: rows(&members.take("rows")?)?,
            notes: members.texts("notes")?,
        };
        // They are for readers of the file alone.
        members.texts("findings")?;
        members.end("the result")?;
        result.check()?;
        Ok(result)
    }

    fn check(&self) -> Result<()> {
        if !self.name.starts_with(&format!("{}-", self.date)) {
            let date = &self.date;
            return Err(format!("the name does not begin with the date {date}"));
        }
        if !["run", "commit"].contains(&&*self.date_of) {
            return Err(format!("`date_of` is {:?}: run or commit", self.date_of));
        }
        let wanted = self.columns.len();
        for (number, row) in self.rows.iter().enumerate() {
            if row.len() != wanted {
                let (number, found) = (number + 1, row.len());
                return Err(format!(
                    "row {number} has {found} cells for {wanted} columns"
                ));
            }
        }
        Ok(())
    }

    /// Returns the only cell in `column` of a row that has the `wanted` texts.
    pub(super) fn cell(&self, wanted: &BTreeMap<String, String>, column: &str) -> Result<&Cell> {
        let index = |column: &str| {
            let at = self.columns.iter().position(|c| c == column);
            at.ok_or_else(|| format!("{} has no column {column:?}", self.name))
        };
        let mut conditions = Vec::new();
        for (column, text) in wanted {
            conditions.push((index(column)?, text));
        }
        let column = index(column)?;
        let mut found = self.rows.iter().filter(|row| {
            let has = |(at, text): &(usize, &String)| row[*at].text() == text.as_str();
            conditions.iter().all(has)
        });
        match (found.next(), found.next()) {
            (Some(row), None) => Ok(&row[column]),
            (None, _) => Err(format!("{} has no row with {wanted:?}", self.name)),
            (Some(_), Some(_)) => Err(format!("{} has several rows with {wanted:?}", self.name)),
        }
    }

    /// Returns whether nothing is known of the spread of a cell without an interval.
    pub(super) fn is_single(&self) -> bool {
        self.runs == "1"
    }
}

impl Cell {
    fn parse(raw: &RawValue) -> Result<Self> {
        let text = raw.get();
        match text.as_bytes().first() {
            Some(b'n') => Ok(Self::Empty),
            Some(b'"') => named("a cell", serde_json::from_str(text)).map(Self::Text),
            Some(b'[') => {
                let cells: Vec<Box<RawValue>> = named("a cell", serde_json::from_str(text))?;
                let numbers: Result<Vec<Number>> = cells.iter().map(|c| Number::parse(c)).collect();
                let [value, low, high] = <[Number; 3]>::try_from(numbers?)
                    .map_err(|_| format!("{text} is no value with two ends of an interval"))?;
                if low.value > value.value || value.value > high.value {
                    return Err(format!("the value of {text} is outside its interval"));
                }
                Ok(Self::Interval([value, low, high]))
            }
            _ => Number::parse(raw).map(Self::Number),
        }
    }

    /// Returns the text of a page: for an interval the value, and the ends in parentheses.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Empty => String::new(),
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.text.clone(),
            Self::Interval([value, low, high]) => {
                format!("{} ({}–{})", value.text, low.text, high.text)
            }
        }
    }
}

impl Number {
    fn parse(raw: &RawValue) -> Result<Self> {
        let text = raw.get();
        let value = text.parse().ok().filter(|value: &f64| value.is_finite());
        let value = value.ok_or_else(|| format!("{text} is no number"))?;
        Ok(Self {
            text: text.to_owned(),
            value,
        })
    }
}

fn rows(raw: &RawValue) -> Result<Vec<Vec<Cell>>> {
    let rows: Vec<Vec<Box<RawValue>>> = named("rows", serde_json::from_str(raw.get()))?;
    let row = |row: Vec<Box<RawValue>>| row.iter().map(|cell| Cell::parse(cell)).collect();
    rows.into_iter().map(row).collect()
}

/// Names the part of the file whose text is wrong.
fn named<T>(what: &str, parsed: serde_json::Result<T>) -> Result<T> {
    parsed.map_err(|e| format!("{what}: {e}"))
}

/// The members of an object that were not read yet.
struct Taken(Members);

impl Taken {
    fn take(&mut self, name: &str) -> Result<Box<RawValue>> {
        let member = self.0.remove(name);
        member.ok_or_else(|| format!("there is no member {name:?}"))
    }

    /// Returns a text or a number, as text; nothing for `null`.
    fn optional(&mut self, name: &str) -> Result<Option<String>> {
        match Cell::parse(&self.take(name)?)? {
            Cell::Empty => Ok(None),
            Cell::Text(text) => Ok(Some(text)),
            Cell::Number(number) => Ok(Some(number.text)),
            Cell::Interval(_) => Err(format!("{name:?} is a list")),
        }
    }

    fn text(&mut self, name: &str) -> Result<String> {
        let text = self.optional(name)?;
        text.ok_or_else(|| format!("{name:?} is null"))
    }

    fn texts(&mut self, name: &str) -> Result<Vec<String>> {
        named(name, serde_json::from_str(self.take(name)?.get()))
    }

    /// Refuses members that nobody reads: their names are wrong.
    fn end(self, what: &str) -> Result<()> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("{what} has an unknown member {name:?}")),
        }
    }
}
