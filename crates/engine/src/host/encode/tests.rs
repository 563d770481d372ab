//! Shards from elements with strides, against shards from the same elements in C order.

use std::borrow::Cow;
use std::num::NonZeroUsize;

use zarrs_cuda_testing::Rng;
use zarrs_cuda_testing::effort;

use super::*;
use crate::contract::{BloscStage, Cname, Engine, Shuffle, Stage};
use crate::host::HostEngine;
use crate::layout::{c_order, strides_in};

/// A codec that the engine does not know, with outputs of several sizes.
#[derive(Debug)]
struct Backwards;

impl SubchunkCodec for Backwards {
    fn encode<'b>(&self, decoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError> {
        let mut bytes: Vec<u8> = decoded.iter().rev().copied().collect();
        bytes.extend(std::iter::repeat_n(1, usize::from(decoded[0] % 4)));
        Ok(bytes.into())
    }

    fn decode<'b>(&self, encoded: Cow<'b, [u8]>) -> Result<Cow<'b, [u8]>, EngineError> {
        Ok(encoded)
    }
}

/// A shard in memory with strides, and its codecs.
#[derive(Debug)]
struct Case {
    grid: SubchunkGrid,
    /// `None` for a codec that the engine does not know.
    chain: Option<KnownChain>,
    fill_value: Vec<u8>,
    memory: Vec<u8>,
    strides: Vec<usize>,
    store_empty: bool,
    threads: usize,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

fn stage(rng: &mut Rng) -> Stage {
    match rng.below(6) {
        0 => Stage::Zstd {
            level: 1,
            checksum: rng.one_in(2),
        },
        1 => Stage::Gzip { level: 1 },
        2 => Stage::Blosc(BloscStage {
            cname: pick(
                rng,
                &[Cname::BloscLz, Cname::Lz4, Cname::Lz4Hc, Cname::Zstd],
            ),
            level: pick(rng, &[1, 5]),
            shuffle: pick(rng, &[Shuffle::None, Shuffle::Byte, Shuffle::Bit]),
            typesize: pick(rng, &[1, 2, 4, 8]),
            blocksize: 0,
        }),
        _ => Stage::Crc32c,
    }
}

/// Returns strides of a layout that numpy can give: boxes of larger arrays with their axes in any order,
/// repeated elements, elements with gaps, and elements that share bytes.
fn strides_of(shape: &[usize], element_size: usize, rng: &mut Rng) -> Vec<usize> {
    let n = shape.len();
    let gaps = rng.below(3);
    let larger: Vec<usize> = shape
        .iter()
        .map(|extent| extent + if gaps == 0 { 0 } else { rng.below(3) as usize })
        .collect();
    let order: Vec<usize> = match rng.below(4) {
        0 | 1 => (0..n).collect(),
        2 => (0..n).rev().collect(),
        _ => rng.permutation(n),
    };
    let mut strides = strides_in(&order, &larger, element_size);
    match rng.below(8) {
        // Every second element, or elements with bytes between them.
        0 => strides.iter_mut().for_each(|stride| *stride *= 2),
        1 => {
            let gap = rng.below(7) as usize;
            strides = strides_in(&order, &larger, element_size + gap);
        }
        2 => strides.iter_mut().for_each(|stride| {
            if rng.one_in(2) {
                *stride = 0;
            }
        }),
        3 => strides.iter_mut().for_each(|stride| {
            *stride = rng.below(2 * element_size as u64 + 2) as usize;
        }),
        _ => {}
    }
    for (extent, stride) in std::iter::zip(shape, &mut strides) {
        if *extent == 1 && rng.one_in(2) {
            *stride = pick(rng, &[0, 1, usize::MAX]);
        }
    }
    strides
}

impl Case {
    fn new(seed: u64) -> Self {
        let rng = &mut Rng(seed);
        let dimensions = rng.below(5) as usize;
        let longest = match dimensions {
            1 | 2 => pick(rng, &[3, 40, 200]),
            3 => pick(rng, &[3, 20, 36]),
            _ => 5,
        };
        let subchunk: Vec<u64> = (0..dimensions).map(|_| 1 + rng.below(longest)).collect();
        let counts: Vec<u64> = (0..dimensions)
            .map(|_| if rng.one_in(50) { 0 } else { 1 + rng.below(3) })
            .collect();
        let shard: Vec<u64> = std::iter::zip(&subchunk, &counts)
            .map(|(s, c)| s * c)
            .collect();
        let element_size = pick(rng, &[1, 2, 3, 4, 4, 8, 8, 16, 20, 32, 64]);
        let grid = SubchunkGrid::new(&shard, &subchunk, element_size).unwrap();
        let strides = strides_of(grid.shard(), element_size, rng);
        let last: usize = std::iter::zip(grid.shard(), &strides)
            .filter(|(extent, _)| **extent > 1)
            .map(|(extent, stride)| (extent - 1) * stride)
            .sum();
        let fill_value: Vec<u8> = if rng.one_in(2) {
            vec![7; element_size]
        } else {
            (0..element_size).map(|_| rng.byte()).collect()
        };
        let len = last + element_size + rng.below(9) as usize;
        let mut memory = fill_value.repeat(len.div_ceil(element_size));
        memory.truncate(len);
        if rng.one_in(2) {
            memory.fill_with(|| rng.byte() % 5);
        } else {
            for _ in 0..rng.below(4) {
                let range = rng.range(len.min(300) as u64);
                let start = rng.below((len - range.end as usize) as u64 + 1) as usize;
                memory[start..start + (range.end - range.start) as usize].fill(9);
            }
        }
        let units: Vec<usize> = (1..=element_size)
            .filter(|unit| element_size.is_multiple_of(*unit))
            .collect();
        let chain = KnownChain {
            order: rng.permutation(dimensions),
            swap: pick(rng, &units),
            stages: (0..rng.below(4)).map(|_| stage(rng)).collect(),
        };
        Self {
            grid,
            chain: (!rng.one_in(6)).then_some(chain),
            fill_value,
            memory,
            strides,
            store_empty: rng.one_in(3),
            threads: 1 + rng.below(3) as usize,
        }
    }

    fn job(&self) -> ShardJob<'_> {
        ShardJob {
            grid: &self.grid,
            chain: match &self.chain {
                Some(chain) => Chain::Known(chain),
                None => Chain::Foreign(&Backwards),
            },
            fill_value: &self.fill_value,
            store_empty: self.store_empty,
            validate_checksums: true,
            threads: NonZeroUsize::new(self.threads).unwrap(),
            huge_pages: false,
        }
    }

    /// Returns the elements in C order, copied one by one.
    fn in_c_order(&self) -> Vec<u8> {
        let (shape, size) = (self.grid.shard(), self.grid.element_size());
        (0..shape.iter().product())
            .flat_map(|number| {
                let at = c_order::coordinates(number, shape);
                let offsets = std::iter::zip(&at, &self.strides);
                let start: usize = offsets.map(|(at, stride)| at.wrapping_mul(*stride)).sum();
                &self.memory[start..start + size]
            })
            .copied()
            .collect()
    }

    fn check(&self) {
        let contiguous = self.in_c_order();
        let elements = ShardElements::strided(&self.memory, &self.strides[..]);
        let job = self.job();
        for (head, tail) in [(0, 0), (3, 5)] {
            let expected = HostEngine.encode(&job, &contiguous, head, tail).unwrap();
            let spares = Spares::default();
            for spares in [None, Some(&spares), Some(&spares)] {
                let found = HostEngine.encode_elements(&job, &elements, (head, tail), spares);
                let mut found = found.unwrap();
                assert_eq!(found.extents, expected.extents);
                assert!(found.bytes == expected.bytes, "other bytes");
                assert!(found.bytes.capacity() >= found.bytes.len() + tail);
                if let Some(spares) = spares {
                    found.bytes.fill(0xA5);
                    spares.give(found.bytes);
                }
            }
        }
        let gathered = HostEngine.gather(&job, &elements).unwrap();
        assert!(gathered == contiguous, "other elements");
        if let Some(borrowed) = elements.as_contiguous(&self.grid).unwrap() {
            assert!(borrowed == contiguous, "these are not contiguous");
        }
    }
}

#[test]
fn strided_elements_give_the_shard_of_contiguous_ones() {
    for seed in effort::seeds(4000) {
        let case = Case::new(seed);
        let shown = (seed, &case.grid, &case.strides, &case.chain);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case.check()));
        assert!(result.is_ok(), "failed: {shown:?}");
    }
}

/// The memory ends with the last element, so that a read behind it is found by a sanitizer.
#[test]
fn memory_that_is_too_short_is_an_error() {
    for seed in effort::seeds(300) {
        let mut case = Case::new(seed);
        let last = case.grid.shard().iter().zip(&case.strides);
        let last = last.filter(|(extent, _)| **extent > 1);
        let last: usize = last.map(|(extent, stride)| (extent - 1) * stride).sum();
        case.memory.truncate(last + case.grid.element_size());
        case.check();
        if case.grid.shard_bytes() == 0 {
            continue;
        }
        case.memory.pop();
        let elements = ShardElements::strided(&case.memory, &case.strides[..]);
        for error in [
            HostEngine
                .encode_elements(&case.job(), &elements, (0, 0), None)
                .unwrap_err(),
            HostEngine.gather(&case.job(), &elements).unwrap_err(),
            elements.as_contiguous(&case.grid).unwrap_err(),
        ] {
            assert!(matches!(error, EngineError::Strides { .. }), "{error:?}");
        }
    }
}
