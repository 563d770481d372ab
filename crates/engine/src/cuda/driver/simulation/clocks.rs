//! Happens-before, by vector clocks.
//!
//! A component of a clock belongs to a stream, and counts the operations in it. The host has no
//! component: it is one party per device, whose calls are ordered as they arrive, so that whatever
//! it did is before everything that is enqueued afterwards. That is right for one thread; several
//! threads order themselves by means (locks, channels) which a driver cannot see, so a missing
//! order among them is not found here.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cuda::driver::Access;

/// An operation: the `time`-th in a stream, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// The number of the stream's component.
    pub(super) stream: usize,
    pub(super) time: u64,
}

/// How far into each stream somebody has waited.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// Returns whether the operation is before whatever has this clock.
    pub(super) fn knows(&self, stamp: Stamp) -> bool {
        self.0.get(stamp.stream).is_some_and(|t| *t >= stamp.time)
    }

    pub(super) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, other) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*other);
        }
    }

    /// Includes the operation itself.
    pub(super) fn include(&mut self, stamp: Stamp) {
        if self.0.len() <= stamp.stream {
            self.0.resize(stamp.stream + 1, 0);
        }
        self.0[stamp.stream] = self.0[stamp.stream].max(stamp.time);
    }
}

/// The words that name an operation in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) what: &'static str,
    pub(super) name: &'static str,
}

/// An operation that touched bytes of an allocation.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub(super) stamp: Stamp,
    pub(super) label: Label,
    /// All bytes that the operation declared.
    pub(super) bytes: Range<usize>,
    pub(super) access: Access,
}

/// The last operation that wrote some bytes, and the operations that have read these bytes since.
#[derive(Clone, Debug)]
struct Segment {
    end: usize,
    write: Option<Touch>,
    reads: Vec<Touch>,
}

impl Segment {
    /// Forgets what is before everything to come.
    fn prune(&mut self, host: &Clock) {
        self.write.take_if(|w| host.knows(w.stamp));
        self.reads.retain(|r| !host.knows(r.stamp));
    }

    fn is_empty(&self) -> bool {
        self.write.is_none() && self.reads.is_empty()
    }
}

/// The operations that touched an allocation, as far as they can still conflict with another.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The segments by their first byte. They do not overlap.
    segments: BTreeMap<usize, Segment>,
    /// How many segments there may be before it is worth to look for some to forget.
    limit: usize,
}

/// Segments that an allocation may have without being looked through.
const FEW: usize = 32;

impl History {
    /// Returns the first operation that conflicts with an access to `bytes` by somebody who has
    /// waited as far as `clock`: it touched one of the bytes, one of the two writes, and it is not
    /// before.
    pub(super) fn conflict(
        &self,
        bytes: &Range<usize>,
        writes: bool,
        clock: &Clock,
    ) -> Option<&Touch> {
        let before = self.segments.range(..bytes.start).next_back();
        let before = before.filter(|(_, segment)| segment.end > bytes.start);
        before
            .into_iter()
            .chain(self.segments.range(bytes.clone()))
            .find_map(|(_, segment)| {
                let reads = segment.reads.iter().filter(|_| writes);
                segment
                    .write
                    .iter()
                    .chain(reads)
                    .find(|t| !clock.knows(t.stamp))
            })
    }

    /// Enters an operation that conflicts with none, and whose stream's clock is `clock`.
    pub(super) fn enter(&mut self, touch: &Touch, clock: &Clock, host: &Clock) {
        let bytes = touch.bytes.clone();
        if bytes.is_empty() {
            return;
        }
        self.split(bytes.start);
        self.split(bytes.end);
        let inside: Vec<usize> = self
            .segments
            .range(bytes.clone())
            .map(|(start, _)| *start)
            .collect();
        if touch.access == Access::Read {
            let mut gap = bytes.start;
            for start in inside {
                if gap < start {
                    self.read(gap, start, touch);
                }
                if let Some(segment) = self.segments.get_mut(&start) {
                    segment.prune(host);
                    // An operation that follows this read also follows the reads before it.
                    segment.reads.retain(|r| !clock.knows(r.stamp));
                    segment.reads.push(touch.clone());
                    gap = segment.end;
                }
            }
            if gap < bytes.end {
                self.read(gap, bytes.end, touch);
            }
        } else {
            // An operation that follows this write also follows the earlier accesses to these
            // bytes, because this write follows them.
            for start in inside {
                self.segments.remove(&start);
            }
            let segment = Segment {
                end: bytes.end,
                write: Some(touch.clone()),
                reads: Vec::new(),
            };
            self.segments.insert(bytes.start, segment);
        }
        if self.segments.len() > self.limit.max(FEW) {
            self.prune(host);
            self.limit = 2 * self.segments.len();
        }
    }

    /// Forgets what is before everything to come.
    fn prune(&mut self, host: &Clock) {
        self.segments.retain(|_, segment| {
            segment.prune(host);
            !segment.is_empty()
        });
    }

    fn read(&mut self, start: usize, end: usize, touch: &Touch) {
        let segment = Segment {
            end,
            write: None,
            reads: vec![touch.clone()],
        };
        self.segments.insert(start, segment);
    }

    /// Lets no segment lie on both sides of `at`.
    fn split(&mut self, at: usize) {
        if let Some((_, segment)) = self.segments.range_mut(..at).next_back()
            && segment.end > at
        {
            let right = segment.clone();
            segment.end = at;
            self.segments.insert(at, right);
        }
    }
}
