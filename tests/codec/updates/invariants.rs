//! The invariants of a partial write beside the data: the places of bytes, and the requests to the
//! store.

use std::ops::Range;

use zarrs::array::codec::ShardingIndexLocation;
use zarrs_cuda::WriteStrategy;

use super::case::{Case, Element, NUM_SHARDS, Outer};
use super::step::{Step, What};
use super::subject::{Change, Setting};
use zarrs_cuda_testing::index::EMPTY;
use zarrs_cuda_testing::stores::watched::Call;

macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(format!($($message)*));
        }
    };
}

/// The layout of an object, parsed without a codec.
struct Layout<'a> {
    object: &'a [u8],
    index: Range<usize>,
    entries: Vec<[u64; 2]>,
}

impl<'a> Layout<'a> {
    fn new(case: &Case, object: &'a [u8]) -> Self {
        let num_subchunks = case.shards().num_subchunks();
        let len = case.index.size(num_subchunks);
        let index = match case.index.location {
            ShardingIndexLocation::Start => 0..len,
            ShardingIndexLocation::End => object.len() - len..object.len(),
        };
        Self {
            object,
            index,
            entries: case.index.entries(object, num_subchunks),
        }
    }

    fn extents(&self) -> impl Iterator<Item = Range<usize>> {
        let stored = self.entries.iter().filter(|entry| **entry != EMPTY);
        stored.map(|entry| {
            let [offset, size] = entry.map(|word| usize::try_from(word).unwrap());
            offset..offset + size
        })
    }

    /// The offset of the unused bytes after the last subchunk.
    fn tail(&self) -> usize {
        let first = if self.index.start == 0 {
            self.index.end
        } else {
            0
        };
        self.extents()
            .map(|extent| extent.end)
            .fold(first, usize::max)
    }

    /// The number of used bytes.
    fn live(&self) -> usize {
        self.index.len() + self.extents().map(|extent| extent.len()).sum::<usize>()
    }
}

/// The sizes of shards that were created with slots, and since then only updated with slots.
#[derive(Debug, Default)]
pub(crate) struct Slots([Option<usize>; NUM_SHARDS]);

/// Checks the invariants after `step`, which made `change`.
pub(crate) fn check(
    case: &Case,
    setting: Setting,
    step: &Step,
    change: &Change,
    model: &[Element],
    slots: &mut Slots,
) -> Result<(), String> {
    let slots = &mut slots.0[change.shard];
    if case.outer == Outer::Compressor || case.chain.name == "strings" {
        return Ok(());
    }
    let new = change.new.as_ref().map(|object| Layout::new(case, object));
    if let Some(new) = &new {
        tidy(new)?;
        if matches!(step.what, What::Compact(_)) {
            let (size, live) = (new.object.len(), new.live());
            ensure!(size == live, "{size} bytes, of which {live} are used");
        }
    }
    let Some(written) = &change.written else {
        *slots = None;
        return Ok(());
    };
    let touched = Touched::new(case, written, &step.what);
    if let Some(new) = &new {
        elided(new, &touched, case, setting, model)?;
    } else {
        let empty = model.iter().all(|element| *element == case.fill());
        ensure!(empty, "the object is gone");
    }
    let old = change.old.as_ref().map(|object| Layout::new(case, object));
    requests(case, step, change, new.as_ref())?;
    reads(old.as_ref(), &touched, &change.calls)?;
    writes(case, change, old.as_ref(), new.as_ref())?;

    let Some(new) = new else {
        *slots = None;
        return Ok(());
    };
    let size = new.object.len();
    *slots = match (step.strategy, &old, *slots) {
        (WriteStrategy::Slots, None, _) => Some(size),
        (WriteStrategy::Slots, Some(_), Some(before)) => {
            ensure!(
                size == before,
                "a shard of slots grew from {before} to {size}"
            );
            Some(size)
        }
        _ => None,
    };
    let Some(old) = old else { return Ok(()) };
    kept(case, step.strategy, &old, &new)?;
    let in_place = [WriteStrategy::InPlace, WriteStrategy::Auto].contains(&step.strategy);
    let full = |layout: &Layout| layout.entries.iter().all(|entry| *entry != EMPTY);
    if in_place && case.chain.fixed && full(&old) && full(&new) {
        let before = old.object.len();
        ensure!(
            size == before,
            "in place, the shard grew from {before} to {size}"
        );
    }
    Ok(())
}

/// Checks that extents lie in the object, do not overlap, and do not touch the index.
fn tidy(new: &Layout) -> Result<(), String> {
    let mut extents: Vec<_> = new.extents().chain([new.index.clone()]).collect();
    extents.sort_by_key(|extent| (extent.start, extent.end));
    let ends = extents.last().is_some_and(|e| e.end <= new.object.len());
    ensure!(
        ends,
        "{extents:?} in an object of {} bytes",
        new.object.len()
    );
    let overlap = extents.windows(2).find(|pair| pair[0].end > pair[1].start);
    ensure!(overlap.is_none(), "extents overlap: {overlap:?}");
    Ok(())
}

/// The elements of each subchunk that were written.
struct Touched {
    /// For each subchunk: the number of written elements, and of all elements.
    counts: Vec<(usize, usize)>,
    /// The elements were named one by one, so the codec does not check whether they are all of
    /// them.
    points: bool,
}

impl Touched {
    fn new(case: &Case, written: &[usize], what: &What) -> Self {
        let shards = case.shards();
        let each = case.num_elements() / shards.num_subchunks();
        let mut counts = vec![(0, each); shards.num_subchunks()];
        let mut written = written.to_vec();
        written.sort_unstable();
        written.dedup();
        let indices: Vec<_> = zarrs_cuda_testing::all_indices(&case.shape).collect();
        for number in written {
            counts[case.subchunk_of(&indices[number])].0 += 1;
        }
        let points = matches!(what, What::Points(..));
        Self { counts, points }
    }

    fn is_straddled(&self, subchunk: usize) -> bool {
        let (written, of) = self.counts[subchunk];
        written > 0 && (written < of || self.points)
    }
}

/// Checks that nonempty subchunks are stored, and that written subchunks are not stored if they are
/// empty.
fn elided(
    new: &Layout,
    touched: &Touched,
    case: &Case,
    setting: Setting,
    model: &[Element],
) -> Result<(), String> {
    let mut empty = vec![true; new.entries.len()];
    for (indices, element) in zarrs_cuda_testing::all_indices(&case.shape).zip(model) {
        empty[case.subchunk_of(&indices)] &= *element == case.fill();
    }
    for (subchunk, entry) in new.entries.iter().enumerate() {
        let stored = *entry != EMPTY;
        ensure!(
            stored || empty[subchunk],
            "subchunk {subchunk} is not stored"
        );
        let written = touched.counts[subchunk].0 > 0;
        ensure!(
            !stored || !written || !empty[subchunk] || setting.store_empty_chunks,
            "subchunk {subchunk} is empty, and stored"
        );
    }
    Ok(())
}

/// Checks that compaction is requested if a quarter of the object is unused, and more than an
/// update needs.
fn requests(case: &Case, step: &Step, change: &Change, new: Option<&Layout>) -> Result<(), String> {
    let Some(new) = new else { return Ok(()) };
    if matches!(step.what, What::ArraySubset(..)) {
        return Ok(()); // the step may affect two shards
    }
    let (size, dead) = (new.object.len(), new.object.len() - new.live());
    let requests = change.requests.iter();
    let requests: Vec<_> = requests.map(|r| (r.size, r.dead)).collect();
    let wrote = change.calls.iter().any(|call| call.steps() > 0);
    let reserve = 2 * 64 + case.index.size(case.shards().num_subchunks());
    let too_many = dead > reserve && 4 * dead > size;
    let asks = wrote && step.strategy != WriteStrategy::Slots && too_many;
    let expected = asks.then_some((size as u64, dead as u64));
    let expected: Vec<_> = expected.into_iter().collect();
    ensure!(
        requests == expected,
        "compaction was asked for {requests:?}, and not {expected:?}"
    );
    Ok(())
}

/// Reads are limited. The index, the record and index at the end, and the bytes after the last
/// subchunk may be read. Apart from these only straddled subchunks are read, in one request. If
/// unused bytes could hide a torn update, the whole shard may be read.
fn reads(old: Option<&Layout>, touched: &Touched, calls: &[Call]) -> Result<(), String> {
    // Later reads are checks of this test.
    let last = calls.iter().rposition(|call| call.steps() > 0).unwrap_or(0);
    let reads = calls[..last].iter().filter_map(|call| match call {
        Call::Read(ranges) => Some(ranges),
        _ => None,
    });
    let is_free = |range: &Range<u64>| {
        let (index, tail) = old.map_or((0..0, 0), |old| (old.index.clone(), old.tail()));
        let in_index = index.start as u64 <= range.start && range.end <= index.end as u64;
        let at_end = old.is_some_and(|old| {
            let (len, index_len) = (old.object.len(), old.index.len());
            let from_start = range.start == 0 && old.live() < len;
            let from_record = range.start >= len.saturating_sub(64 + index_len) as u64;
            let first = if old.index.start == 0 { index_len } else { 0 };
            let tiny = old.tail() < 64 + first && range.start == first as u64;
            range.end == len as u64 && (from_start || from_record || tiny)
        });
        range.is_empty() || in_index || at_end || range.start >= tail as u64
    };
    let data = reads.map(|ranges| {
        let ranges = ranges.iter().filter(|range| !is_free(range));
        ranges.cloned().collect::<Vec<_>>()
    });
    let data: Vec<_> = data.filter(|ranges| !ranges.is_empty()).collect();
    // The subchunks are read again with the index, to see that they have not changed. They are read
    // once more if the store could not read as much of the shard's end as requested.
    let again = data.len() <= 3 && data.iter().all(|ranges| *ranges == data[0]);
    ensure!(data.len() <= 1 || again, "several reads: {data:?}");
    let Some(old) = old else {
        ensure!(data.is_empty(), "reads of a shard that is not there");
        return Ok(());
    };
    let straddled = old.entries.iter().enumerate();
    let straddled: Vec<_> = straddled
        .filter(|(subchunk, entry)| **entry != EMPTY && touched.is_straddled(*subchunk))
        .map(|(_, [offset, size])| *offset..offset + size)
        .collect();
    // Neighbouring subchunks are read as one.
    for range in data.into_iter().flatten() {
        let begins = straddled.iter().any(|extent| extent.start == range.start);
        let ends = straddled.iter().any(|extent| extent.end == range.end);
        ensure!(
            begins && ends,
            "{range:?} was read, and straddled are {straddled:?}"
        );
    }
    Ok(())
}

/// Checks the number of writes: one if the index stays or moves with the end of the object,
/// otherwise at most two.
fn writes(
    case: &Case,
    change: &Change,
    old: Option<&Layout>,
    new: Option<&Layout>,
) -> Result<(), String> {
    let changes: Vec<_> = change.calls.iter().filter(|c| c.steps() > 0).collect();
    let Some(new) = new else {
        ensure!(changes.len() <= 1, "more than an erasure: {changes:?}");
        return Ok(());
    };
    let partial = changes.iter().all(|call| matches!(call, Call::Write(_)));
    ensure!(partial, "not a partial write: {changes:?}");
    let before = old.map_or(0, |old| old.object.len());
    let same_index = old.is_some_and(|old| {
        old.index == new.index && old.object[old.index.clone()] == new.object[new.index.clone()]
    });
    let grew = new.object.len() > before;
    let at_end = case.index.location == ShardingIndexLocation::End;
    let most = if (at_end && grew) || (same_index && !grew) {
        1
    } else {
        2
    };
    ensure!(
        changes.len() <= most,
        "more than {most} writes: {changes:?}"
    );
    Ok(())
}

/// Checks the bytes that a strategy promises not to overwrite.
fn kept(case: &Case, strategy: WriteStrategy, old: &Layout, new: &Layout) -> Result<(), String> {
    let at_end = case.index.location == ShardingIndexLocation::End;
    let unchanged = |range: Range<usize>| old.object[range.clone()] == new.object[range];
    let body = if at_end { 0 } else { old.index.len() };
    if strategy == WriteStrategy::Append {
        ensure!(
            unchanged(body..old.object.len()),
            "something before the old end changed"
        );
    }
    if strategy == WriteStrategy::Auto && !case.chain.in_place {
        let index = at_end.then(|| old.index.clone());
        for live in old.extents().chain(index) {
            ensure!(unchanged(live.clone()), "{live:?} was used, and changed");
        }
    }
    Ok(())
}
