//! The rows of writing: the whole array, and parts of stored shards, from memory of the caller.
//!
//! The rows are measured as those of reading in `named.rs` are. A contender writes to an array of its own, again
//! and again. Nobody has to sync: `BoxWriter` and tensorstore are told so, and zarrs' `FilesystemStore` always
//! syncs, which costs nothing where files are in memory (`/dev/shm`). After the first call of each contender, zarrs
//! reads all elements, and they are compared.
//!
//! A part is written to 16 places, one after the other, and each time with other elements than before.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::ArraySubset;
use zarrs::array::codec::ShardingCodecConfiguration;
use zarrs_cuda::writer::ShardUpdate;
use zarrs_cuda_benches::microscopy::Microscopy;
use zarrs_cuda_benches::{Result, chains, warm};

use crate::Layout;
use crate::cases::{Case, EDGE, elements_of};
use crate::limit::{LimitShard, WritingLimit};
use crate::peers::Peer;
use crate::ratios::{Other, PLACES, ROUNDS, TURN, Table, in_turns};
use crate::written::{By, Written};

/// The extent of a shard along each axis: 32 MiB of uint16.
pub(crate) const SHARD: u64 = 256;

/// The chain, the extent of a subchunk, and the goals of a whole array: over tensorstore, and over zarrs.
const WHOLE: [(&str, u64, [f64; 2]); 4] = [
    ("none", 32, [1.1, 2.0]),
    ("blosc-lz4", 32, [1.0, 1.7]),
    ("zstd-1", 32, [1.05, 1.2]),
    ("zstd-1", 64, [0.95, 1.2]),
];
/// The goal of each whole array over the limit.
const LIMIT: f64 = 0.85;

/// The parts that are written: a name, the extents, and the steps of the places at which a part may be.
const PARTS: [(&str, [u64; 3], [u64; 3]); 3] = [
    ("one subchunk", [32; 3], [32; 3]),
    ("a plane across axis 0", [1, EDGE, EDGE], [1, EDGE, EDGE]),
    ("a quarter of a shard", [SHARD, 128, 128], [SHARD, 128, 128]),
];

/// A run of the benchmark: the elements to write, the peers, the folder for files, and the wanted rows.
pub(crate) struct Run<'r> {
    pub(crate) elements: &'r [u16],
    pub(crate) peers: &'r mut [Peer],
    pub(crate) folder: &'r Path,
    pub(crate) rounds: Option<usize>,
    pub(crate) wants: &'r dyn Fn(&str) -> bool,
}

impl Run<'_> {
    /// Measures all rows whose names have all parts of a filter, and returns them. Prints the rows and the goals
    /// that are missed. With `sync`, whole arrays are written to files, everybody syncs, and there are no goals.
    pub(crate) fn measure(mut self, sync: bool) -> Result<Vec<Value>> {
        let mut rows = whole(&mut self, sync)?;
        if !sync {
            rows.extend(parts(&mut self)?);
        }
        Ok(rows)
    }

    /// Touches the memory that a contender may need beside what is stored. Storing needs less of it than reading.
    fn warm(&self) -> Result<()> {
        Ok(warm::touch(self.elements.len() * 4)?)
    }

    /// Opens tensorstore's array, if there is a tensorstore.
    fn open_peer(
        &mut self,
        written: &Written,
        is_on_files: bool,
        sync: bool,
    ) -> Result<Option<&mut Peer>> {
        let folder = self.folder.to_path_buf();
        let Some(peer) = self.peers.first_mut() else {
            return Ok(None);
        };
        peer.open(&written.metadata()?, is_on_files.then_some(&folder), sync)?;
        Ok(Some(peer))
    }

    /// Checks that the array of the peer has `expected` elements.
    fn check_peer(&mut self, name: &str, expected: &[u16], codecs: &Codecs) -> Result<()> {
        let Some(peer) = self.peers.first_mut() else {
            return Ok(());
        };
        let is_equal = if let Some(folder) = peer.folder() {
            Written::open(folder, codecs)?.has(expected)?
        } else {
            let whole = ArraySubset::new_with_shape(vec![EDGE; 3]);
            let read = peer.read(&Case::of(&[whole]), false, true)?;
            let bytes: Vec<u8> = expected.iter().flat_map(|e| e.to_le_bytes()).collect();
            read.and_then(|(_, crc)| crc) == Some(crate::crc32(&bytes))
        };
        if is_equal {
            return Ok(());
        }
        Err(format!("{name}: tensorstore wrote other elements").into())
    }
}

type Codecs = ShardingCodecConfiguration;

/// Measures whole arrays.
fn whole(run: &mut Run<'_>, sync: bool) -> Result<Vec<Value>> {
    let sinks: &[&'static str] = if sync {
        &["files"]
    } else {
        &["files", "memory"]
    };
    let name = |chain: &str, edge: u64, sink: &str| format!("write {chain}, {edge}^3, {sink}");
    let rows: Vec<_> = WHOLE
        .into_iter()
        .flat_map(|row| sinks.iter().map(move |sink| (row, *sink)))
        .filter(|((chain, edge, _), sink)| (run.wants)(&name(chain, *edge, sink)))
        .collect();
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut table = Table::new(&["zarrs", "tensorstore", "limit"]);
    for ((chain, edge, [over_tensorstore, over_zarrs]), sink) in rows {
        let layout = Layout {
            chain,
            subchunk: edge,
            shard: ("32", [SHARD; 3]),
            sink,
        };
        let name = name(chain, edge, sink);
        let seconds = measure_whole(run, &name, &layout, sync)?;
        let goals = [over_zarrs, over_tensorstore, LIMIT];
        let others: Vec<_> = std::iter::zip(&seconds[1..], goals)
            .map(|(seconds, goal)| Other {
                seconds,
                goal: (!sync).then_some(goal),
            })
            .collect();
        let parameters = json!({
            "written": "whole", "chain": chain, "subchunk": edge, "sink": sink, "sync": sync,
        });
        table.add(&name, parameters, &seconds[0], &others);
    }
    Ok(table.end())
}

/// Returns the seconds of a call of each contender in each round: this crate, zarrs, tensorstore, the limit.
fn measure_whole(
    run: &mut Run<'_>,
    name: &str,
    layout: &Layout,
    sync: bool,
) -> Result<Vec<Vec<f64>>> {
    let codecs = chains::configuration(&chains::codecs(layout.chain)?, layout.subchunk)?;
    let is_on_files = layout.sink == "files";
    let folder = is_on_files.then_some(run.folder);
    let whole = ArraySubset::new_with_shape(vec![EDGE; 3]);
    let ours = Written::new(folder, &codecs, By::BoxWriter(ShardUpdate::Rewrite, sync))?;
    let zarrs = Written::new(folder, &codecs, By::Zarrs)?;
    for (who, written) in [("this crate", &ours), ("zarrs", &zarrs)] {
        written.write(&whole, run.elements)?;
        if !written.has(run.elements)? {
            return Err(format!("{name}: {who} wrote other elements").into());
        }
    }
    if let Some(peer) = run.open_peer(&ours, is_on_files, sync)? {
        peer.store()?;
    }
    run.check_peer(name, run.elements, &codecs)?;
    let mut limit = if sync {
        None
    } else {
        let shards = ours.shards()?;
        let shards = shards.into_iter().map(|(subset, encoded)| {
            let elements = elements_of(run.elements, &[subset]);
            LimitShard {
                decoded: bytemuck::cast_slice(&elements).to_vec(),
                encoded,
            }
        });
        let folder = folder.map(TempDir::new_in).transpose()?;
        Some(WritingLimit::new(layout, shards.collect(), folder)?)
    };
    in_turns(run.rounds.unwrap_or(ROUNDS), 4, |who, _| {
        run.warm()?;
        let clock = Instant::now();
        match who {
            0 => ours.write(&whole, run.elements)?,
            1 => zarrs.write(&whole, run.elements)?,
            2 => return run.peers.first_mut().map(Peer::store).transpose(),
            _ => return limit.as_mut().map(WritingLimit::write).transpose(),
        }
        Ok(Some(clock.elapsed().as_secs_f64()))
    })
}

/// Writes boxes at places: first all with the lowest bit changed, then all with the second bit changed, and so on in
/// turns. `Updates` in peer.py does the same.
struct Updates<'u> {
    places: &'u [ArraySubset],
    /// The elements of each place, in both versions.
    values: &'u [Vec<Vec<u16>>; 2],
    calls: usize,
}

impl Updates<'_> {
    /// Makes calls for at least `turn`, and at least `least` of them. Returns the seconds of a call.
    fn write(&mut self, written: &Written, turn: Duration, least: usize) -> Result<f64> {
        let (before, clock) = (self.calls, Instant::now());
        while self.calls < before + least || clock.elapsed() < turn {
            let (version, place) = (
                self.calls / self.places.len() % 2,
                self.calls % self.places.len(),
            );
            written.write(&self.places[place], &self.values[version][place])?;
            self.calls += 1;
        }
        Ok(clock.elapsed().as_secs_f64() / (self.calls - before) as f64)
    }
}

/// Measures parts of stored shards, on files.
fn parts(run: &mut Run<'_>) -> Result<Vec<Value>> {
    let updates = [
        ("rewrite", ShardUpdate::Rewrite),
        ("in place", ShardUpdate::InPlace),
    ];
    let name = |chain: &str, part: &str, how: &str| format!("write {chain}, {part}, {how}");
    let mut table = None;
    for chain in ["none", "zstd-1"] {
        for (part, shape, steps) in PARTS {
            let wanted = |how: &str| (run.wants)(&name(chain, part, how));
            let updates: Vec<_> = updates.into_iter().filter(|(how, _)| wanted(how)).collect();
            if updates.is_empty() {
                continue;
            }
            let table = table.get_or_insert_with(|| Table::new(&["zarrs", "tensorstore"]));
            let by: Vec<_> = updates.iter().map(|(_, update)| *update).collect();
            let places = places(shape, steps);
            let seconds = measure_part(run, &name(chain, part, ""), chain, &places, &by)?;
            let (ours, others) = seconds.split_at(updates.len());
            for ((how, _), ours) in updates.iter().zip(ours) {
                let goal = Some(1.0);
                let others: Vec<_> = others
                    .iter()
                    .map(|seconds| Other { seconds, goal })
                    .collect();
                let parameters = json!({
                    "written": part, "chain": chain, "subchunk": 32, "sink": "files", "update": how,
                });
                table.add(&name(chain, part, how), parameters, ours, &others);
            }
        }
    }
    Ok(table.map_or_else(Vec::new, Table::end))
}

/// Returns boxes of `shape` at places that are multiples of `steps`. They are the same in every run.
fn places(shape: [u64; 3], steps: [u64; 3]) -> Vec<ArraySubset> {
    let mut random = Microscopy::new();
    let mut place = || {
        let ranges = std::iter::zip(shape, steps).map(|(extent, step)| {
            let start = random.random() % (EDGE / step) * step;
            start..start + extent
        });
        ArraySubset::from(ranges)
    };
    let mut places = Vec::new();
    while places.len() < PLACES as usize {
        let one = place();
        // A second write to a place within a pass would write the elements of the first.
        if !places.contains(&one) {
            places.push(one);
        }
    }
    places
}

/// Returns the seconds of a call of each contender in each round: this crate with each of `updates`, zarrs,
/// tensorstore.
fn measure_part(
    run: &mut Run<'_>,
    name: &str,
    chain: &'static str,
    places: &[ArraySubset],
    updates: &[ShardUpdate],
) -> Result<Vec<Vec<f64>>> {
    let codecs = chains::configuration(&chains::codecs(chain)?, 32)?;
    let values = [1, 2].map(|mask| {
        let of_place = |place: &ArraySubset| {
            let old = elements_of(run.elements, std::slice::from_ref(place));
            old.into_iter().map(|element| element ^ mask).collect()
        };
        places.iter().map(of_place).collect::<Vec<Vec<u16>>>()
    });
    let mut expected = run.elements.to_vec();
    for (place, values) in places.iter().zip(&values[0]) {
        paste(&mut expected, place, values);
    }
    let mut contenders = Vec::new();
    let ours = updates.iter().map(|update| By::BoxWriter(*update, false));
    for by in ours.chain([By::Zarrs]) {
        let written = Written::new(Some(run.folder), &codecs, by)?;
        written.write(&ArraySubset::new_with_shape(vec![EDGE; 3]), run.elements)?;
        let mut updates = Updates {
            places,
            values: &values,
            calls: 0,
        };
        updates.write(&written, Duration::ZERO, places.len())?;
        if !written.has(&expected)? {
            return Err(format!("{name}{by:?} wrote other elements").into());
        }
        contenders.push((written, updates));
    }
    if let Some(peer) = run.open_peer(&contenders[0].0, true, false)? {
        peer.store()?;
        peer.write_places(places, Duration::ZERO, places.len())?;
    }
    run.check_peer(name, &expected, &codecs)?;
    let count = contenders.len() + 1;
    in_turns(run.rounds.unwrap_or(ROUNDS), count, |who, _| {
        match (contenders.get_mut(who), run.peers.first_mut()) {
            (Some((written, updates)), _) => updates.write(written, TURN, 1).map(Some),
            (None, Some(peer)) => peer.write_places(places, TURN, 1),
            (None, None) => Ok(None),
        }
    })
}

/// Replaces the elements of a box of the array.
fn paste(elements: &mut [u16], subset: &ArraySubset, values: &[u16]) {
    let [z, y, x] = [0, 1, 2].map(|axis| subset.start()[axis] as usize);
    let [_, height, width] = [0, 1, 2].map(|axis| subset.shape()[axis] as usize);
    let edge = EDGE as usize;
    for (number, row) in values.chunks_exact(width).enumerate() {
        let at = ((z + number / height) * edge + y + number % height) * edge + x;
        elements[at..at + width].copy_from_slice(row);
    }
}
