//! The array for the frames: new or existing.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, ArrayBytes, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_cuda::CudaShardingCodecBuilder;
use zarrs_cuda::writer::ArrayWriter;

use crate::Stop;
use crate::codec::bytes_to_bytes_codecs;
use crate::job::Job;

/// An array in a directory, and the number of its frames.
pub(crate) struct Recording {
    array: Array<FilesystemStore>,
    store: Arc<FilesystemStore>,
    path: PathBuf,
    /// The shape of a shard.
    shard: Vec<u64>,
}

impl Recording {
    /// Opens the array in the job's directory. Creates one if there is none.
    pub(crate) fn open_or_create(job: &Job) -> Result<Self, Stop> {
        let shown = job.output.display();
        let cannot = |doing: &str, error: &dyn fmt::Display| {
            let error = error.to_string();
            Stop::Failed(format!("cannot {doing} {shown}: {}", error.trim_end()))
        };
        let store = FilesystemStore::new(&job.output).map_err(|e| cannot("write to", &e))?;
        let store = Arc::new(store);
        let array = if job.output.join("zarr.json").exists() {
            Array::open(store.clone(), "/").map_err(|error| cannot("go on with", &error))?
        } else {
            let array = describe(job, store.clone()).map_err(|error| cannot("make", &error))?;
            array
                .store_metadata()
                .map_err(|error| cannot("make", &error))?;
            array
        };
        if array.dimensionality() != 3 || *array.data_type() != data_type::uint16() {
            return Err(Stop::Failed(format!(
                "{shown} has an array of {:?} with {} dimensions: a camera takes one of uint16 with 3",
                array.data_type(),
                array.dimensionality()
            )));
        }
        let shard = array.chunk_shape(&[0; 3]);
        let shard = shard.map_err(|error| cannot("go on with", &error))?;
        Ok(Self {
            array,
            store,
            path: job.output.clone(),
            shard: shard.iter().map(|extent| extent.get()).collect(),
        })
    }

    /// The number of frames.
    pub(crate) fn frames(&self) -> u64 {
        self.array.shape()[0]
    }

    /// The elements of a frame along y and x.
    pub(crate) fn frame_shape(&self) -> [u64; 2] {
        [self.array.shape()[1], self.array.shape()[2]]
    }

    /// Returns a writer that continues after the last frame.
    ///
    /// A writer starts at the border of a layer of shards. The last layer is short if the camera
    /// was stopped within it. Its frames are then appended once more. The old shards stay until the
    /// new ones, with more frames, replace them.
    pub(crate) fn writer(&self) -> Result<ArrayWriter, Stop> {
        let start = self.frames() / self.shard[0] * self.shard[0];
        let mut writer = ArrayWriter::builder(&self.array)
            .with_start(start)
            .with_atomic_rename(self.store.clone())
            .build()?;
        for frame in start..self.frames() {
            let [height, width] = self.frame_shape();
            let region =
                ArraySubset::new_with_start_shape(vec![frame, 0, 0], vec![1, height, width]);
            let bytes = region
                .map_err(|error| error.to_string())
                .and_then(|region| {
                    let bytes: Result<ArrayBytes, _> = self.array.retrieve_array_subset(&region);
                    let bytes = bytes.map_err(|error| error.to_string())?;
                    bytes.into_fixed().map_err(|error| error.to_string())
                });
            let bytes = bytes.map_err(|error| {
                format!(
                    "cannot read frame {frame} of {}, which is in an unfinished layer of shards: {error}",
                    self.path.display()
                )
            })?;
            writer.append_bytes(&bytes)?;
        }
        Ok(writer)
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [height, width] = self.frame_shape();
        write!(
            f,
            "frames of {height} x {width} uint16 in shards of {:?} -> {}",
            self.shard,
            self.path.display()
        )?;
        match self.frames() {
            0 => Ok(()),
            frames => write!(f, ", behind the {frames} that are there"),
        }
    }
}

/// A new array without frames. Nothing is written to disk yet.
fn describe(job: &Job, store: Arc<FilesystemStore>) -> Result<Array<FilesystemStore>, String> {
    let data_type = data_type::uint16();
    let codec = CudaShardingCodecBuilder::new(job.subchunk.to_vec(), &data_type)
        .bytes_to_bytes_codecs(bytes_to_bytes_codecs(&job.codec, &data_type)?)
        .build_arc()
        .map_err(|error| error.to_string())?;
    let [height, width] = job.frame.map(u64::from);
    let shard: Vec<u64> = job.shard.iter().map(|extent| extent.get()).collect();
    let mut builder = ArrayBuilder::new(vec![0, height, width], shard, data_type, 0_u16);
    builder
        .array_to_bytes_codec(codec)
        .dimension_names(Some(["t", "y", "x"]));
    // The array is created from metadata, so that the registry chooses our codec, as in any
    // application.
    let metadata = builder
        .build_metadata()
        .map_err(|error| error.to_string())?;
    Array::new_with_metadata(store, "/", metadata.into()).map_err(|error| error.to_string())
}
