//! The contenders: each has a codec, an array of one shard, and a file of its own.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use zarrs::array::codec::ShardingCodec;
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArrayToBytesCodecTraits, CodecOptions, data_type,
};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::maintenance::ShardFormat;
use zarrs_cuda::{CudaShardingCodec, Options, WriteStrategy, compact};
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::chains::configuration;

use crate::cases::{SHARD, SUBCHUNK, Update};
use crate::counting::{Counting, Traffic};

/// The only shard of an array.
const CHUNK: [u64; 3] = [0; 3];
const SUBCHUNKS: usize = (SHARD / SUBCHUNK).pow(3) as usize;
/// Two numbers for each subchunk, and a checksum.
const INDEX_LEN: usize = SUBCHUNKS * 16 + 4;
/// The pause before each update.
const REST: Duration = Duration::from_millis(2);

/// How a shard is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Ours(WriteStrategy),
    ZarrsPartial,
    /// zarrs reads the shard, changes it, and stores it whole.
    ZarrsRewrite,
}

impl Method {
    pub(crate) const ALL: [Self; 6] = [
        Self::Ours(WriteStrategy::Auto),
        Self::Ours(WriteStrategy::Append),
        Self::Ours(WriteStrategy::InPlace),
        Self::Ours(WriteStrategy::Slots),
        Self::ZarrsPartial,
        Self::ZarrsRewrite,
    ];

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Ours(_))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours(WriteStrategy::Append) => "append",
            Self::Ours(WriteStrategy::InPlace) => "in_place",
            Self::Ours(WriteStrategy::Slots) => "slots",
            Self::Ours(_) => "auto",
            Self::ZarrsPartial => "zarrs_partial",
            Self::ZarrsRewrite => "zarrs_rewrite",
        }
    }
}

pub(crate) struct Contender {
    pub(crate) method: Method,
    array: Array<Counting<FilesystemStore>>,
    store: Arc<Counting<FilesystemStore>>,
    file: PathBuf,
    options: CodecOptions,
    /// Whether the codec asked for compaction.
    asked: Arc<AtomicBool>,
    index: Vec<u8>,
}

/// The cost of one update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    pub(crate) traffic: Traffic,
    /// The encoded sizes of the subchunks that the update touched, and of the index if it changed.
    pub(crate) changed: u64,
}

/// The cost of a compaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compaction {
    pub(crate) seconds: f64,
    pub(crate) written: u64,
}

impl Contender {
    /// Creates a contender in `folder` whose shard holds `data`.
    pub(crate) fn new(method: Method, codecs: &Value, folder: &Path, data: &[u8]) -> Result<Self> {
        let configuration = configuration(codecs, SUBCHUNK)?;
        let asked = Arc::new(AtomicBool::new(false));
        let codec: Arc<dyn ArrayToBytesCodecTraits> = match method {
            Method::Ours(strategy) => {
                let asked = asked.clone();
                let options = Options::default()
                    .with_write_strategy(strategy)
                    .with_compaction_callback(move |_| asked.store(true, Ordering::Relaxed));
                Arc::new(CudaShardingCodec::new_with_configuration(
                    &configuration,
                    options,
                )?)
            }
            Method::ZarrsPartial | Method::ZarrsRewrite => {
                Arc::new(ShardingCodec::new_with_configuration(&configuration)?)
            }
        };
        let folder = folder.join(method.name());
        let store = FilesystemStore::new(&folder)?;
        let shape = [SHARD; 3].to_vec();
        let mut builder = ArrayBuilder::new(shape.clone(), shape, data_type::uint16(), 0_u16);
        builder.array_to_bytes_codec(codec);
        let store = Arc::new(Counting::new(store));
        let array = builder.build(store.clone(), "/")?;
        let file = folder.join(array.chunk_key(&CHUNK).as_str());
        let options = CodecOptions::default()
            .with_experimental_partial_encoding(method != Method::ZarrsRewrite);
        let mut contender = Self {
            method,
            array,
            store,
            file,
            options,
            asked,
            index: Vec::new(),
        };
        contender.fill(data)?;
        contender.index = contender.read_index()?;
        Ok(contender)
    }

    /// Writes the whole shard at once, so that it is compact. A strategy with slots needs two
    /// updates instead.
    fn fill(&self, data: &[u8]) -> Result<()> {
        if self.method != Method::Ours(WriteStrategy::Slots) {
            let elements = ArrayBytes::new_flen(Cow::Borrowed(data));
            self.array.store_chunk(&CHUNK, elements)?;
            return Ok(());
        }
        // A whole shard is encoded without slots. Two halves are two updates.
        for (start, half) in [0, SHARD / 2].into_iter().zip(data.chunks(data.len() / 2)) {
            let shape = [SHARD / 2, SHARD, SHARD];
            self.store(&Update::new([start, 0, 0], shape, half.to_vec()))?;
        }
        Ok(())
    }

    fn store(&self, update: &Update) -> Result<()> {
        let elements = ArrayBytes::new_flen(Cow::Borrowed(update.data.as_slice()));
        self.array
            .store_chunk_subset_opt(&CHUNK, &update.ranges(), elements, &self.options)?;
        Ok(())
    }

    /// Makes `update` and returns its cost. Only the update itself is timed and counted.
    pub(crate) fn update(&mut self, update: &Update) -> Result<Cost> {
        // Waits until the process is idle. Threads may still spin after the previous update, and
        // generating data may have used up this process's share of a busy CPU.
        thread::sleep(REST);
        self.store.take();
        let start = Instant::now();
        self.store(update)?;
        let seconds = start.elapsed().as_secs_f64();
        let traffic = self.store.take();

        let index = self.read_index()?;
        let sizes = sizes(&index);
        let touched: u64 = update.subchunks().iter().map(|&i| sizes[i]).sum();
        let changed = touched + u64::from(index != self.index) * INDEX_LEN as u64;
        self.index = index;
        Ok(Cost {
            seconds,
            traffic,
            changed,
        })
    }

    /// Compacts the shard if the codec asked for it since the last call.
    pub(crate) fn compact_if_asked(&mut self) -> Result<Option<Compaction>> {
        if !self.asked.swap(false, Ordering::Relaxed) {
            return Ok(None);
        }
        self.store.take();
        let start = Instant::now();
        let format = ShardFormat::of(&self.array, &CHUNK)?;
        compact(&*self.store, &self.array.chunk_key(&CHUNK), &format)?;
        let seconds = start.elapsed().as_secs_f64();
        self.index = self.read_index()?;
        Ok(Some(Compaction {
            seconds,
            written: self.store.take().written,
        }))
    }

    /// The size of the shard, relative to its size without unused bytes.
    pub(crate) fn growth(&self) -> Result<f64> {
        let compact = sizes(&self.index).iter().sum::<u64>() + INDEX_LEN as u64;
        Ok(fs::metadata(&self.file)?.len() as f64 / compact as f64)
    }

    /// Whether zarrs' own codec reads `data` from the shard.
    pub(crate) fn holds(&self, data: &[u8], codecs: &Value) -> Result<bool> {
        let zarrs = ShardingCodec::new_with_configuration(&configuration(codecs, SUBCHUNK)?)?;
        let decoded = zarrs.decode(
            fs::read(&self.file)?.into(),
            &[SHARD.try_into()?; 3],
            self.array.data_type(),
            self.array.fill_value(),
            &CodecOptions::default(),
        )?;
        Ok(*decoded.into_fixed()? == *data)
    }

    /// The encoded index, which lies at the end.
    fn read_index(&self) -> Result<Vec<u8>> {
        let mut file = File::open(&self.file)?;
        file.seek(SeekFrom::End(-(INDEX_LEN as i64)))?;
        let mut index = vec![0; INDEX_LEN];
        file.read_exact(&mut index)?;
        Ok(index)
    }
}

/// The encoded size of each subchunk; 0 for one that is not stored.
fn sizes(index: &[u8]) -> Vec<u64> {
    index
        .chunks_exact(16)
        .map(|entry| {
            let size = entry
                .last_chunk()
                .map_or(0, |&size| u64::from_le_bytes(size));
            if size == u64::MAX { 0 } else { size }
        })
        .collect()
}
