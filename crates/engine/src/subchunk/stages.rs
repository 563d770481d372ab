//! Runs the bytes-to-bytes stages of a chain one after the other, in the buffers of one thread.

use super::blosc::{self, Blosc};
use super::not_decoded::NotDecoded;
use super::scratch::Contexts;
use super::{crc32c, gzip, zstd};
use crate::contract::{EngineError, KnownChain, Stage};
use crate::memory::allocate::at_least;

/// Returns the most bytes that `stage` can make from `len` bytes; `None` if no machine has that many.
fn bound(stage: &Stage, len: usize) -> Option<usize> {
    match stage {
        Stage::Zstd { .. } => Some(zstd::bound(len)),
        Stage::Gzip { .. } => Some(gzip::bound(len)),
        Stage::Blosc(_) => Some(blosc::bound(len)),
        Stage::Crc32c => len.checked_add(crc32c::LEN),
    }
    .filter(|&bound| bound >= len && isize::try_from(bound).is_ok())
}

/// Returns the most bytes that a subchunk of `len` bytes encodes to; `None` if no machine has that
/// many.
pub(crate) fn encoded_bound(chain: &KnownChain, len: usize) -> Option<usize> {
    chain
        .stages
        .iter()
        .try_fold(len, |len, stage| bound(stage, len))
}

/// The place of the current bytes between two stages.
#[derive(Clone, Copy)]
enum At {
    Input,
    Buffer { which: usize, len: usize },
}

/// An input and two buffers: each stage reads from one, and writes to a buffer that is free.
struct AlternatingBuffers<'a> {
    input: &'a [u8],
    buffers: &'a mut [Vec<u8>; 2],
    at: At,
}

impl<'a> AlternatingBuffers<'a> {
    /// Returns the current bytes, and the free buffer with room for `len` bytes.
    fn next(&mut self, len: usize) -> Result<(&[u8], &mut [u8]), EngineError> {
        let [first, second] = &mut *self.buffers;
        Ok(match self.at {
            At::Input => (self.input, at_least(first, len)?),
            At::Buffer { which: 0, len: l } => (&first[..l], at_least(second, len)?),
            At::Buffer { len: l, .. } => (&second[..l], at_least(first, len)?),
        })
    }

    /// Makes the first `len` bytes of the free buffer the current bytes.
    fn turn(&mut self, len: usize) {
        let which = match self.at {
            At::Buffer { which: 0, .. } => 1,
            _ => 0,
        };
        self.at = At::Buffer { which, len };
    }

    fn current(&self) -> &[u8] {
        match self.at {
            At::Input => self.input,
            At::Buffer { which, len } => &self.buffers[which][..len],
        }
    }

    /// Removes the checksum at the end of the current bytes, without copying them.
    fn strip(&mut self, subchunk: usize, validate: bool) -> Result<(), EngineError> {
        match &mut self.at {
            At::Input => self.input = strip(subchunk, self.input, validate)?,
            At::Buffer { which, len } => {
                *len = strip(subchunk, &self.buffers[*which][..*len], validate)?.len();
            }
        }
        Ok(())
    }

    fn finish(self) -> &'a [u8] {
        match self.at {
            At::Input => self.input,
            At::Buffer { which, len } => &self.buffers[which][..len],
        }
    }
}

/// Encodes the subchunk with the number `subchunk`, whose elements in encoded order are `input`. Writes it to
/// the start of `output`, which has [`encoded_bound`] bytes. Returns the encoded size.
///
/// # Errors
/// [`EngineError::Encode`] if a stage fails.
pub(crate) fn encode(
    chain: &KnownChain,
    subchunk: usize,
    input: &[u8],
    output: &mut [u8],
    buffers: &mut [Vec<u8>; 2],
    contexts: &mut Contexts,
) -> Result<usize, EngineError> {
    // Append the checksums at the end of the chain in place.
    let checksums = chain
        .stages
        .iter()
        .rev()
        .take_while(|stage| stage.is_fixed_size())
        .count();
    let (stages, checksums) = chain.stages.split_at(chain.stages.len() - checksums);
    let mut written = match stages.split_last() {
        None => {
            output[..input.len()].copy_from_slice(input);
            input.len()
        }
        Some((last, stages)) => {
            let mut turns = AlternatingBuffers {
                input,
                buffers,
                at: At::Input,
            };
            let bound_of = |stage: &Stage, len: usize| {
                bound(stage, len).ok_or_else(|| EngineError::Encode {
                    subchunk,
                    stage: stage.name(),
                    reason: format!("{len} bytes are too many"),
                })
            };
            for stage in stages {
                let bound = bound_of(stage, turns.current().len())?;
                let (from, to) = turns.next(bound)?;
                let written = run(stage, subchunk, from, to, contexts)?;
                turns.turn(written);
            }
            let from = turns.current();
            // Give the stage at most the room of its bound, because Blosc would use more room.
            let to = &mut output[..bound_of(last, from.len())?];
            run(last, subchunk, from, to, contexts)?
        }
    };
    for _ in checksums {
        let checksum = crc32c::checksum(&output[..written]);
        output[written..written + crc32c::LEN].copy_from_slice(&checksum);
        written += crc32c::LEN;
    }
    Ok(written)
}

/// Runs one stage. Returns the number of bytes that it wrote to `to`.
fn run(
    stage: &Stage,
    subchunk: usize,
    from: &[u8],
    to: &mut [u8],
    contexts: &mut Contexts,
) -> Result<usize, EngineError> {
    match stage {
        Stage::Zstd { level, checksum } => contexts.zstd.compress(*level, *checksum, from, to),
        Stage::Gzip { level } => contexts.gzip.compress(*level, from, to),
        Stage::Blosc(parameters) => contexts.blosc.compress(parameters, from, to),
        Stage::Crc32c => {
            let (bytes, rest) = to.split_at_mut(from.len());
            bytes.copy_from_slice(from);
            rest[..crc32c::LEN].copy_from_slice(&crc32c::checksum(from));
            Ok(from.len() + crc32c::LEN)
        }
    }
    .map_err(|reason| EngineError::Encode {
        subchunk,
        stage: stage.name(),
        reason,
    })
}

/// Decodes the subchunk with the number `subchunk` into `stored`, whose length is that of its elements.
///
/// # Errors
/// [`EngineError::Decode`], [`EngineError::DecodedLength`] or [`EngineError::Checksum`] if the
/// bytes are not what the stages wrote; [`EngineError::OutOfMemory`].
pub(crate) fn decode(
    chain: &KnownChain,
    subchunk: usize,
    encoded: &[u8],
    stored: &mut [u8],
    validate_checksums: bool,
    buffers: &mut [Vec<u8>; 2],
    contexts: &mut Contexts,
) -> Result<(), EngineError> {
    let expected = stored.len();
    let wrong_length = |got| EngineError::DecodedLength {
        subchunk,
        stage: chain.stages.first().map_or("bytes", Stage::name),
        got,
        expected,
    };
    let mut turns = AlternatingBuffers {
        input: encoded,
        buffers,
        at: At::Input,
    };
    for (position, stage) in chain.stages.iter().enumerate().rev() {
        let fail = |failed: NotDecoded| failed.at(subchunk, stage.name());
        let mut decompress = |from: &[u8], to: &mut [u8]| match stage {
            Stage::Zstd { .. } => contexts.zstd.decompress(from, to),
            Stage::Gzip { .. } => contexts.gzip.decompress(from, to),
            Stage::Blosc(_) => Blosc::decompress(from, to),
            Stage::Crc32c => Err("a checksum is no compressor".to_string().into()),
        };
        if let Stage::Crc32c = stage {
            turns.strip(subchunk, validate_checksums)?;
        } else if position == 0 {
            let got = decompress(turns.current(), stored).map_err(fail)?;
            return if got == expected {
                Ok(())
            } else {
                Err(wrong_length(got))
            };
        } else {
            let limit = decoded_limit(&chain.stages[..position], expected)
                .ok_or_else(|| fail(format!("{expected} bytes are too many").into()))?;
            let (from, to) = turns.next(limit)?;
            let got = decompress(from, to).map_err(fail)?;
            turns.turn(got);
        }
    }
    let decoded = turns.finish();
    if decoded.len() != expected {
        return Err(wrong_length(decoded.len()));
    }
    stored.copy_from_slice(decoded);
    Ok(())
}

/// Decodes a subchunk like [`decode`], for a fixed-size chain. Returns the elements, which lie in the encoded
/// subchunk.
pub(crate) fn decode_fixed_size<'b>(
    chain: &KnownChain,
    subchunk: usize,
    mut encoded: &'b [u8],
    expected: usize,
    validate_checksums: bool,
) -> Result<&'b [u8], EngineError> {
    for _checksum in &chain.stages {
        encoded = strip(subchunk, encoded, validate_checksums)?;
    }
    if encoded.len() == expected {
        Ok(encoded)
    } else {
        Err(EngineError::DecodedLength {
            subchunk,
            stage: "bytes",
            got: encoded.len(),
            expected,
        })
    }
}

/// Returns `encoded` without the checksum at its end. Compares the checksum if `validate`.
///
/// # Errors
/// [`EngineError::Checksum`] if the checksum differs, or [`EngineError::Decode`] if there is no checksum.
pub(crate) fn strip(subchunk: usize, encoded: &[u8], validate: bool) -> Result<&[u8], EngineError> {
    crc32c::strip(encoded, validate).map_err(|invalid| match invalid {
        crc32c::Invalid::Mismatch => EngineError::Checksum { subchunk },
        crc32c::Invalid::Truncated => EngineError::Decode {
            subchunk,
            stage: Stage::Crc32c.name(),
            reason: format!("{} bytes have no room for a checksum", encoded.len()),
        },
    })
}

/// Returns the most bytes that a stage may decode to. `inner` are the stages before it in the order of
/// encoding, and `expected` is the size of a subchunk. With a compressor among `inner`, it is twice the bound
/// of our compressor, because other writers may need more; otherwise it is exact.
fn decoded_limit(inner: &[Stage], expected: usize) -> Option<usize> {
    const SLACK: usize = 4096;
    inner.iter().try_fold(expected, |len, stage| {
        let bound = bound(stage, len)?;
        if stage.is_fixed_size() {
            Some(bound)
        } else {
            bound.checked_mul(2)?.checked_add(SLACK)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{BloscStage, Cname, Shuffle};

    fn all_stages() -> Vec<Stage> {
        vec![
            Stage::Crc32c,
            Stage::Zstd {
                level: 3,
                checksum: true,
            },
            Stage::Crc32c,
            Stage::Gzip { level: 6 },
            Stage::Blosc(BloscStage {
                cname: Cname::Lz4,
                level: 5,
                shuffle: Shuffle::Bit,
                typesize: 3,
                blocksize: 0,
            }),
            Stage::Crc32c,
        ]
    }

    #[test]
    fn every_pair_of_stages_round_trips() {
        for (i, a) in all_stages().into_iter().enumerate() {
            for b in all_stages().into_iter().skip(i) {
                for len in [0, 1, 3, 4096, 70_001] {
                    let chain = KnownChain {
                        order: vec![0],
                        swap: 1,
                        stages: vec![a.clone(), b.clone()],
                    };
                    let input: Vec<u8> = (0..len).map(|i| (i * i / 7 % 251) as u8).collect();
                    let mut buffers = Default::default();
                    let mut contexts = Contexts::default();
                    let bound = encoded_bound(&chain, len).expect("small");
                    let mut encoded = vec![0; bound];
                    let (b, c) = (&mut buffers, &mut contexts);
                    let written = encode(&chain, 0, &input, &mut encoded, b, c).expect("encodes");
                    let encoded = &encoded[..written];
                    let mut decoded = vec![0; len];
                    decode(&chain, 0, encoded, &mut decoded, true, b, c).expect("decodes");
                    assert_eq!(decoded, input, "{:?} of {len}", chain.stages);
                }
            }
        }
    }

    /// A small subchunk whose outer frame decodes to much more than the inner frame can have.
    #[test]
    fn a_frame_that_is_too_large_takes_no_memory() {
        let zstd = Stage::Zstd {
            level: 1,
            checksum: false,
        };
        let chain = KnownChain {
            order: vec![0],
            swap: 1,
            stages: vec![zstd, Stage::Gzip { level: 6 }],
        };
        let outer = KnownChain {
            stages: vec![Stage::Gzip { level: 6 }],
            ..chain.clone()
        };
        let inner = vec![0; 1 << 20];
        let mut buffers = Default::default();
        let mut contexts = Contexts::default();
        let mut encoded = vec![0; encoded_bound(&outer, inner.len()).expect("small")];
        let (b, c) = (&mut buffers, &mut contexts);
        let written = encode(&outer, 0, &inner, &mut encoded, b, c).expect("encodes");
        let mut decoded = vec![0; 1000];
        let refused = decode(&chain, 0, &encoded[..written], &mut decoded, true, b, c);
        assert!(
            matches!(refused, Err(EngineError::Decode { .. })),
            "{refused:?}"
        );
        assert!(buffers.iter().all(|buffer| buffer.capacity() < 64 << 10));
    }
}
