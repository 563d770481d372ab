//! The array to which frames are appended, new or existing.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

use serde_json::{Value, json};
use zarrs::array::{
    Array, ArrayBuilder, ArrayMetadata, ArrayShardedExt, ArraySubset, DataType, FillValue,
};
use zarrs::filesystem::FilesystemStore;
use zarrs::metadata::v3::MetadataV3;
use zarrs::plugin::{ExtensionName, ZarrVersion};
use zarrs::storage::storage_adapter::atomic_write::AtomicWriteStorageAdapter;
use zarrs_codec::{BytesToBytesCodecTraits, Codec, CodecMetadataOptions};
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::reader::{ArrayReader, Output};
use zarrs_cuda::writer::{ArrayWriter, ConditionalStore, WriterError};
use zarrs_cuda_convert::Failure;
use zarrs_cuda_convert::apart::must_not_be_in_an_array;
use zarrs_cuda_convert::chunks::{Chunks, Empty};
use zarrs_cuda_convert::data_types;
use zarrs_cuda_convert::extensions::{ByteOrder, Number};
use zarrs_cuda_convert::open::{self, Kind, Place, Store};
use zarrs_cuda_convert::shapes::{Written, edges};
use zarrs_cuda_convert::words::shape_text;
use zarrs_cuda_convert::{must_not_be_begun, must_not_be_made_above};
use zarrs_storage::StorageError;

use super::{Args, CODEC};
use crate::arguments::Shape;

/// The extent of a dimension whose length is not known.
const ENDLESS: u64 = 1 << 40;

/// The array to which frames are appended, and its place.
pub(super) struct Recording {
    array: Array<Store>,
    /// The array's store, if it is a directory.
    files: Option<Arc<FilesystemStore>>,
    /// The array's store, if it is an object store.
    conditional: Option<Arc<dyn ConditionalStore>>,
    place: Place,
    /// The shape of a shard.
    shard: Vec<u64>,
    element: usize,
}

impl Recording {
    /// Opens the array at the place of the output, or creates it if there is none.
    pub(super) fn open_or_create(args: &Args) -> Result<Self, Failure> {
        let place = &args.output;
        let cannot = |doing: &str, error: &dyn fmt::Display| {
            let error = error.to_string();
            Failure::failed(format!("cannot {doing} {place}: {}", error.trim_end()))
        };
        let stores = open::output(place)?;
        let store = stores.store.clone();
        let array = match Kind::of(&*store, place)? {
            Kind::Group => {
                return Err(cannot("write to", &"it is a Zarr group")
                    .with_remedy("name a directory within it"));
            }
            Kind::Array => {
                let array = Array::open(store, "/");
                let array = array.map_err(|error| cannot("go on with", &error))?;
                open::must_be_plain(place, "go on with", &stores.not_json())?;
                check(args, &array)?;
                // The last frames may have to be written again, from stored shards: list them, so that a
                // missing one is an error.
                let mut opened = open::array(place)?;
                let chunks = Chunks::of(&mut opened)?;
                chunks.told(&opened, Empty::Allowed)?;
                array
            }
            Kind::Nothing => {
                must_not_be_in_an_array(place)?;
                must_not_be_made_above(place)?;
                must_not_be_begun(place)?;
                stores.must_be_empty(place, "an array")?;
                let array = described(args, store)?;
                // Write `zarr.json` as a whole, so that a process that is killed leaves no part of it.
                let stored = match &stores.files {
                    Some(files) => {
                        let whole = AtomicWriteStorageAdapter::new(files.clone());
                        array.with_storage(Arc::new(whole)).store_metadata()
                    }
                    None => array.store_metadata(),
                };
                stored.map_err(|error| cannot("make", &error))?;
                array
            }
        };
        let Some(element) = array.data_type().fixed_size() else {
            return Err(cannot(
                "go on with",
                &"its elements differ in size, so raw bytes do not tell where one ends",
            ));
        };
        let origin = vec![0; array.dimensionality()];
        let shard = array.chunk_shape(&origin);
        let shard = shard.map_err(|error| cannot("go on with", &error))?;
        Ok(Self {
            shard: edges(&shard),
            array,
            files: stores.files,
            conditional: stores.conditional,
            place: place.clone(),
            element,
        })
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the number of frames in the array.
    pub(super) fn frames(&self) -> u64 {
        self.array.shape()[0]
    }

    /// Returns the bytes of a frame.
    pub(super) fn frame_bytes(&self) -> usize {
        let elements = self.array.shape()[1..].iter().product::<u64>();
        usize::try_from(elements)
            .unwrap_or(usize::MAX)
            .saturating_mul(self.element)
    }

    /// Returns a writer that continues after the last frame.
    ///
    /// A writer starts at the border of a layer of shards. If the last layer is not full, its frames are
    /// appended once more. The old shards stay until new ones, with more frames, replace them. Reading the
    /// frames takes about `again` bytes, beside the memory of the writer.
    pub(super) fn writer(&self, again: usize) -> Result<ArrayWriter, Failure> {
        let start = self.frames() / self.shard[0] * self.shard[0];
        let path = &self.place;
        let mut builder = ArrayWriter::builder(&self.array).with_start(start);
        if let Some(files) = &self.files {
            builder = builder.with_atomic_rename(files.clone());
        }
        // An object store replaces a value as a whole, so it needs no adapter.
        if let Some(store) = &self.conditional {
            builder = builder.with_conditional_writes(store.clone());
        }
        let mut writer = builder.build().map_err(|error| {
            let failure = Failure::failed(format!("cannot write to {path}: {error}"));
            if is_busy(&error) {
                return failure;
            }
            failure.with_remedy(
                "name another OUT. `zarrs-cuda reencode` makes a sharded array of one that is not",
            )
        })?;
        self.append_again(start, again, &mut writer)?;
        Ok(writer)
    }

    /// Appends the stored frames from `start` on once more. Reading them takes about `memory` bytes, but at
    /// least the bytes of two frames.
    fn append_again(
        &self,
        start: u64,
        memory: usize,
        writer: &mut ArrayWriter,
    ) -> Result<(), Failure> {
        let frame = self.frame_bytes();
        // Read several frames at once, so that deep subchunks are decoded only once for them.
        let at_once = (memory / 2 / frame.max(1)).max(1) as u64;
        let reader = ArrayReader::builder(&self.array).with_memory(memory / 2);
        let reader = reader.build().map_err(Failure::failed)?;
        let mut bytes = Vec::new();
        let (mut from, end) = (start, self.frames());
        while from < end {
            let to = end.min(from.saturating_add(at_once));
            let cannot = |error: &dyn fmt::Display| {
                Failure::failed(format!(
                    "cannot read frames {from} to {} of {}, which are in an unfinished layer of \
                     shards: {error}",
                    to - 1,
                    self.place
                ))
                .with_remedy("`zarrs-cuda verify` says what is damaged")
            };
            let inner = self.array.shape().iter().skip(1).map(|extent| 0..*extent);
            let region: Vec<_> = std::iter::once(from..to).chain(inner).collect();
            let len = usize::try_from(to - from).ok();
            let len = len.and_then(|frames| frames.checked_mul(frame));
            let len = len.ok_or_else(|| cannot(&"they are too long"))?;
            bytes.resize(len, 0);
            let output = Output::contiguous(&mut bytes);
            let read = reader.read_bytes_into(&ArraySubset::new_with_ranges(&region), output);
            read.map_err(|error| cannot(&error))?;
            let appended = writer.append_bytes(&bytes);
            appended.map_err(|error| cannot(&error))?;
            from = to;
        }
        Ok(())
    }
}

/// Returns whether `error` says that another process writes the array.
fn is_busy(error: &WriterError) -> bool {
    let WriterError::Array(zarrs_cuda::Error::Storage { source, .. }) = error else {
        return false;
    };
    matches!(source, StorageError::IOError(error) if error.kind() == ErrorKind::ResourceBusy)
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "frames of {} {} in shards of {} -> {}",
            shape_text(&self.array.shape()[1..]),
            name_of(self.array.data_type()),
            shape_text(&self.shard),
            self.place
        )
    }
}

fn name_of(data_type: &DataType) -> String {
    let name = data_type.name(ZarrVersion::V3);
    name.map_or_else(|| format!("{data_type:?}"), |name| name.to_string())
}

/// Checks that the existing array fits the arguments.
fn check(args: &Args, array: &Array<Store>) -> Result<(), Failure> {
    let path = &args.output;
    let Some((_, frame)) = array.shape().split_first() else {
        return Err(Failure::failed(format!(
            "the array {path} has no dimensions"
        )));
    };
    if let Some(Shape(shape)) = &args.frame_shape
        && edges(shape) != frame
    {
        return Err(Failure::usage(format!(
            "--frame-shape is {}, but frames of {path} are {}",
            shape_text(shape),
            shape_text(frame)
        ))
        .with_remedy("leave out --frame-shape, or name another OUT"));
    }
    if let Some(name) = &args.dtype
        && data_type(name)? != *array.data_type()
    {
        return Err(Failure::usage(format!(
            "--dtype is {name}, but elements of {path} are {}",
            name_of(array.data_type())
        ))
        .with_remedy("leave out --dtype, or name another OUT"));
    }
    let origin = vec![0; array.dimensionality()];
    let shard = array.chunk_shape(&origin).ok();
    for (option, asked, is) in [
        (
            "--shard",
            &args.shapes.shard,
            shard.map(|shard| edges(&shard)),
        ),
        (
            "--subchunk",
            &args.shapes.subchunk,
            array.subchunk_shape().map(|shape| edges(&shape)),
        ),
    ] {
        if let (Some(Shape(asked)), Some(is)) = (asked, is)
            && edges(asked) != is
        {
            return Err(Failure::usage(format!(
                "{option} is {}, but in {path} it is {}",
                shape_text(asked),
                shape_text(&is)
            ))
            .with_remedy(format!("leave out {option}, or name another OUT")));
        }
    }
    if let Some(codec) = &args.codec
        && let Some(is) = compressors(array)
    {
        let asked = codec.for_elements(array.data_type())?;
        let asked: Vec<_> = asked
            .iter()
            .map(|codec| described_codec(&**codec))
            .collect();
        if asked != is {
            return Err(Failure::usage(format!(
                "--codec is {codec}, but subchunks of {path} have {}",
                match &is[..] {
                    [] => "no compressor".to_string(),
                    is => is
                        .iter()
                        .map(Value::to_string)
                        .collect::<Vec<_>>()
                        .join(", "),
                }
            ))
            .with_remedy("leave out --codec, or name another OUT"));
        }
    }
    Ok(())
}

/// Returns the codecs of subchunks that follow `bytes`; `None` if the array's metadata do not tell.
fn compressors(array: &Array<Store>) -> Option<Vec<Value>> {
    let ArrayMetadata::V3(metadata) = array.metadata() else {
        return None;
    };
    let [sharding] = &metadata.codecs[..] else {
        return None;
    };
    let inner = sharding.configuration()?.get("codecs")?.clone();
    let inner: Vec<MetadataV3> = serde_json::from_value(inner).ok()?;
    let mut compressors = Vec::new();
    for codec in &inner {
        if let Codec::BytesToBytes(codec) = Codec::from_metadata(codec).ok()? {
            compressors.push(described_codec(&*codec));
        }
    }
    Some(compressors)
}

/// Returns the metadata of a codec, with all of its parameters.
fn described_codec(codec: &dyn BytesToBytesCodecTraits) -> Value {
    let parameters = codec.configuration_v3(&CodecMetadataOptions::default());
    json!({ "name": codec.name(ZarrVersion::V3), "configuration": parameters })
}

/// Returns the data type with this name, a name of Zarr v3 or of numpy.
fn data_type(name: &str) -> Result<DataType, Failure> {
    if let Ok(number) = Number::parse(name) {
        if ![ByteOrder::None, ByteOrder::of("=", 2)].contains(&number.order) {
            return Err(Failure::usage(format!(
                "--dtype {name} has another byte order than this machine, in which frames are"
            ))
            .with_remedy("convert the frames first"));
        }
        return Ok(number.data_type());
    }
    DataType::from_metadata(&MetadataV3::new(name)).map_err(|error| {
        Failure::usage(format!("--dtype {name}: {error}"))
            .with_remedy("it is a data type of Zarr v3, as uint8, uint16, int32 or float32, or of numpy, as u1 or <u2")
    })
}

/// Returns a new array without frames. Writes nothing to the store.
fn described(args: &Args, store: Arc<Store>) -> Result<Array<Store>, Failure> {
    let path = &args.output;
    let (Some(Shape(frame)), Some(name)) = (&args.frame_shape, &args.dtype) else {
        return Err(Failure::usage(format!("there is no array in {path} yet"))
            .with_remedy("say what it is to have: --frame-shape 2304,2304 --dtype uint16"));
    };
    let data_type = data_type(name)?;
    let Some(element) = data_type.fixed_size() else {
        return Err(Failure::usage(format!(
            "--dtype {name}: its elements differ in size, so raw bytes do not tell where one ends"
        )));
    };
    data_types::must_be_read_elsewhere(&data_type)?;
    let mut shape = vec![ENDLESS];
    shape.extend(edges(frame));
    let (shard, subchunk) =
        args.shapes
            .wishes()
            .chosen(&shape, Written::Slices, element as u64, |option, rank| {
                Err(Failure::usage(format!(
                    "{option} has {rank} dimensions, but an array of these frames has {}",
                    shape.len()
                )))
            })?;
    shape[0] = 0;
    let doing = format!("make {path}");
    let codec = match &args.codec {
        Some(codec) => codec.clone(),
        None => CODEC.parse().map_err(Failure::to::<String>(&doing))?,
    };
    let codec = CudaShardingCodecBuilder::new(subchunk, &data_type)
        .bytes_to_bytes_codecs(codec.for_elements(&data_type)?)
        .build_arc()
        .map_err(Failure::to(&doing))?;
    let fill_value = FillValue::new(vec![0; element]);
    let mut builder = ArrayBuilder::new(shape, edges(&shard), data_type, fill_value);
    builder.array_to_bytes_codec(codec);
    // Create the array from metadata: then the registry of zarrs chooses our codec, as in any application.
    let metadata = builder.build_metadata().map_err(Failure::to(&doing))?;
    Array::new_with_metadata(store, "/", metadata.into()).map_err(Failure::to(&doing))
}
