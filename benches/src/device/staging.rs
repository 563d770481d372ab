//! Compares kinds of pinned memory for uploads: write-combined memory, which bypasses the host's
//! caches, and ordinary memory.

use std::time::Instant;

use super::bus::Bus;
use super::failure::Result;
use super::report::{Report, Row};
use super::samples::race;
use super::{CudaEngine, Sizes, cores};
use zarrs_cuda_engine::cuda::copiers::Copy;
use zarrs_cuda_engine::cuda::driver::{DeviceSpan, PinnedSpan, PinnedUse, Span};

/// A ring of pinned memory, as large as a lane's, and a slab on the device.
struct Ring<'a> {
    engine: &'a CudaEngine,
    bus: &'a Bus<'a, 'a>,
    pinned: PinnedSpan,
    device: DeviceSpan,
}

impl Ring<'_> {
    /// The seconds in which the engine's threads write all of `decoded` to the ring, slab by slab.
    /// If `copied`, each slab is copied to the device before the next is written.
    fn seconds(&self, decoded: &[u8], copied: bool) -> Result<f64> {
        let (workbench, tuning) = (self.bus.workbench, self.engine.tuning);
        let begin = Instant::now();
        for (i, slab) in decoded.chunks(tuning.slab).enumerate() {
            let place = PinnedSpan {
                offset: self.pinned.offset + i % tuning.ring * tuning.slab,
                len: slab.len(),
                ..self.pinned
            };
            let to = workbench.write(place)?;
            // SAFETY: the slab lies within the ring, which the host may write now.
            let copy = unsafe { Copy::bytes(slab.as_ptr(), to, slab.len()) };
            self.engine.devices.copiers.run(&[copy], cores());
            if copied {
                let to = DeviceSpan {
                    len: slab.len(),
                    ..self.device
                };
                // SAFETY: the memory belongs to the workbench, and the stream is synchronised.
                workbench.run(|stream| unsafe {
                    let (from, to) = (Span::Pinned(place), Span::Device(to));
                    workbench.driver.copy(stream, from, to)
                })?;
            }
        }
        Ok(begin.elapsed().as_secs_f64())
    }
}

pub(crate) fn measure(
    engine: &CudaEngine,
    bus: &Bus<'_, '_>,
    sizes: &Sizes,
    data: &[u8],
    report: &mut Report<'_>,
) -> Result<()> {
    report.section(
        "staging",
        "a Vec through a ring of pinned memory, slab by slab, nothing at the same time",
    );
    let (workbench, tuning) = (bus.workbench, engine.tuning);
    // More data than caches hold.
    let data = &data[..data.len().min(sizes.distinct)];
    let ring = |kind| -> Result<Ring<'_>> {
        let ring = Ring {
            engine,
            bus,
            pinned: workbench.pinned(tuning.slab * tuning.ring, kind)?,
            device: workbench.device(tuning.slab)?,
        };
        ring.seconds(data, true)?;
        let last = data.chunks(tuning.slab).next_back().unwrap_or(data);
        workbench.check("a Vec through pinned memory", ring.device, [(0, last)])?;
        Ok(ring)
    };
    // Memory that the device writes is never write-combined, since the host would read it slowly.
    let (combined, ordinary) = (ring(PinnedUse::ToDevice)?, ring(PinnedUse::FromDevice)?);
    let len = data.len();
    let [write, write_ordinary, both, both_ordinary] = race(
        sizes.warm_up,
        sizes.rounds,
        [
            &mut |_| combined.seconds(data, false),
            &mut |_| ordinary.seconds(data, false),
            &mut |_| combined.seconds(data, true),
            &mut |_| ordinary.seconds(data, true),
        ],
    )?;
    for (name, combined, ordinary) in [
        ("host writes", &write, &write_ordinary),
        ("host writes, then to the device", &both, &both_ordinary),
    ] {
        report.row(Row::new(format!("{name}, write-combined"), combined, len));
        let ratio = ordinary.by(len, combined, len);
        let row = Row::new(format!("{name}, ordinary"), ordinary, len);
        report.row(row.ratio("write-combined", ratio, None));
    }
    Ok(())
}
