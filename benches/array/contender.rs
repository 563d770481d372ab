//! zarrs' array, with this crate's codec or with zarrs' own, and this crate's reader.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rayon::iter::{IntoParallelRefIterator, IntoParallelRefMutIterator, ParallelIterator};
use serde_json::Value;
use tempfile::TempDir;
use unsafe_cell_slice::UnsafeCellSlice;
use zarrs::array::codec::{ShardingCodec, ShardingCodecConfiguration};
use zarrs::array::{
    Array, ArrayBuilder, ArrayBytes, ArrayBytesDecodeIntoTarget, ArrayBytesFixedDisjointView,
    ArrayMetadataOptions, ArraySubset, ArrayToBytesCodecTraits, CodecError, data_type,
};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::store::MemoryStore;
use zarrs::storage::{ReadableWritableStorage, ReadableWritableStorageTraits};
use zarrs_cuda::reader::ArrayReader;
use zarrs_cuda::{Backend, CudaShardingCodec, Options};
use zarrs_cuda_benches::Result;
use zarrs_cuda_benches::keeping::Keeping;

use crate::Layout;
use crate::cases::{Case, EDGE};
use crate::limit::limit;

/// A call that an application makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `store_array_subset` of a slice.
    Store,
    /// `retrieve_array_subset::<ArrayBytes>`.
    Bytes,
    /// `retrieve_array_subset::<Vec<u16>>`.
    Elements,
    /// `retrieve_array_subset_into`.
    Into,
    /// `ArrayReader::read`; zarrs retrieves a `Vec`.
    Read,
    /// `ArrayReader::read_into`; zarrs retrieves into memory.
    ReadInto,
    /// `ArrayReader::read_boxes`; zarrs retrieves each box into memory.
    ReadBoxes,
}

impl Call {
    pub(crate) const ALL: [Self; 7] = [
        Self::Store,
        Self::Bytes,
        Self::Elements,
        Self::Into,
        Self::Read,
        Self::ReadInto,
        Self::ReadBoxes,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Store => "store_array_subset",
            Self::Bytes => "retrieve_array_subset/ArrayBytes",
            Self::Elements => "retrieve_array_subset/Vec",
            Self::Into => "retrieve_array_subset_into",
            Self::Read => "read",
            Self::ReadInto => "read_into",
            Self::ReadBoxes => "read_boxes",
        }
    }

    /// Whether the output's memory is new, or was written before.
    pub(crate) fn output(self) -> Option<&'static str> {
        match self {
            Self::Store => None,
            Self::Bytes | Self::Elements | Self::Read => Some("fresh"),
            Self::Into | Self::ReadInto | Self::ReadBoxes => Some("warm"),
        }
    }

    /// Whether the call is measured for `case`: whether an application would make it.
    pub(crate) fn is_for(self, case: &Case) -> bool {
        match self {
            Self::Store => case.name == "whole",
            Self::ReadBoxes => case.boxes.len() > 1,
            Self::Bytes | Self::Elements | Self::Into | Self::Read | Self::ReadInto => true,
        }
    }
}

/// The codec of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Ours,
    Zarrs,
}

/// An array of uint16 in a store.
pub(crate) struct Stored {
    array: Array<dyn ReadableWritableStorageTraits>,
    reader: ArrayReader<dyn ReadableWritableStorageTraits>,
    codec: Codec,
    /// Of the files; deleted with this.
    folder: Option<TempDir>,
}

impl Stored {
    /// An array in a new store of the kind `sink`.
    pub(crate) fn new(
        sink: &str,
        parent: &PathBuf,
        shard: [u64; 3],
        configuration: &ShardingCodecConfiguration,
        codec: Codec,
    ) -> Result<Self> {
        let (store, files): (ReadableWritableStorage, _) = match sink {
            "files" => {
                let folder = TempDir::new_in(parent)?;
                let files = Arc::new(FilesystemStore::new(folder.path())?);
                (files.clone(), Some((files, folder)))
            }
            "keeping" => (Arc::new(Keeping::default()), None),
            _ => (Arc::new(MemoryStore::new()), None),
        };
        let encoder: Arc<dyn ArrayToBytesCodecTraits> = match codec {
            Codec::Ours => {
                let options = Options::default().with_backend(Backend::Host);
                Arc::new(CudaShardingCodec::new_with_configuration(
                    configuration,
                    options,
                )?)
            }
            Codec::Zarrs => Arc::new(ShardingCodec::new_with_configuration(configuration)?),
        };
        let array = ArrayBuilder::new(vec![EDGE; 3], shard.to_vec(), data_type::uint16(), 0_u16)
            .array_to_bytes_codec(encoder)
            .build(store, "/")?;
        array.store_metadata()?;
        let mut reader = ArrayReader::builder(&array);
        if let Some((files, _)) = &files {
            reader = reader.on_filesystem(files);
        }
        Ok(Self {
            reader: reader.build()?,
            array,
            codec,
            folder: files.map(|(_, folder)| folder),
        })
    }

    /// The array's `zarr.json`.
    pub(crate) fn metadata(&self) -> Result<Value> {
        let options = ArrayMetadataOptions::default().with_include_zarrs_metadata(false);
        Ok(serde_json::to_value(self.array.metadata_opt(&options))?)
    }

    /// Measures the limit of the machine for the whole array: see `limit.rs`.
    pub(crate) fn limit(&self, layout: &Layout, warm: &mut [u8]) -> Result<f64> {
        let shards = self
            .array
            .chunks_in_array_subset(&self.array.subset_all())?;
        let indices = shards.ok_or("an array without shards")?.indices();
        let keys: Vec<_> = indices.iter().map(|at| self.array.chunk_key(&at)).collect();
        let folder = self.folder.as_ref().map(TempDir::path);
        limit(&self.array.storage(), folder, &keys, layout, warm)
    }

    /// Stores the whole array, and returns the seconds.
    pub(crate) fn store(&self, elements: &[u16]) -> Result<f64> {
        let whole = ArraySubset::new_with_shape(vec![EDGE; 3]);
        let clock = Instant::now();
        self.array.store_array_subset(&whole, elements)?;
        Ok(clock.elapsed().as_secs_f64())
    }

    /// Reads `boxes` by `call` once. Returns the elements, box after box, unless they are in `warm`.
    pub(crate) fn once(
        &self,
        boxes: &[ArraySubset],
        call: Call,
        warm: &mut [u16],
    ) -> Result<Option<Vec<u16>>> {
        let case = Case::of(boxes);
        match (call, boxes) {
            (Call::Elements, [one]) => Ok(Some(self.array.retrieve_array_subset(one)?)),
            (Call::Elements, _) => {
                let (_, read) = each(&case, |subset| {
                    Ok(self.array.retrieve_array_subset::<Vec<u16>>(subset)?)
                })?;
                Ok(Some(read.concat()))
            }
            (Call::ReadBoxes, _) if self.codec == Codec::Ours => {
                let origins: Vec<&[u64]> = boxes.iter().map(ArraySubset::start).collect();
                self.reader.read_boxes(&origins, boxes[0].shape(), warm)?;
                Ok(None)
            }
            (Call::ReadInto, [one]) if self.codec == Codec::Ours => {
                self.reader.read_into(one, warm)?;
                Ok(None)
            }
            _ => {
                into(&case, warm, |subset, output| self.by_zarrs(subset, output))?;
                Ok(None)
            }
        }
    }

    /// Reads `subset` into `output` by zarrs' call.
    fn by_zarrs(
        &self,
        subset: &ArraySubset,
        output: &mut [u16],
    ) -> std::result::Result<(), Failed> {
        let shape = subset.shape().to_vec();
        let output = bytemuck::cast_slice_mut(output);
        // SAFETY: the only view of this memory.
        let mut view = unsafe {
            ArrayBytesFixedDisjointView::new(
                UnsafeCellSlice::new(output),
                2,
                &shape,
                ArraySubset::new_with_shape(shape.clone()),
            )
        }
        .map_err(CodecError::from)?;
        let target = ArrayBytesDecodeIntoTarget::Fixed(&mut view);
        Ok(self.array.retrieve_array_subset_into(subset, target)?)
    }

    /// Reads the boxes of `case` by `call`: the seconds, and the bytes, box after box.
    ///
    /// `warm` is memory for the elements that was written before.
    pub(crate) fn read(&self, case: &Case, call: Call, warm: &mut [u16]) -> Result<(f64, Vec<u8>)> {
        let by_reader = self.codec == Codec::Ours;
        let bytes = |elements: &[u16]| elements.iter().flat_map(|e| e.to_ne_bytes()).collect();
        match call {
            Call::Store => Err("storing is not reading".into()),
            Call::Bytes => {
                let (seconds, read) = each(case, |subset| {
                    Ok(self
                        .array
                        .retrieve_array_subset::<ArrayBytes<'static>>(subset)?)
                })?;
                let bytes = read
                    .into_iter()
                    .map(|read| Ok(read.into_fixed()?.into_owned()));
                Ok((seconds, bytes.collect::<Result<Vec<_>>>()?.concat()))
            }
            Call::Read if by_reader => {
                let (seconds, read) = each(case, |subset| Ok(self.reader.read::<u16>(subset)?))?;
                Ok((seconds, bytes(&read.concat())))
            }
            Call::Elements | Call::Read => {
                let (seconds, read) = each(case, |subset| {
                    Ok(self.array.retrieve_array_subset::<Vec<u16>>(subset)?)
                })?;
                Ok((seconds, bytes(&read.concat())))
            }
            Call::ReadBoxes if by_reader => {
                let origins: Vec<&[u64]> = case.boxes.iter().map(ArraySubset::start).collect();
                let clock = Instant::now();
                self.reader
                    .read_boxes(&origins, case.boxes[0].shape(), warm)?;
                Ok((clock.elapsed().as_secs_f64(), bytes(warm)))
            }
            Call::ReadInto if by_reader => {
                let seconds = into(case, warm, |subset, output| {
                    self.reader.read_into(subset, output)?;
                    Ok(())
                })?;
                Ok((seconds, bytes(warm)))
            }
            Call::Into | Call::ReadInto | Call::ReadBoxes => {
                let read = |subset: &ArraySubset, output: &mut [u16]| self.by_zarrs(subset, output);
                let seconds = into(case, warm, read)?;
                Ok((seconds, bytes(warm)))
            }
        }
    }
}

/// An error that can leave a thread.
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Reads each box of `case` into new memory, several at once.
fn each<T: Send>(
    case: &Case,
    read: impl Fn(&ArraySubset) -> std::result::Result<T, Failed> + Sync,
) -> Result<(f64, Vec<T>)> {
    let clock = Instant::now();
    let read: std::result::Result<Vec<T>, Failed> = match &*case.boxes {
        [one] => read(one).map(|read| vec![read]),
        several => several.par_iter().map(&read).collect(),
    };
    let seconds = clock.elapsed().as_secs_f64();
    Ok((seconds, read.map_err(|error| error.to_string())?))
}

/// Reads each box of `case` into its part of `warm`, several at once.
fn into(
    case: &Case,
    warm: &mut [u16],
    read: impl Fn(&ArraySubset, &mut [u16]) -> std::result::Result<(), Failed> + Sync,
) -> Result<f64> {
    let mut rest = warm;
    let mut outputs = Vec::new();
    for subset in &case.boxes {
        let (output, others) = rest.split_at_mut(subset.num_elements_usize());
        outputs.push((subset, output));
        rest = others;
    }
    let clock = Instant::now();
    let read = match &mut *outputs {
        [(subset, output)] => read(subset, output),
        several => several
            .par_iter_mut()
            .try_for_each(|(subset, output)| read(subset, output)),
    };
    let seconds = clock.elapsed().as_secs_f64();
    read.map_err(|error| error.to_string())?;
    Ok(seconds)
}
