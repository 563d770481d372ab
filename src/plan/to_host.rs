//! Brings elements that an application has on a device to a stream that the host encodes.

use std::sync::Arc;
use std::time::Duration;

use zarrs_cuda_engine::contract::EngineError;
use zarrs_cuda_engine::contract::stream::DeviceBytes;
use zarrs_cuda_engine::cuda::{self, Devices, Download};

/// Copies bytes on devices to the host. Keeps the memory for copies from the device that was used last.
#[derive(Debug)]
pub(crate) struct ToHost {
    /// The devices of a test. `None` for the devices of the process.
    given: Option<Arc<Devices>>,
    /// The time after which a wait for a device fails.
    timeout: Duration,
    last: Option<(usize, Download)>,
}

impl ToHost {
    pub(super) fn new(given: Option<Arc<Devices>>, timeout: Duration) -> Self {
        Self {
            given,
            timeout,
            last: None,
        }
    }

    /// Calls `take` with the bytes, piece by piece, in order. The application asks for the device by these
    /// bytes. When this returns, the device reads them no more, unless the error says that the device is lost.
    ///
    /// # Errors
    /// The error of `take`, or the error that `failed` makes of an error of the device.
    ///
    /// # Safety
    /// The requirements of [`DeviceBytes`].
    #[allow(unsafe_code)]
    pub(crate) unsafe fn read<E>(
        &mut self,
        bytes: &DeviceBytes,
        failed: impl Fn(EngineError) -> E,
        take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let download = match self.last.take() {
            Some((device, download)) if device == bytes.device => download,
            _ => self.download(bytes.device).map_err(&failed)?,
        };
        let (_, download) = self.last.insert((bytes.device, download));
        // SAFETY: this function has the same requirements, which its caller keeps.
        unsafe { download.read(bytes, failed, take) }
    }

    /// # Errors
    /// [`EngineError::Unsuitable`], because nothing was copied yet.
    fn download(&self, ordinal: usize) -> Result<Download, EngineError> {
        let devices = match &self.given {
            Some(devices) => Ok(devices.clone()),
            None => cuda::devices().map_err(EngineError::Device),
        };
        let download = devices.and_then(|devices| devices.download(ordinal, self.timeout));
        download.map_err(|error| {
            EngineError::Unsuitable(format!(
                "the data are on CUDA device {ordinal}, and cannot be copied to the host, which encodes them: {error}"
            ))
        })
    }
}
