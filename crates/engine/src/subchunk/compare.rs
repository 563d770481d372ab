//! Compares encoded subchunks with their elements. Each thread compares one subchunk at a time, in its own
//! buffers.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::scatter::ShardScatter;
use super::scratch::Scratch;
use super::stages;
use crate::contract::{EngineError, KnownChain, ShardJob};
use crate::memory::allocate::at_least;
use crate::process::crew::of_slices;

/// The reason why a subchunk was not found equal.
#[derive(Debug)]
pub(crate) enum Unequal {
    /// The encoded subchunk is not one of the elements. The text says how they differ.
    Differs(String),
    /// The comparison failed.
    Failed(EngineError),
}

impl From<EngineError> for Unequal {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// Compares `subchunks`, each with its number and its encoded bytes, by `compare`, on at most `threads` threads.
///
/// # Errors
/// The lowest number of a subchunk for which `compare` fails, and its error.
pub(crate) fn compare_all(
    subchunks: &[(usize, Option<&[u8]>)],
    threads: NonZeroUsize,
    compare: impl Fn(usize, Option<&[u8]>) -> Result<(), Unequal> + Sync,
) -> Result<(), (usize, Unequal)> {
    let first = Mutex::new(None::<(usize, Unequal)>);
    let lock = || -> MutexGuard<'_, Option<(usize, Unequal)>> {
        first.lock().unwrap_or_else(PoisonError::into_inner)
    };
    of_slices().run(subchunks.len(), threads, &|index| {
        let Some(&(number, encoded)) = subchunks.get(index) else {
            return;
        };
        let is_lower = |found: &Option<(usize, Unequal)>| {
            found.as_ref().is_none_or(|(other, _)| number < *other)
        };
        if !is_lower(&lock()) {
            return;
        }
        if let Err(unequal) = compare(number, encoded) {
            let mut found = lock();
            if is_lower(&found) {
                *found = Some((number, unequal));
            }
        }
    });
    let found = lock().take();
    found.map_or(Ok(()), Err)
}

/// Compares the encoded subchunks of a shard with the elements of the shard.
#[derive(Debug)]
pub(crate) struct Comparison<'a> {
    chain: &'a KnownChain,
    scatter: ShardScatter<'a>,
    /// The number of bytes of a subchunk.
    bytes: usize,
    store_empty: bool,
    validate_checksums: bool,
}

impl<'a> Comparison<'a> {
    pub(crate) fn new(job: &ShardJob<'a>, chain: &'a KnownChain) -> Self {
        Self {
            chain,
            scatter: ShardScatter::of_chain(job.grid, chain, job.fill_value),
            bytes: job.grid.subchunk_bytes(),
            store_empty: job.store_empty,
            validate_checksums: job.validate_checksums,
        }
    }

    /// Checks that an engine may encode the subchunk `number` of the shard `decoded` as `encoded`; `None` if
    /// the subchunk is not stored. Without a compressor, there is one such encoding. With a compressor, every
    /// encoding is right that decodes to the elements.
    pub(crate) fn check_encoded(
        &self,
        decoded: &[u8],
        number: usize,
        encoded: Option<&[u8]>,
    ) -> Result<(), Unequal> {
        let is_empty = !self.store_empty && self.scatter.is_empty(decoded, number);
        match encoded {
            None if is_empty => Ok(()),
            None => Err(Unequal::Differs(
                "it is not stored, and its elements are not the fill value".to_string(),
            )),
            Some(_) if is_empty => Err(Unequal::Differs(
                "it is stored, and all of its elements are the fill value".to_string(),
            )),
            Some(encoded) if self.chain.is_fixed_size() => {
                self.encode_and_compare(decoded, number, encoded)
            }
            Some(encoded) => self
                .decode_and_compare(decoded, number, encoded, true)
                .map_err(|unequal| match unequal {
                    Unequal::Failed(EngineError::OutOfMemory { what, bytes }) => {
                        Unequal::Failed(EngineError::OutOfMemory { what, bytes })
                    }
                    Unequal::Failed(error) => {
                        Unequal::Differs(format!("the host cannot decode it: {error}"))
                    }
                    differs @ Unequal::Differs(_) => differs,
                }),
        }
    }

    /// Checks that the subchunk `number` of the shard `decoded` is what `encoded` decodes to; `None` if the
    /// subchunk is not stored. The errors of decoding are [`Unequal::Failed`].
    pub(crate) fn check_decoded(
        &self,
        decoded: &[u8],
        number: usize,
        encoded: Option<&[u8]>,
    ) -> Result<(), Unequal> {
        match encoded {
            Some(encoded) => {
                self.decode_and_compare(decoded, number, encoded, self.validate_checksums)
            }
            None if self.scatter.is_empty(decoded, number) => Ok(()),
            None => Err(Unequal::Differs(
                "it is not stored, and was not filled with the fill value".to_string(),
            )),
        }
    }

    fn encode_and_compare(
        &self,
        decoded: &[u8],
        number: usize,
        encoded: &[u8],
    ) -> Result<(), Unequal> {
        let mut scratch = Scratch::take();
        let buffers = &mut *scratch;
        let elements = (self.scatter).subchunks(decoded, number, 1, &mut buffers.subchunk)?;
        let bound = stages::encoded_bound(self.chain, self.bytes).unwrap_or(usize::MAX);
        let expected = at_least(&mut buffers.row, bound)?;
        let (stages, contexts) = (&mut buffers.stages, &mut buffers.contexts);
        let len = stages::encode(self.chain, number, elements, expected, stages, contexts)?;
        compare(encoded, &expected[..len], "its encoding")
    }

    fn decode_and_compare(
        &self,
        decoded: &[u8],
        number: usize,
        encoded: &[u8],
        validate: bool,
    ) -> Result<(), Unequal> {
        let mut scratch = Scratch::take();
        let buffers = &mut *scratch;
        let elements = (self.scatter).subchunks(decoded, number, 1, &mut buffers.subchunk)?;
        let found = at_least(&mut buffers.row, self.bytes)?;
        let (stages, contexts) = (&mut buffers.stages, &mut buffers.contexts);
        stages::decode(
            self.chain, number, encoded, found, validate, stages, contexts,
        )?;
        compare(found, elements, "its elements")
    }
}

/// Compares the bytes `found` with the bytes `expected`, which are called `what` in the reason.
fn compare(found: &[u8], expected: &[u8], what: &str) -> Result<(), Unequal> {
    if found == expected {
        return Ok(());
    }
    if found.len() != expected.len() {
        let (found, expected) = (found.len(), expected.len());
        return Err(Unequal::Differs(format!(
            "{what} has {found} bytes, and on the host {expected}"
        )));
    }
    let different = std::iter::zip(found, expected).filter(|(a, b)| a != b);
    let first = std::iter::zip(found, expected).position(|(a, b)| a != b);
    Err(Unequal::Differs(format!(
        "{} of the {} bytes of {what} differ from the host's, the first at {}",
        different.count(),
        expected.len(),
        first.unwrap_or_default(),
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::contract::{Chain, Stage};
    use crate::layout::SubchunkGrid;
    use crate::subchunk::encode::encode_stored_subchunk;

    /// Returns a chain of two axes in the other order, with swapped bytes.
    fn chain(stages: Vec<Stage>) -> KnownChain {
        KnownChain {
            order: vec![1, 0],
            swap: 2,
            stages,
        }
    }

    proptest! {
        #![proptest_config(zarrs_cuda_testing::effort::config(64))]

        /// The host's encoding is equal. With another element anywhere, exactly its subchunk differs.
        #[test]
        fn a_difference_is_found_in_its_subchunk(
            kind in 0..3_usize,
            elements in prop::collection::vec(0..2_u8, 6 * 8),
            changed in 0..6 * 8_usize,
            threads in 1..4_usize,
            store_empty: bool,
        ) {
            let zstd = Stage::Zstd { level: 1, checksum: false };
            let stages = [vec![], vec![Stage::Crc32c], vec![Stage::Crc32c, zstd]][kind].clone();
            let (chain, grid) = (chain(stages), SubchunkGrid::new(&[6, 8], &[3, 4], 2).expect("divides"));
            let threads = NonZeroUsize::new(threads).expect("positive");
            let job = ShardJob {
                grid: &grid,
                chain: Chain::Known(&chain),
                fill_value: &[0, 0],
                store_empty,
                validate_checksums: true,
                threads,
                huge_pages: false,
            };
            let mut decoded: Vec<u8> = elements.iter().flat_map(|&element| [element, 0]).collect();
            let encoded: Vec<_> = (0..4)
                .map(|number| encode_stored_subchunk(&job, &chain, &decoded, number).expect("encodes"))
                .collect();
            let numbered: Vec<_> = encoded.iter().map(Option::as_deref).enumerate().collect();
            let comparison = Comparison::new(&job, &chain);
            let checks = |decoded: &[u8]| {
                let on = compare_all(&numbered, threads, |number, encoded| {
                    comparison.check_encoded(decoded, number, encoded)
                });
                let back = compare_all(&numbered, threads, |number, encoded| {
                    comparison.check_decoded(decoded, number, encoded)
                });
                [on, back].map(|found| found.map_err(|(number, unequal)| {
                    assert!(matches!(unequal, Unequal::Differs(_)), "{unequal:?}");
                    number
                }))
            };
            prop_assert_eq!(checks(&decoded), [Ok(()), Ok(())]);
            decoded[2 * changed + 1] ^= 7;
            let (row, column) = (changed / 8, changed % 8);
            let number = row / 3 * 2 + column / 4;
            prop_assert_eq!(checks(&decoded), [Err(number), Err(number)]);
        }
    }

    #[test]
    fn the_lowest_number_is_told() {
        let subchunks: Vec<_> = (0..100).map(|number| (number, None)).collect();
        let four = NonZeroUsize::new(4).expect("positive");
        let found = compare_all(&subchunks, four, |number, _| match number {
            17 | 60 | 99 => Err(Unequal::Differs(number.to_string())),
            _ => Ok(()),
        });
        let Err((17, Unequal::Differs(text))) = found else {
            panic!("{found:?}");
        };
        assert_eq!(text, "17");
    }
}
