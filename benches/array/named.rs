//! The rows that decide: the parts of an array that viewers, analyses and training read, with zarrs' own call and
//! with `ArrayReader`.
//!
//! A row is measured in rounds. In each round, the contenders take turns, and each makes its call for at least
//! 20 ms, at one place of the array after the other. The ratio of two contenders is the ratio of their times in the
//! same round. Its interval has a probability of 90 %: it lies between two of the ordered ratios, without an assumption
//! about their distribution. A row fails if the upper end of the interval is below the goal.

use std::time::Instant;

use serde_json::{Value, json};
use zarrs::array::ArraySubset;
use zarrs_cuda_benches::microscopy::Microscopy;
use zarrs_cuda_benches::{Result, chains};

use crate::cases::{Case, EDGE, elements_of};
use crate::contender::{Call, Codec, Stored};
use crate::peers::Peer;
use crate::ratios::{Other, PLACES, ROUNDS, TURN, Table, in_turns};

/// The parts of the array.
const PARTS: [(&str, [u64; 3]); 7] = [
    ("plane across axis 0", [1, EDGE, EDGE]),
    ("plane across axis 1", [EDGE, 1, EDGE]),
    ("plane across axis 2", [EDGE, EDGE, 1]),
    ("tile of 1x256x256", [1, 256, 256]),
    ("column", [EDGE, 1, 1]),
    ("box of 100^3", [100, 100, 100]),
    ("64 boxes of 32^3", [32, 32, 32]),
];

/// A row, by its chain, part, store and call.
struct Row {
    chain: &'static str,
    part: (&'static str, [u64; 3]),
    sink: &'static str,
    call: Call,
}

impl Row {
    fn name(&self) -> String {
        format!(
            "{}, {}, {}, {}",
            self.chain,
            self.part.0,
            self.sink,
            self.call.name()
        )
    }

    /// The boxes of each place. All places have boxes of one shape.
    fn places(&self) -> Vec<Vec<ArraySubset>> {
        let mut random = Microscopy::new();
        let boxes = if has_boxes(self.part.0) { 64 } else { 1 };
        let (_, shape) = self.part;
        let mut one = || {
            let ranges = shape.map(|extent| {
                let start = random.random() % (EDGE - extent + 1);
                start..start + extent
            });
            ArraySubset::new_with_ranges(&ranges)
        };
        (0..PLACES)
            .map(|_| (0..boxes).map(|_| one()).collect())
            .collect()
    }
}

/// Returns whether `part` is several boxes that are read at once.
fn has_boxes(part: &str) -> bool {
    part.starts_with("64")
}

/// Returns all rows: both calls on files, and zarrs' call on a store in memory.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for chain in ["none", "zstd-1"] {
        for part in PARTS {
            let read = if has_boxes(part.0) {
                Call::ReadBoxes
            } else {
                Call::ReadInto
            };
            let mut calls = vec![("files", Call::Elements), ("files", read)];
            if !part.0.starts_with("tile") {
                calls.push(("memory", Call::Elements));
            }
            rows.extend(calls.into_iter().map(|(sink, call)| Row {
                chain,
                part,
                sink,
                call,
            }));
        }
    }
    rows
}

/// Measures all rows whose names have all parts of a filter, and returns them. Prints the rows and, at the end,
/// those that fail.
pub(crate) fn measure(
    elements: &[u16],
    peers: &mut [Peer],
    folder: &std::path::PathBuf,
    rounds: Option<usize>,
    wants: &dyn Fn(&str) -> bool,
) -> Result<Vec<Value>> {
    let rounds = rounds.unwrap_or(ROUNDS);
    let rows: Vec<Row> = rows()
        .into_iter()
        .filter(|row| wants(&row.name()))
        .collect();
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut table = Table::new(&["zarrs", "tensorstore"]);
    let mut of_sink: Option<((&str, &str), Vec<Stored>)> = None;
    for row in &rows {
        let layout = (row.chain, row.sink);
        if of_sink.as_ref().is_none_or(|(known, _)| *known != layout) {
            of_sink = Some((layout, store(row, elements, peers, folder)?));
        }
        let Some((_, stored)) = &of_sink else {
            continue;
        };
        let seconds = measure_row(row, stored, peers, rounds, elements)?;
        let by_reader = row.call != Call::Elements;
        let goals = [
            Some(if by_reader { 1.5 } else { 1.0 }),
            by_reader.then_some(1.0),
        ];
        let others = std::iter::zip(&seconds[1..], goals);
        let others: Vec<_> = others
            .map(|(seconds, goal)| Other { seconds, goal })
            .collect();
        let parameters = json!({
            "chain": row.chain, "part": row.part.0, "sink": row.sink, "call": row.call.name(),
        });
        table.add(&row.name(), parameters, &seconds[0], &others);
    }
    Ok(table.end())
}

/// Stores the array with this crate's codec, with zarrs' own, and by tensorstore.
fn store(
    row: &Row,
    elements: &[u16],
    peers: &mut [Peer],
    folder: &std::path::PathBuf,
) -> Result<Vec<Stored>> {
    let configuration = chains::configuration(&chains::codecs(row.chain)?, 32)?;
    let mut stored = Vec::new();
    for codec in [Codec::Ours, Codec::Zarrs] {
        let array = Stored::new(row.sink, folder, [256; 3], &configuration, codec)?;
        array.store(elements)?;
        stored.push(array);
    }
    if let Some(peer) = peers.first_mut() {
        let files = (row.sink == "files").then_some(folder);
        peer.open(&stored[0].metadata()?, files, true)?;
        peer.store()?;
    }
    Ok(stored)
}

/// Returns the seconds of a call of each contender in each round: this crate, zarrs, tensorstore.
fn measure_row(
    row: &Row,
    stored: &[Stored],
    peers: &mut [Peer],
    rounds: usize,
    elements: &[u16],
) -> Result<Vec<Vec<f64>>> {
    let places = row.places();
    let len = places[0].iter().map(ArraySubset::num_elements_usize).sum();
    let mut output = vec![1_u16; len];
    for (who, stored) in stored.iter().enumerate() {
        for boxes in &places {
            let read = stored.once(boxes, row.call, &mut output)?;
            let read = read.as_deref().unwrap_or(&output);
            if read != elements_of(elements, boxes) {
                return Err(format!("{}: contender {who} reads other elements", row.name()).into());
            }
        }
    }
    let into = row.call == Call::ReadInto;
    if let Some(peer) = peers.first_mut() {
        let read = peer.read(&Case::of(&places[0]), into, true)?;
        let bytes: Vec<u8> = (elements_of(elements, &places[0]).into_iter())
            .flat_map(u16::to_le_bytes)
            .collect();
        if read.and_then(|(_, crc)| crc) != Some(crate::crc32(&bytes)) {
            return Err(format!("{}: tensorstore reads other elements", row.name()).into());
        }
    }
    in_turns(rounds, 3, |who, round| {
        if let Some(stored) = stored.get(who) {
            let (clock, mut calls) = (Instant::now(), 0_u32);
            // Each turn begins at another place.
            let mut places = places.iter().cycle().skip(round);
            while clock.elapsed() < TURN {
                let Some(boxes) = places.next() else { break };
                stored.once(boxes, row.call, &mut output)?;
                calls += 1;
            }
            Ok(Some(clock.elapsed().as_secs_f64() / f64::from(calls)))
        } else if let Some(peer) = peers.first_mut() {
            peer.read_places(&places, into, TURN)
        } else {
            Ok(None)
        }
    })
}
