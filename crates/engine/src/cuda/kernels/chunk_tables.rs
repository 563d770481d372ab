//! The tables that a batched compressor reads. The kernel is in `chunk_tables.cu`.

use std::ops::Range;

use super::spans::{Launch, Most, Slots};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};

/// The number of threads per block, the same as in the kernel.
const BLOCK: u32 = 256;

const MOST: Most = Most::PerMultiprocessor(16);

/// The division of a subchunk into blocks, and of a block into chunks. The compressor compresses each chunk
/// separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunking {
    /// The size of a subchunk, in bytes.
    pub bytes: usize,
    /// The size of a block, in bytes. The last block may be shorter.
    pub block: usize,
    /// The number of chunks of a whole block, which all have the same size. A shorter last block is one chunk.
    pub split: usize,
}

impl Chunking {
    /// Returns the division of `bytes` bytes into chunks of `block` bytes.
    pub fn new(bytes: usize, block: usize) -> Self {
        let split = 1;
        Self {
            bytes,
            block,
            split,
        }
    }

    /// Returns the number of blocks of a subchunk.
    pub fn blocks(self) -> usize {
        self.bytes.div_ceil(self.block.max(1))
    }

    /// Returns the number of chunks of a subchunk.
    pub fn chunks(self) -> usize {
        let whole = self.bytes / self.block.max(1);
        whole.saturating_mul(self.split) + (self.blocks() - whole)
    }

    /// Returns the numbers of the chunks of the block with the number `block`.
    pub fn of_block(self, block: usize) -> Range<usize> {
        let first = block.saturating_mul(self.split);
        first..first.saturating_add(self.split).min(self.chunks())
    }

    /// Returns the number of bytes of a chunk of a whole block.
    pub fn step(self) -> usize {
        self.block / self.split.max(1)
    }

    /// Returns the number of steps from the begin of a subchunk to its end. Each chunk begins at a whole step.
    pub fn steps(self) -> usize {
        self.bytes.div_ceil(self.step().max(1))
    }

    /// Returns whether all chunks of a subchunk that begins at a multiple of `alignment` bytes begin at such multiples.
    pub fn begins_at(self, alignment: usize) -> bool {
        self.chunks() <= 1 || self.step().is_multiple_of(alignment)
    }

    /// Returns the bytes of the chunk with the number `number` in its subchunk.
    pub fn chunk(self, number: usize) -> Range<usize> {
        let whole = self.bytes / self.block.max(1);
        if number < whole.saturating_mul(self.split) {
            let start = number * self.step();
            start..start + self.step()
        } else {
            whole * self.block..self.bytes
        }
    }

    /// Returns the number of bytes of the longest chunk.
    pub fn longest(self) -> usize {
        match self.bytes / self.block.max(1) {
            0 => self.bytes,
            whole => self.step().max(self.bytes - whole * self.block),
        }
    }
}

/// The tables that a batched compressor reads. Each has a `u64` for each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkTables {
    /// The addresses of the chunks.
    pub input_pointers: DeviceSpan,
    /// The sizes of the chunks in bytes.
    pub input_sizes: DeviceSpan,
    /// The addresses of the slots that receive the compressed streams of the chunks.
    pub output_pointers: DeviceSpan,
}

/// Enqueues a kernel that writes the `tables` for the subchunks in the slots of `inputs`. Each chunk of these
/// subchunks has a slot in `outputs`. If a subchunk's flag in `stored` (a `u32` each) is zero, its chunks get
/// a size of one byte, because their streams are not used.
///
/// The addresses of chunks have the alignment of [`Chunking::block`], or that of the slots if it is smaller.
///
/// # Errors
/// A span is too short or misaligned, slots do not match the chunks, or the driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists.
pub unsafe fn chunk_tables(
    driver: &dyn Driver,
    stream: StreamId,
    inputs: Slots,
    chunking: Chunking,
    stored: Option<DeviceSpan>,
    outputs: Slots,
    tables: ChunkTables,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "chunk_tables",
    };
    let Chunking {
        bytes,
        block,
        split,
    } = chunking;
    launch.require(split == 1, || {
        format!("blocks of {split} chunks each are not compressed on a device")
    })?;
    let input_span = launch.slots("subchunks", inputs)?;
    let output_span = launch.slots("streams", outputs)?;
    launch.require((1..=inputs.stride).contains(&bytes), || {
        format!("a slot of {} bytes cannot hold {bytes}", inputs.stride)
    })?;
    launch.require((1..=bytes).contains(&block), || {
        format!("{bytes} bytes cannot be cut into chunks of {block}")
    })?;
    let blocks = chunking.blocks();
    let count = inputs.count.checked_mul(blocks);
    launch.require(count == Some(outputs.count), || {
        format!(
            "{} streams are not those of {} subchunks with {blocks} chunks each",
            outputs.count, inputs.count
        )
    })?;
    let number = outputs.count;
    let input_pointers = launch.elements("addresses", tables.input_pointers, number, 8, 8)?;
    let input_sizes = launch.elements("sizes", tables.input_sizes, number, 8, 8)?;
    let output_pointers =
        launch.elements("addresses of streams", tables.output_pointers, number, 8, 8)?;
    let stored = match stored {
        Some(stored) => {
            let stored = launch.elements("flags", stored, inputs.count, 4, 4)?;
            Arg::Span(stored, Access::Read)
        }
        None => Arg::Null,
    };
    if number == 0 {
        return Ok(());
    }
    let args = [
        // The kernel needs only the addresses: it accesses neither subchunks nor streams.
        Arg::U64(address(input_span)),
        Arg::U64(inputs.stride as u64),
        Arg::U64(bytes as u64),
        Arg::U64(block as u64),
        Arg::U64(blocks as u64),
        Arg::U64(inputs.count as u64),
        stored,
        Arg::U64(address(output_span)),
        Arg::U64(outputs.stride as u64),
        Arg::Span(input_pointers, Access::Write),
        Arg::Span(input_sizes, Access::Write),
        Arg::Span(output_pointers, Access::Write),
    ];
    let grid = launch.grid(number, BLOCK as usize, MOST);
    // SAFETY: each of the tables has an element for each chunk, and `stored` has a flag for each subchunk.
    unsafe { launch.run(grid, BLOCK, &args) }
}

/// Returns the address of the first byte of `span`.
fn address(span: DeviceSpan) -> u64 {
    span.memory.0 + span.offset as u64
}

#[cfg(test)]
pub(crate) mod tests {
    use zarrs_cuda_testing::effort;

    use super::super::spans::testing::*;
    use super::super::testing::run as on;
    use super::*;
    use crate::cuda::driver::simulation::Simulation;
    use proptest::prelude::*;
    use std::cell::Cell;

    #[derive(Clone, Debug)]
    struct Case {
        count: usize,
        chunking: Chunking,
        /// The strides of the subchunks, and of the streams.
        strides: (usize, usize),
        /// A flag for each subchunk, where there are flags.
        stored: Option<Vec<bool>>,
    }

    fn cases() -> impl Strategy<Value = Case> {
        let bytes = 1..5000usize;
        bytes
            .prop_flat_map(|bytes| {
                let block = prop_oneof![
                    1..=bytes,
                    Just(bytes),
                    (1..=bytes).prop_map(move |n| bytes.div_ceil(n)),
                ];
                let stored = proptest::option::of(proptest::collection::vec(any::<bool>(), 12));
                let count = 0..=12usize;
                (Just(bytes), block, count, (0..40usize, 1..9usize), stored)
            })
            .prop_map(|(bytes, block, count, (room, granules), stored)| Case {
                count,
                chunking: Chunking::new(bytes, block),
                strides: ((bytes + room).next_multiple_of(16), granules * 16),
                stored: stored.map(|stored| stored[..count].to_vec()),
            })
    }

    fn check_case(driver: &dyn Driver, case: &Case) {
        let &Case {
            count,
            chunking,
            strides: (in_stride, out_stride),
            ..
        } = case;
        let blocks = chunking.bytes.div_ceil(chunking.block);
        let chunk_count = count * blocks;
        let flags = case.stored.as_ref().map_or(vec![0; count], |stored| {
            stored.iter().map(|&stored| 5 * u32::from(stored)).collect()
        });
        let mut inputs = vec![0x11; count * in_stride];
        let mut outputs = vec![0x22; chunk_count * out_stride];
        let mut flags = u32s(&flags);
        let mut tables = [(); 3].map(|()| vec![0xcc; 8 * chunk_count]);
        let [pointers, sizes, to] = &mut tables;
        let addresses = Cell::new((0, 0));
        let buffers = &mut [&mut inputs, &mut outputs, &mut flags, pointers, sizes, to];
        on(driver, buffers, |stream, spans| {
            addresses.set((spans[0].memory.0, spans[1].memory.0));
            let tables = ChunkTables {
                input_pointers: spans[3],
                input_sizes: spans[4],
                output_pointers: spans[5],
            };
            // SAFETY: the spans cover the buffers.
            unsafe {
                chunk_tables(
                    driver,
                    stream,
                    slots(spans[0], in_stride, count),
                    chunking,
                    case.stored.is_some().then_some(spans[2]),
                    slots(spans[1], out_stride, chunk_count),
                    tables,
                )
            }
        })
        .expect("launches");
        let mut expected = [(); 3].map(|()| Vec::new());
        for i in 0..count {
            let mut left = chunking.bytes;
            for j in 0..blocks {
                let begin = chunking.bytes - left;
                let size = left.min(chunking.block);
                let elided = case.stored.as_ref().is_some_and(|stored| !stored[i]);
                let number = i * blocks + j;
                expected[0].push(addresses.get().0 + (i * in_stride + begin) as u64);
                expected[1].push(if elided { 1 } else { size as u64 });
                expected[2].push(addresses.get().1 + (number * out_stride) as u64);
                left -= size;
            }
            assert_eq!(left, 0);
        }
        assert!(tables.map(|table| to_u64s(&table)) == expected, "{case:?}");
        assert!(inputs.iter().all(|&byte| byte == 0x11));
        assert!(outputs.iter().all(|&byte| byte == 0x22));
    }

    pub(crate) fn check_chunk_tables(driver: &dyn Driver, tries: u32) {
        effort::property(tries, &cases(), |case| {
            check_case(driver, &case);
            Ok(())
        });
        for (count, block) in [(0, 7), (1, 7), (1, 1), (20_000, 7), (20_000, 3)] {
            for elide in [false, true] {
                let case = Case {
                    count,
                    chunking: Chunking::new(7, block),
                    strides: (16, 16),
                    stored: elide.then(|| (0..count).map(|i| i % 3 != 1).collect()),
                };
                check_case(driver, &case);
            }
        }
    }

    #[test]
    fn every_chunk_is_in_the_tables() {
        check_chunk_tables(&Simulation::eager(), 64);
    }

    /// Compares a division with one that lists the chunks of each block.
    #[test]
    fn chunks_are_those_of_their_blocks() {
        let any = (1..5000_usize, 1..600_usize, 1..20_usize);
        effort::property(256, &any, |(bytes, step, split)| {
            let chunking = Chunking {
                bytes,
                block: step * split,
                split,
            };
            let mut chunks: Vec<Range<usize>> = Vec::new();
            for (number, start) in (0..bytes).step_by(step * split).enumerate() {
                let first = chunks.len();
                let end = start + step * split;
                if end > bytes {
                    chunks.push(start..bytes);
                } else {
                    let starts = (start..end).step_by(step);
                    chunks.extend(starts.map(|start| start..start + step));
                }
                prop_assert_eq!(chunking.of_block(number), first..chunks.len());
            }
            prop_assert_eq!(chunking.chunks(), chunks.len());
            prop_assert_eq!(chunking.blocks(), bytes.div_ceil(step * split));
            let longest = chunks.iter().map(ExactSizeIterator::len).max();
            prop_assert_eq!(Some(chunking.longest()), longest);
            let mut steps = 0;
            for (number, chunk) in chunks.iter().enumerate() {
                prop_assert_eq!(&chunking.chunk(number), chunk);
                prop_assert_eq!(chunk.start, steps * chunking.step());
                steps += chunk.len().div_ceil(chunking.step());
            }
            prop_assert_eq!(chunking.steps(), steps);
            Ok(())
        });
    }

    /// The addresses in the tables are those of this launch, whatever the simulation remembers.
    #[test]
    fn tables_of_the_same_chunks_again() {
        for _ in 0..5 {
            let case = Case {
                count: 10,
                chunking: Chunking::new(7, 3),
                strides: (16, 16),
                stored: None,
            };
            check_case(&Simulation::eager(), &case);
        }
    }

    #[test]
    fn wrong_geometry_is_an_error() {
        let driver = Simulation::eager();
        let fits = (16, 10, 4, 6, 48, 192, 8);
        for (stride, bytes, block, streams, tables_len, at, flags) in [
            (16, 17, 17, 2, 48, 192, 8),    // no room in a slot
            (16, 0, 1, 0, 48, 192, 8),      // no bytes
            (16, 10, 0, 6, 48, 192, 8),     // no chunks
            (16, 10, 11, 2, 48, 192, 8),    // chunks longer than all
            (16, 10, 4, 4, 48, 192, 8),     // too few streams
            (24, 10, 4, 6, 48, 192, 8),     // stride
            (16, 10, 4, 6, 47, 192, 8),     // short tables
            (16, 10, 4, 6, 48, 196, 8),     // misaligned tables
            (16, 10, 4, 6, 48, 192, 7),     // short flags
            (1 << 12, 10, 4, 6, 48, 64, 8), // beyond the end
            fits,
        ] {
            let mut bytes_of_all = vec![0; 512];
            let result = on(&driver, &mut [&mut bytes_of_all], |stream, spans| {
                let part = |offset, len| DeviceSpan {
                    offset,
                    len,
                    ..spans[0]
                };
                let chunking = Chunking::new(bytes, block);
                let tables = ChunkTables {
                    input_pointers: part(at, tables_len),
                    input_sizes: part(at + 64, tables_len),
                    output_pointers: part(at + 128, tables_len),
                };
                let inputs = slots(part(0, 64), stride, 2);
                let outputs = slots(part(64, 96), 16, streams);
                let stored = Some(part(448, flags));
                // SAFETY: spans that do not fit are refused, which is what is tested.
                unsafe { chunk_tables(&driver, stream, inputs, chunking, stored, outputs, tables) }
            });
            let all = (stride, bytes, block, streams, tables_len, at, flags);
            assert_eq!(result.is_ok(), all == fits, "{all:?}");
        }
    }

    #[test]
    fn tables_are_written_in_whole_sectors() {
        let driver = counting();
        let case = Case {
            count: 1024,
            chunking: Chunking::new(64, 16),
            strides: (64, 16),
            stored: Some(vec![true; 1024]),
        };
        check_case(&driver, &case);
        let (moved, _) = sectors(&driver);
        // 3 entries of 8 bytes for each of 4096 chunks, and a flag for each subchunk.
        assert_eq!(moved, 3 * 4096 * 8 / 32 + 1024 * 4 / 32);
    }
}
