//! Shows a survey, or one shard, on a terminal of 80 columns.

use std::cmp::Reverse;
use std::fmt::Write;

use indicatif::{HumanBytes, HumanCount};
use zarrs_cuda::maintenance::Inspection;
use zarrs_cuda_convert::grid::indices_of;

use super::facts::Facts;
use super::look::State;
use super::survey::Survey;
use crate::chosen::outside_text;

/// The most columns of the map. `ROWS` is the most rows.
const COLUMNS: u64 = 64;
const ROWS: u64 = 16;

/// The character of a cell without shards. `BAD` is that of a cell with damaged or torn shards.
const ABSENT: char = '·';
const BAD: char = '!';
/// The characters of cells, from the smallest to the largest shards.
const SHADES: [char; 4] = ['░', '▒', '▓', '█'];
/// The colours of `SHADES` in the palette of 256 colours. `BAD_COLOUR` is that of `BAD`.
const COLOURS: [u8; 4] = [24, 31, 43, 192];
const BAD_COLOUR: u8 = 203;

/// Returns a character in a colour, or without it if the terminal has no colours.
fn coloured(text: char, colour: u8, has_colours: bool) -> String {
    if has_colours {
        format!("\u{1b}[38;5;{colour}m{text}\u{1b}[0m")
    } else {
        text.to_string()
    }
}

/// Returns extents as text, `4 × 8 × 8`.
fn times(extents: &[u64]) -> String {
    if extents.is_empty() {
        return "no axes".to_string();
    }
    let extents: Vec<_> = extents.iter().map(ToString::to_string).collect();
    extents.join(" × ")
}

/// Returns the size of one of several objects behind a comma; empty text if elements differ in size.
fn comma_each(bytes: Option<u64>) -> String {
    match Facts::comma_bytes(bytes) {
        none if none.is_empty() => none,
        size => size + " each",
    }
}

/// Appends a row with a title, and wraps it at `columns`.
fn row(text: &mut String, title: &str, content: &str, columns: usize) {
    const TITLE: usize = 11;
    let width = columns.saturating_sub(TITLE).max(20);
    let mut line = String::new();
    let mut title = title;
    let mut put = |line: &str| {
        let _ = writeln!(text, "{title:<TITLE$}{line}");
        title = "";
    };
    for word in content.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            put(&std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    put(&line);
}

/// Returns the text of the survey of an array.
pub(super) fn survey(
    facts: &Facts,
    survey: &Survey,
    axes: Option<[usize; 2]>,
    columns: usize,
    has_colours: bool,
) -> String {
    let mut text = String::new();
    let columns = columns.min(100);
    let decoded = facts.decoded(facts.shape.iter().copied());
    let shape = format!(
        "{} {}{}",
        times(&facts.shape),
        facts.data_type,
        Facts::comma_bytes(decoded)
    );
    row(&mut text, "array", &shape, columns);
    let shard = comma_each(facts.decoded(facts.shard.iter().copied()));
    row(
        &mut text,
        "shards",
        &format!(
            "{} in a grid of {}{shard}",
            times(&facts.shard),
            times(&survey.grid)
        ),
        columns,
    );
    if facts.stored_shard != facts.shard && !facts.stored_shard.is_empty() {
        row(&mut text, "stored as", &times(&facts.stored_shard), columns);
    }
    let subchunk = comma_each(facts.decoded(facts.subchunk.iter().copied()));
    row(
        &mut text,
        "subchunks",
        &format!(
            "{}, {} in a shard{subchunk}",
            times(&facts.subchunk),
            times(&facts.counts())
        ),
        columns,
    );
    row(&mut text, "codecs", &facts.chain, columns);
    row(&mut text, "index", &facts.index, columns);
    row(&mut text, "stored", &stored(facts, survey), columns);
    if let Some(outside) = outside_text(survey.outside) {
        row(&mut text, "outside", &outside, columns);
    }
    if !survey.stored.is_empty() {
        row(&mut text, "sizes", &sizes(survey), columns);
    }
    row(&mut text, "state", &states(survey), columns);
    for note in &facts.notes {
        row(&mut text, "note", note, columns);
    }
    let read = survey.looks.len() as u64;
    if read < survey.stored.len() as u64 {
        let said = format!(
            "{} of {} indices were read: the largest, the smallest, and a sample. --all reads all",
            HumanCount(read),
            HumanCount(survey.stored.len() as u64)
        );
        row(&mut text, "read", &said, columns);
    }
    for (number, look) in survey
        .looks
        .iter()
        .filter(|(_, look)| look.problem.is_some())
        .take(8)
    {
        let shard: Vec<_> = indices_of(*number, &survey.grid)
            .iter()
            .map(ToString::to_string)
            .collect();
        let problem = look.problem.as_deref().unwrap_or_default();
        row(
            &mut text,
            &shard.join(","),
            &format!("{}: {problem}", look.state.name()),
            columns,
        );
    }
    text.push('\n');
    text.push_str(&map(facts, survey, axes, has_colours));
    text
}

fn stored(facts: &Facts, survey: &Survey) -> String {
    let shards: u64 = survey
        .grid
        .iter()
        .fold(1, |n, &count| n.saturating_mul(count));
    let count = survey.stored.len() as u64;
    let bytes = survey.bytes();
    let decoded: Option<u64> = survey
        .stored
        .iter()
        .map(|&(number, _)| facts.decoded_shard(&indices_of(number, &survey.grid)))
        .try_fold(0_u64, |sum, decoded| Some(sum.saturating_add(decoded?)));
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    let ratio = match decoded {
        Some(decoded) if bytes > 0 => format!(", ratio {:.2}", decoded as f64 / bytes as f64),
        _ => String::new(),
    };
    format!(
        "{} of {} shards, {}{ratio}; {} empty",
        HumanCount(count),
        HumanCount(shards),
        HumanBytes(bytes),
        HumanCount(shards - count)
    )
}

fn sizes(survey: &Survey) -> String {
    let mut sizes: Vec<u64> = survey.stored.iter().map(|&(_, size)| size).collect();
    sizes.sort_unstable();
    let at = |part: usize| HumanBytes(sizes[(sizes.len() - 1) * part / 2]);
    format!(
        "{} the smallest, {} the median, {} the largest",
        at(0),
        at(1),
        at(2)
    )
}

fn states(survey: &Survey) -> String {
    let counts = survey.states();
    let said: Vec<String> = State::ALL
        .into_iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{} {}", HumanCount(count), state.name()))
        .collect();
    if said.is_empty() {
        return "no shard is stored".to_string();
    }
    said.join(", ")
}

/// The map of the shards: cells in rows and columns.
struct Map {
    rows: u64,
    columns: u64,
    /// For each cell: the bytes of its stored shards, their number, and whether one is bad.
    cells: Vec<(u64, u64, bool)>,
}

/// Returns the map of the grid along two axes. Shards that differ only in other axes share a cell.
fn cells(survey: &Survey, [down, across]: [Option<usize>; 2]) -> Map {
    let extent = |axis: Option<usize>| axis.map_or(1, |axis| survey.grid[axis]);
    let (rows, columns) = (
        extent(down).clamp(1, ROWS),
        extent(across).clamp(1, COLUMNS),
    );
    let mut map = Map {
        rows,
        columns,
        cells: vec![(0, 0, false); usize::try_from(rows * columns).unwrap_or(0)],
    };
    let place = |indices: &[u64], axis: Option<usize>, cells: u64| {
        axis.map_or(0, |axis| {
            let cell = u128::from(indices[axis]) * u128::from(cells)
                / u128::from(survey.grid[axis].max(1));
            u64::try_from(cell).unwrap_or(0)
        })
    };
    let mut add = |number: u64, size: Option<u64>| {
        let indices = indices_of(number, &survey.grid);
        let cell = place(&indices, down, rows) * columns + place(&indices, across, columns);
        let cell = usize::try_from(cell)
            .ok()
            .and_then(|cell| map.cells.get_mut(cell));
        if let Some((sum, count, is_bad)) = cell {
            *sum = sum.saturating_add(size.unwrap_or(0));
            *count += u64::from(size.is_some());
            *is_bad |= survey.state(number) >= State::Torn;
        }
    };
    for &(number, size) in &survey.stored {
        add(number, Some(size));
    }
    map
}

/// Returns the axes of the map, down and across: the two with the most shards, in the order of the array.
fn longest_axes(grid: &[u64]) -> [Option<usize>; 2] {
    let mut longest: Vec<usize> = (0..grid.len()).collect();
    longest.sort_by_key(|&axis| (Reverse(grid[axis]), Reverse(axis)));
    longest.truncate(2);
    longest.sort_unstable();
    match longest[..] {
        [] => [None, None],
        [across] => [None, Some(across)],
        [down, across, ..] => [Some(down), Some(across)],
    }
}

/// Returns the caption of a map: its axes, and what it shows.
fn caption(facts: &Facts, grid: &[u64], chosen: [Option<usize>; 2]) -> Option<String> {
    let titles = chosen.into_iter().zip(["down", "across"]);
    let titles: Vec<String> = titles
        .filter_map(|(axis, direction)| {
            let axis = axis?;
            let last = grid[axis].saturating_sub(1);
            Some(format!("{} {direction} (0 to {last})", facts.axis(axis)))
        })
        .collect();
    let others = (0..grid.len()).filter(|axis| !chosen.contains(&Some(*axis)) && grid[*axis] > 1);
    let others: Vec<String> = others.map(|axis| facts.axis(axis)).collect();
    let titles = titles.join(", ");
    if !others.is_empty() {
        return Some(format!("{titles}; the mean over {}", others.join(", ")));
    }
    (!titles.is_empty()).then_some(titles)
}

/// The scale that maps sizes of shards to shades.
struct Scale {
    least: u64,
    most: u64,
    has_colours: bool,
}

impl Scale {
    fn shade(&self, size: u64) -> String {
        let number = if self.least == self.most {
            2
        } else {
            (size - self.least) / ((self.most - self.least) / 4 + 1)
        };
        let number = usize::try_from(number.min(3)).unwrap_or(3);
        coloured(SHADES[number], COLOURS[number], self.has_colours)
    }

    /// Returns each shade, and the smallest size that has it; only one shade if all sizes are equal.
    fn legend(&self) -> Vec<String> {
        let Self { least, most, .. } = *self;
        let entry = |size: u64| format!("{} {}", self.shade(size), HumanBytes(size));
        match most {
            0 => Vec::new(),
            _ if least == most => vec![entry(most)],
            _ => (0..4)
                .map(|n| least + n * ((most - least) / 4 + 1))
                .filter(|&size| size <= most)
                .map(entry)
                .collect(),
        }
    }
}

fn map(facts: &Facts, survey: &Survey, axes: Option<[usize; 2]>, has_colours: bool) -> String {
    let grid = &survey.grid;
    if grid.contains(&0) {
        return String::new(); // the array has no elements
    }
    let chosen = axes.map_or_else(|| longest_axes(grid), |axes| axes.map(Some));
    let map = cells(survey, chosen);
    let mean = |&(sum, count, _): &(u64, u64, bool)| sum.checked_div(count);
    let means: Vec<u64> = map.cells.iter().filter_map(mean).collect();
    let scale = Scale {
        least: means.iter().min().copied().unwrap_or(0),
        most: means.iter().max().copied().unwrap_or(0),
        has_colours,
    };
    let mut text = String::new();
    if let Some(caption) = caption(facts, grid, chosen) {
        let _ = writeln!(text, "{caption}");
    }
    // In a small map, a cell has two characters, so that it is as wide as it is high.
    let width = if map.columns * 2 <= COLUMNS { 2 } else { 1 };
    let columns = usize::try_from(map.columns).unwrap_or(1).max(1);
    for cells in map.cells.chunks(columns) {
        text.push_str("  ");
        for cell in cells {
            let one = match mean(cell) {
                _ if cell.2 => coloured(BAD, BAD_COLOUR, has_colours),
                None => ABSENT.to_string(),
                Some(size) => scale.shade(size),
            };
            for _ in 0..width {
                text.push_str(&one);
            }
        }
        text.push('\n');
    }
    let mut legend = scale.legend();
    let title = if legend.len() > 1 { "from " } else { "" };
    legend.push(format!("{ABSENT} none"));
    if map.cells.iter().any(|cell| cell.2) {
        legend.push(format!("{} bad", coloured(BAD, BAD_COLOUR, has_colours)));
    }
    let _ = write!(text, "{title}{}", legend.join("  "));
    let extents = chosen.map(|axis| axis.map_or(1, |axis| grid[axis].max(1)));
    if [map.rows, map.columns] != extents {
        text.push_str("\na cell is several shards, and shows their mean");
    }
    text
}

/// Returns the text about a shard, as `Display` of [`Inspection`] writes it.
pub(super) fn shard(key: &str, found: &Inspection, summary: bool) -> String {
    if summary {
        format!("{key}\n{}", found.summary())
    } else {
        format!("{key}\n{found}")
    }
}
