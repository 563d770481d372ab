//! Boxes of the array, in the memory of a device.
//!
//! The threads of the reader read the shards and parse the subchunks. When the index of a shard was compared again, they
//! give its subchunks to the calling thread, which works with the device. So each box is placed once, and no device
//! decompresses bytes of a shard that was replaced meanwhile. At most [`WAITING`] subchunks wait in between.

use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use zarrs::array::{ArraySubsetTraits, DataType};
use zarrs_storage::{ReadableStorageTraits, StoreKey};

use super::error::Damage;
use super::request::{self, WantedBox, WantedPart};
use super::{ArrayReader, DecodedBy, OutputPlace, ReadReport, ReaderError, extents};
use crate::codec::CudaShardingCodec;
use crate::plan::{DeviceMemory, DeviceReads, DeviceSlabs, ReadsError, ReadySubchunk};
use crate::shard::error::engine_is_about_stored_bytes;
use crate::shard::sharding::Sharding;
use zarrs_cuda_engine::contract::{BoxToPlace, DeviceArray, EngineError};
use zarrs_cuda_engine::layout;

/// The most subchunks that wait for the calling thread.
const WAITING: usize = 64;

/// Elements in the memory of a CUDA device, in C order, each in the byte order of the machine.
///
/// All elements are there when a reader returns the tensor: work that is enqueued afterwards, in any stream, finds
/// them. The memory may be dropped on any thread, while kernels that use it are still queued. It is freed when
/// everything that was enqueued on the device before the drop is complete.
///
/// ```no_run
/// # use zarrs::array::{ArrayBuilder, data_type};
/// # use zarrs_cuda::{CudaShardingCodecBuilder, Options};
/// # let codec = CudaShardingCodecBuilder::new(vec![32.try_into()?; 3], &data_type::uint16())
/// #     .options(Options::default().with_devices([0]))
/// #     .build_arc()?;
/// # let store = std::sync::Arc::new(zarrs::storage::store::MemoryStore::new());
/// # let mut builder = ArrayBuilder::new(vec![128; 3], vec![64; 3], data_type::uint16(), 0_u16);
/// # let array = builder.array_to_bytes_codec(codec).build(store, "/volume")?;
/// use zarrs_cuda::reader::ArrayReader;
///
/// let reader = ArrayReader::builder(&array).build()?;
/// let tensor = reader.read_device(&[0..64, 10..20, 0..128])?;
/// assert_eq!(tensor.shape(), [64, 10, 128]);
/// // A kernel of the application takes this pointer; the elements are there.
/// let (device, pointer) = (tensor.device(), tensor.pointer());
/// # println!("{pointer:x} on device {device}");
/// drop(tensor); // is freed when the kernels that are queued now are complete
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct DeviceTensor {
    memory: DeviceMemory,
    data_type: DataType,
    shape: Vec<u64>,
    strides: Vec<usize>,
    bytes: usize,
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTensor")
            .field("device", &self.device())
            .field("data_type", &self.data_type)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}

impl DeviceTensor {
    /// Returns the number of the CUDA device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.memory.device()
    }

    /// Returns the address of the first element on the device, as a `CUdeviceptr`. The address is aligned to 256 bytes.
    #[must_use]
    pub fn pointer(&self) -> u64 {
        self.memory.pointer()
    }

    /// Returns the data type of the elements.
    #[must_use]
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Returns the number of elements along each axis.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the distance from one element to the next along each axis, in bytes.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Returns the number of bytes of all elements.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// Gives the memory back. Another read may use it as soon as everything is complete that is in `stream` now: a
    /// `CUstream` or `cudaStream_t`; 0 for the default stream. Memory that is only dropped waits for all work on the
    /// device instead.
    ///
    /// # Errors
    /// [`ReaderError::DevicePlace`] if the stream is being captured into a graph; [`ReaderError::Device`] if the driver
    /// refuses the stream. The memory is then dropped.
    ///
    /// # Safety
    /// The stream belongs to the device's primary context, and is not destroyed during the call. Everything that uses
    /// the memory is complete, or in this stream now, or in streams for which this stream waits.
    pub unsafe fn release(self, stream: u64) -> Result<(), ReaderError> {
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { self.memory.release(stream) }.map_err(|error| place_error(&error))
    }
}

/// Subchunks on their way to a device.
pub(super) struct DeviceSink<'a> {
    reads: &'a DeviceReads,
    slabs: &'a DeviceSlabs,
    sender: Mutex<SyncSender<ReadySubchunk>>,
    /// The shard and the number of each subchunk, by its tag.
    sent: &'a Mutex<Vec<(StoreKey, usize)>>,
    pub(super) strides: &'a [usize],
}

impl DeviceSink<'_> {
    pub(super) fn reads(&self) -> &DeviceReads {
        self.reads
    }

    /// Returns the page-locked memory for encoded bytes.
    pub(super) fn slabs(&self) -> &DeviceSlabs {
        self.slabs
    }

    /// Returns a tag for the subchunk `number` of the shard `key`.
    pub(super) fn tag(&self, key: &StoreKey, number: usize) -> usize {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.push((key.clone(), number));
        sent.len() - 1
    }

    /// Gives the subchunks of a shard to the calling thread, together.
    ///
    /// # Errors
    /// The calling thread has failed. It returns another error to the caller.
    pub(super) fn send(
        &self,
        subchunks: impl IntoIterator<Item = ReadySubchunk>,
    ) -> Result<(), ReaderError> {
        // The calling thread receives without this lock, so that every sender goes on.
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let mut subchunks = subchunks.into_iter();
        if subchunks.all(|subchunk| sender.send(subchunk).is_ok()) {
            return Ok(());
        }
        Err(failed("the device has failed".to_string()))
    }

    /// Returns the boxes of the subchunk `number` that `parts` want.
    pub(super) fn boxes<'p>(
        &self,
        sharding: &Sharding,
        number: usize,
        parts: impl Iterator<Item = &'p WantedPart>,
    ) -> Vec<BoxToPlace> {
        let (grid, origin) = (&sharding.grid, sharding.grid.origin(number));
        let boxes = parts.map(|part| {
            let mut placed = BoxToPlace {
                start: Vec::with_capacity(origin.len()),
                shape: Vec::with_capacity(origin.len()),
                target: part.offset,
            };
            for (axis, origin) in origin.iter().enumerate() {
                let first = part.start[axis].max(*origin);
                let end = part.start[axis] + part.shape[axis];
                let end = end.min(origin + grid.subchunk()[axis]);
                placed.start.push(first - origin);
                placed.shape.push(end.saturating_sub(first));
                placed.target += (first - part.start[axis]) * self.strides[axis];
            }
            placed
        });
        boxes.collect()
    }
}

impl<TStorage: ?Sized + ReadableStorageTraits + 'static> ArrayReader<TStorage> {
    /// Reads the elements of `subset` into new memory of a CUDA device.
    ///
    /// A device must have been asked for by the options of the array's codec, or by the environment: see
    /// [`Options::with_devices`](crate::Options::with_devices). Of several devices the first usable one is taken, unless
    /// [`with_device`](Self::with_device) names another.
    ///
    /// Encoded subchunks are copied to the device and decoded there, if the array has no compressor, or if
    /// [`Options::with_device_decode`](crate::Options::with_device_decode) says that its bytes are trusted. Otherwise the
    /// host decodes them, and the elements are copied. [`explain`](Self::explain) says which. A subchunk that the device
    /// cannot decode is decoded by the host. The results of the device are compared with those of the host as those of
    /// whole shards are.
    ///
    /// Whole subchunks are read and copied. The reader's subchunk cache is not used. As many shards are read at once as
    /// [`with_memory`](super::ArrayReaderBuilder::with_memory) has room for their wanted elements; one is read in any
    /// case.
    ///
    /// # Errors
    /// - [`ReaderError::DeviceNotAsked`] if no device was asked for, or another one than
    ///   [`with_device`](Self::with_device) names.
    /// - [`ReaderError::DeviceUnusable`] if the device cannot be used, or has too little memory.
    /// - [`ReaderError::Device`] if it fails during the read, or has failed before.
    /// - The errors of [`read`](Self::read). Arrays that [zarrs reads](Self::is_by_zarrs) are
    ///   [`ReaderError::Unsupported`].
    pub fn read_device(&self, subset: &dyn ArraySubsetTraits) -> Result<DeviceTensor, ReaderError> {
        let subset = subset.to_array_subset();
        request::check_inside(self.array(), None, subset.start(), subset.shape())?;
        let shape = subset.shape().to_vec();
        self.tensor(shape, |_| vec![WantedBox { subset, offset: 0 }])
    }

    /// Reads a box of `shape` from each of `origins` into new memory of a CUDA device, as
    /// [`read_device`](Self::read_device) does. The first axis of the tensor counts the boxes.
    ///
    /// # Errors
    /// The errors of [`read_device`](Self::read_device).
    pub fn read_boxes_device(
        &self,
        origins: &[impl AsRef<[u64]>],
        shape: &[u64],
    ) -> Result<DeviceTensor, ReaderError> {
        let axes = self.array().shape().len();
        if shape.len() != axes {
            return Err(ReaderError::OutOfBounds {
                number: None,
                start: vec![0; axes],
                extents: shape.to_vec(),
                shape: self.array().shape().to_vec(),
            });
        }
        let subsets = self.subsets(origins, shape)?;
        let mut all = vec![origins.len() as u64];
        all.extend(shape);
        self.tensor(all, |step| WantedBox::in_steps(subsets, step))
    }

    /// Reads boxes into a new tensor of `shape`. `boxes` returns the boxes for the number of bytes of one of them.
    fn tensor(
        &self,
        shape: Vec<u64>,
        boxes: impl FnOnce(usize) -> Vec<WantedBox>,
    ) -> Result<DeviceTensor, ReaderError> {
        let codec = self.codec_for_device()?;
        self.check_newer_subchunks(true)?;
        let size = self.element_size()?;
        let extents = extents(&shape)?;
        let is_empty = extents.contains(&0);
        let bytes = if is_empty {
            Some(0)
        } else {
            product(size, &extents)
        };
        let bytes = bytes.ok_or_else(|| super::no_memory_for_box(usize::MAX))?;
        // The strides of arrays without elements may overflow, and no element has them.
        let strides = if is_empty {
            vec![size; extents.len()]
        } else {
            layout::strides(&extents, size)
        };
        let array = self.array();
        let axes = array.shape().len();
        // An axis for the boxes may be in front.
        let in_box = &strides[strides.len() - axes..];
        let boxes = boxes(strides.first().copied().unwrap_or(0));
        let (sharding, reads) = self.device_reads(codec, &boxes, in_box, self.0.settings.device)?;
        let memory = reads
            .allocate(bytes)
            .map_err(|error| device_error(&error))?;
        if bytes > 0 {
            let output = DeviceArray {
                pointer: memory.pointer(),
                len: bytes,
                strides: in_box.to_vec(),
            };
            self.read_to_device(codec, &sharding, &reads, &boxes, &output)?
                .log();
        }
        Ok(DeviceTensor {
            memory,
            data_type: array.data_type().clone(),
            shape,
            strides,
            bytes,
        })
    }

    /// Returns the codec of the array, which must be of this crate.
    pub(super) fn codec_for_device(&self) -> Result<&CudaShardingCodec, ReaderError> {
        match &self.0.decoded_by {
            DecodedBy::ThisCrate(codec) => Ok(codec),
            DecodedBy::Zarrs(why) => Err(ReaderError::Unsupported {
                reason: format!(
                    "zarrs reads it, to the memory of the host alone: {why}; read it there, and copy the elements"
                ),
            }),
        }
    }

    /// Returns the shards of the array, and the reads of `boxes` into the memory of the CUDA device `device`; without a
    /// number, of the first one. `strides` are the strides of a box in the output, in bytes.
    pub(super) fn device_reads(
        &self,
        codec: &CudaShardingCodec,
        boxes: &[WantedBox],
        strides: &[usize],
        device: Option<usize>,
    ) -> Result<(Arc<Sharding>, DeviceReads), ReaderError> {
        let array = self.array();
        let first = request::shards(array, boxes, strides)?.into_iter().next();
        let indices = first.as_ref().map_or_else(
            || vec![0; array.shape().len()],
            |shard| shard.indices.clone(),
        );
        // An array without elements may have no chunk.
        let chunk = match array.chunk_shape(&indices) {
            Err(_) if first.is_none() => codec.subchunk_shape().clone(),
            chunk => chunk?,
        };
        let sharding = codec
            .sharding(&chunk, array.data_type(), array.fill_value())
            .map_err(|error| ReaderError::Unsupported {
                reason: error.to_string(),
            })?;
        let reads = sharding.choose_reads(device).map_err(|error| {
            let reason = error.to_string();
            match error {
                ReadsError::NotAsked(_) => ReaderError::DeviceNotAsked { reason },
                ReadsError::Unusable(_) => ReaderError::DeviceUnusable { reason },
                ReadsError::Failed(_) => failed(reason),
            }
        })?;
        Ok((sharding, reads))
    }

    /// Reads `boxes` to `output`, memory of the device that nothing else uses.
    pub(super) fn read_to_device(
        &self,
        codec: &CudaShardingCodec,
        sharding: &Sharding,
        reads: &DeviceReads,
        boxes: &[WantedBox],
        output: &DeviceArray,
    ) -> Result<ReadReport, ReaderError> {
        let settings = &self.0.settings;
        // The driver may block, so that this comes before there are threads that wait for this one.
        let slabs = reads.slabs().map_err(|error| device_error(&error))?;
        let (sender, receiver) = sync_channel(WAITING);
        let sent = Mutex::default();
        let mut damages: Vec<Damage> = Vec::new();
        let mut stopped: Option<ReaderError> = None;
        let strides = &output.strides;
        std::thread::scope(|scope| {
            let sink = DeviceSink {
                reads,
                slabs: &slabs,
                sender: Mutex::new(sender),
                sent: &sent,
                strides,
            };
            let thread = std::thread::Builder::new().name("zarrs_cuda device reads".to_string());
            let reading = thread.spawn_scoped(scope, move || {
                self.read_from_store(codec, boxes, OutputPlace::Device(&sink))
            });
            let reading = reading.map_err(|error| ReaderError::DeviceUnusable {
                reason: format!("a thread cannot be started: {error}"),
            })?;
            let mut damaged = |tag: usize, error: EngineError| {
                if !engine_is_about_stored_bytes(&error) {
                    return Err(error);
                }
                let sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
                let (key, number) = sent
                    .get(tag)
                    .cloned()
                    .ok_or(EngineError::Internal("a tag"))?;
                let damage = Damage::new(key, Some(number), error);
                if settings.fill_damaged {
                    damages.push(damage);
                    return Ok(());
                }
                stopped = Some(ReaderError::Damaged(damage));
                Err(EngineError::Internal("a subchunk is damaged"))
            };
            let placed = sharding.with_job(&settings.codec_options, |job| {
                // SAFETY: the memory was allocated on the device for this call, and is not known to anybody else. The
                // boxes were checked to be inside the array, and the memory has room for all of them.
                unsafe { reads.read(job, output, &receiver, &mut damaged) }
            });
            // The threads of the reader stop at the next subchunk.
            drop(receiver);
            let report = reading.join();
            if let Err(error) = placed {
                return Err(stopped.unwrap_or_else(|| device_error(&error)));
            }
            match report {
                Ok(Ok(mut report)) => {
                    super::metrics::add(&self.0.kept.counters.damaged, damages.len());
                    report.damaged.append(&mut damages);
                    Ok(report)
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(failed("a thread of the reader has panicked".to_string())),
            }
        })
    }
}

impl<TStorage: ?Sized> ArrayReader<TStorage> {
    /// Describes how boxes are read into the memory of a device, for people; `None` if no device was asked for.
    pub(super) fn explain_device(&self, codec: &CudaShardingCodec) -> Option<String> {
        let array = self.array();
        let chunk = array.chunk_shape(&vec![0; array.shape().len()]).ok()?;
        let sharding = codec.sharding(&chunk, array.data_type(), array.fill_value());
        sharding.ok()?.explain_reads()
    }
}

pub(super) fn device_error(error: &EngineError) -> ReaderError {
    match *error {
        EngineError::OutOfMemory { what, bytes } => ReaderError::Memory { what, bytes },
        EngineError::Unsuitable(_) => ReaderError::DeviceUnusable {
            reason: error.to_string(),
        },
        _ if error.wants_less() => ReaderError::DeviceUnusable {
            reason: error.to_string(),
        },
        _ => failed(error.to_string()),
    }
}

/// Returns the error of a read that has failed, and after which the device writes no place.
fn failed(reason: String) -> ReaderError {
    ReaderError::Device {
        reason,
        may_write: false,
    }
}

/// Returns the error of a device that was given memory or a stream of the caller, before anything was read.
pub(super) fn place_error(error: &EngineError) -> ReaderError {
    match error {
        EngineError::Unsuitable(reason) => ReaderError::DevicePlace {
            reason: reason.clone(),
        },
        error => device_error(error),
    }
}

/// Returns the product of `size` and `extents`; `None` if it overflows.
pub(super) fn product(size: usize, extents: &[usize]) -> Option<usize> {
    let mut extents = extents.iter();
    extents.try_fold(size, |all, extent| all.checked_mul(*extent))
}
