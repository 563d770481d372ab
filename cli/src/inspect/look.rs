//! The summary that a survey keeps of a shard whose index was read.

use zarrs_cuda::Options;
use zarrs_cuda::maintenance::{ExtentProblem, Inspection, RecoveryOutcome};

/// The state of a shard. The states are in order, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// The index of the shard was not read.
    NotRead,
    Whole,
    /// The shard has more unused bytes than the default options allow.
    Loose,
    /// Subchunks wait beside the shard in a frame.
    Waiting,
    /// An update of the shard was interrupted.
    Torn,
    /// The index of the shard is invalid, or the shard cannot be repaired.
    Damaged,
}

impl State {
    pub(super) const ALL: [Self; 6] = [
        Self::NotRead,
        Self::Whole,
        Self::Loose,
        Self::Waiting,
        Self::Torn,
        Self::Damaged,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NotRead => "not read",
            Self::Whole => "whole",
            Self::Loose => "to compact",
            Self::Waiting => "to consolidate",
            Self::Torn => "to recover",
            Self::Damaged => "damaged",
        }
    }
}

/// The use of a run of bytes of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Unused,
    Live,
    Index,
    Record,
}

/// The summary of a shard whose index was read.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) state: State,
    pub(super) live: u64,
    pub(super) stored: u64,
    /// The problem of the shard, for people.
    pub(super) problem: Option<String>,
    /// The runs of bytes of the shard, from the front to the back: the use of each run, and its length in
    /// bytes.
    pub(super) strip: Vec<(Kind, u64)>,
    /// The size of each subchunk plus one, in C order, and 0 for an empty subchunk. The list is empty if
    /// sizes are not known, or were left out.
    pub(super) subchunks: Vec<u64>,
}

impl Look {
    /// The most runs of bytes in a strip.
    const MOST_RUNS: usize = 1_000;

    pub(super) fn of(shard: &Inspection) -> Self {
        let problems: Vec<_> = shard
            .subchunks
            .iter()
            .flatten()
            .filter_map(|s| s.problem)
            .collect();
        let is_broken = problems
            .iter()
            .any(|problem| !matches!(problem, ExtentProblem::Over(_)));
        let (state, problem) = match &shard.recovery {
            RecoveryOutcome::Undone => (State::Torn, Some("a torn update would be undone".into())),
            RecoveryOutcome::Completed => {
                (State::Torn, Some("a torn update would be completed".into()))
            }
            RecoveryOutcome::Erased => (
                State::Torn,
                Some("it was never complete, and would be erased".into()),
            ),
            _ if shard.index_problem.is_some() => {
                let problem = shard.index_problem.as_deref().unwrap_or_default();
                (
                    State::Damaged,
                    Some(format!("the index is invalid: {problem}")),
                )
            }
            RecoveryOutcome::Unrecoverable { reason } => (State::Damaged, Some(reason.clone())),
            _ if is_broken => {
                let problem = "subchunks have bytes of the index, or lie outside";
                (State::Damaged, Some(problem.into()))
            }
            _ if shard.unused_fraction() > Options::default().max_dead_fraction() => {
                (State::Loose, None)
            }
            _ => (State::Whole, None),
        };
        Self {
            state,
            live: shard.live,
            stored: shard.num_stored() as u64,
            problem,
            strip: strip(shard),
            subchunks: shard
                .subchunks
                .iter()
                .map(|subchunk| subchunk.map_or(0, |subchunk| subchunk.size.saturating_add(1)))
                .collect(),
        }
    }

    /// Removes the sizes of single subchunks if they take more than `room` bytes. Otherwise subtracts these
    /// bytes from `room`.
    pub(super) fn fit(&mut self, room: &mut usize) {
        let needed = 3 * self.subchunks.len();
        match room.checked_sub(needed) {
            Some(rest) => *room = rest,
            None => self.subchunks = Vec::new(),
        }
    }
}

/// Returns the runs of bytes of a shard, from the front to the back. More than [`Look::MOST_RUNS`] runs are
/// merged into the cells of [`coarse`].
fn strip(shard: &Inspection) -> Vec<(Kind, u64)> {
    let mut parts: Vec<(u64, u64, Kind)> = Vec::new();
    let subchunks = shard.subchunks.iter().flatten();
    let inside = subchunks.filter(|s| s.problem != Some(ExtentProblem::Outside));
    parts.extend(inside.map(|s| (s.offset, s.offset + s.size, Kind::Live)));
    let records = shard.records.iter();
    parts.extend(records.map(|r| (r.offset, (r.offset + 64).min(shard.size), Kind::Record)));
    parts.extend(
        shard
            .index
            .iter()
            .map(|index| (index.start, index.end, Kind::Index)),
    );
    parts.sort_by_key(|&(start, end, _)| (start, end));
    let mut strip: Vec<(Kind, u64)> = Vec::new();
    let mut add = |kind, len| match strip.last_mut() {
        _ if len == 0 => {}
        Some((last, so_far)) if *last == kind => *so_far += len,
        _ => strip.push((kind, len)),
    };
    let mut at = 0;
    for (start, end, kind) in parts {
        add(Kind::Unused, start.saturating_sub(at));
        add(kind, end.saturating_sub(start.max(at)));
        at = at.max(end);
    }
    add(Kind::Unused, shard.size.saturating_sub(at));
    if strip.len() > Look::MOST_RUNS {
        return coarse(&strip, shard.size);
    }
    strip
}

/// Returns the strip in cells of equal length. The use of a cell is that of most of its bytes.
fn coarse(strip: &[(Kind, u64)], size: u64) -> Vec<(Kind, u64)> {
    let cell = size.div_ceil(Look::MOST_RUNS as u64).max(1);
    let mut cells: Vec<[u64; 4]> = vec![[0; 4]; usize::try_from(size.div_ceil(cell)).unwrap_or(0)];
    let mut at = 0;
    for &(kind, len) in strip {
        let end = at + len;
        while at < end {
            let number = at / cell;
            let next = end.min((number + 1) * cell);
            if let Some(cell) = usize::try_from(number).ok().and_then(|n| cells.get_mut(n)) {
                cell[kind as usize] += next - at;
            }
            at = next;
        }
    }
    let kinds = [Kind::Unused, Kind::Live, Kind::Index, Kind::Record];
    let mut rest = size;
    cells
        .iter()
        .map(|bytes| {
            let most = (0..4).max_by_key(|&kind| bytes[kind]).unwrap_or(0);
            let len = cell.min(rest);
            rest -= len;
            (kinds[most], len)
        })
        .collect()
}
