//! Compares an encoded subchunk with its elements, on the calling thread alone and in its buffers.

use super::scatter::ShardScatter;
use super::scratch::Scratch;
use super::stages;
use crate::contract::{EngineError, KnownChain, ShardJob};
use crate::memory::allocate::at_least;

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
