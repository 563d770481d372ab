//! The array of a pipeline: its chunks, their keys, and the reader of the library for it.

use std::collections::HashMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use zarrs::array::{Array, ArrayMetadata, ArrayShardedExt};
use zarrs::metadata::v3::{ArrayMetadataV3, MetadataV3};
use zarrs_codec::CodecOptions;
use zarrs_cuda::maintenance::ShardFormat;
use zarrs_cuda::reader::ArrayReader;
use zarrs_cuda::storage::SparseShardStore;
use zarrs_cuda::writer::{BoxWriter, ShardUpdate};
use zarrs_cuda_engine::process::per_process::PerProcess;

use crate::devices::DeviceSettings;
use crate::error::Error;
use crate::store::Store;

/// The encoding of the keys of an array's chunks.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The shape of a chunk, in elements.
    chunk: Vec<usize>,
    /// Whether keys begin with `c`.
    is_default: bool,
    separator: char,
}

impl Keys {
    /// Returns the encoding of the chunk keys of an array.
    ///
    /// # Errors
    /// The reason, if the keys or the chunk grid are of an unsupported kind.
    pub(crate) fn new(metadata: &ArrayMetadataV3) -> Result<Self, String> {
        let grid = &metadata.chunk_grid;
        let chunk = grid
            .configuration()
            .filter(|_| grid.name() == "regular")
            .and_then(|configuration| configuration.get("chunk_shape"))
            .and_then(|shape| serde_json::from_value::<Vec<usize>>(shape.clone()).ok())
            .ok_or_else(|| format!("its chunk grid is {}, and not regular", grid.name()))?;
        let encoding = &metadata.chunk_key_encoding;
        let (is_default, usual) = match encoding.name() {
            "default" => (true, '/'),
            "v2" => (false, '.'),
            other => return Err(format!("its chunk key encoding is {other}")),
        };
        let separator = encoding
            .configuration()
            .and_then(|configuration| configuration.get("separator"))
            .and_then(|separator| separator.as_str())
            .map_or(Some(usual), |separator| separator.chars().next())
            .ok_or("the separator of its chunk keys is empty")?;
        Ok(Self {
            chunk,
            is_default,
            separator,
        })
    }

    pub(crate) fn chunk(&self) -> &[usize] {
        &self.chunk
    }

    /// Returns the path of the array and the position of the chunk in its grid, from the key of a chunk.
    /// Returns `None` for another key.
    pub(crate) fn parse<'k>(&self, key: &'k str) -> Option<(&'k str, Vec<u64>)> {
        let mut indices = vec![0; self.chunk.len()];
        let mut rest = key;
        for (axis, index) in indices.iter_mut().enumerate().rev() {
            let is_first = axis == 0 && !self.is_default;
            let at = match (is_first, self.separator) {
                (true, '/') | (false, _) => rest.rfind(self.separator),
                (true, _) => rest.rfind('/'),
            };
            let number = &rest[at.map_or(0, |at| at + 1)..];
            if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            *index = number.parse().ok()?;
            rest = match at {
                Some(at) => &rest[..at],
                None if is_first => "",
                None => return None,
            };
        }
        if self.is_default {
            rest = rest.strip_suffix('c')?;
            rest = rest
                .strip_suffix('/')
                .or_else(|| rest.is_empty().then_some(""))?;
        } else if self.chunk.is_empty() {
            rest = rest.strip_suffix('0')?;
            rest = rest
                .strip_suffix('/')
                .or_else(|| rest.is_empty().then_some(""))?;
        }
        Some((rest, indices))
    }
}

/// An array at a path, opened for the calls of a pipeline.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) array: Array<Store>,
    pub(crate) chunk: Vec<NonZeroU64>,
    /// The size of an element, in bytes; 0 if elements have no fixed size.
    pub(crate) element_size: usize,
    pub(crate) chunk_bytes: usize,
    /// Whether parts of a chunk can be updated. If so, a write keeps the elements of a chunk behind the
    /// array's end.
    pub(crate) is_sharded: bool,
    /// The shape of subchunks, if the library reads them by themselves.
    pub(crate) subchunk: Option<Vec<u64>>,
    /// Whether elements without a fixed size are decoded by whole chunks: zarrs' decoders of parts return
    /// wrong elements, or panic, if other codecs are around the shards, or transpose them.
    pub(crate) decodes_whole: bool,
    /// The reader of `array`, or `None` if zarrs decodes its chunks or the library cannot read its store.
    reader: Option<ArrayReader<Store>>,
    /// The reader of `array` with the settings of devices, once it is needed.
    on_device: OnceLock<ArrayReader<Store>>,
    /// The writers of `array`, once they are needed: the first erases empty shards, the second stores them.
    writers: [OnceLock<BoxWriter<Store>>; 2],
}

/// The metadata and the store of a pipeline, and the arrays that were opened with them.
pub(crate) struct Opener {
    metadata: ArrayMetadataV3,
    pub(crate) store: Store,
    devices: Option<DeviceSettings>,
    pub(crate) is_sharded: bool,
    /// The way in which shards are written, which also decides where subchunks are read.
    pub(crate) update: ShardUpdate,
    /// Whether elements have no fixed size.
    pub(crate) is_variable: bool,
    /// Whether chunks are always decoded whole, as in [`Opened`].
    pub(crate) decodes_whole: bool,
    opened: Known<Opened>,
    shared: Known<Shared>,
}

/// The arrays that this process has opened, by the path of the array and the number of threads that calls may
/// use.
type Known<T> = PerProcess<RwLock<HashMap<(String, usize), Arc<T>>>>;

/// An array whose subchunks are objects of their own beside their shards, until they are packed.
pub(crate) struct Shared {
    pub(crate) store: Arc<SparseShardStore<Store>>,
    /// The array whose chunks are the subchunks.
    pub(crate) subchunks: Array<SparseShardStore<Store>>,
    /// The reader of `subchunks`, or `None` if elements have no fixed size.
    reader: Option<ArrayReader<Store>>,
    /// The same array, with the shards as its chunks.
    pub(crate) shards: Arc<Opened>,
}

impl Shared {
    /// Returns the reader of the subchunks.
    ///
    /// # Errors
    /// [`Error::Value`] if elements have no fixed size.
    pub(crate) fn reader(&self) -> Result<&ArrayReader<Store>, Error> {
        let reader = self.reader.as_ref();
        reader.ok_or_else(|| Error::Value("elements have no fixed size".to_owned()))
    }
}

impl Opener {
    /// Returns an opener for arrays with these metadata in `store`.
    ///
    /// # Errors
    /// The reason, if no array with these metadata can be opened.
    pub(crate) fn new(
        mut metadata: ArrayMetadataV3,
        store: Store,
        devices: Option<DeviceSettings>,
    ) -> Result<Self, String> {
        let keys = Keys::new(&metadata)?;
        let is_sharded = matches!(&*metadata.codecs, [only] if only.name() == "sharding_indexed");
        // The array is opened with a huge shape, so that its real shape may change while the pipeline lives.
        metadata.shape = keys
            .chunk()
            .iter()
            .map(|&extent| (1_u64 << 62) / (extent as u64).max(1) * (extent as u64))
            .collect();
        let mut opener = Self {
            metadata,
            store,
            devices,
            is_sharded,
            update: ShardUpdate::default(),
            is_variable: false,
            decodes_whole: false,
            opened: PerProcess::new(RwLock::default),
            shared: PerProcess::new(RwLock::default),
        };
        let opened = opener.open("", 1).map_err(|error| match error {
            Error::Value(why) | Error::Other(why) => why,
            error => format!("{error:?}"),
        })?;
        opener.is_variable = opened.element_size == 0;
        opener.decodes_whole = opened.decodes_whole;
        Ok(opener)
    }

    fn open(&self, path: &str, threads: usize) -> Result<Opened, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Value(error.to_string());
        let metadata = ArrayMetadata::V3(self.metadata.clone());
        let store = Arc::new(self.store.clone());
        let array = Array::new_with_metadata(store, &format!("/{path}"), metadata)
            .map_err(|error| failed(&error))?;
        // This reader, to memory of the host, uses no device: it is made before anybody looks for one.
        let reader = self
            .store
            .read_by(ArrayReader::builder(&array), threads)
            .build()?;
        let array = match &self.devices {
            Some(devices) => devices.on(array),
            None => array,
        };
        let chunk = array
            .chunk_shape(&vec![0; array.dimensionality()])
            .map_err(|error| failed(&error))?;
        let data_type = array.data_type();
        let element_size = data_type.fixed_size().unwrap_or(0);
        let chunk_bytes = chunk.iter().try_fold(element_size, |bytes, extent| {
            bytes.checked_mul(usize::try_from(extent.get()).ok()?)
        });
        let mut opened = Opened {
            chunk,
            element_size,
            chunk_bytes: chunk_bytes
                .ok_or_else(|| Error::Value("a chunk is larger than memory".to_owned()))?,
            reader: None,
            on_device: OnceLock::new(),
            writers: Default::default(),
            subchunk: None,
            is_sharded: self.is_sharded,
            decodes_whole: element_size == 0 && has_codecs_around(&self.metadata.codecs),
            array,
        };
        if !reader.is_by_zarrs() {
            let subchunk = opened.array.subchunk_shape();
            opened.subchunk = subchunk.map(|shape| shape.iter().map(|e| e.get()).collect());
            opened.reader = self.store.is_ours().then_some(reader);
        }
        Ok(opened)
    }

    /// Returns the array at `path`, for calls that use up to `threads` threads.
    pub(crate) fn at(&self, path: &str, threads: NonZeroUsize) -> Result<Arc<Opened>, Error> {
        cached_or_open(&self.opened, path, threads, || {
            self.open(path, threads.get())
        })
    }

    /// Returns a writer of the shards of `opened` in `store`.
    ///
    /// # Errors
    /// [`Error::Backend`] if the settings of devices ask for one, and none is usable.
    pub(crate) fn writer(
        &self,
        opened: &Opened,
        store: &Store,
        store_empty: bool,
        threads: NonZeroUsize,
    ) -> Result<BoxWriter<Store>, Error> {
        let build = |array: &Array<Store>| {
            let options = CodecOptions::default().with_store_empty_chunks(store_empty);
            let builder = BoxWriter::builder(array)
                .with_update(self.update)
                .with_codec_options(options);
            let built = store.written_by(builder, threads.get()).build();
            built.map_err(|error| Error::from(*error.kind))
        };
        if let Store::Given(_) = store {
            return build(&opened.array.with_storage(Arc::new(store.clone())));
        }
        let kept = &opened.writers[usize::from(store_empty)];
        if let Some(writer) = kept.get() {
            return Ok(writer.clone());
        }
        let built = build(&opened.array)?;
        Ok(kept.get_or_init(|| built).clone())
    }

    /// Returns the array at `path` with subchunks that are stored beside their shards. The library reads and
    /// writes its store.
    pub(crate) fn shared_at(
        &self,
        path: &str,
        threads: NonZeroUsize,
    ) -> Result<Arc<Shared>, Error> {
        cached_or_open(&self.shared, path, threads, || {
            self.open_shared(path, threads)
        })
    }

    fn open_shared(&self, path: &str, threads: NonZeroUsize) -> Result<Shared, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Value(error.to_string());
        let node = format!("/{path}");
        let store = self.store.shared(&node).map_err(|error| failed(&error))?;
        let store = Arc::new(store);
        let mut subchunks = Array::open(store.clone(), &node).map_err(|error| failed(&error))?;
        let shape = self.metadata.shape.clone();
        subchunks.set_shape(shape).map_err(|error| failed(&error))?;
        let shards = self.at(path, threads)?;
        let reader = if self.is_variable {
            None
        } else {
            let builder = store.reader_of(&shards.array);
            Some(self.store.limit(builder, threads.get()).build()?)
        };
        Ok(Shared {
            store,
            subchunks,
            reader,
            shards,
        })
    }
}

/// Returns whether, at any depth, a codec of shards has other codecs beside it, or the first codec is a
/// transpose.
fn has_codecs_around(codecs: &[MetadataV3]) -> bool {
    let shards = codecs
        .iter()
        .find(|codec| codec.name() == "sharding_indexed");
    let inner = shards
        .and_then(|codec| codec.configuration()?.get("codecs"))
        .and_then(|inner| serde_json::from_value::<Vec<MetadataV3>>(inner.clone()).ok());
    let is_transposed = codecs
        .first()
        .is_some_and(|codec| codec.name() == "transpose");
    (shards.is_some() && codecs.len() > 1)
        || is_transposed
        || inner.is_some_and(|inner| has_codecs_around(&inner))
}

/// Returns the cached entry for `path` and `threads`. If there is none, calls `open`, and caches its result.
fn cached_or_open<T: Send + Sync>(
    known: &Known<T>,
    path: &str,
    threads: NonZeroUsize,
    open: impl FnOnce() -> Result<T, Error>,
) -> Result<Arc<T>, Error> {
    let known = known.get();
    let key = (path.to_owned(), threads.get());
    if let Some(found) = known
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&key)
    {
        return Ok(found.clone());
    }
    let new = Arc::new(open()?);
    let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
    Ok(known.entry(key).or_insert(new).clone())
}

impl Opened {
    /// Returns a reader of the array over `store`, or `None` if zarrs decodes its chunks.
    pub(crate) fn reader(
        &self,
        store: &Store,
        threads: usize,
    ) -> Result<Option<ArrayReader<Store>>, Error> {
        match store {
            Store::Files(_) | Store::Objects(_) | Store::Asked(_) => Ok(self.reader.clone()),
            Store::Given(_) => {
                let array = self.array.with_storage(Arc::new(store.clone()));
                // The values may have only the wanted bytes, so bytes of gaps must not be read.
                let reader = ArrayReader::builder(&array)
                    .with_threads(threads)
                    .with_gap(0)
                    .build()?;
                Ok((!reader.is_by_zarrs()).then_some(reader))
            }
        }
    }

    /// Returns a reader of the array into the memory of devices, or `None` if the library does not read the array
    /// and its store by itself.
    ///
    /// # Errors
    /// [`Error::Backend`] if the settings of devices ask for one, and none is usable.
    pub(crate) fn device_reader(
        &self,
        store: &Store,
        threads: usize,
    ) -> Result<Option<&ArrayReader<Store>>, Error> {
        if self.reader.is_none() {
            return Ok(None);
        }
        if let Some(reader) = self.on_device.get() {
            return Ok(Some(reader));
        }
        let built = store.read_by(ArrayReader::builder(&self.array), threads);
        let built = built.build()?;
        Ok(Some(self.on_device.get_or_init(|| built)))
    }

    /// Checks that `key`, the key that zarr-python uses for the chunk, is also the key that zarrs uses.
    pub(crate) fn check_key(&self, key: &str, indices: &[u64]) -> Result<(), Error> {
        let ours = self.array.chunk_key(indices);
        if ours.as_str() == key {
            return Ok(());
        }
        Err(Error::Value(format!(
            "the chunk {indices:?} is stored as {key}, and would be read as {ours}"
        )))
    }
}

/// Returns the format of the shards of `array`.
pub(crate) fn shard_format<T: ?Sized>(array: &Array<T>) -> Result<ShardFormat, zarrs_cuda::Error> {
    ShardFormat::of(array, &vec![0; array.dimensionality()])
}
