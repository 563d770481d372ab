//! Updates of one element in shards with many subchunks: the cost of the index.
//!
//! A shard has a thousand to a million subchunks of 16 elements. Our partial encoder and zarrs'
//! each read and write one random element at a time, in turns. Each has a file of its own; both
//! files start with the same bytes.
//!
//! Our encoder compares the index with the stored one before it writes, and zarrs' does not. The
//! time for this is measured in the same rounds. The benchmark reads the end of the file through
//! the same store, as the encoder does, and compares it with the earlier bytes. If ours rewrites
//! the index in place, it also writes the index once more than zarrs. Therefore writing the index
//! over itself is measured, too.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;
use zarrs::array::codec::ShardingCodec;
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArrayToBytesCodecTraits, CodecOptions, data_type,
};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::{OffsetBytesIterator, ReadableStorageTraits, StoreKey, WritableStorageTraits};
use zarrs_cuda::maintenance::ShardFormat;
use zarrs_cuda::{CudaShardingCodec, Options, WriteStrategy, inspect};
use zarrs_cuda_benches::goals::Goals;
use zarrs_cuda_benches::microscopy::Microscopy;
use zarrs_cuda_benches::{Result, chains};

use crate::counting::Counting;
use crate::heap;

/// Elements of a subchunk.
const SUBCHUNK: u64 = 16;
/// The length of the record that an update leaves before the index.
const RECORD_LEN: usize = 64;
const CHUNK: [u64; 1] = [0];

/// A chain, a strategy, and whether the strategy rewrites the index in place.
const CASES: [(&str, WriteStrategy, &str); 3] = [
    ("none", WriteStrategy::Auto, "auto"),
    ("zstd-1", WriteStrategy::Auto, "auto"),
    ("zstd-1", WriteStrategy::InPlace, "in_place"),
];

/// Measures shards of each size, and returns the rows. `wanted` selects cases by name.
pub(crate) fn run(
    quick: bool,
    wanted: impl Fn(&str) -> bool,
    folder: &Path,
    goals: &mut Goals,
) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for subchunks in [1_000, 100_000, 1_000_000] {
        for (chain, strategy, name) in CASES {
            let name = format!("index/{subchunks}/{chain}/{name}");
            if !wanted(&name) {
                continue;
            }
            if rows.is_empty() {
                print_head();
            }
            let rounds = match subchunks {
                _ if quick => 2,
                1_000_000 => 15,
                _ => 61,
            };
            let measured = measure(subchunks, chain, strategy, rounds, folder)?;
            rows.push(measured.report(&name, goals));
        }
    }
    Ok(rows)
}

/// An array of one shard.
struct Contender {
    array: Array<Counting<FilesystemStore>>,
    store: Arc<Counting<FilesystemStore>>,
    file: PathBuf,
    key: StoreKey,
    options: CodecOptions,
}

impl Contender {
    fn new(codec: Arc<dyn ArrayToBytesCodecTraits>, subchunks: u64, folder: &Path) -> Result<Self> {
        let store = Arc::new(Counting::new(FilesystemStore::new(folder)?));
        let shape = vec![subchunks * SUBCHUNK];
        let mut builder = ArrayBuilder::new(shape.clone(), shape, data_type::uint16(), 0_u16);
        builder.array_to_bytes_codec(codec);
        let array = builder.build(store.clone(), "/")?;
        let key = array.chunk_key(&CHUNK);
        Ok(Self {
            file: folder.join(key.as_str()),
            key,
            array,
            store,
            options: CodecOptions::default().with_experimental_partial_encoding(true),
        })
    }

    fn read(&self, element: u64) -> Result<[u8; 2]> {
        let subset = [element..element + 1];
        let read: ArrayBytes<'_> =
            self.array
                .retrieve_chunk_subset_opt(&CHUNK, &subset, &self.options)?;
        Ok(read.into_fixed()?.as_ref().try_into()?)
    }

    fn write(&self, element: u64, value: [u8; 2]) -> Result<()> {
        let subset = [element..element + 1];
        let value = ArrayBytes::new_flen(value.as_slice());
        self.array
            .store_chunk_subset_opt(&CHUNK, &subset, value, &self.options)?;
        Ok(())
    }
}

/// Times in seconds, and heap memory in bytes, of each round.
#[derive(Default)]
struct Side {
    read: Vec<f64>,
    write: Vec<f64>,
    read_peak: Vec<f64>,
    write_peak: Vec<f64>,
}

struct Measured {
    index_len: usize,
    ours: Side,
    zarrs: Side,
    /// The times of reading the index again, and comparing it.
    compare: Vec<f64>,
    /// The times of writing the index over itself.
    rewrite: Vec<f64>,
    /// The bytes that our encoder wrote in each round.
    written: Vec<f64>,
    inspect: f64,
    display: f64,
}

fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<(f64, f64, T)> {
    let start = Instant::now();
    let (peak, result) = heap::peak(f);
    Ok((start.elapsed().as_secs_f64(), peak as f64, result?))
}

fn measure(
    subchunks: u64,
    chain: &str,
    strategy: WriteStrategy,
    rounds: usize,
    folder: &Path,
) -> Result<Measured> {
    let folder = TempDir::new_in(folder)?;
    let mut configuration =
        serde_json::to_value(chains::configuration(&chains::codecs(chain)?, SUBCHUNK)?)?;
    configuration["chunk_shape"] = json!([SUBCHUNK]);
    let configuration = serde_json::from_value(configuration)?;
    let options = Options::default().with_write_strategy(strategy);
    let ours = CudaShardingCodec::new_with_configuration(&configuration, options)?;
    let zarrs = ShardingCodec::new_with_configuration(&configuration)?;
    let ours = Contender::new(Arc::new(ours), subchunks, &folder.path().join("ours"))?;
    let zarrs = Contender::new(Arc::new(zarrs), subchunks, &folder.path().join("zarrs"))?;

    // The elements of a subchunk are equal. So a compressed subchunk grows when one element
    // changes, and its size changes again with the next element.
    let mut source = Microscopy::new();
    let elements: Vec<u8> = (0..subchunks * SUBCHUNK)
        .flat_map(|element| (1 + (element / SUBCHUNK) as u16 % 1000).to_le_bytes())
        .collect();
    ours.array
        .store_chunk(&CHUNK, ArrayBytes::new_flen(elements))?;
    fs::create_dir_all(zarrs.file.parent().ok_or("a key without a folder")?)?;
    fs::copy(&ours.file, &zarrs.file)?;

    let index_len = subchunks as usize * 16 + 4;
    let mut measured = Measured {
        index_len,
        ours: Side::default(),
        zarrs: Side::default(),
        compare: Vec::new(),
        rewrite: Vec::new(),
        written: Vec::new(),
        inspect: 0.0,
        display: 0.0,
    };
    for round in 0..=rounds {
        let element = source.random() % (subchunks * SUBCHUNK);
        let value = (1 + source.random() as u16 % 1000).to_le_bytes();
        for turn in 0..2 {
            let is_ours = (turn + round) % 2 == 0;
            let (contender, side) = if is_ours {
                (&ours, &mut measured.ours)
            } else {
                (&zarrs, &mut measured.zarrs)
            };
            let (read, read_peak, _) = timed(|| contender.read(element))?;
            contender.store.take();
            let (write, write_peak, ()) = timed(|| contender.write(element, value))?;
            let written = contender.store.take().written;
            if contender.read(element)? != value {
                return Err("what was written is not what is read".into());
            }
            if round > 0 {
                side.read.push(read);
                side.write.push(write);
                side.read_peak.push(read_peak);
                side.write_peak.push(write_peak);
                if is_ours {
                    measured.written.push(written as f64);
                }
            }
        }
        let (compare, rewrite) = extra(&ours, index_len)?;
        if round > 0 {
            measured.compare.push(compare);
            measured.rewrite.push(rewrite);
        }
    }
    // zarrs' codec checks both files. It takes minutes for a million subchunks: then our codec
    // does.
    let judge: Arc<dyn ArrayToBytesCodecTraits> = if subchunks <= 100_000 {
        Arc::new(ShardingCodec::new_with_configuration(&configuration)?)
    } else {
        let options = Options::default();
        Arc::new(CudaShardingCodec::new_with_configuration(
            &configuration,
            options,
        )?)
    };
    let read = |name: &str| -> Result<Vec<u8>> {
        let judge = Contender::new(judge.clone(), subchunks, &folder.path().join(name))?;
        let elements: ArrayBytes<'_> = judge.array.retrieve_chunk(&CHUNK)?;
        Ok(elements.into_fixed()?.into_owned())
    };
    if read("ours")? != read("zarrs")? {
        return Err("the two shards differ".into());
    }
    let format = ShardFormat::of(&ours.array, &CHUNK)?;
    let start = Instant::now();
    let inspection = inspect(&*ours.store, &ours.key, &format)?.ok_or("no shard")?;
    measured.inspect = start.elapsed().as_secs_f64();
    let start = Instant::now();
    black_box(inspection.to_string());
    measured.display = start.elapsed().as_secs_f64();
    Ok(measured)
}

/// Returns two times: for reading and comparing the index and the bytes before it, and for writing
/// the index over itself.
fn extra(ours: &Contender, index_len: usize) -> Result<(f64, f64)> {
    let end = ByteRange::Suffix((index_len + RECORD_LEN) as u64);
    let before = ours.store.get_partial(&ours.key, end)?.ok_or("no shard")?;
    let start = Instant::now();
    let again = ours.store.get_partial(&ours.key, end)?.ok_or("no shard")?;
    let is_same = black_box(again == before);
    let compare = start.elapsed().as_secs_f64();
    drop(again);
    if !is_same {
        return Err("the index changed by itself".into());
    }
    let size = ours.store.size_key(&ours.key)?.ok_or("no shard")?;
    let index = before.slice(RECORD_LEN..);
    let at = size - index_len as u64;
    let pieces: OffsetBytesIterator<'_> = Box::new(std::iter::once((at, index)));
    let start = Instant::now();
    ours.store.set_partial_many(&ours.key, pieces)?;
    Ok((compare, start.elapsed().as_secs_f64()))
}

fn median(values: &[f64]) -> f64 {
    zarrs_cuda_benches::median(values.iter().copied()).unwrap_or(f64::NAN)
}

fn print_head() {
    println!(
        "\n{:34} {:>8} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "one element of a shard",
        "read ms",
        "zarrs",
        "ratio",
        "write ms",
        "zarrs",
        "+compare",
        "+rewrite",
        "ratio",
        "read MiB",
        "zarrs",
        "writeMiB",
        "zarrs",
        "inspect",
        "Display"
    );
}

impl Measured {
    fn report(&self, name: &str, goals: &mut Goals) -> Value {
        let ms = |values: &[f64]| median(values) * 1e3;
        let mib = |values: &[f64]| median(values) / f64::from(1 << 20);
        let (ours, zarrs) = (&self.ours, &self.zarrs);
        let (read, zarrs_read) = (ms(&ours.read), ms(&zarrs.read));
        let (write, zarrs_write) = (ms(&ours.write), ms(&zarrs.write));
        let compare = ms(&self.compare);
        let rewrites = median(&self.written) >= 2.0 * self.index_len as f64;
        let rewrite = if rewrites { ms(&self.rewrite) } else { 0.0 };
        let write_ratio = write / (zarrs_write + compare + rewrite);
        let (read_mib, zarrs_read_mib) = (mib(&ours.read_peak), mib(&zarrs.read_peak));
        let (write_mib, zarrs_write_mib) = (mib(&ours.write_peak), mib(&zarrs.write_peak));
        println!(
            "{name:34} {read:8.3} {zarrs_read:8.3} {:6.2} {write:8.3} {zarrs_write:8.3} {compare:8.3} {rewrite:8.3} {write_ratio:6.2} {read_mib:8.2} {zarrs_read_mib:8.2} {write_mib:8.2} {zarrs_write_mib:8.2} {:8.1} {:8.1}",
            read / zarrs_read,
            self.inspect * 1e3,
            self.display * 1e3,
        );
        goals.at_most(&format!("{name}: read over zarrs'"), read / zarrs_read, 1.0);
        let what = format!("{name}: write over zarrs' and the extra term");
        goals.at_most(&what, write_ratio, 1.0);
        let what = format!("{name}: memory of a read over zarrs'");
        goals.at_most(&what, read_mib / zarrs_read_mib, 1.3);
        let what = format!("{name}: memory of a write over zarrs'");
        goals.at_most(&what, write_mib / zarrs_write_mib, 1.3);
        json!({
            "case": name,
            "rounds": ours.read.len(),
            "read_ms": read,
            "zarrs_read_ms": zarrs_read,
            "write_ms": write,
            "zarrs_write_ms": zarrs_write,
            "compare_ms": compare,
            "rewrite_ms": rewrite,
            "read_peak_mib": read_mib,
            "zarrs_read_peak_mib": zarrs_read_mib,
            "write_peak_mib": write_mib,
            "zarrs_write_peak_mib": zarrs_write_mib,
            "bytes_written": median(&self.written),
            "inspect_ms": self.inspect * 1e3,
            "display_ms": self.display * 1e3,
        })
    }
}
