//! Frames that a GPU generates and compresses: their elements do not pass through the host.
//!
//! ```text
//! cargo run --release --example stream_device -- OUT [OPTIONS]
//! ```
//!
//! A kernel writes frames to two buffers on the device in turn. `append_device` appends each buffer
//! to the array in OUT. After its event has completed, the buffer is reused. At the end one frame
//! is read back, and compared with the expected elements. `--help` lists the options.
//!
//! It needs an NVIDIA GPU and, for a compressor, NVIDIA's nvCOMP.

use std::ffi::{CStr, c_void};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};
use lexopt::ValueExt;
use zarrs::array::codec::ZstdCodec;
use zarrs::array::codec::bytes_to_bytes::blosc::{
    BloscCodec, BloscCompressionLevel, BloscCompressor, BloscShuffleMode,
};
use zarrs::array::{Array, ArrayBuilder, ArraySubset, data_type};
use zarrs::filesystem::FilesystemStore;
use zarrs_codec::BytesToBytesCodecTraits;
use zarrs_cuda::writer::{ArrayWriter, DeviceEvent, DeviceSlice};
use zarrs_cuda::{Backend, CudaShardingCodecBuilder, Options};

const USAGE: &str = "\
Frames of uint16 that a kernel makes on a GPU become a sharded Zarr array in OUT.

Usage: stream_device OUT [OPTIONS]

Options:
  --frames N           how many frames                   [default: 256]
  --shape Y,X          elements of a frame               [default: 2304,2304]
  --subchunk Z,Y,X     shape of a subchunk               [default: 8,64,64]
  --shard Z,Y,X        shape of a shard                  [default: 128,768,768]
  --codec CODEC        how subchunks are compressed      [default: zstd]
                         none | zstd | lz4 (within Blosc); all but none take nvCOMP
  --if-present         where there is no GPU, say so and succeed
  --help               print this

OUT must not hold an array yet.

Exit codes: 0 done, 1 failed, 2 wrong usage, or no GPU.";

/// The ordinal of the device in this process.
const DEVICE: usize = 0;

/// Writes one frame: `(x + y + 8 * number) mod 65536`. A grid-stride loop supports any grid.
const KERNEL: &CStr = c"
.version 8.0
.target sm_70
.address_size 64

.visible .entry gradient(
    .param .u64 frame,
    .param .u32 width,
    .param .u32 elements,
    .param .u32 number
)
{
    .reg .pred %p<1>;
    .reg .b16 %h<1>;
    .reg .b32 %r<8>;
    .reg .b64 %a<2>;

    ld.param.u64 %a0, [frame];
    cvta.to.global.u64 %a0, %a0;
    ld.param.u32 %r0, [width];
    ld.param.u32 %r1, [elements];
    ld.param.u32 %r2, [number];
    shl.b32 %r2, %r2, 3;

    // r3: this thread's element, r4: all threads of the grid
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r3, %r3, %r4, %r5;
    mov.u32 %r5, %nctaid.x;
    mul.lo.u32 %r4, %r4, %r5;
next:
    setp.ge.u32 %p0, %r3, %r1;
    @%p0 bra done;
    // r5: y, r6: x
    div.u32 %r5, %r3, %r0;
    mul.lo.u32 %r6, %r5, %r0;
    sub.u32 %r6, %r3, %r6;
    add.u32 %r7, %r5, %r6;
    add.u32 %r7, %r7, %r2;
    cvt.u16.u32 %h0, %r7;
    mul.wide.u32 %a1, %r3, 2;
    add.u64 %a1, %a0, %a1;
    st.global.u16 [%a1], %h0;
    add.u32 %r3, %r3, %r4;
    bra next;
done:
    ret;
}
";

/// Blocks per grid, and threads per block: enough for any GPU.
const GRID: (u32, u32) = (1024, 256);

/// Limits a frame so that the kernel's index plus the grid's threads fits in 32 bits.
const MOST_ELEMENTS: u32 = 1 << 31;

/// The value that the kernel writes to element `(y, x)` of frame `number`.
#[allow(clippy::cast_possible_truncation, reason = "modulo 65536")]
fn expected(number: u64, y: u64, x: u64) -> u16 {
    (x + y + 8 * number) as u16
}

enum Stop {
    Usage(String),
    /// There is no driver, or no device.
    NoGpu(String),
    Failed(String),
}

fn failed(doing: &str, error: impl std::fmt::Display) -> Stop {
    Stop::Failed(format!("cannot {doing}: {error}"))
}

fn main() -> ExitCode {
    let job = match Job::from_arguments() {
        Ok(Some(job)) => job,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => return stop(Stop::Usage(error.to_string()), false),
    };
    match run(&job) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => stop(why, job.if_present),
    }
}

fn stop(why: Stop, if_present: bool) -> ExitCode {
    let (message, code) = match why {
        Stop::NoGpu(why) if if_present => {
            println!("nothing was done: {why}");
            return ExitCode::SUCCESS;
        }
        Stop::NoGpu(why) => (format!("{why}. `stream_frames` streams from the host"), 2),
        Stop::Usage(message) => (format!("{message}\n\nTry --help."), 2),
        Stop::Failed(message) => (message, 1),
    };
    eprintln!("error: {message}");
    ExitCode::from(code)
}

fn run(job: &Job) -> Result<(), Stop> {
    let [height, width] = job.frame.map(|extent| u32::try_from(extent.get()).ok());
    let elements = height.zip(width).and_then(|(h, w)| h.checked_mul(w));
    let (Some(width), Some(elements @ ..=MOST_ELEMENTS)) = (width, elements) else {
        let wrong = format!("--shape: a frame has at most {MOST_ELEMENTS} elements");
        return Err(Stop::Usage(wrong));
    };
    // Declared before the writer, so that its memory is freed after the writer has ended.
    let mut gpu = Gpu::open()?;
    let array = new_array(job)?;
    let store = array.storage();
    let mut writer = ArrayWriter::builder(&array)
        .with_atomic_rename(store.clone())
        .build()
        .map_err(|error| failed("encode frames on the GPU", error))?;
    array
        .store_metadata()
        .map_err(|error| failed("make the array", error))?;
    println!(
        "{} frames of {} x {} uint16 on {} -> {}; buffers: {}",
        job.frames,
        job.frame[0],
        job.frame[1],
        gpu.name,
        job.output.display(),
        writer.memory_estimate(),
    );

    let len = elements as usize * size_of::<u16>();
    let buffers = [gpu.allocate(len)?, gpu.allocate(len)?];
    let mut last_read: [Option<DeviceEvent>; 2] = [None, None];
    for number in 0..job.frames {
        let turn = usize::from(number % 2 == 1);
        // The frame before the last one used this buffer.
        if let Some(event) = last_read[turn].take() {
            event
                .wait()
                .map_err(|error| failed("reuse a buffer", error))?;
        }
        gpu.make_frame(buffers[turn], width, elements, number)?;
        let slice = DeviceSlice {
            device: DEVICE,
            pointer: buffers[turn],
            len,
            stream: gpu.stream.addr() as u64,
        };
        // SAFETY: the buffer and the stream belong to the device's primary context. The buffer is
        // reused only after its event, and freed after the device has finished all work.
        let read = unsafe { writer.append_device(&slice) };
        last_read[turn] = Some(read.map_err(|error| failed("append a frame", error))?);
    }
    let report = writer
        .finish()
        .map_err(|error| failed("finish the array", error))?;
    println!("{report}");
    if let Some(number) = job.frames.checked_sub(1) {
        compare(store, number / 2)?;
    }
    Ok(())
}

/// An array without frames that a GPU encodes. It is not stored yet.
fn new_array(job: &Job) -> Result<Array<FilesystemStore>, Stop> {
    let cannot = |error: &dyn std::fmt::Display| failed("make the array", error);
    let options = Options::default()
        .with_backend(Backend::Cuda)
        .with_devices([DEVICE]);
    let data_type = data_type::uint16();
    let codecs = job.codec.codecs().map_err(|error| cannot(&error))?;
    let codec = CudaShardingCodecBuilder::new(job.subchunk.to_vec(), &data_type)
        .bytes_to_bytes_codecs(codecs)
        .options(options)
        .build_arc()
        .map_err(|error| cannot(&error))?;
    let [height, width] = job.frame.map(u64::from);
    let shard: Vec<u64> = job.shard.iter().map(|extent| extent.get()).collect();
    if job.output.join("zarr.json").exists() {
        return Err(cannot(&format!("{} has one", job.output.display())));
    }
    let store = FilesystemStore::new(&job.output).map_err(|error| cannot(&error))?;
    ArrayBuilder::new(vec![0, height, width], shard, data_type, 0_u16)
        .array_to_bytes_codec(codec)
        .dimension_names(Some(["t", "y", "x"]))
        .build(Arc::new(store), "/")
        .map_err(|error| cannot(&error))
}

/// Reads frame `number` with zarrs, on the host, and compares it with the expected elements.
fn compare(store: Arc<FilesystemStore>, number: u64) -> Result<(), Stop> {
    let cannot = |error: &dyn std::fmt::Display| failed("read a frame back", error);
    let array = Array::open(store, "/").map_err(|error| cannot(&error))?;
    let [height, width] = [array.shape()[1], array.shape()[2]];
    let frame = ArraySubset::new_with_ranges(&[number..number + 1, 0..height, 0..width]);
    let frame: Vec<u16> = array
        .retrieve_array_subset(&frame)
        .map_err(|error| cannot(&error))?;
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
    for ((y, x), got) in places.zip(frame) {
        let expected = expected(number, y, x);
        if got != expected {
            return Err(Stop::Failed(format!(
                "element ({y}, {x}) of frame {number} is {got}, and the kernel makes {expected}"
            )));
        }
    }
    println!("frame {number} is what the kernel made");
    Ok(())
}

/// A device, a stream, and the kernel. Dropping it frees the resources.
struct Gpu {
    name: String,
    kernel: sys::CUfunction,
    stream: sys::CUstream,
    memory: Vec<sys::CUdeviceptr>,
}

impl Gpu {
    /// Opens the device with its primary context, which the writer and CUDA's runtime API also use.
    fn open() -> Result<Self, Stop> {
        // This comes first: without the library every other call panics.
        // SAFETY: it loads the driver's library.
        if !unsafe { sys::is_culib_present() } {
            let why = "no CUDA driver was found (libcuda)";
            return Err(Stop::NoGpu(why.to_string()));
        }
        let none = |error: DriverError| Stop::NoGpu(format!("CUDA has no device: {error}"));
        result::init().map_err(none)?;
        if result::device::get_count().map_err(none)? == 0 {
            return Err(Stop::NoGpu("CUDA has no device".to_string()));
        }
        let open = || -> Result<Self, DriverError> {
            let device = result::device::get(0)?;
            // SAFETY: the device exists, and its primary context is kept for as long as the process
            // runs; the kernel is PTX that ends with a zero.
            unsafe {
                result::ctx::set_current(result::primary_ctx::retain(device)?)?;
                let module = result::module::load_data(KERNEL.as_ptr().cast())?;
                Ok(Self {
                    name: result::device::get_name(device)?,
                    kernel: result::module::get_function(module, c"gradient".to_owned())?,
                    stream: result::stream::create(result::stream::StreamKind::NonBlocking)?,
                    memory: Vec::new(),
                })
            }
        };
        open().map_err(|error| failed("prepare the device", error))
    }

    fn allocate(&mut self, len: usize) -> Result<sys::CUdeviceptr, Stop> {
        // SAFETY: a context is current, and nothing reads the memory before it is written.
        let memory = unsafe { result::malloc_sync(len) };
        let memory = memory.map_err(|error| failed("allocate a frame on the device", error))?;
        self.memory.push(memory);
        Ok(memory)
    }

    /// Enqueues frame `number`. The kernel may not have started when this returns.
    fn make_frame(
        &self,
        mut frame: sys::CUdeviceptr,
        mut width: u32,
        mut elements: u32,
        number: u64,
    ) -> Result<(), Stop> {
        // The kernel computes modulo 65536.
        let mut number = u32::try_from(number % (1 << 16)).unwrap_or(0);
        let mut arguments: [*mut c_void; 4] = [
            (&raw mut frame).cast(),
            (&raw mut width).cast(),
            (&raw mut elements).cast(),
            (&raw mut number).cast(),
        ];
        let (blocks, threads) = GRID;
        // SAFETY: the arguments match the kernel, which writes `elements` elements to `frame`.
        let launched = unsafe {
            result::launch_kernel(
                self.kernel,
                (blocks, 1, 1),
                (threads, 1, 1),
                0,
                self.stream,
                &mut arguments,
            )
        };
        launched.map_err(|error| failed("make a frame on the device", error))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // After this nothing uses the memory, even if there was an error.
        if let Err(error) = result::ctx::synchronize() {
            eprintln!("the device did not finish its work: {error}");
            return;
        }
        for memory in self.memory.drain(..) {
            // SAFETY: the memory was allocated here, and is freed nowhere else.
            if let Err(error) = unsafe { result::free_sync(memory) } {
                eprintln!("a frame on the device could not be freed: {error}");
            }
        }
    }
}

/// How subchunks are compressed.
#[derive(Clone, Copy)]
enum Codec {
    None,
    Zstd,
    /// Within Blosc.
    Lz4,
}

impl Codec {
    fn codecs(self) -> Result<Vec<Arc<dyn BytesToBytesCodecTraits>>, Box<dyn std::error::Error>> {
        Ok(match self {
            Self::None => Vec::new(),
            Self::Zstd => vec![Arc::new(ZstdCodec::new(1, false))],
            Self::Lz4 => vec![Arc::new(BloscCodec::new(
                BloscCompressor::LZ4,
                BloscCompressionLevel::try_from(5)
                    .map_err(|level| format!("{level} is no level"))?,
                None,
                BloscShuffleMode::Shuffle,
                Some(size_of::<u16>()),
            )?)],
        })
    }
}

/// The command line.
struct Job {
    output: PathBuf,
    frames: u64,
    frame: [NonZeroU64; 2],
    subchunk: [NonZeroU64; 3],
    shard: [NonZeroU64; 3],
    codec: Codec,
    if_present: bool,
}

impl Job {
    /// Returns `None` if help is requested.
    fn from_arguments() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, Short, Value};

        let extent = |extent| NonZeroU64::new(extent).unwrap_or(NonZeroU64::MIN);
        let mut job = Self {
            output: PathBuf::new(),
            frames: 256,
            frame: [2304, 2304].map(extent),
            subchunk: [8, 64, 64].map(extent),
            shard: [128, 768, 768].map(extent),
            codec: Codec::Zstd,
            if_present: false,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("frames") => job.frames = parser.value()?.parse()?,
                Long("shape") => job.frame = parser.value()?.parse_with(shape)?,
                Long("subchunk") => job.subchunk = parser.value()?.parse_with(shape)?,
                Long("shard") => job.shard = parser.value()?.parse_with(shape)?,
                Long("codec") => {
                    job.codec = parser.value()?.parse_with(|codec| match codec {
                        "none" => Ok(Codec::None),
                        "zstd" => Ok(Codec::Zstd),
                        "lz4" => Ok(Codec::Lz4),
                        _ => Err("it is `none`, `zstd` or `lz4`"),
                    })?;
                }
                Long("if-present") => job.if_present = true,
                Long("help") | Short('h') => return Ok(None),
                Value(path) if job.output.as_os_str().is_empty() => job.output = path.into(),
                other => return Err(other.unexpected()),
            }
        }
        if job.output.as_os_str().is_empty() {
            return Err("an OUT is needed".into());
        }
        Ok(Some(job))
    }
}

/// Parses `A,B,…` with `N` extents.
fn shape<const N: usize>(text: &str) -> Result<[NonZeroU64; N], String> {
    let extents: Result<Vec<NonZeroU64>, _> = text.split(',').map(str::parse).collect();
    extents
        .ok()
        .and_then(|extents| extents.try_into().ok())
        .ok_or_else(|| format!("it is {N} numbers above 0 with commas between them"))
}
