//! Boxes of the array, in memory of the application on a device.
//!
//! ```text
//! check      shapes, strides, overlaps; pointers by the driver; streams that are captured
//! groups     boxes of one shape, order of axes and stream are read together
//! pieces     a group is read in pieces of at most [`PIECE`] bytes
//! piece      shards -> a buffer of ours, dense, in the order of axes of the places; the host waits
//!            the buffer -> the places, in the application's stream
//! ```
//!
//! No element of a piece is written to the application's memory before all elements of the piece are right.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use zarrs::array::ArraySubset;
use zarrs_storage::ReadableStorageTraits;

use super::device::{device_error, place_error, product};
use super::output::check;
use super::request::{self, WantedBox};
use super::{ArrayReader, ReaderError, extents};
use crate::plan::DeviceReads;
use zarrs_cuda_engine::contract::DeviceArray;
use zarrs_cuda_engine::layout;

/// The most bytes that are read before they are copied to the application, unless one shard has more.
const PIECE: usize = 256 << 20;

/// Memory of the application on a CUDA device, for the elements of a box.
///
/// ```
/// use zarrs::storage::store::MemoryStore;
/// use zarrs_cuda::reader::{ArrayReader, DevicePlace, ReaderError};
///
/// /// Reads 64 × 64 elements of uint16 to `pointer` on device 0, in the order of `stream`.
/// ///
/// /// # Safety
/// /// The memory has 64 · 64 · 2 bytes. Only work in `stream`, which exists, uses the memory.
/// unsafe fn read(
///     reader: &ArrayReader<MemoryStore>,
///     pointer: u64,
///     stream: u64,
/// ) -> Result<(), ReaderError> {
///     let strides = vec![64 * 2, 2];
///     let place = DevicePlace { device: 0, pointer, len: 64 * 64 * 2, strides, stream };
///     // SAFETY: the caller keeps the conditions.
///     unsafe { reader.read_into_device(&[[0..64, 0..64].into()], &[place]) }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlace {
    /// The number of the device, as the driver counts in this process.
    pub device: usize,
    /// The address of the first element, in the primary context of the device: what `cudaMalloc` returns, and
    /// `cuMemAlloc` in that context.
    pub pointer: u64,
    /// The number of bytes from the first element on that belong to the place.
    pub len: usize,
    /// The distance from one element to the next along each axis, in bytes. As those of
    /// [`Output::strided`](super::Output::strided), elements may not overlap.
    pub strides: Vec<usize>,
    /// The stream that orders the use of the memory: a `CUstream` or `cudaStream_t`; 0 for the default stream.
    pub stream: u64,
}

/// A part of a box, and its place.
#[derive(Debug)]
struct PlacedPart {
    subset: ArraySubset,
    shape: Vec<usize>,
    place: DeviceArray,
    stream: u64,
}

/// Parts of one shape, order of axes and stream.
#[derive(Debug)]
struct PartGroup<'a> {
    shape: &'a [usize],
    /// The strides of a part in our buffer, in bytes.
    strides: Vec<usize>,
    /// The number of bytes of a part.
    bytes: usize,
    stream: u64,
    parts: Vec<&'a PlacedPart>,
}

impl<TStorage: ?Sized + ReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Reads each of `boxes` into its place among `places`, which are memory of one CUDA device. The device decodes
    /// as [`read_device`](Self::read_device) says.
    ///
    /// The elements are written behind the work that is in the stream of a place now, and before work that is enqueued
    /// there later. The call returns when the elements are right and their copies to the places are enqueued. It waits
    /// for streams of the application if the elements on their way there, and the next piece, have more than 512 MiB. A
    /// piece has boxes of equal shape, order of axes and stream, up to 256 MiB of them, or one row of shards across the
    /// first axis if that is more. The elements on their way lie in memory of the device beside the places.
    ///
    /// # Errors
    /// - [`ReaderError::Output`] if there is not one place for each box, if strides do not fit, or if two places may
    ///   overlap. Places of equal strides may lie between each other.
    /// - [`ReaderError::DevicePlace`] if places are not memory of one device, or if a stream is being captured into a
    ///   graph.
    /// - The errors of [`read_device`](Self::read_device).
    /// - The errors of [`read`](Self::read).
    ///
    /// Pieces before the one that has failed may have been written, each behind the work in its stream. After an error
    /// the call waits for them, for [`Options::with_device_timeout`](crate::Options::with_device_timeout) at most. If they
    /// are not there then, the error is [`ReaderError::Device`], and [`ReaderError::device_may_write`] returns true: the
    /// places must not be freed or used again before the process ends.
    ///
    /// # Safety
    /// The streams belong to the primary context of the device, and are neither destroyed nor captured during the call.
    /// Nothing uses the places but work that is ordered by their streams. The places are not freed before that work is
    /// complete.
    pub unsafe fn read_into_device(
        &self,
        boxes: &[ArraySubset],
        places: &[DevicePlace],
    ) -> Result<(), ReaderError> {
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { self.read_pieces_into_device(boxes, places, PIECE) }
    }

    /// Reads pieces of at most `most` bytes: see [`read_into_device`](Self::read_into_device).
    ///
    /// # Safety
    /// The requirements of [`read_into_device`](Self::read_into_device).
    pub(crate) unsafe fn read_pieces_into_device(
        &self,
        boxes: &[ArraySubset],
        places: &[DevicePlace],
        most: usize,
    ) -> Result<(), ReaderError> {
        let codec = self.codec_for_device()?;
        self.check_newer_subchunks(true)?;
        let size = self.element_size()?;
        let parts = self.check_places(boxes, places, size)?;
        let Some(first) = parts.first() else {
            return Ok(());
        };
        let device = places.first().map(|place| place.device);
        let sample = [WantedBox {
            subset: first.subset.clone(),
            offset: 0,
        }];
        let strides = layout::strides(&first.shape, size);
        let (sharding, reads) = self.device_reads(codec, &sample, &strides, device)?;
        check_memory(&reads, &parts)?;
        let depth = sharding.grid.shard().first().copied().unwrap_or(1);
        let parts: Vec<PlacedPart> = parts
            .into_iter()
            .flat_map(|part| part.cut(size, depth, most))
            .collect();
        let groups = groups(&parts, size);
        // All streams are checked before anything is read.
        let streams: BTreeSet<u64> = groups.iter().map(|group| group.stream).collect();
        // SAFETY: this function has the same requirements, which its caller keeps.
        let way = unsafe { reads.hand_over(streams, most.saturating_mul(2)) };
        let mut way = way.map_err(|error| place_error(&error))?;
        let read = groups.iter().try_for_each(|group| {
            let at_once = (most / group.bytes.max(1)).max(1);
            for piece in group.parts.chunks(at_once) {
                let buffer = way
                    .buffer(group.bytes * piece.len())
                    .map_err(|error| device_error(&error))?;
                let output = DeviceArray {
                    pointer: buffer.pointer(),
                    len: buffer.len(),
                    strides: group.strides.clone(),
                };
                let subsets = piece.iter().map(|part| part.subset.clone()).collect();
                let boxes = WantedBox::in_steps(subsets, group.bytes);
                self.read_to_device(codec, &sharding, &reads, &boxes, &output)?
                    .log();
                let copies = piece.iter().enumerate().map(|(number, part)| {
                    let from = number * group.bytes;
                    (from, group.shape, &*group.strides, &part.place)
                });
                // SAFETY: the elements of each part were checked to lie in its place, and the driver says that the place
                // is memory of the device. The caller of this function vouches for the rest.
                let copied = unsafe { way.copy(group.stream, buffer, copies) };
                copied.map_err(|error| place_error(&error))?;
            }
            Ok(())
        });
        read.map_err(|error| {
            if way.settle() {
                error
            } else {
                still_written(error)
            }
        })
    }

    /// Checks boxes and places, without the driver. Returns those that have elements.
    fn check_places(
        &self,
        boxes: &[ArraySubset],
        places: &[DevicePlace],
        size: usize,
    ) -> Result<Vec<PlacedPart>, ReaderError> {
        if boxes.len() != places.len() {
            return Err(ReaderError::Output {
                reason: format!(
                    "{} boxes for {} places: there must be one for each",
                    boxes.len(),
                    places.len()
                ),
            });
        }
        if let Some(other) = places.iter().find(|place| place.device != places[0].device) {
            return Err(ReaderError::DevicePlace {
                reason: format!(
                    "the places are memory of the devices {} and {}: read into one device at a time",
                    places[0].device, other.device
                ),
            });
        }
        let mut parts = Vec::new();
        for (number, (subset, place)) in std::iter::zip(boxes, places).enumerate() {
            request::check_inside(self.array(), Some(number), subset.start(), subset.shape())?;
            let shape = extents(subset.shape())?;
            let of_place = |error| match error {
                ReaderError::Output { reason } => ReaderError::Output {
                    reason: format!("place {number}: {reason}"),
                },
                error => error,
            };
            check(&place.strides, &shape, size, place.len).map_err(of_place)?;
            if shape.contains(&0) {
                continue;
            }
            if product(size, &shape).is_none() {
                return Err(super::no_memory_for_box(usize::MAX));
            }
            parts.push(PlacedPart {
                subset: subset.clone(),
                place: DeviceArray {
                    pointer: place.pointer,
                    len: end(&place.strides, &shape, size),
                    strides: place.strides.clone(),
                },
                shape,
                stream: place.stream,
            });
        }
        check_apart(&parts, size)?;
        Ok(parts)
    }
}

/// Returns the error of a read that has failed with `error` while elements are on their way to the places.
fn still_written(error: ReaderError) -> ReaderError {
    let why = match error {
        ReaderError::Device { reason, .. } | ReaderError::DeviceUnusable { reason } => reason,
        error => error.to_string(),
    };
    ReaderError::Device {
        reason: format!(
            "{why}; elements that were read before are still on their way, and the device may write the places: do not free or use them before the process ends"
        ),
        may_write: true,
    }
}

/// Asks the driver whether all places are memory of the device.
fn check_memory(reads: &DeviceReads, parts: &[PlacedPart]) -> Result<(), ReaderError> {
    parts.iter().try_for_each(|part| {
        let DeviceArray { pointer, len, .. } = part.place;
        reads
            .check_memory(pointer, len)
            .map_err(|error| place_error(&error))
    })
}

/// Returns the number of bytes from the first element to the end of the last one, whose strides were checked.
fn end(strides: &[usize], shape: &[usize], size: usize) -> usize {
    let steps = std::iter::zip(strides, shape).map(|(stride, extent)| stride * (extent - 1));
    steps.sum::<usize>() + size
}

impl PlacedPart {
    /// Cuts the part across its first axis, where shards of `depth` end, into pieces of at most `most` bytes. A piece has
    /// at least one row of shards.
    fn cut(self, size: usize, depth: usize, most: usize) -> Vec<Self> {
        let bytes = self.shape.iter().product::<usize>() * size;
        let (Some(&extent), Some(&stride), Some(&start)) = (
            self.shape.first(),
            self.place.strides.first(),
            self.subset.start().first(),
        ) else {
            return vec![self];
        };
        if bytes <= most {
            return vec![self];
        }
        let fitting = most / (bytes / extent);
        let step = (fitting / depth).max(1) * depth;
        // The remainder is below `depth`.
        let in_shard = usize::try_from(start % depth as u64).unwrap_or(0);
        let mut pieces = Vec::new();
        let mut first = 0;
        while first < extent {
            // Shards are aligned to multiples of their depth.
            let next = ((in_shard + first) / depth * depth + step - in_shard).min(extent);
            let mut ranges = self.subset.to_ranges();
            ranges[0] = start + first as u64..start + next as u64;
            let mut shape = self.shape.clone();
            shape[0] = next - first;
            let offset = first * stride;
            pieces.push(Self {
                subset: ArraySubset::from(ranges),
                place: DeviceArray {
                    pointer: self.place.pointer + offset as u64,
                    len: self::end(&self.place.strides, &shape, size),
                    strides: self.place.strides.clone(),
                },
                shape,
                stream: self.stream,
            });
            first = next;
        }
        pieces
    }

    /// Returns the strides of the part in our buffer: dense, in the order of axes of the place.
    fn dense(&self, size: usize) -> Vec<usize> {
        let mut axes: Vec<usize> = (0..self.shape.len()).collect();
        // If strides are equal, all axes but one have the extent 1.
        axes.sort_by_key(|axis| (self.place.strides[*axis], Reverse(*axis)));
        let (mut strides, mut step) = (vec![size; axes.len()], size);
        for axis in axes {
            strides[axis] = step;
            step *= self.shape[axis];
        }
        strides
    }
}

/// Returns the groups of `parts`, in the order of their first parts.
fn groups(parts: &[PlacedPart], size: usize) -> Vec<PartGroup<'_>> {
    let mut groups: Vec<PartGroup<'_>> = Vec::new();
    for part in parts {
        let strides = part.dense(size);
        let same = groups.iter_mut().find(|group| {
            (group.shape, &group.strides, group.stream) == (&*part.shape, &strides, part.stream)
        });
        match same {
            Some(group) => group.parts.push(part),
            None => groups.push(PartGroup {
                shape: &part.shape,
                strides,
                bytes: part.shape.iter().product::<usize>() * size,
                stream: part.stream,
                parts: vec![part],
            }),
        }
    }
    groups
}

/// Checks that no two places have an element in common.
fn check_apart(parts: &[PlacedPart], size: usize) -> Result<(), ReaderError> {
    let mut order: Vec<&PlacedPart> = parts.iter().collect();
    order.sort_by_key(|part| part.place.pointer);
    for (at, one) in order.iter().enumerate() {
        let end = one.place.pointer.saturating_add(one.place.len as u64);
        let meeting = order[at + 1..].iter();
        for other in meeting.take_while(|other| other.place.pointer < end) {
            if may_overlap(one, other, size) {
                let (one, other) = (&one.place, &other.place);
                return Err(ReaderError::Output {
                    reason: format!(
                        "the places at {:#x} and {:#x}, with strides of {:?} and {:?} bytes, may overlap: read into them by two calls",
                        one.pointer, other.pointer, one.strides, other.strides
                    ),
                });
            }
        }
    }
    Ok(())
}

/// Returns whether the places of two parts may have a byte in common. The answer is exact for places of equal strides
/// that could be parts of one array without overlaps. `other` does not begin before `one`.
fn may_overlap(one: &PlacedPart, other: &PlacedPart, size: usize) -> bool {
    if one.place.strides != other.place.strides {
        return true;
    }
    let mut axes: Vec<(usize, usize, usize)> = std::iter::zip(&one.place.strides, &one.shape)
        .zip(&other.shape)
        .map(|((stride, one), other)| (*stride, *one, *other))
        .filter(|(_, one, other)| one.max(other) > &1)
        .collect();
    axes.sort_unstable();
    let mut span = size as u128;
    for (stride, one, other) in &axes {
        if (*stride as u128) < span {
            return true;
        }
        span += *stride as u128 * (*one.max(other) as u128 - 1);
    }
    let distance = i128::from(other.place.pointer) - i128::from(one.place.pointer);
    meets(&axes, distance, size)
}

/// Returns whether elements of two boxes share a byte. The second box begins `distance` bytes behind the first. The last
/// of `axes`, which are a stride and two extents each, has the largest stride. The axes before an axis span less than its
/// stride, in both boxes together.
fn meets(axes: &[(usize, usize, usize)], distance: i128, size: usize) -> bool {
    let Some((&(stride, one, other), smaller)) = axes.split_last() else {
        return distance.unsigned_abs() < size as u128;
    };
    let stride = stride as i128;
    let nearest = distance.div_euclid(stride);
    (nearest..=nearest + 1).any(|steps| {
        // The element `a` of the first box and `b` of the second meet if `a - b` is `steps`.
        let is_possible = -(other as i128) < steps && steps < one as i128;
        is_possible && meets(smaller, distance - steps * stride, size)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    /// Strides in some order, with gaps, for boxes of two shapes.
    fn two_boxes() -> impl Strategy<Value = (Vec<usize>, [Vec<usize>; 2], u64)> {
        let axis = (1..5_usize, 1..5_usize, 0..4_usize);
        let axes = prop::collection::vec(axis, 0..4);
        (axes, any::<[bool; 2]>(), 0..400_u64).prop_map(
            |(mut axes, [is_reversed, is_nested], distance)| {
                let mut step = 2;
                let mut strides: Vec<usize> = axes
                    .iter()
                    .map(|(one, other, gap)| {
                        let stride = step + gap;
                        // Either box alone has no overlaps.
                        let most = if is_nested { *one.max(other) } else { 1 };
                        step = stride * most;
                        stride
                    })
                    .collect();
                if is_reversed {
                    strides.reverse();
                    axes.reverse();
                }
                let one = axes.iter().map(|axis| axis.0).collect();
                let other = axes.iter().map(|axis| axis.1).collect();
                (strides, [one, other], distance)
            },
        )
    }

    fn part(shape: &[usize], strides: &[usize], pointer: u64) -> PlacedPart {
        PlacedPart {
            subset: ArraySubset::new_empty(shape.len()),
            shape: shape.to_vec(),
            place: DeviceArray {
                pointer,
                len: end(strides, shape, 2),
                strides: strides.to_vec(),
            },
            stream: 0,
        }
    }

    /// Returns the addresses of all bytes, one after the other.
    fn bytes(part: &PlacedPart) -> HashSet<u64> {
        let elements: usize = part.shape.iter().product();
        let firsts = (0..elements).map(|number| {
            let mut rest = number;
            let mut at = part.place.pointer;
            for axis in (0..part.shape.len()).rev() {
                at += (rest % part.shape[axis] * part.place.strides[axis]) as u64;
                rest /= part.shape[axis];
            }
            at
        });
        firsts.flat_map(|first| [first, first + 1]).collect()
    }

    proptest! {
        #[test]
        fn places_overlap_if_they_share_a_byte((strides, shapes, distance) in two_boxes()) {
            let one = part(&shapes[0], &strides, 1000);
            let other = part(&shapes[1], &strides, 1000 + distance);
            let shared = !bytes(&one).is_disjoint(&bytes(&other));
            let mut order: Vec<_> = std::iter::zip(&strides, &shapes[0]).zip(&shapes[1]).collect();
            order.sort_unstable();
            let mut span = 2;
            let is_nested = order.iter().all(|((stride, one), other)| {
                let extent = **one.max(other);
                let fits = **stride >= span || extent == 1;
                span += **stride * (extent - 1);
                fits
            });
            let refused = check_apart(&[one, other], 2).is_err();
            // Other places are refused if their ranges of bytes meet.
            prop_assert!(refused || !shared);
            prop_assert!(!is_nested || refused == shared);
        }

        #[test]
        fn pieces_have_all_bytes_of_a_part(
            shape in prop::collection::vec(1..9_usize, 1..4),
            start in 0..20_u64,
            (depth, most) in (1..6_usize, 1..300_usize),
        ) {
            let strides = layout::strides(&shape, 2);
            let mut whole = part(&shape, &strides, 500);
            let ranges = std::iter::once(start..start + shape[0] as u64)
                .chain(shape[1..].iter().map(|extent| 0..*extent as u64));
            whole.subset = ArraySubset::from(ranges.collect::<Vec<_>>());
            let all = bytes(&whole);
            let row = shape[1..].iter().product::<usize>() * 2;
            let pieces = whole.cut(2, depth, most);
            let mut found = HashSet::new();
            for piece in &pieces {
                for byte in bytes(piece) {
                    prop_assert!(found.insert(byte));
                }
                let rows = piece.shape[0];
                let range = &piece.subset.to_ranges()[0];
                prop_assert_eq!(range.end - range.start, rows as u64);
                let is_small = rows * row <= most || rows <= depth;
                prop_assert!(is_small, "{} rows", rows);
            }
            prop_assert_eq!(found, all);
            // Only the ends of the part are not at ends of shards.
            for pair in pieces.windows(2) {
                prop_assert_eq!(pair[0].subset.to_ranges()[0].end % depth as u64, 0);
            }
        }
    }
}
