//! Copies of pinned memory: to the device, from it, and both at once.

use super::Sizes;
use super::failure::{Result, require};
use super::report::{Report, Row};
use super::samples::race;
use super::workbench::Workbench;
use zarrs_cuda_engine::cuda::driver::{
    DeviceSpan, DriverError, PinnedSpan, PinnedUse, Span, StreamId,
};

/// Buffers for one copy in each direction.
pub(crate) struct Bus<'b, 'd> {
    pub(crate) workbench: &'b Workbench<'d>,
    pinned_in: PinnedSpan,
    pinned_out: PinnedSpan,
    device_in: DeviceSpan,
    device_out: DeviceSpan,
}

impl<'b, 'd> Bus<'b, 'd> {
    /// Allocates the buffers, and checks that a round trip returns the same bytes.
    pub(crate) fn new(workbench: &'b Workbench<'d>, sizes: &Sizes, data: &[u8]) -> Result<Self> {
        let this = Self {
            workbench,
            pinned_in: workbench.pinned(sizes.copy, PinnedUse::ToDevice)?,
            pinned_out: workbench.pinned(sizes.copy, PinnedUse::FromDevice)?,
            device_in: workbench.device(sizes.copy)?,
            device_out: workbench.device(sizes.copy)?,
        };
        let data = &data[..sizes.copy.min(data.len())];
        workbench.fill_pinned(this.pinned_in, data)?;
        workbench.fill(this.device_out, 0)?;
        this.seconds_to_device()?;
        workbench.check("a copy to the device", this.device_in, [(0, data)])?;
        // Checks a copy from `device_in`. The timed copies from the device use another buffer, so
        // that they can run at the same time as uploads.
        let back = (Span::Device(this.device_in), Span::Pinned(this.pinned_out));
        workbench.run(|stream| this.copy(stream, back))?;
        let same = workbench.read(this.pinned_out)?.starts_with(data);
        require(same, || "a copy from the device: wrong bytes".to_string())?;
        Ok(this)
    }

    fn copy(
        &self,
        stream: StreamId,
        (from, to): (Span, Span),
    ) -> std::result::Result<(), DriverError> {
        // SAFETY: the buffers belong to the workbench, which synchronises its streams before it
        // frees them. Every caller waits for the copy.
        unsafe { self.workbench.driver.copy(stream, from, to) }
    }

    fn up(&self) -> (Span, Span) {
        (Span::Pinned(self.pinned_in), Span::Device(self.device_in))
    }

    fn down(&self) -> (Span, Span) {
        (Span::Device(self.device_out), Span::Pinned(self.pinned_out))
    }

    /// Times a copy to the device, in seconds.
    pub(crate) fn seconds_to_device(&self) -> Result<f64> {
        self.workbench.time(|stream| self.copy(stream, self.up()))
    }

    /// Times a copy from the device, in seconds.
    pub(crate) fn seconds_from_device(&self) -> Result<f64> {
        self.workbench.time(|stream| self.copy(stream, self.down()))
    }

    /// Times both copies at once, in seconds.
    pub(crate) fn seconds_of_both(&self) -> Result<f64> {
        self.workbench
            .time_both([&|stream| self.copy(stream, self.up()), &|stream| {
                self.copy(stream, self.down())
            }])
    }

    /// The length of each copy, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.pinned_in.len
    }

    pub(crate) fn measure(&self, sizes: &Sizes, report: &mut Report<'_>) -> Result<()> {
        report.section(
            "bus",
            "copies of pinned memory; both: GB/s in each direction",
        );
        let samples = race(
            sizes.warm_up,
            sizes.rounds,
            [
                &mut |_| self.seconds_to_device(),
                &mut |_| self.seconds_from_device(),
                &mut |_| self.seconds_of_both(),
            ],
        )?;
        for (name, samples) in ["to the device", "from the device", "both at once"]
            .into_iter()
            .zip(&samples)
        {
            report.row(Row::new(name, samples, self.len()));
        }
        Ok(())
    }
}
