//! The rows that decide: the parts of an array that viewers, analyses and training read, with zarrs' own call and
//! with `ArrayReader`.
//!
//! A row is measured in rounds. In each round, the contenders take turns, and each makes its call for at least
//! 20 ms, at one place of the array after the other. The ratio of two contenders is the ratio of their times in the
//! same round. Its interval has a probability of 90 %: it lies between two of the ordered ratios, without an assumption
//! about their distribution. A row fails if the upper end of the interval is below the goal.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use zarrs::array::ArraySubset;
use zarrs_cuda_benches::microscopy::Microscopy;
use zarrs_cuda_benches::{Result, chains};

use crate::cases::{Case, EDGE};
use crate::contender::{Call, Codec, Stored};
use crate::peers::Peer;

/// The rounds of a row, unless the command says more.
const ROUNDS: usize = 11;
/// The time for which a contender makes its call in a round.
const TURN: Duration = Duration::from_millis(20);
/// The number of places of the array at which a call is made, one after the other.
const PLACES: u64 = 16;

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

/// The ratios of the times of two contenders, one for each round.
struct Ratios(Vec<f64>);

impl Ratios {
    /// Returns the median, and the ends of an interval that has the true median with a probability of 90 %.
    fn interval(&self) -> (f64, [f64; 2]) {
        let mut ordered = self.0.clone();
        ordered.sort_by(f64::total_cmp);
        let rounds = ordered.len();
        let at = |index: usize| ordered.get(index).copied().unwrap_or(f64::NAN);
        // The median is below the k-th ratio if fewer than k ratios are below it: a binomial distribution.
        let (mut cut, mut below, mut one) = (
            0,
            0.0,
            0.5_f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX)),
        );
        for k in 0..rounds / 2 {
            below += one;
            if 2.0 * below > 0.1 {
                break;
            }
            cut = k;
            one *= (rounds - k) as f64 / (k + 1) as f64;
        }
        (at(rounds / 2), [at(cut), at(rounds - 1 - cut)])
    }
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
    println!(
        "{:50} {:>9} {:>22} {:>22}",
        "row", "ms", "x zarrs (90 %)", "x tensorstore (90 %)"
    );
    let (mut measured, mut failed) = (Vec::new(), Vec::new());
    let rows: Vec<Row> = rows()
        .into_iter()
        .filter(|row| wants(&row.name()))
        .collect();
    if rows.is_empty() {
        return Err("no named row has all parts of a filter: `--all` has other names".into());
    }
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
        let ratio = |to: usize| {
            let pairs = std::iter::zip(&seconds[0], &seconds[to]);
            let ratios: Vec<f64> = pairs.map(|(ours, other)| other / ours).collect();
            (!ratios.is_empty()).then(|| Ratios(ratios).interval())
        };
        let by_reader = row.call != Call::Elements;
        let goals = [
            (ratio(1), Some(if by_reader { 1.5 } else { 1.0 })),
            (ratio(2), by_reader.then_some(1.0)),
        ];
        let show = |(ratio, goal): &(Option<(f64, [f64; 2])>, Option<f64>)| match ratio {
            Some((median, [low, high])) => {
                let fails = goal.is_some_and(|goal| *high < goal);
                format!(
                    "{median:.2} ({low:.2}-{high:.2}){}",
                    if fails { " <" } else { "" }
                )
            }
            None => "-".to_string(),
        };
        let milliseconds = zarrs_cuda_benches::median(seconds[0].clone()).map(|s| s * 1e3);
        println!(
            "{:50} {:>9.3} {:>22} {:>22}",
            row.name(),
            milliseconds.unwrap_or(f64::NAN),
            show(&goals[0]),
            show(&goals[1]),
        );
        for ((ratio, goal), other) in goals.iter().zip(["zarrs", "tensorstore"]) {
            if let (Some((median, [_, high])), Some(goal)) = (ratio, goal)
                && high < goal
            {
                failed.push(format!(
                    "{}: {median:.2} x {other}, at most {high:.2}, goal {goal}",
                    row.name()
                ));
            }
        }
        let as_json = |ratio: Option<(f64, [f64; 2])>| {
            ratio.map(|(median, interval)| json!({ "median": median, "interval": interval }))
        };
        measured.push(json!({
            "chain": row.chain, "part": row.part.0, "sink": row.sink, "call": row.call.name(),
            "milliseconds": milliseconds,
            "over_zarrs": as_json(goals[0].0), "over_tensorstore": as_json(goals[1].0),
        }));
    }
    println!("\n{} of {} rows fail", failed.len(), rows.len());
    for row in failed {
        println!("- {row}");
    }
    Ok(measured)
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
        peer.open(&stored[0].metadata()?, files)?;
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
) -> Result<[Vec<f64>; 3]> {
    let places = row.places();
    let len = places[0].iter().map(ArraySubset::num_elements_usize).sum();
    let mut output = vec![1_u16; len];
    let mut seconds = [const { Vec::new() }; 3];
    for (who, stored) in stored.iter().enumerate() {
        for boxes in &places {
            let read = stored.once(boxes, row.call, &mut output)?;
            let read = read.as_deref().unwrap_or(&output);
            if read != expected(elements, boxes) {
                return Err(format!("{}: contender {who} reads other elements", row.name()).into());
            }
        }
    }
    let into = row.call == Call::ReadInto;
    if let Some(peer) = peers.first_mut() {
        let read = peer.read(&Case::of(&places[0]), into, true)?;
        let bytes: Vec<u8> = (expected(elements, &places[0]).into_iter())
            .flat_map(u16::to_le_bytes)
            .collect();
        if read.and_then(|(_, crc)| crc) != Some(crate::crc32(&bytes)) {
            return Err(format!("{}: tensorstore reads other elements", row.name()).into());
        }
    }
    for round in 0..=rounds {
        for turn in 0..3 {
            let who = (round + turn) % 3;
            let of_call = if let Some(stored) = stored.get(who) {
                let (clock, mut calls) = (Instant::now(), 0_u32);
                // Each turn begins at another place.
                let mut places = places.iter().cycle().skip(round);
                while clock.elapsed() < TURN {
                    let Some(boxes) = places.next() else { break };
                    stored.once(boxes, row.call, &mut output)?;
                    calls += 1;
                }
                Some(clock.elapsed().as_secs_f64() / f64::from(calls))
            } else if let Some(peer) = peers.first_mut() {
                peer.read_places(&places, into, TURN)?
            } else {
                None
            };
            if round > 0 {
                seconds[who].extend(of_call);
            }
        }
    }
    Ok(seconds)
}

/// The elements of `boxes`, box after box.
fn expected(elements: &[u16], boxes: &[ArraySubset]) -> Vec<u16> {
    let mut expected = Vec::new();
    for subset in boxes {
        let [z, y, x] = [0, 1, 2].map(|axis| {
            let (start, extent) = (subset.start()[axis], subset.shape()[axis]);
            start as usize..(start + extent) as usize
        });
        let edge = EDGE as usize;
        for z in z {
            for y in y.clone() {
                let row = (z * edge + y) * edge;
                expected.extend(&elements[row + x.start..row + x.end]);
            }
        }
    }
    expected
}
