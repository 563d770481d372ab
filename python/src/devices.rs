//! The settings of devices with which Python opens an array.
#![allow(
    clippy::needless_pass_by_value,
    reason = "what tuples of Python become"
)]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use zarrs::array::Array;
use zarrs_codec::CodecSpecificOptions;
use zarrs_cuda::{Backend, Check, Options};

use crate::error::{Error, detached, unsupported};
use crate::store::Store;

/// The setting of Python that asks for devices.
const ASKED_BY: &str = "zarr.config";

/// The devices that Python has named: the text `all`, or numbers.
#[derive(Clone, Debug, FromPyObject)]
enum Gpus {
    All(#[allow(dead_code, reason = "Python has checked the text")] String),
    Numbers(Vec<usize>),
}

/// The fields of `zarrs_cuda._devices.Devices`, which Python has checked.
#[derive(Clone, Debug, FromPyObject)]
pub(crate) struct DeviceSettings {
    /// `auto`, `host` or `cuda`.
    #[pyo3(item(0))]
    backend: Option<String>,
    #[pyo3(item(1))]
    devices: Option<Gpus>,
    #[pyo3(item(2))]
    nvcomp: Option<PathBuf>,
    /// The number of bytes that buffers may take on each device.
    #[pyo3(item(3))]
    memory: Option<usize>,
    /// The number of seconds after which a wait for a device fails.
    #[pyo3(item(4))]
    timeout: Option<f64>,
    /// The number of batches of which one is compared with the host's result after the warm-up.
    #[pyo3(item(5))]
    check: Option<NonZeroU32>,
    /// Whether devices may decode frames of a compressor: the data are trusted.
    #[pyo3(item(6))]
    decode: Option<bool>,
    /// Whether the argument `device` of a writer has named the devices.
    #[pyo3(item(7))]
    by_writer: bool,
}

/// Ends the use of devices, because the process is about to end. Waits `limit` seconds at most.
#[pyfunction]
pub(crate) fn shut_down_devices(py: Python<'_>, limit: f64) {
    let limit = Duration::try_from_secs_f64(limit).unwrap_or_default();
    py.detach(|| zarrs_cuda::shut_down_devices(limit));
}

/// Checks that `settings` and those of the environment can be understood. Looks for no device.
#[pyfunction]
pub(crate) fn check_settings(settings: DeviceSettings) -> PyResult<()> {
    zarrs_cuda::check_settings(&settings.options()).map_err(unsupported)
}

/// Returns whether this process was forked from one that had looked for devices.
#[pyfunction]
pub(crate) fn is_forked_after_devices() -> bool {
    zarrs_cuda::is_forked_after_devices()
}

/// Returns the reasons why devices that a user has named by number cannot be used, by these numbers.
#[pyfunction]
pub(crate) fn missing_devices() -> BTreeMap<usize, String> {
    zarrs_cuda::metrics().missing_devices
}

/// Checks that a device is usable if `settings`, or the environment, ask for one.
#[pyfunction]
pub(crate) fn check_backend(py: Python<'_>, settings: DeviceSettings) -> PyResult<()> {
    detached(py, "", || settings.check_backend())
}

impl DeviceSettings {
    /// Returns the array with these settings. Whether it may use a device is decided by this call.
    pub(crate) fn on(&self, array: Array<Store>) -> Array<Store> {
        let options = CodecSpecificOptions::default().with_option(self.options());
        array.with_codec_specific_options(&options)
    }

    /// Checks that a device is usable if these settings, or the environment, ask for one. Without a device an
    /// array refuses its first read or write.
    ///
    /// # Errors
    /// [`Error::Backend`], with the reason.
    pub(crate) fn check_backend(&self) -> Result<(), Error> {
        zarrs_cuda::check_backend(&self.options())
            .map_err(|error| Error::Backend(error.to_string()))
    }

    fn options(&self) -> Options {
        let asked_by = if self.by_writer { "`device`" } else { ASKED_BY };
        let mut options = Options::default();
        options = match self.backend.as_deref() {
            Some("host") => options.with_backend(Backend::Host),
            Some("cuda") => options.with_backend(Backend::Cuda).with_consent(asked_by),
            Some(_) => options.with_backend(Backend::Auto).with_consent(asked_by),
            None => options,
        };
        options = match &self.devices {
            None => options,
            Some(Gpus::All(_)) => options.with_all_devices().with_consent(asked_by),
            Some(Gpus::Numbers(numbers)) => {
                options.with_devices(numbers.clone()).with_consent(asked_by)
            }
        };
        if let Some(nvcomp) = &self.nvcomp {
            options = options.with_nvcomp(nvcomp);
        }
        if let Some(memory) = self.memory {
            options = options.with_device_memory(memory);
        }
        let timeout = self.timeout.map(Duration::try_from_secs_f64);
        if let Some(Ok(timeout)) = timeout {
            options = options.with_device_timeout(timeout);
        }
        if let Some(decode) = self.decode {
            options = options.with_device_decode(decode);
        }
        match self.check {
            Some(every) => options.with_device_check(Check::Every(every)),
            None => options,
        }
    }
}
