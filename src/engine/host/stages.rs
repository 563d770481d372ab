//! The bytes-to-bytes stages of a chain, one after the other, in the buffers of one thread.

use super::scatter::at_least;
use super::scratch::Contexts;
use super::{blosc, crc32c, gzip, zstd};
use crate::engine::{EngineError, KnownChain, Stage};

/// The most bytes that `stage` makes of `len` bytes; `None` if no machine has that many.
fn bound(stage: &Stage, len: usize) -> Option<usize> {
    match stage {
        Stage::Zstd { .. } => Some(zstd::bound(len)),
        Stage::Gzip { .. } => Some(gzip::bound(len)),
        Stage::Blosc(_) => Some(blosc::bound(len)),
        Stage::Crc32c => len.checked_add(crc32c::LEN),
    }
    .filter(|&bound| bound >= len && isize::try_from(bound).is_ok())
}

/// The most bytes that a subchunk of `len` bytes encodes to; `None` if no machine has that many.
pub(super) fn encoded_bound(chain: &KnownChain, len: usize) -> Option<usize> {
    chain
        .stages
        .iter()
        .try_fold(len, |len, stage| bound(stage, len))
}

/// Where the bytes are between two stages.
#[derive(Clone, Copy)]
enum At {
    Input,
    Buffer { which: usize, len: usize },
}

/// Two buffers and an input that take turns.
struct Turns<'a> {
    input: &'a [u8],
    buffers: &'a mut [Vec<u8>; 2],
    at: At,
}

impl<'a> Turns<'a> {
    /// The current bytes, and the buffer that is free with room for `len`.
    fn next(&mut self, len: usize) -> (&[u8], &mut [u8]) {
        let [first, second] = &mut *self.buffers;
        match self.at {
            At::Input => (self.input, at_least(first, len)),
            At::Buffer { which: 0, len: l } => (&first[..l], at_least(second, len)),
            At::Buffer { len: l, .. } => (&second[..l], at_least(first, len)),
        }
    }

    /// The free buffer was filled with `len` bytes.
    fn turn(&mut self, len: usize) {
        let which = match self.at {
            At::Buffer { which: 0, .. } => 1,
            _ => 0,
        };
        self.at = At::Buffer { which, len };
    }

    fn finish(self) -> &'a [u8] {
        match self.at {
            At::Input => self.input,
            At::Buffer { which, len } => &self.buffers[which][..len],
        }
    }
}

/// Encode subchunk number `subchunk`, whose stored elements are `input`.
///
/// # Errors
/// [`EngineError::Encode`] if a stage fails.
pub(super) fn encode<'b>(
    chain: &KnownChain,
    subchunk: usize,
    input: &'b [u8],
    buffers: &'b mut [Vec<u8>; 2],
    contexts: &mut Contexts,
) -> Result<&'b [u8], EngineError> {
    let mut turns = Turns {
        input,
        buffers,
        at: At::Input,
    };
    for stage in &chain.stages {
        let fail = |reason| EngineError::Encode {
            subchunk,
            stage: stage.name(),
            reason,
        };
        let len = match turns.at {
            At::Input => input.len(),
            At::Buffer { len, .. } => len,
        };
        let bound = bound(stage, len).ok_or_else(|| fail(format!("{len} bytes are too many")))?;
        let (from, to) = turns.next(bound);
        let written = match stage {
            Stage::Zstd { level, checksum } => contexts.zstd.compress(*level, *checksum, from, to),
            Stage::Gzip { level } => contexts.gzip.compress(*level, from, to),
            Stage::Blosc(parameters) => contexts.blosc.compress(parameters, from, to),
            Stage::Crc32c => {
                to[..from.len()].copy_from_slice(from);
                to[from.len()..bound].copy_from_slice(&crc32c::checksum(from));
                Ok(bound)
            }
        }
        .map_err(fail)?;
        turns.turn(written);
    }
    Ok(turns.finish())
}

/// Decode subchunk number `subchunk` to its `expected` bytes of stored elements.
///
/// # Errors
/// [`EngineError::Decode`], [`EngineError::DecodedLength`] or [`EngineError::Checksum`] if the
/// bytes are not what the stages wrote.
pub(super) fn decode<'b>(
    chain: &KnownChain,
    subchunk: usize,
    encoded: &'b [u8],
    expected: usize,
    validate_checksums: bool,
    buffers: &'b mut [Vec<u8>; 2],
    contexts: &mut Contexts,
) -> Result<&'b [u8], EngineError> {
    let mut turns = Turns {
        input: encoded,
        buffers,
        at: At::Input,
    };
    for (position, stage) in chain.stages.iter().enumerate().rev() {
        let fail = |reason| EngineError::Decode {
            subchunk,
            stage: stage.name(),
            reason,
        };
        if let Stage::Crc32c = stage {
            turns = strip_checksum(turns, validate_checksums).map_err(|invalid| match invalid {
                crc32c::Invalid::Mismatch => EngineError::Checksum { subchunk },
                crc32c::Invalid::Truncated => fail("there is no room for a checksum".to_string()),
            })?;
            continue;
        }
        let limit = decoded_limit(&chain.stages[..position], expected)
            .ok_or_else(|| fail(format!("{expected} bytes are too many")))?;
        let (from, to) = turns.next(limit);
        let written = match stage {
            Stage::Zstd { .. } => contexts.zstd.decompress(from, to),
            Stage::Gzip { .. } => contexts.gzip.decompress(from, to),
            Stage::Blosc(_) => contexts.blosc.decompress(from, to),
            Stage::Crc32c => unreachable!("handled above"),
        }
        .map_err(fail)?;
        turns.turn(written);
    }
    let decoded = turns.finish();
    if decoded.len() == expected {
        Ok(decoded)
    } else {
        Err(EngineError::DecodedLength {
            subchunk,
            stage: chain.stages.first().map_or("bytes", Stage::name),
            got: decoded.len(),
            expected,
        })
    }
}

/// The most bytes that a stage may decode to, if `inner` are the stages before it (in the order of
/// encoding) and `expected` is the size of a subchunk. Exact unless a compressor is among them;
/// then twice what ours would need, since another writer's may need more.
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

/// Drop the checksum from the current bytes, without copying them.
fn strip_checksum(mut turns: Turns<'_>, validate: bool) -> Result<Turns<'_>, crc32c::Invalid> {
    match turns.at {
        At::Input => turns.input = crc32c::strip(turns.input, validate)?,
        At::Buffer { which, len } => {
            let stripped = crc32c::strip(&turns.buffers[which][..len], validate)?.len();
            turns.at = At::Buffer {
                which,
                len: stripped,
            };
        }
    }
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{BloscStage, Cname, Shuffle};

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
                    let encoded = encode(&chain, 0, &input, &mut buffers, &mut contexts)
                        .expect("encodes")
                        .to_vec();
                    assert!(encoded.len() <= encoded_bound(&chain, len).expect("small"));
                    let decoded =
                        decode(&chain, 0, &encoded, len, true, &mut buffers, &mut contexts)
                            .expect("decodes");
                    assert_eq!(decoded, input, "{:?} of {len}", chain.stages);
                }
            }
        }
    }
}
