//! Arrays and crops that are read into the memory of the device, beside reads on the host and one copy.
//!
//! The array is in memory of the host, so decoding and the bus take the time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zarrs::array::{Array, ArrayBuilder, ArrayBytes, ArraySubset, data_type};
use zarrs_cuda::reader::{ArrayReader, DevicePlace, Output};
use zarrs_cuda::{Backend, CudaShardingCodec, Options};
use zarrs_cuda_engine::cuda::driver::{DeviceSpan, Driver, PinnedSpan, PinnedUse, Span};

use super::failure::{Failure, Result};
use super::report::{Report, Row};
use super::samples::{Contestant, race};
use super::volumes::Volume;
use super::workbench::Workbench;
use super::{ELEMENT, Run, Sizes};
use crate::chains;
use crate::keeping::Keeping;

const CHAINS: [&str; 4] = ["none", "zstd-1", "blosc-lz4", "blosc-zstd-shuffle"];

/// The shapes of arrays and crops.
#[derive(Clone, Debug)]
pub(crate) struct Shapes {
    /// Elements of the array along each axis, of a shard, and of a crop.
    pub(crate) edge: usize,
    pub(crate) shard: usize,
    pub(crate) crop: usize,
    /// The number of crops of a call.
    pub(crate) crops: usize,
    /// Elements of subchunks along each axis.
    pub(crate) subchunks: Vec<usize>,
    pub(crate) rounds: usize,
    /// The time limit of all reads.
    pub(crate) time: Duration,
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure(error.to_string())
}

pub(crate) fn measure(
    driver: &dyn Driver,
    sizes: &Sizes,
    run: &Run<'_>,
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "reads",
        "whole arrays and crops into the memory of the device, by its decoder; beside the host's, and a copy",
    );
    let shapes = &sizes.reads;
    let begin = Instant::now();
    let workbench = Workbench::new(driver, sizes.staging)?;
    let mut left_out = Vec::new();
    for volume in Volume::ALL {
        report.note(volume.name(), volume.about());
        let elements = volume.elements([shapes.edge; 3])?;
        let whole = Job::whole(shapes);
        let crops = Job::crops(shapes);
        // The memory of the application, and of the host for the copy.
        let most = whole.bytes().max(crops.bytes());
        let target = workbench.device(most)?;
        let pinned = workbench.pinned(most, PinnedUse::Both)?;
        for &subchunk in &shapes.subchunks {
            for chain in CHAINS {
                for job in [&whole, &crops] {
                    let name = format!("{}, {chain}, {subchunk}³, {}", volume.name(), job.name);
                    if begin.elapsed() > shapes.time {
                        left_out.push(name);
                        continue;
                    }
                    let place = Place {
                        workbench: &workbench,
                        driver,
                        target,
                        pinned,
                    };
                    let measured = read(&place, sizes, (chain, subchunk), (&elements, job))
                        .map(|row| report.row(row(&name).with("data", volume.name())));
                    report.failed(&name, measured);
                    (run.save)(&report.so_far());
                }
            }
        }
    }
    report.note("left_out_for_time", left_out);
    Ok(())
}

/// The boxes of a call.
struct Job {
    name: &'static str,
    origins: Vec<Vec<u64>>,
    shape: Vec<u64>,
}

impl Job {
    fn whole(shapes: &Shapes) -> Self {
        Self {
            name: "array",
            origins: vec![vec![0; 3]],
            shape: vec![shapes.edge as u64; 3],
        }
    }

    /// Crops at places that look like random ones.
    fn crops(shapes: &Shapes) -> Self {
        let room = (shapes.edge - shapes.crop + 1) as u64;
        let mut state = 1_u64;
        let mut number = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % room
        };
        let origins = (0..shapes.crops).map(|_| (0..3).map(|_| number()).collect());
        Self {
            name: "crops",
            origins: origins.collect(),
            shape: vec![shapes.crop as u64; 3],
        }
    }

    /// Returns the number of bytes of a box, and of all boxes.
    fn bytes_of_box(&self) -> usize {
        self.shape.iter().product::<u64>() as usize * ELEMENT
    }

    fn bytes(&self) -> usize {
        self.origins.len() * self.bytes_of_box()
    }

    fn subsets(&self) -> Vec<ArraySubset> {
        let origins = self.origins.iter();
        let subsets = origins.map(|origin| {
            let ranges = std::iter::zip(origin, &self.shape);
            ArraySubset::from(
                ranges
                    .map(|(start, len)| *start..start + len)
                    .collect::<Vec<_>>(),
            )
        });
        subsets.collect()
    }
}

/// The device, memory of it, and memory of the host that is as large.
struct Place<'a> {
    workbench: &'a Workbench<'a>,
    driver: &'a dyn Driver,
    target: DeviceSpan,
    pinned: PinnedSpan,
}

fn array(
    sizes: &Sizes,
    device: usize,
    (chain, subchunk): (&str, usize),
    elements: &[u8],
) -> crate::Result<Array<Keeping>> {
    let shapes = &sizes.reads;
    let configuration = chains::configuration(&chains::codecs(chain)?, subchunk as u64)?;
    let store = Arc::new(Keeping::default());
    let of_codec = |options| -> crate::Result<Array<Keeping>> {
        let codec = CudaShardingCodec::new_with_configuration(&configuration, options)?;
        let shape = vec![shapes.edge as u64; 3];
        let mut builder = ArrayBuilder::new(
            shape,
            vec![shapes.shard as u64; 3],
            data_type::uint16(),
            0_u16,
        );
        builder.array_to_bytes_codec(Arc::new(codec));
        Ok(builder.build(store.clone(), "/")?)
    };
    let by_host = of_codec(Options::default().with_backend(Backend::Host))?;
    by_host.store_array_subset(&by_host.subset_all(), ArrayBytes::new_flen(elements))?;
    let options = Options::default()
        .with_devices([device])
        .with_device_decode(true);
    of_codec(match &sizes.nvcomp {
        Some(file) => options.with_nvcomp(file),
        None => options,
    })
}

/// Measures a chain and a job. Returns the row for a name.
fn read<'r>(
    place: &Place<'_>,
    sizes: &Sizes,
    kind: (&'r str, usize),
    (elements, job): (&[u8], &Job),
) -> Result<impl FnOnce(&str) -> Row + use<'r>> {
    let Place {
        workbench,
        driver,
        target,
        pinned,
    } = *place;
    let device = driver.device().ordinal;
    let array = array(sizes, device, kind, elements).map_err(failure)?;
    let reader = ArrayReader::builder(&array).build().map_err(failure)?;
    let (subsets, bytes) = (job.subsets(), job.bytes());
    let target = DeviceSpan {
        len: bytes,
        ..target
    };
    let pinned = PinnedSpan {
        len: bytes,
        ..pinned
    };
    let edge = job.shape[0] as usize;
    let places: Vec<DevicePlace> = (0..subsets.len())
        .map(|number| DevicePlace {
            device,
            pointer: target.memory.0 + (number * job.bytes_of_box()) as u64,
            len: job.bytes_of_box(),
            strides: vec![edge * edge * ELEMENT, edge * ELEMENT, ELEMENT],
            stream: 0,
        })
        .collect();
    let into_ours = || -> Result<_> {
        let tensor = reader.read_boxes_device(&job.origins, &job.shape);
        tensor.map_err(failure)
    };
    let into_theirs = || -> Result<()> {
        // SAFETY: the memory lives as long as the workbench, and nothing else uses it before the synchronisation.
        unsafe { reader.read_into_device(&subsets, &places) }.map_err(failure)?;
        Ok(driver.synchronize_context()?)
    };
    let by_host = || -> Result<()> {
        let start = workbench.write(pinned)?;
        let strides = std::iter::once(job.bytes_of_box()).chain(places[0].strides.iter().copied());
        // SAFETY: the memory is the workbench's, and only this thread uses it.
        let output = unsafe { Output::of_elements(start, bytes, strides.collect()) };
        let read = reader.read_boxes_bytes_into(&job.origins, &job.shape, output);
        read.map_err(failure)?;
        // SAFETY: the memory lives as long as the workbench, whose stream is synchronised.
        workbench.run(|stream| unsafe {
            driver.copy(stream, Span::Pinned(pinned), Span::Device(target))
        })
    };
    // Each way is compared with the elements on the host.
    let before = zarrs_cuda::metrics();
    by_host()?;
    let expected = workbench.read(pinned)?.to_vec();
    let tensor = into_ours()?;
    let ours = driver.adopt(tensor.pointer(), bytes)?;
    workbench.check("a tensor", ours, [(0, &expected[..])])?;
    drop(tensor);
    workbench.fill(target, 0xcc)?;
    into_theirs()?;
    workbench.check("memory of the application", target, [(0, &expected[..])])?;
    let after = zarrs_cuda::metrics();
    let by_device = after.subchunks_read_to_devices - before.subchunks_read_to_devices;
    let fallen_back = after.subchunks_read_by_host - before.subchunks_read_by_host;
    let timed = |work: &dyn Fn() -> Result<()>| -> Result<f64> {
        let begin = Instant::now();
        work()?;
        Ok(begin.elapsed().as_secs_f64())
    };
    let released = || -> Result<()> {
        // SAFETY: nothing uses the tensor.
        unsafe { into_ours()?.release(0) }.map_err(failure)
    };
    let first: Contestant<'_> = &mut |_| timed(&released);
    let second: Contestant<'_> = &mut |_| timed(&into_theirs);
    let third: Contestant<'_> = &mut |_| timed(&by_host);
    let rounds = sizes.reads.rounds;
    let [ours, theirs, host] = race(Duration::ZERO, rounds, [first, second, third])?;
    let (chain, subchunk) = kind;
    Ok(move |name: &str| {
        Row::new(name, &ours, bytes)
            .with("chain", chain)
            .with("subchunk", subchunk)
            .with("subchunks", by_device)
            .with("subchunks_by_host", fallen_back)
            .with(
                "into_memory_of_the_application_gb_per_s",
                theirs.rates(bytes),
            )
            .with("host_and_copy_gb_per_s", host.rates(bytes))
            .ratio("the host and a copy", ours.by(bytes, &host, bytes), None)
            .ratio(
                "memory of the application",
                ours.by(bytes, &theirs, bytes),
                None,
            )
    })
}
