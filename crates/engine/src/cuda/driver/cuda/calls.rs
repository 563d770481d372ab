//! Calls of the functions of the driver, and their errors.

use super::CudaDriver;
use super::codes::{self, SUCCESS};
use super::functions::{Code, Functions};
use crate::cuda::driver::{DriverError, Fault};

impl CudaDriver {
    /// Calls a driver function, and checks its code. Returns the earlier error, without a call, if the device
    /// is broken.
    pub(super) fn run(
        &self,
        operation: impl Fn() -> String,
        function: impl FnOnce(&Functions) -> Code,
    ) -> Result<(), DriverError> {
        match self.code(&operation, function)? {
            SUCCESS => Ok(()),
            code => Err(self.error(code, operation())),
        }
    }

    /// Calls a driver function, and returns its code. Returns the earlier error, without a call, if the
    /// device is broken.
    pub(super) fn code(
        &self,
        operation: &impl Fn() -> String,
        function: impl FnOnce(&Functions) -> Code,
    ) -> Result<Code, DriverError> {
        match self.broken.get() {
            None => Ok(function(self.functions)),
            Some(first) => Err(DriverError {
                operation: operation(),
                reason: format!("not tried, because the device failed before: {first}"),
                ..first.clone()
            }),
        }
    }

    /// Returns the error for a code that is not [`SUCCESS`]. After a sticky error, the device counts as
    /// broken.
    pub(super) fn error(&self, code: Code, operation: String) -> DriverError {
        let error = self.told(code, operation, codes::fault(code));
        if error.fault == Fault::Sticky {
            // Another thread may have stored its error first. Either error can be reported.
            let _ = self.broken.set(error.clone());
        }
        error
    }

    /// Returns the error for a code, with the driver's description as the reason.
    pub(super) fn told(&self, code: Code, operation: String, fault: Fault) -> DriverError {
        DriverError {
            operation,
            device: Some(self.info.ordinal),
            fault,
            reason: codes::describe(self.functions, code),
        }
    }

    /// Returns the error for an operation that is refused without a call of the driver.
    pub(super) fn refused(&self, operation: String, reason: &str) -> DriverError {
        DriverError {
            operation,
            device: Some(self.info.ordinal),
            fault: Fault::Refused,
            reason: reason.into(),
        }
    }
}
