//! The elements of a whole shard, in memory of the caller.

use std::borrow::Cow;

use super::EngineError;
use crate::layout::{SubchunkGrid, strides};

/// The elements of a whole shard in memory of the caller, which is only read. The elements are contiguous in
/// C order, or have a stride along each axis.
#[derive(Clone, Debug)]
pub struct ShardElements<'a> {
    bytes: &'a [u8],
    strides: Option<Cow<'a, [usize]>>,
}

impl<'a> ShardElements<'a> {
    /// Returns the elements `bytes`: all elements of the shard, in C order.
    pub fn contiguous(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            strides: None,
        }
    }

    /// Returns elements with strides. The first element is at the start of `bytes`. Along axis `d`, neighbours
    /// are `strides[d]` bytes apart; 0 repeats one element. Elements may share bytes, and need no alignment.
    pub fn strided(bytes: &'a [u8], strides: impl Into<Cow<'a, [usize]>>) -> Self {
        Self {
            bytes,
            strides: Some(strides.into()),
        }
    }

    /// Returns the memory, from the first element on.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the stride in bytes along each axis of the shard of `grid`. It is 0 along an axis with at most
    /// one element, so that every offset of an element can be computed without overflow.
    ///
    /// # Errors
    /// - [`EngineError::InputLength`] if contiguous elements have another length than the shard.
    /// - [`EngineError::Strides`] if there is not one stride for each axis, or an element is not in the memory.
    pub(crate) fn strides_in(&self, grid: &SubchunkGrid) -> Result<Vec<usize>, EngineError> {
        let (shape, element_size) = (grid.shard(), grid.element_size());
        let given = match &self.strides {
            None if self.bytes.len() != grid.shard_bytes() => {
                return Err(EngineError::InputLength {
                    got: self.bytes.len(),
                    expected: grid.shard_bytes(),
                });
            }
            None if grid.shard_bytes() > 0 => Cow::Owned(strides(shape, element_size)),
            None => Cow::Owned(vec![0; shape.len()]),
            Some(strides) => Cow::Borrowed(&**strides),
        };
        let is_empty = shape.contains(&0);
        let span = std::iter::zip(shape, &*given)
            .filter(|_| !is_empty)
            .try_fold(element_size, |span, (extent, stride)| {
                span.checked_add((extent - 1).checked_mul(*stride)?)
            });
        let is_inside = is_empty || span.is_some_and(|span| span <= self.bytes.len());
        if given.len() != shape.len() || !is_inside {
            return Err(EngineError::Strides {
                shape: shape.to_vec(),
                strides: given.into_owned(),
                element_size,
                memory: self.bytes.len(),
            });
        }
        let used = |(extent, stride): (&usize, &usize)| {
            if is_empty || *extent == 1 { 0 } else { *stride }
        };
        Ok(std::iter::zip(shape, &*given).map(used).collect())
    }

    /// Returns the elements if they are contiguous in C order, also if they were given with strides.
    ///
    /// # Errors
    /// - [`EngineError::InputLength`] if contiguous elements have another length than the shard.
    /// - [`EngineError::Strides`] if there is not one stride for each axis, or an element is not in the memory.
    pub fn as_contiguous(&self, grid: &SubchunkGrid) -> Result<Option<&'a [u8]>, EngineError> {
        let strides = self.strides_in(grid)?;
        let mut step = grid.element_size();
        for (extent, stride) in std::iter::zip(grid.shard(), strides).rev() {
            if *extent > 1 && stride != step && grid.shard_bytes() > 0 {
                return Ok(None);
            }
            step = step.saturating_mul(*extent);
        }
        Ok(self.bytes.get(..grid.shard_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(shape: &[u64], element_size: usize) -> SubchunkGrid {
        SubchunkGrid::new(shape, &vec![1; shape.len()], element_size).unwrap()
    }

    #[test]
    fn strides_that_leave_the_memory_are_told() {
        let grid = grid(&[3, 1, 2], 4);
        let memory = [0; 40];
        let check = |len: usize, strides: &[usize]| {
            ShardElements::strided(&memory[..len], strides).strides_in(&grid)
        };
        assert_eq!(check(40, &[16, 7, 4]).unwrap(), [16, 0, 4]);
        assert_eq!(check(4, &[0, usize::MAX, 0]).unwrap(), [0, 0, 0]);
        assert_eq!(check(7, &[1, 0, 1]).unwrap(), [1, 0, 1]);
        for (len, strides) in [
            (39, &[16, 7, 4][..]),
            (3, &[0, 0, 0]),
            (0, &[0, 0, 0]),
            (40, &[usize::MAX, 0, 0]),
            (40, &[1, 0, usize::MAX]),
            (40, &[usize::MAX / 2, 0, 2]),
            (40, &[16, 4]),
            (40, &[]),
            (40, &[16, 16, 4, 4]),
        ] {
            let error = check(len, strides).unwrap_err();
            assert!(matches!(error, EngineError::Strides { .. }), "{error:?}");
            let told = error.to_string();
            assert!(told.contains(&format!("{strides:?}")), "{told}");
            assert!(told.contains(&format!("{len} bytes of memory")), "{told}");
        }
        let error = ShardElements::contiguous(&memory).strides_in(&grid);
        assert!(matches!(
            error,
            Err(EngineError::InputLength {
                got: 40,
                expected: 24
            })
        ));
    }

    #[test]
    fn contiguous_elements_are_found() {
        let memory: Vec<u8> = (0..30).collect();
        let shard = grid(&[3, 1, 2], 4);
        let found = |strides: &[usize]| {
            ShardElements::strided(&memory, strides.to_vec())
                .as_contiguous(&shard)
                .unwrap()
        };
        assert_eq!(found(&[8, 8, 4]), Some(&memory[..24]));
        assert_eq!(found(&[8, 1, 4]), Some(&memory[..24]));
        assert_eq!(found(&[4, 0, 12]), None);
        assert_eq!(found(&[0, 0, 0]), None);
        let empty = grid(&[4, 0, 1 << 40], 4);
        let elements = ShardElements::strided(&[], vec![usize::MAX; 3]);
        assert_eq!(elements.as_contiguous(&empty).unwrap(), Some(&[][..]));
        assert_eq!(
            ShardElements::contiguous(&[])
                .as_contiguous(&empty)
                .unwrap(),
            Some(&[][..])
        );
        let none: [usize; 0] = [];
        let one = ShardElements::strided(&memory[..8], &none[..]);
        assert_eq!(
            one.as_contiguous(&grid(&[], 8)).unwrap(),
            Some(&memory[..8])
        );
    }
}
