//! Kernels, relative to a copy of the same box within the device.
//!
//! Rates count bytes read plus bytes written; for CRC32C only bytes read. The box is larger than
//! any cache, and needs one launch: 2 GiB in units of 2 bytes are 2³⁰, which a launch can count.

use super::failure::{Result, require};
use super::report::{Report, Row};
use super::samples::{Contestant, Samples, race};
use super::workbench::Workbench;
use super::{ELEMENT, FILL_VALUE, Kind, Sizes};
use zarrs_cuda_engine::contract::Stage;
use zarrs_cuda_engine::cuda::driver::{DeviceSpan, Driver, DriverError, Span, StreamId};
use zarrs_cuda_engine::cuda::kernels::crc32c::{self, CHECKSUM};
use zarrs_cuda_engine::cuda::kernels::scatter::SlabScatter;
use zarrs_cuda_engine::cuda::kernels::spans::{Lengths, Slots};
use zarrs_cuda_engine::cuda::kernels::{aggregate, split};
use zarrs_cuda_engine::layout::{Lift, LiftBatch, LiftSlab};

/// The goal, as a part of the bandwidth of a copy within the device.
const GOAL: f64 = 0.7;

/// The value of each output byte before a kernel runs.
const POISON: u8 = 0xa5;

const C_ORDER: [usize; 3] = [0, 1, 2];
const REVERSED: [usize; 3] = [2, 1, 0];

type Enqueue<'a> = Box<dyn Fn(StreamId) -> std::result::Result<(), DriverError> + 'a>;

/// An operation to time. Its result was checked.
struct Operation<'a> {
    name: String,
    /// Bytes read plus bytes written.
    bytes: usize,
    goal: Option<f64>,
    /// Flags to clear before the operation.
    clear: Option<DeviceSpan>,
    enqueue: Enqueue<'a>,
}

/// Two large buffers, and the operations on them.
struct Kernels<'a, 'd> {
    workbench: &'a Workbench<'d>,
    sizes: &'a Sizes,
    data: &'a [u8],
    /// Holds boxes and dense bytes.
    dense: DeviceSpan,
    /// Holds subchunks in slots.
    slots: DeviceSpan,
    flags: DeviceSpan,
    fill: DeviceSpan,
    operations: Vec<Operation<'a>>,
}

pub(crate) fn measure(
    driver: &dyn Driver,
    sizes: &Sizes,
    data: &[u8],
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "on_device",
        "kernels; bytes read and written (CRC32C: read) by time on the device. Goals are for boxes in C order and for long runs: with axes reversed there is none",
    );
    let workbench = Workbench::new(driver, sizes.staging)?;
    let pattern = SlabScatter::fill_pattern(&FILL_VALUE);
    let count = (sizes.edge / sizes.subchunk).pow(3);
    let with_checksum = count * slot_stride(sizes.subchunk.pow(3) * ELEMENT + CHECKSUM);
    let mut kernels = Kernels {
        workbench: &workbench,
        sizes,
        data,
        dense: workbench.device(data.len())?,
        slots: workbench.device(data.len().max(with_checksum))?,
        flags: workbench.device(count * 4)?,
        fill: workbench.device(pattern.len())?,
        operations: Vec::new(),
    };
    workbench.upload(kernels.fill, &pattern)?;
    kernels.copy()?;
    kernels.scatters(C_ORDER, "")?;
    kernels.scatters(REVERSED, ", axes reversed")?;
    kernels.checksums()?;
    for &run in &sizes.runs {
        kernels.gather(run, run)?;
        // The layout of runs with a checksum: the widest load sees them at varying alignments.
        kernels.gather(run + CHECKSUM, slot_stride(run + CHECKSUM))?;
    }
    let subchunk = sizes.subchunk.pow(3) * ELEMENT;
    kernels.split(subchunk)?;
    kernels.split(subchunk + CHECKSUM)?;
    kernels.time(report)
}

/// The distance of slots of `len` bytes: slots start at multiples of 16.
fn slot_stride(len: usize) -> usize {
    len.next_multiple_of(16)
}

/// The first `len` bytes of `span`.
fn first(span: DeviceSpan, len: usize) -> DeviceSpan {
    DeviceSpan {
        len: len.min(span.len),
        ..span
    }
}

impl<'a, 'd: 'a> Kernels<'a, 'd> {
    /// Fills `to` with [`POISON`], runs `operation` once, and keeps it if `to` then holds `pieces`.
    fn add<'p>(
        &mut self,
        operation: Operation<'a>,
        to: DeviceSpan,
        pieces: impl IntoIterator<Item = (usize, &'p [u8])>,
    ) -> Result<()> {
        self.workbench.fill(to, POISON)?;
        self.add_in_place(operation, to, pieces)
    }

    /// As [`add`](Self::add), for operations that first read the bytes of `to`.
    fn add_in_place<'p>(
        &mut self,
        operation: Operation<'a>,
        to: DeviceSpan,
        pieces: impl IntoIterator<Item = (usize, &'p [u8])>,
    ) -> Result<()> {
        if let Some(clear) = operation.clear {
            self.workbench.fill(clear, 0)?;
        }
        self.workbench.run(|stream| (operation.enqueue)(stream))?;
        self.workbench.check(&operation.name, to, pieces)?;
        self.operations.push(operation);
        Ok(())
    }

    /// Adds the copy to which all other operations are compared.
    fn copy(&mut self) -> Result<()> {
        let (workbench, len) = (self.workbench, self.sizes.box_len());
        let (from, to) = (first(self.dense, len), first(self.slots, len));
        workbench.upload(self.dense, self.data)?;
        let operation = Operation {
            name: "copy".to_string(),
            bytes: 2 * len,
            goal: None,
            clear: None,
            // SAFETY: the memory belongs to the workbench; every caller that enqueues this waits
            // for it.
            enqueue: Box::new(move |stream| unsafe {
                workbench
                    .driver
                    .copy(stream, Span::Device(from), Span::Device(to))
            }),
        };
        self.add(operation, self.slots, [(0, &self.data[..len])])
    }

    /// Scatters the whole box, and unscatters it.
    fn scatters(&mut self, order: [usize; 3], suffix: &str) -> Result<()> {
        let (workbench, dense, slots, fill) = (self.workbench, self.dense, self.slots, self.fill);
        let kind = Kind::new(self.sizes.edge, self.sizes.subchunk, &order, &[])?;
        let len = self.sizes.box_len();
        let encoded = kind.encode_on_host(&self.data[..len])?;
        require(encoded.bytes.len() == len, || {
            format!("the host encodes {len} bytes to {}", encoded.bytes.len())
        })?;
        let scatter = scatter(&kind, kind.grid.subchunk_bytes())?;
        // Other orders depend on the spread of addresses. Their rates are reported without a goal.
        let goal = (order == C_ORDER).then_some(GOAL);
        workbench.upload(dense, self.data)?;
        let with_flags = [Some(self.flags), None];
        for flags in with_flags {
            let scatter = scatter.clone();
            let test = if flags.is_some() {
                ""
            } else {
                ", no test for the fill value"
            };
            let operation = Operation {
                name: format!("scatter{suffix}{test}"),
                bytes: 2 * len,
                goal,
                clear: flags,
                // SAFETY: as in `copy`.
                enqueue: Box::new(move |stream| unsafe {
                    scatter.enqueue_scatter(workbench.driver, stream, dense, slots, flags, fill)
                }),
            };
            self.add(operation, slots, [(0, &encoded.bytes[..])])?;
            if let Some(flags) = flags {
                let all = 1_u32.to_ne_bytes().repeat(flags.len / 4);
                workbench.check("flags of subchunks", flags, [(0, &all[..])])?;
            }
        }
        let operation = Operation {
            name: format!("unscatter{suffix}"),
            bytes: 2 * len,
            goal: None,
            clear: None,
            // SAFETY: as in `copy`.
            enqueue: Box::new(move |stream| unsafe {
                scatter.enqueue_unscatter(workbench.driver, stream, slots, dense, None, fill)
            }),
        };
        self.add(operation, dense, [(0, &self.data[..len])])
    }

    /// Appends checksums to subchunks.
    fn checksums(&mut self) -> Result<()> {
        let workbench = self.workbench;
        let stages = [Stage::Crc32c];
        let kind = Kind::new(self.sizes.edge, self.sizes.subchunk, &C_ORDER, &stages)?;
        let (len, subchunk) = (self.sizes.box_len(), kind.grid.subchunk_bytes());
        let encoded = kind.encode_on_host(&self.data[..len])?;
        let stride = slot_stride(subchunk + CHECKSUM);
        let scatter = scatter(&kind, stride)?;
        workbench.upload(self.dense, self.data)?;
        workbench.fill(self.slots, POISON)?;
        // SAFETY: as in `copy`.
        workbench.run(|stream| unsafe {
            let (dense, slots) = (self.dense, self.slots);
            scatter.enqueue_scatter(workbench.driver, stream, dense, slots, None, self.fill)
        })?;
        let slots = Slots {
            span: self.slots,
            stride,
            count: kind.grid.num_subchunks(),
        };
        let operation = Operation {
            name: "crc32c, append".to_string(),
            bytes: len,
            goal: None,
            clear: None,
            // SAFETY: as in `copy`.
            enqueue: Box::new(move |stream| unsafe {
                let lengths = Lengths::All(subchunk);
                crc32c::append(workbench.driver, stream, slots, lengths, None)
            }),
        };
        let pieces = encoded.extents.iter().enumerate().map(|(i, extent)| {
            let extent = extent.clone().unwrap_or_default();
            (i * stride, &encoded.bytes[extent])
        });
        self.add_in_place(operation, self.slots, pieces)
    }

    /// The least number of runs of `len` bytes that are as large as the box. Fails if the data do
    /// not have as many at this `stride`.
    fn runs(&self, len: usize, stride: usize) -> Result<usize> {
        let count = self.sizes.box_len().div_ceil(len);
        require(count * stride <= self.data.len(), || {
            format!("{count} runs of {len} bytes, {stride} apart, are more than there is")
        })?;
        Ok(count)
    }

    /// Gathers runs of `len` bytes from slots that are far apart.
    fn gather(&mut self, len: usize, stride: usize) -> Result<()> {
        let workbench = self.workbench;
        let count = self.runs(len, stride)?;
        let sources = mixed(count);
        let offsets = (0..=count).flat_map(|i| ((i * len) as u64).to_ne_bytes());
        let offsets: Vec<u8> = offsets.collect();
        let places = sources.iter().flat_map(|source| source.to_ne_bytes());
        let places: Vec<u8> = places.collect();
        let (source, offset) = (
            workbench.device(places.len())?,
            workbench.device(offsets.len())?,
        );
        workbench.upload(source, &places)?;
        workbench.upload(offset, &offsets)?;
        workbench.upload(self.slots, self.data)?;
        let slots = Slots {
            span: first(self.slots, count * stride),
            stride,
            count,
        };
        let dense = first(self.dense, count * len);
        let operation = Operation {
            name: format!("gather, runs of {len} bytes"),
            bytes: 2 * dense.len,
            goal: (len >= self.sizes.shortest_run).then_some(GOAL),
            clear: None,
            // SAFETY: as in `copy`. Every run lies at the start of a slot, and the offsets are
            // multiples of its length.
            enqueue: Box::new(move |stream| unsafe {
                aggregate::gather(
                    workbench.driver,
                    stream,
                    slots,
                    source,
                    offset,
                    count,
                    dense,
                )
            }),
        };
        let data = self.data;
        let pieces = sources.iter().enumerate().map(|(j, &source)| {
            let from = source as usize * stride;
            (j * len, &data[from..from + len])
        });
        self.add(operation, self.dense, pieces)
    }

    /// Copies consecutive runs of `len` bytes to slots.
    fn split(&mut self, len: usize) -> Result<()> {
        let workbench = self.workbench;
        let stride = slot_stride(len);
        let count = self.runs(len, len)?;
        let u64s = |numbers: Vec<usize>| -> Vec<u8> {
            let numbers = numbers.into_iter();
            numbers.flat_map(|n| (n as u64).to_ne_bytes()).collect()
        };
        let offsets = u64s((0..count).map(|i| i * len).collect());
        let (offset, size) = (
            workbench.device(offsets.len())?,
            workbench.device(offsets.len())?,
        );
        workbench.upload(offset, &offsets)?;
        workbench.upload(size, &u64s(vec![len; count]))?;
        workbench.upload(self.dense, self.data)?;
        let shards = first(self.dense, count * len);
        let slots = Slots {
            span: first(self.slots, count * stride),
            stride,
            count,
        };
        let operation = Operation {
            name: format!("split, runs of {len} bytes"),
            bytes: 2 * shards.len,
            goal: None,
            clear: None,
            // SAFETY: as in `copy`.
            enqueue: Box::new(move |stream| unsafe {
                split::split(workbench.driver, stream, shards, offset, size, slots)
            }),
        };
        let data = self.data;
        let pieces = (0..count).map(|i| (i * stride, &data[i * len..][..len]));
        self.add(operation, self.slots, pieces)
    }

    /// Times every operation in turns with the copy.
    fn time(&self, report: &mut Report<'_>) -> Result<()> {
        let time = |operation: &Operation<'_>| -> Result<f64> {
            if let Some(flags) = operation.clear {
                self.workbench.fill(flags, 0)?;
            }
            self.workbench.time(|stream| (operation.enqueue)(stream))
        };
        let Some((copy, others)) = self.operations.split_first() else {
            return Ok(());
        };
        let mut reference: Option<Samples> = None;
        for operation in others {
            let contestants: [Contestant<'_>; 2] = [&mut |_| time(copy), &mut |_| time(operation)];
            let [copied, samples] = race(self.sizes.warm_up, self.sizes.rounds, contestants)?;
            if reference.is_none() {
                report.row(Row::new(&copy.name, &copied, copy.bytes));
            }
            let ratio = samples.by(operation.bytes, &copied, copy.bytes);
            let row = Row::new(&operation.name, &samples, operation.bytes);
            let row = row.with("copy_gb_per_s", copied.rate(copy.bytes));
            report.row(row.ratio("a copy on the device", ratio, operation.goal));
            reference.get_or_insert(copied);
        }
        Ok(())
    }
}

/// The numbers below `count` in an order in which neighbours are far apart.
#[allow(
    clippy::cast_possible_truncation,
    reason = "there are fewer runs than a u32 counts"
)]
pub(crate) fn mixed(count: usize) -> Vec<u32> {
    let mut step = count * 5 / 8 + 1;
    while gcd(step, count) != 1 {
        step += 1;
    }
    (0..count).map(|i| (i * step % count) as u32).collect()
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Scatters the whole shard to slots `stride` bytes apart.
fn scatter(kind: &Kind, stride: usize) -> Result<SlabScatter> {
    let batch = LiftBatch {
        counts: kind.grid.counts(),
        subchunk: kind.grid.subchunk(),
        element_size: ELEMENT,
        order: &kind.chain.order,
        slot_stride: stride,
    };
    let slab = LiftSlab {
        start: &[0; 3],
        shape: kind.grid.shard(),
    };
    Ok(SlabScatter::new(
        &Lift::new(&batch, &slab)?,
        kind.chain.swap,
        &FILL_VALUE,
    )?)
}
