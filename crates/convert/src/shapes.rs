//! Chooses the shapes of shards and subchunks.

use std::num::NonZeroU64;

use crate::failure::Failure;
use crate::pattern::Pattern;
use crate::words::shape_text;

/// The shapes that the user wants for shards and subchunks, and the sizes for shapes that the program
/// chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// The shape of a shard in elements; `None` to choose one of about `shard_size`.
    pub shard: Option<Vec<NonZeroU64>>,
    /// The shape of a subchunk in elements; `None` to choose one of about `subchunk_size`.
    pub subchunk: Option<Vec<NonZeroU64>>,
    /// The size of a decoded shard in bytes, if the program chooses its shape.
    pub shard_size: u64,
    /// The size of a decoded subchunk in bytes, if the program chooses its shape.
    pub subchunk_size: u64,
    /// Whether subchunks have the shape of the chunks that are read, or of the subchunks if those are shards.
    pub keep_chunks: bool,
    /// The shapes for arrays of a group. The first whose pattern matches the path of an array counts.
    pub for_paths: Vec<ShapesFor>,
}

/// The shapes for arrays whose paths match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapesFor {
    /// The paths of the arrays.
    pub pattern: Pattern,
    /// The shape of a shard in elements.
    pub shard: Vec<NonZeroU64>,
    /// The shape of a subchunk in elements; `None` to choose one.
    pub subchunk: Option<Vec<NonZeroU64>>,
}

impl Default for Wishes {
    /// Returns shards of 128 MiB, and subchunks of 128 KiB.
    fn default() -> Self {
        Self {
            shard: None,
            subchunk: None,
            shard_size: 128 << 20,
            subchunk_size: 128 << 10,
            keep_chunks: false,
            for_paths: Vec::new(),
        }
    }
}

impl Wishes {
    /// Returns the wishes for the array at `path` of a group, and the pattern that names the array, if one does.
    pub(crate) fn at(&self, path: &str) -> (Self, Option<&Pattern>) {
        let mut wishes = self.clone();
        let found = self.for_paths.iter().find(|one| one.pattern.matches(path));
        if let Some(found) = found {
            wishes.shard = Some(found.shard.clone());
            wishes.subchunk.clone_from(&found.subchunk);
        }
        (wishes, found.map(|found| &found.pattern))
    }

    /// Returns the options that say the shapes.
    pub(crate) fn options(&self) -> Vec<&'static str> {
        let options = [
            ("--shard", self.shard.is_some()),
            ("--subchunk", self.subchunk.is_some()),
            ("--keep-chunks", self.keep_chunks),
        ];
        let given = options.into_iter().filter(|(_, is_given)| *is_given);
        given.map(|(option, _)| option).collect()
    }

    /// Returns the shapes of a shard and of a subchunk, for an array of the shape `array` whose elements have
    /// `element` bytes. If a wanted shape has another number of dimensions, it calls `other_rank` with the
    /// name of the option and that number.
    ///
    /// # Errors
    /// The failure of `other_rank`; a shard is no whole number of subchunks.
    pub fn chosen(
        &self,
        array: &[u64],
        written: Written<'_>,
        element: u64,
        other_rank: impl Fn(&str, usize) -> Result<(), Failure>,
    ) -> Result<(Vec<NonZeroU64>, Vec<NonZeroU64>), Failure> {
        let (shard, subchunk) = self.proposed(array, written, element, other_rank)?;
        let checked = must_be_whole(&shard, &subchunk);
        checked.map_err(|failure| failure.about(self.options().join(", ")))?;
        Ok((shard, subchunk))
    }

    /// Returns shapes as [`chosen`](Self::chosen) does, which may be no whole numbers of each other.
    pub(crate) fn proposed(
        &self,
        array: &[u64],
        written: Written<'_>,
        element: u64,
        other_rank: impl Fn(&str, usize) -> Result<(), Failure>,
    ) -> Result<(Vec<NonZeroU64>, Vec<NonZeroU64>), Failure> {
        let asked = |option: &str, shape: &Option<Vec<NonZeroU64>>| match shape {
            Some(shape) if shape.len() != array.len() => {
                other_rank(option, shape.len()).map(|()| None)
            }
            shape => Ok(shape.as_deref().map(edges)),
        };
        let shard = asked("--shard", &self.shard)?;
        let subchunk = asked("--subchunk", &self.subchunk)?;
        let [shard_bytes, subchunk_bytes] = [self.shard_size, self.subchunk_size];
        let subchunk = match (subchunk, &shard) {
            (Some(subchunk), _) => subchunk,
            (None, _)
                if self.keep_chunks
                    && let Written::Chunks(chunk) = written =>
            {
                chunk.iter().map(|edge| (*edge).max(1)).collect()
            }
            (None, None) => near_cubic(array, subchunk_bytes / element),
            (None, Some(shard)) => near_cubic(shard, subchunk_bytes / element)
                .iter()
                .zip(shard)
                .map(|(&edge, &shard)| nearest_divisor(shard, edge))
                .collect(),
        };
        let shard =
            shard.unwrap_or_else(|| shard_for(written, array, &subchunk, shard_bytes / element));
        let nonzero = |edges: Vec<u64>| edges.into_iter().filter_map(NonZeroU64::new).collect();
        Ok((nonzero(shard), nonzero(subchunk)))
    }
}

/// Checks that a shard of the shape `shard` is a whole number of subchunks.
pub(crate) fn must_be_whole(shard: &[NonZeroU64], subchunk: &[NonZeroU64]) -> Result<(), Failure> {
    let axes = edges(shard).into_iter().zip(edges(subchunk));
    for (d, (edge, of_subchunk)) in axes.enumerate() {
        if edge.is_multiple_of(of_subchunk) {
            continue;
        }
        let above = (edge / of_subchunk + 1).saturating_mul(of_subchunk);
        let nearest = match edge / of_subchunk {
            0 => above.to_string(),
            whole => format!("{} or {above}", whole * of_subchunk),
        };
        return Err(Failure::usage(format!(
            "a shard has to be a whole number of subchunks, but in dimension {d} it is {edge} and they are \
             {of_subchunk}: shards of {}, subchunks of {}",
            shape_text(shard),
            shape_text(subchunk)
        ))
        .with_remedy(format!("make it {nearest}")));
    }
    Ok(())
}

/// The order in which an array will be written.
#[derive(Clone, Copy, Debug)]
pub enum Written<'a> {
    /// The array is written shard by shard.
    Shards,
    /// The array is written shard by shard, from an array whose chunks have this shape.
    Chunks(&'a [u64]),
    /// The array is written slice by slice along the first axis.
    Slices,
}

/// Returns a shape of about `elements` elements that is nearly cubic in the last three dimensions. Earlier
/// dimensions, often time and channels, have the extent 1. If a dimension is short, the others become longer. An array
/// that has no more elements, such as a coordinate, is one subchunk.
pub fn near_cubic(array: &[u64], mut elements: u64) -> Vec<u64> {
    // An array without elements may grow: its other edges count.
    let one: Vec<u64> = array.iter().map(|edge| (*edge).max(1)).collect();
    if volume(&one) <= elements {
        return one;
    }
    let mut subchunk = vec![1; array.len()];
    let (outer, mut inner): (Vec<_>, Vec<_>) = (0..array.len()).partition(|d| d + 3 < array.len());
    inner.sort_by_key(|&d| array[d]);
    let shares = (1..=u32::try_from(inner.len()).unwrap_or(3)).rev();
    let shares = shares.chain(std::iter::repeat(1));
    for (d, share) in inner.into_iter().chain(outer.into_iter().rev()).zip(shares) {
        let edge = 1_u64 << (elements.max(1).ilog2() / share);
        subchunk[d] = edge.min(array[d]).max(1);
        elements /= subchunk[d];
    }
    subchunk
}

/// Returns the shape of a shard of at most `elements` elements, but at least one subchunk. A shard has whole
/// subchunks and, if possible, whole chunks of an input. Otherwise it is as cubic as possible. A shard of a
/// stream is as wide as a slice if that fits, so that few objects are open at once.
pub fn shard_for(written: Written<'_>, array: &[u64], subchunk: &[u64], elements: u64) -> Vec<u64> {
    let limits: Vec<_> = array
        .iter()
        .zip(subchunk)
        .map(|(&array, &subchunk)| array.max(1).div_ceil(subchunk).saturating_mul(subchunk))
        .collect();
    let mut shard = subchunk.to_vec();
    let try_edge = |shard: &mut Vec<u64>, d: usize, edge: u64| {
        let before = std::mem::replace(&mut shard[d], edge.min(limits[d]));
        let fits = volume(shard) <= elements;
        if !fits {
            shard[d] = before;
        }
        fits
    };
    if let Written::Chunks(chunk) = written {
        for d in (0..array.len()).rev() {
            try_edge(&mut shard, d, least_common_multiple(subchunk[d], chunk[d]));
        }
    }
    let is_stream = matches!(written, Written::Slices);
    loop {
        let mut growing: Vec<_> = (0..array.len()).filter(|&d| shard[d] < limits[d]).collect();
        // Grow the shortest axis first. A shard of a stream grows along the first axis last.
        growing.sort_by_key(|&d| (is_stream && d == 0, shard[d]));
        let grown = growing.into_iter().any(|d| {
            let double = shard[d].saturating_mul(2);
            try_edge(&mut shard, d, double)
        });
        if !grown {
            return shard;
        }
    }
}

/// Returns the divisor of `number` whose ratio to `wish` is closest to 1.
fn nearest_divisor(number: u64, wish: u64) -> u64 {
    let ratio = |divisor: u64| divisor.max(wish).saturating_mul(1000) / divisor.min(wish);
    (1..=number.min(wish * 64))
        .chain([number])
        .filter(|&divisor| number.is_multiple_of(divisor))
        .min_by_key(|&divisor| ratio(divisor))
        .unwrap_or(number)
}

pub fn least_common_multiple(a: u64, b: u64) -> u64 {
    let (mut gcd, mut rest) = (a, b);
    while rest != 0 {
        (gcd, rest) = (rest, gcd % rest);
    }
    (a / gcd).saturating_mul(b)
}

pub fn volume(edges: &[u64]) -> u64 {
    edges.iter().fold(1, |a: u64, &b| a.saturating_mul(b))
}

pub fn edges(shape: &[NonZeroU64]) -> Vec<u64> {
    shape.iter().map(|edge| edge.get()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Wishes, Written, edges, near_cubic, volume};

    /// A shard of a chosen shape is no larger than the array, rounded up to subchunks.
    #[test]
    fn chosen_shards_have_no_room_for_more_than_the_array() {
        for array in [&[10, 10][..], &[365], &[3, 1000], &[1], &[7, 1, 300, 2]] {
            for shard_size in [1 << 10, 1 << 20, 128 << 20] {
                for (subchunk_size, chunk, keep_chunks) in [
                    (256, 4, false),
                    (128 << 10, 100, false),
                    (256, 4, true),
                    (256, 100, true),
                ] {
                    let wishes = Wishes {
                        shard_size,
                        subchunk_size,
                        keep_chunks,
                        ..Wishes::default()
                    };
                    let chunk = vec![chunk; array.len()];
                    let chosen = wishes.chosen(array, Written::Chunks(&chunk), 4, |_, _| Ok(()));
                    let (shard, subchunk) = chosen.unwrap();
                    let axes = edges(&shard).into_iter().zip(edges(&subchunk)).zip(array);
                    for ((shard, subchunk), array) in axes {
                        let most = array.div_ceil(subchunk) * subchunk;
                        assert!(shard <= most, "{array}: {shard}, {subchunk}");
                    }
                }
            }
        }
    }

    #[test]
    fn only_small_arrays_are_one_subchunk() {
        for small in [&[][..], &[365], &[16, 300, 2], &[0], &[0, 16, 16]] {
            let subchunk = near_cubic(small, 16 << 10);
            let edges: Vec<u64> = small.iter().map(|edge| (*edge).max(1)).collect();
            assert_eq!(subchunk, edges, "{small:?}");
        }
        // The first axis of an array that is still empty grows, and its slices may be large.
        for large in [&[0, 2160, 4320][..], &[1 << 20], &[2, 2160, 4320]] {
            let subchunk = near_cubic(large, 16 << 10);
            let elements = volume(&subchunk);
            assert!(
                (4 << 10..=16 << 10).contains(&elements),
                "{large:?}: {subchunk:?}"
            );
        }
    }
}
