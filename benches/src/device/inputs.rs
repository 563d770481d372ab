//! Inputs of streams, in pinned memory: filled with the fill value, and read back. Each is compared
//! with the best that as many threads do by hand.

use std::ptr;
use std::thread;
use std::time::Instant;

use super::failure::{Result, require};
use super::report::{Report, Row};
use super::samples::race;
use super::workbench::Workbench;
use super::{CudaEngine, Sizes, cores};
use zarrs_cuda_engine::cuda::copiers::Copy;
use zarrs_cuda_engine::cuda::driver::PinnedUse;

/// The goal, as a part of what threads do by hand.
const GOAL: f64 = 0.8;

/// Elements of each size, zero and not.
const ELEMENTS: [&[u8]; 10] = [
    &[0],
    &[7],
    &[0; 2],
    &[1, 2],
    &[0; 3],
    &[1, 2, 3],
    &[0; 4],
    &[1, 2, 3, 4],
    &[0; 8],
    &[1, 2, 3, 4, 5, 6, 7, 8],
];

/// The bytes of a row, and from one row to the next, when an input is padded.
const ROW: usize = 4600;
const PITCH: usize = 4608;

/// Runs `work` on an equal part of `len` bytes on each processor. Returns the seconds.
fn by_hand(len: usize, work: impl Fn(usize, usize) + Sync) -> f64 {
    let part = len.div_ceil(cores().get()).max(1);
    let begin = Instant::now();
    thread::scope(|scope| {
        for at in (0..len).step_by(part) {
            let work = &work;
            scope.spawn(move || work(at, part.min(len - at)));
        }
    });
    begin.elapsed().as_secs_f64()
}

/// The start of memory that threads use, each in another place.
#[derive(Clone, Copy)]
struct Start(*mut u8);

// SAFETY: each thread uses bytes of its own.
unsafe impl Sync for Start {}

impl Start {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

pub(crate) fn measure(
    engine: &CudaEngine,
    workbench: &Workbench<'_>,
    sizes: &Sizes,
    data: &[u8],
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "inputs",
        "an input of a stream, in ordinary pinned memory that was written before",
    );
    let len = (sizes.copy / 2).min(data.len());
    let span = workbench.pinned(len, PinnedUse::Both)?;
    let copiers = &engine.devices.copiers;
    for element in ELEMENTS {
        let start = Start(workbench.write(span)?);
        let fill = |_: usize| {
            // SAFETY: the memory is the workbench's, and nothing else uses it now.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start.0, len) };
            let begin = Instant::now();
            copiers.fill(bytes, element, cores());
            Ok(begin.elapsed().as_secs_f64())
        };
        let by_hand = |_: usize| {
            Ok(by_hand(len, |at, part| {
                // SAFETY: as above, and a part of its own.
                unsafe { start.at(at).write_bytes(0x5a, part) };
            }))
        };
        let [filled, best] = race(
            sizes.warm_up,
            sizes.rounds,
            [&mut { fill }, &mut { by_hand }],
        )?;
        fill(0)?;
        let mut expected = element.iter().cycle();
        let is_right = workbench
            .read(span)?
            .iter()
            .all(|byte| Some(byte) == expected.next());
        require(is_right, || format!("memory is not full of {element:?}"))?;
        let name = format!("fill with {element:?}");
        let row = Row::new(name, &filled, len).with("element_size", element.len());
        let ratio = filled.by(len, &best, len);
        report.row(row.ratio("memset by hand", ratio, Some(GOAL)));
    }

    workbench.fill_pinned(span, data)?;
    let from = workbench.read(span)?;
    // Without padding, and from rows with padding between them.
    for (name, row, pitch) in [("read back", len, len), ("read back, padded", ROW, PITCH)] {
        let (row, pitch) = (row.min(len), pitch.min(len));
        let rows = (len - row) / pitch + 1;
        let mut back = vec![0; rows * row];
        let to = Start(back.as_mut_ptr());
        let read = |_: usize| {
            // SAFETY: the rows lie in the pinned memory, and in `back`, which nothing else uses.
            let copy = unsafe {
                let (from, to) = (from.as_ptr(), to.0);
                Copy::strided((from, &[pitch, 1]), (to, &[row, 1]), &[rows, row], 1)
            };
            let begin = Instant::now();
            copiers.run(&[copy], cores());
            Ok(begin.elapsed().as_secs_f64())
        };
        let by_hand = |_: usize| {
            Ok(by_hand(rows * row, |at, part| {
                let from = from[at..at + part].as_ptr();
                // SAFETY: a part of its own.
                unsafe { ptr::copy_nonoverlapping(from, to.at(at), part) };
            }))
        };
        let [read_back, best] = race(
            sizes.warm_up,
            sizes.rounds,
            [&mut { read }, &mut { by_hand }],
        )?;
        read(0)?;
        let is_right = std::iter::zip(back.chunks(row), from.chunks(pitch))
            .all(|(back, from)| back == &from[..row]);
        require(is_right, || format!("{name}: other bytes"))?;
        let ratio = read_back.by(rows * row, &best, rows * row);
        let row = Row::new(name.to_string(), &read_back, rows * row);
        report.row(row.ratio("memcpy by hand", ratio, Some(GOAL)));
    }
    Ok(())
}
